"""The contenders of `finetune_speed.py`: each runs in its own process and takes orders on stdin.

Frameworks are imported where they are used, because no environment needs all of them.
"""

import dataclasses
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from process import device_name, half_precision_attention, memory, peak, quantized, tensor_float32, threads, timed
from worker import serve

SEED = 0  # Set before each run: the same batches have the same shapes, none of which compiles again.
_BATCHES_SORTED_TOGETHER = 50
_BATCH_OF_TOKENS = 2048  # From keras_bert_zoo, which the peers' environment lacks.

Texts = list[str] | tuple[list[str], ...]
"""Sentences, or a tuple of two columns for pairs."""


@dataclasses.dataclass(frozen=True)
class Task:
    """Texts, or pairs of texts, of two classes.

    Attributes:
        read: Returns the given number of texts and their labels.
        examples: How many to read, unless told otherwise.
        batch_size: Examples per batch.
        sequence_length: Where texts are cut, in tokens.
        fixed: Whether all texts have the same length.
    """

    read: Callable[[int], tuple[Texts, list[int]]]
    examples: int
    batch_size: int = 32
    sequence_length: int = 128
    fixed: bool = False


def _file(name: str) -> Path:
    data = os.environ.get("KBZ_DATA")
    if not data:
        raise ValueError("KBZ_DATA must name the folder that holds the data. Received: KBZ_DATA unset")
    path = Path(data, name)
    if not path.is_file():
        raise ValueError(f"KBZ_DATA must hold {name}. Received: KBZ_DATA={data}")
    return path


def _glue(folder: str, text_columns: tuple[str, ...], label_column: str) -> Callable[[int], tuple[Texts, list[int]]]:
    def read(examples: int) -> tuple[Texts, list[int]]:
        with _file(f"glue/{folder}/train.tsv").open(encoding="utf-8-sig", newline="\n") as file:
            names = next(file).rstrip("\r\n").split("\t")  # Quotes are text here, unlike in what csv reads.
            lines = [line for _, line in zip(range(examples), file, strict=False)]
        columns = dict(zip(names, zip(*(line.rstrip("\r\n").split("\t") for line in lines), strict=True), strict=True))
        texts = tuple(list(columns[name]) for name in text_columns)
        return texts if len(texts) > 1 else texts[0], [int(label) for label in columns[label_column]]

    return read


