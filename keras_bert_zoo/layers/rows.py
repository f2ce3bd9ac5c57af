"""Reshaping of tokens, to the rows of one matrix where that makes matmuls faster."""

from typing import Any

import keras
from keras import ops


def to_rows(hidden: Any) -> Any:
    """Reshape `[batch, length, dim]` to `[batch * length, dim]` on TensorFlow.

    TensorFlow fuses bias and GELU only for such rows. Elsewhere return `hidden`: on PyTorch a reshape takes time at
    each batch, and jax2onnx 0.17 cannot reverse it.
    """
    if keras.backend.backend() != "tensorflow":
        return hidden
    return ops.reshape(hidden, (-1, hidden.shape[-1]))


def from_rows(rows: Any, hidden: Any) -> Any:
    """Reshape the result of `to_rows(hidden)` back to batches."""
    if keras.backend.backend() != "tensorflow":
        return rows
    return ops.reshape(rows, (*ops.shape(hidden)[:-1], rows.shape[-1]))


def reshape(tensor: Any, shape: tuple[Any, ...]) -> Any:
    """Reshape within a layer; on PyTorch by the tensor's method, which avoids Keras' search through the arguments."""
    return tensor.reshape(shape) if keras.backend.backend() == "torch" else ops.reshape(tensor, shape)
