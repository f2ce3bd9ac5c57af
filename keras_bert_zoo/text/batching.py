"""Batches of similar length: little padding, few shapes, a known number of steps, any order restored."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from keras_bert_zoo.text.packing import Examples
from keras_bert_zoo.text.tf_dataset import tf_dataset

# Where each shape compiles a program (XLA), batches are padded to the next of these.
STATIC_LENGTHS = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512)

# Of which a batch has enough to be worth its step, and on a CPU not so many that they leave its caches.
TOKENS_OF_A_BATCH = 2048

# Training sorts by length within this many batches at a time, so that a batch still is a random draw.
_BATCHES_SORTED_TOGETHER = 50


def static_lengths(longest: int) -> tuple[int, ...]:
    """The few lengths to pad to where no input may be longer than `longest`."""
    return (*(length for length in STATIC_LENGTHS if length < longest), longest)


def padded_length(length: int, static_lengths: tuple[int, ...]) -> int:
    """The next of the static lengths, or the length itself where there are none."""
    return next((static for static in static_lengths if static >= length), length)


class OwnBatches(keras.utils.PyDataset):
    """Batches of this package's making: checked already, their number known, their order that of `epoch`.

    Known by this class, and not by the names of what they have: a user's data set may mean something else by those.
    """

    epoch = 0
    to_tf: Callable[..., Any]
    """The same batches as a `tf.data.Dataset` that keeps the step count."""


class PartedBatches(OwnBatches):
    """Of which each of several workers makes its own rows."""

    batch_size: int
    to_tf: Callable[..., Any]
    """The same batches; with `part` and `parts` that part of each."""


class LengthSortedBatches(OwnBatches):
    """Batches of examples of similar length.

    Args:
        examples: What to take batches from.
        targets: Array with one row an example, or None.
        sample_weight: `[examples]`, or None.
        batch_size: Examples a batch; the last may be smaller.
        most_tokens: Where given, batches of short examples of nearly one length are as many times `batch_size` as come
            to no more than this, padding counted; for batches that are sorted as a whole.
        rows: Numbers of the examples to use; None uses all.
        static_lengths: Pad to the next of these lengths instead of the longest of the batch.
        shuffle_seed: Order anew each epoch from this seed and the epoch's number; None keeps one order.
        training: Keep unshuffled batches in the order of the rows, which otherwise are sorted, longest first.
        multiple_of: Fill each batch up to a multiple of this with copies of its first examples. Copies have the
            weight 0. The others weigh more in turn, so that in training a loss averaged over the batch stays as it was,
            and otherwise Keras' mean over the batches, weighted by their rows.
    """

    def __init__(
        self,
        examples: Examples,
        targets: np.ndarray | None = None,
        sample_weight: np.ndarray | None = None,
        batch_size: int = 32,
        rows: np.ndarray | None = None,
        static_lengths: tuple[int, ...] = (),
        shuffle_seed: int | None = None,
        training: bool = False,
        multiple_of: int = 1,
        most_tokens: int | None = None,
    ) -> None:
        super().__init__()
        self.examples = examples
        self.lengths = np.asarray(examples.lengths)
        self.rows = np.arange(len(self.lengths)) if rows is None else rows
        self.targets = targets
        self.sample_weight = sample_weight
        self.batch_size = batch_size
        self.static_lengths = static_lengths
        self.shuffle_seed = shuffle_seed
        self.training = training
        self.multiple_of = multiple_of
        self.epoch = 0
        self._order = self._ordered(0)
        self._starts = self._cut(most_tokens)
        copies = self._copies()
        self._fills = bool(copies.any())
        self._fed_per_row = 1 + copies.sum() / max(len(self.rows), 1)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def _cut(self, most_tokens: int | None) -> np.ndarray:
        """Where each batch starts in the order, and the end."""
        starts = np.arange(0, len(self.rows), self.batch_size)
        if most_tokens is not None:
            # The first of a batch is its longest. The last one stays what is left over: where shapes are compiled, each
            # number of examples is a program.
            lengths = [self._padded_length(self._order[start : start + 1]) for start in starts]
            whole, kept, place = len(self.rows) // self.batch_size, [], 0
            while place < len(starts):
                kept.append(starts[place])
                times = min(most_tokens // (self.batch_size * lengths[place]), whole - place)
                near = [length >= 0.75 * lengths[place] for length in lengths[place : place + times]]
                place += max(near.index(False) if False in near else len(near), 1)
            starts = np.array(kept, dtype="int64")
        return np.append(starts, len(self.rows))

    def _copies(self) -> np.ndarray:
        """How many fill each batch."""
        return -np.diff(self._starts) % self.multiple_of

    def _ordered(self, epoch: int) -> np.ndarray:
        """The examples in the order of their batches; only the last batch is short."""
        count, size = len(self.rows), self.batch_size
        if self.shuffle_seed is None:
            return self.rows if self.training else self.rows[np.argsort(-self.lengths[self.rows], kind="stable")]
        rng = np.random.default_rng((self.shuffle_seed, epoch))
        drawn = rng.permutation(self.rows)
        together = size * _BATCHES_SORTED_TOGETHER
        full: list[np.ndarray] = []
        last = np.empty(0, dtype=drawn.dtype)
        for start in range(0, count, together):
            chunk = drawn[start : start + together]
            chunk = chunk[np.argsort(-self.lengths[chunk], kind="stable")]
            for i in range(0, len(chunk), size):
                batch = chunk[i : i + size]
                if len(batch) == size:
                    full.append(batch)
                else:
                    last = batch
        return np.concatenate([*(full[i] for i in rng.permutation(len(full))), last])

    def _padded_length(self, indices: np.ndarray) -> int:
        # A short last batch is a program of its own; as long as any it is the same one in each epoch.
        short = self.shuffle_seed is not None and len(indices) < self.batch_size
        rows = self.rows if short and self.static_lengths else indices
        longest = max(int(self.lengths[rows].max()), 1)
        return padded_length(longest, self.static_lengths)

    def _draw(self, index: int) -> tuple[np.ndarray, int]:
        """The examples of a batch, and how many of them are no copies."""
        if index == 0:  # A pass over the data begins; its order is that of the epoch.
            self._order = self._ordered(self.epoch)
        indices = self._order[self._starts[index] : self._starts[index + 1]]
        real = len(indices)
        if self._fills:
            indices = np.resize(indices, math.ceil(real / self.multiple_of) * self.multiple_of)
        return indices, real

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        indices, real = self._draw(index)
        batch: tuple[Any, ...] = (self.examples.take(indices, self._padded_length(indices)),)
        if self.targets is not None:
            batch += (self.targets[indices],)
        if self.sample_weight is not None or (self._fills and self.targets is not None):
            weight = np.ones(len(indices), "float32") if self.sample_weight is None else self.sample_weight[indices]
            scale = len(indices) / real if self.training else self._fed_per_row
            weight = np.where(np.arange(len(indices)) < real, weight, 0) * scale
            batch += (weight.astype("float32"),)
        return batch

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return (self[i] for i in range(len(self)))

    def on_epoch_begin(self) -> None:
        self._order = self._ordered(self.epoch)  # Keras' own `fit` may not draw the first batch first.

    def on_epoch_end(self) -> None:
        self.epoch += 1  # For a `fit` that does not say the number.

    def _take(self, index: int) -> tuple[Any, ...]:
        batch = self[index]
        if index == len(self) - 1:  # Before `fit` has this batch, and can say the number of the next epoch.
            self.on_epoch_end()
        return batch

    def restore_order(self, outputs: np.ndarray) -> np.ndarray:
        """Rows that came out batch by batch, back in the order of the examples."""
        sizes, copies = np.diff(self._starts), self._copies()
        places = np.arange(len(self._order)) + np.repeat(np.cumsum(copies) - copies, sizes)  # After those before.
        return outputs[places[np.argsort(self._order)]]

    def _free_dimensions(self, array: np.ndarray) -> int:
        """How many dimensions differ from batch to batch."""
        return array.ndim if array.dtype == "int32" else 1

    def to_tf(self) -> Any:
        """The same batches as a `tf.data.Dataset` with unknown batch size and length, which keeps the step count."""
        import tensorflow as tf

        def spec(array: np.ndarray) -> Any:
            free = self._free_dimensions(array)
            return tf.TensorSpec((None,) * free + array.shape[free:], array.dtype)

        return tf_dataset(self._take, keras.tree.map_structure(spec, self[0]), len(self))
