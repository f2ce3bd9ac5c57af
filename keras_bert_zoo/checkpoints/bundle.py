"""Read TensorFlow's checkpoint files (`*.index`, `*.data-*`) without TensorFlow.

TensorFlow's own reader ends the process when an index is malformed. The index is a table in LevelDB's format (its
doc/table_format.md): blocks of sorted keys that share prefixes, and a footer that points to them. The values are
protocol buffers of TensorFlow's tensor_bundle.proto, which say where each tensor is.
"""

import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from keras_bert_zoo.checkpoints.checkpoint import Tensor
from keras_bert_zoo.checkpoints.crc32c import masked_crc32c
from keras_bert_zoo.checkpoints.tensors import check_bytes, float_dtype, read_values
from keras_bert_zoo.files import SETTINGS_BYTES, check_size

MAGIC = 0xDB4775248B80FB57.to_bytes(8, "little")
FOOTER = 48
# From types.proto. A tensor of another kind is listed but cannot be read.
FLOAT32 = 1
_KINDS = {FLOAT32: "float32", 2: "float64", 14: "bfloat16", 19: "float16"}
# Keys share prefixes: without limits a few bytes could expand to gigabytes of names.
_TENSORS, _NAME = 2**16, 1024


class _BundleError(ValueError):
    """A malformed index; the message says what it holds."""


def read(prefix: Path) -> dict[str, Tensor]:
    """Return the tensors of the checkpoint `prefix.index` by name.

    Raises:
        ValueError: The index is malformed, or a file of values is missing or too short.
    """
    index = prefix.with_name(f"{prefix.name}.index")
    check_size(index, SETTINGS_BYTES)
    try:
        entries = {key: _fields(value) for key, value in islice(_table(index.read_bytes()), _TENSORS + 1)}
        if len(entries) > _TENSORS:
            raise _BundleError(f"more than {_TENSORS:,} tensors")
        header = entries.pop(b"")
        shards = _number(header, 1)
        if _number(header, 2) != 0 or shards > 10_000:
            raise _BundleError("values that are not little-endian")
        tensors = {key.decode("utf-8"): _tensor(prefix, shards, entry) for key, entry in entries.items()}
    except _BundleError as error:
        raise ValueError(f"{index} must be the index of a TensorFlow checkpoint. Received: {error}") from None
    except (IndexError, KeyError, UnicodeDecodeError, AttributeError, TypeError) as error:
        raise ValueError(
            f"{index} must be the index of a TensorFlow checkpoint. Received: a broken one ({type(error).__name__})"
        ) from None
    files = {shard(prefix, i, shards) for i in range(shards)}
    check_bytes(prefix, tensors, sum(path.stat().st_size for path in files if path.is_file()))
    return tensors


def shard(prefix: Path, i: int, shards: int) -> Path:
    """Return the path of the `i`-th file of values."""
    return prefix.with_name(f"{prefix.name}.data-{i:05d}-of-{shards:05d}")


def _tensor(prefix: Path, shards: int, entry: dict[int, list[Any]]) -> Tensor:
    shape = _shape(entry)
    if 7 in entry:
        raise _BundleError("a tensor in slices")
    path, offset, size = shard(prefix, _number(entry, 3), shards), _number(entry, 4), _number(entry, 5)
    if not path.is_file() or offset + size > path.stat().st_size:
        raise _BundleError(f"a tensor at {offset} to {offset + size}, beyond {path.name[-80:]}")
    kind = _KINDS.get(_number(entry, 1))

    def values() -> np.ndarray:
        if kind is None:
            raise ValueError(f"{path} must hold weights as floats. Received: TensorFlow's type {_number(entry, 1)}")
        # Not compared with the entry's checksum: in NumPy that takes three times as long as all the rest of loading.
        return read_values(path, kind, math.prod(shape), offset).reshape(shape)

    if kind is not None and math.prod(shape) * float_dtype(kind).itemsize != size:
        raise _BundleError(f"a tensor of shape {shape} in {size} bytes")
    return Tensor(shape, values)


def _shape(entry: dict[int, list[Any]]) -> tuple[int, ...]:
    dimensions = _fields(entry[2][0]).get(2, []) if 2 in entry else []
    if len(dimensions) > 8:
        raise _BundleError(f"a tensor of {len(dimensions)} dimensions")
    return tuple(_number(_fields(dimension), 1) for dimension in dimensions)


# --- LevelDB's table


def _table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    if len(data) < FOOTER or not data.endswith(MAGIC):
        raise _BundleError("a file without the footer")
    footer = data[-FOOTER:]
    _, position = _varint(footer, _varint(footer, 0)[1])  # The first handle points to filters, which we do not use.
    end = 0
    for _, handle in _block(data, footer[position:]):
        # Blocks must not overlap: otherwise a small file could make us parse one block thousands of times.
        offset, place = _varint(handle, 0)
        if offset < end:
            raise _BundleError("blocks that overlap")
        end = offset + _varint(handle, place)[0]
        yield from _block(data, handle)


def _block(data: bytes, handle: bytes) -> Iterator[tuple[bytes, bytes]]:
    offset, position = _varint(handle, 0)
    size, _ = _varint(handle, position)
    if offset + size + 5 > len(data) or size < 4:
        raise _BundleError("a block beyond the end of the file")
    if data[offset + size] != 0:
        raise _BundleError("a compressed block")
    end = offset + size + 1
    if masked_crc32c(np.frombuffer(data, "u1")[offset:end]) != int.from_bytes(data[end : end + 4], "little"):
        raise _BundleError("a block that its checksum does not fit")
    restarts = int.from_bytes(data[offset + size - 4 : offset + size], "little")
    position, end, key = offset, offset + size - 4 * (restarts + 1), b""
    while position < end:
        shared, position = _varint(data, position)
        fresh, position = _varint(data, position)
        length, position = _varint(data, position)
        if shared > len(key) or position + fresh + length > end or shared + fresh > _NAME:
            raise _BundleError("a key or value beyond the end of its block, or of its length")
        key = key[:shared] + data[position : position + fresh]
        position += fresh + length
        yield key, data[position - length : position]


# --- Protocol buffers


def _fields(message: bytes) -> dict[int, list[Any]]:
    """Return the values of each field number: integers, or bytes for fields with a length."""
    fields: dict[int, list[Any]] = {}
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        value: int | bytes
        if tag & 7 == 0:
            value, position = _varint(message, position)
        elif tag & 7 == 2:
            length, position = _varint(message, position)
            value, position = message[position : position + length], position + length
        elif tag & 7 in (1, 5):
            width = 8 if tag & 7 == 1 else 4
            value, position = int.from_bytes(message[position : position + width], "little"), position + width
        else:
            raise _BundleError("a field of unknown kind")
        if position > len(message):
            raise _BundleError("a field beyond the end of its message")
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def _number(fields: dict[int, list[Any]], number: int) -> int:
    """Return a field's last value, or 0 if it has none: protocol buffers omit zeros."""
    value = fields.get(number, [0])[-1]
    if not isinstance(value, int) or value >= 2**48:
        raise _BundleError("a number that is not a size")
    return value


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for i in range(10):
        byte = data[position + i]
        value |= (byte & 127) << 7 * i
        if byte < 128:
            return value, position + i + 1
    raise _BundleError("a number of more than ten bytes")
