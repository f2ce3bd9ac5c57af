"""Check that the contenders of `finetune_scores.py` learn the same: their inputs, their targets, and their losses.

    KBZ_DATA=DATA KERAS_BACKEND=torch python benchmarks/scores_check.py --preset PRESET

Compares every token and target in every row of each task's shares, training and dev. Then compares the losses of four
steps of 8 rows each, without dropout, in the files' order and from the same weights, including the heads: the first
loss is that of the model, the later ones also depend on gradients, clipping, decay and schedule. Rows that differ are
listed. Needs keras_bert_zoo's requirements, torch and transformers.

Two known differences are removed from the losses: SQuAD's steps have one row, because transformers counts padding among
the places where an answer may be, and epsilon is added where Keras adds it.
"""

import argparse
import contextlib
import json
import shutil
import tempfile
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import patch

import keras
import numpy as np
import scores_ours
import scores_transformers
import torch
import transformers
from reports import data_folder
from scores_tasks import EPSILON, TAGS, TASKS, Examples, read_task
from scores_transformers import Features

STEPS = 4
Row = tuple[list[int], list[int], Any]
"""Token ids, segment ids, target."""


def our_rows(name: str, model: Any, examples: Examples) -> list[Row]:
    packed = model.preprocessor.pack(examples.x)
    lengths = packed.lengths
    inputs = packed.take(np.arange(len(lengths)), int(lengths.max()))
    if name == "conll":
        targets = packed.lay(np.array([TAGS.index(tag) for tags in examples.y for tag in tags]))
    elif name in ("squad", "squad2"):
        targets = packed.targets(examples.y).tolist()
    else:
        targets = list(examples.y)
    rows = []
    for i, target in enumerate(targets):
        real = inputs["padding_mask"][i] == 1
        own = target[: lengths[i]].tolist() if name == "conll" else target
        rows.append((inputs["token_ids"][i][real].tolist(), inputs["segment_ids"][i][real].tolist(), own))
    return rows


def their_rows(name: str, features: Features) -> list[Row]:
    rows = []
    for item in features:
        squad = name in ("squad", "squad2")
        target = [item["start_positions"], item["end_positions"]] if squad else item["labels"]
        ids, segments = (
            list(chain.from_iterable(item[key]) if name == "dream" else item[key])
            for key in ("input_ids", "token_type_ids")
        )
        rows.append((ids, segments, target))
    return rows


class KerasAdamW(torch.optim.AdamW):
    """AdamW that adds epsilon before the correction of the moments (Kingma and Ba 2015, end of section 2)."""

    steps = 0

    def step(self, *args: Any, **kwargs: Any) -> Any:
        self.steps += 1
        for group in self.param_groups:
            group["eps"] = EPSILON / (1 - 0.999**self.steps) ** 0.5
        return super().step(*args, **kwargs)


class Losses(keras.callbacks.Callback):
    """The loss of each step, where Keras itself shows the mean so far."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.model.reset_metrics()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.losses.append(float(logs["loss"]))


@patch.object(scores_ours, "WARMUP", 0.5)  # A tenth of four steps is none.
@patch.object(scores_transformers, "WARMUP", 0.5)
def losses(name: str, preset: Path, train: Examples) -> tuple[list[float], list[float]]:
    squad = name in ("squad", "squad2")
    rows = 1 if squad else 8
    few = Examples(*(take_first(column, rows * STEPS) for column in train))
    with tempfile.TemporaryDirectory() as folder:
        plain, saved = Path(folder, "plain"), Path(folder, "saved")
        shutil.copytree(preset, plain)
        config = json.loads((plain / "config.json").read_text())
        for key in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            config[key] = 0.0
        (plain / "config.json").write_text(json.dumps(config))
        head = {} if squad else {"dropout": 0.0}
        keras.utils.set_random_seed(0)
        ours = scores_ours.build(name, str(plain), **head)
        ours.save_to_preset(saved)
        theirs = scores_transformers.build(name, str(saved))
    record = Losses()
    ours.fit(*few, batch_size=rows, epochs=1, shuffle=False, verbose=0, callbacks=[record])
    tokenizer = transformers.AutoTokenizer.from_pretrained(preset)
    features = scores_transformers.encode(name, tokenizer, few)
    with patch("torch.optim.AdamW", KerasAdamW), contextlib.redirect_stdout(None):
        return record.losses, scores_transformers.train(theirs, *features, epochs=1, batch_size=rows, shuffle=False)


def take_first(column: Any, count: int) -> Any:
    return tuple(part[:count] for part in column) if isinstance(column, tuple) else column[:count]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", help="all by default")
    parser.add_argument("--preset", type=Path, required=True)
    arguments = parser.parse_args()
    data, tokenizer = data_folder(), transformers.AutoTokenizer.from_pretrained(arguments.preset)
    print("| task | rows | tokens | other inputs | other targets | first loss | ours less theirs, step by step |")
    print("|---|---|---|---|---|---|---|")
    differing = []
    for name in arguments.tasks or TASKS:
        model = scores_ours.build(name, str(arguments.preset))
        train, dev = (read_task(name, part, data) for part in ("train", "dev"))
        ours, theirs = [], []
        for examples in (train, dev):
            ours += our_rows(name, model, examples)
            theirs += their_rows(name, scores_transformers.encode(name, tokenizer, examples)[0])
        pairs = list(zip(ours, theirs, strict=len(ours) == len(theirs)))
        inputs = [pair for pair in pairs if pair[0][:2] != pair[1][:2]]
        targets = [pair for pair in pairs if pair[0][:2] == pair[1][:2] and pair[0][2] != pair[1][2]]
        differing += [(name, *pair) for pair in inputs + targets]
        counts = " and ".join(str(count) for count in dict.fromkeys((len(ours), len(theirs))))
        tokens = " and ".join(
            str(n) for n in dict.fromkeys(sum(len(row[0]) for row in rows) for rows in (ours, theirs))
        )
        first, second = losses(name, arguments.preset, train)
        distances = ", ".join(f"{a - b:.1e}" for a, b in zip(first, second, strict=True))
        print(
            f"| {name} | {counts} | {tokens} | {len(inputs)} | {len(targets)} | {first[0]:.4f} | {distances} |",
            flush=True,
        )
    for name, ours, theirs in differing:
        about = tokenizer.decode(ours[0][:20]), tokenizer.decode(theirs[0][:20])
        print(f"\n{name}: {' / '.join(dict.fromkeys(about))} …: ours {ours[2]}, theirs {theirs[2]}")


if __name__ == "__main__":
    main()
