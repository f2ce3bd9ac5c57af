"""The table of `finetune_speed.py`, and what a reader must know to judge its numbers."""

import argparse
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from contenders import TASKS
from products import computed_flops
from reports import describe, table, write

from keras_bert_zoo.checkpoints.bert_config import read_backbone
from keras_bert_zoo.training.devices import peak_of
from keras_bert_zoo.training.speed import training_flops

_ORDERS = ("train", "predict")
_CHECKPOINT_SIZES = {
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "hidden size": "hidden_size",
    "intermediate size": "intermediate_size",
    "words": "vocab_size",
}


def _seconds(result: dict[str, Any], order: str) -> list[float]:
    """Return the seconds per example in each round."""
    return [turn[order]["seconds"] / turn[order]["examples"] for turn in result["rounds"]]


def _median(result: dict[str, Any], order: str) -> float:
    return statistics.median(_seconds(result, order))


def _rate(result: dict[str, Any], order: str) -> str:
    """Describe the examples per second: the median, the slowest and the fastest."""
    if order not in result["orders"]:
        return "-"
    seconds = _seconds(result, order)
    return f"{1 / _median(result, order):.1f} ({1 / max(seconds):.1f}..{1 / min(seconds):.1f})"


def _examples(result: dict[str, Any]) -> int:
    return result["rounds"][0]["predict"]["examples"]


def _compile_seconds(result: dict[str, Any]) -> float | None:
    """Return the seconds that the first runs cost beyond those that are timed."""
    if result["first_runs"] is None:
        return None
    first = sum(run["seconds"] for run in result["first_runs"].values())
    return max(first - sum(_median(result, order) * _examples(result) for order in result["first_runs"]), 0.0)


def _ratios(result: dict[str, Any], peer: dict[str, Any]) -> str:
    if result is peer:
        return "-"
    both = [order in result["orders"] and order in peer["orders"] for order in _ORDERS]
    return " / ".join(
        f"{_median(peer, order) / _median(result, order):.2f}" if has else "-"
        for order, has in zip(_ORDERS, both, strict=True)
    )


def _shares(result: dict[str, Any], flops: float, peak: float | None) -> str:
    """Describe the shares of the peak that an example's `flops` take: those of training, and a third in prediction."""
    return " / ".join(
        f"{flops / parts / _median(result, order) / peak:.0%}" if peak and order in result["orders"] else "-"
        for order, parts in zip(_ORDERS, (1, 3), strict=True)
    )


def rows(results: list[dict[str, Any]], architecture: dict[str, Any]) -> Iterator[list[str]]:
    """Yield the table's rows, its head first."""
    peers = list(dict.fromkeys(result["name"] for result in results if not result["ours"]))
    on_card = any(result["device_name"] for result in results)
    yield [
        "task", "precision", "contender", "train examples/s", "predict examples/s", "real tokens/s trained",
        "share of peak", *(["MFU"] if on_card else []), "GiB", "compile_s", *(f"vs {peer}" for peer in peers),
    ]  # fmt: skip
    for result in results:
        beside = [each for each in results if (each["task"], each["dtype"]) == (result["task"], result["dtype"])]
        tokens = beside[0]["tokens"]  # Per example; one count for all, from the checkpoint's own tokeniser.
        compiling = _compile_seconds(result)
        printed = peak_of(result["device_name"]) if result["dtype"] == "bfloat16" else None
        computed = computed_flops(architecture, tokens, result["ours"], folded="int8" not in result["name"])
        yield [
            result["task"],
            result["dtype"],
            result["name"],
            _rate(result, "train"),
            _rate(result, "predict"),
            f"{tokens / _median(result, 'train'):.0f}" if "train" in result["orders"] else "-",
            _shares(result, computed, result["peak"]),
            *([_shares(result, training_flops(architecture, tokens), printed)] if on_card else []),
            f"{result['rounds'][-1]['predict']['memory'] / 2**30:.1f}",
            "-" if compiling is None else f"{compiling:.1f}",
            *(next((_ratios(result, each) for each in beside if each["name"] == peer), "-") for peer in peers),
        ]


def unequal_tokens(results: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each task whose texts contenders cut or split differently, so that rates are of other work."""
    for task in dict.fromkeys(result["task"] for result in results):
        counts = {result["name"]: result["tokens"] for result in results if result["task"] == task}
        if max(counts.values()) > 1.01 * min(counts.values()):
            said = ", ".join(f"{name} {count:.1f}" for name, count in counts.items())
            yield f"The contenders do not see the same tokens of {task}: {said} an example."


def report(
    args: argparse.Namespace, about: dict[str, Any], results: list[dict[str, Any]], left_out: dict[str, str]
) -> None:
    """Write the table, all raw numbers and what failed."""
    path = Path(args.preset, "config.json")
    config = json.loads(path.read_text(encoding="utf-8"))
    architecture = {**read_backbone(path, config), "pooler": True}
    threads = {result["name"]: result["threads"] for result in results}
    examples = {result["task"]: _examples(result) for result in reversed(results)}  # The first one's, which takes all.
    fewer = {
        (result["task"], result["name"]): _examples(result)
        for result in results
        if _examples(result) < examples[result["task"]]
    }
    facts = {
        "Checkpoint": ", ".join(f"{config[key]} {name}" for name, key in _CHECKPOINT_SIZES.items()),
        "Threads": "; ".join(f"{name}: {count}" for name, count in threads.items()),
        "Examples": ", ".join(f"{task} {count}" for task, count in examples.items())
        + "".join(f"; {task}, {name} {count}, in batches of one shape" for (task, name), count in fewer.items()),
    }
    described = "; ".join(
        f"{name}: batches of {TASKS[name].batch_size}, texts cut at {TASKS[name].sequence_length} tokens"
        for name in examples
    )
    note = (
        f"{described}; where those are 32 keras_bert_zoo predicts, and the row of larger batches, in batches that are "
        f"larger for short texts. Rates are medians of {args.rounds} rounds (slowest..fastest). Tokens: without "
        "padding. "
        "Share of peak: the products of real tokens that a contender computes, of what the same framework reaches in "
        "the same process with two large matrices in that precision (PyTorch in float32 on a CPU: the faster of BLAS "
        "and oneDNN), training / prediction. Our last block computes only what the head reads, a sixth of MiniLM's "
        "products less. MFU: the share of the data sheet's dense peak, where it is known, counted as if every block "
        "computed every token. GiB: the most that the process ever had, or on a GPU its framework. "
        "compile_s is what the first training and the first prediction cost beyond the median. The columns with vs say "
        "how many times as fast the row is, training / prediction, by medians."
    )
    if any(result["device_name"] for result in results):
        note += " Products of float32 are TF32 with all frameworks, as JAX and TensorFlow have it; PyTorch is told to."
    lines = [
        "# Fine-tuning and prediction speed",
        "",
        *describe(about),
        *(f"- {label}: {fact}" for label, fact in facts.items()),
        "",
        note,
        "",
        table(rows(results, architecture)),
        "",
        *(f"{line}\n" for line in unequal_tokens(results)),
        *(f"Left out: {name}: {reason}.\n" for name, reason in left_out.items()),
    ]
    raw = {"about": {**about, **facts}, "results": results, "left_out": left_out}
    write(args.out / f"{args.name}.md", "\n".join(lines), raw)
