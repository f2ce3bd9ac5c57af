"""Read the weight files of a Hugging Face directory: one or several, safetensors or PyTorch's own."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from keras_bert_zoo.checkpoints import pytorch
from keras_bert_zoo.checkpoints.checkpoint import Tensor
from keras_bert_zoo.checkpoints.tensors import check_kind
from keras_bert_zoo.json_files import read_json, typed

SAFETENSORS, PYTORCH = "model.safetensors", "pytorch_model.bin"
INDEX = ".index.json"
# safetensors' names of the float types that we support; NumPy has no type for some of the others.
_KINDS = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}
# Eighty times BERT large's. safetensors itself allows 100 MB, of which it makes gigabytes of objects.
_LONGEST_HEADER = 4 * 2**20
_PLAIN_NAME = re.compile(r"\w[\w.-]{0,200}")


def read_weights(directory: Path) -> dict[str, Tensor]:
    """Return the tensors by name; safetensors takes precedence, and within a format one file over shards."""
    path = _weights_file(directory)
    if path is None:
        raise ValueError(
            f"The preset must hold {SAFETENSORS}; pass load_weights=False to do without. Received: {directory} without "
            f"it and without {PYTORCH}"
        )
    read = pytorch.read if path.name.startswith(PYTORCH) else _read_safetensors
    return _read_shards(path, read) if path.name.endswith(INDEX) else read(path)


def shard_names(directory: Path) -> list[str]:
    """Return the names of the shards that `read_weights` would read; none for a single file."""
    path = _weights_file(directory)
    return [] if path is None or not path.name.endswith(INDEX) else _shards_in(path)[0]


def _weights_file(directory: Path) -> Path | None:
    """Return the file with all tensors, or the index of shards, that takes precedence."""
    names = (name + end for name in (SAFETENSORS, PYTORCH) for end in ("", INDEX))
    return next(filter(Path.is_file, map(directory.joinpath, names)), None)


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file by name."""
    import safetensors

    try:
        with path.open("rb") as file:
            header = int.from_bytes(file.read(8), "little")
        if header > _LONGEST_HEADER:
            raise ValueError(f"{path} must be a safetensors file (its header has {header} bytes, too many)")
        handle = safetensors.safe_open(path, framework="numpy")
        slices = {name: handle.get_slice(name) for name in handle.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(f"{path} must be a safetensors file ({error})") from None

    def reader(name: str) -> Tensor:
        def values() -> np.ndarray:
            kind = slices[name].get_dtype()
            check_kind(name, _KINDS.get(kind, kind))
            return handle.get_tensor(name)

        return Tensor(tuple(slices[name].get_shape()), values)

    return {name: reader(name) for name in slices}


def _shards_in(index: Path) -> tuple[list[str], dict[str, Any]]:
    """Return the shards' names, and that of each tensor's."""
    places = typed(index, read_json(index), "weight_map", dict, {})
    names = sorted(set(map(str, places.values())))
    for name in names:
        # An index may only refer to files beside it.
        if not _PLAIN_NAME.fullmatch(name):
            raise ValueError(f"{index}: `weight_map` must hold plain file names. Received: {name[:80]!r}")
    return names, places


def _read_shards(index: Path, read: Callable[[Path], dict[str, Tensor]]) -> dict[str, Tensor]:
    shards: dict[str, dict[str, Tensor]] = {}
    names, places = _shards_in(index)
    for name in names:
        if not (index.parent / name).is_file():
            raise ValueError(f"{index}: every file of `weight_map` must exist. Received: a directory without {name}")
        shards[name] = read(index.parent / name)
    tensors = {name: tensor for shard in shards.values() for name, tensor in shard.items()}
    for name, shard in places.items():
        if name not in shards[str(shard)]:
            raise ValueError(
                f"{index}: each tensor must be in the file it names. Received: {name[:80]!r} not in {shard}"
            )
        tensors[name] = shards[str(shard)][name]
    return tensors
