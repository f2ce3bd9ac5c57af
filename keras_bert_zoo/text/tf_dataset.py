"""Batches that Python makes, as TensorFlow takes them."""

import weakref
from collections.abc import Callable
from typing import Any

import keras
import numpy as np


def tf_dataset(take: Callable[[int], Any], signature: Any, count: int) -> Any:
    """A `tf.data.Dataset` of `take(0)` to `take(count - 1)`, one after the other.

    Not TensorFlow's `from_generator`: the first batch from one sets glibc, for the whole process and for good, to give
    each large array back to the system, which clears it again for the next: 6,500 page faults a batch of 32 x 16 in
    MiniLM's size and bfloat16, whose prediction takes half as long again (TensorFlow 2.21,
    `core/kernels/data/generator_dataset_op.cc`).
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
    # TensorFlow keeps the function for ever, and with it all examples; what is made of a data set keeps that.
    weakref.finalize(dataset, takes.clear)
    return untuned(dataset.prefetch(2))


def untuned(dataset: Any) -> Any:
    """A data set that TensorFlow does not tune.

    The thread that would tune it sleeps for 10 ms and then for twice as long each time, up to a minute, and who drops
    the iterator waits until it wakes: at the end of a `fit`, an `evaluate` or a `predict` for as long, at worst, as all
    of it has taken (TensorFlow 2.21; `kOptimizationPeriodMinMs` and its neighbour in core/framework/model.h).
    """
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)
