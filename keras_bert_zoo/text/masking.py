"""Language-model targets: which tokens are predicted, and what replaces them (Devlin et al. 2019, 3.1, A.1)."""

import math
import reprlib
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from keras_bert_zoo.checks import check_flag, check_positive_int

LONGEST = 2**16 - 1
"""Largest number of tokens per example, the limit of uint16, in which data sets keep positions."""


@dataclass(frozen=True)
class Masking:
    """How tokens are masked.

    Attributes:
        max_predictions: Maximum predictions per example. Published recipes use 20 at length 128, and 76 or 80 at length
            512, where `for_length` uses 77.
        rate: Share of tokens to predict, out of all tokens including special ones.
        mask: Share of these that become `[MASK]`.
        random: Share of these that become a random token; the rest are unchanged.
        whole_words: If True, all pieces of a word are predicted together.
    """

    max_predictions: int = 20
    rate: float = 0.15
    mask: float = 0.8
    random: float = 0.1
    whole_words: bool = False

    @classmethod
    def for_length(cls, sequence_length: int, **changes: Any) -> "Masking":
        """Return the paper's masking with `changes`; `max_predictions` is by default `rate` of `sequence_length`."""
        check_positive_int(sequence_length=sequence_length)
        masking = cls(**changes)
        if "max_predictions" in changes:
            return masking
        return replace(masking, max_predictions=math.ceil(masking.rate * sequence_length))

    def __post_init__(self) -> None:
        check_positive_int(max_predictions=self.max_predictions)
        if self.max_predictions > LONGEST:
            received = reprlib.repr(self.max_predictions)
            raise ValueError(f"`max_predictions` must be at most {LONGEST}. Received: max_predictions={received}")
        check_flag(whole_words=self.whole_words)
        for name in ("rate", "mask", "random"):
            if not isinstance(getattr(self, name), (int, float)):
                received = reprlib.repr(getattr(self, name))
                raise ValueError(f"`{name}` must be a number. Received: {name}={received}")
        if not 0 < self.rate < 1:
            raise ValueError(f"`rate` must be in (0, 1). Received: rate={reprlib.repr(self.rate)}")
        if not (0 <= self.mask <= 1 and 0 <= self.random <= 1 and self.mask + self.random <= 1 + 1e-9):
            raise ValueError(
                "`mask` and `random` must be shares of one whole. "
                f"Received: mask={reprlib.repr(self.mask)}, random={reprlib.repr(self.random)}"
            )

    @classmethod
    def check_fields(cls, masking: Any) -> None:
        """Raise a `ValueError` if `masking` is not a dict of some of the attributes above."""
        known = sorted(field.name for field in fields(cls))
        if not (isinstance(masking, dict) and set(masking) <= set(known)):
            raise ValueError(f"`masking` must be a dict of {known}. Received: masking={reprlib.repr(masking)}")

    @classmethod
    def check(cls, masking: Any) -> None:
        """Raise a `ValueError` if `masking` is not a `Masking`."""
        if not isinstance(masking, cls):
            raise ValueError(f"`masking` must be a Masking. Received: masking={masking!r}")

    def wanted(self, lengths: np.ndarray) -> np.ndarray:
        """Return the number of predictions for these lengths, if enough tokens may be masked."""
        return np.clip(np.rint(lengths * self.rate).astype("int64"), 1, self.max_predictions)


@dataclass(frozen=True)
class MaskedTokens:
    """`n` masked examples, with `p` = `max_predictions`, or `length - 1` for next tokens.

    Attributes:
        token_ids: int32 `[n, length]`, masked.
        mask_positions: int32 `[n, p]`, ascending, then filled with 0.
        mask_ids: int32 `[n, p]`, the original tokens, then filled with 0.
        mask_weights: float32 `[n, p]`, 1 at predictions and 0 at filling.
    """

    token_ids: np.ndarray
    mask_positions: np.ndarray
    mask_ids: np.ndarray
    mask_weights: np.ndarray


