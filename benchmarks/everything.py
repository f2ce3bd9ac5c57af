"""Run every CPU speed benchmark in sequence, on an otherwise idle machine; takes over six hours.

    KBZ_DATA=DATA python benchmarks/everything.py --preset PRESET --peers-python PEERS_PYTHON --work WORK NOVELS/*.txt

`PRESET` is MiniLM's Hugging Face directory. `PEERS_PYTHON` is the Python of an environment with torch, transformers,
onnxruntime, onnxscript, openvino, keras, keras-hub, tensorflow and jax. The novels are for shard making and for cost
against corpus size. `--original`, the folder of google-research/bert that `prepare_speed.py` describes, adds its code.
Reports go to `WORK` and `results/`, and together to `results/README.md`. Results in `WORK` of this machine, these
versions, this code and these options are not measured again, so the command can be interrupted; what fails is retried
the next time.
`--only base_8x128_float32,load_time` selects some reports. `WORK` also holds all logs and a model of BERT
base's size with random weights. On a GPU use `gpu_pretraining.py` and `finetune_speed.py --device gpu`.
"""

import argparse
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from machine import versions
from process import with_code
from reports import data_folder, is_current, is_whole

HERE = Path(__file__).parent
TEXTS = {"mrpc": "MRPC", "sst2": "SST-2", "squad": "SQuAD"}
FIXED = ("8x128", "4x512")
DTYPES = ("float32", "bfloat16")
BACKENDS = "tensorflow,torch,jax"
OTHERS = "Other reports"
# BERT base takes eight times as long as MiniLM.
FEWER = {"mrpc": 160, "sst2": 640, "squad": 64}
MAKE_BASE = """
import sys
import keras_bert_zoo as kbz
tokenizer = kbz.BertTokenizer(sys.argv[1])
backbone = kbz.BertBackbone.from_preset("bert_base", load_weights=False)
preprocessor = kbz.BertPreprocessor(tokenizer, sequence_length=512)
kbz.BertTextClassifier(backbone, num_classes=2, preprocessor=preprocessor).save_to_preset(sys.argv[2])
"""


