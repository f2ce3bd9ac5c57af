"""Conversion between checkpoint layouts, array by array, without building a model."""

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path

from keras_bert_zoo.checkpoints import Checkpoint, tensorflow1
from keras_bert_zoo.checkpoints.checkpoint import LazyArrays
from keras_bert_zoo.checkpoints.huggingface_tensors import HEADS
from keras_bert_zoo.checkpoints.model_card import check_license
from keras_bert_zoo.checkpoints.sentence_transformers import as_embedder
from keras_bert_zoo.checkpoints.shapes import backbone_shapes
from keras_bert_zoo.checks import listed
from keras_bert_zoo.files import check_local, is_empty, write_directory
from keras_bert_zoo.presets.presets import check_buildable, load_preset, save_preset

LAYOUTS = ("huggingface", "tensorflow1")


@dataclass(frozen=True)
class ConversionReport:
    """What happened to a checkpoint's weights.

    Attributes:
        class_name: The class of the model.
        loaded: Paths of the weights in the new directory.
        unused: Names of the checkpoint's other tensors, which are not in the new directory.
    """

    class_name: str
    loaded: tuple[str, ...]
    unused: tuple[str, ...]


def convert_preset(
    preset: str | os.PathLike[str],
    path: str | os.PathLike[str],
    to: str = "huggingface",
    license: str | None = None,
) -> ConversionReport:
    """Write a preset in another layout, with its head and tokenizer. Weights are unchanged, stored as float32.

    Args:
        preset: A name, a directory (ours, Hugging Face's, sentence-transformers', keras-hub's or
            google-research/bert's), or `"hf://org/name[@revision]"`.
        path: New or empty directory.
        to: `"huggingface"`, which is also our own layout, or `"tensorflow1"`, google-research/bert's.
        license: License that the model card names; unknown if None.

    Raises:
        ValueError: The preset cannot be read, or a named part of it has no place in the new layout.

    Example:

    ```python
    report = kbz.convert_preset("uncased_L-12_H-768_A-12", "bert_base")
    report.class_name, report.unused                                    # ("BertPretrainer", ())
    ```
    """
    if to not in LAYOUTS:
        raise ValueError(f"`to` must be one of {LAYOUTS}. Received: to={to!r}")
    if license is not None and to != "huggingface":
        raise ValueError(f"`license` is for the model card of to='huggingface'. Received: license={license!r}")
    check_license(license)
    check_local(path=path)
    target = Path(path)
    if target.exists() and not (target.is_dir() and is_empty(target)):
        raise ValueError(f"`path` must be a new or empty directory. Received: path={str(path)!r}")
    checkpoint, unused = _read(preset)
    if to == "tensorflow1":
        write_directory(path, tensorflow1.CONFIG, (), lambda directory: tensorflow1.write(directory, checkpoint))
    else:
        save_preset(path, checkpoint, license)
    return ConversionReport(checkpoint.class_name, tuple(checkpoint.arrays), unused)


def _read(preset: str | os.PathLike[str]) -> tuple[Checkpoint, tuple[str, ...]]:
    """Return the checkpoint with only the weights of its class, and the names of its other tensors."""
    checkpoint = load_preset(preset)
    check_buildable(checkpoint)
    if checkpoint.modules:
        checkpoint = as_embedder(checkpoint)
    assert isinstance(checkpoint.arrays, LazyArrays)
    head = [template.ours for template in HEADS[checkpoint.class_name]]
    missing = [name for name in head if name not in checkpoint.arrays]
    if missing:
        raise ValueError(
            f"The preset must hold every weight of a {checkpoint.class_name}. Received: one without {listed(missing)}"
        )
    needed = {*backbone_shapes(checkpoint.backbone), *head}
    others = tuple(name for name in checkpoint.arrays if name not in needed)
    arrays = checkpoint.arrays.without(others)
    return dataclasses.replace(checkpoint, arrays=arrays), (*others, *checkpoint.unknown)
