"""Every benchmark of speed on a CPU, one after the other, on a machine that does nothing else: some hours.

    KBZ_DATA=DATA python benchmarks/everything.py --preset PRESET --peers-python PEERS_PYTHON --work WORK

`PRESET` is MiniLM's Hugging Face directory; `PEERS_PYTHON` the Python of an environment with torch, transformers,
onnxruntime, onnxscript, keras, keras-hub, tensorflow and jax. Reports go to `results/`, and together to
`results/README.md`. What has a report in `WORK` is not run again, so the command may be interrupted, and what fails is
left for the next time; `WORK` also takes the scripts' logs and a model of BERT base's size with random weights. The
seconds of `prepare` beside the original's need its files: `prepare_speed.py`.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
TITLES = {
    "finetune_speed": "Fine-tuning and prediction: MiniLM on real texts",
    "as_it_comes": "The same beside keras-hub as it comes, padded to 512",
    "fixed_speed": "Fine-tuning and prediction: BERT base at fixed lengths",
    "pretraining_step": "A step of pre-training",
    "load_time": "From a file to the first prediction: BERT base",
    "tokenizers_speed": "The tokenizer",
    "import_time": "Import",
}
MAKE_BASE = """
import sys
import keras_bert_zoo as kbz
tokenizer = kbz.BertTokenizer(sys.argv[1])
backbone = kbz.BertBackbone.from_preset("bert_base", load_weights=False)
preprocessor = kbz.BertPreprocessor(tokenizer, sequence_length=512)
kbz.BertTextClassifier(backbone, num_classes=2, preprocessor=preprocessor).save_to_preset(sys.argv[2])
"""


def commands(arguments: argparse.Namespace, base: Path, out: Path) -> dict[str, list[str]]:
    """Of each report the script and its arguments; a report is written by the script, or is what it prints."""
    peers = ["--peers-python", arguments.peers_python]
    speed = ["finetune_speed.py", *peers, "--out", str(out)]
    minilm = ["--preset", str(arguments.preset)]
    few = ["--tasks", "mrpc,sst2", "--dtypes", "float32", "--examples", "96", "--backends", "tensorflow"]

    def written(name: str) -> list[str]:
        return ["--out", str(out / f"{name}.md")]

    return {
        "finetune_speed": [*speed, *minilm, "--runtimes", "--keras-hub", "tensorflow,torch,jax"],
        "as_it_comes": [*speed, *minilm, *few, "--as-it-comes", "--name", "as_it_comes"],
        "fixed_speed": [*speed, "--preset", str(base), "--tasks", "8x128,4x512", "--name", "fixed_speed"],
        "pretraining_step": ["pretraining_step.py", *peers, *written("pretraining_step")],
        "load_time": ["load_time.py", "--preset", str(base), *peers, *written("load_time")],
        "tokenizers_speed": ["tokenizers_compared.py", "--speed-only", *written("tokenizers_speed")],
        "import_time": ["import_time.py"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", nargs="*", help=f"of {', '.join(TITLES)}, which by default all are made")
    parser.add_argument("--preset", type=Path, required=True)
    parser.add_argument("--peers-python", required=True)
    parser.add_argument("--work", type=Path, required=True)
    arguments = parser.parse_args()
    if "KBZ_DATA" not in os.environ or not set(arguments.reports) <= set(TITLES):
        sys.exit("Needs the data folder in KBZ_DATA, and names of reports if not all; see --help.")
    arguments.work.mkdir(parents=True, exist_ok=True)
    environment = {"KERAS_BACKEND": "jax", **os.environ, "PYTHONPATH": str(HERE.parent)}
    base = arguments.work / "base"
    if not base.exists():
        making = [sys.executable, "-c", MAKE_BASE, str(arguments.preset / "vocab.txt"), str(base)]
        subprocess.run(making, env=environment, check=True)
    unfinished, failed = arguments.work / "unfinished", []
    for name, (script, *options) in commands(arguments, base, unfinished).items():
        if (arguments.work / f"{name}.md").exists() or (arguments.reports and name not in arguments.reports):
            continue
        print(f"== {name}", flush=True)
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        command = [sys.executable, str(HERE / script), *options]
        with (arguments.work / f"{name}.log").open("w", encoding="utf-8") as log:
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
        if done.returncode:
            failed.append(name)
            print(f"{name} failed; see {log.name}", flush=True)
            continue
        if not any(unfinished.iterdir()):
            (unfinished / f"{name}.md").write_text(done.stdout, encoding="utf-8")
        for path in unfinished.iterdir():
            path.replace(arguments.work / path.name)
    parts = ["# Speed, measured by `everything.py`"]
    for name, title in TITLES.items():
        for path in (path for path in arguments.work.glob(f"{name}.*") if path.suffix != ".log"):
            shutil.copy(path, HERE / "results")
        report = HERE / "results" / f"{name}.md"
        if report.exists():
            lines = [line for line in report.read_text(encoding="utf-8").splitlines() if not line.startswith("# ")]
            parts.append(f"## {title}\n\n" + "\n".join(lines).strip())
    (HERE / "results" / "README.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    if failed:
        sys.exit(f"Failed: {', '.join(failed)}.")


if __name__ == "__main__":
    main()