def reports(arguments: argparse.Namespace, base: Path, out: Path) -> dict[str, tuple[str, list[str]]]:
    """Return each report's title, and the script that writes it to `out`, with its arguments."""
    peers = ["--peers-python", arguments.peers_python]
    rounds = [] if arguments.rounds is None else ["--rounds", str(arguments.rounds)]
    minilm, vocab = ["--preset", str(arguments.preset)], ["--vocab", str(arguments.preset / "vocab.txt")]
    novels = [str(path) for path in arguments.novels]
    original = ["--original", str(arguments.original)] if arguments.original else []
    found: dict[str, tuple[str, list[str]]] = {}

    def speed(name: str, title: str, *options: str) -> None:
        log = ["--log", str(out / f"{name}.contenders.log")]
        command = ["finetune_speed.py", *peers, *rounds, *options, "--out", str(out), "--name", name, *log]
        found[name] = f"Fine-tuning and prediction: {title}", command

    def beside(backend: str) -> list[str]:
        return ["--dtypes", "float32", "--backends", backend, "--keras-hub", backend]

    def written(name: str, title: str, script: str, *options: str) -> None:
        found[name] = title, [script, *options, "--out", str(out / f"{name}.md")]

    # A report for each, so that an interruption loses no more than one.
    for dtype in DTYPES:
        for task, name in TEXTS.items():
            options = ["--tasks", task, "--dtypes", dtype, "--runtimes", "--keras-hub", BACKENDS]
            speed(f"minilm_{task}_{dtype}", f"MiniLM, {name}, {dtype}", *minilm, *options)
    for task, name in {**{shape: shape for shape in FIXED}, **TEXTS}.items():
        # Texts take up to 7 GiB for each contender, fixed shapes up to 5.
        few = ["--examples", str(FEWER[task]), "--apart"] if task in FEWER else []
        options = ["--preset", str(base), "--tasks", task, *few]
        for dtype in DTYPES:
            speed(f"base_{task}_{dtype}", f"BERT base, {name}, {dtype}", *options, "--dtypes", dtype, "--runtimes")
        for backend in BACKENDS.split(","):  # One report each: contenders are alive at once, at up to 5 GiB each.
            title = f"BERT base, {name}, beside keras-hub on {backend}"
            speed(f"base_{task}_keras_hub_{backend}", title, *options, *beside(backend))
    # As many sentences as there are pairs, so that all contenders take as many examples.
    for task in ("mrpc", "sst2"):
        options = ["--tasks", task, "--examples", "640", "--as-it-comes"]
        title = f"MiniLM, {TEXTS[task]}, beside keras-hub as it comes, padded to 512"
        speed(f"as_it_comes_{task}", title, *minilm, *options, *beside("tensorflow"))
    written("pretraining_step", "A step of pre-training", "pretraining_step.py", *peers, *rounds)
    written(
        "load_time", "From a file to the first prediction: BERT base", "load_time.py", "--preset", str(base), *peers
    )
    written("import_time", "Import", "import_time.py", *peers)
    written("tokenizers_speed", "The tokenizer", "tokenizers_compared.py", "--speed-only")
    written("prepare_speed", "Examples from text", "prepare_speed.py", *vocab, *original, *novels)
    found["int8_score_torch"] = "int8", ["int8_score.py", *minilm, "--out", str(out)]
    for backend in BACKENDS.split(","):
        # Memory, replicas and the corpus are the same whatever the backend.
        sweeps = [*vocab, *novels] if backend == "tensorflow" else ["--only", "length", "batch", "layers", "width"]
        scaling = ["scaling.py", "--backend", backend, "--out", str(out), *sweeps]
        found[f"scaling_{backend}"] = f"Cost against sizes: {backend}", scaling
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("novels", nargs="+", type=Path, help="text files, as prose")
    parser.add_argument("--preset", type=Path, required=True)
    parser.add_argument("--peers-python", required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--original", type=Path)
    parser.add_argument("--rounds", type=int, help="of fine-tuning and pre-training, in place of their own number")
    # With commas: an option of several words would also take the novels.
    parser.add_argument("--only", metavar="REPORT,…", help="by default all are made")
    arguments = parser.parse_args()
    work, base = arguments.work.resolve(), arguments.work.resolve() / "base"
    arguments.novels = [path.resolve() for path in arguments.novels]
    unfinished = work / "unfinished"  # Scripts that can resume find what they have measured here.
    wanted = reports(arguments, base, unfinished)
    only = list(wanted) if arguments.only is None else arguments.only.split(",")
    if not set(only) <= set(wanted):
        parser.error(f"--only must name some of {', '.join(wanted)}. Received: {arguments.only}")
    data_folder()
    if not (arguments.preset / "vocab.txt").is_file():
        parser.error(f"--preset must be a directory with a vocab.txt. Received: {arguments.preset}")
    versions(arguments.peers_python)  # Exits with a message if it is no interpreter.
    unfinished.mkdir(parents=True, exist_ok=True)
    environment = {**with_code(True), "KERAS_BACKEND": "torch"}
    if not base.exists():
        part = unfinished / "base"
        shutil.rmtree(part, ignore_errors=True)
        making = [sys.executable, "-c", MAKE_BASE, str(arguments.preset / "vocab.txt"), str(part)]
        subprocess.run(making, env=environment, check=True)
        part.replace(base)
    failed = []
    for name, (_, command) in wanted.items():
        if is_done(name, command, work, arguments.peers_python) or name not in only:
            continue
        print(f"== {name}", flush=True)
        (unfinished / f"{name}.command").write_text(shlex.join(command), encoding="utf-8")
        with (work / f"{name}.log").open("w", encoding="utf-8") as log:
            run = subprocess.run(
                [sys.executable, str(HERE / command[0]), *command[1:]], env=environment, stdout=log, stderr=log
            )
        if run.returncode or not is_current(unfinished / f"{name}.md", command[0], arguments.peers_python):
            failed.append(name)
            print(f"{name} failed; see {log.name}", flush=True)
            continue
        if not keep(name, unfinished, work):
            failed.append(name)
            print(f"{name} failed in part; its report says where", flush=True)
    results = HERE / "results"
    # What failed in part is better than nothing, but not than an older report.
    titles = {
        name: title
        for name, (title, command) in wanted.items()
        if is_done(name, command, work, arguments.peers_python)
        or (
            is_current(work / f"{name}.md", command[0], arguments.peers_python)
            and not (results / f"{name}.md").exists()
        )
    }
    publish(titles, {title for title, _ in wanted.values()}, work, results)
    if failed:
        sys.exit(f"Failed: {', '.join(failed)}.")


def is_done(name: str, command: list[str], work: Path, peers_python: str) -> bool:
    """Whether `work` has a report that this command made, with this code, and in which nothing failed."""
    report, made_by = work / f"{name}.md", work / f"{name}.command"
    if not made_by.is_file() or made_by.read_text(encoding="utf-8") != shlex.join(command):
        return False
    return is_current(report, command[0], peers_python) and is_whole(report)


def keep(name: str, unfinished: Path, work: Path) -> bool:
    """Move a report to `work`, or copy it if it failed in part, as a script resumes from what it has measured.

    Returns:
        Whether nothing failed in it.
    """
    whole = is_whole(unfinished / f"{name}.md")
    (work / f"{name}.command").unlink(missing_ok=True)
    # The command last: without it, what an interruption leaves is not taken for the whole.
    for path in sorted(unfinished.glob(f"{name}.*"), key=lambda path: path.suffix == ".command"):
        if whole:
            path.replace(work / path.name)
        else:
            shutil.copy(path, work)
    return whole


def publish(titles: dict[str, str], known: set[str], work: Path, results: Path) -> None:
    """Copy these reports to `results`, and put each into the summary in place of an older one of the same title.

    Reports of a title that is not `known`, which this command does not make, go to the end.
    """
    summary = results / "README.md"
    before = summary.read_text(encoding="utf-8") if summary.is_file() else "# Speed, measured by `everything.py`"
    head, *sections = before.strip().split("\n\n## ")
    parts = {section.partition("\n")[0]: f"## {section}" for section in sections}
    parts.pop(OTHERS, None)
    for name, title in titles.items():
        for path in work.glob(f"{name}.*"):
            if path.suffix not in (".log", ".command"):
                shutil.copy(path, results)
        lines = (work / f"{name}.md").read_text(encoding="utf-8").splitlines()
        body = "\n".join(line for line in lines if not line.startswith("# ")).strip()
        parts[title] = f"## {title}\n\n" + body.replace("\n## ", "\n### ")
    ours = [section for title, section in parts.items() if title in known]
    others = [section for title, section in parts.items() if title not in known]
    after = [f"## {OTHERS}\n\nWhat follows is not of this command, and stays as it was measured.", *others]
    summary.write_text("\n\n".join([head, *ours, *(after if others else [])]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
