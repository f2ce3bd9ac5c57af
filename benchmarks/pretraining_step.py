"""The pre-training step, 128 tokens with 20 predictions and 512 with 76, beside transformers' `BertForPreTraining`.

    python benchmarks/pretraining_step.py --peers-python PEERS_PYTHON --out OUT

`PEERS_PYTHON` is the Python of an environment with torch and transformers. Each contender runs in a process of its own,
and they take turns; float32, and bfloat16 as mixed precision or autocast; dropout on, AdamW, gradients clipped, one
batch of random tokens again and again. Sizes that are not measured keep the rows that `OUT` has of them.
"""

import argparse
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from allocator import ALLOCATOR
from machine import describe_machine
from pretraining_contenders import CONTENDERS, Work
from worker import Worker, serve, take_turns

_TINY = {"layers": 2, "width": 128, "heads": 2}
_BASE = {"layers": 12, "width": 768, "heads": 12}
SIZES: dict[str, dict[str, Any]] = {
    "tiny, 128/20": {**_TINY, "batch": 32, "steps": 4},
    "base, 128/20": {**_BASE, "batch": 8, "steps": 2},
    "base, 512/76": {**_BASE, "batch": 2, "steps": 2, "length": 512, "predictions": 76},
}
DTYPES = ("float32", "bfloat16")
PEER = "transformers"


def prepare(contender: str, name: str, dtype: str) -> tuple[dict[str, Any], Callable[[str], dict[str, Any]]]:
    """Warm up; an order is a round, and its answer sequences a second."""
    size = SIZES[name]
    train = CONTENDERS[contender](Work(**size, dtype=dtype))
    train(2)

    def one_round(_: str) -> dict[str, float]:
        start = time.perf_counter()
        train(size["steps"])
        return {"rate": size["batch"] * size["steps"] / (time.perf_counter() - start)}

    return {}, one_round


def start(title: str, python: str, backend: str, name: str, dtype: str) -> Worker:
    environment = {
        **os.environ,
        **ALLOCATOR,
        "KERAS_BACKEND": backend,
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "CUDA_VISIBLE_DEVICES": "-1",
        "JAX_PLATFORMS": "cpu",
    }
    contender = title.split(",")[0]
    return Worker(title, [python, __file__, "--serve", contender, "--sizes", name, "--dtypes", dtype], environment)


def measure(name: str, dtype: str, arguments: argparse.Namespace) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Sequences a second of each contender, one number a round; and who failed, and why."""
    contenders = {f"keras_bert_zoo, {backend}": (sys.executable, backend) for backend in arguments.backends.split(",")}
    if arguments.peers_python:
        contenders[PEER] = (arguments.peers_python, "torch")
    starts = {title: partial(start, title, *each, name, dtype) for title, each in contenders.items()}
    _, rates, left_out = take_turns(starts, arguments.rounds, lambda worker: worker.ask()["rate"])
    return rates, {f"{title}, {name}, {dtype}": reason for title, reason in left_out.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers-python")
    parser.add_argument("--backends", default="tensorflow,torch,jax")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="the Markdown file to write")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    arguments = parser.parse_args()
    if arguments.serve:
        serve(lambda: prepare(arguments.serve, arguments.sizes[0], arguments.dtypes[0]))
        return
    results = arguments.out and arguments.out.with_suffix(".json")
    raw: dict[str, Any] = json.loads(results.read_text()) if results and results.is_file() else {}
    raw |= {"machine": describe_machine(), "left_out": {}}
    for name, dtype in itertools.product(arguments.sizes, arguments.dtypes):
        found, left_out = measure(name, dtype, arguments)
        if not found:
            sys.exit(f"Nobody could be measured at {name} in {dtype}: {left_out}")
        raw[f"{name}, {dtype}"] = found
        raw["left_out"] |= left_out
        if arguments.out:  # After each: what has been measured is not lost to a later one.
            arguments.out.write_text(report(raw), encoding="utf-8")
            results.write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")
    print(report(raw))


def report(raw: dict[str, Any]) -> str:
    lines = [
        "# A step of pre-training",
        "",
        raw["machine"],
        "",
        "| size, batch | precision | contender | sequences/s, median (slowest..fastest) | vs transformers |",
        "|---|---|---|---|---|",
    ]
    for name, dtype in itertools.product(SIZES, DTYPES):
        found = raw.get(f"{name}, {dtype}", {})
        peer = statistics.median(found[PEER]) if PEER in found else None
        for title, rates in found.items():
            median = statistics.median(rates)
            ratio = f"{median / peer:.2f}" if peer else "-"
            lines.append(
                f"| {name}, {SIZES[name]['batch']} | {dtype} | {title} "
                f"| {median:.1f} ({min(rates):.1f}..{max(rates):.1f}) | {ratio} |"
            )
    failures = [f"\nLeft out: {who}: {reason}." for who, reason in raw["left_out"].items()]
    return "\n".join([*lines, *failures]) + "\n"


if __name__ == "__main__":
    main()
