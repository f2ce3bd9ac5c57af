"""Probabilities of logits against exact fractions, and at the ends of what float32 holds."""

import numpy as np
import pytest

from keras_bert_zoo.probabilities import sigmoid, softmax


def test_probabilities_of_odds():
    """Logits are logarithms of odds: 1, 3, 4 of 8 are exclusive; 1, 3, 4 to 1 are not."""
    logits = np.log(np.array([[1, 3, 4], [2, 1, 1]], "float32"))
    np.testing.assert_allclose(softmax(logits), [[1 / 8, 3 / 8, 4 / 8], [2 / 4, 1 / 4, 1 / 4]], rtol=1e-6)
    np.testing.assert_allclose(sigmoid(logits), [[1 / 2, 3 / 4, 4 / 5], [2 / 3, 1 / 2, 1 / 2]], rtol=1e-6)
    assert softmax(logits).dtype == sigmoid(logits).dtype == np.float32


@pytest.mark.filterwarnings("error")
def test_large_logits_neither_overflow_nor_vanish():
    np.testing.assert_array_equal(softmax(np.float32([1000, 1000, -1000])), [0.5, 0.5, 0])
    np.testing.assert_allclose(sigmoid(np.float32([1000, 0, -80, -1000])), [1, 0.5, np.exp(-80.0), 0], rtol=1e-6)


def test_no_text_has_no_probabilities():
    assert softmax(np.zeros((0, 3), "float32")).shape == sigmoid(np.zeros((0, 3), "float32")).shape == (0, 3)
