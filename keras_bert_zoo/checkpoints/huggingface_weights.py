"""The weight files of a Hugging Face directory: one or several, safetensors or PyTorch's own."""

import re
from collections.abc import Callable
from pathlib import Path

from keras_bert_zoo.checkpoints import pytorch
from keras_bert_zoo.checkpoints.checkpoint import Tensor
from keras_bert_zoo.files import read_json, typed

SAFETENSORS, PYTORCH = "model.safetensors", "pytorch_model.bin"
INDEX = ".index.json"
_PLAIN_NAME = re.compile(r"\w[\w.-]{0,200}")


def read_weights(directory: Path) -> dict[str, Tensor]:
    """The tensors by their names; of several files safetensors comes first, and one file before shards."""
    for name, read in ((SAFETENSORS, read_safetensors), (PYTORCH, pytorch.read)):
        if (directory / name).is_file():
            return read(directory / name)
        if (directory / (name + INDEX)).is_file():
            return _read_shards(directory / (name + INDEX), read)
    raise ValueError(
        f"The preset must hold {SAFETENSORS}; pass load_weights=False for none. Received: {directory} without it and "
        f"without {PYTORCH}"
    )


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    import safetensors

    try:
        handle = safetensors.safe_open(path, framework="numpy")
        shapes = {name: tuple(handle.get_slice(name).get_shape()) for name in handle.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(f"{path} must be a safetensors file ({error})") from None

    def reader(name: str) -> Tensor:
        return Tensor(shapes[name], lambda: handle.get_tensor(name))

    return {name: reader(name) for name in shapes}


def _read_shards(index: Path, read: Callable[[Path], dict[str, Tensor]]) -> dict[str, Tensor]:
    places = typed(index, read_json(index), "weight_map", dict, {})
    shards: dict[str, dict[str, Tensor]] = {}
    for name in sorted(set(map(str, places.values()))):
        # An index leads to its neighbours, nowhere else.
        if not _PLAIN_NAME.fullmatch(name):
            raise ValueError(f"{index}: `weight_map` must hold plain file names. Received: {name[:80]!r}")
        if not (index.parent / name).is_file():
            raise ValueError(f"{index}: every file of `weight_map` must be there. Received: one without {name}")
        shards[name] = read(index.parent / name)
    tensors = {name: tensor for shard in shards.values() for name, tensor in shard.items()}
    for name, shard in places.items():
        if name not in shards[str(shard)]:
            raise ValueError(f"{index}: each tensor must be in the file it names. Received: {name} not in {shard}")
        tensors[name] = shards[str(shard)][name]
    return tensors
