"""One block of the Transformer encoder, LayerNorm after the residual sum (google-research/bert, modeling.py)."""

from functools import partial
from typing import Any

import keras
from keras import ops

from keras_bert_zoo.checks import check_positive, check_positive_int, check_rate
from keras_bert_zoo.layers.activations import get_activation
from keras_bert_zoo.layers.attention import SelfAttention
from keras_bert_zoo.layers.dense import Dense, activated
from keras_bert_zoo.layers.dropout import Dropout
from keras_bert_zoo.layers.fused_sum_norm import fused_sum_norm, fuses_sum_norm
from keras_bert_zoo.layers.initializer import Normal
from keras_bert_zoo.layers.layer_norm import LayerNormalization
from keras_bert_zoo.layers.parts import call_part
from keras_bert_zoo.layers.positions import at_positions
from keras_bert_zoo.layers.recomputed import RecomputedLayer
from keras_bert_zoo.layers.rows import from_rows, to_rows


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class EncoderLayer(RecomputedLayer):
    """Self-attention and a two-layer feed-forward net, each with dropout, residual sum and LayerNorm.

    Args:
        hidden_dim: Width of input and output.
        num_heads: Number of attention heads; divides `hidden_dim`.
        intermediate_dim: Width inside the feed-forward net.
        activation: Activation name, as in `BertBackbone`.
        dropout: Dropout rate of both sub-layers' outputs.
        attention_dropout: Dropout rate of the attention probabilities.
        layer_norm_epsilon: Added to the variance.
        causal: If True, each position attends only to itself and earlier ones.
        initializer_range: Standard deviation of the truncated normal that initializes the kernels.

    Call arguments:
        hidden: `[batch, length, hidden_dim]`.
        padding_mask: int or bool `[batch, length]`, nonzero at real tokens; None means no padding. Keras'
            implicit mask, such as `Embedding(mask_zero=True)`'s, is not used.
        output_positions: Positions of the outputs, as in `SelfAttention`. At other positions only its queries, keys and
            values are computed.
        return_attention_scores: If True, also return the attention probabilities.

    Returns:
        `[batch, n, hidden_dim]`, where n is the length or the number of `output_positions`. With
        `return_attention_scores`, a pair of this and the probabilities `[batch, heads, n, length]`.
    """

    def __init__(
        self,
        hidden_dim: int,
        num_heads: int,
        intermediate_dim: int,
        activation: str = "gelu",
        dropout: float = 0.1,
        attention_dropout: float = 0.1,
        layer_norm_epsilon: float = 1e-12,
        causal: bool = False,
        initializer_range: float = 0.02,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_positive_int(intermediate_dim=intermediate_dim)
        check_rate(dropout=dropout, attention_dropout=attention_dropout)
        check_positive(layer_norm_epsilon=layer_norm_epsilon)
        get_activation(activation)
        self.hidden_dim = hidden_dim
        self.num_heads = num_heads
        self.intermediate_dim = intermediate_dim
        self.activation = activation
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.layer_norm_epsilon = layer_norm_epsilon
        self.causal = causal
        self.initializer_range = initializer_range
        policy = self.dtype_policy

        def dense(units: int, name: str) -> Dense:
            initializer = Normal(stddev=initializer_range)
            return Dense(units, kernel_initializer=initializer, dtype=policy, name=name)

        def layer_norm(name: str) -> LayerNormalization:
            return LayerNormalization(epsilon=layer_norm_epsilon, dtype=policy, name=name)

        self.attention = SelfAttention(
            hidden_dim, num_heads, attention_dropout, causal, initializer_range, dtype=policy, name="attention"
        )
        self.attention_norm = layer_norm("attention_norm")
        self.intermediate = dense(intermediate_dim, "intermediate")
        self.intermediate.is_activated = True
        self.output_dense = dense(hidden_dim, "output")
        self.output_norm = layer_norm("output_norm")
        self.dropout_layer = Dropout(dropout, dtype=policy, name="dropout")

    def build(self, hidden_shape: Any, padding_mask_shape: Any = None) -> None:
        self.input_spec = keras.layers.InputSpec(ndim=3, axes={-1: self.hidden_dim})
        self.attention.build(hidden_shape)
        self.attention_norm.build(hidden_shape)
        self.intermediate.build(hidden_shape)
        self.output_dense.build((*hidden_shape[:-1], self.intermediate_dim))
        self.output_norm.build(hidden_shape)
        self.dropout_layer.build(hidden_shape)

    def call(
        self,
        hidden: Any,
        padding_mask: Any = None,
        output_positions: Any = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Any:
        if self._is_fused(hidden, training):
            hidden, scores = self._fused(hidden, padding_mask, output_positions, training, return_attention_scores)
            return (hidden, scores) if return_attention_scores else hidden
        run = partial(call_part, self)
        attended = run(
            self.attention,
            hidden,
            padding_mask,
            output_positions=output_positions,
            training=training,
            return_attention_scores=return_attention_scores,
        )
        attended, scores = attended if return_attention_scores else (attended, None)
        if output_positions is not None:
            hidden = at_positions(hidden, output_positions)
        hidden = run(self.attention_norm, _sum(hidden, run(self.dropout_layer, attended, training=training)))
        transformed = activated(self, self.intermediate, to_rows(hidden), self.activation, training)
        transformed = from_rows(run(self.output_dense, transformed), hidden)
        hidden = run(self.output_norm, _sum(hidden, run(self.dropout_layer, transformed, training=training)))
        return (hidden, scores) if return_attention_scores else hidden

    def _is_fused(self, hidden: Any, training: bool | None) -> bool:
        attention = self.attention
        parts = attention, attention.output_dense, self.attention_norm, self.output_dense, self.output_norm
        return fuses_sum_norm(self, parts, self.dropout_layer, hidden, training)

    def _fused(
        self, hidden: Any, padding_mask: Any, output_positions: Any, training: bool | None, shows_scores: bool
    ) -> tuple[Any, Any]:
        """Compute the layer with fewer passes over memory."""
        context, scores = self.attention.attend(hidden, padding_mask, output_positions, training, shows_scores)
        if output_positions is not None:
            hidden = at_positions(hidden, output_positions)
        hidden = fused_sum_norm(hidden, context, self.attention.output_dense, self.dropout_layer, self.attention_norm)
        transformed = activated(self, self.intermediate, to_rows(hidden), self.activation, training)
        return fused_sum_norm(hidden, transformed, self.output_dense, self.dropout_layer, self.output_norm), scores

    def compute_output_shape(self, hidden_shape: Any, padding_mask_shape: Any = None) -> tuple[int | None, ...]:
        return tuple(hidden_shape)

    def compute_output_spec(self, hidden: Any, *args: Any, **kwargs: Any) -> Any:
        return self.attention.compute_output_spec(hidden, *args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "hidden_dim": self.hidden_dim,
            "num_heads": self.num_heads,
            "intermediate_dim": self.intermediate_dim,
            "activation": self.activation,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "causal": self.causal,
            "initializer_range": self.initializer_range,
        }


def _sum(hidden: Any, change: Any) -> Any:
    # On TensorFlow `ops.add` treats one token per text as a bias, which fails for an empty batch.
    return hidden + change if hidden.dtype == change.dtype else ops.add(hidden, change)
