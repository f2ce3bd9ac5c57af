"""Cross-entropy of logits."""

from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class TokenCrossentropy(keras.losses.Loss):
    """Sparse categorical cross-entropy of logits `[batch, predictions, classes]` and integers `[batch, predictions]`.

    Without the second dimension, there is one prediction per example. This is Keras' loss on predictions flattened to
    one row. With several rows, Keras moves the classes to the second axis on PyTorch. Over a whole vocabulary, this
    copy and a softmax over a strided axis take most of the time. No one-hot targets are made: PyTorch and TensorFlow
    have one fused operation for the loss and its gradient; for JAX see `jax_crossentropy`.
    """

    def __init__(self, name: str = "token_crossentropy", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        expected, received = tuple(y_pred.shape[:-1]), tuple(y_true.shape)
        pairs = list(zip(expected, received, strict=False))
        if len(received) != len(expected) or any(None not in pair and pair[0] != pair[1] for pair in pairs):
            raise ValueError(
                f"`y_true` must have the shape {expected}, that of `y_pred` without its classes. "
                f"Received: y_true.shape={received}"
            )
        labels, logits = ops.reshape(y_true, (-1,)), ops.reshape(y_pred, (-1, ops.shape(y_pred)[-1]))
        if keras.backend.backend() == "jax":
            from keras_bert_zoo.training.jax_crossentropy import crossentropy

            losses = crossentropy(labels, logits)
        else:
            losses = ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        return ops.reshape(losses, ops.shape(y_true))
