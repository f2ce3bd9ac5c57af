"""What tasks share that answer for each token: targets and weights at tokens."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_bert_zoo.models.streaming import check_ready, is_tf_dataset
from keras_bert_zoo.models.task import Task
from keras_bert_zoo.text.token_batches import TokenBatches
from keras_bert_zoo.text.windows import IGNORED


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class LabelledAccuracy(keras.metrics.Mean):
    """Share of the labelled tokens that are right; those of weight 0 have no label, the others count as one."""

    def __init__(self, name: str = "accuracy", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        hits = ops.cast(ops.argmax(y_pred, axis=-1), "int32") == ops.cast(y_true, "int32")
        counted = None if sample_weight is None else ops.reshape(ops.convert_to_tensor(sample_weight) > 0, (-1,))
        # Flat, as Keras takes the mean of a row first, padding and all.
        super().update_state(ops.reshape(hits, (-1,)), sample_weight=counted)


class TokenTask(Task):
    """A task whose targets and outputs are `[examples, length, …]`, of any length."""

    batches_class = TokenBatches

    def _streamed(self, x: Any, y: Any = None, sample_weight: Any = None) -> Any:
        if not is_tf_dataset(x):
            return super()._streamed(x, y, sample_weight)
        check_ready(x, "words")
        return super()._streamed(x, y, sample_weight).map(_weighed)

    def _weigh_stream(self, data: Any, weights: np.ndarray) -> tuple[Any, dict[int, float] | None]:
        if not is_tf_dataset(data):
            return super()._weigh_stream(data, weights)
        import tensorflow as tf

        # Keras takes no `class_weight` beside weights.
        return data.map(lambda x, y, given: (x, y, given * tf.gather(tf.constant(weights), y))), None


def _weighed(inputs: Any, targets: Any = None, given: Any = None) -> Any:
    """A batch of a `tf.data.Dataset` with the weights that `TokenBatches` gives in training."""
    import tensorflow as tf

    if targets is None:
        return (inputs,)
    labelled = tf.not_equal(targets, IGNORED)
    count = tf.reduce_sum(tf.cast(labelled, "int32"))
    weights = tf.cast(labelled, "float32") * tf.cast(tf.size(targets) / tf.maximum(count, 1), "float32")
    if given is not None:
        given = tf.cast(given, "float32")
        weights *= given[:, None] if given.shape.rank == 1 else given
    return inputs, tf.where(labelled, targets, 0), weights
