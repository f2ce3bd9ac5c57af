"""Time pre-training steps, ours and transformers', at any size, each in its own process.

    python benchmarks/pretraining_contenders.py '{"contender": "keras_bert_zoo", "batch": 8, "steps": 2}'

Prints a line of JSON: seconds of each of `repeats` rounds of `steps` updates, memory, and the speed of a product of two
large matrices. With `--turns` the process is a worker that takes one order per round. `Work` lists the names that the
argument may have. Dropout is on, the optimizer is AdamW, gradients are clipped, one batch of random tokens is repeated,
and both sides get a mask of ones, as real batches have one. `SIDES` says how the two differ.
"""

import contextlib
import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from machine import identity
from process import (
    device_name,
    environment,
    half_precision_attention,
    memory,
    peak,
    release,
    tensor_float32,
    with_code,
)
from reports import now
from worker import STARTED_AT_ONCE_ON_A_CARD, Worker, serve, take_turns

WORDS = 30522
_SCRIPT = Path(__file__).name
SIDES = (
    "Both compute one batch with dropout, a mask of ones unless a row says otherwise, gradients clipped and AdamW. The "
    "masked-LM head is at the masked positions alone in keras_bert_zoo, the last block at them and [CLS], and both at "
    "every position in transformers; keras_bert_zoo computes the accuracy of both heads besides."
)


@dataclasses.dataclass(frozen=True)
class Work:
    """What is timed. `batch` is that of an update, which works on `accumulation` parts of it one after the other."""

    contender: str = "keras_bert_zoo"
    backend: str = "torch"  # Keras'; transformers runs on PyTorch.
    rows: int = WORDS  # Of the embedding, which may have more rows than there are words.
    layers: int = 2
    width: int = 128
    heads: int = 2
    length: int = 128
    predictions: int = 20
    batch: int = 8
    dtype: str = "float32"  # Or bfloat16: mixed precision, autocast.
    attention_dropout: float = 0.1
    masked: bool = True  # transformers without a mask: no batch with padding, but flash attention when it is compiled.
    compiled: bool = False  # torch.compile, or jit_compile on TensorFlow and PyTorch.
    rematerialise: bool = False
    accumulation: int = 1
    steps_per_execution: int = 1
    replicas: int = 0  # Logical CPUs under MirroredStrategy; 0 is no strategy.
    device: str = "cpu"  # Or gpu.
    steps: int = 2
    repeats: int = 3

    @property
    def framework(self) -> str:
        return self.backend if self.contender == "keras_bert_zoo" else "torch"


