"""Batches made in Python as a `tf.data.Dataset`."""

import weakref
from collections.abc import Callable
from typing import Any

import keras
import numpy as np


def tf_dataset(take: Callable[[int], Any], signature: Any, count: int) -> Any:
    """Return a `tf.data.Dataset` of `take(0)` to `take(count - 1)`, in order.

    It avoids TensorFlow's `from_generator`. The first batch of that function permanently sets glibc, for the whole
    process, to return each large array to the system, which clears the memory again for the next array. Unless a pass
    keeps memory (`training/memory.py`), that causes 6,500 page faults per batch of 32 x 16 at MiniLM's size in
    bfloat16, and prediction takes half as long again (TensorFlow 2.21, `core/kernels/data/generator_dataset_op.cc`).
    """
    import tensorflow as tf

    specs = keras.tree.flatten(signature)
    takes = [take]

    def parts_of(index: Any) -> list[np.ndarray]:
        return [np.asarray(part) for part in keras.tree.flatten(takes[0](int(index)))]

    def batch_of(index: Any) -> Any:
        parts = tf.numpy_function(parts_of, [index], [spec.dtype for spec in specs])
        return keras.tree.pack_sequence_as(
            signature, [tf.ensure_shape(part, spec.shape) for part, spec in zip(parts, specs, strict=True)]
        )

    dataset = tf.data.Dataset.range(count).map(batch_of)
    # TensorFlow keeps the function, and with it all examples, forever; derived datasets keep this one alive.
    weakref.finalize(dataset, takes.clear)
    return untuned(dataset.prefetch(2))


def untuned(dataset: Any) -> Any:
    """Return the dataset with TensorFlow's autotuning disabled.

    The tuning thread sleeps for 10 ms, then twice as long each time, up to a minute. Deleting the iterator waits until
    it wakes. At the end of `fit`, `evaluate` or `predict` this wait takes, at worst, as long as the whole call did
    (TensorFlow 2.21; `kOptimizationPeriodMinMs` and its neighbour in core/framework/model.h).
    """
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)
