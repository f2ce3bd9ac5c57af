"""The scores of SQuAD's official evaluations (evaluate-v1.1.py, evaluate-v2.0.py), as percentages."""

import re
import reprlib
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import isnan
from typing import Any

import numpy as np

from keras_bert_zoo.checks import NotANumberError

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Normalise an answer for comparison: lower case, no ASCII punctuation or articles, single spaces between words.

    Punctuation is removed before articles, so that "a." is an article. It leaves no space: "U.S." becomes "us".

    Args:
        text: An answer.

    Returns:
        The normalised answer, `""` if nothing is left.
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def squad_v1_scores(answers: Sequence[Sequence[Any]], predictions: Sequence[str]) -> dict[str, float]:
    """Return `exact_match` and `f1` as computed by evaluate-v1.1.py.

    Args:
        answers: For each question the correct answers: strings, `Answer`s from `keras_bert_zoo.data.read_squad`, or
            pairs of a text and its start, as in `fit`.
        predictions: For each question a text.

    Example:

    ```python
    squad_v1_scores(dev.answers, [predictions[name] for name in dev.id])
    ```
    """
    _check_predictions(answers, predictions)
    right = answer_texts(answers)
    none = next((i for i, texts in enumerate(right) if not texts), None)
    if none is not None:
        raise ValueError(f"`answers` must hold an answer for each question of SQuAD 1.1. Received: answers[{none}]=[]")
    pairs = list(zip(right, predictions, strict=True))
    exact = [max(_exact(text, guess) for text in texts) for texts, guess in pairs]
    # If both sides are empty after normalisation they match, but evaluate-v1.1.py gives an F1 of 0.
    f1 = [max(_f1(text, guess, both_empty=0.0) for text in texts) for texts, guess in pairs]
    return {"exact_match": _percent(exact), "f1": _percent(f1)}


def squad_v2_scores(
    answers: Sequence[Sequence[Any]],
    predictions: Sequence[str],
    null_odds: Sequence[float] | np.ndarray | None = None,
    threshold: float = 0.0,
) -> dict[str, float]:
    """Return the scores of evaluate-v2.0.py under its names.

    These are `exact`, `f1` and `total`, the same with the prefixes `HasAns_` and `NoAns_` for the questions with and
    without an answer, and, with `null_odds`, `best_exact` and `best_f1` with their thresholds, `best_exact_thresh` and
    `best_f1_thresh`.

    Args:
        answers: For each question the correct answers, strings or `Answer`s; none if it has no answer.
        predictions: For each question a text; `""` means no answer. With `null_odds` it should be the best text, even
            where it is more likely that there is no answer, because no threshold can turn `""` into a text.
        null_odds: For each question a number that increases with the likelihood of no answer, such as the score of no
            answer minus the best answer's.
        threshold: A question whose `null_odds` exceed it has no answer, whatever its text.
    """
    _check_predictions(answers, predictions)
    right = answer_texts(answers)
    has_answer = np.array([len(texts) > 0 for texts in right])
    # Answers that are empty after normalisation count only if there are no others.
    right = [[text for text in texts if normalize_answer(text)] or [""] for texts in right]
    pairs = list(zip(right, predictions, strict=True))
    measures: dict[str, Callable[[str, str], float]] = {"exact": _exact, "f1": _f1}
    raw = {
        name: np.array([max(measure(text, guess) for text in texts) for texts, guess in pairs])
        for name, measure in measures.items()
    }
    if isnan(threshold):
        raise ValueError("`threshold` must be a number. Received: threshold=nan")
    if isinstance(null_odds, Mapping):
        raise ValueError(f"`null_odds` must be a list of numbers. Received: a {type(null_odds).__name__}")
    odds = np.full(len(pairs), -np.inf) if null_odds is None else np.asarray(null_odds, dtype="float64")
    if odds.shape != (len(pairs),):
        raise ValueError(
            f"`null_odds` must be numbers of the shape ({len(pairs)},). Received: null_odds.shape={odds.shape}"
        )
    if np.isnan(odds).any():
        raise NotANumberError(f"`null_odds` must hold numbers. Received: null_odds[{np.isnan(odds).argmax()}]=nan")
    kept = {name: np.where(odds > threshold, ~has_answer, scores) for name, scores in raw.items()}
    result: dict[str, float] = {}
    everything = np.ones_like(has_answer)
    for prefix, rows in (("", everything), ("HasAns_", has_answer), ("NoAns_", ~has_answer)):
        if rows.any():
            result |= {f"{prefix}{name}": _percent(scores[rows]) for name, scores in kept.items()}
            result[f"{prefix}total"] = int(rows.sum())
    if null_odds is not None:
        answered = np.array([guess != "" for guess in predictions])
        for name, scores in raw.items():
            result[f"best_{name}"], result[f"best_{name}_thresh"] = _best(scores, has_answer, answered, odds)
    return result


