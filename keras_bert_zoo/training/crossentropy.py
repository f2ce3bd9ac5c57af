"""Cross-entropy of a prediction for each token."""

from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class TokenCrossentropy(keras.losses.Loss):
    """Sparse categorical cross-entropy of logits `[batch, predictions, classes]` and integers `[batch, predictions]`.

    It is Keras' on one long row of predictions. Of several rows Keras brings the classes to the second axis on PyTorch,
    and over a whole vocabulary that copy, and a softmax across memory in place of along it, take most of the time.
    """

    def __init__(self, name: str = "token_crossentropy", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        losses = ops.sparse_categorical_crossentropy(
            ops.reshape(y_true, (-1,)), ops.reshape(y_pred, (-1, y_pred.shape[-1])), from_logits=True
        )
        return ops.reshape(losses, ops.shape(y_true))
