"""Convert other formats' tensors to our arrays and back, by a table for each format."""

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keras_bert_zoo.checkpoints.checkpoint import LazyArrays, Tensor

# Compared by name: in NumPy, the half-precision tensors of ml_dtypes have the kind "V".
_FLOATS = ("float16", "bfloat16", "float32", "float64")


class Template(NamedTuple):
    """The tensors of another format that correspond to an array of ours.

    Attributes:
        ours: The path of our variable; `{i}` is the layer's number, also in `theirs`.
        theirs: Names of tensors; several are concatenated into one array of ours.
        transposed: Whether theirs is `[out, in]`.
    """

    ours: str
    theirs: tuple[str, ...]
    transposed: bool = False


def layer(ours: str, theirs: str, ends: dict[str, str], transposed: bool = False) -> list[Template]:
    """Return the templates of a layer's weights.

    Args:
        ours: The path of our layer.
        theirs: What their names begin with.
        ends: How the name of each of our weights, such as `kernel`, ends in theirs.
        transposed: Whether their kernel is `[out, in]`.
    """
    return [Template(f"{ours}/{name}", (theirs + end,), transposed and name == "kernel") for name, end in ends.items()]


def join_tensors(tensors: Mapping[str, Tensor], templates: Iterable[Template]) -> tuple[LazyArrays, tuple[str, ...]]:
    """Return their tensors as our float32 arrays, and the names of those that have no place."""
    left = set(tensors)
    layers = sorted({int(m[1]) for name in left if (m := re.search(r"\bencoder[./]layer[._](\d{1,4})[./]", name))})
    arrays: dict[str, Tensor] = {}
    for template in templates:
        for i in layers if "{i}" in template.ours else [0]:
            sources = [name.replace("{i}", str(i)) for name in template.theirs]
            if left.issuperset(sources):
                parts = {name: tensors[name] for name in sources}
                arrays[template.ours.replace("{i}", str(i))] = _join(parts, template.transposed)
                left.difference_update(sources)
    return LazyArrays(arrays), tuple(sorted(left))


def _join(parts: dict[str, Tensor], transposed: bool) -> Tensor:
    def read() -> np.ndarray:
        arrays = [_as_float32(name, tensor.read()) for name, tensor in parts.items()]
        return np.concatenate([array.T if transposed else array for array in arrays], axis=-1)

    shapes = [tensor.shape[::-1] if transposed else tensor.shape for tensor in parts.values()]
    if len(set(shapes)) > 1 or () in shapes:  # Of other widths, they would be taken apart elsewhere.
        described = ", ".join(f"{name} {tensor.shape}" for name, tensor in parts.items())
        raise ValueError(f"Tensors of one layer must fit each other. Received: {described}")
    return Tensor((*shapes[0][:-1], sum(shape[-1] for shape in shapes)), read)


def split_arrays(arrays: Mapping[str, np.ndarray], templates: Iterable[Template], layout: str) -> dict[str, np.ndarray]:
    """Return our arrays as their float32 tensors; an array without a place in `layout` raises a `ValueError`."""
    places = {template.ours: template for template in templates}
    tensors = {}
    for ours, array in arrays.items():
        match = re.fullmatch(r"encoder_layer_(\d+)/(.+)", ours)
        template = places.get(f"encoder_layer_{{i}}/{match[2]}" if match else ours)
        if template is None:
            raise ValueError(f"A weight must have a place in {layout}. Received: {ours!r}")
        theirs = [name.replace("{i}", match[1] if match else "") for name in template.theirs]
        for name, part in zip(theirs, np.split(array, len(theirs), axis=-1), strict=True):
            tensors[name] = np.ascontiguousarray(part.T if template.transposed else part, dtype="float32")
    return tensors


def check_kind(name: str, kind: str) -> None:
    """Reject a tensor whose values are not floats."""
    if kind not in _FLOATS:
        raise ValueError(f"Weights must be of one of the kinds {', '.join(_FLOATS)}. Received: {name} of {kind}")


def _as_float32(name: str, array: np.ndarray) -> np.ndarray:
    check_kind(name, array.dtype.name)
    return array.astype("float32", copy=False)


def float_dtype(kind: str) -> np.dtype:
    """Return the little-endian dtype of a kind's name, including `bfloat16`."""
    if kind == "bfloat16":
        from ml_dtypes import bfloat16  # Keras depends on it.

        return np.dtype(bfloat16)
    return np.dtype(kind).newbyteorder("<")


def read_values(path: Path, kind: str, count: int, offset: int) -> np.ndarray:
    """Read `count` values of a file from byte `offset` on."""
    values = np.fromfile(path, float_dtype(kind), count=count, offset=offset)
    if values.size != count:
        raise ValueError(f"{path} must stay as it was while it is read. Received: a shorter file")
    return values


def check_bytes(path: object, tensors: Mapping[str, Tensor], size: int) -> None:
    """Reject tensors that a file of `size` bytes cannot hold; tied weights may use the same bytes twice."""
    claimed = sum(math.prod(tensor.shape) for tensor in tensors.values())
    if claimed > size:  # No weight takes fewer than two bytes.
        raise ValueError(f"{path} must hold the values of its tensors. Received: {size} bytes for {claimed} values")
