"""Batches of pre-training examples from TFRecords, as google-research/bert, the Model Garden and NVIDIA write them."""

import json
from hashlib import sha256
from typing import Any

from keras_bert_zoo.checks import check_positive_int
from keras_bert_zoo.models.masked_lm import MASK_POSITIONS
from keras_bert_zoo.pretraining.record_files import Paths, RecordFiles
from keras_bert_zoo.text.tokenizer import BertTokenizer

_LOOKED_AT = 1_000


def read_records(paths: Paths, batch_size: int, shuffle_seed: int | None = None, next_sentence: bool = True) -> Any:
    """TFRecord files as batches for `BertPretrainer` and `BertMaskedLM`, like those of `PretrainingBatches`.

    Takes what google-research/bert, the TensorFlow Model Garden and NVIDIA's scripts write.

    Args:
        paths: Files, or one pattern such as `"gs://bucket/*.tfrecord"`.
        batch_size: Examples a batch.
        shuffle_seed: Shuffle files, and each 10,000 examples that come from them, anew for each pass; None keeps the
            order.
        next_sentence: Whether to give the targets of next-sentence prediction, which `BertPretrainer` learns and
            `BertMaskedLM` does not take. Records that are of no pairs have a 0 there.

    Returns:
        A `tf.data.Dataset` of fixed shapes. Shuffled it goes round without end: give `fit` its `steps_per_epoch`. In
        order it is one pass, to evaluate, without the last, incomplete batch. Several workers share the batches, none
        of which comes twice or never.

    Raises:
        ValueError: There is no such file, its records have other features, or there are fewer than a batch has.
    """
    check_positive_int(batch_size=batch_size)
    files = RecordFiles(paths)
    if not files.have(batch_size):
        raise ValueError(f"`batch_size` must be at most the number of examples. Received: batch_size={batch_size}")
    records = files.in_order() if shuffle_seed is None else files.shuffled(shuffle_seed)
    return files.batch(records, batch_size, next_sentence)


class RecordBatches:
    """What `pretrain` needs of TFRecords: what `PretrainingBatches` says of itself, and the batches from any one on.

    The first 1,000 examples say whether they are of pairs, how long they are and how many predictions they have, and
    must be the tokenizer's.

    Args:
        data: One pattern, as in `read_records`.
        tokenizer: That of the examples.
        batch_size: Examples a batch.
        seed: Where the order comes from.
        gradient_accumulation_steps: Batches that make one update, as in `PretrainingBatches`.
        name: The argument that errors name.
    """

    next_token = False  # They are masked already.

    def __init__(
        self,
        data: str,
        tokenizer: BertTokenizer,
        batch_size: int,
        seed: int = 0,
        gradient_accumulation_steps: int = 1,
        name: str = "data",
    ) -> None:
        self._files = RecordFiles(data, name)
        self.tokenizer, self.batch_size, self._seed = tokenizer, batch_size, seed
        self._parts = gradient_accumulation_steps
        self.examples = self._files.count()
        if self.examples < batch_size * self._parts:
            raise ValueError(
                f"`batch_size` must be at most the number of examples of `{name}`, {self.examples}. "
                f"Received: batch_size={batch_size * self._parts}"
            )
        looked_at = min(_LOOKED_AT, self.examples)
        batch = self._files.batch(self._files.in_order(), looked_at, True)
        inputs, targets, weights = next(batch.as_numpy_iterator())
        _check(name, tokenizer, inputs, targets)
        self.sequence_length = inputs["token_ids"].shape[1]
        self.mean_length = float(inputs["padding_mask"].sum(axis=1).mean())
        self.mean_predictions = float((weights["mlm"] > 0).sum(axis=1).mean())
        self.pairs = self.next_sentence = bool(inputs["segment_ids"].any())

    @property
    def digest(self) -> str:
        """Of the files' names and sizes, and of the tokenizer."""
        return sha256(json.dumps([self._files.sizes, self.tokenizer.get_config()]).encode()).hexdigest()

    def start_at(self, batch: int) -> Any:
        """A `tf.data.Dataset` without end, shuffled anew for each pass; `batch` starts an update."""
        records = self._files.shuffled(self._seed, *divmod(batch * self.batch_size, self.examples))
        return self._files.batch(records, self.batch_size * self._parts, self.next_sentence, self._parts)

    def in_order(self) -> Any:
        """One pass, to evaluate."""
        return self._files.batch(self._files.in_order(self.examples), self.batch_size, self.next_sentence)


def _check(name: str, tokenizer: BertTokenizer, inputs: dict[str, Any], targets: dict[str, Any]) -> None:
    """Refuse examples of another tokenizer, as far as ids tell, before a run begins."""
    size, length = tokenizer.vocabulary_size, inputs["token_ids"].shape[1]
    for what, values, stop in (
        ("token ids", inputs["token_ids"], size),
        ("masked tokens", targets["mlm"], size),
        ("positions of masked tokens", inputs[MASK_POSITIONS], length),
    ):
        if values.min() < 0 or values.max() >= stop:
            wrong = values[(values < 0) | (values >= stop)][0]
            raise ValueError(f"`{name}` must have {what} in [0, {stop}), those of `vocab`. Received: {wrong}")
    first = inputs["token_ids"][:, 0]
    if (first != tokenizer.cls_token_id).any():
        raise ValueError(
            f"`{name}` must begin each example with [CLS], {tokenizer.cls_token_id} in `vocab`. Received: "
            f"{first[first != tokenizer.cls_token_id][0]}"
        )
