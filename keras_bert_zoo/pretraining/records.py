"""Write pre-training examples as TFRecords, in the format of google-research/bert's create_pretraining_data.py.

Needs TensorFlow and uses its file systems: `gs://` paths work if TensorFlow can read them.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np

from keras_bert_zoo.models.masked_lm import MASK_POSITIONS
from keras_bert_zoo.pretraining.batches import PretrainingBatches

# Our names, then those of the original and NVIDIA's scripts, then those of the Model Garden.
INPUTS = {
    "token_ids": ("input_ids", "input_word_ids"),
    "segment_ids": ("segment_ids", "input_type_ids"),
    "padding_mask": ("input_mask",),
    MASK_POSITIONS: ("masked_lm_positions",),
}
IDS, WEIGHTS, LABELS = "masked_lm_ids", "masked_lm_weights", "next_sentence_labels"
_EXAMPLES_A_FILE = 50_000
_SEED = 12345
PART = ".part"  # Ends the names of a set's files until all of them are complete.


def import_tensorflow() -> Any:
    try:
        import tensorflow
    except ImportError as error:
        raise ValueError(
            f'TFRecords need TensorFlow: pip install "keras-bert-zoo[tensorflow]". Received: {error}'
        ) from None
    return tensorflow


@contextmanager
def refused_files(words: str) -> Iterator[None]:
    """Turn errors of TensorFlow's file systems into a `ValueError` with these words."""
    tf = import_tensorflow()
    try:
        yield
    except tf.errors.OpError as error:
        raise ValueError(f"{words} ({error.message})") from None


def write_records(data: str | os.PathLike[str], out: str | os.PathLike[str], verbose: bool = True) -> int:
    """Write a data set with fixed masks as TFRecord files with the original's seven features.

    The order is random but always the same: readers shuffle only examples that are close together.

    Args:
        data: A data set made by `prepare` with `fix_masks`.
        out: Directory to create, for the files `shard-00000-of-00002.tfrecord`, … of some 50,000 examples each.
        verbose: Show progress.

    Returns:
        The number of examples.

    Raises:
        ValueError: The masks are not fixed, `out` cannot be written, or TensorFlow is missing.
    """
    tf = import_tensorflow()
    batches = PretrainingBatches(data, batch_size=1)
    if not batches.fixed_masks:
        raise ValueError(f"`data` must have fixed masks, from prepare(fix_masks=True). Received: data={str(data)!r}")
    folder = os.fspath(out)
    with refused_files(f"`out` must be a directory that can be written. Received: out={folder!r}"):
        _write(tf, batches, folder, verbose)
    return batches.examples


def _write(tf: Any, batches: PretrainingBatches, folder: str, verbose: bool) -> None:
    order = np.random.default_rng(_SEED).permutation(batches.examples)
    starts = range(0, batches.examples, _EXAMPLES_A_FILE)
    paths = [os.path.join(folder, f"shard-{n:05d}-of-{len(starts):05d}.tfrecord") for n in range(len(starts))]
    _check_folder(tf, folder, {os.path.basename(path) for path in paths})
    tf.io.gfile.makedirs(folder)
    progress = keras.utils.Progbar(batches.examples, verbose=int(verbose), unit_name="example")
    for start, path in zip(starts, paths, strict=True):
        stop = min(start + _EXAMPLES_A_FILE, batches.examples)
        with tf.io.TFRecordWriter(path + PART) as writer:
            for first in range(start, stop, 256):
                for example in _examples(tf, *batches.take(order[first : min(first + 256, stop)])):
                    writer.write(example)
                progress.update(min(first + 256, stop))
    for path in paths:  # Rename only when all files are complete.
        tf.io.gfile.rename(path + PART, path, overwrite=True)


def _check_folder(tf: Any, folder: str, names: set[str]) -> None:
    """Refuse a directory that holds more than what a killed process left of the files with these names."""
    found = set(tf.io.gfile.listdir(folder)) if tf.io.gfile.exists(folder) else set()
    parts = {name for name in found if name.endswith(PART)}
    whole = found - parts
    if (
        whole - names or names <= found or (whole and not parts)
    ):  # A set without parts is finished, wherever its other files are.
        raise ValueError(f"`out` must be a new or empty directory. Received: out={folder!r}")


def _examples(tf: Any, inputs: Any, targets: Any, weights: Any) -> Iterator[bytes]:
    labels = targets.get("nsp", np.zeros(len(targets["mlm"]), "int32"))
    integers = {theirs[0]: inputs[ours] for ours, theirs in INPUTS.items()}
    integers |= {IDS: targets["mlm"], LABELS: labels[:, None]}
    kept = (weights["mlm"] > 0).astype("float32")
    example = tf.train.Example()  # Reused for all rows: a new one for each takes twice as long.
    feature = example.features.feature
    fields = [*(feature[name].int64_list.value for name in integers), feature[WEIGHTS].float_list.value]
    for row in zip(*(values.tolist() for values in (*integers.values(), kept)), strict=True):
        for field, values in zip(fields, row, strict=True):
            field[:] = values
        yield example.SerializeToString(deterministic=True)  # Otherwise each process has its own order of features.
