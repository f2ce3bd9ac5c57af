"""Batches with one target per token."""

from typing import Any

import numpy as np

from keras_bert_zoo.text.batching import LengthSortedBatches
from keras_bert_zoo.text.windows import IGNORED

# Rows whose labels are counted at a time, so that the targets are never copied as a whole.
_COUNTED_TOGETHER = 10_000


class TokenBatches(LengthSortedBatches):
    """Length-sorted batches with one target per token.

    `targets` is int `[examples, longest]`, `IGNORED` at tokens without a label. `sample_weight` is `[examples]`, or
    `[examples, longest]` with one weight per token.

    Weights turn the mean over all tokens of a batch, including padding, into the mean over its labelled tokens. In
    shuffled batches they turn it into the sum over the labelled tokens, divided by their average number in as many
    rows. The reason is that batches are sorted by length: a batch of short sentences has few labelled tokens, and each
    would otherwise weigh more than one in a batch of long sentences. In evaluation, Keras' mean over the batches,
    weighted by their rows, is the mean over all labelled tokens.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.targets is None:
            return
        parts = np.split(self.rows, range(_COUNTED_TOGETHER, len(self.rows), _COUNTED_TOGETHER))
        labels = sum(int((self.targets[part] != IGNORED).sum()) for part in parts)
        self._labels_per_row = max(labels, 1) / max(len(self.rows), 1)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        indices, real = self._draw(index)
        inputs = self.examples.take(indices, self._padded_length(indices))
        if self.targets is None:
            return (inputs,)
        length = inputs["token_ids"].shape[1]
        targets = _fit(self.targets[indices], length, IGNORED)
        labelled = targets != IGNORED
        labelled[real:] = False
        if not self.training:
            scale = length * self._fed_per_row / self._labels_per_row
        elif self.shuffle_seed is None:
            scale = labelled.size / max(int(labelled.sum()), 1)
        else:
            scale = labelled.size / (real * self._labels_per_row)
        weights = labelled * scale
        if self.sample_weight is not None:
            given = self.sample_weight[indices]
            weights = weights * (given[:, None] if given.ndim == 1 else _fit(given, length, 0))
        return inputs, np.where(labelled, targets, 0).astype("int32"), weights.astype("float32")

    def _free_dimensions(self, array: np.ndarray) -> int:
        return 2


def _fit(rows: np.ndarray, length: int, fill: int) -> np.ndarray:
    """Truncate or fill rows to `length`."""
    kept = rows[:, :length]
    return np.pad(kept, ((0, 0), (0, length - kept.shape[1])), constant_values=fill)
