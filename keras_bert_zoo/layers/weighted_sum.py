"""Weighted sum of several layers' features."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class WeightedSum(keras.layers.Layer):
    """Sum with learned softmax weights, equal at first (Peters et al. 2018, equation 1, without its factor gamma).

    Call arguments:
        features: List of tensors of one shape.

    Returns:
        A tensor of this shape.
    """

    def build(self, features_shape: Sequence[Any]) -> None:
        self.scores = self.add_weight(shape=(len(features_shape),), initializer="zeros", name="scores")

    def call(self, features: Sequence[Any]) -> Any:
        return ops.tensordot(ops.stack(list(features), axis=-1), ops.softmax(self.scores), axes=1)

    def compute_output_shape(self, features_shape: Sequence[Any]) -> Any:
        return features_shape[0]

    def get_config(self) -> dict[str, Any]:
        return super().get_config()  # Keras' automatic config, without this method, takes no dtype policy.