def _best(scores: np.ndarray, has_answer: np.ndarray, answered: np.ndarray, odds: np.ndarray) -> tuple[float, float]:
    """Return the best score of the official sweep over thresholds, in percent, and its threshold.

    At first every question is given no answer; then each one gets its text, the most certain first. A question with an
    answer gains the score of its text. A question without one loses its point if its text is not empty. No threshold
    separates equal odds: a best score that lies between two of them is out of reach.
    """
    order = np.argsort(odds, kind="stable")
    gains = np.where(has_answer, scores, -1.0 * answered)[order]
    totals = np.cumsum(np.r_[float((~has_answer).sum()), gains])  # In the official order: rounding decides ties.
    best = int(totals.argmax())
    # The official threshold for giving no answers is 0, which is right only for probabilities.
    lowest = float(odds[order[0]])
    nothing = 0.0 if lowest > 0 else float(np.nextafter(lowest, -np.inf))
    return 100 * float(totals[best]) / len(scores), nothing if best == 0 else float(odds[order[best - 1]])


def answer_texts(answers: Sequence[Sequence[Any]]) -> list[list[str]]:
    """Return the correct answers of each question as strings."""
    for i, own in enumerate(answers):
        if not (isinstance(own, (list, tuple, np.ndarray)) and all(map(_is_answer, own))):
            raise ValueError(
                "`answers` must hold for each question a list of correct answers, each a text or "
                f"(text, start). Received: answers[{i}]={reprlib.repr(own)}"
            )
    return [[answer if isinstance(answer, str) else answer[0] for answer in own] for own in answers]


def _is_answer(answer: Any) -> bool:
    return isinstance(answer, str) or (
        isinstance(answer, (list, tuple)) and len(answer) > 0 and isinstance(answer[0], str)
    )


def _check_predictions(answers: Sequence[Sequence[Any]], predictions: Sequence[str]) -> None:
    for name, given in (("answers", answers), ("predictions", predictions)):
        if isinstance(given, Mapping):  # The official programs take a dict, by the questions' ids.
            raise ValueError(f"`{name}` must be a list, one for each question. Received: a {type(given).__name__}")
    if len(answers) != len(predictions) or len(answers) == 0:
        raise ValueError(
            "`answers` and `predictions` must be equal in number and not empty. "
            f"Received: {len(answers)} and {len(predictions)}"
        )
    wrong = next((i for i, guess in enumerate(predictions) if not isinstance(guess, str)), None)
    if wrong is not None:
        raise ValueError(f"`predictions` must hold strings. Received: predictions[{wrong}]={predictions[wrong]!r}")


def _exact(answer: str, prediction: str) -> float:
    return float(normalize_answer(answer) == normalize_answer(prediction))


def _f1(answer: str, prediction: str, both_empty: float = 1.0) -> float:
    """Compute F1 over words, counting each common word as often as it occurs in both."""
    right, guess = normalize_answer(answer).split(), normalize_answer(prediction).split()
    if not right and not guess:
        return both_empty
    common = (Counter(right) & Counter(guess)).total()
    return 2 * common / (len(right) + len(guess))


def _percent(scores: Any) -> float:
    return 100 * float(np.mean(scores))
