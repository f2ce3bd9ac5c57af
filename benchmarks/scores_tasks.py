"""The tasks of `finetune_scores.py`: what is trained and scored, identical for each contender."""

import importlib.metadata
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from keras_bert_zoo.data import GLUE, read_conll, read_dream, read_glue, read_squad
from keras_bert_zoo.metrics import accuracy, entity_scores, glue_scores, squad_v1_scores, squad_v2_scores

BATCH_SIZE = 32
LEARNING_RATE = 5e-5
WARMUP = 0.1
EPSILON = 1e-8  # PyTorch's; with BERT's 1e-6 it would matter whether it is added before or after bias correction.
STRIDE = 128
FEW = ", few"  # Ends the name of a GLUE task that trains on few examples.
FRESH = ", random weights"  # Ends the name of a task that did not start from the preset's weights.
TAGS = ["B-LOC", "B-MISC", "B-ORG", "B-PER", "I-LOC", "I-MISC", "I-ORG", "I-PER", "O"]


class Task(NamedTuple):
    """How much of a task is trained and evaluated: every example, or a share spread over the file."""

    epochs: int = 3
    sequence_length: int = 128
    train: slice = slice(None)
    dev: slice = slice(None)
    batch_size: int = BATCH_SIZE

    def __str__(self) -> str:
        trained, scored = (f"1/{part.step or 1}" for part in (self.train, self.dev))
        share = f"{trained} trained, {scored} scored, {self.epochs} epochs, length {self.sequence_length}"
        return share if self.batch_size == BATCH_SIZE else f"{share}, batches of {self.batch_size}"


# The shortest first. A thread of an AVX-512 machine with bfloat16 trains some 1,300 tokens of MiniLM a second on torch,
# and predicts three times as many. With these shares runs take three to twelve minutes, those of SQuAD up to 40. At 256
# tokens, 9 of 10 contexts of SQuAD fit into one window; at 384, half as many tokens again would be padding. The longest
# sentence of CoNLL-2003 has 164 tokens, so nobody has to cut it or lay windows. SQuAD 2.0 has small batches, which make
# 441 updates: enough to see more than that no answer is the likeliest one.
TASKS = {
    "cola": Task(),
    "sst2": Task(epochs=2),
    f"sst2{FEW}": Task(train=slice(0, None, 16)),
    "rte": Task(),
    "stsb": Task(),
    "mrpc": Task(),
    "conll": Task(2, 256, train=slice(0, None, 2)),
    "squad": Task(2, 256, train=slice(0, None, 4), dev=slice(0, None, 5)),
    "squad2": Task(3, 256, train=slice(0, None, 2), dev=slice(0, None, 4), batch_size=16),
    "dream": Task(2, train=slice(0, None, 6), dev=slice(0, None, 4)),
}


class Examples(NamedTuple):
    """Columns as `fit` takes them: texts or words, and labels, tags, choices or answers."""

    x: Any
    y: list[Any]


def read_task(name: str, part: str, data: Path, limit: int | None = None) -> Examples:
    """Read the share of `part`, `"train"` or `"dev"`, or only its first `limit` examples."""
    rows: Any = None
    if name == "conll":
        sentences = read_conll(data / "conll2003" / {"train": "eng.train", "dev": "eng.testa"}[part])
        x, y = sentences.words, sentences.tags
    elif name == "dream":
        x, y, _ = read_dream(data / "multiple_choice" / "dream" / f"{part}.json")
    elif name == "squad":
        columns = read_squad(data / "squad" / {"train": "train-v1.1-subset.json", "dev": "dev-v1.1-part.json"}[part])
        x, y = (columns.question, columns.context), columns.answers
    elif name == "squad2":
        columns = read_squad(data / "squad" / "dev-v2.0-half.json")
        x, y = (columns.question, columns.context), columns.answers
        # Every third article is held out, so that no context is on both sides.
        held_out = list(dict.fromkeys(columns.title))[::3]
        rows = [i for i, title in enumerate(columns.title) if (title in held_out) == (part == "dev")]
    else:
        glue = name.removesuffix(FEW)
        x, y, _ = read_glue(glue, data / "glue" / GLUE[glue].folder / f"{part}.tsv")
    share = TASKS[name].train if part == "train" else TASKS[name].dev
    chosen = (rows or range(len(y)))[share][:limit]

    def take(column: list[Any]) -> list[Any]:
        return [column[row] for row in chosen]

    return Examples(tuple(map(take, x)) if isinstance(x, tuple) else take(x), take(y))


def score(name: str, y: Any, predictions: Any) -> dict[str, float]:
    """Return the official scores.

    Args:
        name: The task.
        y: As `read_task` gives them.
        predictions: Logits; for CoNLL, tags; for SQuAD, texts and the odds that there is no answer.
    """
    if name == "conll":
        return entity_scores(y, predictions)
    if name == "dream":
        return {"accuracy": accuracy(y, predictions)}
    if name == "squad":
        return squad_v1_scores(y, predictions[0])
    if name == "squad2":
        scores = squad_v2_scores(y, *predictions, threshold=float("inf"))
        # In the last one every question is answered, so that saying nothing is worth nothing.
        return {key: scores[key] for key in ("best_exact", "best_f1", "HasAns_f1")}
    return glue_scores(name.removesuffix(FEW), y, predictions)


def contend(finetune: Callable[..., tuple[Any, dict[str, int]]], packages: tuple[str, ...]) -> None:
    """Do one run, in a process of its own, and add a line to the results.

    Args:
        finetune: Takes the task's name, training and dev examples and the job; returns predictions and what it
            measured. Of the job it needs the preset, the seed, the peak of the learning rate, and whether weights are
            fresh (`random`), training is in mixed precision (`bfloat16`), batches are of any lengths (`random_batches`)
            and fresh heads are those of transformers (`normal_heads`).
        packages: Packages whose versions are worth keeping.
    """
    job = json.loads(sys.argv[1])
    name, data = job["task"], Path(os.environ["KBZ_DATA"])
    train, dev = (read_task(name, part, data, job["limit"]) for part in ("train", "dev"))
    predictions, measured = finetune(name, train, dev, job)
    record = {
        "task": name + FRESH if job["random"] else name,
        "contender": job["contender"],
        "preset": Path(job["preset"]).name,
        "files": job["files"],
        "seed": job["seed"],
        "learning_rate": job["learning_rate"],
        **{key: round(value, 4) for key, value in score(name, dev.y, predictions).items()},
        "share": str(TASKS[name]),
        "trained": len(train.y),
        "evaluated": len(dev.y),
        **measured,
        "threads": os.environ.get("OMP_NUM_THREADS", str(os.cpu_count())),
        "machine": f"{cpu()}, {os.cpu_count()} cores",
        "versions": ", ".join(
            [
                f"Python {platform.python_version()}",
                *(f"{each} {importlib.metadata.version(each)}" for each in packages),
            ]
        ),
    }
    with Path(job["results"]).open("a") as file:
        file.write(json.dumps(record) + "\n")
    print(json.dumps(record), flush=True)


def timed(work: Callable[[], object]) -> dict[str, int]:
    """Return the seconds of a training; the second number means something even if the machine does other work."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return {"train_seconds": round(time.perf_counter() - wall), "cpu_seconds": round(time.process_time() - cpu)}


def cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    flags = next((line for line in lines if line.startswith("flags")), "")
    return f"{name} ({'AVX-512' if 'avx512f' in flags else 'AVX2' if 'avx2' in flags else 'no AVX2'})"
