"""Find, read and write presets."""

import dataclasses
import os
import reprlib
from collections.abc import Callable
from pathlib import Path

from keras_bert_zoo.checkpoints import Checkpoint, huggingface, keras_hub, tensorflow1
from keras_bert_zoo.checkpoints.model_card import CARD, check_license, is_written_by_hand
from keras_bert_zoo.checkpoints.shapes import check_shapes
from keras_bert_zoo.checks import check_flag, check_heads, check_positive, check_positive_int, check_rate
from keras_bert_zoo.files import write_directory
from keras_bert_zoo.json_files import read_json
from keras_bert_zoo.layers.activations import get_activation
from keras_bert_zoo.presets import hub
from keras_bert_zoo.text import BertTokenizer


def _shipped() -> Path:
    """Return the folder of the bundled presets: package data, or the repository's in an editable install."""
    package = Path(__file__).parents[1]
    installed = package / "presets" / "data"
    found = installed if installed.is_dir() else package.parent / "presets"
    if not found.is_dir():
        raise ValueError(f"The package must be unpacked, with its folder of presets. Received: no folder {found}")
    return found


def _named() -> dict[str, Path]:
    """Return the folder of each preset name and alias."""
    found = {}
    for path in sorted(_shipped().glob("*/preset.json")):
        for name in (path.parent.name, *read_json(path).get("aliases", [])):
            found[name] = path.parent
    return found


def preset_names() -> list[str]:
    """Return the names that `from_preset` accepts, without aliases."""
    return sorted({path.name for path in _named().values()})


def load_preset(preset: str | os.PathLike[str], load_weights: bool = True) -> Checkpoint:
    """Read a preset.

    Args:
        preset: A name (`"bert_base"`), a directory (ours, Hugging Face's, keras-hub's, sentence-transformers'
            or google-research/bert's), or `"hf://org/name[@revision]"`.
        load_weights: If False, read only the configuration, which for a name needs no network.

    Raises:
        ValueError: Nothing was found (the message says what was tried), or the preset is unreadable or inconsistent.
    """
    check_flag(load_weights=load_weights)
    if not isinstance(preset, (str, os.PathLike)):
        raise ValueError(
            f"`preset` must be a name, a directory, or hf://org/name. Received: preset={reprlib.repr(preset)}"
        )
    checkpoint = _load(os.fspath(preset), load_weights)
    check_shapes(checkpoint)
    return checkpoint


def check_buildable(checkpoint: Checkpoint) -> None:
    """Check that a model and its tokenizer can be built, for callers that build none before writing or uploading."""
    backbone = checkpoint.backbone
    check_positive_int(**{name: backbone[name] for name in ("num_layers", "intermediate_dim", "num_segments")})
    check_heads(backbone["hidden_dim"], backbone["num_heads"])
    get_activation(backbone["activation"])
    check_rate(dropout=backbone["dropout"], attention_dropout=backbone["attention_dropout"])
    check_rate(dropout=checkpoint.head.get("dropout", 0.0))
    check_positive(**{name: backbone[name] for name in ("layer_norm_epsilon", "initializer_range")})
    if checkpoint.vocabulary is None:
        return
    BertTokenizer(checkpoint.vocabulary, **checkpoint.tokenizer)
    known, rows = len(checkpoint.vocabulary), checkpoint.backbone["vocabulary_size"]
    if known > rows:
        raise ValueError(
            f"The vocabulary must have at most {rows} tokens, one per row of the embedding. Received: {known}"
        )


def _load(address: str, load_weights: bool) -> Checkpoint:
    if address.startswith(hub.SCHEME):
        return _read_directory(hub.download(address, load_weights), load_weights)
    if names_directory(address):
        return _read_directory(Path(address), load_weights)
    names = _named()
    if address not in names:
        what = ", which is not a directory" if Path(address).name != address else ""
        raise ValueError(
            f"`preset` must be one of {preset_names()}, a directory, or hf://org/name. "
            f"Received: preset={address!r}{what}"
        )
    folder = names[address]
    if huggingface.is_huggingface(folder):
        return huggingface.read(folder, load_weights)
    description = read_json(folder / "preset.json")
    if load_weights:
        checkpoint = _read_directory(hub.download(description["source"], load_weights), load_weights)
        # Use the options of pre-training: some directories on the hub do not state the case. That of bert_base_chinese
        # says that it is cased, but its vocabulary has no capital letters.
        return dataclasses.replace(checkpoint, tokenizer=description["tokenizer"])
    # The weights and the vocabulary of a released model come from its source.
    return Checkpoint("BertBackbone", description["backbone"], tokenizer=description["tokenizer"])


def names_directory(address: str) -> bool:
    """Whether `address` means a directory.

    A directory that has a preset's name but holds no preset, such as a run's, does not count.
    """
    return os.path.isdir(address) and (_reader(Path(address)) is not None or address not in _named())


def _reader(directory: Path) -> Callable[[Path, bool], Checkpoint] | None:
    """Return the reader of the directory's layout, or None if it is unknown."""
    for is_form, read in (
        (keras_hub.is_keras_hub, keras_hub.read),
        (huggingface.is_huggingface, huggingface.read),
        (tensorflow1.is_tensorflow1, tensorflow1.read),
    ):
        if is_form(directory):
            return read
    return None


def _read_directory(directory: Path, load_weights: bool) -> Checkpoint:
    read = _reader(directory)
    if read is not None:
        return read(directory, load_weights)
    raise ValueError(
        f"`preset` must be a directory with a {huggingface.CONFIG} or a {tensorflow1.CONFIG}. "
        f"Received: preset={str(directory)!r}"
    )


def save_preset(path: str | os.PathLike[str], checkpoint: Checkpoint, license: str | None = None) -> None:
    """Write a checkpoint as a preset directory, completely or not at all; a hand-written model card is kept.

    Args:
        path: New or empty directory, or an earlier preset.
        checkpoint: The checkpoint.
        license: License that the model card names; unknown if None.
    """
    check_license(license)

    def write(directory: Path) -> None:
        has_own_card = is_written_by_hand(Path(path) / CARD)  # Asked now: what a kill left is back in its place.
        huggingface.write(directory, checkpoint, not has_own_card, license)

    write_directory(path, huggingface.PRESET, huggingface.OPTIONAL, write, opened_by=huggingface.CONFIG)
