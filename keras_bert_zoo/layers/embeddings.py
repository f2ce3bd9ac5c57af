"""The input representation: token + segment + position (Devlin et al. 2019, figure 2)."""

from typing import Any

import keras
from keras import ops

from keras_bert_zoo.checks import check_positive, check_positive_int, check_rate
from keras_bert_zoo.layers.dense import TokenEmbedding
from keras_bert_zoo.layers.dropout import Dropout
from keras_bert_zoo.layers.initializer import Normal
from keras_bert_zoo.layers.layer_norm import LayerNormalization
from keras_bert_zoo.layers.parts import call_part


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class BertEmbeddings(keras.layers.Layer):
    """Sum of token, segment and position embeddings, then LayerNorm and dropout.

    Positions are counted from the first token and are not an input.

    Args:
        vocabulary_size: Number of tokens.
        hidden_dim: Width of the embeddings.
        max_sequence_length: Number of positions.
        num_segments: Number of segment types.
        dropout: Dropout rate after the LayerNorm.
        layer_norm_epsilon: Added to the variance.
        initializer_range: Standard deviation of the truncated normal that initializes the tables.

    Call arguments:
        token_ids: int32 `[batch, length]`.
        segment_ids: int32 `[batch, length]`.

    Returns:
        `[batch, length, hidden_dim]`.
    """

    def __init__(
        self,
        vocabulary_size: int,
        hidden_dim: int,
        max_sequence_length: int = 512,
        num_segments: int = 2,
        dropout: float = 0.1,
        layer_norm_epsilon: float = 1e-12,
        initializer_range: float = 0.02,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_positive_int(
            vocabulary_size=vocabulary_size,
            hidden_dim=hidden_dim,
            max_sequence_length=max_sequence_length,
            num_segments=num_segments,
        )
        check_rate(dropout=dropout)
        check_positive(layer_norm_epsilon=layer_norm_epsilon, initializer_range=initializer_range)
        self.vocabulary_size = vocabulary_size
        self.hidden_dim = hidden_dim
        self.max_sequence_length = max_sequence_length
        self.num_segments = num_segments
        self.dropout = dropout
        self.layer_norm_epsilon = layer_norm_epsilon
        self.initializer_range = initializer_range

        def table(kind: Any, rows: int, name: str) -> Any:
            initializer = Normal(stddev=initializer_range)
            return kind(rows, hidden_dim, embeddings_initializer=initializer, dtype=self.dtype_policy, name=name)

        # Reversible, as the masked LM multiplies by this table.
        self.token_embedding = table(TokenEmbedding, vocabulary_size, "token_embedding")
        self.segment_embedding = table(keras.layers.Embedding, num_segments, "segment_embedding")
        self.position_embedding = table(keras.layers.Embedding, max_sequence_length, "position_embedding")
        self.layer_norm = LayerNormalization(epsilon=layer_norm_epsilon, dtype=self.dtype_policy, name="layer_norm")
        self.dropout_layer = Dropout(dropout, dtype=self.dtype_policy, name="dropout")

    def build(self, token_ids_shape: tuple[int | None, ...], segment_ids_shape: Any = None) -> None:
        self.token_embedding.build(token_ids_shape)
        self.segment_embedding.build(token_ids_shape)
        self.position_embedding.build((None,))
        self.layer_norm.build((None, None, self.hidden_dim))
        self.dropout_layer.build((None, None, self.hidden_dim))

    def call(self, token_ids: Any, segment_ids: Any, training: bool | None = None) -> Any:
        length = ops.shape(token_ids)[1]
        # On PyTorch, Keras infers shapes from meta tensors, whose length it chooses itself.
        if isinstance(length, int) and length > self.max_sequence_length and not getattr(token_ids, "is_meta", False):
            raise ValueError(
                f"`token_ids` must have at most {self.max_sequence_length} tokens per row (max_sequence_length). "
                f"Received: {length}"
            )
        x = ops.add(self.token_embedding(token_ids), self.segment_embedding(segment_ids))
        # The start is explicit, as jax2onnx 0.17 does not accept a stop alone.
        x = ops.add(x, self.position_embedding(ops.arange(0, length, dtype="int32")))
        return call_part(self, self.dropout_layer, call_part(self, self.layer_norm, x), training=training)

    def compute_output_shape(self, token_ids_shape: Any, segment_ids_shape: Any = None) -> tuple[int | None, ...]:
        return (*token_ids_shape, self.hidden_dim)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "vocabulary_size": self.vocabulary_size,
            "hidden_dim": self.hidden_dim,
            "max_sequence_length": self.max_sequence_length,
            "num_segments": self.num_segments,
            "dropout": self.dropout,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "initializer_range": self.initializer_range,
        }
