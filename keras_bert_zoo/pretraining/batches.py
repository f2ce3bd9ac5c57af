"""Batches of pre-training examples from a data set on disk, on every backend."""

import json
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import keras
import numpy as np

from keras_bert_zoo.checks import check_flag, check_positive_int, check_seed
from keras_bert_zoo.pretraining.description import DESCRIPTION, read_description
from keras_bert_zoo.pretraining.making import draw_masks, maskable
from keras_bert_zoo.pretraining.shards import lengths_of, open_shard, rows_of
from keras_bert_zoo.text.batching import PartedBatches
from keras_bert_zoo.text.masking import MaskedTokens, Masking, next_tokens
from keras_bert_zoo.text.tf_dataset import tf_dataset


class PretrainingBatches(PartedBatches):
    """Batches for `BertPretrainer` and `BertMaskedLM`, all of one shape.

    Each pass draws a new order from the seed, and new masks unless the data set fixes them. Batch `i` of epoch `e` is
    the same however the run reached it. The last, incomplete batch of a pass is left out. The `fit` of a task sets
    `epoch`; a loop of your own must set it itself.

    Args:
        path: A data set made by `prepare`.
        batch_size: Number of examples per batch.
        masking: How masks are drawn, instead of the data set's own `Masking`; only if the data set does not fix the
            masks. `Masking.for_length` sets the number of predictions that the length calls for.
        next_sentence: False leaves out the targets of next-sentence prediction; None includes them if the data set has
            pairs.
        next_token: Give the targets of a left-to-right model, for a causal backbone: each token predicts the next one,
            without masks or next-sentence prediction (Devlin et al. 2019, section 5.1).
        seed: Random seed.
        epoch_batches: Number of batches that `fit` takes per epoch; None takes those of one pass. Each epoch starts
            where the last one ended, and may extend into further passes.
        gradient_accumulation_steps: Number of batches per update. They have the rows, masks and weights of one large
            batch, so that the mean of their gradients is its gradient.

    Each batch is a tuple `(inputs, targets, weights)` of dicts:

    - inputs: `token_ids`, `segment_ids`, `padding_mask`, int32 `[batch, length]`, and `mask_positions`, int32
      `[batch, max_predictions]`, or `[batch, length - 1]` with `next_token`;
    - targets: `mlm`, int32, of the shape of `mask_positions`, and with pairs `nsp`, int32 `[batch]`, 1 where the second
      segment is from another document;
    - weights: same names and shapes, float32, 0 where there is no prediction. Those of `mlm` average 1, so that a mean
      over all positions is the mean over the predictions of the whole batch, on any number of devices
      (google-research/bert, run_pretraining.py).
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        batch_size: int = 32,
        masking: Masking | None = None,
        next_sentence: bool | None = None,
        next_token: bool = False,
        seed: int = 0,
        epoch_batches: int | None = None,
        gradient_accumulation_steps: int = 1,
    ) -> None:
        super().__init__()
        check_positive_int(batch_size=batch_size, gradient_accumulation_steps=gradient_accumulation_steps)
        check_seed(seed=seed)
        check_flag(next_token=next_token, **({} if next_sentence is None else {"next_sentence": next_sentence}))
        if masking is not None:
            Masking.check(masking)
        folder = Path(path)
        self.tokenizer, self.sequence_length, own, fixed, pairs = read_description(folder)
        if fixed and masking is not None:
            raise ValueError(f"`masking` must be None for a data set of fixed masks. Received: masking={masking}")
        self.masking = own if masking is None else masking
        if next_sentence and not pairs:
            raise ValueError("`next_sentence` needs a data set of pairs. Received: one without pairs")
        if next_token and (next_sentence or masking is not None):
            raise ValueError(
                "`next_token` excludes `next_sentence` and `masking`. "
                f"Received: next_sentence={next_sentence}, masking={masking}"
            )
        self.fixed_masks, self.pairs, self.next_token = fixed, pairs, next_token
        self.next_sentence = pairs and not next_token if next_sentence is None else next_sentence
        self.shard = open_shard(folder, fixed)
        self._folder = folder
        self.batch_size, self.seed = batch_size, seed
        self._update_batches = gradient_accumulation_steps
        self._update_size = batch_size * gradient_accumulation_steps
        self.examples = len(self.shard)
        if self.examples < self._update_size:
            raise ValueError(
                f"`batch_size` must be at most the number of examples in {str(folder)!r}, {self.examples}. "
                f"Received: batch_size={self._update_size}"
            )
        if epoch_batches is not None:
            check_positive_int(epoch_batches=epoch_batches)
        self._pass_updates = self.examples // self._update_size
        self._epoch_batches = epoch_batches or self._pass_updates * gradient_accumulation_steps
        self.epoch = 0
        self._drawn: tuple[int, np.ndarray] | None = None
        # An update's number, its number of predictions, and what is drawn for all of its parts.
        self._update: tuple[int, int | None, Any] | None = None

    def __len__(self) -> int:
        return self._epoch_batches

    @property
    def mean_length(self) -> float:
        """Mean number of tokens per example, without padding."""
        return len(self.shard.token_ids) / self.examples

    @property
    def mean_predictions(self) -> float:
        """Mean number of predictions per example."""
        if self.next_token:
            return self.mean_length - 1
        return min(self.masking.max_predictions, self.masking.rate * self.mean_length)

    @property
    def digest(self) -> str:
        """Checksum of the tokenizer and of the data set's description, which holds a checksum of the arrays."""
        tokenizer = json.dumps(self.tokenizer.get_config()).encode()
        return sha256((self._folder / DESCRIPTION).read_bytes() + tokenizer).hexdigest()

    def _order(self, number: int) -> np.ndarray:
        """Return the order of the examples in a pass."""
        drawn = self._drawn
        if drawn is None or drawn[0] != number:
            order = np.arange(self.examples, dtype="int32" if self.examples < 2**31 else "int64")
            np.random.default_rng((self.seed, number)).shuffle(order)
            self._drawn = drawn = number, order
        return drawn[1]

    def __getitem__(self, index: int) -> tuple[Any, Any, Any]:
        return self.part_of(index, 0, 1)

    def part_of(self, index: int, part: int, parts: int) -> tuple[Any, Any, Any]:
        """Return one worker's part of batch `index`: its own rows, identical to those in the whole batch."""
        update, piece = divmod(self.epoch * self._epoch_batches + index, self._update_batches)
        number, place = divmod(update, self._pass_updates)
        rows = self._order(number)[place * self._update_size : (place + 1) * self._update_size]
        # Not `place`: NumPy takes zeros at the end for none, and this would be the stream of the order.
        rng = np.random.default_rng((self.seed, number, place + 1))
        size = self.batch_size // parts
        if size == self._update_size:
            return self.take(rows, rng)
        first = piece * self.batch_size + part * size
        own = slice(first, first + size)
        known = self._update
        if known is None or known[0] != update:
            predictions = self._predictions(rows)
            # Random numbers for whole words depend on the row with the most words, so all rows are made at once.
            drawn: Any = self.take(rows, rng) if predictions is None else []
            known = update, predictions, drawn
        _, predictions, drawn = known
        if predictions is None:
            made = keras.tree.map_structure(lambda array: array[own], drawn)
        else:
            chance = cast(Any, _RowsOf(rng, len(rows), own, drawn))
            made = self._make(rows[own], chance, len(rows), predictions)
        self._update = known  # Set only when all is drawn: another thread may be making another part.
        return made

    def take(self, rows: np.ndarray, rng: np.random.Generator | None = None) -> tuple[Any, Any, Any]:
        """Make a batch of the examples with these numbers; masks that are not fixed are drawn from `rng`."""
        return self._make(rows, rng, len(rows))

    def _make(
        self, rows: np.ndarray, rng: np.random.Generator | None, count: int, total: int | None = None
    ) -> tuple[Any, Any, Any]:
        """Make rows of a batch of `count` examples with `total` predictions; None counts those of these rows."""
        shard = self.shard
        token_ids = rows_of(shard.token_ids, shard.ends, rows, self.sequence_length, self.tokenizer.pad_token_id)
        lengths, first_lengths = lengths_of(shard.ends, rows), shard.first_lengths[rows].astype("int64")
        self._check("token_ids", "a token id", token_ids, self.tokenizer.vocabulary_size)
        self._check("ends", "a length", lengths, self.sequence_length + 1)
        self._check("first_lengths", "a length", first_lengths, lengths + 1)
        masked = self._masked(rows, token_ids, lengths, first_lengths, rng)
        steps = np.arange(self.sequence_length)
        inside = steps < lengths[:, None]
        inputs = {
            "token_ids": masked.token_ids,
            "segment_ids": (inside & (steps >= first_lengths[:, None])).astype("int32"),
            "padding_mask": inside.astype("int32"),
            "mask_positions": masked.mask_positions,
        }
        predictions = masked.mask_weights
        total = predictions.sum() if total is None else total
        targets, weights = (
            {"mlm": masked.mask_ids},
            {"mlm": predictions * (count * predictions.shape[1] / np.float32(max(total, 1)))},
        )
        if self.next_sentence:
            labels = shard.next_sentence_labels[rows]
            self._check("next_sentence_labels", "a label", labels, 2)
            targets["nsp"] = labels.astype("int32")
            weights["nsp"] = np.ones(len(rows), "float32")
        return inputs, targets, weights

    def _check(self, name: str, what: str, values: np.ndarray, stop: Any) -> None:
        """Check values before they index anything, because some backends accept any id."""
        wrong = (values < 0) | (values >= stop)
        if wrong.any():
            limit = np.broadcast_to(stop, values.shape)[wrong][0]
            raise ValueError(f"{self._folder / name}.npy: {what} must be in [0, {limit}). Received: {values[wrong][0]}")

    def _masked(
        self,
        rows: np.ndarray,
        token_ids: np.ndarray,
        lengths: np.ndarray,
        first_lengths: np.ndarray,
        rng: np.random.Generator | None,
    ) -> MaskedTokens:
        shard = self.shard
        if self.next_token:
            return next_tokens(token_ids, lengths)
        if shard.mask_ends is None or shard.mask_positions is None or shard.mask_replacements is None:
            assert rng is not None
            return draw_masks(token_ids, lengths, first_lengths, self.masking, self.tokenizer, rng)
        width = self.masking.max_predictions
        positions = rows_of(shard.mask_positions, shard.mask_ends, rows, width)
        replacements = rows_of(shard.mask_replacements, shard.mask_ends, rows, width)
        counts = lengths_of(shard.mask_ends, rows)
        self._check("mask_positions", "a position", positions, lengths[:, None])
        self._check("mask_replacements", "a token id", replacements, self.tokenizer.vocabulary_size)
        self._check("mask_ends", "a number of predictions", counts, width + 1)
        weights = np.arange(width) < counts[:, None]
        labels = np.where(weights, np.take_along_axis(token_ids, positions, axis=1), 0)
        masked = token_ids.copy()
        example, place = np.nonzero(weights)
        masked[example, positions[example, place]] = replacements[example, place]
        return MaskedTokens(masked, positions, labels.astype("int32"), weights.astype("float32"))

    def _predictions(self, rows: np.ndarray) -> int | None:
        """Return the number of predictions in these examples, or None if it depends on the masks that are drawn."""
        shard = self.shard
        if self.next_token:
            return int((lengths_of(shard.ends, rows) - 1).sum())
        if shard.mask_ends is not None:
            return int(lengths_of(shard.mask_ends, rows).sum())
        if self.masking.whole_words:
            return None
        lengths, first_lengths = lengths_of(shard.ends, rows), shard.first_lengths[rows].astype("int64")
        shape = np.broadcast_to(0, (len(rows), self.sequence_length))
        there = maskable(shape, lengths, first_lengths).sum(axis=1)
        return int(np.minimum(self.masking.wanted(lengths), there).sum())

    def to_tf(self, part: int = 0, parts: int = 1) -> Any:
        """Return the same batches, or one worker's part of each, as a `tf.data.Dataset` of fixed shapes.

        It has the same number of steps.
        """
        import tensorflow as tf

        example = self.part_of(0, part, parts)
        signature = keras.tree.map_structure(lambda array: tf.TensorSpec(array.shape, array.dtype), example)
        return tf_dataset(lambda index: self.part_of(index, part, parts), signature, len(self))


class _RowsOf:
    """Draws for a whole update and returns some of its rows, so that masks do not depend on the split.

    `drawn` holds what the first part has drawn, so that the other parts use the same.
    """

    def __init__(self, rng: np.random.Generator, count: int, own: slice, drawn: list[np.ndarray]) -> None:
        self._rng, self._count, self._own = rng, count, own
        self._drawn, self._taken = drawn, 0

    def random(self, size: tuple[int, int]) -> np.ndarray:
        return self._next(self._rng.random, size)

    def integers(self, low: int, high: int, size: tuple[int, int]) -> np.ndarray:
        return self._next(lambda size: self._rng.integers(low, high, size), size)

    def _next(self, draw: Callable[[tuple[int, int]], np.ndarray], size: tuple[int, int]) -> np.ndarray:
        if self._taken == len(self._drawn):
            self._drawn.append(draw((self._count, size[1])))
        self._taken += 1
        return self._drawn[self._taken - 1][self._own]
