"""How each task is fine-tuned: its files, its kind of model, its hyperparameters and its main score.

The hyperparameters are those of Devlin et al. 2019 (https://arxiv.org/abs/1810.04805) and of google-research/bert.
Where the paper searches a grid, it reports the best point on the dev set: start from the values here, then search.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from keras_bert_zoo.data import GLUE, read_dream, read_glue, read_swag, read_xnli
from keras_bert_zoo.data.conll import begins_conll
from keras_bert_zoo.finetuning.kinds import Answers, Choices, Classes, Kind, Numbers, Tags
from keras_bert_zoo.finetuning.readers import (
    Reader,
    check_name,
    check_number,
    columns_reader,
    own_reader,
    read_answered,
    read_documents,
    read_questions,
)
from keras_bert_zoo.metrics import accuracy, glue_scores, pearson, spearman
from keras_bert_zoo.metrics.glue import GLUE_METRICS


@dataclass(frozen=True)
class Recipe:
    """The recipe of a task.

    Attributes:
        kind: Kind of the task: model, predictions, scores.
        read: Reader of its files.
        folders: Where its files may be below the data directory; `""` is that directory itself.
        train: Names that the training file may have; `{language}` is filled in.
        dev: Names that the dev file may have.
        score: Main score: the leaderboard's, or the first of its two.
        sequence_length: Longest input in tokens.
        batch_size: Number of examples per update, or of windows if inputs are split.
        learning_rate: Peak learning rate.
        epochs: Passes over the training data.
        options: Which of `language`, `text` and `label` its reader takes.
        unlabelled: Arguments of its reader for a file whose labels do not matter.
        suffixes: Suffixes of its own files; `predict` reads other files as lines of text.
        is_begin: Function that recognises the task's files by their first lines, whatever their name.
    """

    kind: Kind
    read: Reader
    folders: tuple[str, ...]
    train: tuple[str, ...]
    dev: tuple[str, ...]
    score: str
    sequence_length: int = 128
    batch_size: int = 32
    learning_rate: float = 2e-5
    epochs: int = 3
    options: tuple[str, ...] = ()
    unlabelled: Mapping[str, Any] = field(default_factory=dict)
    suffixes: tuple[str, ...] = (".tsv",)
    is_begin: Callable[[Sequence[str]], bool] | None = None


def _accuracy(labels: object, predictions: object) -> dict[str, float]:
    return {"accuracy": accuracy(labels, predictions)}


def _correlations(labels: object, predictions: object) -> dict[str, float]:
    return {"pearson": pearson(labels, predictions), "spearman": spearman(labels, predictions)}


def _glue(task: str) -> Recipe:
    """google-research/bert, README.md, "Sentence (and sentence-pair) classification tasks": 128, 32, 2e-5, 3 epochs.

    The paper uses the same, with the best of 5e-5, 4e-5, 3e-5 and 2e-5 on the dev set (section 4.1).
    """
    known = GLUE[task]
    kind = Classes if known.labels else Numbers
    return Recipe(
        kind(partial(glue_scores, task), len(known.texts)),
        columns_reader(partial(read_glue, task)),
        (f"glue/{known.folder}", known.folder, ""),
        ("train.tsv",),
        ("dev_matched.tsv" if task == "mnli" else "dev.tsv",),
        GLUE_METRICS[task][0].__name__,
        unlabelled={"labels": False},
    )


# Section 4.2: batches of 32, 5e-5, 3 epochs. google-research/bert, run_squad.py: windows of 384 tokens, 128 apart.
_SQUAD = Recipe(
    Answers(impossible=False),
    read_answered,
    ("squad", ""),
    ("train-v1.1.json",),
    ("dev-v1.1.json",),
    score="f1",
    sequence_length=384,
    learning_rate=5e-5,
    unlabelled={"labels": False},
    suffixes=(".json",),
)

# Section 4.4: batches of 16, 2e-5, 3 epochs.
_SWAG = Recipe(
    Choices(_accuracy),
    columns_reader(read_swag),
    ("swag", "data", ""),
    ("train.csv",),
    ("val.csv",),
    score="accuracy",
    batch_size=16,
    unlabelled={"labels": False},
    suffixes=(".csv",),
)

# The hyperparameters are those of GLUE.
_TEXTS = Recipe(
    Classes(_accuracy, 1),
    own_reader(str, check_name),
    ("",),
    ("train.tsv", "train.csv", "train.jsonl"),
    ("dev.tsv", "dev.csv", "dev.jsonl"),
    score="accuracy",
    options=("text", "label"),
    unlabelled={"label": None},
    suffixes=(".tsv", ".csv", ".jsonl"),
)

RECIPES: dict[str, Recipe] = {
    **{task: _glue(task) for task in GLUE},
    "squad": _SQUAD,
    # Section 4.3: batches of 48, 5e-5, 2 epochs.
    "squad2": replace(
        _SQUAD,
        kind=Answers(impossible=True),
        read=read_questions,
        train=("train-v2.0.json",),
        dev=("dev-v2.0.json",),
        batch_size=48,
        epochs=2,
    ),
    # Appendix A.3 searches 16 and 32, 5e-5 to 2e-5, 2 to 4 epochs. Windows hold as much of a document as there are
    # positions (section 5.3), so an epoch has few of them. This is therefore the point with the most training.
    "conll": Recipe(
        Tags(),
        read_documents,
        ("conll2003", ""),
        ("eng.train",),
        ("eng.testa",),
        score="f1",
        sequence_length=512,
        batch_size=16,
        learning_rate=5e-5,
        epochs=4,
        unlabelled={"labels": False},
        suffixes=(".train", ".testa", ".testb", ".conll", ".bio"),
        is_begin=begins_conll,
    ),
    "swag": _SWAG,
    # nlpdata/mrc_bert_baseline, README.md: 512, 24, 2e-5, 8 epochs; 63.4 on the dev set.
    "dream": replace(
        _SWAG,
        read=columns_reader(read_dream),
        folders=("multiple_choice/dream", "dream", "data", ""),
        train=("train.json",),
        dev=("dev.json",),
        sequence_length=512,
        batch_size=24,
        epochs=8,
        unlabelled={},  # Its reader needs the answers.
        suffixes=(".json",),
    ),
    # google-research/bert, multilingual.md: 128, 32, 5e-5, 2 epochs.
    "xnli": Recipe(
        Classes(_accuracy, 2),
        columns_reader(read_xnli),
        ("xnli", ""),
        tuple(f"{folder}multinli.train.{{language}}.tsv" for folder in ("XNLI-MT-1.0/multinli/", "multinli/", "")),
        ("XNLI-1.0/xnli.dev.tsv", "xnli.dev.tsv"),
        score="accuracy",
        learning_rate=5e-5,
        epochs=2,
        options=("language",),
        unlabelled={"labels": False},
        suffixes=(".tsv", ".jsonl"),
    ),
    "texts": _TEXTS,
    "numbers": replace(
        _TEXTS,
        kind=Numbers(_correlations, 1),
        read=own_reader(float, check_number),
        score="pearson",
    ),
}
"""Name of a task on the console -> its recipe; the sources of the numbers are beside them."""