def mask_tokens(
    token_ids: np.ndarray,
    maskable: np.ndarray,
    lengths: np.ndarray,
    masking: Masking,
    mask_token_id: int,
    vocabulary_size: int,
    rng: np.random.Generator,
    continues_word: np.ndarray,
) -> MaskedTokens:
    """Choose the tokens to predict, and replace them.

    Of an example of `length` tokens, up to `min(max_predictions, max(1, round(rate * length)))` are predicted.

    Args:
        token_ids: int `[n, length]`.
        maskable: bool `[n, length]`, False at special tokens and padding.
        lengths: int `[n]`, tokens of each, including special tokens.
        masking: The rules.
        mask_token_id: The id of `[MASK]`.
        vocabulary_size: Random tokens are drawn from `[0, vocabulary_size)`.
        rng: Source of randomness.
        continues_word: bool `[n, length]`, True at pieces (`##…`) that continue a word.
    """
    wanted = masking.wanted(lengths)
    if masking.whole_words:
        chosen = _choose_words(maskable, continues_word, wanted, rng)
    else:
        chosen = _choose_tokens(maskable, wanted, masking.max_predictions, rng)
    masked = np.array(token_ids, dtype="int32", order="C")
    places = np.flatnonzero(chosen)  # Row by row, ascending in each.
    labels = masked.reshape(-1)[places]
    filled = np.arange(masking.max_predictions) < chosen.sum(axis=1)[:, None]
    fate = rng.random(filled.shape)[filled]
    drawn = rng.integers(0, vocabulary_size, filled.shape)[filled]
    replaced = np.where(fate < masking.mask + masking.random, drawn, labels)
    masked.reshape(-1)[places] = np.where(fate < masking.mask, mask_token_id, replaced)
    return MaskedTokens(
        masked, _laid(places % masked.shape[1], filled), _laid(labels, filled), filled.astype("float32")
    )


def next_tokens(token_ids: np.ndarray, lengths: np.ndarray) -> MaskedTokens:
    """Return left-to-right targets: the next token at each token but the last; nothing is masked.

    Args:
        token_ids: int `[n, length]`.
        lengths: int `[n]`, tokens of each, including special tokens.
    """
    steps = np.arange(token_ids.shape[1] - 1)
    weights = steps < lengths[:, None] - 1
    positions = np.where(weights, steps, 0)
    labels = np.where(weights, token_ids[:, 1:], 0)
    return MaskedTokens(
        token_ids.astype("int32"), positions.astype("int32"), labels.astype("int32"), weights.astype("float32")
    )


def _laid(values: np.ndarray, filled: np.ndarray) -> np.ndarray:
    """Return int32 with the concatenated values where `filled` is True, and 0 elsewhere."""
    laid = np.zeros(filled.shape, dtype="int32")
    laid[filled] = values
    return laid


def _choose_tokens(maskable: np.ndarray, wanted: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    """Choose `wanted` random maskable tokens per row, or all if there are fewer.

    This is Floyd's sampling without replacement (Bentley and Floyd 1987, A sample of brilliance), one draw for all rows
    at a time. Each row takes the same number of draws, whatever the other rows are, so that a worker can draw for its
    own rows.
    """
    counts = maskable.sum(axis=1)
    wanted = np.minimum(wanted, counts)
    taken = np.zeros_like(maskable)  # Among each row's maskable tokens.
    for turn, draws in enumerate(rng.random((len(maskable), min(most, maskable.shape[1]))).T):
        rows = np.flatnonzero(turn < wanted)
        last = (counts - wanted)[rows] + turn
        drawn = (draws[rows] * (last + 1)).astype("int64")
        taken[rows, np.where(taken[rows, drawn], last, drawn)] = True
    chosen = np.zeros_like(maskable)
    chosen[maskable] = taken[np.arange(maskable.shape[1]) < counts[:, None]]
    return chosen


def _choose_words(
    maskable: np.ndarray, continues_word: np.ndarray, wanted: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Choose whole words in random order, up to the `wanted` number of tokens."""
    rows = np.arange(len(maskable))[:, None]
    starts = maskable & ~(continues_word & np.pad(maskable, ((0, 0), (1, 0)))[:, :-1])
    word = np.cumsum(starts, axis=1) - 1
    words = int(word.max(initial=-1)) + 1
    sizes = np.zeros((len(maskable), words + 1), dtype="int64")
    np.add.at(sizes, (np.broadcast_to(rows, word.shape), np.where(maskable, word, words)), 1)
    sizes = sizes[:, :words]
    order = np.argsort(np.where(sizes > 0, rng.random(sizes.shape), 2.0), axis=1)
    taken = np.zeros((len(maskable), words + 1), dtype=bool)
    filled = np.zeros(len(maskable), dtype="int64")
    for turn in order.T:  # The words that come first in each row, then those that come second, …
        size = sizes[rows[:, 0], turn]
        fits = (size > 0) & (filled + size <= wanted)
        taken[rows[:, 0], turn] = fits
        filled += size * fits
    return maskable & np.take_along_axis(taken, np.where(maskable, word, words), axis=1)
