"""The pre-training step at length 128 with 20 predictions, beside transformers' `BertForPreTraining`, in turns.

    python benchmarks/pretraining_step.py --peers-python PEERS_PYTHON --out OUT

`PEERS_PYTHON` is the Python of an environment with torch and transformers. Each contender runs in a process of its own;
float32, dropout on, AdamW, gradients clipped, one batch of random tokens again and again.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from pretraining_contenders import CONTENDERS, Work

SIZES = {
    "tiny": {"layers": 2, "width": 128, "heads": 2, "batch": 128, "steps": 8},
    "base": {"layers": 12, "width": 768, "heads": 12, "batch": 8, "steps": 2},
}


def serve(contender: str, name: str) -> None:
    """Warm up, then time one round for each line on stdin."""
    size = SIZES[name]
    train = CONTENDERS[contender](Work(**size))
    train(2)
    print("ready", flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        train(size["steps"])
        print(time.perf_counter() - start, flush=True)


def measure(name: str, arguments: argparse.Namespace) -> dict[str, list[float]]:
    """Sequences a second of each contender, one number a round."""
    contenders = {f"keras_bert_zoo, {backend}": (sys.executable, backend) for backend in arguments.backends.split(",")}
    contenders["transformers"] = (arguments.peers_python, "")
    processes = {}
    for title, (python, backend) in contenders.items():
        process = subprocess.Popen(
            [python, __file__, "--serve", title.split(",")[0], "--size", name],
            env={**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": str(Path(__file__).parents[1])},
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
    parser.add_argument("--size", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, arguments.size)
        return
    lines = [
        "| contender | size, batch | sequences/s, median (slowest..fastest) | vs transformers |",
        "|---|---|---|---|",
    ]
    raw = {}
    for name, size in SIZES.items():
        raw[name] = measure(name, arguments)
        peer = statistics.median(raw[name]["transformers"])
        for title, rates in raw[name].items():
            median = statistics.median(rates)
            lines.append(
                f"| {title} | {name}, {size['batch']} | {median:.1f} ({min(rates):.1f}..{max(rates):.1f}) "
                f"| {median / peer:.2f} |"
            )
    text = "\n".join(lines) + "\n"
    print(text, json.dumps(raw))
    if arguments.out:
        arguments.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
