"""TFRecords of pre-training examples, as google-research/bert's create_pretraining_data.py writes them.

Needs TensorFlow, whose file system it goes through: `gs://` paths work where TensorFlow reads them.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_bert_zoo.checks import check_positive_int
from keras_bert_zoo.models.masked_lm import MASK_POSITIONS
from keras_bert_zoo.pretraining.batches import PretrainingBatches
from keras_bert_zoo.text.tf_dataset import untuned

# Ours, and what the original and NVIDIA's scripts call it, and the Model Garden.
_INPUTS = {
    "token_ids": ("input_ids", "input_word_ids"),
    "segment_ids": ("segment_ids", "input_type_ids"),
    "padding_mask": ("input_mask",),
    MASK_POSITIONS: ("masked_lm_positions",),
}
_IDS, _WEIGHTS, _LABELS = "masked_lm_ids", "masked_lm_weights", "next_sentence_labels"
_SHUFFLED_TOGETHER = 10_000
_EXAMPLES_A_FILE = 50_000
_PART = ".part"


def _tensorflow() -> Any:
    try:
        import tensorflow
    except ImportError as error:
        raise ValueError(
            f'TFRecords need TensorFlow: pip install "keras-bert-zoo[tensorflow]". Received: {error}'
        ) from None
    return tensorflow


def write_records(data: str | os.PathLike[str], out: str | os.PathLike[str], verbose: bool = True) -> int:
    """Write a data set of fixed masks as TFRecord files with the original's seven features.

    Args:
        data: A data set that `prepare` made with `fix_masks`.
        out: Directory to make, for the files `shard-00000-of-00002.tfrecord`, … of some 50,000 examples each.
        verbose: Show progress.

    Returns:
        The number of examples.

    Raises:
        ValueError: The masks are not fixed, or TensorFlow is missing.
    """
    tf = _tensorflow()
    batches = PretrainingBatches(data, batch_size=1)
    if batches.shard.mask_ends is None:
        raise ValueError(f"`data` must have fixed masks, from prepare(fix_masks=True). Received: data={str(data)!r}")
    folder = os.fspath(out)
    if tf.io.gfile.exists(folder) and not all(name.endswith(_PART) for name in tf.io.gfile.listdir(folder)):
        raise ValueError(f"`out` must be a new or empty directory. Received: out={folder!r}")
    tf.io.gfile.makedirs(folder)
    starts = range(0, batches.examples, _EXAMPLES_A_FILE)
    paths = [os.path.join(folder, f"shard-{n:05d}-of-{len(starts):05d}.tfrecord") for n in range(len(starts))]
    progress = keras.utils.Progbar(batches.examples, verbose=int(verbose), unit_name="example")
    for start, path in zip(starts, paths, strict=True):
        stop = min(start + _EXAMPLES_A_FILE, batches.examples)
        with tf.io.TFRecordWriter(path + _PART) as writer:
            for first in range(start, stop, 256):
                for example in _examples(tf, *batches.take(np.arange(first, min(first + 256, stop)))):
                    writer.write(example)
                progress.update(min(first + 256, stop))
    for path in paths:  # None of them before all are whole.
        tf.io.gfile.rename(path + _PART, path)
    return batches.examples


def _examples(tf: Any, inputs: Any, targets: Any, weights: Any) -> Iterator[bytes]:
    labels = targets.get("nsp", np.zeros(len(targets["mlm"]), "int32"))
    for row in range(len(targets["mlm"])):
        integers = {theirs[0]: inputs[ours][row] for ours, theirs in _INPUTS.items()}
        integers |= {_IDS: targets["mlm"][row], _LABELS: labels[row : row + 1]}
        feature = {
            name: tf.train.Feature(int64_list=tf.train.Int64List(value=values.tolist()))
            for name, values in integers.items()
        }
        kept = (weights["mlm"][row] > 0).astype("float32")
        feature[_WEIGHTS] = tf.train.Feature(float_list=tf.train.FloatList(value=kept.tolist()))
        yield tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


def read_records(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    batch_size: int,
    shuffle_seed: int | None = None,
    next_sentence: bool = True,
) -> Any:
    """TFRecord files as batches for `BertPretrainer` and `BertMaskedLM`, like those of `PretrainingBatches`.

    Takes what google-research/bert, the TensorFlow Model Garden and NVIDIA's scripts write.

    Args:
        paths: Files, or one pattern such as `"gs://bucket/*.tfrecord"`.
        batch_size: Examples a batch; the last, incomplete one is left out.
        shuffle_seed: Shuffle files, and examples within a window, anew each epoch; None keeps the order.
        next_sentence: Whether to give the targets of next-sentence prediction.

    Returns:
        A `tf.data.Dataset` of fixed shapes. Shuffled it goes round without end: give `fit` its `steps_per_epoch`.
        In order it is one pass, to evaluate. Several workers share the batches, none of which comes twice or never.

    Raises:
        ValueError: There is no such file, or its records have other features.
    """
    tf = _tensorflow()
    check_positive_int(batch_size=batch_size)
    if isinstance(paths, (str, os.PathLike)):
        files = sorted(tf.io.gfile.glob(os.fspath(paths)))
    else:
        files = [os.fspath(path) for path in paths]
    missing = [path for path in files if not tf.io.gfile.exists(path)]
    if not files or missing:
        raise ValueError(f"`paths` must be TFRecord files. Received: {missing or paths!r}")
    names, spec = _features(tf, files[0])

    def batch(records: Any) -> Any:
        parsed = tf.io.parse_example(records, spec)
        inputs = {ours: tf.cast(parsed[theirs], "int32") for ours, theirs in names.items()}
        size = tf.cast(tf.size(parsed[_WEIGHTS]), "float32")
        total = tf.maximum(tf.reduce_sum(parsed[_WEIGHTS]), 1.0)
        targets = {"mlm": tf.cast(parsed[_IDS], "int32")}
        weights = {"mlm": parsed[_WEIGHTS] * (size / total)}
        if next_sentence:
            targets["nsp"] = tf.cast(parsed[_LABELS][:, 0], "int32")
            weights["nsp"] = tf.ones(batch_size)
        return inputs, targets, weights

    dataset = tf.data.Dataset.from_tensor_slices(files)
    if shuffle_seed is not None:
        dataset = dataset.shuffle(len(files), shuffle_seed)
    dataset = dataset.interleave(
        tf.data.TFRecordDataset, cycle_length=1 if shuffle_seed is None else min(8, len(files))
    )
    if shuffle_seed is not None:
        dataset = dataset.shuffle(_SHUFFLED_TOGETHER, shuffle_seed).repeat()
    dataset = dataset.batch(batch_size, drop_remainder=True).map(batch, num_parallel_calls=min(16, os.cpu_count() or 1))
    # Left to itself TensorFlow gives each worker files, and of fewer files than there are workers, or of files that are
    # not equally long, some examples twice and others never. So each reads all of them and takes its share of batches.
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return untuned(dataset.prefetch(2)).with_options(options)


def _features(tf: Any, path: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Our inputs' names in the file, and what its records hold, both read off the first one."""
    from google.protobuf.message import DecodeError

    try:
        record = next(iter(tf.data.TFRecordDataset(path).take(1).as_numpy_iterator()), None)
        features = tf.train.Example.FromString(record or b"").features.feature
    except (tf.errors.DataLossError, DecodeError, ValueError) as error:
        raise ValueError(f"{Path(path).name} must be a TFRecord file ({type(error).__name__})") from None
    names = {ours: next((name for name in theirs if name in features), "") for ours, theirs in _INPUTS.items()}
    expected = [*names.values(), _IDS, _WEIGHTS, _LABELS]
    if "" in names.values() or not set(expected) <= set(features):
        raise ValueError(
            f"{Path(path).name} must hold the features of BERT's pre-training. Received: {sorted(features)}"
        )
    return names, {
        name: tf.io.FixedLenFeature(
            [len(features[name].float_list.value or features[name].int64_list.value)],
            "float32" if name == _WEIGHTS else "int64",
        )
        for name in expected
    }
