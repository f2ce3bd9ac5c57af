"""Cross-entropy of logits."""

from typing import Any

import keras
from keras import ops

_TAKE_LOGITS = tuple(
    getattr(keras.losses, name)
    for name in (
        "BinaryCrossentropy",
        "BinaryFocalCrossentropy",
        "CategoricalCrossentropy",
        "CategoricalFocalCrossentropy",
        "SparseCategoricalCrossentropy",
    )
)
_BY_NAME = {"bce": keras.losses.BinaryCrossentropy, **{each.__name__.lower(): each for each in _TAKE_LOGITS}}


def loss_of_logits(loss: Any) -> Any:
    """A loss given by Keras' name as one of logits, which all outputs of classes are; one of probabilities is refused.

    Of logits it would train, and to something else. Keras' own function or class is as good as its name.
    """
    is_known = isinstance(loss, str) or getattr(loss, "__module__", "").startswith("keras.")
    name = loss if isinstance(loss, str) else getattr(loss, "__name__", "")
    name = name.lower().replace("_", "")
    if is_known and name in _BY_NAME:
        return _BY_NAME[name](from_logits=True)
    if is_known and name in ("crossentropy", "ce"):  # Of which Keras chooses one, and of probabilities.
        raise ValueError(f'`loss` must say which, such as "sparse_categorical_crossentropy". Received: loss={loss!r}')
    is_keras = isinstance(loss, keras.losses.Loss) and type(loss).__module__.startswith("keras.")
    if is_keras and loss.get_config().get("from_logits") is False:  # What a loss of the user's own takes is theirs.
        raise ValueError(
            f"`loss` must be of logits, {type(loss).__name__}(from_logits=True). Received: one with from_logits=False"
        )
    return loss


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class TokenCrossentropy(keras.losses.Loss):
    """Sparse categorical cross-entropy of logits `[batch, predictions, classes]` and integers `[batch, predictions]`.

    Or of one prediction an example, without the second dimension. It is Keras' on one long row of predictions: of
    several rows Keras brings the classes to the second axis on PyTorch, and over a whole vocabulary that copy, and a
    softmax across memory in place of along it, take most of the time. PyTorch and TensorFlow have one fused operation
    for it and its gradient, `jax_crossentropy` says what JAX has: no array of one-hot targets is made.
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
