"""Measure what `import keras_bert_zoo` costs beyond `import keras`, beside keras-hub and transformers.

    python benchmarks/import_time.py --peers-python PEERS_PYTHON --out OUT

Every import runs in a fresh process. Contenders take turns on each backend of Keras, all in the peers' environment if
there is one. For transformers the script imports PyTorch, then the classes that a model needs. The first round, which
fills the system's file cache, is not counted. GiB: the most memory that the process had, both imports included.
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from fresh import run, take_fresh_turns
from reports import about, describe, table, write

KERAS = """
import json, resource, time
start = time.perf_counter()
import keras
middle = time.perf_counter()
import {}
end = time.perf_counter()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
print(json.dumps({{"before": middle - start, "beyond": end - middle, "GiB": peak}}))
"""
TRANSFORMERS = """
import json, resource, time
start = time.perf_counter()
import torch
middle = time.perf_counter()
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertForSequenceClassification
end = time.perf_counter()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
print(json.dumps({"before": middle - start, "beyond": end - middle, "GiB": peak}))
"""
OURS, PEER = "keras_bert_zoo", "keras-hub"


def line_up(arguments: argparse.Namespace) -> dict[tuple[str, str], Callable[[], dict[str, float]]]:
    """Return the programs by what they import first and by contender."""
    peers = arguments.peers_python
    contenders: dict[tuple[str, str], Callable[[], dict[str, float]]] = {}
    for backend in arguments.backends.split(","):
        ours = KERAS.format("keras_bert_zoo")
        contenders[f"keras, {backend}", OURS] = partial(run, ours, peers or sys.executable, backend)
        if peers:
            theirs = KERAS.format("keras_hub")
            contenders[f"keras, {backend}", PEER] = partial(run, theirs, peers, backend, is_ours=False)
    if peers:
        contenders["torch", "transformers"] = partial(run, TRANSFORMERS, peers, "torch", is_ours=False)
    return contenders


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers-python")
    parser.add_argument("--backends", default="tensorflow,torch,jax")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, help="the Markdown file to write; the runs go beside it as JSON")
    arguments = parser.parse_args()
    facts = about("import_time.py", arguments)
    runs, left_out = take_fresh_turns(line_up(arguments), arguments.rounds)
    if not any(runs.values()):
        sys.exit(f"No contender could be measured: {left_out}")
    rows = [["imported first", "s", "then", "s beyond it, median (fastest..slowest)", f"x {OURS}", "GiB"]]
    for (first, name), found in runs.items():
        beyond = [each["beyond"] for each in found]
        ours = statistics.median(each["beyond"] for each in runs[first, OURS]) if runs.get((first, OURS)) else None
        median = statistics.median(beyond)
        before = f"{statistics.median(each['before'] for each in found):.2f}"
        spread = f"{median:.3f} ({min(beyond):.3f}..{max(beyond):.3f})"
        gib = f"{max(each['GiB'] for each in found):.2f}"
        rows.append([first, before, name, spread, f"{median / ours:.1f}" if ours else "-", gib])
    failed = {f"{name}, {first}": reason for (first, name), reason in left_out.items()}
    failures = [f"\nLeft out: {who}: {reason}." for who, reason in failed.items()]
    said = "GiB: the most memory that the process had, both imports included."
    text = "\n".join(["# Import", "", *describe(facts), "", said, "", table(rows), *failures]) + "\n"
    print(text)
    if arguments.out:
        raw = [{"first": first, "contender": name, "runs": found} for (first, name), found in runs.items()]
        write(arguments.out, text, {"about": facts, "results": raw, "left_out": failed})


if __name__ == "__main__":
    main()
