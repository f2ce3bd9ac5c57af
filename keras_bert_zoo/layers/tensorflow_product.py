"""TensorFlow's product with weights in float32, with a faster gradient; imported on that backend alone."""

from typing import Any

import tensorflow as tf

from keras_bert_zoo.on_cpu import on_cpu

try:
    from tensorflow.python.eager.record import record_operation, should_record_backprop, stop_recording
except ImportError:  # TensorFlow promises nothing about these, and trains without them, too.
    record_operation = None


def is_for(inputs: Any, dtype: str) -> bool:
    """Whether `product` is the faster one: of rows, in float32, on a CPU, in a function that is drawn."""
    return (
        record_operation is not None
        and tf.inside_function()
        and isinstance(inputs, tf.Tensor)
        and inputs.shape.rank == 2
        and inputs.dtype == dtype == "float32"
        and on_cpu(inputs)
    )


def product(inputs: Any, kernel: Any, bias: Any) -> Any:
    """`inputs @ kernel + bias`, of `[rows, m]`, `[m, n]` and `[n]`.

    The gradient for the inputs multiplies by the transposed kernel, for which TensorFlow's product of two matrices
    takes up to 1.3 times as long as its product of batches. `tf.custom_gradient` would keep each graph for ever.
    """
    if not should_record_backprop([inputs, kernel, bias]):
        return tf.nn.bias_add(tf.matmul(inputs, kernel), bias)
    with stop_recording():
        outputs = tf.nn.bias_add(tf.matmul(inputs, kernel), bias)

    def gradient(outer: Any) -> Any:
        outer = tf.convert_to_tensor(outer)
        of_inputs = tf.raw_ops.BatchMatMulV2(x=outer[None], y=kernel[None], adj_y=True)[0]
        return of_inputs, tf.matmul(inputs, outer, transpose_a=True), tf.raw_ops.BiasAddGrad(out_backprop=outer)

    record_operation("BertProduct", [outputs], [inputs, kernel, bias], gradient)
    return outputs
