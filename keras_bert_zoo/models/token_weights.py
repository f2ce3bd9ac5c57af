"""Weights of the tokens in a batch, of which few may have a label, and the accuracy of those."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_bert_zoo.text.windows import IGNORED


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class LabelledAccuracy(keras.metrics.Mean):
    """Share of labelled tokens predicted correctly; tokens of weight 0 are unlabelled, all others count equally."""

    def __init__(self, name: str = "accuracy", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self._direction = "up"  # For callbacks such as Keras' EarlyStopping.

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        hits = ops.cast(ops.argmax(y_pred, axis=-1), "int32") == ops.cast(y_true, "int32")
        counted = None if sample_weight is None else ops.reshape(ops.convert_to_tensor(sample_weight) > 0, (-1,))
        # Flatten: Keras would average each row first, including padding.
        super().update_state(ops.reshape(hits, (-1,)), sample_weight=counted)


def weighed(targets: np.ndarray, given: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the targets of a streamed batch, with the weights that `TokenBatches` gives without shuffling."""
    labelled = targets != IGNORED
    weights = labelled * np.float32(labelled.size / max(int(labelled.sum()), 1))
    if given is not None:
        weights = weights * (given[:, None] if given.ndim == 1 else given)
    return np.where(labelled, targets, 0), weights.astype("float32")


def weighed_in_graph(inputs: Any, *rest: Any) -> Any:
    """Return a batch of a `tf.data.Dataset` with its weights, as `weighed` makes them."""
    import tensorflow as tf

    if not rest or rest[0].shape.rank != 2:  # No targets, or those of a user-defined loss.
        return (inputs, *rest)
    arrays = tf.numpy_function(weighed, rest, [rest[0].dtype, tf.float32], stateful=False)
    return (inputs, *(tf.ensure_shape(array, rest[0].shape) for array in arrays))
