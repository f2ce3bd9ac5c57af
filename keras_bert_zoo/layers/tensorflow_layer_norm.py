"""TensorFlow's LayerNorm by oneDNN, which has no gradient but ours; imported on that backend only."""

from functools import cache, partial
from typing import Any

import tensorflow as tf

from keras_bert_zoo.layers.tensorflow_gradient import gradient_within_functions, takes_gradients, with_gradient
from keras_bert_zoo.layers.tensorflow_onednn import computes, operation

_OPERATION = "_MklLayerNorm"


def is_available(inputs: Any, trained: bool) -> bool:
    """Whether a function of tokens, as rows or in batches, is being traced by a TensorFlow that has what this needs."""
    has_gradient = takes_gradients() if trained else tf.inside_function()
    return has_gradient and inputs.shape.rank in (2, 3) and inputs.dtype != tf.float64 and _is_known()


def layer_norm(inputs: Any, gamma: Any, beta: Any, epsilon: float) -> Any:
    """LayerNorm over the last axis of `[rows, dim]`, in float32, as Keras computes it."""
    tensors = [tf.cast(tf.convert_to_tensor(tensor), tf.float32) for tensor in (inputs, gamma, beta)]
    return tf.cast(operation(_OPERATION, tensors, inputs.shape, epsilon=float(epsilon)), inputs.dtype)


def trained_layer_norm(inputs: Any, gamma: Any, beta: Any, epsilon: float) -> Any:
    """`layer_norm` of `[rows, dim]`, with a gradient."""
    gamma, beta = tf.convert_to_tensor(gamma), tf.convert_to_tensor(beta)

    def gradient(outer: Any) -> Any:
        return _gradient(inputs, gamma, epsilon, outer)

    return with_gradient(partial(layer_norm, epsilon=epsilon), gradient, [inputs, gamma, beta])


def _gradient(inputs: Any, gamma: Any, epsilon: float, outer: Any) -> Any:
    """Return the gradients of inputs, gamma and beta; the first is (g - mean(g) - n mean(g n)) / s.

    g is the outputs' gradient times gamma, n the normalised inputs and s the inputs' standard deviation. Sums over a
    row or a column are matmuls, and n is recomputed. This takes half the time of TensorFlow's gradient of Keras'
    operations.
    """
    x, outer, scale = (tf.cast(tensor, tf.float32) for tensor in (inputs, outer, gamma))
    ones = tf.ones_like(scale)
    normal = trained_layer_norm(x, ones, tf.zeros_like(scale), epsilon)
    _, variance = tf.nn.moments(x, -1, keepdims=True)
    share, product = scale[:, None] / tf.reduce_sum(ones), outer * normal
    means = normal * tf.matmul(product, share) + tf.matmul(outer, share)
    of_inputs = (outer * scale - means) * tf.math.rsqrt(variance + epsilon)
    columns = tf.ones([1, tf.shape(x)[0]])
    of_weights = (tf.matmul(columns, part)[0] for part in (product, outer))
    return tf.cast(of_inputs, inputs.dtype), *(tf.cast(part, gamma.dtype) for part in of_weights)


@gradient_within_functions(_OPERATION)
def _gradient_within_a_function(op: Any, outer: Any) -> Any:
    inputs, gamma, _ = op.inputs
    return _gradient(inputs, gamma, op.get_attr("epsilon"), outer)


@cache
def _is_known() -> bool:
    def compute() -> Any:
        return layer_norm(tf.constant([[1.0, -1.0]]), tf.constant([2.0, 2.0]), tf.constant([1.0, 1.0]), 3.0)

    return computes(compute, [[2.0, 0.0]])
