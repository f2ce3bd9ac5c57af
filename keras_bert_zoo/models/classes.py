"""Class names, class numbers and class weights, for all tasks that predict classes."""

import reprlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from keras_bert_zoo.checkpoints import Checkpoint
from keras_bert_zoo.checks import check_positive_int, python_number
from keras_bert_zoo.models.inputs import as_array, as_float32, check_range, unboxed
from keras_bert_zoo.text.texts import check_strings, is_list


class HasClasses:
    """Mixin for a task with `num_classes` classes, which may have names."""

    num_classes: int
    class_names: list[str] | None
    is_own: Any

    @contextmanager
    def undone_where_refused(self) -> Iterator[None]:
        names = self.class_names
        try:
            yield
        except ValueError:  # Forget names learned from rejected data.
            self.class_names = names
            raise

    def number_classes(self, y: Any, learn: bool = False) -> np.ndarray:
        """Convert names or numbers to int32 class numbers; with `learn`, the names become the class names."""
        given = as_array("y", y)
        labels = unboxed(given)
        if given.dtype == object:
            y = given.tolist()  # Rows of PyArrow or TensorFlow are no Python values.
        if not len(labels):
            return np.zeros(0, dtype="int32")
        if labels.dtype.kind in "OUST":
            # Check `y`: NumPy converts other values among names to names, such as the NaN of a missing label.
            if not all(isinstance(label, (str, bytes)) for label in y):
                kinds = sorted({type(label).__name__ for label in y})
                raise ValueError(f"`y` must hold integers or class names. Received: y with {' and '.join(kinds)}")
            return self._number_names([_text(label) for label in y], learn)
        if labels.dtype.kind not in "iub":
            is_missing = labels.dtype.kind == "f" and np.isnan(labels).any()  # As a data frame has it.
            received = f"y[{int(np.isnan(labels).argmax())}]=nan" if is_missing else f"y.dtype={labels.dtype}"
            raise ValueError(f"`y` must hold integers or class names. Received: {received}")
        check_range("y", labels, self.num_classes)
        return labels.astype("int32")

    def _number_names(self, labels: list[str], learn: bool) -> np.ndarray:
        names = self.class_names
        if names is None:
            names = sorted(set(labels))
            if not learn:
                raise ValueError(f"`y` must hold integers, as the classes have no names. Received: y with {names[0]!r}")
            if len(names) != self.num_classes:
                raise ValueError(
                    f"`y` must hold {self.num_classes} different names, or pass class_names. "
                    f"Received: {len(names)} names"
                )
        numbers = {name: i for i, name in enumerate(names)}
        unknown = next((label for label in labels if label not in numbers), None)
        if unknown is not None:
            raise ValueError(f"`y` must hold names of {names}. Received: y with {unknown!r}")
        self.class_names = names
        return np.array([numbers[label] for label in labels], dtype="int32")

    def class_weights(self, class_weight: dict[Any, float]) -> np.ndarray:
        """Return float32 weights `[num_classes]`, 1 for a class that is not given."""
        weights = np.ones(self.num_classes, dtype="float32")
        if not isinstance(class_weight, dict):
            raise ValueError(f"`class_weight` must be a dict. Received: class_weight={class_weight!r}")
        names, given = self.class_names or [], set()
        for key, weight in class_weight.items():
            number = names.index(key) if key in names else key
            if not isinstance(weight, (int, float, np.number)) or not np.isfinite(as_float32(weight)):
                raise ValueError(f"`class_weight` must hold finite numbers. Received: class_weight[{key!r}]={weight!r}")
            if not isinstance(number, (int, np.integer)) or not 0 <= number < self.num_classes:
                raise ValueError(f"`class_weight` must have classes as keys. Received: class_weight with {key!r}")
            if number in given:
                raise ValueError(f"`class_weight` must have each class once. Received: class_weight with {key!r} again")
            given.add(number)
            weights[number] = weight
        return weights

    @classmethod
    def head_arguments(cls, checkpoint: Checkpoint, arguments: dict[str, Any]) -> dict[str, Any]:
        # None, the constructor's default, leaves the value to the preset.
        unsaid = {name for name in ("num_classes", "class_names") if arguments.get(name) is None}
        arguments = {name: value for name, value in arguments.items() if name not in unsaid}
        names = arguments.get("class_names")
        if names is not None:
            _check_names(names)
        asked = arguments.get("num_classes", None if names is None else len(names))
        saved = dict(checkpoint.head) if cls.is_own(checkpoint) else {}
        if asked is None and not saved:
            raise ValueError(
                "`num_classes` or `class_names` must be given: the preset has no classification head. Received: neither"
            )
        if asked is not None and saved and asked != saved["num_classes"]:
            saved = {}  # Another head: the preset's is reported as unused.
        if "class_names" in arguments:
            saved.pop("num_classes", None)
        return {**saved, **arguments}

    def continues(self, checkpoint: Checkpoint) -> bool:
        names, several = checkpoint.head.get("class_names"), checkpoint.head.get("multi_label")
        if several is not None and several != getattr(self, "multi_label", False):
            return False
        return self.is_own(checkpoint) and (names is None or self.class_names is None or names == self.class_names)


def checked_classes(num_classes: int | None, class_names: Sequence[str] | None, fewest: int = 2) -> int:
    """Check the number of classes against the names, and return it."""
    if class_names is not None:
        _check_names(class_names)
        if num_classes not in (None, len(class_names)):
            raise ValueError(
                "`num_classes` must be the number of `class_names`. "
                f"Received: num_classes={num_classes}, {len(class_names)} class_names"
            )
        num_classes = len(class_names)
    num_classes = python_number(num_classes)  # `y.max() + 1`
    check_positive_int(num_classes=num_classes)
    assert num_classes is not None
    if num_classes < fewest:
        raise ValueError(f"`num_classes` must be at least {fewest}. Received: num_classes={num_classes}")
    return num_classes


def _check_names(class_names: Any) -> None:
    """Check that names are a list of different strings: a set or a dict does not keep the order of the logits."""
    if not is_list(class_names):
        raise ValueError(f"`class_names` must be a list of strings. Received: class_names={reprlib.repr(class_names)}")
    if not all(isinstance(name, str) for name in class_names) or len(set(class_names)) != len(class_names):
        raise ValueError(f"`class_names` must be different strings. Received: class_names={class_names}")
    check_strings(class_names, "class_names")  # Else no file could hold a prediction.


def _text(label: str | bytes) -> str:
    try:
        if isinstance(label, bytes):
            return label.decode("utf-8")
        label.encode()
        return str(label)
    except UnicodeError:
        raise ValueError(f"`y` must hold UTF-8 names. Received: {label[:20]!r}") from None
