"""TensorFlow's product with weights: its gradient, and where it is taken."""

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from keras_bert_zoo.layers.dense import Dense
from tests.helpers import TINY, random_inputs

pytestmark = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="Elsewhere products are others.")
RNG = np.random.default_rng(3)
X, KERNEL, BIAS, WANTED = (RNG.normal(size=shape).astype("float32") for shape in ((5, 7), (7, 4), (4,), (5, 4)))


def dense():
    layer = Dense(4)
    layer.build((None, 7))
    layer.set_weights([KERNEL, BIAS])
    return layer


def kinds(graph):
    return [operation.type for operation in graph.get_operations()]


def gradients():
    """Return a function from inputs and the outputs' gradient to outputs and gradients of inputs, kernel and bias."""
    import tensorflow as tf

    layer = dense()

    @tf.function
    def step(x, wanted):
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = layer(x)
        return output, *tape.gradient(output, [x, *layer.trainable_variables], wanted)

    return step


def test_the_product_and_its_gradients_are_numpys():
    step = gradients()
    output, of_x, of_kernel, of_bias = step(X, WANTED)
    np.testing.assert_allclose(output, X @ KERNEL + BIAS, atol=1e-5)
    np.testing.assert_allclose(of_x, WANTED @ KERNEL.T, atol=1e-5)
    np.testing.assert_allclose(of_kernel, X.T @ WANTED, atol=1e-5)
    np.testing.assert_allclose(of_bias, WANTED.sum(0), atol=1e-5)
    types = kinds(step.get_concrete_function(X, WANTED).graph)
    assert (types.count("MatMul"), types.count("BatchMatMulV2")) == (3, 1)


def test_without_tensorflows_own_recording_gradients_are_the_same(monkeypatch):
    """As with a TensorFlow that no longer has such a module."""
    from keras_bert_zoo.layers import tensorflow_gradient

    monkeypatch.setattr(tensorflow_gradient, "record_operation", None)
    step = gradients()
    _, of_x, of_kernel, of_bias = step(X, WANTED)
    np.testing.assert_allclose(of_x, WANTED @ KERNEL.T, atol=1e-5)
    np.testing.assert_allclose(of_kernel, X.T @ WANTED, atol=1e-5)
    np.testing.assert_allclose(of_bias, WANTED.sum(0), atol=1e-5)
    assert "BatchMatMulV2" not in kinds(step.get_concrete_function(X, WANTED).graph)


def test_a_gradient_of_some_rows_alone():
    """TensorFlow passes on a gather's gradient as rows and their numbers."""
    import tensorflow as tf

    layer = dense()

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = tf.gather(layer(x), [1, 1, 3])
        return tape.gradient(output, x)

    counts = np.array([0, 2, 0, 1, 0], "float32")
    np.testing.assert_allclose(step(X), counts[:, None] * KERNEL.sum(1), atol=1e-5)


def test_its_gradients_have_gradients():
    """For |d/dx (x k)·w|² = |w kᵀ|² over all rows the gradient of k is 2 Σ wᵀ (w kᵀ), transposed."""
    import tensorflow as tf

    layer = dense()

    @tf.function
    def step(x, wanted):
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(x)
                output = layer(x)
            norm = tf.reduce_sum(tf.square(inner.gradient(output, x, wanted)))
        return outer.gradient(norm, layer.kernel.value)

    np.testing.assert_allclose(step(X, WANTED), 2 * (WANTED @ KERNEL.T).T @ WANTED, rtol=1e-5)


@pytest.mark.parametrize(
    "dtype, trained, taken",
    [
        ("float32", True, 4 * TINY["num_layers"] + 1),
        ("float32", False, 0),
        ("mixed_bfloat16", True, 4 * TINY["num_layers"] + 1),
    ],
)
def test_every_product_of_blocks_and_head_takes_it_in_training(dtype, trained, taken):
    """Attention's own and the choice of masked tokens do not: their batches have the texts' size, or rank four."""
    import tensorflow as tf

    model = kbz.BertMaskedLM(kbz.BertBackbone(**TINY, dtype=dtype, pooler=False))
    batch = {**random_inputs(2, 6), "mask_positions": np.array([[1, 4, 0], [2, 2, 0]])}

    @tf.function
    def step():
        with tf.GradientTape(watch_accessed_variables=trained) as tape:
            output = tf.reduce_sum(model(batch)["mlm"] ** 2)
        return tape.gradient(output, model.trainable_variables)

    operations = step.get_concrete_function().graph.get_operations()
    products = [op for op in operations if op.type == "BatchMatMulV2" and op.outputs[0].shape[0] == 1]
    assert len(products) == taken
    # Nothing else has the embedding's size, so a transpose of this size could only be that of its gradient.
    table = {TINY["vocabulary_size"], TINY["hidden_dim"]}
    assert not [op for op in operations if op.type == "Transpose" and set(op.outputs[0].shape.as_list()) == table]
