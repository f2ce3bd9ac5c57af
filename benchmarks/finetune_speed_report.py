"""The table of `finetune_speed.py`, and what a reader must know to judge its numbers."""

import argparse
import datetime
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from contenders import TASKS
from machine import describe_machine

from keras_bert_zoo.checkpoints.bert_config import read_backbone
from keras_bert_zoo.training.speed import training_flops

_ORDERS = ("train", "predict")
_PATHS = ("preset", "peers_python", "out", "log")
_CHECKPOINT_SIZES = {
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "hidden size": "hidden_size",
    "intermediate size": "intermediate_size",
    "words": "vocab_size",
}


def _seconds(result: dict[str, Any], order: str) -> list[float]:
    return [turn[order]["seconds"] for turn in result["rounds"]]


def _median(result: dict[str, Any], order: str) -> float:
    return statistics.median(_seconds(result, order))


def _rate(result: dict[str, Any], order: str) -> str:
    """Examples a second: the median, and the slowest and fastest."""
    if order not in result["orders"]:
        return "-"
    examples, seconds = result["rounds"][0][order]["examples"], _seconds(result, order)
    return f"{examples / _median(result, order):.1f} ({examples / max(seconds):.1f}..{examples / min(seconds):.1f})"


def _compile_seconds(result: dict[str, Any]) -> float | None:
    """What the first runs cost beyond those that are timed."""
    if result["first_runs"] is None:
        return None
    first = sum(run["seconds"] for run in result["first_runs"].values())
    return max(first - sum(_median(result, order) for order in result["first_runs"]), 0.0)


def _ratios(result: dict[str, Any], peer: dict[str, Any]) -> str:
    if result is peer:
        return "-"
    both = [order in result["orders"] and order in peer["orders"] for order in _ORDERS]
    return " / ".join(
        f"{_median(peer, order) / _median(result, order):.2f}" if has else "-"
        for order, has in zip(_ORDERS, both, strict=True)
    )


def _share(result: dict[str, Any], architecture: dict[str, Any], tokens: int, order: str) -> str:
    """Of the peak, what the model's products of real tokens take."""
    if order not in result["orders"]:
        return "-"
    examples = result["rounds"][0][order]["examples"]
    flops = training_flops(architecture, tokens / examples) * examples / (1 if order == "train" else 3)
    return f"{flops / _median(result, order) / result['peak']:.0%}"


def rows(results: list[dict[str, Any]], architecture: dict[str, Any]) -> Iterator[list[str]]:
    """The table of one run, its head first."""
    peers = list(dict.fromkeys(result["name"] for result in results if not result["ours"]))
    yield [
        "task", "precision", "contender", "train examples/s", "predict examples/s", "real tokens/s trained",
        "share of peak", "GiB", "compile_s", *(f"vs {peer}" for peer in peers),
    ]  # fmt: skip
    for result in results:
        beside = [each for each in results if (each["task"], each["dtype"]) == (result["task"], result["dtype"])]
        tokens = beside[0]["tokens"]  # One count for all, that of the checkpoint's own tokeniser.
        compiling = _compile_seconds(result)
        yield [
            result["task"],
            result["dtype"],
            result["name"],
            _rate(result, "train"),
            _rate(result, "predict"),
            f"{tokens / _median(result, 'train'):.0f}" if "train" in result["orders"] else "-",
            " / ".join(_share(result, architecture, tokens, order) for order in _ORDERS),
            f"{result['rounds'][-1]['predict']['memory'] / 2**30:.1f}",
            "-" if compiling is None else f"{compiling:.1f}",
            *(next((_ratios(result, each) for each in beside if each["name"] == peer), "-") for peer in peers),
        ]


def describe_command(args: argparse.Namespace) -> str:
    """The command with every option spelt out, and placeholders where a path of this machine would stand."""
    words = ["KBZ_DATA=DATA python benchmarks/finetune_speed.py"]
    for name, value in vars(args).items():
        if value is None or value is False:
            continue
        option = f"--{name.replace('_', '-')}"
        if name in _PATHS:
            value = name.upper()
        words.append(option if value is True else f"{option} {','.join(value) if isinstance(value, list) else value}")
    return " ".join(words)


def describe(args: argparse.Namespace, results: list[dict[str, Any]]) -> dict[str, str]:
    """What a reader must know to judge the numbers."""
    config = json.loads(Path(args.preset, "config.json").read_text(encoding="utf-8"))
    facts = {
        "Command": f"`{describe_command(args)}`",
        "Date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
        "Machine": describe_machine(),
        "Checkpoint": ", ".join(f"{config[key]} {name}" for name, key in _CHECKPOINT_SIZES.items()),
    }
    for label, ours in (("keras_bert_zoo with", True), ("Peers with", False)):
        versions = next((result["versions"] for result in results if result["ours"] is ours), {})
        if versions:
            facts[label] = ", ".join(f"{package} {version}" for package, version in versions.items())
    threads = {result["name"]: result["threads"] for result in results}
    facts["Threads"] = "; ".join(f"{name}: {count}" for name, count in threads.items())
    examples = {result["task"]: result["rounds"][0]["predict"]["examples"] for result in results}
    facts["Examples"] = ", ".join(f"{task} {count}" for task, count in examples.items())
    return facts


def report(args: argparse.Namespace, results: list[dict[str, Any]], left_out: dict[str, str]) -> None:
    """Write the table, all raw numbers and what failed, each file at once or not at all."""
    facts = describe(args, results)
    path = Path(args.preset, "config.json")
    architecture = read_backbone(path, json.loads(path.read_text(encoding="utf-8")))
    head, *body = rows(results, {**architecture, "pooler": True})
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *body))
    described = "; ".join(
        f"{name}: batches of {TASKS[name].batch_size}, texts cut at {TASKS[name].sequence_length} tokens"
        for name in dict.fromkeys(result["task"] for result in results)
    )
    note = (
        f"{described}. Rates are medians of {args.rounds} rounds (slowest..fastest). Tokens: without padding. "
        "Share of peak: products of real tokens, of what the same framework reaches in the same process with two "
        "matrices of 2048 x 2048 in that precision, training / prediction. GiB: the most that the process ever had. "
        "compile_s is what the first training and the first prediction cost beyond the median. The columns with vs say "
        "how many times as fast the row is, training / prediction, by medians."
    )
    text = "\n".join(
        [
            "# Fine-tuning and prediction speed",
            "",
            *(f"- {label}: {fact}" for label, fact in facts.items()),
            "",
            note,
            "",
            table,
            "",
            *(f"Left out: {name}: {reason}.\n" for name, reason in left_out.items()),
        ]
    )
    raw = json.dumps({"about": facts, "results": results, "left_out": left_out}, indent=2, ensure_ascii=False)
    args.out.mkdir(parents=True, exist_ok=True)
    for name, content in ((f"{args.name}.md", text), (f"{args.name}.json", f"{raw}\n")):
        unfinished = args.out / f"{name}.part"
        unfinished.write_text(content, encoding="utf-8")
        unfinished.replace(args.out / name)
