"""`[CLS] a [SEP] b [SEP]`: truncation, and padding when a batch is formed."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from keras_bert_zoo.text.tokenizer import BertTokenizer

Arrays = dict[str, np.ndarray]

# Runs of tokens that are copied at a time, so that the indices of all tokens never exist at once.
_LAID_TOGETHER = 10_000


class Examples(Protocol):
    """Examples that a batch can be taken from."""

    @property
    def lengths(self) -> np.ndarray:
        """int64 `[examples]`, tokens of each, without padding."""
        ...

    def take(self, indices: np.ndarray, length: int) -> Arrays:
        """Return `token_ids`, `segment_ids` and `padding_mask`, int32 `[len(indices), length]`."""
        ...


@dataclass(frozen=True)
class PackedTexts:
    """Tokenised texts, concatenated without padding.

    Attributes:
        token_ids: int32 `[tokens of all examples]`, including special tokens.
        lengths: int64 `[examples]`, tokens of each.
        first_lengths: int64 `[examples]`, tokens of segment 0.
        pad_token_id: The id of padding.
    """

    token_ids: np.ndarray
    lengths: np.ndarray
    first_lengths: np.ndarray
    pad_token_id: int

    @cached_property
    def _starts(self) -> np.ndarray:
        return np.cumsum(self.lengths) - self.lengths

    def take(self, indices: np.ndarray, length: int) -> Arrays:
        steps = np.arange(length)
        mask = steps < self.lengths[indices, None]
        source = np.where(mask, self._starts[indices, None] + steps, 0)
        return {
            "token_ids": np.where(mask, self.token_ids[source], self.pad_token_id).astype("int32"),
            "segment_ids": (mask & (steps >= self.first_lengths[indices, None])).astype("int32"),
            "padding_mask": mask.astype("int32"),
        }


@dataclass(frozen=True)
class PaddedArrays:
    """Ready arrays, each int `[examples, …, width]`; trailing padding is cut when a batch is taken."""

    arrays: Arrays

    @cached_property
    def lengths(self) -> np.ndarray:
        mask = self.arrays["padding_mask"]
        real = (mask != 0).any(axis=tuple(range(1, mask.ndim - 1)))
        return np.where(real.any(axis=-1), mask.shape[-1] - real[:, ::-1].argmax(axis=-1), 0)

    def take(self, indices: np.ndarray, length: int) -> Arrays:
        batch = {}
        for name, array in self.arrays.items():
            rows = array[indices, ..., :length].astype("int32")
            batch[name] = np.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, length - rows.shape[-1])])
        return batch


def truncated_lengths(first: np.ndarray, second: np.ndarray, budget: int) -> tuple[np.ndarray, np.ndarray]:
    """Return how much of each pair is kept if the longer text loses tokens until both fit into `budget`.

    At equal lengths the second text loses a token, as in google-research/bert's run_classifier.py.
    """
    half = budget // 2
    kept_first = np.minimum(first, np.maximum(budget - second, budget - half))
    kept_second = np.minimum(second, np.maximum(budget - first, half))
    return kept_first, kept_second


def pack_texts(
    tokenizer: BertTokenizer,
    first: Sequence[str],
    second: Sequence[str] | None,
    sequence_length: int,
) -> PackedTexts:
    """Tokenise texts, or pairs, and truncate each to `sequence_length` tokens, including special tokens."""
    first_ids, first_lengths = tokenizer.encode_batch(first)
    if second is None:
        second_ids, second_lengths = np.empty(0, "int32"), np.zeros_like(first_lengths)
        first_kept, second_kept = np.minimum(first_lengths, sequence_length - 2), second_lengths
        lengths = first_kept + 2
    else:
        second_ids, second_lengths = tokenizer.encode_batch(second)
        first_kept, second_kept = truncated_lengths(first_lengths, second_lengths, sequence_length - 3)
        lengths = first_kept + second_kept + 3
    starts = np.cumsum(lengths) - lengths
    token_ids = np.full(lengths.sum(), tokenizer.sep_token_id, dtype="int32")
    token_ids[starts] = tokenizer.cls_token_id
    lay(token_ids, starts + 1, first_ids, np.cumsum(first_lengths) - first_lengths, first_kept)
    lay(token_ids, starts + 2 + first_kept, second_ids, np.cumsum(second_lengths) - second_lengths, second_kept)
    return PackedTexts(token_ids, lengths, first_kept + 2, tokenizer.pad_token_id)


def lay(to: np.ndarray, starts: np.ndarray, ids: np.ndarray, sources: np.ndarray, counts: np.ndarray) -> None:
    """Copy runs of `counts` tokens from `ids` at `sources` into `to` at `starts`."""
    for first in range(0, len(counts), _LAID_TOGETHER):
        some = slice(first, first + _LAID_TOGETHER)
        taken = counts[some]
        steps = np.arange(taken.sum()) - np.repeat(np.cumsum(taken) - taken, taken)
        to[np.repeat(starts[some], taken) + steps] = ids[np.repeat(sources[some], taken) + steps]
