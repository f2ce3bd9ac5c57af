"""Questions with any number of choices: each choice is a pair with its context, and batches hold whole questions."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from keras_bert_zoo.text.packing import Arrays, PackedTexts, pack_texts
from keras_bert_zoo.text.texts import split_texts
from keras_bert_zoo.text.tokenizer import BertTokenizer


@dataclass(frozen=True)
class PackedChoices:
    """Tokenised questions, without padding.

    Attributes:
        pairs: A pair a choice, question after question.
        counts: int64 `[questions]`, choices each.
    """

    pairs: PackedTexts
    counts: np.ndarray

    @cached_property
    def _starts(self) -> np.ndarray:
        return np.cumsum(self.counts) - self.counts

    @property
    def lengths(self) -> np.ndarray:
        """int64 `[questions]`, tokens of the longest choice each."""
        return np.maximum.reduceat(self.pairs.lengths, self._starts) if len(self.counts) else self.counts

    def take(self, indices: np.ndarray, length: int) -> Arrays:
        """int32 `[len(indices), choices, length]`, as many choices as any question of all has.

        One number for all batches: each number is another program where shapes compile. Of a choice that is not there
        all is 0.
        """
        steps = np.arange(int(self.counts.max(initial=0)))
        there = steps < self.counts[indices, None]
        rows = np.where(there, self._starts[indices, None] + steps, 0)
        shape = (*rows.shape, length)
        batch = self.pairs.take(rows.ravel(), length)
        return {name: array.reshape(shape) * there[..., None].astype("int32") for name, array in batch.items()}


def pack_choices(tokenizer: BertTokenizer, x: Any, sequence_length: int) -> PackedChoices:
    """Tokenise contexts with each of their choices, and cut each pair to `sequence_length` tokens.

    Raises:
        ValueError: `x` is no `(contexts, choices)`, or holds something that is not a string.
    """
    contexts, choices = split_choices(x)
    counts = np.fromiter(map(len, choices), "int64", len(choices))
    first = list(chain.from_iterable([context] * len(row) for context, row in zip(contexts, choices, strict=True)))
    pairs = pack_texts(tokenizer, first, list(chain.from_iterable(choices)), sequence_length)
    return PackedChoices(pairs, counts)


def split_choices(x: Any) -> tuple[list[str], list[list[str]]]:
    """The contexts, and a list of choices for each."""
    if not isinstance(x, tuple) or len(x) != 2 or not _is_list(x[1]):
        kinds = f"a tuple of {', '.join(type(part).__name__ for part in x)}" if isinstance(x, tuple) else type(x)
        raise ValueError(
            "`x` must be a tuple (contexts, choices): a list of strings, and a list of lists of strings. "
            f"Received: {kinds}"
        )
    contexts, _ = split_texts(list(x[0]) if isinstance(x[0], tuple) else x[0], "x[0]")
    choices = []
    for i, row in enumerate(x[1]):
        if not _is_list(row) or not len(row):
            received = type(row).__name__ if not _is_list(row) else "none"
            raise ValueError(f"`x[1]` must hold a list of choices a question. Received: x[1][{i}] with {received}")
        choices.append(split_texts(list(row), f"x[1][{i}]")[0])
    if len(contexts) != len(choices):
        raise ValueError(
            f"`x` must hold as many contexts as lists of choices. Received: {len(contexts)} and {len(choices)}"
        )
    return contexts, choices


def _is_list(x: Any) -> bool:
    return not isinstance(x, (str, bytes)) and (isinstance(x, (Sequence, np.ndarray)) or hasattr(x, "to_numpy"))
