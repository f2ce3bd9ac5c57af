"""TensorFlow's product with an int8 kernel on a CPU, by oneDNN or in float32; imported on that backend only.

TensorFlow's own product of int8 is one of int32 without a library, which takes eight times as long.
"""

from functools import cache
from typing import Any

import tensorflow as tf

from keras_bert_zoo.layers.int8_sums import sums_in_float32
from keras_bert_zoo.layers.passes import makes_outputs_alone
from keras_bert_zoo.layers.tensorflow_onednn import computes
from keras_bert_zoo.on_cpu import on_cpu

_SHIFT = 128  # oneDNN's left side has no sign.


def int8_product(inputs: Any, kernel: Any, scale: Any, bias: Any, epsilon: float) -> Any:
    """Return what Keras' Dense computes in int8, in the same operations, without a gradient.

    Args:
        inputs: `[rows, m]`, of which each row is rounded to int8 by its largest value.
        kernel: int8 `[m, n]`.
        scale: `[n]`, by which each column of the kernel was multiplied.
        bias: `[n]` or None.
        epsilon: Added to the largest value.
    """
    rows = tf.cast(inputs, tf.float32)
    scales = 127.0 / (tf.reduce_max(tf.abs(rows), -1, keepdims=True) + epsilon)
    outputs = tf.cast(sums(tf.round(rows * scales), kernel), tf.float32) / (scales * tf.cast(scale, tf.float32))
    if bias is not None:
        outputs += tf.cast(bias, tf.float32)
    return tf.cast(outputs, inputs.dtype)


def takes(inputs: Any) -> bool:
    """Whether `int8_product` can be taken: on a CPU, in a step that makes outputs alone."""
    return makes_outputs_alone() and tf.inside_function() and on_cpu(inputs)


def sums(whole: Any, kernel: Any) -> Any:
    """Return `whole @ kernel` of float32 `[rows, m]` that are whole, -128 to 127, and int8 `[m, n]`.

    oneDNN passes them on as float32, which rounds those beyond 2^24, as the cast of exact ones would.
    """
    return _by_onednn(whole, kernel) if _has_int8() else sums_in_float32(whole, kernel)


def _by_onednn(whole: Any, kernel: Any) -> Any:
    left = tf.cast(whole + float(_SHIFT), tf.uint8)
    (m, n), shift = kernel.shape, tf.constant(_SHIFT, tf.uint8)
    shifted = _product(tf.fill([1, m], shift), kernel, tf.zeros([n], tf.int32))
    return _product(left, kernel, -shifted[0])


def _product(left: Any, right: Any, added: Any) -> Any:
    outputs, _, _ = tf.raw_ops.QuantizedMatMulWithBias(
        a=tf.bitcast(left, tf.quint8),
        b=tf.bitcast(right, tf.qint8),
        bias=tf.bitcast(added, tf.qint32),
        min_a=0.0,  # What the values stand for is ours to know.
        max_a=1.0,
        min_b=-1.0,
        max_b=1.0,
        Toutput=tf.qint32,
        input_quant_mode="SCALED",
    )
    return tf.bitcast(outputs, tf.int32)


@cache
def _has_int8() -> bool:
    """Whether oneDNN has the product, and sums of extremes are right; else it adds pairs of them in int16."""

    def compute() -> Any:
        return _by_onednn(tf.fill([64, 64], 127.0), tf.fill([64, 64], tf.constant(127, tf.int8)))

    return computes(compute, [[64.0 * 127**2] * 64] * 64)
