"""Checks of token arrays before anything compiles, with the same messages on every backend."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_bert_zoo.checks import check_position
from keras_bert_zoo.training.memory import memory_kept

INPUT_NAMES = ("token_ids", "segment_ids", "padding_mask")


def check_structure(inputs: Any, max_sequence_length: int, axes: tuple[str, ...] = ("batch", "length")) -> None:
    """Check that the three inputs exist, have one shape along `axes` and are not too long.

    Works on anything with a shape: arrays, tensors and symbolic tensors.
    """
    expected = f"[{', '.join(axes)}]"
    if not isinstance(inputs, dict) or set(inputs) != set(INPUT_NAMES):
        received = sorted(map(str, inputs)) if isinstance(inputs, dict) else type(inputs).__name__
        raise ValueError(f"Inputs must be a dict of {', '.join(INPUT_NAMES)}. Received: {received}")
    shapes = {}
    for name in INPUT_NAMES:
        if getattr(inputs[name], "shape", None) is None:
            received = type(inputs[name]).__name__
            raise ValueError(f"`{name}` must be an integer array {expected}. Received: {name} of type {received}")
        shapes[name] = tuple(inputs[name].shape)
        if len(shapes[name]) != len(axes):
            raise ValueError(f"`{name}` must have the shape {expected}. Received: {name}.shape={shapes[name]}")
    if any(None not in shape and None not in shapes["token_ids"] and shape != shapes["token_ids"]
           for shape in shapes.values()):  # fmt: skip
        raise ValueError(f"All inputs must have one shape. Received: {shapes}")
    length = shapes["token_ids"][-1]
    if length == 0:
        raise ValueError(
            f"`token_ids` must have at least one token per row. Received: token_ids.shape={shapes['token_ids']}"
        )
    if length is not None and length > max_sequence_length:
        raise ValueError(
            f"`token_ids` must have at most {max_sequence_length} tokens per row (max_sequence_length). "
            f"Received: token_ids.shape={shapes['token_ids']}"
        )


def check_values(inputs: dict[str, np.ndarray], vocabulary_size: int, num_segments: int) -> None:
    """Check that every id has a row in its embedding table."""
    for name, stop in (("token_ids", vocabulary_size), ("segment_ids", num_segments), ("padding_mask", 2)):
        array = inputs[name]
        # A mask may be bool, and so may two segments.
        if not np.issubdtype(array.dtype, np.integer) and (array.dtype != bool or name == "token_ids"):
            raise ValueError(f"`{name}` must hold integers. Received: {name}.dtype={array.dtype}")
        check_range(name, array, stop)


def as_array(name: str, values: Any) -> np.ndarray:
    """Convert the argument or input `name` to an array; NumPy's own error would not name it."""
    try:
        return np.asarray(values)
    except ValueError:
        raise ValueError(f"`{name}` must have rows of one length. Received: rows of different lengths") from None


def as_row(name: str, values: Any, count: int) -> np.ndarray:
    """Convert to an array; a column of `count` values becomes a row."""
    array = as_array(name, values)
    return array[:, 0] if array.shape == (count, 1) else array


def check_range(name: str, array: np.ndarray, stop: int) -> None:
    """Check that every number is in [0, stop)."""
    if array.size and not (array.min() >= 0 and array.max() < stop):  # NaN is also outside.
        outside = array[~((array >= 0) & (array < stop))][0]
        raise ValueError(f"`{name}` must be in [0, {stop}). Received: {name} with {outside}")


def finite_float32(name: str, numbers: np.ndarray, kinds: str = "iufb") -> np.ndarray:
    """Convert the argument `name` to float32; NaN, infinity and other kinds of dtypes raise a `ValueError`."""
    if numbers.dtype.kind not in kinds:
        what = "floating-point numbers" if kinds == "f" else "numbers"
        raise ValueError(f"`{name}` must hold {what}. Received: {name}.dtype={numbers.dtype}")
    converted = as_float32(numbers)
    finite = np.isfinite(converted)
    if not finite.all():
        raise ValueError(f"`{name}` must hold finite numbers. Received: {name} with {numbers[~finite][0]}")
    return converted


def checked_weights(sample_weight: Any, count: int, what: str = "") -> np.ndarray | None:
    """Return weights as float32 `[count]`, or None; `what` says in the error what each weight is for."""
    if sample_weight is None:
        return None
    weights = as_row("sample_weight", _as_weights(sample_weight), count)
    if weights.shape != (count,):
        raise ValueError(
            f"`sample_weight` must have the shape ({count},){what}. Received: sample_weight.shape={weights.shape}"
        )
    return finite_float32("sample_weight", weights)