def _squad(examples: int) -> tuple[Texts, list[int]]:
    """Return questions and contexts, spread over the articles; whether there is an answer stands in for a label."""
    articles = json.loads(_file("squad/dev-v2.0-half.json").read_text("utf-8"))["data"]
    rows = [
        (question["question"], paragraph["context"], int(question["is_impossible"]))
        for article in articles
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]
    questions, contexts, labels = zip(*rows[:: len(rows) // examples][:examples], strict=True)
    return (list(questions), list(contexts)), list(labels)


def _fixed(length: int) -> Callable[[int], tuple[Texts, list[int]]]:
    """Return a reader of texts that all have the same number of tokens, so that nobody gains by padding less."""

    def read(examples: int) -> tuple[Texts, list[int]]:
        words = ("the", "old", "man", "went", "to", "sea", "with", "a", "boy", "and")
        texts = [" ".join(words[(i + j) % len(words)] for j in range(length - 2)) for i in range(examples)]
        return texts, [i % 2 for i in range(examples)]

    return read


TASKS = {
    "mrpc": Task(_glue("MRPC", ("#1 String", "#2 String"), "Quality"), 640),
    "sst2": Task(_glue("SST-2", ("sentence",), "label"), 3200),
    "squad": Task(_squad, 320, batch_size=8, sequence_length=384),
    "8x128": Task(_fixed(128), 64, batch_size=8, fixed=True),
    "4x512": Task(_fixed(512), 16, batch_size=4, sequence_length=512, fixed=True),
}


def predicted_size(task: Task) -> int | None:
    """Return None, keras_bert_zoo's default, if the task has its size; short texts then come in larger batches."""
    return None if task.batch_size == 32 else task.batch_size


def cut(lengths: Sequence[int], task: Task, by_tokens: bool) -> Iterator[slice]:
    """Yield batches of examples sorted longest first; `by_tokens` puts short ones into larger batches, as ours does."""
    start = 0
    while start < len(lengths):
        size = task.batch_size
        if by_tokens:
            size *= max(_BATCH_OF_TOKENS // (size * lengths[start]), 1)
        yield slice(start, start + size)
        start += size


def columns(x: Texts) -> tuple[list[str], ...]:
    return x if isinstance(x, tuple) else (x,)


def take(x: Texts, rows: Sequence[int]) -> Texts:
    taken = tuple([column[row] for row in rows] for column in columns(x))
    return taken if isinstance(x, tuple) else taken[0]


@dataclasses.dataclass(frozen=True)
class Contender:
    """What is timed.

    Attributes:
        train: Trains for one epoch on raw texts and labels; None if the contender only predicts.
        predict: Returns the logits of raw texts, in their order.
        count_tokens: Returns the number of tokens that this contender sees in the texts, without padding.
        compiles: Whether each shape of a batch costs time when it is first met.
        batches: How many batches show what each takes on a CPU, as all have the same shape; None takes all texts.
    """

    train: Callable[[Texts, list[int]], object] | None
    predict: Callable[[Texts], object]
    count_tokens: Callable[[Texts], int]
    compiles: bool
    batches: int | None = None


def keras_bert_zoo(
    preset: str, task: Task, bfloat16: bool = False, compiled: bool = False, int8: bool = False
) -> Contender:
    import keras

    from keras_bert_zoo import BertTextClassifier

    classifier = BertTextClassifier.from_preset(
        preset,
        num_classes=2,
        sequence_length=task.sequence_length,
        dtype="mixed_bfloat16" if bfloat16 else "float32",
    )
    classifier.compile(jit_compile=True if compiled else "auto")
    if int8:
        classifier.quantize("int8")

    def train(x: Texts, y: list[int]) -> None:
        random.seed(SEED)  # For the order of batches. Keras' own seeding makes TensorFlow prepare its kernels anew.
        classifier.fit(x, y, batch_size=task.batch_size, epochs=1, verbose=0)

    return Contender(
        train=None if int8 or keras.backend.backend() == "openvino" else train,
        predict=lambda x: classifier.predict(x, batch_size=predicted_size(task), verbose=0),
        count_tokens=lambda x: int(classifier.preprocessor.pack(x).lengths.sum()),
        compiles=compiled or keras.backend.backend() != "torch",
    )


_EXPORT_OURS = """
import sys
from keras_bert_zoo import BertTextClassifier
preset, length, path = sys.argv[1:]
BertTextClassifier.from_preset(preset, num_classes=2, sequence_length=int(length)).export(path, format="onnx")
"""
_EXPORT_TRANSFORMERS = """
import sys
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
preset, _, path = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(preset, local_files_only=True)
options = {"attn_implementation": "sdpa", "dtype": torch.float32, "local_files_only": True}
model = AutoModelForSequenceClassification.from_pretrained(preset, num_labels=2, **options).eval()
example = dict(tokenizer(["a text", "another one, and longer"], padding=True, return_tensors="pt"))
axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=512)}
shapes = dict.fromkeys(example, axes)
torch.onnx.export(model, kwargs=example, f=path, input_names=list(example), dynamic_shapes=shapes, dynamo=True)
"""


def _exported(program: str, preset: str, task: Task, int8: bool) -> Any:
    """Return a session of ONNX Runtime; another process exports, so that what the export takes does not count."""
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        command = [sys.executable, "-c", program, preset, str(task.sequence_length), str(path)]
        subprocess.run(command, stdout=sys.stderr, check=True)
        if int8:
            path = quantized(path)
        return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def predict_in_onnx_runtime(session: Any, preprocessor: Any, x: Texts, batch_size: int | None = None) -> Any:
    """Return the logits of our export on the batches that `predict` makes."""
    import numpy as np

    from keras_bert_zoo.text.batching import TOKENS_OF_A_BATCH, LengthSortedBatches

    most_tokens = TOKENS_OF_A_BATCH if batch_size is None else None
    batches = LengthSortedBatches(preprocessor.pack(x), batch_size=batch_size or 32, most_tokens=most_tokens)
    return batches.restore_order(np.concatenate([session.run(None, inputs)[0] for (inputs,) in batches]))


def keras_bert_zoo_onnx(preset: str, task: Task, int8: bool = False) -> Contender:
    """Predict with our ONNX export in ONNX Runtime, fed with our batches of similar length."""
    from keras_bert_zoo import BertPreprocessor, BertTokenizer
    from keras_bert_zoo.presets import load_preset

    session = _exported(_EXPORT_OURS, preset, task, int8)
    checkpoint = load_preset(preset, load_weights=False)
    tokenizer = BertTokenizer(checkpoint.vocabulary, **checkpoint.tokenizer)
    preprocessor = BertPreprocessor(tokenizer, task.sequence_length)

    return Contender(
        train=None,
        predict=lambda x: predict_in_onnx_runtime(session, preprocessor, x, predicted_size(task)),
        count_tokens=lambda x: int(preprocessor.pack(x).lengths.sum()),
        compiles=False,
    )


def transformers_onnx(preset: str, task: Task, int8: bool = False) -> Contender:
    """Predict with transformers' model in ONNX Runtime: tokenise all texts first, sort by length, batch as ours."""
    import numpy as np
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(preset, local_files_only=True)
    session = _exported(_EXPORT_TRANSFORMERS, preset, task, int8)
    names = {each.name for each in session.get_inputs()}

    def predict(x: Texts) -> Any:
        encoded = tokenizer(*columns(x), truncation=True, max_length=task.sequence_length)
        order = sorted(range(len(columns(x)[0])), key=lambda row: -len(encoded["input_ids"][row]))
        logits = np.empty((len(order), 2), "float32")
        lengths = [len(encoded["input_ids"][row]) for row in order]
        for part in cut(lengths, task, by_tokens=predicted_size(task) is None):
            rows = order[part]
            chosen = {name: [values[row] for row in rows] for name, values in encoded.items()}
            padded = tokenizer.pad(chosen, return_tensors="np")
            logits[rows] = session.run(None, {name: padded[name] for name in names})[0]
        return logits

    return Contender(
        train=None,
        predict=predict,
        count_tokens=lambda x: sum(
            map(len, tokenizer(*columns(x), truncation=True, max_length=task.sequence_length)["input_ids"])
        ),
        compiles=False,
    )


def transformers(
    preset: str,
    task: Task,
    grouped: bool = False,
    by_tokens: bool = False,
    bfloat16: bool = False,
    compiled: bool = False,
    loaded: bool = False,
) -> Contender:
    """Fine-tune as transformers' Trainer does, but without its cost: the loop is plain PyTorch.

    Batches are tokenised as they come and padded to their longest text. If `grouped`, all texts are tokenised first and
    sorted by length: within chunks of a shuffled epoch for training, as a whole for prediction. `by_tokens` predicts
    in batches that are larger where texts are short, as ours are. `compiled` uses torch.compile for any shape.
    `bfloat16` is autocast, as in Trainer; with `loaded` the weights are in it, and there is no training.
    """
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, get_linear_schedule_with_warmup

    device = "cuda" if torch.cuda.is_available() else "cpu"
    half_precision_attention()
    tokenizer = AutoTokenizer.from_pretrained(preset, local_files_only=True)
    model = AutoModelForSequenceClassification.from_pretrained(
        preset,
        num_labels=2,
        attn_implementation="sdpa",
        dtype=torch.bfloat16 if loaded else torch.float32,
        local_files_only=True,
    ).to(device)
    forward = torch.compile(model, dynamic=True) if compiled else model

    def tokenize(x: Texts, **options: Any) -> Any:
        return tokenizer(*columns(x), truncation=True, max_length=task.sequence_length, **options)

    def batches(
        x: Texts, order: Sequence[int], sorted_together: int, by_tokens: bool = False
    ) -> Iterator[tuple[list[int], Any]]:
        encoded: Any = {}
        lengths: list[int] = []
        if grouped:
            encoded = tokenize(x)
            lengths = [len(ids) for ids in encoded["input_ids"]]
            chunks = (order[i : i + sorted_together] for i in range(0, len(order), sorted_together))
            order = [row for chunk in chunks for row in sorted(chunk, key=lambda row: -lengths[row])]
        for part in cut([lengths[row] for row in order] if grouped else [0] * len(order), task, by_tokens):
            rows = list(order[part])
            if grouped:
                chosen = {name: [values[row] for row in rows] for name, values in encoded.items()}
                yield rows, tokenizer.pad(chosen, return_tensors="pt")
            else:
                yield rows, tokenize(take(x, rows), padding=True, return_tensors="pt")

    def send(**inputs: Any) -> dict[str, Any]:
        """Send tensors as Trainer's loader does, from pinned memory, and without waiting for them."""
        if device == "cpu":
            return inputs
        return {name: tensor.pin_memory().to(device, non_blocking=True) for name, tensor in inputs.items()}

    decayed, plain = [], []
    for name, parameter in model.named_parameters():
        (plain if name.endswith("bias") or "LayerNorm" in name else decayed).append(parameter)
    # Made once, as ours is: its first step allocates the moments.
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}],
        lr=5e-5,
        fused=True,  # Trainer's default, and the fastest.
    )

    def train(x: Texts, y: list[int]) -> None:
        torch.manual_seed(SEED)
        model.train()
        labels = torch.tensor(y)
        steps = -(-len(y) // task.batch_size)
        schedule = get_linear_schedule_with_warmup(optimizer, steps // 10, steps)
        for rows, inputs in batches(x, torch.randperm(len(y)).tolist(), _BATCHES_SORTED_TOGETHER * task.batch_size):
            with torch.autocast(device, torch.bfloat16, enabled=bfloat16):
                loss = forward(**send(**inputs, labels=labels[rows])).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        if device == "cuda":
            torch.cuda.synchronize()

    @torch.inference_mode()
    def predict(x: Texts) -> Any:
        model.eval()
        count = len(columns(x)[0])
        order: list[int] = []
        found = []
        with torch.autocast(device, torch.bfloat16, enabled=bfloat16 and not loaded):  # It keeps what it has cast.
            for rows, inputs in batches(x, range(count), count, by_tokens):
                order += rows
                found.append(forward(**send(**inputs)).logits)
        logits = torch.empty(count, 2)
        logits[order] = torch.cat(found).float().cpu()  # All at once: each would be waited for on a card.
        return logits.numpy()

    return Contender(
        train=None if loaded else train,
        predict=predict,
        count_tokens=lambda x: sum(len(ids) for ids in tokenize(x)["input_ids"]),
        compiles=compiled,
    )


def keras_hub(preset: str, task: Task, bfloat16: bool = False, sequence_length: int | None = None) -> Contender:
    """Use the checkpoint's sizes with random weights; the speed does not depend on their values."""
    import keras
    import keras_hub as hub
    import tensorflow as tf

    config = json.loads(Path(preset, "config.json").read_text(encoding="utf-8"))
    backbone = hub.models.BertBackbone(
        vocabulary_size=config["vocab_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=config["num_attention_heads"],
        hidden_dim=config["hidden_size"],
        intermediate_dim=config["intermediate_size"],
        dropout=config["hidden_dropout_prob"],
        max_sequence_length=config["max_position_embeddings"],
        dtype="mixed_bfloat16" if bfloat16 else "float32",
    )
    tokenizer = hub.models.BertTokenizer(vocabulary=str(Path(preset, "vocab.txt")), lowercase=True)
    preprocessor = hub.models.BertPreprocessor(tokenizer, sequence_length=sequence_length or task.sequence_length)
    classifier = hub.models.BertTextClassifier(backbone, num_classes=2, preprocessor=preprocessor)
    optimizer = keras.optimizers.AdamW(5e-5, weight_decay=0.01, global_clipnorm=1.0)
    optimizer.exclude_from_weight_decay(var_names=["bias", "beta", "gamma"])
    classifier.compile(optimizer=optimizer)

    def dataset(*element: Any) -> Any:
        # Neither `fit(x, y)` nor an element `((a, b))`: a bare pair of texts would be taken for a text and its label.
        # It is untuned: the end of a pass waits for the tuning, at times for seconds, and few batches are timed here.
        options = tf.data.Options()
        options.autotune.enabled = False
        return tf.data.Dataset.from_tensor_slices(element).with_options(options)

    def train(x: Texts, y: list[int]) -> None:
        classifier.fit(dataset(x, y).shuffle(len(y), SEED).batch(task.batch_size), epochs=1, verbose=0)

    def count_tokens(x: Texts) -> int:
        batches = dataset(x).batch(task.batch_size).map(classifier.preprocess_samples)
        return sum(int(tf.reduce_sum(tf.cast(batch["padding_mask"], tf.int32))) for batch in batches)

    return Contender(
        train=train,
        predict=lambda x: classifier.predict(dataset(x).batch(task.batch_size), verbose=0),
        count_tokens=count_tokens,
        compiles=False,  # Only the first batches do.
        batches=20,  # As many as MRPC has. What a pass takes once is up to a tenth of them.
    )


CONTENDERS: dict[str, Callable[..., Contender]] = {
    "keras_bert_zoo": keras_bert_zoo,
    "keras_bert_zoo_onnx": keras_bert_zoo_onnx,
    "transformers_onnx": transformers_onnx,
    "transformers": transformers,
    "keras_hub": keras_hub,
}


def prepare(job: dict[str, Any]) -> tuple[dict[str, Any], Callable[[str], dict[str, Any]]]:
    """Load and warm up. Each order is then timed, except `"peak"`, which asks for the FLOP/s of a large product."""
    task, framework, device = TASKS[job["task"]], job["framework"], job["device"]
    card = device_name(framework, device)
    dtype = next((name for name in ("bfloat16", "int8") if job["options"].get(name)), "float32")
    tensor_float32(framework, device)
    x, y = task.read(job["examples"] or task.examples)
    contender = CONTENDERS[job["contender"]](job["preset"], task, **job["options"])
    tokens, examples = contender.count_tokens(x), len(y)
    if contender.batches and device == "cpu":
        part = range(min(len(y), contender.batches * task.batch_size))
        x, y = take(x, part), [y[row] for row in part]
    # A contender that compiles must meet each shape, and an epoch has them all; others are warm after a few batches.
    rows = range(len(y) if contender.compiles else min(len(y), 3 * task.batch_size))
    warm_x, warm_y = take(x, rows), [y[row] for row in rows]
    orders: dict[str, Callable[[Texts, list[int]], object]] = {"predict": lambda x, _: contender.predict(x)}
    if contender.train is not None:
        orders = {"train": contender.train, **orders}
    first_runs = {order: timed(work, warm_x, warm_y) for order, work in orders.items()}
    about = {
        "orders": list(orders),
        "first_runs": first_runs if contender.compiles else None,
        "tokens": tokens / examples,
        "threads": threads(framework),
        "device_name": card,
    }

    def answer(order: str) -> dict[str, Any]:
        if order == "peak":
            return {"peak": peak(framework, dtype, device)}
        return {**timed(orders[order], x, y), "examples": len(y), "memory": memory(framework, device)}

    return about, answer


if __name__ == "__main__":
    serve(lambda: prepare(json.loads(sys.argv[1])))
