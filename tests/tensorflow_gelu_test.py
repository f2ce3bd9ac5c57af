"""The exact GELU's own gradient in TensorFlow functions: compared with its closed form, and used in training."""

import math

import keras
import numpy as np
import pytest

from keras_bert_zoo.layers.activations import get_activation

pytestmark = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="Elsewhere the backend has its own.")
X = np.linspace(-6, 6, 97)  # bfloat16 represents all of them.
PHI = np.exp(-np.square(X) / 2) / math.sqrt(2 * math.pi)
BELOW = np.array([math.erfc(-x / math.sqrt(2)) / 2 for x in X])


@pytest.mark.parametrize("dtype, close", [("float64", 1e-12), ("float32", 1e-6), ("bfloat16", 2**-8)])
def test_values_and_both_derivatives(dtype, close):
    """x Phi(x), Phi(x) + x phi(x) and (2 - x^2) phi(x), each times what comes from above."""
    import tensorflow as tf

    @tf.function
    def derivatives(x):
        with tf.GradientTape() as outside:
            outside.watch(x)
            with tf.GradientTape() as inside:
                inside.watch(x)
                y = get_activation("gelu", training=True)(x)
            slope = inside.gradient(y, x, tf.fill(tf.shape(x), tf.constant(3, x.dtype)))
        return y, slope, outside.gradient(slope, x)

    expected = X * BELOW, 3 * (BELOW + X * PHI), 3 * (2 - X**2) * PHI
    for found, values in zip(derivatives(tf.constant(X, dtype)), expected, strict=True):
        assert found.dtype == dtype
        np.testing.assert_allclose(tf.cast(found, "float64"), values, rtol=close, atol=close)


def test_its_gradient_passes_over_memory_less_often():
    """TensorFlow's own gradient contains a sum of two gradients; ours does not."""
    import tensorflow as tf

    def sums(training):
        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = get_activation("gelu", training=training)(x)
            return tape.gradient(y, x)

        graph = step.get_concrete_function(tf.TensorSpec([None], "float32")).graph
        return [operation.type for operation in graph.get_operations()].count("AddN")

    assert (sums(True), sums(False)) == (0, 1)
