"""Write TensorFlow's checkpoint files (`*.index`, `*.data-*`) without TensorFlow; `bundle.py` describes them."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from keras_bert_zoo.checkpoints.bundle import FLOAT32, FOOTER, MAGIC, shard
from keras_bert_zoo.checkpoints.crc32c import masked_crc32c


def write(prefix: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Write float32 tensors as the checkpoint `prefix`, in one file of values."""
    # The empty key, which sorts first, holds the number of files of values (1) and the format's version (1).
    entries = {b"": _field(1, 1) + _field(3, _field(1, 1))}
    with shard(prefix, 0, 1).open("wb") as file:
        for name in sorted(tensors, key=str.encode):
            values = np.ascontiguousarray(tensors[name], "<f4")
            entries[name.encode()] = _entry(values, file.tell())
            file.write(values.data)
    prefix.with_name(f"{prefix.name}.index").write_bytes(_table(entries))


def _entry(values: np.ndarray, offset: int) -> bytes:
    shape = b"".join(_field(2, _field(1, size)) for size in values.shape)
    checksum = _varint(6 << 3 | 5) + masked_crc32c(values).to_bytes(4, "little")
    return _field(1, FLOAT32) + _field(2, shape) + _field(4, offset) + _field(5, values.nbytes) + checksum


def _field(number: int, value: int | bytes) -> bytes:
    """Encode a field of a protocol buffer; zeros are omitted."""
    if isinstance(value, bytes):
        return _varint(number << 3 | 2) + _varint(len(value)) + value
    return _varint(number << 3) + _varint(value) if value else b""


def _table(entries: dict[bytes, bytes]) -> bytes:
    """Encode a table of one data block, an empty meta-index block and an index block."""
    blocks, handles = b"", []
    for block in (entries, {}):
        blocks, handle = _append(blocks, block)
        handles.append(handle)
    # The key of a block in the index must not be below the block's last key.
    blocks, handle = _append(blocks, {max(entries): handles[0]})
    return blocks + (handles[1] + handle).ljust(FOOTER - len(MAGIC), b"\0") + MAGIC


def _append(blocks: bytes, entries: dict[bytes, bytes]) -> tuple[bytes, bytes]:
    """Append a block whose keys share no prefixes. Return all blocks and the new one's handle."""
    content, starts = bytearray(), []
    for key, value in entries.items():
        starts.append(len(content))
        content += _varint(0) + _varint(len(key)) + _varint(len(value)) + key + value
    starts = starts or [0]
    content += b"".join(number.to_bytes(4, "little") for number in (*starts, len(starts)))
    handle = _varint(len(blocks)) + _varint(len(content))
    content += b"\0"  # Not compressed.
    checksum = masked_crc32c(np.frombuffer(content, "u1"))
    return blocks + content + checksum.to_bytes(4, "little"), handle


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])
