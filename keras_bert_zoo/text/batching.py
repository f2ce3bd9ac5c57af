"""Batches of similar length: little padding, few shapes, a known number of steps, and a restorable order."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from keras_bert_zoo.text.packing import Examples
from keras_bert_zoo.text.tf_dataset import tf_dataset

# If each shape compiles a program (XLA), batches are padded to the next of these lengths.
_STATIC_LENGTHS = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512)

# Enough tokens to make a step worthwhile, and few enough to stay in a CPU's caches.
TOKENS_OF_A_BATCH = 2048

# Training sorts by length within this many batches at a time, so that each batch stays a random sample.
_BATCHES_SORTED_TOGETHER = 50


def static_lengths(longest: int) -> tuple[int, ...]:
    """Return the few lengths to pad to, for inputs of at most `longest` tokens."""
    return (*(length for length in _STATIC_LENGTHS if length < longest), longest)


def padded_length(length: int, static_lengths: tuple[int, ...]) -> int:
    """Return the next of the static lengths, or the length itself if there is none."""
    return next((static for static in static_lengths if static >= length), length)


class OwnBatches(keras.utils.PyDataset):
    """Batches made by this package: already checked, of known number, ordered by `epoch`.

    They are recognised by this class, not by attribute names, which may mean something else in a user's dataset.
    """

    epoch = 0
    to_tf: Callable[..., Any]
    """Returns the same batches as a `tf.data.Dataset` with a known number of steps."""


class PartedBatches(OwnBatches):
    """Batches for several workers, each of which makes its own rows."""

    batch_size: int
    to_tf: Callable[..., Any]
    """Returns the same batches; with `part` and `parts`, only that part of each."""


class LengthSortedBatches(OwnBatches):
    """Batches of examples of similar length.

    Args:
        examples: The examples to batch.
        targets: Array with one row per example, or None.
        sample_weight: `[examples]`, or None.
        batch_size: Examples per batch; the last may be smaller.
        most_tokens: If given, batches of short examples of similar length grow to the largest multiple of `batch_size`
            with at most this many tokens, including padding; only for batches that are sorted as a whole.
        rows: Indices of the examples to use; None uses all.
        static_lengths: Pad to the next of these lengths instead of the longest of the batch.
        shuffle_seed: Reshuffle each epoch from this seed and the epoch's number; None keeps one order.
        training: If True, unshuffled batches keep the order of the rows; otherwise they are sorted, longest first.
        multiple_of: Fill each batch up to a multiple of this with copies of its first examples, which get weight 0. The
            real examples' weights are scaled up to compensate: in training so that the mean loss of the batch is
            unchanged, and in evaluation so that Keras' mean over batches, weighted by their rows, is unchanged.
        few_sizes: First fill a batch of fewer than `batch_size` examples up to the next power of two, at most
            `batch_size`: if shapes are compiled, each number of examples needs a program.
        one_shape: Give all batches one shape, which TensorFlow is told, for a TPU: fill each up as if it had
            `batch_size` examples, pad it to the static length for the longest of the rows, and ignore `most_tokens`.
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
        few_sizes: bool = False,
        one_shape: bool = False,
    ) -> None:
        super().__init__()
        self.examples = examples
        self.lengths = np.asarray(examples.lengths)
        self.rows = np.arange(len(self.lengths)) if rows is None else rows
        if one_shape:
            multiple_of *= math.ceil(batch_size / multiple_of)
            static_lengths = (padded_length(int(self.lengths[self.rows].max(initial=1)), static_lengths),)
            most_tokens = None
        self.targets = targets
        self.sample_weight = sample_weight
        self.batch_size = batch_size
        self.static_lengths = static_lengths
        self.shuffle_seed = shuffle_seed
        self.training = training
        self.multiple_of = multiple_of
        self.few_sizes = few_sizes
        self.one_shape = one_shape
        self._order = self._ordered(0)
        self._starts = self._cut(most_tokens)
        copies = self._copies()
        self._fills = bool(copies.any())
        self._fed_per_row = 1 + copies.sum() / max(len(self.rows), 1)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def _cut(self, most_tokens: int | None) -> np.ndarray:
        """Return where each batch starts in the order, and the end."""
        starts = np.arange(0, len(self.rows), self.batch_size)
        if most_tokens is not None:
            # The first example of a batch is its longest. The last batch keeps the remainder: if shapes are compiled,
            # each number of examples needs a program.
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
        """Return the number of copies that fill up each batch."""
        sizes = np.diff(self._starts)
        return np.array([self._filled_size(size) for size in sizes.tolist()], "int64") - sizes

    def _filled_size(self, size: int) -> int:
        """Return the number of rows, including copies, of a batch of `size` examples."""
        if self.few_sizes and size < self.batch_size:
            size = min(2 ** (size - 1).bit_length(), self.batch_size)
        return math.ceil(size / self.multiple_of) * self.multiple_of

    def _ordered(self, epoch: int) -> np.ndarray:
        """Return the examples in the order of their batches; only the last batch is short."""
        count, size = len(self.rows), self.batch_size
        if self.shuffle_seed is None:
            return self.rows if self.training else self.rows[np.argsort(-self.lengths[self.rows], kind="stable")]
        rng = np.random.default_rng((self.shuffle_seed, epoch))
        drawn = rng.permutation(self.rows)
        # Within each chunk, the longest come first.
        chunks = np.arange(count) // (size * _BATCHES_SORTED_TOGETHER)
        drawn = drawn[np.lexsort((-self.lengths[drawn], chunks))]
        full = drawn[: count - count % size].reshape(-1, size)
        return np.concatenate([full[rng.permutation(len(full))].ravel(), drawn[full.size :]])

    def _padded_length(self, indices: np.ndarray) -> int:
        # A short last batch needs its own program: padded to the longest, it is the same in each epoch.
        short = self.shuffle_seed is not None and len(indices) < self.batch_size
        rows = self.rows if short and self.static_lengths else indices
        longest = max(int(self.lengths[rows].max()), 1)
        return padded_length(longest, self.static_lengths)

    def _draw(self, index: int) -> tuple[np.ndarray, int]:
        """Return the examples of a batch, and how many of them are not copies."""
        if index == 0:  # A pass over the data begins, in the order of the epoch.
            self._order = self._ordered(self.epoch)
        indices = self._order[self._starts[index] : self._starts[index + 1]]
        real = len(indices)
        if self._fills:
            indices = np.resize(indices, self._filled_size(real))
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

    def on_epoch_begin(self) -> None:
        self._order = self._ordered(self.epoch)  # Keras' own `fit` may not take the first batch first.

    def on_epoch_end(self) -> None:
        self.epoch += 1  # For a `fit` that does not set the number.

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Yield the batches of an epoch; the next call yields those of the next. Keras' `fit` takes them by number."""
        for index in range(len(self)):
            yield self._take(index)

    def _take(self, index: int) -> tuple[Any, ...]:
        batch = self[index]
        if index == len(self) - 1:  # Before `fit` gets this batch, and can set the next epoch's number.
            self.on_epoch_end()
        return batch

    def restore_order(self, outputs: np.ndarray) -> np.ndarray:
        """Reorder rows from batch order to the order of the examples."""
        sizes, copies = np.diff(self._starts), self._copies()
        places = np.arange(len(self._order)) + np.repeat(np.cumsum(copies) - copies, sizes)  # After earlier copies.
        if places[-1] >= len(outputs):
            raise ValueError(
                "`predict` must take all batches, which are sorted by length, to give outputs in the order of `x`. "
                f"Received: an end after {len(outputs)} of {places[-1] + 1} rows"
            )
        return outputs[places[np.argsort(self._order)]]

    def _free_dimensions(self, array: np.ndarray) -> int:
        """Return how many dimensions differ between batches."""
        return array.ndim if array.dtype == "int32" else 1

    def to_tf(self) -> Any:
        """Return a `tf.data.Dataset` of the same batches, with a known number of steps.

        The batch size and the length are unknown to TensorFlow, unless all batches have one shape.
        """
        import tensorflow as tf

        def spec(array: np.ndarray) -> Any:
            free = 0 if self.one_shape else self._free_dimensions(array)
            return tf.TensorSpec((None,) * free + array.shape[free:], array.dtype)

        return tf_dataset(self._take, keras.tree.map_structure(spec, self[0]), len(self))
