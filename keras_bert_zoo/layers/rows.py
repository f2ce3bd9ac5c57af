"""Tokens as the rows of one matrix, where products are faster so, other shapes of them, and some rows of them."""

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


def rows_at(values: Any, positions: Any) -> Any:
    """Some positions of `[batch, ..., length, dim]`: an int, the same of each example, or int32 `[batch, n]`."""
    if isinstance(positions, int):
        return values[..., positions : positions + 1, :]
    # A product with ones and zeros takes rows as exactly as a gather, and its gradient is a product again: no
    # scattered sums, whose order no backend promises, and shapes that a TPU likes.
    # Not `one_hot`, of which PyTorch would export one length only. From 0, as jax2onnx (0.17) has no stop alone.
    steps = ops.arange(0, ops.shape(values)[-2], dtype="int32")
    chosen = ops.cast(ops.expand_dims(positions, -1) == steps, values.dtype)
    return ops.matmul(chosen if len(values.shape) == 3 else chosen[:, None], values)


def reshape(tensor: Any, shape: tuple[Any, ...]) -> Any:
    """`ops.reshape` within a layer; on PyTorch a tensor's own method, for which Keras looks through no argument."""
    return tensor.reshape(shape) if keras.backend.backend() == "torch" else ops.reshape(tensor, shape)
