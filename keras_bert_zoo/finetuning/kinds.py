"""The kinds of tasks: each has its model and head, its predictions, and how these are scored and written."""

import json
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate, chain
from typing import Any, ClassVar, NamedTuple

import numpy as np

from keras_bert_zoo.checks import check_logits, listed
from keras_bert_zoo.metrics import entity_scores, squad_v1_scores, squad_v2_scores
from keras_bert_zoo.metrics.spans import find_entities
from keras_bert_zoo.models import (
    BertMultipleChoice,
    BertQuestionAnswerer,
    BertTextClassifier,
    BertTextRegressor,
    BertTokenClassifier,
)
from keras_bert_zoo.probabilities import softmax
from keras_bert_zoo.text.answers import texts_and_odds

Scores = dict[str, float]
Measure = Callable[[Any, Any], Mapping[str, float]]
"""Function from labels and predictions to scores by name."""


class Data(NamedTuple):
    """The examples of a file.

    Attributes:
        x: Inputs for `fit`.
        y: Targets for `fit`, with classes by name. None if the file has no labels.
        size: Number of examples: texts, sentences of words, questions.
        class_names: The task's classes in the order of their numbers, if they have an order.
        ids: Ids of SQuAD's questions.
    """

    x: Any
    y: Any
    size: int
    class_names: list[str] | None = None
    ids: list[str] | None = None

    def digest(self) -> str:
        """Return a checksum that identifies these examples."""
        return sha256(json.dumps([self.x, self.y]).encode()).hexdigest()


class Kind(ABC):
    """A kind of task. Subclasses override what differs."""

    model_class: ClassVar[Any]
    fields: int | None
    """Number of tab-separated texts in each line given to `predict`; None stands for three or more."""

    def head(self, train: Data) -> dict[str, Any]:
        """Return the arguments of `from_preset` for a head to be trained on this data."""
        return {}

    def first(self, data: Data, count: int) -> Data:
        """Return the first `count` examples."""
        x = tuple(column[:count] for column in data.x) if isinstance(data.x, tuple) else data.x[:count]
        ids = None if data.ids is None else data.ids[:count]
        return data._replace(x=x, y=data.y[:count], size=min(count, data.size), ids=ids)

    def predict(self, model: Any, data: Data, verbose: Any = 0) -> Any:
        """Return the model's predictions, as the methods below take them; `verbose` is as in Keras."""
        return model.predict(data.x, verbose=verbose)

    def tune(self, model: Any, data: Data, predictions: Any) -> None:  # noqa: B027 (most kinds have nothing)
        """Set values that come from the dev data rather than from training."""

    @abstractmethod
    def score(self, model: Any, data: Data, predictions: Any) -> Scores:
        """Return the official scores."""

    @abstractmethod
    def records(self, model: Any, data: Data, predictions: Any) -> Iterator[dict[str, Any]]:
        """Yield a JSON object per example."""


@dataclass(frozen=True)
class Classes(Kind):
    """One class for each text or pair."""

    measure: Measure
    fields: int | None
    model_class = BertTextClassifier

    def head(self, train: Data) -> dict[str, Any]:
        return {"class_names": train.class_names or sorted(set(train.y))}

    def predict(self, model: Any, data: Data, verbose: Any = 0) -> np.ndarray:
        """Return logits, with the classes in the data's order if it has one."""
        names = _classes(model, data)
        known = frozenset(names)
        unknown = next((name for name in data.y or () if name not in known), None)
        if unknown is not None:
            raise ValueError(
                f"The labels must be among the preset's classes, {listed(names)}. Received: {reprlib.repr(unknown)}"
            )
        logits, theirs = super().predict(model, data, verbose), model.class_names or names
        return logits if theirs == names else logits[:, [theirs.index(name) for name in names]]

    def score(self, model: Any, data: Data, predictions: np.ndarray) -> Scores:
        numbers = {name: number for number, name in enumerate(_classes(model, data))}
        return dict(self.measure([numbers[name] for name in data.y], predictions))

    def records(self, model: Any, data: Data, predictions: np.ndarray) -> Iterator[dict[str, Any]]:
        names = _classes(model, data)
        for logits, row in zip(predictions, softmax(predictions), strict=True):
            yield {
                "label": names[int(logits.argmax())],  # Nearly equal logits may have equal probabilities.
                "probabilities": dict(zip(names, map(float, row), strict=True)),
            }


@dataclass(frozen=True)
class Numbers(Kind):
    """One number for each text or pair."""

    measure: Measure
    fields: int | None
    model_class = BertTextRegressor

    def score(self, model: Any, data: Data, predictions: np.ndarray) -> Scores:
        return dict(self.measure(data.y, predictions))

    def records(self, model: Any, data: Data, predictions: np.ndarray) -> Iterator[dict[str, Any]]:
        return ({"value": float(number)} for number in predictions)


