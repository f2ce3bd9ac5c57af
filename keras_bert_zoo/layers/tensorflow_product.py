"""TensorFlow's matmul with weights, with a faster and more exact gradient; imported on that backend only."""

from typing import Any

import tensorflow as tf

from keras_bert_zoo.layers import tensorflow_onednn as onednn
from keras_bert_zoo.layers.passes import makes_outputs_alone, trains_here
from keras_bert_zoo.layers.tensorflow_gradient import gradient_within_functions, takes_gradients, with_gradient
from keras_bert_zoo.on_cpu import has_amx, on_cpu

_HAS_AMX = has_amx()


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
    """Whether `product_with_bias`, which has no gradient of its own, is the better choice in this step.

    In bfloat16 it takes 0.5 to 0.9 of the time of the product into which TensorFlow's graph rewriter puts the bias, as
    that one does not use a processor's AMX. But the rewriter also puts in an activation that follows (`is_activated`),
    in a step that makes outputs alone. By itself that activation would take longer than is gained.
    """
    is_wanted = trains_here() or (makes_outputs_alone() and not is_activated)
    is_rows = inputs.shape.rank == 2 and inputs.dtype == tf.bfloat16
    return _HAS_AMX and is_wanted and is_rows and onednn.takes(inputs)


def product_with_bias(inputs: Any, kernel: Any, bias: Any) -> Any:
    """Return what `product` does, rounded once."""
    return tf.squeeze(onednn.product(inputs[None, None], kernel[None, None], 1.0, bias[None, None, None]), [0, 1])


def adds_gelu(inputs: Any) -> bool:
    """Whether `onednn.product_with_gelu`, which has no gradient, can be taken: in float32 on a CPU, for outputs alone.

    In half precision TensorFlow's graph rewriter, which is at work wherever that is fast, makes the same operation.
    """
    is_wanted = makes_outputs_alone() and tf.inside_function() and inputs.shape.rank == 2
    return is_wanted and inputs.dtype == tf.float32 and on_cpu(inputs) and onednn.has_gelu()


def adds_sum(inputs: Any) -> bool:
    """Whether `onednn.product_with_sum`, which has no gradient, can be taken: on a CPU, for outputs alone.

    In bfloat16 it does not use a processor's AMX, as `adds_bias` says.
    """
    slow = _HAS_AMX and inputs.dtype == tf.bfloat16
    return makes_outputs_alone() and not slow and onednn.takes(inputs) and onednn.has_sum(inputs.dtype)


@gradient_within_functions(onednn.PRODUCT)
def _gradient_within_a_function(op: Any, outer: Any) -> Any:
    if op.get_attr("adj_y"):
        raise LookupError("Attention's scores have no gradient in a step that makes outputs alone.")
    inputs, kernel = (tf.squeeze(tensor, [0, 1]) for tensor in op.inputs[:2])
    of_inputs, of_kernel, of_bias = _gradient(inputs, kernel, tf.squeeze(outer, [0, 1]))
    return of_inputs[None, None], of_kernel[None, None], None, of_bias[None, None, None]
