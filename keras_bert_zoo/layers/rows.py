"""Tokens as the rows of one matrix, where products are faster so, and other shapes of them."""

from typing import Any

import keras
from keras import ops


def to_rows(hidden: Any) -> Any:
    """`[batch, length, dim]` as `[batch * length, dim]` on TensorFlow, which joins bias and GELU to these alone.

    Elsewhere `hidden` itself: for PyTorch a reshape costs time at each batch, and jax2onnx (0.17) writes none back.
    """
    if keras.backend.backend() != "tensorflow":
        return hidden
    return ops.reshape(hidden, (-1, hidden.shape[-1]))


def from_rows(rows: Any, hidden: Any) -> Any:
    """What was made of `to_rows(hidden)`, in batches again."""
    if keras.backend.backend() != "tensorflow":
        return rows
    return ops.reshape(rows, (*ops.shape(hidden)[:-1], rows.shape[-1]))


def reshape(tensor: Any, shape: tuple[Any, ...]) -> Any:
    """`ops.reshape` within a layer; on PyTorch a tensor's own method, for which Keras looks through no argument."""
    return tensor.reshape(shape) if keras.backend.backend() == "torch" else ops.reshape(tensor, shape)
