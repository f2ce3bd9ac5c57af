"""Batches of pre-training examples from TFRecords, as google-research/bert, the Model Garden and NVIDIA write them."""

import os
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import numpy as np

from keras_bert_zoo.checks import check_positive_int, check_seed
from keras_bert_zoo.pretraining.records import IDS, INPUTS, LABELS, WEIGHTS, import_tensorflow
from keras_bert_zoo.text.tf_dataset import untuned
from keras_bert_zoo.text.tokenizer import BertTokenizer

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_SHUFFLED_TOGETHER = 10_000
_LOOKED_AT = 1_000
_FILES_AT_ONCE = 8


def read_records(paths: Paths, batch_size: int, shuffle_seed: int | None = None, next_sentence: bool = True) -> Any:
    """TFRecord files as batches for `BertPretrainer` and `BertMaskedLM`, like those of `PretrainingBatches`.

    Takes what google-research/bert, the TensorFlow Model Garden and NVIDIA's scripts write.

    Args:
        paths: Files, or one pattern such as `"gs://bucket/*.tfrecord"`.
        batch_size: Examples a batch; the last, incomplete one is left out.
        shuffle_seed: Shuffle files, and each 10,000 examples of what they hold, anew for each pass; None keeps the
            order.
        next_sentence: Whether to give the targets of next-sentence prediction.

    Returns:
        A `tf.data.Dataset` of fixed shapes. Shuffled it goes round without end: give `fit` its `steps_per_epoch`.
        In order it is one pass, to evaluate. Several workers share the batches, none of which comes twice or never.

    Raises:
        ValueError: There is no such file, or its records have other features.
    """
    check_positive_int(batch_size=batch_size)
    files = RecordFiles(paths)
    examples = files.in_order() if shuffle_seed is None else files.shuffled(shuffle_seed)
    return files.batch(examples, batch_size, next_sentence)


