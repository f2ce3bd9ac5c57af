"""Compare the speed of two or more checkouts of keras_bert_zoo, to measure a change of the code.

    git worktree add ../before HEAD~1
    KERAS_BACKEND=tensorflow python benchmarks/compare_checkouts.py ../before . --dtype mixed_bfloat16

Reports milliseconds per batch of `fit` and `evaluate` on arrays, and seconds of the first `fit`, which compiles.
The model is a new classifier of MiniLM's size, on random tokens of which at most a quarter are padding. Each checkout
runs in its own process, and they take turns.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from worker import Worker, serve, take_turns


def prepare(options: argparse.Namespace) -> tuple[dict[str, Any], Callable[[str], dict[str, float]]]:
    """Warm up; each order then runs a round, and its answer is milliseconds per batch."""
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
    works: dict[str, Callable[..., Any]] = {"fit": model.fit, "evaluate": model.evaluate}
    start = time.perf_counter()
    model.fit(x, y, batch_size=options.batch_size, verbose=0)
    first = time.perf_counter() - start
    model.evaluate(x, y, batch_size=options.batch_size, verbose=0)

    def one_round(_: str) -> dict[str, float]:
        turn = {}
        for name, work in works.items():
            start = time.perf_counter()
            work(x, y, batch_size=options.batch_size, verbose=0)
            turn[name] = 1000 * (time.perf_counter() - start) / options.batches
        return turn

    return {"first": first}, one_round


def start(checkout: str) -> Worker:
    path = str(Path(checkout).resolve())
    environment = {**os.environ, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"}
    return Worker(checkout, [sys.executable, __file__, "--serve", path, *sys.argv[1:]], environment)


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
        serve(lambda: prepare(options))
        return
    starts = {checkout: partial(start, checkout) for checkout in options.checkouts}
    said, turns, left_out = take_turns(starts, options.rounds, Worker.ask)
    print("| checkout | first fit, s | fit, ms a batch, median (fastest..slowest) | evaluate |\n|---|---|---|---|")
    for checkout, found in turns.items():
        cells = [f"{said[checkout]['first']:.1f}"]
        for name in ("fit", "evaluate"):
            values = [turn[name] for turn in found]
            cells.append(f"{statistics.median(values):.0f} ({min(values):.0f}..{max(values):.0f})")
        print(f"| {checkout} | {' | '.join(cells)} |")
    sys.exit(f"Left out: {', '.join(left_out)}." if left_out else 0)


if __name__ == "__main__":
    main()
