"""Steps of pre-training to be timed: ours and transformers', any size, a process each.

    python benchmarks/pretraining_contenders.py '{"contender": "keras_bert_zoo", "batch": 8, "steps": 2}'

prints a line of JSON: seconds of each of `repeats` rounds of `steps` updates, and memory. `Work` has the names. Dropout
on, AdamW, gradients clipped, one batch of random tokens again and again.
"""

import contextlib
import dataclasses
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

WORDS = 30522


@dataclasses.dataclass(frozen=True)
class Work:
    """What is timed; `batch` is that of an update, of which `accumulation` parts are worked on one after the other."""

    contender: str = "keras_bert_zoo"
    backend: str = "torch"  # Keras'; transformers runs on PyTorch.
    rows: int = WORDS  # Of the embedding, which may have more than there are words.
    layers: int = 2
    width: int = 128
    heads: int = 2
    length: int = 128
    predictions: int = 20
    batch: int = 8
    dtype: str = "float32"  # Or bfloat16: mixed precision, autocast.
    attention_dropout: float = 0.1
    compiled: bool = False  # torch.compile, or Keras' jit_compile on TensorFlow and PyTorch.
    rematerialise: bool = False
    accumulation: int = 1
    replicas: int = 0  # Logical CPUs under MirroredStrategy; 0 is no strategy.
    device: str = "cpu"  # Or gpu.
    steps: int = 2
    repeats: int = 3


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


def keras_bert_zoo(work: Work) -> Callable[[int], object]:
    import keras

    import keras_bert_zoo as kbz

    batch = make_batch(work.batch // work.accumulation, work.length, work.predictions)
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

    blocks = [f"encoder_layer_{i}" for i in range(work.layers)] if work.rematerialise else []
    with contextlib.ExitStack() as scopes:
        if work.replicas:
            import tensorflow as tf

            cpu = tf.config.list_physical_devices("CPU")[0]
            tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * work.replicas)
            scopes.enter_context(kbz.distribute("mirrored"))
        scopes.enter_context(keras.RematScope("list_of_layers", layer_names=blocks))
        backbone = kbz.BertBackbone(
            work.rows,
            work.layers,
            work.heads,
            work.width,
            4 * work.width,
            attention_dropout=work.attention_dropout,
            dtype="mixed_bfloat16" if work.dtype == "bfloat16" else work.dtype,
        )
        model = kbz.BertPretrainer(backbone)
        parts = work.accumulation if work.accumulation > 1 else None
        model.compile(kbz.AdamW(1e-4, gradient_accumulation_steps=parts), jit_compile=True if work.compiled else "auto")
    return lambda steps: model.fit(Same(steps * work.accumulation), verbose=0)


def transformers(work: Work) -> Callable[[int], object]:
    import torch
    from transformers import BertConfig, BertForPreTraining

    device = "cuda" if work.device == "gpu" else "cpu"
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
    labels = torch.full_like(batch["token_ids"], -100).scatter(1, batch["positions"], batch["labels"])
    forward = torch.compile(model) if work.compiled else model

    def train(steps: int) -> None:
        for _ in range(steps):
            with torch.autocast(device, torch.bfloat16, enabled=work.dtype == "bfloat16"):
                loss = forward(
                    batch["token_ids"],
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
    """For `training_flops`."""
    return {
        "num_layers": work.layers,
        "hidden_dim": work.width,
        "intermediate_dim": 4 * work.width,
        "vocabulary_size": WORDS,
        "pooler": True,
    }


def measure(work: Work, python: str, limit: float | None) -> dict[str, Any]:
    """The measurement, by a process of its own; `{"error": …}` where it failed, for want of memory or time, say."""
    environment = {
        **os.environ,
        "KERAS_BACKEND": work.backend,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    if work.contender == "keras_bert_zoo":
        environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])
    else:
        environment.pop("PYTHONPATH", None)
    if work.device == "cpu":
        environment |= {"CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
    command = [python, __file__, json.dumps(dataclasses.asdict(work))]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"error": f"nothing within {limit:.0f} s"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no message"])[-1][:300]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def once(
    results: Path, work: Work, python: str = sys.executable, limit: float | None = None, **keys: Any
) -> dict[str, Any]:
    """The result of `work` in a file of JSON lines, measured within `limit` seconds and added where it is not there."""
    wanted = {**keys, **dataclasses.asdict(work)}
    if results.is_file():
        for line in results.read_text().splitlines():
            row = json.loads(line)
            if "error" not in row and {name: row.get(name) for name in wanted} == wanted:
                return row
    row = {**wanted, **measure(work, python, limit)}
    with results.open("a") as file:
        file.write(json.dumps(row) + "\n")
    said = row.get("error") or f"{min(row['seconds']) / work.steps:.3f} s an update"
    print(" ".join(map(str, keys.values())), work.contender, work.backend, said, file=sys.stderr, flush=True)
    return row


def _memory(work: Work) -> int:
    """The most bytes so far: of the process, or on its GPU."""
    if work.device == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if work.contender == "keras_bert_zoo" and work.backend == "jax":
        import jax

        return int(jax.devices()[0].memory_stats()["peak_bytes_in_use"])
    import torch

    return torch.cuda.max_memory_allocated()


def _device_name(work: Work) -> str:
    if work.device == "cpu":
        return ""
    if work.contender == "keras_bert_zoo" and work.backend == "jax":
        import jax

        return jax.devices()[0].device_kind
    import torch

    return torch.cuda.get_device_name()


def main() -> None:
    work = Work(**json.loads(sys.argv[1]))
    train = CONTENDERS[work.contender](work)
    before = _memory(work)
    start = time.perf_counter()
    train(2)
    first = time.perf_counter() - start
    seconds = []
    for _ in range(work.repeats):
        start = time.perf_counter()
        train(work.steps)
        seconds.append(time.perf_counter() - start)
    answer = {"seconds": seconds, "first": first, "built_bytes": before, "peak_bytes": _memory(work)}
    print(json.dumps({**answer, "device_name": _device_name(work)}))


if __name__ == "__main__":
    main()
