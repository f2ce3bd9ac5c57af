"""Batches of pre-training examples from TFRecords of google-research/bert, the Model Garden or NVIDIA."""

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

from keras_bert_zoo.checks import check_positive_int, check_seed, listed
from keras_bert_zoo.models.masked_lm import MASK_POSITIONS
from keras_bert_zoo.pretraining.record_files import Paths, RecordFiles
from keras_bert_zoo.pretraining.records import import_tensorflow
from keras_bert_zoo.text.tokenizer import BertTokenizer

_LOOKED_AT = 1_000
# What our checks and TensorFlow's parser say.
_OF_A_RECORD = re.compile(r"`\w+` must be in \[0, [^.\n]*|Key: .*|Can't parse serialized .*|Could not parse example .*")


def read_records(paths: Paths, batch_size: int, shuffle_seed: int | None = None, next_sentence: bool = True) -> Any:
    """Read TFRecord files as batches for `BertPretrainer` and `BertMaskedLM`, like those of `PretrainingBatches`.

    Reads the files of google-research/bert, the TensorFlow Model Garden and NVIDIA's scripts. Before TensorFlow reads,
    only the first record of each file and the lengths of the first `batch_size` records are checked; other damage stops
    the pass with TensorFlow's error.

    Args:
        paths: Files, or one pattern such as `"gs://bucket/*.tfrecord"`.
        batch_size: Number of examples per batch.
        shuffle_seed: Seed to shuffle the files, and each 10,000 examples read from them, anew for each pass; None keeps
            the order.
        next_sentence: Whether to include the targets of next-sentence prediction, which `BertPretrainer` learns and
            `BertMaskedLM` does not accept. They are 0 in records without pairs.

    Returns:
        A `tf.data.Dataset` of fixed shapes. If shuffled, it repeats endlessly: pass `steps_per_epoch` to `fit`.
        Otherwise it is one pass, for evaluation, without the last, incomplete batch. Several workers share the batches,
        and each batch is read exactly once.

    Raises:
        ValueError: There is no such file, its records have other features, or there are fewer examples than a batch
            has.
    """
    check_positive_int(batch_size=batch_size)
    if shuffle_seed is not None:
        check_seed(shuffle_seed=shuffle_seed)
    files = RecordFiles(paths)
    if not files.have(batch_size):
        raise ValueError(f"`batch_size` must be at most the number of examples. Received: batch_size={batch_size}")
    records = files.in_order() if shuffle_seed is None else files.shuffled(shuffle_seed)
    return files.batch(records, batch_size, next_sentence)


class RecordBatches:
    """TFRecords for `pretrain`, with the properties of `PretrainingBatches`; the batches can start at any update.

    The first 1,000 examples tell the mean length, the mean number of predictions, and whether the examples are pairs.
    They must be examples of the tokenizer.

    Args:
        data: One pattern, as in `read_records`.
        tokenizer: The tokenizer of the examples.
        batch_size: Number of examples per batch.
        seed: Seed of the order.
        gradient_accumulation_steps: Number of batches per update, as in `PretrainingBatches`.
        name: Name of the argument in error messages.
    """

    next_token = False  # The records are masked already.

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
        errors, files = import_tensorflow().errors, listed([os.path.basename(path) for path in self._files.files])
        try:
            inputs, targets, weights = next(batch.as_numpy_iterator())
        except errors.DataLossError:  # A checksum does not match its record.
            raise ValueError(
                f"`{name}` must hold whole records. Received: a damaged one among the first {looked_at:,} of {files}"
            ) from None
        except (errors.OpError, ValueError):  # TensorFlow's messages have several lines.
            raise ValueError(
                f"`{name}` must have the features and lengths of its first record in every record. "
                f"Received: others among the first {looked_at:,} of {files}"
            ) from None
        _check(name, tokenizer, inputs, targets)
        self.sequence_length = inputs["token_ids"].shape[1]
        self.mean_length = float(inputs["padding_mask"].sum(axis=1).mean())
        self.mean_predictions = float((weights["mlm"] > 0).sum(axis=1).mean())
        self.pairs = self.next_sentence = bool(inputs["segment_ids"].any())

    @property
    def digest(self) -> str:
        """Checksum of the files' names and sizes, and of the tokenizer."""
        return sha256(json.dumps([self._files.sizes, self.tokenizer.get_config()]).encode()).hexdigest()

    def start_at(self, batch: int) -> Any:
        """Return an endless `tf.data.Dataset`, shuffled anew for each pass; `batch` must start an update."""
        records = self._files.shuffled(self._seed, *divmod(batch * self.batch_size, self.examples))
        return self._files.batch(records, self.batch_size * self._parts, self.next_sentence, self._parts)

    def in_order(self) -> Any:
        """Return one pass, for evaluation."""
        return self._files.batch(self._files.in_order(self.examples), self.batch_size, self.next_sentence)


@contextmanager
def refused_records(last: Callable[[], str]) -> Iterator[None]:
    """Turn TensorFlow's error at a record behind the first 1,000 into a `ValueError` that ends with `last()`."""
    errors = import_tensorflow().errors
    try:
        yield
    except (errors.DataLossError, errors.InvalidArgumentError) as error:
        said = _OF_A_RECORD.search(error.message)  # A step has errors of its own.
        if said is None and not isinstance(error, errors.DataLossError):
            raise
        what = said[0] if said else "a damaged one"
        raise ValueError(
            f"`data` and `validation` must hold whole records of valid examples. Received: {what}; {last()}"
        ) from None


def _check(name: str, tokenizer: BertTokenizer, inputs: dict[str, Any], targets: dict[str, Any]) -> None:
    """Refuse impossible values and, as far as the ids show it, examples of another tokenizer, before a run."""
    size, length = tokenizer.vocabulary_size, inputs["token_ids"].shape[1]
    for what, values, stop, whose in (
        ("token ids", inputs["token_ids"], size, ", those of `vocab`"),
        ("masked tokens", targets["mlm"], size, ", those of `vocab`"),
        ("positions of masked tokens", inputs[MASK_POSITIONS], length, ""),
        ("segments", inputs["segment_ids"], 2, ""),
        ("labels of next sentences", targets["nsp"], 2, ""),
    ):
        if values.min() < 0 or values.max() >= stop:
            wrong = values[(values < 0) | (values >= stop)][0]
            raise ValueError(f"`{name}` must have {what} in [0, {stop}){whose}. Received: {wrong}")
    first = inputs["token_ids"][:, 0]
    if (first != tokenizer.cls_token_id).any():
        raise ValueError(
            f"`{name}` must begin each example with [CLS], {tokenizer.cls_token_id} in `vocab`. Received: "
            f"{first[first != tokenizer.cls_token_id][0]}"
        )
