"""A user's own texts and labels."""

import math
import re
import reprlib
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_bert_zoo.data.columns import Columns, check_text, text_columns
from keras_bert_zoo.data.tables import Source, open_table

_INTEGER = re.compile(r"[+-]?\d{1,18}")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?")


def read_texts(
    source: Source, text: str | tuple[str, str] = "text", label: str | None = "label", numbers: bool = True
) -> Columns:
    """Read texts, or pairs, and their labels from a table.

    Labels of a TSV or CSV file are integers where every one looks like one, else floats where every one looks like
    one, else names. Where another file of the same labels may be typed otherwise, as `3+` is in one of them alone, ask
    for `numbers=False` of both: a 1 would be the second class, whatever its name. JSON says of itself what is what; a
    list of names a line is for `multi_label`.

    Args:
        source: A `.tsv` (no quoting), `.csv` (as in RFC 4180) or `.jsonl` file, the first two with a header, or a
            mapping of columns or a Hugging Face data set.
        text: The column of the text; a tuple of two for pairs.
        label: The column of the label; None reads texts only.
        numbers: False leaves the labels of TSV and CSV files as they are written, `007` too.

    Returns:
        `Columns`, without `class_names`: `fit` numbers names in sorted order.

    Raises:
        ValueError: Something is not as expected, with the file and the line.

    Example:

    ```python
    train = read_texts("tickets.csv", text="message", label="queue", numbers=False)
    classifier.fit(train.x, train.y)
    ```
    """
    columns, written = read_columns(source, text, label, _check_label)
    return columns._replace(y=_typed(columns.y)) if numbers and written and columns.y is not None else columns


def read_columns(
    source: Source,
    text: str | tuple[str, str],
    label: str | None,
    check: Callable[[str, Any, Any], None],
    numbers: bool = False,
) -> tuple[Columns, bool]:
    """Texts and labels as they are written, and whether that is how the file writes numbers, too.

    `check` is given the place of each label, the label, and what it means: with `numbers` one that looks like a number.
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


def _check_label(place: str, label: Any, _: Any) -> None:
    names = label if isinstance(label, list) else [label]
    known = all(isinstance(name, (str, int, float, np.integer)) for name in names) and label != ""
    if not known or any(isinstance(name, float) and not math.isfinite(name) for name in names):
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
