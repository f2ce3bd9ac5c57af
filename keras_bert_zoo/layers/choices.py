"""Questions with several choices for an encoder that takes one text per row."""

from typing import Any

import keras
from keras import ops

NOT_THERE = -1e9
"""The logit of a missing choice, or of a position where no answer can be.

Its probability is exactly 0, and no gradient is NaN, as it would be with -inf.
"""


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class FoldChoices(keras.layers.Layer):
    """Give each choice a row of its own.

    Call arguments:
        token_ids, segment_ids, padding_mask: int32 `[questions, choices, length]`.

    Returns:
        A dict of the three, `[questions * choices, length]`. The first token of a missing choice is unmasked, as
        attention to nothing is NaN on some backends.
    """

    def build(self, *shapes: Any) -> None:
        self.built = True

    def call(self, token_ids: Any, segment_ids: Any, padding_mask: Any) -> dict[str, Any]:
        length = ops.shape(token_ids)[2]
        first = ops.cast(ops.arange(length, dtype="int32") == 0, padding_mask.dtype)
        is_missing = ops.cast(ops.max(padding_mask, axis=-1, keepdims=True) == 0, padding_mask.dtype)
        arrays = {
            "token_ids": token_ids,
            "segment_ids": segment_ids,
            "padding_mask": ops.maximum(padding_mask, first * is_missing),
        }
        return {name: ops.reshape(array, (-1, length)) for name, array in arrays.items()}

    def compute_output_spec(self, token_ids: Any, segment_ids: Any, padding_mask: Any) -> dict[str, Any]:
        names = ("token_ids", "segment_ids", "padding_mask")
        return {name: keras.KerasTensor((None, token_ids.shape[2]), dtype="int32") for name in names}


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class UnfoldChoices(keras.layers.Layer):
    """Give each question a row again.

    Call arguments:
        scores: `[questions * choices, 1]`.
        padding_mask: int32 `[questions, choices, length]`, all 0 for a missing choice.

    Returns:
        `[questions, choices]`, `NOT_THERE` for a missing choice.
    """

    def build(self, *shapes: Any) -> None:
        self.built = True

    def call(self, scores: Any, padding_mask: Any) -> Any:
        there = ops.max(padding_mask, axis=-1) > 0
        scores = ops.reshape(scores, ops.shape(there))
        return ops.where(there, scores, ops.cast(NOT_THERE, scores.dtype))

    def compute_output_spec(self, scores: Any, padding_mask: Any) -> Any:
        return keras.KerasTensor(padding_mask.shape[:2], dtype=self.compute_dtype)
