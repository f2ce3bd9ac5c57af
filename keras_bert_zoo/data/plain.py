"""Read your own texts and labels."""

import math
import re
import reprlib
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_bert_zoo.data.columns import Columns, check_text, text_columns
from keras_bert_zoo.data.tables import Source, open_table

_INTEGER = re.compile(r"[+-]?\d{1,18}")
_NUMBER = re.compile(r"[+-]?(\d+(?:\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?")


def read_texts(
    source: Source, text: str | tuple[str, str] = "text", label: str | None = "label", numbers: bool = True
) -> Columns:
    """Read texts, or pairs, and their labels from a table.

    Labels of a TSV or CSV file are read as integers if all look like integers, else as floats if all look like numbers,
    else as names. If another file with the same labels could be typed differently, for example because only one of them
    contains `3+`, pass `numbers=False` for both: a 1 would otherwise be the second class, whatever its name. JSON
    values have their own types; a list of names per line is for `multi_label`.

    Args:
        source: A `.tsv` (no quoting), `.csv` (as in RFC 4180) or `.jsonl` file, the first two with a header, or a
            mapping of columns or a Hugging Face data set.
        text: Column of the text; a tuple of two for pairs.
        label: Column of the label; None reads only texts.
        numbers: False keeps the labels of TSV and CSV files as written, including `007`.

    Returns:
        `Columns`, without `class_names`: `fit` numbers names in sorted order.

    Raises:
        ValueError: Something is not as expected; the message names the file and the line.

    Example:

    ```python
    train = read_texts("tickets.csv", text="message", label="queue", numbers=False)
    classifier.fit(train.x, train.y)
    ```
    """
    columns, written = read_columns(source, text, label, _check_label, numbers)
    return columns._replace(y=_typed(columns.y)) if numbers and written and columns.y is not None else columns


def read_columns(
    source: Source,
    text: str | tuple[str, str],
    label: str | None,
    check: Callable[[str, Any, Any], None],
    numbers: bool = False,
) -> tuple[Columns, bool]:
    """Return texts and labels as written, and whether the file writes numbers as text.

    `check` is called with each label's place, the label as written, and its meaning. With `numbers`, a written label
    that looks like a number means that number.
    """
    texts = (text,) if isinstance(text, str) else tuple(text)
    if len(texts) not in (1, 2):
        raise ValueError(f"`text` must be a column or a tuple of two. Received: text={text!r}")
    table = open_table(source)
    rows = table.select(*texts, *([] if label is None else [label]))
    written = table.name.lower().endswith((".tsv", ".csv"))

    def read_label(place: str, value: Any) -> Any:
        check(place, value, _typed([value])[0] if numbers and written else value)
        return value

    return text_columns(rows, len(texts) == 2, None if label is None else read_label), written


def _check_label(place: str, label: Any, meaning: Any) -> None:
    names, meanings = (each if isinstance(each, list) else [each] for each in (label, meaning))
    known = all(isinstance(name, (str, int, float, np.integer)) for name in names) and label != ""
    if not known or any(isinstance(each, float) and not math.isfinite(each) for each in meanings):
        raise ValueError(
            f"{place}: a label must be a name, a number or a list of those. Received: {reprlib.repr(label)}"
        )
    for name in names:
        if isinstance(name, str):
            check_text(place, name, "a label")


def _typed(labels: list[str]) -> list[Any]:
    for pattern, kind in ((_INTEGER, int), (_NUMBER, float)):
        if all(pattern.fullmatch(label) for label in labels):
            return [kind(label) for label in labels]
    return labels
