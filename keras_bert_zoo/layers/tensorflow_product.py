"""TensorFlow's matmul with weights, with a faster and more exact gradient; imported on that backend only."""

from functools import cache
from typing import Any

import tensorflow as tf

from keras_bert_zoo.layers.passes import makes_outputs_alone, trains_here
from keras_bert_zoo.layers.tensorflow_gradient import takes_gradients, with_gradient
from keras_bert_zoo.layers.tensorflow_onednn import computes, count, flag, names, number, operation
from keras_bert_zoo.on_cpu import on_cpu

_OPERATION = "_MklFusedBatchMatMulV2"


def is_for(inputs: Any, dtype: str) -> bool:
    """Whether `product` is the better choice: for rows, on a CPU, in a function that is being traced."""
    return (
        takes_gradients()
        and isinstance(inputs, tf.Tensor)
        and inputs.shape.rank == 2
        and inputs.dtype == dtype != "float64"
        and on_cpu(inputs)
    )


def product(inputs: Any, kernel: Any, bias: Any, is_activated: bool) -> Any:
    """Return `inputs @ kernel + bias`, of `[rows, m]`, `[m, n]` and `[n]`; `is_activated` as in `adds_bias`.

    The gradient for the inputs multiplies by the transposed kernel, for which TensorFlow's matmul of two matrices takes
    up to 1.3 times as long as its batch matmul. The sum over rows is also a matmul, so half precision is summed in
    float32.
    """

    def gradient(outer: Any) -> Any:
        return _gradient(inputs, kernel, outer)

    def compute(inputs: Any, kernel: Any, bias: Any) -> Any:
        return tf.nn.bias_add(tf.matmul(inputs, kernel), bias)

    if adds_bias(inputs, is_activated):
        compute = product_with_bias
    return with_gradient(compute, gradient, [inputs, kernel, bias])


def _gradient(inputs: Any, kernel: Any, outer: Any) -> Any:
    """Return the gradients of inputs, kernel and bias."""
    of_inputs = tf.raw_ops.BatchMatMulV2(x=outer[None], y=kernel[None], adj_y=True)[0]
    of_bias = tf.matmul(tf.ones([1, tf.shape(outer)[0]], outer.dtype), outer)[0]
    return of_inputs, tf.matmul(inputs, outer, transpose_a=True), of_bias


def adds_bias(inputs: Any, is_activated: bool) -> bool:
    """Whether `product_with_bias` is the better choice where no gradient is needed.

    In bfloat16 it takes 0.5 to 0.9 of the time of the product into which TensorFlow's graph rewriter puts the bias, on
    a processor with AMX. But the rewriter also puts in an activation that follows (`is_activated`) in a step that makes
    outputs alone. By itself that activation would take longer than the product.
    """
    is_wanted = trains_here() or (makes_outputs_alone() and not is_activated)
    return is_wanted and inputs.shape.rank == 2 and _is_available(inputs)


def product_with_bias(inputs: Any, kernel: Any, bias: Any) -> Any:
    """Return what `product` does, rounded once."""
    return tf.squeeze(_fused(inputs[None, None], kernel[None, None], 1.0, bias[None, None, None], False), [0, 1])


def makes_scores(query: Any) -> bool:
    """Whether `attention_scores` can be taken: it has no gradient.

    TensorFlow's graph rewriter makes the same operation of a product, a scale and a sum, but not where another of its
    rules comes first, as with static shapes. Scale and sum then take a fifth of a bfloat16 prediction at 512 tokens.
    """
    return makes_outputs_alone() and _is_available(query)


def attention_scores(query: Any, key: Any, scale: float, bias: Any) -> Any:
    """Return `query @ key^T * scale + bias`, rounded once.

    Args:
        query: `[batch, heads, n, dim]`.
        key: `[batch, heads, length, dim]`.
        scale: A number.
        bias: Of four axes, broadcast to `[batch, heads, n, length]`; None adds nothing.
    """
    bias = tf.zeros([1, 1, 1, 1], query.dtype) if bias is None else tf.cast(bias, query.dtype)
    return _fused(query, key, scale, bias, True)


def _is_available(inputs: Any) -> bool:
    return tf.inside_function() and inputs.dtype == tf.bfloat16 and on_cpu(inputs) and _is_known()


def _fused(left: Any, right: Any, scale: float, added: Any, transposed: bool) -> Any:
    """Multiply the last two of four axes by oneDNN's batch matmul with a scale and a sum."""
    return operation(
        _OPERATION,
        [left, right, tf.constant(scale, left.dtype), added],
        [*left.shape[:-1], right.shape[-2 if transposed else -1]],
        adj_x=flag(False),
        adj_y=flag(transposed),
        num_args=count(2),
        fused_ops=names("Mul", "Add"),
        epsilon=number(0.0),
    )


try:

    @tf.RegisterGradient(_OPERATION)
    def _gradient_within_a_function(operation: Any, outer: Any) -> Any:
        """Return the gradient where a function that no tape has seen is differentiated from outside."""
        inputs, kernel = (tf.squeeze(tensor, [0, 1]) for tensor in operation.inputs[:2])
        of_inputs, of_kernel, of_bias = _gradient(inputs, kernel, tf.squeeze(outer, [0, 1]))
        return of_inputs[None, None], of_kernel[None, None], None, of_bias[None, None, None]
except KeyError:  # This TensorFlow has one itself.
    pass


@cache
def _is_known() -> bool:
    def compute() -> Any:
        inputs, kernel, bias = (tf.constant(value, tf.bfloat16) for value in ([[2.0, 3.0]], [[1.0], [2.0]], [0.5]))
        return product_with_bias(inputs, kernel, bias)

    return computes(compute, [[8.5]])
