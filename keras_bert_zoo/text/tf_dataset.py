"""Batches that Python makes, as TensorFlow takes them."""

from collections.abc import Callable, Iterator
from typing import Any


def tf_dataset(make: Callable[[], Iterator[Any]], signature: Any, count: int) -> Any:
    """A `tf.data.Dataset` of `count` batches."""
    import tensorflow as tf

    dataset = tf.data.Dataset.from_generator(make, output_signature=signature)
    return untuned(dataset.apply(tf.data.experimental.assert_cardinality(count)).prefetch(2))


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
