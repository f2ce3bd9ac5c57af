"""Measure seconds from a script's start to the first prediction of a preset of BERT base's size, and peak memory.

    python benchmarks/load_time.py --preset BASE --peers-python PEERS_PYTHON --out OUT

`BASE` is a Hugging Face directory; `PEERS_PYTHON` is the Python of an environment with transformers and what
keras_bert_zoo needs on each backend. All contenders run there: Keras imports scikit-learn if it is installed, which
takes longer than all of our own code. Each run is its own process; contenders take turns. The first round, which fills
the system's file cache, is not counted.
"""

import argparse
import statistics
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from fresh import run, take_fresh_turns
from reports import about, describe, table, write

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
PEER = "transformers"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", type=Path, required=True)
    parser.add_argument("--peers-python")
    parser.add_argument("--backends", default="tensorflow,torch,jax,openvino")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="the Markdown file to write; the runs go beside it as JSON")
    arguments = parser.parse_args()
    facts = about("load_time.py", arguments)
    python = arguments.peers_python or sys.executable
    programs = {f"keras_bert_zoo, {name}": (OURS, name) for name in arguments.backends.split(",")}
    if arguments.peers_python:
        programs[PEER] = (TRANSFORMERS, "torch")
    contenders = {
        name: partial(run, AROUND.format(code), python, backend, str(arguments.preset), is_ours=code is OURS)
        for name, (code, backend) in programs.items()
    }
    runs, left_out = take_fresh_turns(contenders, arguments.rounds)
    if not any(runs.values()):
        sys.exit(f"No contender could be measured: {left_out}")
    weights = sum(path.stat().st_size for path in arguments.preset.glob("*.safetensors")) / 1e6
    failures = [f"\nLeft out: {name}: {reason}." for name, reason in left_out.items()]
    said = (
        f"{weights:.0f} MB of weights. The last column says how many times as fast the row is, by medians. All run in "
        "the peers' environment."
    )
    text = "\n".join(["# Loading", "", *describe(facts), "", said, "", table(rows(runs)), *failures]) + "\n"
    print(text)
    if arguments.out:
        write(arguments.out, text, {"about": facts, "results": runs, "left_out": left_out})


def rows(runs: dict[str, list[dict[str, float]]]) -> Iterator[list[str]]:
    yield ["contender", *(f"{part}, s" for part in PARTS), "together (fastest..slowest)", "GiB", f"vs {PEER}"]
    together = {name: sorted(sum(each[part] for part in PARTS) for each in found) for name, found in runs.items()}
    for name, found in runs.items():
        medians = [f"{statistics.median(each[part] for each in found):.2f}" for part in PARTS]
        median, seconds = statistics.median(together[name]), together[name]
        yield [
            name,
            *medians,
            f"{median:.2f} ({seconds[0]:.2f}..{seconds[-1]:.2f})",
            f"{max(each['GiB'] for each in found):.2f}",
            f"{statistics.median(together[PEER]) / median:.2f}" if PEER in together else "-",
        ]


if __name__ == "__main__":
    main()
