"""Questions with any number of choices: each choice is a pair with its context, and batches hold whole questions."""

from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from keras_bert_zoo.text.packing import Arrays, PackedTexts, pack_texts
from keras_bert_zoo.text.texts import is_list, split_texts
from keras_bert_zoo.text.tokenizer import BertTokenizer


@dataclass(frozen=True)
class PackedChoices:
    """Tokenised questions, without padding.

    Attributes:
        pairs: One pair per choice, question by question.
        counts: int64 `[questions]`, choices of each.
    """

    pairs: PackedTexts
    counts: np.ndarray

    @cached_property
    def _starts(self) -> np.ndarray:
        return np.cumsum(self.counts) - self.counts

    @property
    def lengths(self) -> np.ndarray:
        """int64 `[questions]`, tokens of each question's longest choice."""
        return np.maximum.reduceat(self.pairs.lengths, self._starts) if len(self.counts) else self.counts

    def take(self, indices: np.ndarray, length: int) -> Arrays:
        """Return int32 `[len(indices), choices, length]`; `choices` is the largest number that any question has.

        The number is the same for all batches, as each number needs a program if shapes are compiled. Missing choices
        are all 0.
        """
        steps = np.arange(int(self.counts.max(initial=0)))
        there = steps < self.counts[indices, None]
        rows = np.where(there, self._starts[indices, None] + steps, 0)
        shape = (*rows.shape, length)
        batch = self.pairs.take(rows.ravel(), length)
        return {name: array.reshape(shape) * there[..., None].astype("int32") for name, array in batch.items()}


def pack_choices(tokenizer: BertTokenizer, x: Any, sequence_length: int) -> PackedChoices:
    """Tokenise contexts with each of their choices, and truncate each pair to `sequence_length` tokens.

    Raises:
        ValueError: `x` is not `(contexts, choices)`, or contains something that is not a string.
    """
    contexts, choices = _split_choices(x)
    counts = np.fromiter(map(len, choices), "int64", len(choices))
    first = list(chain.from_iterable([context] * len(row) for context, row in zip(contexts, choices, strict=True)))
    pairs = pack_texts(tokenizer, first, list(chain.from_iterable(choices)), sequence_length)
    return PackedChoices(pairs, counts)


def _split_choices(x: Any) -> tuple[list[str], list[list[str]]]:
    """Return the contexts, and a list of choices for each."""
    if not isinstance(x, tuple) or len(x) != 2 or not is_list(x[1]):
        parts = f" of {', '.join(type(part).__name__ for part in x)}" if isinstance(x, tuple) else ""
        raise ValueError(
            "`x` must be a tuple (contexts, choices): a list of strings, and a list of lists of strings. "
            f"Received: a {type(x).__name__}{parts}"
        )
    contexts, _ = split_texts(list(x[0]) if isinstance(x[0], tuple) else x[0], "x[0]")
    choices = []
    for i, row in enumerate(x[1]):
        if not is_list(row) or not len(row):
            received = type(row).__name__ if not is_list(row) else "none"
            raise ValueError(
                f"`x[1]` must hold one non-empty list of choices per question. Received: x[1][{i}] with {received}"
            )
        choices.append(split_texts(list(row), f"x[1][{i}]")[0])
    if len(contexts) != len(choices):
        raise ValueError(
            f"`x` must hold as many contexts as lists of choices. Received: {len(contexts)} and {len(choices)}"
        )
    return contexts, choices
