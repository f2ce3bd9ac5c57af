"""Time the pre-training step beside `BertForPreTraining`, at 128 tokens with 20 predictions and at 512 with 76.

    python benchmarks/pretraining_step.py --peers-python PEERS_PYTHON --out OUT

`PEERS_PYTHON` is the Python of an environment with torch and transformers. Each contender runs in its own process, and
they take turns, in float32 and in bfloat16 as mixed precision or autocast. Dropout is on, the optimizer is AdamW,
gradients are clipped, and one batch of random tokens is repeated. Results in `OUT` of this machine, these versions and
this code are not measured again, so the command can be interrupted; other results are deleted.
"""

import argparse
import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pretraining_contenders import CONTENDERS, SIDES, Work, architecture
from process import environment, memory, peak, with_code
from reports import about, describe, is_current, read, write
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
    """Warm up; each order then runs a round, and its answer has sequences per second and memory."""
    work = Work(contender, os.environ["KERAS_BACKEND"], **SIZES[name], dtype=dtype)
    train = CONTENDERS[contender](work)
    train(2)

    def one_round(_: str) -> dict[str, float]:
        start = time.perf_counter()
        train(work.steps)
        seconds = time.perf_counter() - start
        took = memory(work.framework)
        return {"rate": work.batch * work.steps / seconds, "memory": took, "peak": peak(work.framework, dtype)}

    return {}, one_round


def start(title: str, python: str, backend: str, name: str, dtype: str) -> Worker:
    contender = title.split(",")[0]
    variables = {**with_code(contender != PEER), "KERAS_BACKEND": backend, **environment("cpu")}
    return Worker(title, [python, __file__, "--serve", contender, "--sizes", name, "--dtypes", dtype], variables)


def line_up(arguments: argparse.Namespace) -> dict[str, tuple[str, str]]:
    """Return each contender's Python and Keras backend."""
    contenders = {f"keras_bert_zoo, {backend}": (sys.executable, backend) for backend in arguments.backends.split(",")}
    if arguments.peers_python:
        contenders[PEER] = (arguments.peers_python, "torch")
    return contenders


def measure(name: str, dtype: str, arguments: argparse.Namespace, raw: dict[str, Any]) -> None:
    """Add to `raw` each contender's sequences per second by round, its process' figures, and who failed and why."""
    starts = {title: partial(start, title, *each, name, dtype) for title, each in line_up(arguments).items()}
    said, turns, left_out = take_turns(starts, arguments.rounds, Worker.ask)
    if not turns:
        sys.exit(f"No contender could be measured at {name} in {dtype}: {left_out}")
    key = f"{name}, {dtype}"
    raw[key] = {title: [turn["rate"] for turn in found] for title, found in turns.items()}
    raw["processes"][key] = {
        title: {**said[title], **{name: max(turn[name] for turn in found) for name in ("memory", "peak")}}
        for title, found in turns.items()
    }
    raw["left_out"] = {who: why for who, why in raw["left_out"].items() if not who.endswith(f", {key}")}
    raw["left_out"] |= {f"{title}, {key}": reason for title, reason in left_out.items()}


def known(out: Path | None, peers_python: str | None) -> dict[str, Any]:
    """Return what the report has of this machine, these versions and this code."""
    current = out and is_current(out, "pretraining_step.py", peers_python)
    return read(out) if current else {"processes": {}, "left_out": {}}


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
    raw = known(arguments.out, arguments.peers_python)
    for name, dtype in itertools.product(arguments.sizes, arguments.dtypes):
        found = raw.get(f"{name}, {dtype}", {})
        if all(len(found.get(title, ())) >= arguments.rounds for title in line_up(arguments)):
            continue
        raw["about"] = about("pretraining_step.py", arguments, between=" ")
        measure(name, dtype, arguments, raw)
        if arguments.out:  # After each, so that a later failure loses nothing.
            write(arguments.out, report(raw), raw)
    print(report(raw))


def report(raw: dict[str, Any]) -> str:
    from products import computed_flops  # Here, because peers' processes have no Keras.

    lines = [
        "# A step of pre-training",
        "",
        *describe(raw["about"]),
        "",
        f"{SIDES} Nothing is padded. Share of peak: the products that a contender computes, of what the same framework "
        "reaches in the same process with two large matrices in that precision (PyTorch, float32: the faster of BLAS "
        "and oneDNN).",
        "",
        "| size, batch | precision | contender | sequences/s, median (slowest..fastest) | real tokens/s "
        "| share of peak | GiB | vs transformers |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, dtype in itertools.product(SIZES, DTYPES):
        key, work = f"{name}, {dtype}", Work(**SIZES[name])
        found = raw.get(key, {})
        peer = statistics.median(found[PEER]) if PEER in found else None
        for title, rates in found.items():
            median, process = statistics.median(rates), raw["processes"][key][title]
            ratio = f"{median / peer:.2f}" if peer else "-"
            flops = computed_flops(architecture(work), work.length, title != PEER, work.predictions)
            lines.append(
                f"| {name}, {work.batch} | {dtype} | {title} | {median:.1f} ({min(rates):.1f}..{max(rates):.1f}) "
                f"| {median * work.length:.0f} | {median * flops / process['peak']:.0%} "
                f"| {process['memory'] / 2**30:.1f} | {ratio} |"
            )
    failures = [f"\nLeft out: {who}: {reason}." for who, reason in raw["left_out"].items()]
    return "\n".join([*lines, *failures]) + "\n"


if __name__ == "__main__":
    main()
