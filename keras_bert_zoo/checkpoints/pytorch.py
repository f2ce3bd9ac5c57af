"""Read `pytorch_model.bin` without PyTorch, and without executing what its pickles may hold.

There are two formats: a zip archive with a pickle and one entry per storage (PyTorch 1.6 and newer), and an older one
of five consecutive pickles followed by the storages. Tensors are views of storages: an offset, a shape and strides.
"""

import io
import math
import re
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_bert_zoo.checkpoints.checkpoint import Tensor
from keras_bert_zoo.checkpoints.pickles import MOST_BYTES, Global, PickleError, checked_pairs, load
from keras_bert_zoo.checkpoints.tensors import check_bytes, float_dtype, read_values

_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_PROTOCOL = 1001
_KINDS = {
    "torch FloatStorage": "float32",
    "torch HalfStorage": "float16",
    "torch BFloat16Storage": "bfloat16",
    "torch DoubleStorage": "float64",
    "torch LongStorage": "int64",
}
# PyTorch's keys of storages are numbers.
_LONGEST_KEY = 100
# Flat names below one folder, as PyTorch writes them.
_ENTRY = re.compile(r"[^/\\]+/(\.?data/)?[^/\\]+")


class _Storage(NamedTuple):
    kind: str
    key: str
    size: int


class _View(NamedTuple):
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a state dict by name.

    Raises:
        ValueError: The file is broken or holds anything but tensors; nothing in it is executed.
    """
    try:
        with path.open("rb") as file:
            is_zip = file.read(4) == b"PK\x03\x04"
        views, positions = (_read_zip if is_zip else _read_legacy)(path)
        size = path.stat().st_size
        for view in views.values():
            _check_view(view)
            _check_place(view.storage, positions, size)
    except PickleError as error:
        raise ValueError(f"{path} must hold a state dict of tensors and nothing else. Received: {error}") from None
    # zipfile raises the last one for an unknown compression method.
    except (zipfile.BadZipFile, struct.error, ValueError, KeyError, EOFError, OSError, NotImplementedError) as error:
        raise ValueError(f"{path} must be a file of torch.save. Received: a broken one ({error})") from None
    tensors = {name: _tensor(path, view, positions[view.storage.key]) for name, view in views.items()}
    check_bytes(path, tensors, size)
    return tensors


def _tensor(path: Path, view: _View, position: int) -> Tensor:
    def values() -> np.ndarray:
        kind = float_dtype(view.storage.kind)
        flat = read_values(path, view.storage.kind, _span(view), position + view.offset * kind.itemsize)
        strides = tuple(stride * kind.itemsize for stride in view.strides)
        return np.lib.stride_tricks.as_strided(flat, view.shape, strides, writeable=False)

    return Tensor(view.shape, values)


def _span(view: _View) -> int:
    """Return the number of the storage's values from the view's first to its last."""
    if 0 in view.shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(view.shape, view.strides, strict=True))


def _check_view(view: _View) -> None:
    numbers = (view.offset, *view.shape, *view.strides)
    if len(view.shape) != len(view.strides) or len(numbers) > 9 or not all(map(_is_size, numbers)):
        raise PickleError("a tensor whose offset, shape and strides are not natural numbers")
    # More elements than values means that strides overlap, so that a few bytes could become a giant tensor.
    if view.offset + _span(view) > view.storage.size or math.prod(view.shape) > _span(view):
        raise PickleError(
            f"a tensor of shape {view.shape}, strides {view.strides} and offset {view.offset} in a storage of "
            f"{view.storage.size}"
        )


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**48


def _check_place(storage: _Storage, positions: dict[str, int], size: int) -> None:
    if storage.key not in positions:
        raise PickleError(f"no storage {storage.key[:80]!r}")
    if positions[storage.key] + storage.size * float_dtype(storage.kind).itemsize > size:
        raise PickleError(f"a storage of {storage.size} values beyond the end of the file")


# --- The pickle of a state dict


def _names() -> dict[str, Global]:
    def ordered_dict(items: Any = ()) -> dict[Any, Any]:
        return dict(checked_pairs(items))

    def parameter(data: Any, requires_grad: Any, hooks: Any) -> Any:
        return data

    def tensor(storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any) -> _View:
        if not isinstance(storage, _Storage) or not isinstance(shape, tuple) or not isinstance(strides, tuple):
            raise PickleError("a tensor without a storage")
        return _View(storage, offset, shape, strides)

    calls: dict[str, Callable[..., Any]] = {
        "collections OrderedDict": ordered_dict,
        "torch._utils _rebuild_parameter": parameter,
        "torch._utils _rebuild_tensor": tensor,
        "torch._utils _rebuild_tensor_v2": tensor,
    }
    return {
        **{name: Global(name, call) for name, call in calls.items()},
        **{name: Global(name) for name in _KINDS},
    }


def _load_state_dict(stream: io.BytesIO) -> dict[str, _View]:
    def storage(identity: Any) -> _Storage:
        tag, kind, key, _, size, *view = identity
        if tag != "storage" or not isinstance(kind, Global) or not isinstance(key, str) or view not in ([], [None]):
            raise PickleError("a storage of another form")
        if kind.name not in _KINDS or not _is_size(size) or len(key) > _LONGEST_KEY:
            raise PickleError("a storage of another kind")
        return _Storage(_KINDS[kind.name], key, size)

    state = load(stream, _names(), storage)
    if not isinstance(state, dict):
        raise PickleError(f"an object of type {type(state).__name__}")
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, _View):
            raise PickleError(f"{str(name)[:80]!r} of type {type(value).__name__}")
    return state


# --- Where the storages are


class _Bounded(io.BufferedReader):
    """A file of which no large part is read at once, such as a list of millions of entries."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path))

    def read(self, size: int | None = -1) -> bytes:
        content = super().read(MOST_BYTES + 1 if size is None or size < 0 else min(size, MOST_BYTES + 1))
        if len(content) > MOST_BYTES:
            raise PickleError("an archive whose list of entries is too long")
        return content


