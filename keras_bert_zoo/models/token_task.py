"""Base class of tasks with an output per token: targets and weights at tokens."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_bert_zoo.models.streaming import check_ready, is_mappable, is_tf_dataset
from keras_bert_zoo.models.task import Task
from keras_bert_zoo.text.token_batches import TokenBatches
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


class TokenTask(Task):
    """A task whose targets and outputs are `[examples, length, …]`, of any length."""

    batches_class = TokenBatches
    label_dimensions = 2
    weighs_places = True

    def _streamed(self, x: Any, y: Any = None, sample_weight: Any = None, needs_targets: bool = False) -> Any:
        if not is_tf_dataset(x):
            data = super()._streamed(x, y, sample_weight, needs_targets)
            if not is_mappable(x):
                raise ValueError(
                    "`x` must be a tf.data.Dataset, a PyDataset, a generator or a DataLoader if it is streamed. "
                    f"Received: x of type {type(x).__name__}"
                )
            return data
        check_ready(x, "words")
        return super()._streamed(x, y, sample_weight, needs_targets).map(_weighed_in_graph)

    def ready_batch(self, batch: Any) -> tuple[Any, ...]:
        inputs, *rest = super().ready_batch(batch)
        return (inputs, *_weighed(*rest)) if rest and self.are_labels(rest[0]) else (inputs, *rest)


def _weighed(targets: np.ndarray, given: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the targets of a streamed batch, with the weights that `TokenBatches` gives without shuffling."""
    labelled = targets != IGNORED
    weights = labelled * np.float32(labelled.size / max(int(labelled.sum()), 1))
    if given is not None:
        weights = weights * (given[:, None] if given.ndim == 1 else given)
    return np.where(labelled, targets, 0), weights.astype("float32")


def _weighed_in_graph(inputs: Any, *rest: Any) -> Any:
    import tensorflow as tf

    if not rest or rest[0].shape.rank != 2:  # No targets, or those of a user-defined loss.
        return (inputs, *rest)
    weighed = tf.numpy_function(_weighed, rest, [rest[0].dtype, tf.float32], stateful=False)
    return (inputs, *(tf.ensure_shape(array, (None, None)) for array in weighed))
