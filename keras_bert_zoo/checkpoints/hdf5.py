"""Read tensors from an HDF5 file, the container of Keras' weights."""

from pathlib import Path
from typing import Any

import numpy as np

from keras_bert_zoo.checkpoints.checkpoint import Tensor
from keras_bert_zoo.checkpoints.tensors import check_bytes, float_dtype

_LONGEST_NAME = 500


def read_hdf5(path: Path) -> dict[str, Tensor]:
    """Return a file's datasets by path; values stored in other files, which HDF5 allows, are rejected.

    Raises:
        ValueError: The file is missing, is not HDF5, or cannot hold what it claims to.
    """
    import h5py  # Keras depends on it.

    if not path.is_file():
        raise ValueError(
            f"The preset must hold {path.name}; pass load_weights=False to do without. Received: {path.parent}"
        )
    tensors: dict[str, Tensor] = {}

    def add(name: str | bytes, node: Any) -> None:  # Soft and external links are not visited.
        if not isinstance(name, str):
            raise ValueError(f"{path} must hold names in UTF-8. Received: {name[:80]!r}")
        if len(name) > _LONGEST_NAME:  # Such as the path of thousands of nested groups.
            raise ValueError(f"{path} must hold names of at most {_LONGEST_NAME} characters. Received: {len(name)}")
        if not isinstance(node, h5py.Dataset):
            return
        if node.external or node.is_virtual:
            raise ValueError(f"{path} must hold its values itself. Received: {name[:80]!r}, kept in another file")
        # Checked before anything is read: an element may have any size, and a dataset may have no elements.
        if node.shape is None or not (node.dtype.kind == "f" or _is_bfloat16(node) or node.dtype.kind in "iub"):
            raise ValueError(f"{path} must hold arrays of numbers. Received: {name[:80]!r} of {str(node.dtype)[:80]}")
        tensors[name] = Tensor(node.shape, lambda: _read(path, name))

    try:
        with h5py.File(path, "r") as file:
            file.visititems(add)
    except (OSError, RuntimeError, KeyError, TypeError) as error:  # Of types that NumPy lacks, it raises the last.
        raise ValueError(f"{path} must be an HDF5 file ({error})") from None
    check_bytes(path, tensors, path.stat().st_size)
    return tensors


def _is_bfloat16(node: Any) -> bool:
    """Whether values are bfloat16, which HDF5 lacks: Keras stores two raw bytes and an attribute."""
    kind = node.attrs.get("dtype")  # May be of any type.
    return isinstance(kind, str) and kind == "bfloat16" and node.dtype.kind == "V" and node.dtype.itemsize == 2


def _read(path: Path, name: str) -> np.ndarray:
    import h5py

    with h5py.File(path, "r") as file:
        node = file[name]
        # Keras does not compress. A few compressed bytes could expand to gigabytes, whatever the shape and the chunks.
        filters = node.id.get_create_plist().get_nfilters()
        if filters:
            raise ValueError(
                f"{path} must hold its values without filters, such as compression. "
                f"Received: {name[:80]!r} with {filters}"
            )
        values = node[()]
        return values.view(float_dtype("bfloat16")) if _is_bfloat16(node) else values
