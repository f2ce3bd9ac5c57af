"""Read TFRecord files of pre-training examples with `tf.data`: their order and their batches."""

import os
import re
import reprlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any

import numpy as np

from keras_bert_zoo.pretraining.records import IDS, INPUTS, LABELS, PART, WEIGHTS, import_tensorflow, refused_files
from keras_bert_zoo.text.tf_dataset import untuned

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_SHUFFLED_TOGETHER = 10_000
_FILES_AT_ONCE = 8
# Bytes per read of record headers: one call per record would take longer than reading everything.
_READ = 2**20
_OF_A_SET = re.compile(r"shard-\d+(-of-\d+\.tfrecord)")  # The names that `write_records` gives.


class RecordFiles:
    """TFRecord files that share features and lengths, as given by the first record of each.

    Args:
        paths: Files, or one pattern; files without records are left out.
        name: Name of the argument in error messages.
    """

    def __init__(self, paths: Paths, name: str = "paths") -> None:
        self._tf = tf = import_tensorflow()
        with refused_files(f"`{name}` must be TFRecord files that can be read. Received: {paths!r}"):
            if isinstance(paths, (str, os.PathLike)):
                files = sorted(tf.io.gfile.glob(os.fspath(paths)))
            else:
                files = [os.fspath(path) for path in paths]
            sizes = {path: _bytes(tf, path) for path in files}
            self.sizes = {path: size for path, size in sizes.items() if size is not None}
            missing = [path for path in files if path not in self.sizes]
            if not files or missing:
                raise ValueError(f"`{name}` must be TFRecord files. Received: {missing or paths!r}")
            _check_sets(tf, files, name)
            found = {path: each for path in files if (each := _features(tf, path, self.sizes[path])) is not None}
        if not found:
            raise ValueError(f"`{name}` must be TFRecord files with examples. Received: {paths!r}, which hold none")
        self.files = list(found)
        self._names, self._spec = found[self.files[0]]
        for path, (_, spec) in found.items():
            if spec != self._spec:
                one, other = (os.path.basename(file) for file in (self.files[0], path))
                here, there = ({name: each.shape[0] for name, each in of.items()} for of in (spec, self._spec))
                raise ValueError(f"{other} must have the features and lengths of {one}, {there}. Received: {here}")

    def in_order(self, count: int | None = None) -> Any:
        """Return one pass over the records, one file after another.

        Args:
            count: Number of records, if known; Keras warns when a data set of unknown length ends.
        """
        records = self._tf.data.TFRecordDataset(self.files)
        return records if count is None else self._of_length(records, count)

    def shuffled(self, seed: int, first_pass: int = 0, skipped: int = 0) -> Any:
        """Return endless passes, each in its own order, which does not depend on where reading starts.

        Args:
            seed: Seed of the order.
            first_pass: Number of passes to skip.
            skipped: Number of records of the next pass to skip; they are read nevertheless.
        """
        tf = self._tf
        # Not `Dataset.shuffle`: its order also depends on TensorFlow's own seed.
        shuffle, fold_in = tf.random.experimental.stateless_shuffle, tf.random.experimental.stateless_fold_in

        def one_pass(number: Any) -> Any:
            chance = fold_in(tf.constant([seed, 0], "int64"), number)
            files = tf.data.Dataset.from_tensor_slices(shuffle(tf.constant(self.files), chance))
            records = files.interleave(tf.data.TFRecordDataset, cycle_length=min(_FILES_AT_ONCE, len(self.files)))
            # Blocks begin at a different place in each pass, so that the same examples are not always shuffled
            # together.
            first = tf.random.stateless_uniform([], chance, 1, _SHUFFLED_TOGETHER + 1, "int64")
            blocks = records.take(first).batch(_SHUFFLED_TOGETHER)
            blocks = blocks.concatenate(records.skip(first).batch(_SHUFFLED_TOGETHER)).enumerate(1)
            blocks = blocks.map(lambda block, together: shuffle(together, fold_in(chance, block))).prefetch(1)
            return blocks.unbatch().skip(tf.where(number == first_pass, tf.constant(skipped, "int64"), 0))

        passes = tf.data.Dataset.range(first_pass, np.iinfo("int64").max)
        # State the cardinality: otherwise workers ask each other at each step whether there is a batch.
        return self._of_length(passes.flat_map(one_pass), tf.data.INFINITE_CARDINALITY)

    def batch(self, records: Any, batch_size: int, next_sentence: bool, parts: int = 1) -> Any:
        """Batch the records, and split each batch into `parts` parts that have the weights of the whole."""
        tf = self._tf

        def narrow(values: Any) -> Any:
            """Convert to int32; a value that it cannot hold stays out of every range, and so is refused."""
            return tf.cast(tf.clip_by_value(values, tf.int32.min, tf.int32.max), "int32")

        def parse(records: Any) -> Any:
            parsed = tf.io.parse_example(records, self._spec)
            inputs = {ours: narrow(parsed[theirs]) for ours, theirs in self._names.items()}
            size = tf.cast(tf.size(parsed[WEIGHTS]), "float32")
            total = tf.maximum(tf.reduce_sum(parsed[WEIGHTS]), 1.0)
            targets = {"mlm": narrow(parsed[IDS])}
            weights = {"mlm": parsed[WEIGHTS] * (size / total)}
            if next_sentence:
                targets["nsp"] = narrow(parsed[LABELS][:, 0])
                weights["nsp"] = tf.ones(batch_size)
            return inputs, targets, weights

        def divide(*batch: Any) -> Any:
            return tf.nest.map_structure(
                lambda tensor: tf.reshape(tensor, [parts, batch_size // parts, *tensor.shape[1:]]), batch
            )

        workers = max(1, min(16, os.cpu_count() or 1) // parts)  # Each worker holds all parts of a batch.
        dataset = records.batch(batch_size, drop_remainder=True).map(parse, num_parallel_calls=workers)
        if parts > 1:
            dataset = dataset.map(divide).unbatch()
        # By default TensorFlow gives each worker its own files. With fewer files than workers, or files of unequal
        # length, some examples come twice and others never. So each worker reads all files and takes its share of the
        # batches.
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
        return untuned(dataset.prefetch(2)).with_options(options)

    def count(self) -> int:
        """Count the records according to their headers, and check that these cannot crash TensorFlow.

        TensorFlow reports damage within a record when it reads that record.
        """
        count = 0
        for path in self.files:
            with _whole(path):
                count += sum(1 for _ in _lengths(self._tf, path, self.sizes[path]))
        return count

    def have(self, count: int) -> bool:
        """Whether there are at least `count` records, according to their headers."""
        for path in self.files:
            with _whole(path):
                count -= sum(1 for _ in islice(_lengths(self._tf, path, self.sizes[path]), count))
        return count == 0

    def _of_length(self, records: Any, count: int) -> Any:
        return records.apply(self._tf.data.experimental.assert_cardinality(count))


def _whole(path: str) -> AbstractContextManager[None]:
    return refused_files(f"{os.path.basename(path)} must be a whole TFRecord file")


def _check_sets(tf: Any, files: Sequence[str], name: str) -> None:
    """Refuse files of a set that `write_records` could not finish."""
    places = map(os.path.split, files)
    sets = {(folder or ".", match[1]) for folder, file in places if (match := _OF_A_SET.fullmatch(file))}
    for folder, end in sets:
        if parts := [each for each in tf.io.gfile.listdir(folder) if each.endswith(end + PART)]:
            raise ValueError(f"`{name}` must be files of a finished set. Received: {folder} with {min(parts)}")


def _bytes(tf: Any, path: str) -> int | None:
    """Return the size of a file, or None if there is none."""
    try:
        found = tf.io.gfile.stat(path)
    except tf.errors.NotFoundError:
        return None
    return None if found.is_directory else int(found.length)


def _lengths(tf: Any, path: str, size: int) -> Iterator[int]:
    """Yield the size of each record, checked against the file: TensorFlow's reader would allocate any size and crash.

    A record is its length (8 bytes), a checksum of that (4), the data, and a checksum of the data (4).
    """
    with tf.io.gfile.GFile(path, "rb") as file:
        place, start, block = 0, 0, b""
        while place < size:
            if place + 8 > start + len(block):
                start = place
                file.seek(start)
                block = file.read(_READ)
            length = int.from_bytes(block[place - start : place - start + 8], "little")
            if place + length + 16 > size:
                raise tf.errors.DataLossError(None, None, f"the record at {place} does not end at {size} or before")
            yield length
            place += length + 16


def _features(tf: Any, path: str, size: int) -> tuple[dict[str, str], dict[str, Any]] | None:
    """Return the inputs' names in the file and its features, from the first record, or None if there is none."""
    from google.protobuf.message import DecodeError

    file = os.path.basename(path)
    try:
        next(_lengths(tf, path, size), None)
        record = next(iter(tf.data.TFRecordDataset(path).take(1).as_numpy_iterator()), None)
        if record is None:
            return None
        features = tf.train.Example.FromString(record).features.feature
    except (tf.errors.DataLossError, DecodeError, ValueError) as error:
        raise ValueError(f"{file} must be a TFRecord file ({type(error).__name__})") from None
    names = {ours: next((name for name in theirs if name in features), "") for ours, theirs in INPUTS.items()}
    expected = [*names.values(), IDS, WEIGHTS, LABELS]
    if "" in names.values() or not set(expected) <= set(features):
        raise ValueError(
            f"{file} must hold the features of BERT's pre-training. Received: {reprlib.repr(sorted(features))}"
        )
    kinds = {name: "float32" if name == WEIGHTS else "int64" for name in expected}
    sizes = {
        name: len(features[name].float_list.value if name == WEIGHTS else features[name].int64_list.value)
        for name in expected
    }
    empty = [name for name, size in sizes.items() if not size]
    if empty:
        raise ValueError(f"{file} must hold integers, and weights that are floats. Received: none in {empty}")
    return names, {name: tf.io.FixedLenFeature([sizes[name]], kinds[name]) for name in expected}
