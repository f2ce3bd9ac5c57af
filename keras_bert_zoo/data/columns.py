"""The result of readers: plain Python columns in the form that `fit` takes."""

import reprlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_bert_zoo.data.tables import Row


class Columns(NamedTuple):
    """The examples of a file, in its order.

    Attributes:
        x: A list of strings; for pairs a tuple of two such lists; for multiple choice a tuple of such a list and a list
            of each example's choices, a list of strings.
        y: A list of class numbers, of floats for regression, or of names if the classes have no order yet; None if the
            file has no labels.
        class_names: Names of the classes in the order of their numbers, or None.
    """

    x: list[str] | tuple[list[str], list[str]] | tuple[list[str], list[list[str]]]
    y: list[Any] | None
    class_names: list[str] | None = None


def text_columns(
    rows: Iterable[Row],
    pairs: bool,
    read_label: Callable[[str, Any], Any] | None,
    class_names: Sequence[str] | None = None,
) -> Columns:
    """Collect rows of one or two texts and, with `read_label`, a label; it returns None for a withheld label."""
    first: list[str] = []
    second: list[str] = []
    labels = Labels()
    for place, values in rows:
        for text in values[: 2 if pairs else 1]:
            check_text(place, text)
        first.append(values[0])
        if pairs:
            second.append(values[1])
        if read_label is not None:
            labels.add(place, read_label(place, values[-1]))
    return Columns(
        (first, second) if pairs else first,
        None if read_label is None else labels.column(),
        None if class_names is None else list(class_names),
    )


def class_reader(*spellings: Sequence[str]) -> Callable[[str, Any], int | None]:
    """Return a function of `(place, label)` that returns the class number, or None if the label is withheld.

    Args:
        *spellings: The labels in the order of the classes, once for each spelling. Class numbers are also accepted.
    """
    numbers: dict[Any, int] = {}
    for labels in (*spellings, range(len(spellings[0]))):
        numbers |= {label: number for number, label in enumerate(labels)}

    def read_label(place: str, label: Any) -> int | None:
        if is_withheld(label):
            return None
        is_label = isinstance(label, (str, int, np.integer)) and not isinstance(label, bool)  # Which equals 0 or 1.
        number = numbers.get(label) if is_label else None
        if number is None:
            raise ValueError(f"{place}: a label must be one of {list(spellings[0])}. Received: {reprlib.repr(label)}")
        return number

    return read_label


class Labels:
    """A column of labels while it is read; a test set withholds either all of its labels or none."""

    def __init__(self) -> None:
        self._labels: list[Any] = []
        self._withheld = ""  # Place of the first withheld label.

    def add(self, place: str, label: Any) -> None:
        """Add the label found at a place; None if it is withheld."""
        self._labels.append(label)
        if label is None:
            self._withheld = self._withheld or place

    def column(self) -> list[Any] | None:
        """Return the labels, or None if they are withheld; raise an error if only some are."""
        if self._withheld and any(label is not None for label in self._labels):
            raise ValueError(f"{self._withheld} must have a label, because other rows have one. Received: -1")
        return None if self._withheld else self._labels


def is_withheld(label: Any) -> bool:
    """Whether this is -1, which Hugging Face's data sets use for a test set's withheld labels, also written as text."""
    if isinstance(label, str):
        return label in ("-1", "-1.0")
    return isinstance(label, (int, float, np.number)) and bool(label == -1)


def check_text(place: str, text: Any, name: str = "a text") -> None:
    """Refuse values that are not strings, and lone surrogates, which JSON can escape but UTF-8 cannot encode."""
    if not isinstance(text, str):
        raise ValueError(f"{place}: {name} must be a string. Received: {reprlib.repr(text)}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{place}: {name} must be valid Unicode. Received: half a surrogate pair at character {error.start}"
        ) from None
