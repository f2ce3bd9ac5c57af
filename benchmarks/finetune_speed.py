"""Measure how fast a classifier trains and predicts from raw strings: keras_bert_zoo, transformers, keras-hub.

    KBZ_DATA=DATA python benchmarks/finetune_speed.py --preset PRESET --peers-python PEERS_PYTHON
    KBZ_DATA=DATA python benchmarks/finetune_speed.py --preset BASE --tasks 8x128,4x512 --name fixed …
    KBZ_DATA=DATA python benchmarks/finetune_speed.py --device gpu --backends jax,torch --name gpu_finetune_speed …

PRESET is a Hugging Face BERT directory, DATA holds GLUE and SQuAD, and PEERS_PYTHON is the interpreter of an
environment with torch, transformers, keras, keras-hub and tensorflow; without it only keras_bert_zoo runs. Each
contender has its own process, and only one works at a time. They take turns, so that other load on the machine affects
all alike. Each task is measured in float32 and then in bfloat16: our mixed precision, transformers' autocast and, in
prediction, its weights loaded in bfloat16. On a GPU there are also rows with torch.compile, two contenders start at a
time, memory is the GPU's, and the report includes MFU, the fraction of the data sheet's peak. Products of float32 are
TF32 there with all frameworks, as JAX and TensorFlow have it; PyTorch is told to.
"""

import argparse
import contextlib
import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any

from contenders import TASKS, predicted_size
from finetune_speed_report import report
from machine import cards
from process import environment, with_code
from reports import about
from worker import STARTED_AT_ONCE_ON_A_CARD, Worker, take_turns, take_turns_apart

_BACKENDS = ("tensorflow", "torch", "jax")
_DTYPES = ("float32", "bfloat16")


@dataclasses.dataclass(frozen=True)
class Entry:
    """A contender as the driver knows it."""

    name: str
    contender: str
    python: str
    backend: str
    options: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def is_ours(self) -> bool:
        return self.contender.startswith("keras_bert_zoo")

    @property
    def framework(self) -> str:
        """The framework that computes."""
        return "onnxruntime" if self.contender.endswith("_onnx") else self.backend


def line_up(args: argparse.Namespace, task: str, dtype: str) -> list[Entry]:
    options = {"bfloat16": dtype == "bfloat16"}
    entries = [
        Entry(f"keras_bert_zoo, {name}", "keras_bert_zoo", sys.executable, name, options) for name in args.backends
    ]
    if args.device == "gpu" and "torch" in args.backends:
        compiled = {"compiled": True, **options}
        entries.append(Entry("keras_bert_zoo, torch, compiled", "keras_bert_zoo", sys.executable, "torch", compiled))
    if args.runtimes and dtype == "float32":
        entries.append(Entry("keras_bert_zoo, ONNX Runtime", "keras_bert_zoo_onnx", sys.executable, "torch"))
    int8 = {"int8": True}  # Beside bfloat16, as the other precision below float32.
    if args.runtimes and dtype == "bfloat16":  # OpenVINO computes in it if the processor can.
        entries.append(Entry("keras_bert_zoo, openvino", "keras_bert_zoo", sys.executable, "openvino"))
        entries += [
            Entry(f"keras_bert_zoo, {name}, int8", "keras_bert_zoo", sys.executable, name, int8)
            for name in args.backends
        ]
        entries.append(
            Entry("keras_bert_zoo, ONNX Runtime, int8", "keras_bert_zoo_onnx", sys.executable, "torch", int8)
        )
    if args.peers_python:
        python = args.peers_python
        if not TASKS[task].fixed:  # If all texts have one length, there is nothing to group.
            entries.append(Entry("transformers", "transformers", python, "torch", options))
        options = {"grouped": True, **options}
        entries.append(Entry("transformers, grouped", "transformers", python, "torch", options))
        if args.device == "gpu":
            compiled = {"compiled": True, **options}
            entries.append(Entry("transformers, grouped, torch.compile", "transformers", python, "torch", compiled))
        if predicted_size(TASKS[task]) is None:  # Ours then makes larger batches of short texts.
            by_tokens = {"by_tokens": True, **options}
            entries.append(Entry("transformers, grouped, larger batches", "transformers", python, "torch", by_tokens))
        if dtype == "bfloat16":
            loaded = {"loaded": True, **options}
            entries.append(Entry("transformers, grouped, loaded in bfloat16", "transformers", python, "torch", loaded))
        if args.runtimes and dtype == "float32":
            entries.append(Entry("transformers, ONNX Runtime", "transformers_onnx", python, "torch"))
        if args.runtimes and dtype == "bfloat16":
            entries.append(Entry("transformers, ONNX Runtime, int8", "transformers_onnx", python, "torch", int8))
        hub = {"bfloat16": dtype == "bfloat16"}
        entries += [Entry(f"keras-hub, {name}", "keras_hub", python, name, hub) for name in args.keras_hub]
        if args.as_it_comes:
            hub = {"sequence_length": 512, **hub}
            entries += [Entry(f"keras-hub, {name}, 512", "keras_hub", python, name, hub) for name in args.keras_hub]
    return entries