def make_batch(size: int, length: int, predictions: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    positions = rng.permuted(np.tile(np.arange(length), (size, 1)), axis=1)[:, :predictions]
    return {
        "token_ids": rng.integers(1000, WORDS, (size, length)).astype("int32"),
        "segment_ids": (np.arange(length) >= length // 2).astype("int32")[None].repeat(size, axis=0),
        "positions": np.sort(positions).astype("int32"),
        "labels": rng.integers(1000, WORDS, (size, predictions)).astype("int32"),
        "nsp": rng.integers(0, 2, size).astype("int32"),
    }


def data_of(work: Work) -> tuple[dict[str, np.ndarray], ...]:
    """Return the inputs, targets and weights that `BertPretrainer` takes at each step."""
    batch = make_batch(work.batch // work.accumulation, work.length, work.predictions)
    return (
        {
            "token_ids": batch["token_ids"],
            "segment_ids": batch["segment_ids"],
            "padding_mask": np.ones_like(batch["token_ids"]),
            "mask_positions": batch["positions"],
        },
        {"mlm": batch["labels"], "nsp": batch["nsp"]},
        {"mlm": np.ones(batch["labels"].shape, "float32"), "nsp": np.ones(len(batch["nsp"]), "float32")},
    )


def backbone_of(work: Work) -> Any:
    import keras_bert_zoo as kbz

    return kbz.BertBackbone(
        work.rows,
        work.layers,
        work.heads,
        work.width,
        4 * work.width,
        attention_dropout=work.attention_dropout,
        dtype="mixed_bfloat16" if work.dtype == "bfloat16" else work.dtype,
    )


def keras_bert_zoo(work: Work) -> Callable[[int], object]:
    import keras

    import keras_bert_zoo as kbz

    data = data_of(work)

    class Same(keras.utils.PyDataset):
        def __init__(self, steps: int) -> None:
            super().__init__()
            self.steps = steps

        def __len__(self) -> int:
            return self.steps

        def __getitem__(self, index: int) -> Any:
            return data

    def same(steps: int) -> Any:
        """Feed it as `PretrainingBatches` are fed: a data set made by Keras would hold up the end of each `fit`."""
        if work.backend != "tensorflow":
            return Same(steps)
        import tensorflow as tf

        from keras_bert_zoo.text.tf_dataset import tf_dataset

        signature = keras.tree.map_structure(lambda array: tf.TensorSpec(array.shape, array.dtype), data)
        return tf_dataset(lambda _: data, signature, steps)

    blocks = [f"encoder_layer_{i}" for i in range(work.layers)] if work.rematerialise else []
    with contextlib.ExitStack() as scopes:
        if work.replicas:
            import tensorflow as tf

            cpu = tf.config.list_physical_devices("CPU")[0]
            tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * work.replicas)
            scopes.enter_context(kbz.distribute("mirrored"))
        scopes.enter_context(keras.RematScope("list_of_layers", layer_names=blocks))
        model = kbz.BertPretrainer(backbone_of(work))
        parts = work.accumulation if work.accumulation > 1 else None
        model.compile(
            kbz.AdamW(1e-4, gradient_accumulation_steps=parts),
            steps_per_execution=work.steps_per_execution,
            jit_compile=True if work.compiled else "auto",
        )
    return lambda steps: model.fit(same(steps * work.accumulation), verbose=0)


def transformers(work: Work) -> Callable[[int], object]:
    import torch
    from transformers import BertConfig, BertForPreTraining

    device = "cuda" if work.device == "gpu" else "cpu"
    half_precision_attention()
    config = BertConfig(
        vocab_size=work.rows,
        num_hidden_layers=work.layers,
        hidden_size=work.width,
        num_attention_heads=work.heads,
        intermediate_size=4 * work.width,
        attention_probs_dropout_prob=work.attention_dropout,
        attn_implementation="sdpa",
    )
    model = BertForPreTraining(config).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, weight_decay=0.01, fused=True)
    arrays = make_batch(work.batch, work.length, work.predictions)
    batch = {name: torch.tensor(array).long().to(device) for name, array in arrays.items()}
    mask = torch.ones_like(batch["token_ids"]) if work.masked else None
    labels = torch.full_like(batch["token_ids"], -100).scatter(1, batch["positions"], batch["labels"])
    forward = torch.compile(model) if work.compiled else model

    def train(steps: int) -> None:
        for _ in range(steps):
            with torch.autocast(device, torch.bfloat16, enabled=work.dtype == "bfloat16"):
                loss = forward(
                    batch["token_ids"],
                    attention_mask=mask,
                    token_type_ids=batch["segment_ids"],
                    labels=labels,
                    next_sentence_label=batch["nsp"],
                ).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        loss.item()  # Waits for it.

    return train


CONTENDERS: dict[str, Callable[[Work], Callable[[int], object]]] = {
    "keras_bert_zoo": keras_bert_zoo,
    "transformers": transformers,
}


def architecture(work: Work) -> dict[str, Any]:
    """Return the architecture for `training_flops`."""
    return {
        "num_layers": work.layers,
        "hidden_dim": work.width,
        "intermediate_dim": 4 * work.width,
        "vocabulary_size": WORDS,
        "pooler": True,
    }


def _command(work: Work, python: str) -> tuple[list[str], dict[str, str]]:
    """Return the command that starts a process for `work`, and its environment variables."""
    variables = {
        **with_code(work.contender == "keras_bert_zoo"),
        "KERAS_BACKEND": work.backend,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        **environment(work.device),
    }
    return [python, __file__, json.dumps(dataclasses.asdict(work))], variables


def measure(work: Work) -> dict[str, Any]:
    """Measure in a process of its own; return `{"error": …}` if it failed, for want of memory, say."""
    command, variables = _command(work, sys.executable)
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no message"])[-1][:300]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def start(name: str, work: Work, python: str, log: IO[bytes]) -> Worker:
    """Return a process that has built and compiled what it takes, ready for turns."""
    command, variables = _command(work, python)
    return Worker(name, [*command, "--turns"], variables, log)


def once(results: Path, work: Work, script: str, **keys: Any) -> dict[str, Any]:
    """Return the result of `work`, for a script, in a file of JSON lines; measure and add it if it is not there.

    A result of another machine or card, of other versions, code or variables does not count, nor does a failure.
    """
    wanted = {**keys, **dataclasses.asdict(work), **identity(script)}
    found = _found(results, wanted)
    if found is not None and "error" not in found:
        return found
    row = {**wanted, **now(script), **measure(work)}
    _add(results, row)
    said = row.get("error") or f"{min(row['seconds']) / work.steps:.3f} s an update"
    print(" ".join(map(str, keys.values())), work.contender, work.backend, said, file=sys.stderr, flush=True)
    return row


def together(results: Path, works: dict[str, Work], pythons: dict[str, str], rounds: int, **keys: Any) -> None:
    """Measure `works` in turns, once all are ready, and add a row for each, by title; add none if all are there.

    A failure beside others, for want of memory, say, is a result: the others would all have to take their turns again.
    Who deletes its line has all measured again. If all fail, nothing is added. What the processes print is added to a
    log beside `results`.
    """
    wanted = {
        title: {
            **keys,
            "title": title,
            "rounds": rounds,
            **dataclasses.asdict(work),
            **identity(_SCRIPT, pythons[title]),
        }
        for title, work in works.items()
    }
    if all(_found(results, each) for each in wanted.values()):
        return

    def turn(worker: Worker) -> dict[str, Any]:
        answer = worker.ask("go")
        step = answer["seconds"] / works[worker.name].steps
        print(*keys.values(), worker.name, f"{step:.4f} s an update", file=sys.stderr, flush=True)
        return {**answer, **worker.ask("peak")}

    with results.with_suffix(".log").open("ab") as log:
        starts = {title: partial(start, title, work, pythons[title], log) for title, work in works.items()}
        said, turns, left_out = take_turns(starts, rounds, turn, STARTED_AT_ONCE_ON_A_CARD)
    for title, facts in wanted.items() if turns else ():
        row = {**facts, **now(_SCRIPT, pythons[title]), **said.get(title, {"error": left_out.get(title)})}
        if title in turns:
            row["seconds"] = [each["seconds"] for each in turns[title]]
            row |= {name: max(each[name] for each in turns[title]) for name in ("peak_bytes", "product_peak")}
        _add(results, row)


def _found(results: Path, wanted: dict[str, Any]) -> dict[str, Any] | None:
    """Return the newest row of a file of JSON lines that has these facts."""
    for line in reversed(results.read_text().splitlines() if results.is_file() else []):
        row = json.loads(line)
        if {name: row.get(name) for name in wanted} == wanted:
            return row
    return None


def _add(results: Path, row: dict[str, Any]) -> None:
    with results.open("a") as file:
        file.write(json.dumps(row) + "\n")


def newest(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each sweep's rows of the last machine, code, variables and versions of the contender; others are no peers.

    Of what was measured several times, only the last row is returned.
    """
    last = {row["sweep"]: row for row in rows}
    own = {(row["sweep"], row.get("contender")): row for row in rows}

    def is_peer(row: dict[str, Any]) -> bool:
        beside, before = last[row["sweep"]], own[row["sweep"], row.get("contender")]
        same = (row.get(name) == beside.get(name) for name in ("machine", "code", "variables"))
        return all(same) and row.get("versions") == before.get("versions")

    return list({(row["sweep"], row["n"], row.get("title")): row for row in rows if is_peer(row)}.values())


def prepare(work: Work) -> tuple[dict[str, Any], Callable[[str], dict[str, Any]]]:
    """Build and warm up. The order `"go"` runs a round; `"peak"` asks for the FLOP/s of a large product."""
    card = device_name(work.framework, work.device)
    tensor_float32(work.framework, work.device)
    train = CONTENDERS[work.contender](work)
    before = memory(work.framework, work.device)
    start = time.perf_counter()
    train(max(2, work.steps_per_execution))
    first = time.perf_counter() - start
    release(work.framework, work.device)

    def answer(order: str) -> dict[str, Any]:
        if order == "peak":
            return {"product_peak": peak(work.framework, work.dtype, work.device)}
        if work.device == "gpu":
            train(2)  # Takes back the memory that was given to others.
        start = time.perf_counter()
        train(work.steps)
        seconds = time.perf_counter() - start
        took = memory(work.framework, work.device)
        release(work.framework, work.device)
        return {"seconds": seconds, "peak_bytes": took}

    return {"first": first, "built_bytes": before, "device_name": card}, answer


def main() -> None:
    work = Work(**json.loads(sys.argv[1]))
    if "--turns" in sys.argv:
        serve(lambda: prepare(work))
        return
    about, answer = prepare(work)
    rounds = [answer("go") for _ in range(work.repeats)]
    took = {"seconds": [each["seconds"] for each in rounds], "peak_bytes": rounds[-1]["peak_bytes"]}
    print(json.dumps({**about, **took, **answer("peak")}))


if __name__ == "__main__":
    main()
