"""Pre-training examples on disk: plain NumPy arrays that are memory-mapped.

A data set is a directory. `dataset.json` describes it, `vocab.txt` is its vocabulary, and its arrays hold the
concatenated examples, without padding:

    token_ids.npy               unmasked tokens, including special tokens
    ends.npy                    int64 [examples], where each example ends in token_ids
    first_lengths.npy           uint16 [examples], tokens of segment 0
    next_sentence_labels.npy    uint8 [examples], 1 where the second segment is from another document

and, if masks are fixed,

    mask_ends.npy               int64 [examples], where each example's predictions end in the arrays below
    mask_positions.npy          uint16, positions in the example
    mask_replacements.npy       token ids at these positions

While a data set is made, each block of text has such arrays of its own, called a shard.
"""

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from hashlib import sha256
from pathlib import Path

import numpy as np

from keras_bert_zoo.pretraining.examples import PackedExamples
from keras_bert_zoo.text.masking import MaskedTokens

_ENDS = ("ends", "mask_ends")


@dataclass(frozen=True)
class Shard:
    """The arrays of a directory; see the module. `mask_*` are None if masks are drawn anew each epoch."""

    token_ids: np.ndarray
    ends: np.ndarray
    first_lengths: np.ndarray
    next_sentence_labels: np.ndarray
    mask_ends: np.ndarray | None = None
    mask_positions: np.ndarray | None = None
    mask_replacements: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.ends)


def make_shard(examples: Iterable[PackedExamples], masks: Iterable[MaskedTokens] | None, vocabulary_size: int) -> Shard:
    """Concatenate examples, and the masks of the same rows if given."""
    kind = "uint16" if vocabulary_size <= 2**16 else "int32"
    packed = list(examples)
    lengths = np.concatenate([part.lengths for part in packed])
    arrays = {
        "token_ids": np.concatenate([_flat(part.token_ids, part.lengths) for part in packed]).astype(kind),
        "ends": np.cumsum(lengths),
        "first_lengths": np.concatenate([part.first_lengths for part in packed]).astype("uint16"),
        "next_sentence_labels": np.concatenate([part.next_sentence_labels for part in packed]).astype("uint8"),
    }
    if masks is not None:
        masked = list(masks)
        counts = [part.mask_weights.sum(axis=1).astype("int64") for part in masked]
        replacements = [np.take_along_axis(part.token_ids, part.mask_positions, axis=1) for part in masked]
        positions = [_flat(part.mask_positions, count) for part, count in zip(masked, counts, strict=True)]
        arrays["mask_ends"] = np.cumsum(np.concatenate(counts))
        arrays["mask_positions"] = np.concatenate(positions).astype("uint16")
        arrays["mask_replacements"] = np.concatenate(
            [_flat(part, count) for part, count in zip(replacements, counts, strict=True)]
        ).astype(kind)
    return Shard(**arrays)


def _flat(rows: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Concatenate the first values of each row."""
    return rows[np.arange(rows.shape[1]) < lengths[:, None]]


def shard_name(number: int) -> str:
    """Return the directory name of a block's shard."""
    return f"shard-{number:05d}"


def write_shard(folder: Path, shard: Shard) -> None:
    """Write a new directory of arrays."""
    folder.mkdir()
    for field in fields(shard):
        array = getattr(shard, field.name)
        if array is not None:
            np.save(folder / f"{field.name}.npy", array, allow_pickle=False)


def join_shards(folders: Sequence[Path], out: Path) -> str:
    """Join the arrays of many shards, one file at a time, because so many files cannot be open at once.

    Each file is removed once it is joined, so that the disk does not hold everything twice.

    Returns:
        A checksum of the arrays' contents.
    """
    missing = [folder.name for folder in folders if not (folder / "token_ids.npy").is_file()]
    if missing:
        raise ValueError(f"Every shard must be in the directory where shards are joined. Received: no {missing[0]}")
    checksum = sha256()
    for field in fields(Shard):
        paths = [folder / f"{field.name}.npy" for folder in folders if (folder / f"{field.name}.npy").is_file()]
        if not paths:
            continue
        kind = np.load(paths[0], mmap_mode="r").dtype
        total = sum(len(np.load(path, mmap_mode="r")) for path in paths)
        header = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": (total,)}
        shift = 0
        with (out / f"{field.name}.npy").open("wb") as joined:  # A full disk would kill a process that maps the file.
            np.lib.format.write_array_header_1_0(joined, header)
            for path in paths:
                part = np.load(path)
                if field.name in _ENDS:
                    part, shift = part + shift, shift + int(part[-1])
                joined.write(part.data)
                checksum.update(part)
                path.unlink()
    for folder in folders:
        shutil.rmtree(folder)
    return checksum.hexdigest()


def open_shard(folder: Path, fixed_masks: bool) -> Shard:
    """Memory-map a directory of arrays.

    Raises:
        ValueError: An array is missing, has the wrong type, or does not fit the others.
    """
    arrays = {}
    for field in fields(Shard):
        path = folder / f"{field.name}.npy"
        if field.default is None and not fixed_masks:
            continue
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except OSError as error:
            raise ValueError(f"{path} must hold a NumPy array ({error.strerror or error})") from None
        except Exception as error:  # NumPy parses the header as Python, or the file as a zip archive.
            raise ValueError(f"{path} must hold a NumPy array ({type(error).__name__})") from None
        if not isinstance(array, np.ndarray):  # An `.npz` archive.
            raise ValueError(f"{path} must hold a NumPy array. Received: {type(array).__name__}")
        sound = array.ndim == 1 and array.dtype.kind in "iu"
        if sound and field.name in _ENDS:  # Lengths are differences, which can be negative only in a signed type.
            array = array.astype("int64", copy=False)
            sound = not ((array[1:] < array[:-1]).any() or (array[:1] < 0).any())
        if not sound:
            raise ValueError(
                f"{path} must hold integers in one dimension, and ends in order. "
                f"Received: {array.dtype} of shape {array.shape}"
            )
        arrays[field.name] = array
    shard = Shard(**arrays)
    sizes = {len(shard.ends), len(shard.first_lengths), len(shard.next_sentence_labels)}
    ends = [(shard.ends, shard.token_ids)]
    if fixed_masks:
        assert shard.mask_ends is not None
        assert shard.mask_positions is not None
        assert shard.mask_replacements is not None
        sizes.add(len(shard.mask_ends))
        ends += [(shard.mask_ends, shard.mask_positions), (shard.mask_ends, shard.mask_replacements)]
    if len(sizes) != 1 or any(len(last) and last[-1] != len(values) for last, values in ends):
        raise ValueError(f"{folder} must hold arrays that fit each other. Received: {sorted(sizes)} examples")
    return shard


def lengths_of(ends: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the number of values in each row of a concatenated array."""
    return np.asarray(ends[rows]) - np.where(rows > 0, ends[np.maximum(rows - 1, 0)], 0)


def rows_of(values: np.ndarray, ends: np.ndarray, rows: np.ndarray, width: int, fill: int = 0) -> np.ndarray:
    """Return rows of a concatenated array as int32 `[len(rows), width]`, padded with `fill`."""
    lengths = lengths_of(ends, rows)
    steps = np.arange(width)
    inside = steps < lengths[:, None]
    found = np.full(inside.shape, fill, dtype="int32")
    found[inside] = values[((ends[rows] - lengths)[:, None] + steps)[inside]]
    return found