def _read_zip(path: Path) -> tuple[dict[str, _View], dict[str, int]]:
    with _Bounded(path) as whole, zipfile.ZipFile(whole) as archive, path.open("rb") as file:
        entries = {entry.filename: entry for entry in archive.infolist()}
        for name, entry in entries.items():
            if not _ENTRY.fullmatch(name) or ".." in name.split("/"):
                raise PickleError(f"an entry named {name[:80]!r}")
            if (
                entry.compress_type != zipfile.ZIP_STORED
                or entry.flag_bits & 1
                or entry.compress_size != entry.file_size
            ):
                raise PickleError(f"{name[:80]!r}, which is compressed or encrypted")
        pickles = [name for name in entries if name.endswith("/data.pkl")]
        if len(pickles) != 1 or len({name.split("/")[0] for name in entries}) != 1:
            raise PickleError(f"an archive with {len(pickles)} entries data.pkl")
        root = pickles[0].removesuffix("data.pkl")
        if f"{root}byteorder" in entries and _content(file, entries[f"{root}byteorder"]) != b"little":
            raise PickleError("values that are not little-endian")
        views = _load_state_dict(io.BytesIO(_content(file, entries[pickles[0]])))
        positions = {}
        for storage in {view.storage for view in views.values()}:
            data = entries.get(f"{root}data/{storage.key}")
            if data is None or data.file_size != storage.size * float_dtype(storage.kind).itemsize:
                raise PickleError(f"no entry data/{storage.key[:80]} of {storage.size} values")
            positions[storage.key] = _start(file, data)
    return views, positions


def _content(file: io.BufferedReader, entry: zipfile.ZipInfo) -> bytes:
    if entry.file_size > MOST_BYTES:
        raise PickleError(f"{entry.filename[:80]!r} of {entry.file_size} bytes")
    file.seek(_start(file, entry))
    return file.read(entry.file_size)


def _start(file: io.BufferedReader, entry: zipfile.ZipInfo) -> int:
    """Return where a stored entry's bytes begin: after its header, whose last two fields have variable lengths."""
    file.seek(entry.header_offset)
    signature, name, extra = struct.unpack("<4s22xHH", file.read(30))
    if signature != b"PK\x03\x04":
        raise zipfile.BadZipFile("an entry without its header")
    return entry.header_offset + 30 + name + extra


def _read_legacy(path: Path) -> tuple[dict[str, _View], dict[str, int]]:
    with path.open("rb") as file:
        head = io.BytesIO(file.read(MOST_BYTES))
        if load(head, {}, _refuse) != _LEGACY_MAGIC or load(head, {}, _refuse) != _LEGACY_PROTOCOL:
            raise PickleError("another format")
        system = load(head, {}, _refuse)
        if not isinstance(system, dict) or system.get("little_endian") is not True:
            raise PickleError("values that are not little-endian")
        views = _load_state_dict(head)
        keys = load(head, {}, _refuse)
        storages = {view.storage.key: view.storage for view in views.values()}
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            raise PickleError("no list of storages")
        positions = {}
        position = head.tell()
        for key in keys:
            if key not in storages:
                raise PickleError(f"a storage {key[:80]!r} that no tensor uses")
            file.seek(position)
            (count,) = struct.unpack("<q", file.read(8))
            if count != storages[key].size:
                raise PickleError(f"a storage {key[:80]!r} of {count} values in place of {storages[key].size}")
            positions[key] = position + 8
            position += 8 + count * float_dtype(storages[key].kind).itemsize
    return views, positions


def _refuse(identity: Any) -> Any:
    raise PickleError("a storage out of place")
