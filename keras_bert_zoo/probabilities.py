"""Probabilities of logits in NumPy: a backend that compiles would compile a program for each number of texts."""

import numpy as np


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return the probabilities of classes that exclude one another, which are along the last axis."""
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Return the probability of each class by itself: softmax over the logit and 0, which does not overflow."""
    return softmax(np.stack([logits, np.zeros_like(logits)], axis=-1))[..., 0]
