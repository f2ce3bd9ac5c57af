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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SIZES = {
    "tiny": {"layers": 2, "width": 128, "heads": 2, "batch": 128, "steps": 8},
    "base": {"layers": 12, "width": 768, "heads": 12, "batch": 8, "steps": 2},
}
LENGTH, PREDICTIONS, WORDS = 128, 20, 30522


def make_batch(size: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    positions = rng.permuted(np.tile(np.arange(LENGTH), (size, 1)), axis=1)[:, :PREDICTIONS]
    return {
        "token_ids": rng.integers(1000, WORDS, (size, LENGTH)).astype("int32"),
        "segment_ids": (np.arange(LENGTH) >= LENGTH // 2).astype("int32")[None].repeat(size, axis=0),
        "positions": np.sort(positions).astype("int32"),
        "labels": rng.integers(1000, WORDS, (size, PREDICTIONS)).astype("int32"),
        "nsp": rng.integers(0, 2, size).astype("int32"),
    }


def keras_bert_zoo(size: dict[str, int]) -> Callable[[int], object]:
    import keras

    import keras_bert_zoo as kbz

    batch = make_batch(size["batch"])
    data = (
        {
            "token_ids": batch["token_ids"],
            "segment_ids": batch["segment_ids"],
            "padding_mask": np.ones_like(batch["token_ids"]),
            "mask_positions": batch["positions"],
        },
        {"mlm": batch["labels"], "nsp": batch["nsp"]},
        {"mlm": np.ones(batch["labels"].shape, "float32"), "nsp": np.ones(len(batch["nsp"]), "float32")},
    )

    class Same(keras.utils.PyDataset):
        def __init__(self, steps: int) -> None:
            super().__init__()
            self.steps = steps

        def __len__(self) -> int:
            return self.steps

        def __getitem__(self, index: int) -> Any:
            return data

    model = kbz.BertPretrainer(kbz.BertBackbone(WORDS, size["layers"], size["heads"], size["width"], 4 * size["width"]))
    model.compile(kbz.AdamW(1e-4))
    return lambda steps: model.fit(Same(steps), verbose=0)


def transformers(size: dict[str, int]) -> Callable[[int], object]:
    import torch
    from transformers import BertConfig, BertForPreTraining

    config = BertConfig(
        num_hidden_layers=size["layers"],
        hidden_size=size["width"],
        num_attention_heads=size["heads"],
        intermediate_size=4 * size["width"],
    )
    model = BertForPreTraining(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, weight_decay=0.01)
    batch = {name: torch.tensor(array).long() for name, array in make_batch(size["batch"]).items()}
    labels = torch.full_like(batch["token_ids"], -100).scatter(1, batch["positions"], batch["labels"])

    def train(steps: int) -> None:
        for _ in range(steps):
            model(
                batch["token_ids"],
                token_type_ids=batch["segment_ids"],
                labels=labels,
                next_sentence_label=batch["nsp"],
            ).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    return train


def serve(contender: str, name: str) -> None:
    """Warm up, then time one round for each line on stdin."""
    size = SIZES[name]
    train = {"keras_bert_zoo": keras_bert_zoo, "transformers": transformers}[contender](size)
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
