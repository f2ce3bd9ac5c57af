"""Read official files, your own tables, and plain lines as `Data`."""

import os
import reprlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from keras_bert_zoo.checks import listed
from keras_bert_zoo.data import Columns, read_conll, read_squad
from keras_bert_zoo.data.columns import check_text
from keras_bert_zoo.data.plain import read_columns
from keras_bert_zoo.finetuning.kinds import Data

# Of the numbers that a model's targets can be.
_GREATEST = float(np.finfo("float32").max)

Source = str | os.PathLike[str]
Reader = Callable[..., Data]
"""Function of a file and the options of its task."""


def columns_reader(read: Callable[..., Columns]) -> Reader:
    """Make a reader from one of `keras_bert_zoo.data` that returns `Columns`; class numbers become names."""

    def read_data(path: Source, **options: Any) -> Data:
        columns = read(path, **options)
        y, names = columns.y, columns.class_names
        if y is not None and names is not None:
            y = [names[number] for number in y]
        return _data(columns.x, y, names)

    return read_data


def own_reader(convert: Callable[[Any], Any], check: Callable[[str, Any, Any], None]) -> Reader:
    """Make a reader of your own tables; their labels are checked as in `read_columns` and then converted."""

    def read_data(
        path: Source,
        text: Sequence[str] = ("text",),
        label: str | None = "label",
        class_names: Sequence[str] | None = None,
    ) -> Data:
        known = None if class_names is None else frozenset(class_names)

        def check_known(place: str, written: Any, number: Any) -> None:
            check(place, written, number)
            if known is not None and class_names is not None and convert(written) not in known:
                raise ValueError(
                    f"{place}: a label must be one of {listed(class_names)}. Received: {reprlib.repr(written)}"
                )

        own_text: Any = text[0] if len(text) == 1 else tuple(text)
        # Names stay as written: if all labels of one file look like numbers, those of another file may not.
        columns, _ = read_columns(path, own_text, label, check_known, numbers=convert is not str)
        y = None if columns.y is None else [convert(label) for label in columns.y]
        return _data(columns.x, y)

    return read_data


def check_name(place: str, label: Any, _: Any) -> None:
    if not isinstance(label, (str, int)) or isinstance(label, bool) or label == "":
        expected = "a name or an integer; for numbers use the task `numbers`"
        raise ValueError(f"{place}: a label must be {expected}. Received: {reprlib.repr(label)}")
    check_text(place, str(label), "a label")


def check_number(place: str, label: Any, number: Any) -> None:
    is_number = isinstance(number, (int, float)) and not isinstance(number, bool)  # Which equals 0 or 1.
    if not is_number or not abs(number) <= _GREATEST:
        raise ValueError(f"{place}: a label must be a number. Received: {reprlib.repr(label)}")


def read_documents(path: Source, labels: bool = True, class_names: Sequence[str] | None = None) -> Data:
    """Read documents of tagged sentences, so that a sentence sees its document (Devlin et al. 2019, section 5.3)."""
    sentences = read_conll(path, labels, class_names)
    x, y = sentences.by_document()
    return Data(x, y if labels else None, len(sentences.words))


def read_questions(path: Source, labels: bool = True) -> Data:
    """Read questions, contexts and answers, of which there may be none (SQuAD 2.0)."""
    columns = read_squad(path, labels)
    x = (columns.question, columns.context)
    return Data(x, columns.answers if labels else None, len(columns.id), ids=columns.id)


def read_answered(path: Source, labels: bool = True) -> Data:
    """Read questions as `read_questions` does, but require an answer to each (SQuAD 1.1)."""
    data = read_questions(path, labels)
    for name, answers in zip(data.ids or (), data.y or (), strict=labels):
        if not answers:
            raise ValueError(
                f"{path}, question {reprlib.repr(name)} must have an answer, as the task is squad and not squad2. "
                "Received: none"
            )
    return data


def from_lines(lines: Iterable[tuple[str, str]], fields: int | None, tabs: bool = True) -> Data:
    """Split lines, given with their places, into `fields` tab-separated texts; None stands for three or more.

    A single text may contain tabs, unless `tabs` is False: the line could then be a pair that was not announced.
    """
    rows = []
    for place, line in lines:
        row = [line] if fields == 1 and tabs else line.split("\t")
        if not all(row[1:]) or not (len(row) == fields or (fields is None and len(row) > 2)):
            expected = {
                None: "a text and, after tabs, its choices",
                1: "one text, without tabs (--text a b is for pairs)",
                2: "two texts with a tab between them",
            }[fields]
            raise ValueError(f"{place} must hold {expected}. Received: {line[:80]!r}")
        rows.append(row)
    first = [row[0] for row in rows]
    if fields == 1:
        return Data(first, None, len(rows))
    second: list[Any] = [row[1:] if fields is None else row[1] for row in rows]
    return Data((first, second), None, len(rows))


def _data(x: Any, y: Any, names: list[str] | None = None) -> Data:
    return Data(x, y, len(x[0]) if isinstance(x, tuple) else len(x), names)