def start(entry: Entry, task: str, args: argparse.Namespace, log: IO[bytes] | int) -> Worker:
    job = {
        "contender": entry.contender,
        "options": entry.options,
        "framework": entry.framework,
        "task": task,
        "examples": args.examples,
        "preset": args.preset,
        "device": args.device,
    }
    variables = {**with_code(entry.is_ours), "KERAS_BACKEND": entry.backend, **environment(args.device)}
    _say(f"{entry.name} starts")
    contenders = str(Path(__file__).with_name("contenders.py"))
    return Worker(entry.name, [entry.python, contenders, json.dumps(job)], variables, log)


def measure(
    task: str, dtype: str, args: argparse.Namespace, log: IO[bytes] | int
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Run all rounds of a task in one precision.

    Returns what each contender says of itself, with the seconds of its runs, and which contenders failed and why.
    """
    entries = {entry.name: entry for entry in line_up(args, task, dtype)}

    def turn(worker: Worker) -> dict[str, Any]:
        found = {order: worker.ask(order) for order in worker.about["orders"]}
        _say(f"{task}, {dtype}: {worker.name}: {_in_words(found)}")
        return {**found, **worker.ask("peak")}

    starts = {name: partial(start, entry, task, args, log) for name, entry in entries.items()}
    if args.apart:
        said, turns, left_out = take_turns_apart(starts, args.rounds, turn)
    else:
        at_once = STARTED_AT_ONCE_ON_A_CARD if args.device == "gpu" else 1
        said, turns, left_out = take_turns(starts, args.rounds, turn, at_once)
    results = [
        {
            **{"task": task, "dtype": dtype, "name": name, "ours": entries[name].is_ours, **own},
            **{"peak": max(turn["peak"] for turn in turns[name]), "rounds": turns[name]},
        }
        for name, own in said.items()
    ]
    return results, {f"{name}, {task}, {dtype}": reason for name, reason in left_out.items()}


def _in_words(turn: dict[str, Any]) -> str:
    """Describe a turn's seconds and busy cores; fewer than usual tell of other work on this machine."""
    return ", ".join(
        f"{order} {run['seconds']:.1f} s on {run['cpu_seconds'] / run['seconds']:.1f} cores"
        for order, run in turn.items()
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# --- The command line


def _names(known: tuple[str, ...]) -> Callable[[str], list[str]]:
    def parse(value: str) -> list[str]:
        names = value.split(",")
        if not set(names) <= set(known):
            raise argparse.ArgumentTypeError(f"must name some of {','.join(known)}. Received: {value}")
        return names

    return parse


def _count(value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer. Received: {value}")
    return int(value)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", required=True, help="a Hugging Face BERT directory, with vocab.txt")
    parser.add_argument("--peers-python", help="the interpreter of the peers' environment")
    parser.add_argument("--backends", type=_names(_BACKENDS), default=list(_BACKENDS), help="of keras_bert_zoo")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--tasks", type=_names(tuple(TASKS)), default=["mrpc", "sst2", "squad"])
    parser.add_argument("--dtypes", type=_names(_DTYPES), default=list(_DTYPES))
    parser.add_argument("--examples", type=_count, help="of each task, in place of its own number")
    parser.add_argument("--rounds", type=_count, default=3)
    parser.add_argument("--keras-hub", type=_names(_BACKENDS), default=[], help="also keras-hub, on these backends")
    parser.add_argument(
        "--runtimes", action="store_true", help="also prediction by ONNX Runtime and OpenVINO, and in int8"
    )
    parser.add_argument("--apart", action="store_true", help="start a process for each turn: memory holds one model")
    parser.add_argument("--as-it-comes", action="store_true", help="also --keras-hub at its own length of 512")
    parser.add_argument("--name", default="finetune_speed", help="of the report's files (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results"), help="folder for the report")
    parser.add_argument("--log", type=Path, help="file for what the contenders print")
    args = parser.parse_args()
    if args.device == "gpu" and not cards():
        parser.error("--device gpu needs a card that nvidia-smi lists. Received: a machine without one")
    if args.as_it_comes and not args.keras_hub:
        parser.error("--as-it-comes needs --keras-hub. Received: --as-it-comes alone")
    if args.device == "gpu" and args.runtimes:
        parser.error("--runtimes are measured on the CPU. Received: --device gpu")
    for name in ("config.json", "vocab.txt"):
        if not Path(args.preset, name).is_file():
            parser.error(f"--preset must be a directory with config.json and vocab.txt. Received: {args.preset}")
    if args.peers_python and not shutil.which(args.peers_python):
        parser.error(f"--peers-python must be an interpreter. Received: {args.peers_python}")
    try:
        for task in args.tasks:
            TASKS[task].read(args.examples or TASKS[task].examples)
    except ValueError as error:
        parser.error(str(error))
    return args


def main() -> None:
    args = parse_arguments()
    facts = about("finetune_speed.py", args)
    results: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        log = subprocess.DEVNULL if args.log is None else stack.enter_context(args.log.open("wb"))
        for task in args.tasks:
            for dtype in args.dtypes:
                measured, failed = measure(task, dtype, args, log)
                if not measured:
                    sys.exit(
                        f"No contender could be measured at {task} in {dtype} (--log FILE keeps their output): {failed}"
                    )
                results, left_out = results + measured, left_out | failed
                report(args, facts, results, left_out)  # After each, so that a later failure loses nothing.
    print((args.out / f"{args.name}.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
