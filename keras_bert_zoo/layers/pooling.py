"""Pooling of token vectors into one vector per text."""

from typing import Any

import keras
from keras import ops

_MODES = ("mean", "cls", "max")


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class TokenPooling(keras.layers.Layer):
    """Mean, first or maximum of the tokens' vectors, in float32.

    Args:
        mode: `"mean"` over the tokens, including special tokens (Reimers & Gurevych 2019, section 3), `"cls"`, the
            first token's vector, or `"max"` over the tokens in each dimension.

    Call arguments:
        sequence_output: `[batch, length, hidden_dim]`.
        padding_mask: int `[batch, length]`, nonzero at tokens.

    Returns:
        `[batch, hidden_dim]`.
    """

    def __init__(self, mode: str = "mean", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if mode not in _MODES:
            raise ValueError(f"`pooling` must be one of {_MODES}. Received: pooling={mode!r}")
        self.mode = mode

    def build(self, *shapes: Any) -> None:
        self.built = True

    def call(self, sequence_output: Any, padding_mask: Any) -> Any:
        hidden = ops.cast(sequence_output, "float32")
        if self.mode == "cls":
            return hidden[:, 0]
        there = ops.expand_dims(padding_mask, -1) > 0
        if self.mode == "max":
            return ops.max(ops.where(there, hidden, ops.cast(-1e30, "float32")), axis=1)
        there = ops.cast(there, "float32")
        return ops.sum(hidden * there, axis=1) / ops.maximum(ops.sum(there, axis=1), 1.0)

    def compute_output_spec(self, sequence_output: Any, padding_mask: Any) -> Any:
        return keras.KerasTensor((sequence_output.shape[0], sequence_output.shape[-1]), dtype="float32")

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "mode": self.mode}
