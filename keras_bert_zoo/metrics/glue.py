"""The scores of GLUE's leaderboard (Wang et al. 2019, table 1), as fractions of 1.

They equal those of scikit-learn's `accuracy_score`, `f1_score` and `matthews_corrcoef` and of scipy's `pearsonr` and
`spearmanr`, which the leaderboard computes.
"""

import reprlib
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_bert_zoo.checks import NotANumberError


def accuracy(labels: Any, predictions: Any) -> float:
    """Return the fraction of correct classes.

    Args:
        labels: Class numbers `[examples]`.
        predictions: Class numbers `[examples]`, or logits `[examples, classes]` as from `predict`.
    """
    truth, guess = _classes(labels, predictions)
    return float(np.mean(truth == guess))


def f1(labels: Any, predictions: Any) -> float:
    """Return the F1 score of class 1 of two classes; 0 if neither labels nor predictions contain it.

    Args:
        labels: Class numbers `[examples]`, 0 or 1.
        predictions: The same, or logits `[examples, 2]`.
    """
    truth, guess = _classes(labels, predictions)
    highest = max(truth.max(), guess.max())
    if highest > 1:
        raise ValueError(f"`labels` and `predictions` must be 0 or 1 for F1. Received: {highest}")
    both = int(truth.sum() + guess.sum())
    return 2 * int((truth & guess).sum()) / both if both else 0.0


def matthews(labels: Any, predictions: Any) -> float:
    """Return Matthews' correlation coefficient, for any number of classes; 0 if one side has a single class.

    Args:
        labels: Class numbers `[examples]`.
        predictions: Class numbers `[examples]`, or logits `[examples, classes]`.
    """
    truth, guess = _classes(labels, predictions)
    size = int(max(truth.max(), guess.max())) + 1
    # Gorodkin 2004, "Comparing two K-category assignments by a K-category correlation coefficient".
    true, guessed = np.bincount(truth, minlength=size), np.bincount(guess, minlength=size)
    count = len(truth)
    spread = float(count**2 - guessed @ guessed) * float(count**2 - true @ true)
    return float(int((truth == guess).sum()) * count - guessed @ true) / spread**0.5 if spread else 0.0


def pearson(labels: Any, predictions: Any) -> float:
    """Return the linear correlation; NaN if one side is constant.

    Args:
        labels: Numbers `[examples]`.
        predictions: Numbers `[examples]`, or `[examples, 1]`.
    """
    return _correlation(*_numbers(labels, predictions))


def spearman(labels: Any, predictions: Any) -> float:
    """Return the rank correlation, with mean ranks for equal numbers; NaN if one side is constant or contains NaN.

    Args:
        labels: Numbers `[examples]`.
        predictions: Numbers `[examples]`, or `[examples, 1]`.
    """
    return _correlation(*map(_ranks, _numbers(labels, predictions)))


GLUE_METRICS: dict[str, tuple[Callable[[Any, Any], float], ...]] = {
    "cola": (matthews,),
    "sst2": (accuracy,),
    "mrpc": (accuracy, f1),
    "stsb": (pearson, spearman),
    "qqp": (accuracy, f1),
    "mnli": (accuracy,),
    "qnli": (accuracy,),
    "rte": (accuracy,),
    "wnli": (accuracy,),
}


def glue_scores(task: str, labels: Any, predictions: Any) -> dict[str, float]:
    """Return the leaderboard's scores of a task by name.

    Args:
        task: One of `cola`, `sst2`, `mrpc`, `stsb`, `qqp`, `mnli`, `qnli`, `rte`, `wnli`.
        labels: Labels as from `keras_bert_zoo.data.read_glue`.
        predictions: Predictions as from `predict`, or class numbers.

    Example:

    ```python
    glue_scores("mrpc", dev.y, classifier.predict(dev.x))       # {"accuracy": 0.87, "f1": 0.91}
    ```
    """
    if task not in GLUE_METRICS:
        raise ValueError(f"`task` must be one of {list(GLUE_METRICS)}. Received: task={task!r}")
    return {metric.__name__: metric(labels, predictions) for metric in GLUE_METRICS[task]}


def _classes(labels: Any, predictions: Any) -> tuple[np.ndarray, np.ndarray]:
    truth, guess = np.asarray(labels), np.asarray(predictions)
    if guess.ndim == 2 and guess.shape[1] > 1:
        if guess.dtype.kind in "fV":  # "V" is bfloat16.
            _check_numbers(guess)
        guess = guess.argmax(-1)
    for name, values in (("labels", truth), ("predictions", guess)):
        if values.dtype.kind not in "iub" or values.ndim != 1 or values.min(initial=0) < 0:
            raise ValueError(
                f"`{name}` must be class numbers [examples]. "
                f"Received: {name}.shape={values.shape}, {name}.dtype={values.dtype}"
            )
    _check_counts(truth, guess)
    return truth.astype("int64"), guess.astype("int64")


def _numbers(labels: Any, predictions: Any) -> tuple[np.ndarray, np.ndarray]:
    truth, guess = np.asarray(labels), np.asarray(predictions)
    if guess.ndim == 2 and guess.shape[1] == 1:
        guess = guess[:, 0]
    for name, values in (("labels", truth), ("predictions", guess)):
        if values.dtype.kind not in "iuf" or values.ndim != 1:
            raise ValueError(
                f"`{name}` must be numbers [examples]. "
                f"Received: {name}.shape={values.shape}, {name}.dtype={values.dtype}"
            )
    _check_counts(truth, guess)
    return truth.astype("float64"), guess.astype("float64")


def _check_numbers(logits: np.ndarray) -> None:
    """Refuse NaN: the argmax of NaNs would be the first class."""
    wrong = np.flatnonzero(np.isnan(logits).any(-1))
    if len(wrong):
        received = reprlib.repr(logits[wrong[0]].tolist())
        raise NotANumberError(f"`predictions` must hold numbers. Received: predictions[{wrong[0]}]={received}")


def _check_counts(labels: np.ndarray, predictions: np.ndarray) -> None:
    if len(labels) != len(predictions) or len(labels) == 0:
        raise ValueError(
            "`labels` and `predictions` must be equal in number and not empty. "
            f"Received: {len(labels)} labels, {len(predictions)} predictions"
        )


def _correlation(first: np.ndarray, second: np.ndarray) -> float:
    return float(np.clip(_direction(first) @ _direction(second), -1, 1))


def _direction(values: np.ndarray) -> np.ndarray:
    """Return the deviations from the mean as a vector of length 1; NaN if all are 0."""
    if (values == values[0]).all():  # As in scipy: the mean of equal numbers is rounded, and may differ from them.
        return np.full(len(values), np.nan)
    deviations = values - values.mean()
    deviations /= np.abs(deviations).max()  # Otherwise squares of tiny numbers underflow to 0.
    return deviations / np.linalg.norm(deviations)


def _ranks(values: np.ndarray) -> np.ndarray:
    if np.isnan(values).any():  # NaN has no rank, and leaves the ranks of the others undefined.
        return np.full(len(values), np.nan)
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[places]
