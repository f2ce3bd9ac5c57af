"""Multi-head self-attention with one matmul for query, key and value (Vaswani et al. 2017, section 3.2)."""

import math
from typing import Any

import keras
from keras import ops

from keras_bert_zoo.checks import check_flag, check_heads, check_positive, check_rate
from keras_bert_zoo.layers.dense import Dense, add_bias, matmul
from keras_bert_zoo.layers.dropout import Dropout
from keras_bert_zoo.layers.fused_attention import fused_attention, fused_attention_pays, own_kernels
from keras_bert_zoo.layers.initializer import Normal
from keras_bert_zoo.layers.lora import AdaptableDense
from keras_bert_zoo.layers.parts import call_part, is_plain, plain_part
from keras_bert_zoo.layers.passes import makes_outputs_alone
from keras_bert_zoo.layers.positions import at_positions, count_of
from keras_bert_zoo.layers.rows import from_rows, reshape, to_rows


@plain_part
@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class SelfAttention(keras.layers.Layer):
    """Multi-head self-attention.

    The backend's fused attention runs where it is faster, if it has its own dropout or no dropout acts on the
    probabilities (none does at inference), and if neither `output_positions` nor `return_attention_scores` is used.

    Args:
        hidden_dim: Width of input and output.
        num_heads: Number of heads; divides `hidden_dim`.
        dropout: Dropout rate of the attention probabilities.
        causal: If True, each position attends only to itself and earlier ones.
        initializer_range: Standard deviation of the truncated normal that initializes the kernels.

    Call arguments:
        hidden: `[batch, length, hidden_dim]`.
        padding_mask: int or bool `[batch, length]`, nonzero at real tokens; None means no padding. Keras'
            implicit mask, such as `Embedding(mask_zero=True)`'s, is not used.
        output_positions: Positions of the outputs: an int (the same in each example), int32 `[batch, n]`, or None for
            all. Queries, keys and values are computed at all positions regardless, except with an int: then there is
            only one query, and unless `qkv` is quantized, keys and values are not computed at all.
        return_attention_scores: If True, also return the probabilities.

    Returns:
        `[batch, n, hidden_dim]`, where n is the length or the number of `output_positions`. With
        `return_attention_scores`, a pair of this and the probabilities `[batch, heads, n, length]`.
    """

    def __init__(
        self,
        hidden_dim: int,
        num_heads: int,
        dropout: float = 0.1,
        causal: bool = False,
        initializer_range: float = 0.02,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_heads(hidden_dim, num_heads)
        check_rate(dropout=dropout)
        check_positive(initializer_range=initializer_range)
        check_flag(causal=causal)
        self.hidden_dim = hidden_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.causal = causal
        self.initializer_range = initializer_range
        self.head_dim = hidden_dim // num_heads

        def dense(kind: Any, units: int, name: str) -> Any:
            initializer = Normal(stddev=initializer_range)
            return kind(units, kernel_initializer=initializer, dtype=self.dtype_policy, name=name)

        self.qkv = dense(AdaptableDense, 3 * hidden_dim, "qkv")
        self.output_dense = dense(Dense, hidden_dim, "output")
        self.dropout_layer = Dropout(dropout, dtype=self.dtype_policy, name="dropout")

    def build(self, hidden_shape: Any, padding_mask_shape: Any = None) -> None:
        self.input_spec = keras.layers.InputSpec(ndim=3, axes={-1: self.hidden_dim})
        self.qkv.build(hidden_shape)
        self.output_dense.build(hidden_shape)
        self.dropout_layer.build((None, self.num_heads, None, None))

    def call(
        self,
        hidden: Any,
        padding_mask: Any = None,
        output_positions: Any = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Any:
        context, scores = self.attend(hidden, padding_mask, output_positions, training, return_attention_scores)
        output = from_rows(call_part(self, self.output_dense, to_rows(context)), context)
        return (output, scores) if return_attention_scores else output

    def attend(
        self, hidden: Any, padding_mask: Any, output_positions: Any, training: bool | None, shows_scores: bool
    ) -> tuple[Any, Any]:
        """Return the input of the output projection, `[batch, n, hidden_dim]`, and, if asked for, the probabilities."""
        mask = None if padding_mask is None else ops.cast(padding_mask, "bool")[:, None, None, :]
        if isinstance(output_positions, int) and is_plain(self, self.qkv, hidden):
            context, scores = self._at_one(hidden, mask, output_positions, training)
        else:
            context, scores = self._at_many(hidden, mask, output_positions, training, shows_scores)
        return reshape(context, (*ops.shape(context)[:2], self.hidden_dim)), scores

    def _at_many(
        self, hidden: Any, mask: Any, output_positions: Any, training: bool | None, shows_scores: bool
    ) -> tuple[Any, Any]:
        shape = (*ops.shape(hidden)[:2], 3, self.num_heads, self.head_dim)
        dropout = self.dropout_layer.rate if training else 0.0
        explicit = shows_scores or output_positions is not None
        bias = None
        if not explicit and self._leaves_bias(hidden, shape, dropout):
            kernel, bias = self.qkv.cast_weights(hidden)
            qkv, bias = matmul(hidden, kernel), ops.reshape(bias, shape[2:])
        else:
            qkv = call_part(self, self.qkv, to_rows(hidden))
        qkv = reshape(qkv, shape)
        if not explicit and fused_attention_pays(qkv, self.causal, dropout, training):
            seeds = self.dropout_layer.seed_generator if dropout else None
            context = fused_attention(qkv, mask, self.causal, dropout, seeds, bias)
            return ops.cast(context, self.compute_dtype), None
        query, key, value = _unstack(ops.transpose(qkv, (2, 0, 3, 1, 4)))
        if output_positions is not None:
            query = at_positions(query, output_positions)
        bias = self._bias_of(mask, output_positions, ops.shape(key)[2])
        scores = self._softmax(self._scores(query, key, bias))
        context = _batch_product(call_part(self, self.dropout_layer, scores, training=training), value)
        return ops.transpose(context, (0, 2, 1, 3)), scores

    def _leaves_bias(self, hidden: Any, shape: tuple[int, ...], dropout: float) -> bool:
        if not dropout or keras.backend.backend() != "jax" or not is_plain(self, self.qkv, hidden):
            return False
        # The kernel adds the bias itself: XLA would read and write the whole array.
        return own_kernels(keras.KerasTensor(shape, self.compute_dtype), self.causal) is not None

    def _at_one(self, hidden: Any, mask: Any, position: int, training: bool | None) -> tuple[Any, Any]:
        """Attend at one position of each text, without computing the tokens' keys and values.

        q (h Wk)^T is (q Wk^T) h^T and p (h Wv) is (p h) Wv, so the kernels multiply one row per text, not one per
        token. The key bias adds the same to all scores of a row, which does not change the softmax.
        """
        kernel, bias = self.qkv.cast_weights(hidden)
        (to_query, to_key, to_value), (query_bias, _, value_bias) = ops.split(kernel, 3, axis=1), ops.split(bias, 3)
        query = self._by_heads(add_bias(matmul(at_positions(hidden, position)[:, 0], to_query), query_bias))
        to_key = ops.transpose(reshape(to_key, (-1, self.num_heads, self.head_dim)), (1, 2, 0))
        scores = matmul(hidden, ops.transpose(matmul(query, to_key), (1, 2, 0)), rounded=False)
        bias = self._bias_of(mask, position, ops.shape(hidden)[1])
        scores = self._softmax(self._scaled(ops.transpose(scores, (0, 2, 1))[:, :, None], bias))
        weights = call_part(self, self.dropout_layer, scores, training=training)[:, :, 0]
        weights = ops.cast(weights, self.compute_dtype)
        context = matmul(ops.transpose(matmul(weights, hidden), (1, 0, 2)), self._by_heads(to_value))
        # With dropout the weights do not sum to one.
        sums = ops.transpose(ops.sum(ops.cast(weights, "float32"), -1))[..., None]
        context = add_bias(context, sums * ops.cast(self._by_heads(value_bias[None]), "float32"))
        return ops.transpose(context, (1, 0, 2))[:, None], scores

    def _by_heads(self, rows: Any) -> Any:
        return ops.transpose(reshape(rows, (-1, self.num_heads, self.head_dim)), (1, 0, 2))

    def _bias_of(self, mask: Any, output_positions: Any, length: Any) -> Any:
        """Return what keeps the queries from the masked keys when it is added to the scores, or None."""
        if self.causal:
            # The start is explicit, as jax2onnx 0.17 does not accept a stop alone.
            steps = ops.arange(0, length, dtype="int32")
            own = output_positions if output_positions is not None else steps[None]
            causal = (ops.reshape(own, (-1, 1, 1, 1)) if isinstance(own, int) else own[:, None, :, None]) >= steps
            mask = causal if mask is None else ops.logical_and(mask, causal)
        # Added, not selected: a sum's gradient costs nothing, and no constant has to be copied to the device.
        return None if mask is None else (ops.cast(mask, self._dtype_of_sums) - 1.0) * 1e30

    def _scores(self, query: Any, key: Any, bias: Any) -> Any:
        if _is_for_onednn(query):
            from keras_bert_zoo.layers.tensorflow_onednn import product

            # The graph rewriter would put scale and bias into the product at some shapes only, and with AVX2 alone by
            # default at none. Without that they take a fifth of a bfloat16 prediction at 512 tokens.
            bias = ops.zeros((1, 1, 1, 1), query.dtype) if bias is None else ops.cast(bias, query.dtype)
            return product(query, key, self._scale, bias, transposed=True)
        return self._scaled(_batch_product(query, key, transposed=True, rounded=False), bias)

    def _scaled(self, scores: Any, bias: Any) -> Any:
        scores = ops.cast(scores, self._dtype_of_sums) * self._scale
        return scores if bias is None else scores + bias

    @property
    def _scale(self) -> float:
        return 1.0 / math.sqrt(self.head_dim)

    @property
    def _dtype_of_sums(self) -> Any:
        # Half-precision scores lose digits at each step, and their largest finite number is small.
        return keras.backend.result_type(self.compute_dtype, "float32")

    def _softmax(self, scores: Any) -> Any:
        if _is_for_onednn(scores):
            from keras_bert_zoo.layers.tensorflow_onednn import softmax

            return softmax(scores)
        return ops.cast(ops.softmax(scores, axis=-1), self.compute_dtype)

    def compute_output_shape(self, hidden_shape: Any, padding_mask_shape: Any = None) -> tuple[int | None, ...]:
        return tuple(hidden_shape)

    def compute_output_spec(
        self,
        hidden: Any,
        padding_mask: Any = None,
        output_positions: Any = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Any:
        batch, length, _ = hidden.shape
        n = length if output_positions is None else count_of(output_positions)
        output = keras.KerasTensor((batch, n, self.hidden_dim), dtype=self.compute_dtype)
        if not return_attention_scores:
            return output
        return output, keras.KerasTensor((batch, self.num_heads, n, length), dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "hidden_dim": self.hidden_dim,
            "num_heads": self.num_heads,
            "dropout": self.dropout,
            "causal": self.causal,
            "initializer_range": self.initializer_range,
        }


def _unstack(qkv: Any) -> Any:
    if keras.backend.backend() != "jax":
        return ops.unstack(qkv, 3, axis=0)
    # The gradient joins three arrays. That of JAX's unstack fills each up with zeros and adds them.
    return (ops.squeeze(part, 0) for part in ops.split(qkv, 3, axis=0))


def _batch_product(left: Any, right: Any, transposed: bool = False, rounded: bool = True) -> Any:
    """Return `left @ right`, of four axes, or that with the last two of `right` exchanged; `rounded` as in `matmul`."""
    if keras.backend.backend() == "tensorflow":
        from keras_bert_zoo.layers.tensorflow_batch_product import batch_product, is_available

        if is_available(left, right):
            return batch_product(left, right, adj_y=transposed)
    return matmul(left, ops.transpose(right, (0, 1, 3, 2)) if transposed else right, rounded)


def _is_for_onednn(tensor: Any) -> bool:
    """Whether TensorFlow has operations for scores and probabilities that round once and have no gradient."""
    if keras.backend.backend() != "tensorflow" or not makes_outputs_alone():
        return False
    from keras_bert_zoo.layers.tensorflow_onednn import takes

    return takes(tensor)
