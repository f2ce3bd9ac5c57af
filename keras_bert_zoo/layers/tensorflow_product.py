"""TensorFlow's product with weights in float32, with a faster gradient; imported on that backend alone."""

from typing import Any

import tensorflow as tf

from keras_bert_zoo.on_cpu import on_cpu

try:
    from tensorflow.python.eager import record
except ImportError:  # TensorFlow promises nothing about this module, and trains without it, too.
    record = None


def has_own_gradient(inputs: Any, kernel: Any, bias: Any) -> bool:
    """Whether `product` is worth its call: of rows, in float32, on a CPU, in a function that is drawn to be trained."""
    return (
        record is not None
        and tf.inside_function()
        and isinstance(inputs, tf.Tensor)
        and inputs.shape.rank == 2
        and inputs.dtype == kernel.dtype == tf.float32
        and record.should_record_backprop([inputs, kernel, bias])
        and on_cpu(inputs)
    )


def product(inputs: Any, kernel: Any, bias: Any) -> Any:
    """`inputs @ kernel + bias`, of `[rows, m]`, `[m, n]` and `[n]`.

    The gradient for the inputs multiplies by the transposed kernel, for which TensorFlow's product of two matrices
    takes up to 1.3 times as long as its product of batches. `tf.custom_gradient` would keep each graph for ever.
    """
    with record.stop_recording():
        outputs = tf.nn.bias_add(tf.matmul(inputs, kernel), bias)

    def gradient(outer: Any) -> Any:
        of_inputs = tf.raw_ops.BatchMatMulV2(x=outer[None], y=kernel[None], adj_y=True)[0]
        return of_inputs, tf.matmul(inputs, outer, transpose_a=True), tf.raw_ops.BiasAddGrad(out_backprop=outer)

    record.record_operation("BertProduct", [outputs], [inputs, kernel, bias], gradient)
    return outputs
