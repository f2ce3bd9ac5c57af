"""TensorFlow's matmul with weights, with a faster and more exact gradient; imported on that backend only."""

from typing import Any

import tensorflow as tf

from keras_bert_zoo.layers.tensorflow_gradient import takes_gradients, with_gradient
from keras_bert_zoo.on_cpu import on_cpu


def is_for(inputs: Any, dtype: str) -> bool:
    """Whether `product` is the better choice: for rows, on a CPU, in a function that is being traced."""
    return (
        takes_gradients()
        and isinstance(inputs, tf.Tensor)
        and inputs.shape.rank == 2
        and inputs.dtype == dtype != "float64"
        and on_cpu(inputs)
    )


def product(inputs: Any, kernel: Any, bias: Any) -> Any:
    """Return `inputs @ kernel + bias`, of `[rows, m]`, `[m, n]` and `[n]`.

    The gradient for the inputs multiplies by the transposed kernel, for which TensorFlow's matmul of two matrices takes
    up to 1.3 times as long as its batch matmul. The sum over rows is also a matmul, so half precision is summed in
    float32.
    """

    def gradient(outer: Any) -> Any:
        of_inputs = tf.raw_ops.BatchMatMulV2(x=outer[None], y=kernel[None], adj_y=True)[0]
        of_bias = tf.matmul(tf.ones([1, tf.shape(outer)[0]], outer.dtype), outer)[0]
        return of_inputs, tf.matmul(inputs, outer, transpose_a=True), of_bias

    def compute(inputs: Any, kernel: Any, bias: Any) -> Any:
        return tf.nn.bias_add(tf.matmul(inputs, kernel), bias)

    return with_gradient(compute, gradient, [inputs, kernel, bias])
