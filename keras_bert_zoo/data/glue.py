"""The tasks of GLUE (Wang et al. 2019): official files, Hugging Face's data sets, and submissions."""

import os
import reprlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_bert_zoo.data.columns import Columns, class_reader, is_withheld, text_columns
from keras_bert_zoo.data.tables import Source, open_table, tsv_table
from keras_bert_zoo.files import check_local, replacing


class GlueTask(NamedTuple):
    """The format of a task's files.

    Attributes:
        folder: Folder in the official archive.
        texts: Column of the text, or of the two texts, in the official files.
        label: Column of the label.
        labels: Labels in the files, in the order of Hugging Face's class numbers; empty for regression.
        class_names: Meanings of the classes, if `labels` are numbers.
        hub_texts: `texts` in Hugging Face's data set, if they differ.
        header: Column names, if the training and dev files do not contain them.
        broken_lines: Whether the official training file has lines that end within a field.
    """

    folder: str
    texts: tuple[str, ...]
    label: str = "label"
    labels: tuple[str, ...] = ("0", "1")
    class_names: tuple[str, ...] = ()
    hub_texts: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    broken_lines: bool = False


_SENTENCES = ("sentence1", "sentence2")
_ENTAILMENT = ("entailment", "not_entailment")

GLUE: dict[str, GlueTask] = {
    "cola": GlueTask(
        "CoLA",
        ("sentence",),
        class_names=("unacceptable", "acceptable"),
        header=("source", "label", "mark", "sentence"),
    ),
    "sst2": GlueTask("SST-2", ("sentence",), class_names=("negative", "positive")),
    "mrpc": GlueTask(
        "MRPC",
        ("#1 String", "#2 String"),
        label="Quality",
        class_names=("not_equivalent", "equivalent"),
        hub_texts=_SENTENCES,
    ),
    "stsb": GlueTask("STS-B", _SENTENCES, label="score", labels=()),
    "qqp": GlueTask(
        "QQP",
        ("question1", "question2"),
        label="is_duplicate",
        class_names=("not_duplicate", "duplicate"),
        broken_lines=True,
    ),
    "mnli": GlueTask(
        "MNLI",
        _SENTENCES,
        label="gold_label",
        labels=("entailment", "neutral", "contradiction"),
        hub_texts=("premise", "hypothesis"),
    ),
    "qnli": GlueTask("QNLI", ("question", "sentence"), labels=_ENTAILMENT),
    "rte": GlueTask("RTE", _SENTENCES, labels=_ENTAILMENT),
    "wnli": GlueTask("WNLI", _SENTENCES, class_names=("not_entailment", "entailment")),
}

# The diagnostic set (AX) is for models of MNLI.
SUBMISSIONS = {
    **{task.folder: name for name, task in GLUE.items() if name != "mnli"},
    **dict.fromkeys(("MNLI-m", "MNLI-mm", "AX"), "mnli"),
}


def read_glue(task: str, source: Source, labels: bool = True) -> Columns:
    """Read a training, dev or test set of GLUE.

    Lines are read as they are, without quoting. The few broken lines of QQP's labelled files are skipped and logged; a
    test set must have none, because its predictions are matched by row.

    Args:
        task: One of `cola`, `sst2`, `mrpc`, `stsb`, `qqp`, `mnli`, `qnli`, `rte`, `wnli`.
        source: An official file, such as `glue_data/MRPC/train.tsv`, or one part of Hugging Face's data set of that
            task.
        labels: False reads only texts, if labels do not matter or something else stands in their place.

    Returns:
        `Columns`: class numbers as in Hugging Face's data sets, scores from 0 to 5 for `stsb`, no `y` for a test set,
        whose labels are missing or -1.

    Raises:
        ValueError: Something is not as expected; the message names the file and the line.

    Example:

    ```python
    train, dev = (read_glue("mrpc", f"glue_data/MRPC/{part}.tsv") for part in ("train", "dev"))
    classifier = BertTextClassifier.from_preset("bert_base", class_names=train.class_names)
    classifier.fit(train.x, train.y, validation_data=(dev.x, dev.y))
    ```
    """
    if task not in GLUE:
        raise ValueError(f"`task` must be one of {list(GLUE)}. Received: task={task!r}")
    known = GLUE[task]
    if isinstance(source, (str, os.PathLike)):
        table = tsv_table(Path(source), known.header, known.label if known.broken_lines else None)
        texts, label = known.texts, known.label
    else:
        table = open_table(source)
        texts, label = known.hub_texts or known.texts, "label"
    read_label = class_reader(known.labels) if known.labels else _read_score
    labelled = labels and table.has(label)
    return text_columns(
        table.select(*texts, *[label] * labelled),
        pairs=len(texts) == 2,
        read_label=read_label if labelled else None,
        class_names=(known.class_names or known.labels) or None,
    )


def write_submission(directory: str | os.PathLike[str], name: str, predictions: Sequence[int] | np.ndarray) -> Path:
    """Write a submission to https://gluebenchmark.com, completely or not at all.

    Args:
        directory: Directory of the file, created if missing.
        name: File name without `.tsv`: `CoLA`, `SST-2`, `MRPC`, `STS-B`, `QQP`, `MNLI-m`, `MNLI-mm`, `QNLI`, `RTE`,
            `WNLI`, or `AX` for MNLI's classes on the diagnostic set.
        predictions: Class numbers, or scores for `STS-B`, one per line of the test set, in its order.

    Returns:
        The path of the file.

    Example:

    ```python
    test = read_glue("rte", "glue_data/RTE/test.tsv")
    write_submission("submission", "RTE", classifier.predict(test.x).argmax(-1))
    ```
    """
    check_local(directory=directory)
    if name not in SUBMISSIONS:
        raise ValueError(f"`name` must be one of {list(SUBMISSIONS)}. Received: name={name!r}")
    labels = GLUE[SUBMISSIONS[name]].labels
    values = np.asarray(predictions)
    if values.ndim != 1 or values.dtype.kind not in ("iu" if labels else "iuf"):
        kind = "class numbers" if labels else "scores"
        raise ValueError(
            f"`predictions` must be {kind} of the shape [examples]. "
            f"Received: predictions.shape={values.shape}, predictions.dtype={values.dtype}"
        )
    if labels:
        outside = values[(values < 0) | (values >= len(labels))]
        if len(outside):
            raise ValueError(f"`predictions` must be in [0, {len(labels)}). Received: predictions with {outside[0]}")
        written = [labels[number] for number in values.tolist()]
    else:
        if not np.isfinite(values).all():
            raise ValueError("`predictions` must be finite. Received: predictions with NaN or infinity")
        written = [f"{score:.3f}" for score in np.clip(values, 0, 5).tolist()]
    path = Path(directory) / f"{name}.tsv"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["index\tprediction", *(f"{index}\t{label}" for index, label in enumerate(written))]
    with replacing(path) as beside:
        beside.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    return path


def _read_score(place: str, value: Any) -> float | None:
    if is_withheld(value):
        return None
    try:
        score = float(value)
    except (TypeError, ValueError, OverflowError):
        score = float("nan")
    if not 0 <= score <= 5:
        raise ValueError(f"{place}: a score must be a number from 0 to 5. Received: {reprlib.repr(value)}")
    return score