@dataclass(frozen=True)
class Tags(Kind):
    """One tag for each word; `predict` gives tags for words, and entities for texts."""

    fields: int | None = 1
    model_class = BertTokenClassifier

    def head(self, train: Data) -> dict[str, Any]:
        labels = {label for tags in chain.from_iterable(train.y) for label, _, _ in find_entities(tags)}
        return {"class_names": ["O", *(f"{prefix}-{label}" for label in sorted(labels) for prefix in "BI")]}

    def first(self, data: Data, count: int) -> Data:
        """Return the first `count` sentences, which are grouped in documents."""
        places = [
            count - end + len(document) for document, end in zip(data.x, accumulate(map(len, data.x)), strict=True)
        ]
        x, y = (
            [document[:place] for document, place in zip(column, places, strict=True) if place > 0]
            for column in (data.x, data.y)
        )
        return data._replace(x=x, y=y, size=min(count, data.size))

    def predict(self, model: Any, data: Data, verbose: Any = 0) -> Any:
        if isinstance(data.x[0], str):
            return model.tag(data.x, verbose=verbose)
        names = model.class_names
        if names is None:
            raise ValueError(
                "`preset` must have names for its classes, such as O, B-PER, I-PER. Received: one without names"
            )
        sentences = list(chain.from_iterable(super().predict(model, data, verbose)))
        for logits in sentences:
            check_logits(logits)
        return [[names[i] for i in logits.argmax(-1)] for logits in sentences]

    def score(self, model: Any, data: Data, predictions: Any) -> Scores:
        return entity_scores(list(chain.from_iterable(data.y)), predictions)

    def records(self, model: Any, data: Data, predictions: Any) -> Iterator[dict[str, Any]]:
        if isinstance(data.x[0], str):
            yield from ({"entities": [entity._asdict() for entity in entities]} for entities in predictions)
        else:
            for words, tags in zip(chain.from_iterable(data.x), predictions, strict=True):
                yield {"words": words, "tags": tags}


@dataclass(frozen=True)
class Answers(Kind):
    """A span of a context, or no answer if `impossible` (SQuAD 2.0)."""

    impossible: bool
    fields: int | None = 2
    model_class = BertQuestionAnswerer

    def head(self, train: Data) -> dict[str, Any]:
        return {"null_threshold": 0.0 if self.impossible else None}

    def predict(self, model: Any, data: Data, verbose: Any = 0) -> Any:
        if self.impossible != (model.null_threshold is not None):  # The preset is of the other SQuAD version.
            model.null_threshold = 0.0 if self.impossible else None
        return model.find_answers(data.x, verbose=verbose)

    def tune(self, model: Any, data: Data, predictions: Any) -> None:
        if self.impossible:
            model.null_threshold = squad_v2_scores(data.y, *texts_and_odds(predictions))["best_f1_thresh"]

    def score(self, model: Any, data: Data, predictions: Any) -> Scores:
        texts, odds = texts_and_odds(predictions)
        if not self.impossible:
            return squad_v1_scores(data.y, texts)
        return squad_v2_scores(data.y, texts, odds, model.null_threshold)

    def records(self, model: Any, data: Data, predictions: Any) -> Iterator[dict[str, Any]]:
        for found in predictions:
            best = found.best(model.null_threshold)
            yield {
                "answer": best.text,
                "start": best.start,
                "end": best.end,
                "probability": best.probability,
                "null_odds": found.null_odds,
            }


@dataclass(frozen=True)
class Choices(Kind):
    """One of several texts."""

    measure: Measure
    fields: int | None = None
    model_class = BertMultipleChoice

    def score(self, model: Any, data: Data, predictions: np.ndarray) -> Scores:
        return dict(self.measure(data.y, predictions))

    def records(self, model: Any, data: Data, predictions: np.ndarray) -> Iterator[dict[str, Any]]:
        for logits, row, choices in zip(predictions, softmax(predictions), data.x[1], strict=True):
            yield {"choice": int(logits.argmax()), "probabilities": row[: len(choices)].tolist()}


def _classes(model: Any, data: Data) -> list[str]:
    """Return the names of the classes, in the data's order if it has one."""
    if getattr(model, "multi_label", False):
        raise ValueError("`preset` must have one class for a text. Received: one with several at once (multi_label)")
    theirs = model.class_names or [str(i) for i in range(model.num_classes)]
    ours = data.class_names
    if ours is None:
        return theirs
    if len(ours) != len(theirs) or (model.class_names and sorted(ours) != sorted(theirs)):
        raise ValueError(f"`preset` must have the classes {ours}. Received: one with {theirs}")
    # Two classes have the same numbers everywhere; MNLI's three do not (run_classifier.py begins with contradiction).
    if len(ours) > 2 and not model.class_names and ours != theirs:
        raise ValueError(
            f"`preset` must have the names {ours} for its classes, in its own order: "
            "BertTextClassifier.from_preset(preset, class_names=[...]).save_to_preset(path) adds them. "
            f"Received: one with {theirs}"
        )
    return ours