class RecordFiles:
    """TFRecord files, and what their first record says of all.

    Args:
        paths: As in `read_records`.
        name: The argument that errors name.
    """

    def __init__(self, paths: Paths, name: str = "paths") -> None:
        self._tf = tf = import_tensorflow()
        if isinstance(paths, (str, os.PathLike)):
            self.files = sorted(tf.io.gfile.glob(os.fspath(paths)))
        else:
            self.files = [os.fspath(path) for path in paths]
        missing = [path for path in self.files if not tf.io.gfile.exists(path) or tf.io.gfile.isdir(path)]
        if not self.files or missing:
            raise ValueError(f"`{name}` must be TFRecord files. Received: {missing or paths!r}")
        self._names, self._spec = _features(tf, self.files[0])

    def in_order(self) -> Any:
        """One pass over the records, a file after another."""
        return self._tf.data.TFRecordDataset(self.files)

    def shuffled(self, seed: int, start: int = 0, count: int = 0) -> Any:
        """Pass after pass without end, each in an order of its own, which is the same wherever one starts.

        Args:
            seed: Where the order comes from.
            start: Records to leave out, in whole passes without reading them.
            count: Records of a pass; only where some are left out.
        """
        tf = self._tf
        first, skipped = divmod(start, count) if start else (0, 0)

        # Not `Dataset.shuffle`, whose seed may be no tensor, and whose order depends on TensorFlow's own seed, too.
        shuffle, fold_in = tf.random.experimental.stateless_shuffle, tf.random.experimental.stateless_fold_in

        def one_pass(number: Any) -> Any:
            chance = fold_in(tf.constant([seed, 0], "int64"), number)
            files = tf.data.Dataset.from_tensor_slices(shuffle(tf.constant(self.files), chance))
            records = files.interleave(tf.data.TFRecordDataset, cycle_length=min(_FILES_AT_ONCE, len(self.files)))
            blocks = records.batch(_SHUFFLED_TOGETHER).enumerate(1)
            blocks = blocks.map(lambda block, together: shuffle(together, fold_in(chance, block))).prefetch(1)
            return blocks.unbatch().skip(tf.where(number == first, tf.constant(skipped, "int64"), 0))

        return tf.data.Dataset.range(first, np.iinfo("int64").max).flat_map(one_pass)

    def batch(self, records: Any, batch_size: int, next_sentence: bool, parts: int = 1) -> Any:
        """Of records the batches, each in so many parts, which have the weights of the whole."""
        tf = self._tf

        def parse(records: Any) -> Any:
            parsed = tf.io.parse_example(records, self._spec)
            inputs = {ours: tf.cast(parsed[theirs], "int32") for ours, theirs in self._names.items()}
            size = tf.cast(tf.size(parsed[WEIGHTS]), "float32")
            total = tf.maximum(tf.reduce_sum(parsed[WEIGHTS]), 1.0)
            targets = {"mlm": tf.cast(parsed[IDS], "int32")}
            weights = {"mlm": parsed[WEIGHTS] * (size / total)}
            if next_sentence:
                targets["nsp"] = tf.cast(parsed[LABELS][:, 0], "int32")
                weights["nsp"] = tf.ones(batch_size)
            return inputs, targets, weights

        workers = min(16, os.cpu_count() or 1)
        dataset = records.batch(batch_size, drop_remainder=True).map(parse, num_parallel_calls=workers)
        if parts > 1:
            dataset = dataset.unbatch().batch(batch_size // parts, drop_remainder=True)
        # Left to itself TensorFlow gives each worker files, and of fewer files than there are workers, or of files that
        # are not equally long, some examples twice and others never. So each reads all and takes its share of batches.
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
        return untuned(dataset.prefetch(2)).with_options(options)

    def count(self) -> int:
        """The number of records, which are read for it."""
        records = self._tf.data.TFRecordDataset(self.files, num_parallel_reads=min(_FILES_AT_ONCE, len(self.files)))
        return int(records.reduce(np.int64(0), lambda count, _: count + 1))

    def digest(self) -> str:
        """Of the files' names and sizes."""
        sizes = [f"{path} {self._tf.io.gfile.stat(path).length}" for path in self.files]
        return sha256("\n".join(sizes).encode()).hexdigest()


class RecordBatches:
    """What `pretrain` needs of TFRecords: what `PretrainingBatches` says of itself, and the batches from any one on.

    Whether they are of pairs, how long texts are and how many predictions they have, the first 1,000 examples say.

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
        check_seed(seed=seed)
        self._files = RecordFiles(data, name)
        self.tokenizer, self.batch_size, self._seed = tokenizer, batch_size, seed
        self._parts = gradient_accumulation_steps
        self.examples = self._files.count()
        if self.examples < batch_size * self._parts:
            raise ValueError(
                f"`batch_size` must be at most the number of examples, {self.examples}. "
                f"Received: batch_size={batch_size * self._parts}"
            )
        looked_at = self._files.in_order().take(min(_LOOKED_AT, self.examples))
        inputs, _, weights = next(iter(self._files.batch(looked_at, min(_LOOKED_AT, self.examples), True)))
        lengths = inputs["padding_mask"].numpy().sum(axis=1)
        self.sequence_length = inputs["token_ids"].shape[1]
        self.mean_length = float(lengths.mean())
        self.mean_predictions = float((weights["mlm"].numpy() > 0).sum(axis=1).mean())
        self.pairs = self.next_sentence = bool(inputs["segment_ids"].numpy().any())

    @property
    def digest(self) -> str:
        return self._files.digest()

    def start_at(self, batch: int) -> Any:
        """A `tf.data.Dataset` without end, shuffled anew for each pass; `batch` starts an update."""
        records = self._files.shuffled(self._seed, batch * self.batch_size, self.examples)
        return self._files.batch(records, self.batch_size * self._parts, self.next_sentence, self._parts)

    def in_order(self) -> Any:
        """One pass of known length, to evaluate: Keras warns of another one's end."""
        count = import_tensorflow().data.experimental.assert_cardinality(self.examples // self.batch_size)
        return self._files.batch(self._files.in_order(), self.batch_size, self.next_sentence).apply(count)


def _features(tf: Any, path: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Our inputs' names in the file, and what its records hold, both read off the first one."""
    from google.protobuf.message import DecodeError

    name = os.path.basename(path)
    try:
        record = next(iter(tf.data.TFRecordDataset(path).take(1).as_numpy_iterator()), None)
        features = tf.train.Example.FromString(record or b"").features.feature
    except (tf.errors.DataLossError, DecodeError, ValueError) as error:
        raise ValueError(f"{name} must be a TFRecord file ({type(error).__name__})") from None
    names = {ours: next((name for name in theirs if name in features), "") for ours, theirs in INPUTS.items()}
    expected = [*names.values(), IDS, WEIGHTS, LABELS]
    if "" in names.values() or not set(expected) <= set(features):
        raise ValueError(f"{name} must hold the features of BERT's pre-training. Received: {sorted(features)}")
    return names, {
        name: tf.io.FixedLenFeature(
            [len(features[name].float_list.value or features[name].int64_list.value)],
            "float32" if name == WEIGHTS else "int64",
        )
        for name in expected
    }
