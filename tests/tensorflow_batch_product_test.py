"""Attention's products by oneDNN on TensorFlow: values, gradients, where they are taken, and where not."""

from contextlib import nullcontext

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from keras_bert_zoo.layers.passes import step_of_this_process
from tests.helpers import TINY, random_inputs, randomise
from tests.helpers import tensorflow_operations as operations

pytestmark = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="They are TensorFlow's operations.")
OPERATION, BLOCKS = "_MklBatchMatMulV2", TINY["num_layers"]
RNG = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def rewrites(monkeypatch):
    """Return a function that says whether TensorFlow's graph rewriter is at work; it is not, as with AVX2 alone."""
    from keras_bert_zoo.layers import tensorflow_batch_product

    if not tensorflow_batch_product._is_known():
        pytest.skip("this TensorFlow has no oneDNN")

    def say(value):
        monkeypatch.setattr(tensorflow_batch_product, "_is_rewritten", lambda: value)

    say(False)
    return say


@pytest.mark.parametrize("taped_outside", [False, True])
@pytest.mark.parametrize("adj_x", [False, True])
@pytest.mark.parametrize("adj_y", [False, True])
def test_values_and_gradients_are_numpys(adj_x, adj_y, taped_outside):
    import tensorflow as tf

    from keras_bert_zoo.layers.tensorflow_batch_product import batch_product

    left, right = (tf.constant(RNG.normal(size=shape), tf.float32) for shape in ((2, 3, 4, 5), (2, 3, 5, 6)))
    wanted = tf.constant(RNG.normal(size=(2, 3, 4, 6)), tf.float32)
    left, right = (tf.linalg.matrix_transpose(x) if adj else x for x, adj in ((left, adj_x), (right, adj_y)))

    @tf.function(autograph=False)
    def compute(left, right):
        return batch_product(left, right, adj_x, adj_y)

    @tf.function(autograph=False)
    def step(left, right):
        with tf.GradientTape() as tape:
            tape.watch([left, right])
            outputs = batch_product(left, right, adj_x, adj_y)
        return outputs, *tape.gradient(outputs, [left, right], wanted)

    if taped_outside:
        with tf.GradientTape() as tape:
            tape.watch([left, right])
            outputs = compute(left, right)
        found = outputs, *tape.gradient(outputs, [left, right], wanted)
    else:
        found = step(left, right)
    a, b, c = (np.asarray(tensor, "float64") for tensor in (left, right, wanted))
    a, b = a.swapaxes(2, 3) if adj_x else a, b.swapaxes(2, 3) if adj_y else b
    of_a, of_b = c @ b.swapaxes(2, 3), a.swapaxes(2, 3) @ c
    expected = a @ b, of_a.swapaxes(2, 3) if adj_x else of_a, of_b.swapaxes(2, 3) if adj_y else of_b
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("adj_x", [False, True])
@pytest.mark.parametrize("adj_y", [False, True])
def test_gradients_have_gradients(adj_x, adj_y):
    """As TensorFlow's own have, whichever tape sees what."""
    import tensorflow as tf

    from keras_bert_zoo.layers.tensorflow_batch_product import batch_product

    def own(left, right):
        return tf.matmul(left, right, transpose_a=adj_x, transpose_b=adj_y)

    def ours(left, right):
        return batch_product(left, right, adj_x, adj_y)

    factors = [tf.constant(RNG.normal(size=(1, 2, 3, 3)), tf.float32) for _ in range(2)]

    @tf.function(autograph=False)
    def penalty_of(multiply, *factors):
        with tf.GradientTape() as outer:
            outer.watch(factors)
            with tf.GradientTape() as inner:
                inner.watch(factors)
                outputs = tf.square(multiply(*factors))
            penalty = sum(tf.reduce_sum(tf.square(each)) for each in inner.gradient(outputs, factors))
        return outer.gradient(penalty, factors)

    for one, other in zip(penalty_of(ours, *factors), penalty_of(own, *factors), strict=True):
        assert np.abs(other).max() > 1
        np.testing.assert_allclose(one, other, rtol=1e-4)


def trained(inputs):
    backbone = kbz.BertBackbone(**{**TINY, "dropout": 0.0, "attention_dropout": 0.0})
    model = randomise(kbz.BertTextClassifier(backbone, num_classes=3, dropout=0.0))
    model.compile(keras.optimizers.SGD(0.1))
    for _ in range(2):
        model.train_on_batch(inputs, np.array([0, 1, 2]))
    return model


def test_a_step_trains_as_with_tensorflows_own(rewrites):
    """The last block, at one position, has products of its own."""
    inputs = random_inputs()
    model = trained(inputs)
    rewrites(True)
    other = trained(inputs)
    for one, weight in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(one, weight, atol=1e-6)
    rewrites(False)
    np.testing.assert_allclose(model.predict(inputs, verbose=0), other.predict(inputs, verbose=0), atol=1e-5)


def test_where_they_are_taken(rewrites):
    """Two products a block; scores for outputs alone are fused with scale and mask. XLA knows none of this."""
    import tensorflow as tf

    backbone = randomise(kbz.BertBackbone(**TINY))
    inputs = random_inputs()

    def count(kind=None, compiled=False):
        with step_of_this_process(kind, compiled) if kind else nullcontext():
            return operations(tf.function(backbone, autograph=False), inputs).count(OPERATION)

    assert [count("training"), count("outputs"), count("training", True), count()] == [2 * BLOCKS, BLOCKS, 0, 0]
    rewrites(True)
    assert [count("training"), count("outputs")] == [0, 0]
