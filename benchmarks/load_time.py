"""Seconds from a script's start to the first prediction of a preset of BERT base's size, and the memory it took.

    python benchmarks/load_time.py --preset BASE --peers-python PEERS_PYTHON --out OUT

`BASE` is a Hugging Face directory; `PEERS_PYTHON` the Python of an environment with torch and transformers. Each run is
a process of its own; contenders take turns. The files are in the system's cache after the first, which is not counted.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

OURS = """
import keras_bert_zoo as kbz
middle = time.perf_counter()
classifier = kbz.BertTextClassifier.from_preset(sys.argv[1], num_classes=2, sequence_length=128)
loaded = time.perf_counter()
classifier.predict(["a charming journey"], verbose=0)
"""
TRANSFORMERS = """
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
middle = time.perf_counter()
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForSequenceClassification.from_pretrained(sys.argv[1], num_labels=2).eval()
loaded = time.perf_counter()
with torch.inference_mode():
    model(**tokenizer(["a charming journey"], return_tensors="pt"))
"""
AROUND = """
import json, resource, sys, time
start = time.perf_counter()
{}
end = time.perf_counter()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
print(json.dumps({{"import": middle - start, "load": loaded - middle, "predict": end - loaded, "GiB": peak}}))
"""
PARTS = ("import", "load", "predict")


def run(code: str, python: str, backend: str, preset: Path) -> dict[str, float]:
    environment = {
        **os.environ,
        "KERAS_BACKEND": backend,
        "PYTHONPATH": str(Path(__file__).parents[1]) if code is OURS else "",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "-1",
        "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run(
        [python, "-c", AROUND.format(code), str(preset)], env=environment, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(done.stderr[-1000:])
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", type=Path, required=True)
    parser.add_argument("--peers-python")
    parser.add_argument("--backends", default="tensorflow,torch,jax,openvino")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="the Markdown file to write")
    arguments = parser.parse_args()
    contenders = {f"keras_bert_zoo, {name}": (OURS, sys.executable, name) for name in arguments.backends.split(",")}
    if arguments.peers_python:
        contenders["transformers"] = (TRANSFORMERS, arguments.peers_python, "torch")
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
    for turn in range(arguments.rounds + 1):
        for name, (code, python, backend) in contenders.items():
            measured = run(code, python, backend, arguments.preset)
            if turn:
                runs[name].append(measured)
    lines = [
        "| contender | import, s | load, s | first prediction, s | together (fastest..slowest) | GiB |",
        "|---|---|---|---|---|---|",
    ]
    for name, rounds in runs.items():
        medians = [statistics.median(each[part] for each in rounds) for part in PARTS]
        together = sorted(sum(each[part] for part in PARTS) for each in rounds)
        cells = [f"{seconds:.2f}" for seconds in medians]
        cells.append(f"{statistics.median(together):.2f} ({together[0]:.2f}..{together[-1]:.2f})")
        cells.append(f"{max(each['GiB'] for each in rounds):.2f}")
        lines.append(f"| {' | '.join([name, *cells])} |")
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.out:
        arguments.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