def checked_stream_weights(sample_weight: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return a streamed batch's weights as float32, for rows, places or numbers of targets of this shape."""
    weights = _as_weights(sample_weight)
    if weights.shape not in {(*shape[:1], 1), *(shape[:n] for n in range(1, len(shape) + 1))}:
        raise ValueError(
            f"`sample_weight` must have the shape {shape[:1]} or the targets', {shape}. "
            f"Received: sample_weight.shape={weights.shape}"
        )
    return finite_float32("sample_weight", weights)


def _as_weights(sample_weight: Any) -> np.ndarray:
    weights = unboxed(as_array("sample_weight", sample_weight))
    # NumPy does not know that bfloat16 is a float.
    return weights.astype("float32") if weights.dtype.name == "bfloat16" else weights


def unboxed(array: np.ndarray) -> np.ndarray:
    """Convert an array of objects, such as a data frame's column of numbers or of vectors; others stay as they are."""
    if array.dtype != object:
        return array
    try:
        return np.asarray(array.tolist())
    except ValueError:  # Of unequal lengths.
        return array


def as_float32(weights: Any) -> np.ndarray:
    """Convert numbers; those beyond float32 become infinite, without NumPy's warning."""
    with np.errstate(over="ignore"):
        return np.asarray(weights).astype("float32")


def check_position_array(name: str, positions: Any, shape: tuple[int | None, ...]) -> None:
    """Check that `positions`, the argument or input `name`, are integers `[batch, n]` for texts of this shape.

    Values and their type are checked in NumPy arrays only.
    """
    found = getattr(positions, "shape", None)
    if found is None:
        raise ValueError(f"`{name}` must be an integer array. Received: {name} of type {type(positions).__name__}")
    if len(found) != 2 or found[1] == 0 or (None not in (found[0], shape[0]) and found[0] != shape[0]):
        raise ValueError(
            f"`{name}` must have the shape [batch, n], n at least 1. "
            f"Received: {name}.shape={tuple(found)}, token_ids.shape={tuple(shape)}"
        )
    if not isinstance(positions, np.ndarray):
        return
    if not np.issubdtype(positions.dtype, np.integer):
        raise ValueError(f"`{name}` must hold integers. Received: {name}.dtype={positions.dtype}")
    if shape[1] is not None:
        check_range(name, positions, shape[1])


def as_output_positions(positions: Any, shape: tuple[int | None, ...]) -> Any:
    """Convert `output_positions` of texts of this shape to an int or int32 `[batch, n]`."""
    if isinstance(positions, (int, np.integer)) and not isinstance(positions, bool):
        check_position(output_positions=positions, length=shape[1])
        return int(positions)
    check_position_array("output_positions", positions, shape)
    is_ready = keras.backend.standardize_dtype(positions.dtype) == "int32"
    return positions if is_ready else keras.ops.cast(positions, "int32")


class ChecksInputs:
    """Mixin that calls a model's `check_inputs` before Keras converts the inputs to tensors.

    Passes over data keep memory.
    """

    check_inputs: Callable[[Any], None]

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        self.check_inputs(inputs)
        return super().__call__(inputs, *args, **kwargs)  # type: ignore[misc]

    def fit(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        with memory_kept():
            return super().fit(self._checked(x), *args, **kwargs)  # type: ignore[misc]

    def evaluate(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        with memory_kept():
            return super().evaluate(self._checked(x), *args, **kwargs)  # type: ignore[misc]

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        with memory_kept():
            return super().predict(self._checked(x), *args, **kwargs)  # type: ignore[misc]

    def predict_on_batch(self, x: Any) -> Any:
        return super().predict_on_batch(self._checked(x))  # type: ignore[misc]

    def _checked(self, x: Any) -> Any:
        if isinstance(x, dict):  # Values are checked in NumPy arrays only.
            x = {name: keras.ops.convert_to_numpy(a) if keras.ops.is_tensor(a) else a for name, a in x.items()}
        if isinstance(x, (dict, np.ndarray)):
            self.check_inputs(x)
        return x


def is_numpy(inputs: Any) -> bool:
    """Whether a structure is a dict of NumPy arrays, whose values are cheap to check."""
    return isinstance(inputs, dict) and all(isinstance(array, np.ndarray) for array in inputs.values())
