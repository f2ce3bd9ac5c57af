"""`class_weight`: weights of examples, or of tokens, from their classes."""

from functools import partial
from typing import Any, ClassVar

import numpy as np

from keras_bert_zoo.models.trainer.streaming import has_targets, is_mappable, is_none, is_tf_dataset, mapped

_NO_TARGETS = "`class_weight` needs targets. Received: batches of inputs alone"


class WeighsClasses:
    """Mixin for a model over a backbone; a task with classes defines `weigh_classes`."""

    label_dimensions: ClassVar[int | None]

    def weigh_classes(self, targets: np.ndarray, class_weight: dict[Any, float]) -> np.ndarray:
        """Return a weight for each example from its class."""
        raise ValueError(f"`class_weight` needs classes. Received: {type(self).__name__}")

    def weights_of_classes(self, class_weight: dict[Any, float]) -> np.ndarray:
        """Return a float32 weight for each class, by its number."""
        return self.weigh_classes(np.arange(getattr(self, "num_classes", 0)), class_weight).astype("float32")

    def weigh_batch(self, weights: np.ndarray, batch: tuple[Any, ...]) -> tuple[Any, ...]:
        """Multiply the weights of a ready batch by those of its classes."""
        if len(batch) < 2 or batch[1] is None:
            raise ValueError(_NO_TARGETS)
        inputs, y, *given = batch
        classes = np.asarray(y)
        if classes.ndim != self.label_dimensions:  # A column, or probabilities, for a user-defined loss.
            classes = classes[..., 0] if classes.shape[-1] == 1 else classes.argmax(axis=-1)
        weights = weights[np.rint(classes).astype("int64")]
        if given and given[0] is not None:
            own = np.asarray(given[0])
            weights = weights * (own.reshape(-1, *[1] * (weights.ndim - 1)) if own.size == len(own) else own)
        return inputs, y, weights

    def weigh_stream(self, data: Any, weights: np.ndarray) -> tuple[Any, dict[int, float] | None]:
        """Return weighted batches and None, or the batches and the `class_weight` for Keras to apply."""
        # Keras accepts no `class_weight` with generators or beside sample weights; here, they are multiplied.
        if is_mappable(data):
            return mapped(data, partial(self.weigh_batch, weights)), None
        of_classes = dict(enumerate(weights.tolist()))
        if not is_tf_dataset(data):
            return data, of_classes
        spec = data.element_spec
        if not has_targets(spec):
            raise ValueError(_NO_TARGETS)
        if len(spec) > 2 and not is_none(spec[2]):
            return data.map(partial(_weigh_in_graph, weights, self.label_dimensions)), None
        return data, of_classes


def check_one_weight(sample_weight: Any) -> None:
    """Check that there are no weights beside `class_weight`."""
    if sample_weight is not None:
        raise ValueError("`class_weight` and `sample_weight` exclude each other. Received: both")


def _weigh_in_graph(weights: np.ndarray, label_dimensions: int | None, x: Any, y: Any, given: Any) -> tuple[Any, ...]:
    """Do what `weigh_batch` does to a batch with weights of its own, `given`."""
    import tensorflow as tf

    classes = y
    if y.shape.rank != label_dimensions:
        classes = y[..., 0] if y.shape[-1] == 1 else tf.argmax(y, axis=-1)
    of_classes = tf.gather(tf.constant(weights, given.dtype), tf.cast(tf.round(classes), "int64"))
    of_examples = all(size == 1 for size in given.shape[1:])
    own = tf.reshape(given, [-1, *[1] * (of_classes.shape.rank - 1)]) if of_examples else given
    return x, y, tf.ensure_shape(own * of_classes, classes.shape)
