"""Layers on top of the encoder for pre-training."""

from typing import Any

import keras

from keras_bert_zoo.checks import check_positive, check_positive_int
from keras_bert_zoo.layers.activations import get_activation
from keras_bert_zoo.layers.dense import Dense, activated
from keras_bert_zoo.layers.initializer import Normal
from keras_bert_zoo.layers.layer_norm import LayerNormalization
from keras_bert_zoo.layers.rows import from_rows, to_rows


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class MaskedLMHead(keras.layers.Layer):
    """Transform the masked tokens' vectors for the output embedding (google-research/bert, run_pretraining.py).

    This applies Dense, activation and LayerNorm. The product with the token embedding and `VocabularyBias` come after
    it.

    Args:
        hidden_dim: Width of the encoder.
        activation: Activation name, as in the encoder.
        layer_norm_epsilon: Added to the variance.
        initializer_range: Standard deviation of the truncated normal that initializes the kernel.

    Call arguments:
        hidden: `[batch, predictions, hidden_dim]`, the encoder's outputs at the masked tokens only.

    Returns:
        `[batch, predictions, hidden_dim]`.
    """

    def __init__(
        self,
        hidden_dim: int,
        activation: str = "gelu",
        layer_norm_epsilon: float = 1e-12,
        initializer_range: float = 0.02,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_positive_int(hidden_dim=hidden_dim)
        check_positive(layer_norm_epsilon=layer_norm_epsilon, initializer_range=initializer_range)
        get_activation(activation)
        self.hidden_dim = hidden_dim
        self.activation = activation
        self.layer_norm_epsilon = layer_norm_epsilon
        self.initializer_range = initializer_range
        self.dense = Dense(
            hidden_dim,
            kernel_initializer=Normal(stddev=initializer_range),
            dtype=self.dtype_policy,
            name="dense",
        )
        self.dense.is_activated = True
        self.layer_norm = LayerNormalization(epsilon=layer_norm_epsilon, dtype=self.dtype_policy, name="layer_norm")

    def build(self, hidden_shape: Any) -> None:
        self.dense.build((None, None, self.hidden_dim))
        self.layer_norm.build((None, None, self.hidden_dim))

    def call(self, hidden: Any, training: bool | None = None) -> Any:
        transformed = activated(self, self.dense, to_rows(hidden), self.activation, training)
        return self.layer_norm(from_rows(transformed, hidden))

    def compute_output_shape(self, hidden_shape: Any) -> Any:
        return hidden_shape

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "hidden_dim": self.hidden_dim,
            "activation": self.activation,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "initializer_range": self.initializer_range,
        }


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class VocabularyBias(keras.layers.Layer):
    """Add a bias per vocabulary token to the logits, in float32: the tied embedding matrix has no bias."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"dtype": "float32", **kwargs})

    def build(self, input_shape: Any) -> None:
        self.bias = self.add_weight(shape=(input_shape[-1],), initializer="zeros", name="bias")

    def call(self, logits: Any) -> Any:
        return logits + self.bias

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return super().get_config()  # As in `WeightedSum`.
