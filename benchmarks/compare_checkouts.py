"""Two or more checkouts of keras_bert_zoo side by side: what did a change of the code give?

    git worktree add ../before HEAD~1
    KERAS_BACKEND=tensorflow python benchmarks/compare_checkouts.py ../before . --dtype mixed_bfloat16

Milliseconds a batch of `fit` and of `evaluate`, from arrays on: a classifier of MiniLM's size, fresh, on random tokens,
a quarter of them padding at most. Each checkout has a process of its own, and they take turns.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from allocator import ALLOCATOR


def serve(options: argparse.Namespace) -> None:
    """Warm up, then time one round for each line on stdin."""
    import numpy as np

    import keras_bert_zoo as kbz

    expected = Path(options.serve).resolve()
    assert Path(kbz.__file__).resolve().is_relative_to(expected), f"{kbz.__file__} is not in {expected}"
    size, length = options.batch_size * options.batches, options.length
    sizes = {"num_layers": options.layers, "num_heads": 12, "hidden_dim": options.width}
    backbone = kbz.BertBackbone(30522, **sizes, intermediate_dim=4 * options.width, dtype=options.dtype)
    model = kbz.BertTextClassifier(backbone, num_classes=2)
    model.compile(kbz.AdamW(1e-4))
    rng = np.random.default_rng(0)
    mask = (np.arange(length) < rng.integers(length * 3 // 4, length + 1, size)[:, None]).astype("int32")
    x = {
        "token_ids": rng.integers(1000, 30522, mask.shape).astype("int32") * mask,
        "segment_ids": np.zeros_like(mask),
        "padding_mask": mask,
    }
    y = rng.integers(0, 2, size)
    works = {"fit": model.fit, "evaluate": model.evaluate}
    for work in works.values():
        work(x, y, batch_size=options.batch_size, verbose=0)
    print("{}", flush=True)
    for _ in sys.stdin:
        turn = {}
        for name, work in works.items():
            start = time.perf_counter()
            work(x, y, batch_size=options.batch_size, verbose=0)
            turn[name] = 1000 * (time.perf_counter() - start) / options.batches
        print(json.dumps(turn), flush=True)


def start(checkout: str) -> Any:
    path = str(Path(checkout).resolve())
    return subprocess.Popen(
        [sys.executable, __file__, "--serve", path, *sys.argv[1:]],
        env={**os.environ, **ALLOCATOR, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def answer(process: Any) -> dict[str, float]:
    for line in process.stdout:
        if line.startswith("{"):
            return json.loads(line)
    sys.exit(f"A checkout's process ended with status {process.wait()}.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="+")
    parser.add_argument("--dtype", default="float32", help="precision policy (%(default)s)")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--batches", type=int, default=6, help="of a round (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options)
        return
    processes = {checkout: start(checkout) for checkout in options.checkouts}
    for process in processes.values():
        answer(process)
    turns: dict[str, list[dict[str, float]]] = {checkout: [] for checkout in processes}
    for _ in range(options.rounds):
        for checkout, process in processes.items():
            process.stdin.write("go\n")
            process.stdin.flush()
            turns[checkout].append(answer(process))
    for process in processes.values():
        process.stdin.close()
        process.wait()
    print("| checkout | fit, ms a batch, median (fastest..slowest) | evaluate |\n|---|---|---|")
    for checkout, found in turns.items():
        cells = []
        for name in ("fit", "evaluate"):
            values = [turn[name] for turn in found]
            cells.append(f"{statistics.median(values):.0f} ({min(values):.0f}..{max(values):.0f})")
        print(f"| {checkout} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
