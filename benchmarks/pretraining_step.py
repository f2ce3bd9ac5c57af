"""The pre-training step, 128 tokens with 20 predictions and 512 with 76, beside transformers' `BertForPreTraining`.

    python benchmarks/pretraining_step.py --peers-python PEERS_PYTHON --out OUT

`PEERS_PYTHON` is the Python of an environment with torch and transformers. Each contender runs in a process of its own,
and they take turns; float32, and bfloat16 as mixed precision or autocast; dropout on, AdamW, gradients clipped, one
batch of random tokens again and again.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from allocator import ALLOCATOR
from machine import describe_machine
from pretraining_contenders import CONTENDERS, Work

_TINY = {"layers": 2, "width": 128, "heads": 2}
_BASE = {"layers": 12, "width": 768, "heads": 12}
SIZES: dict[str, dict[str, Any]] = {
    "tiny, 128/20": {**_TINY, "batch": 128, "steps": 2},
    "base, 128/20": {**_BASE, "batch": 8, "steps": 2},
    "base, 512/76": {**_BASE, "batch": 2, "steps": 2, "length": 512, "predictions": 76},
}
DTYPES = ("float32", "bfloat16")


def serve(contender: str, name: str, dtype: str) -> None:
    """Warm up, then time one round for each line on stdin."""
    size = SIZES[name]
    train = CONTENDERS[contender](Work(**size, dtype=dtype))
    train(2)
    print("ready", flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        train(size["steps"])
        print(time.perf_counter() - start, flush=True)


def measure(name: str, dtype: str, arguments: argparse.Namespace) -> dict[str, list[float]]:
    """Sequences a second of each contender, one number a round."""
    contenders = {f"keras_bert_zoo, {backend}": (sys.executable, backend) for backend in arguments.backends.split(",")}
    contenders["transformers"] = (arguments.peers_python, "")
    processes = {}
    for title, (python, backend) in contenders.items():
        process = subprocess.Popen(
            [python, __file__, "--serve", title.split(",")[0], "--sizes", name, "--dtypes", dtype],
            env={
                **os.environ,
                **ALLOCATOR,
                "KERAS_BACKEND": backend,
                "PYTHONPATH": str(Path(__file__).parents[1]),
                "CUDA_VISIBLE_DEVICES": "-1",
                "JAX_PLATFORMS": "cpu",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        while process.stdout.readline().strip() != "ready":
            assert process.poll() is None, title
        processes[title] = process
    rates: dict[str, list[float]] = {title: [] for title in processes}
    for _ in range(arguments.rounds):
        for title, process in processes.items():
            process.stdin.write("go\n")
            process.stdin.flush()
            seconds = float(process.stdout.readline())
            rates[title].append(SIZES[name]["batch"] * SIZES[name]["steps"] / seconds)
    for process in processes.values():
        process.stdin.close()
        process.wait()
    return rates


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
        serve(arguments.serve, arguments.sizes[0], arguments.dtypes[0])
        return
    lines = [
        "| size, batch | precision | contender | sequences/s, median (slowest..fastest) | vs transformers |",
        "|---|---|---|---|---|",
    ]
    raw: dict[str, Any] = {"machine": describe_machine()}
    for name, dtype in itertools.product(arguments.sizes, arguments.dtypes):
        found = raw[f"{name}, {dtype}"] = measure(name, dtype, arguments)
        peer = statistics.median(found["transformers"])
        for title, rates in found.items():
            median = statistics.median(rates)
            lines.append(
                f"| {name}, {SIZES[name]['batch']} | {dtype} | {title} "
                f"| {median:.1f} ({min(rates):.1f}..{max(rates):.1f}) | {median / peer:.2f} |"
            )
        text = "\n".join(["# A step of pre-training", "", raw["machine"], "", *lines]) + "\n"
        if arguments.out:  # After each: what has been measured is not lost to a later one.
            arguments.out.write_text(text, encoding="utf-8")
            arguments.out.with_suffix(".json").write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
