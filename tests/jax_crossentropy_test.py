"""JAX's cross-entropy of tokens against softmax in float64."""

import keras
import numpy as np
import pytest

if keras.backend.backend() != "jax":
    pytest.skip("JAX's own", allow_module_level=True)

import jax

from keras_bert_zoo.training.jax_crossentropy import crossentropy


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-6), ("bfloat16", 4e-3)])
def test_losses_and_gradients_are_those_of_softmax(dtype, tolerance):
    rng = np.random.default_rng(0)
    logits = jax.numpy.asarray(rng.normal(0, 5, (6, 50)), dtype)
    labels = np.array([0, 49, 7, 7, -1, 50], "float32")  # The last two are no classes.
    given = np.linspace(0.5, 2, 6).astype("float32")
    losses, backpropagate = jax.vjp(lambda logits: crossentropy(labels, logits), logits)
    (gradient,) = backpropagate(jax.numpy.asarray(given))

    exact = np.asarray(logits.astype("float32"), "float64")
    shares = np.exp(exact) / np.exp(exact).sum(-1, keepdims=True)
    targets = np.eye(50)[[0, 49, 7, 7]]
    expected = np.append(-np.log((shares[:4] * targets).sum(-1)), [0, 0])
    assert losses.dtype == "float32"
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    np.testing.assert_allclose(gradient[:4].astype("float32"), (shares[:4] - targets) * given[:4, None], atol=tolerance)
    assert not gradient[4:].any()


def test_large_logits_do_not_overflow():
    logits = jax.numpy.asarray([[1e4, 0.0], [-1e4, -1e4]])
    losses, gradient = jax.value_and_grad(lambda logits: crossentropy(np.array([0, 1]), logits).sum())(logits)
    np.testing.assert_allclose(losses, np.log(2), rtol=1e-6)
    np.testing.assert_allclose(gradient, [[0, 0], [0.5, -0.5]], atol=1e-6)


def test_the_second_derivative_is_there():
    logits = np.array([[0.5, -1.0, 2.0]], "float32")
    hessian = jax.hessian(lambda row: crossentropy(np.array([1]), row[None])[0])(logits[0])
    shares = np.exp(logits[0]) / np.exp(logits).sum()
    np.testing.assert_allclose(hessian, np.diag(shares) - np.outer(shares, shares), atol=1e-6)
