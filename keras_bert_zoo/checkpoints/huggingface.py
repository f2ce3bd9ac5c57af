"""Hugging Face BERT directories, in and out. They are our own format, too: `preset.json` holds what theirs cannot."""

import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_bert_zoo.checkpoints.bert_config import read_backbone, write_backbone
from keras_bert_zoo.checkpoints.checkpoint import Checkpoint
from keras_bert_zoo.checkpoints.files import read_json, typed, write_json
from keras_bert_zoo.checkpoints.huggingface_tensors import BACKBONE_PREFIX, read_tensors, split_tensors
from keras_bert_zoo.checkpoints.huggingface_tokenizer import (
    TOKENIZER_CONFIG,
    TOKENIZER_JSON,
    VOCABULARY,
    read_tokenizer,
    write_tokenizer,
)
from keras_bert_zoo.checkpoints.huggingface_weights import INDEX, PYTORCH, SAFETENSORS, read_weights

CONFIG, PRESET = "config.json", "preset.json"
OPTIONAL = (VOCABULARY, TOKENIZER_CONFIG, TOKENIZER_JSON)
_FORMAT = 1

# What `read` asks for, so that nothing else need be fetched: fnmatch patterns, single files first.
SETTINGS = (CONFIG, VOCABULARY, TOKENIZER_CONFIG, TOKENIZER_JSON, PRESET)
_NUMBER = "[0-9]" * 5
SAFETENSORS_FILES = (SAFETENSORS, SAFETENSORS + INDEX, f"model-{_NUMBER}-of-{_NUMBER}.safetensors")
PYTORCH_FILES = (PYTORCH, PYTORCH + INDEX, f"pytorch_model-{_NUMBER}-of-{_NUMBER}.bin")

_ARCHITECTURES = {
    "BertBackbone": "BertModel",
    "BertTextClassifier": "BertForSequenceClassification",
    "BertQuestionAnswerer": "BertForQuestionAnswering",
    "BertMaskedLM": "BertForMaskedLM",
    "BertNextSentencePredictor": "BertForNextSentencePrediction",
    "BertPretrainer": "BertForPreTraining",
}


def is_huggingface(directory: Path) -> bool:
    """Whether a directory is in this format."""
    return (directory / CONFIG).is_file()


def read(directory: Path, load_weights: bool = True) -> Checkpoint:
    """Read a directory of `config.json`, weights, the tokenizer's files, and `preset.json` where it is ours.

    Raises:
        ValueError: A config field that we cannot honour, by its name, or a missing or unreadable file.
    """
    path = directory / CONFIG
    config = read_json(path)
    preset = read_json(directory / PRESET) if (directory / PRESET).is_file() else {"format": _FORMAT}
    if preset.get("format") != _FORMAT:
        raise ValueError(
            f"{directory / PRESET}: `format` must be {_FORMAT}. Received: {reprlib.repr(preset.get('format'))}"
        )
    causal = typed(directory / PRESET, preset, "causal", bool, False)
    backbone = read_backbone(path, config, causal)
    class_name = _read_class_name(path, config, preset)
    arrays: Mapping[str, np.ndarray] = {}
    unknown: tuple[str, ...] = ()
    if load_weights:
        arrays, unknown = read_tensors(read_weights(directory), class_name)
        backbone["pooler"] = "pooler/kernel" in arrays
        layers = sum(name.endswith("/attention/qkv/kernel") for name in arrays)
        if layers != backbone["num_layers"]:
            raise ValueError(
                f"{path}: `num_hidden_layers` must be the number of layers that the weights have, {layers}. "
                f"Received: {backbone['num_layers']}"
            )
    else:
        backbone["pooler"] = typed(directory / PRESET, preset, "pooler", bool, True)
    vocabulary, tokenizer, length = read_tokenizer(directory)
    length = typed(directory / PRESET, preset, "sequence_length", int, length)
    return Checkpoint(
        class_name=class_name,
        backbone=backbone,
        head=_read_head(path, config) if class_name == "BertTextClassifier" else {},
        arrays=arrays,
        unknown=unknown,
        vocabulary=vocabulary,
        tokenizer=tokenizer,
        sequence_length=None if length is None else min(length, backbone["max_sequence_length"]),
        settings=typed(directory / PRESET, preset, "settings", dict, {}),
    )


def _read_class_name(path: Path, config: dict[str, Any], preset: dict[str, Any]) -> str:
    """Our name of the class; a head that is none of ours counts as none."""
    architectures = typed(path, config, "architectures", list, None)
    if architectures:
        return {theirs: ours for ours, theirs in _ARCHITECTURES.items()}.get(str(architectures[0]), "BertBackbone")
    if str(preset.get("class")) in _ARCHITECTURES:
        return preset["class"]
    # Files of before 2020 do not say; labels are what tells a classifier then.
    return "BertTextClassifier" if config.get("id2label") or config.get("problem_type") else "BertBackbone"


def _read_head(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    names = typed(path, config, "id2label", dict, {})
    class_names = [names.get(str(i)) for i in range(len(names))]
    if not all(isinstance(name, str) for name in class_names):
        raise ValueError(
            f"{path}: `id2label` must name the classes 0 to {len(names) - 1}. Received: {reprlib.repr(names)}"
        )
    # `LABEL_0` and so on is what transformers writes where nobody named the classes.
    named = class_names != [f"LABEL_{i}" for i in range(len(names))]
    dropout = typed(path, config, "classifier_dropout", float, None)
    return {
        "num_classes": len(names) or typed(path, config, "num_labels", int, 2),
        "class_names": class_names if named else None,
        "multi_label": config.get("problem_type") == "multi_label_classification",
        "dropout": typed(path, config, "hidden_dropout_prob", float, 0.1) if dropout is None else dropout,
    }


def write(directory: Path, checkpoint: Checkpoint) -> None:
    """Write what `read` reads and transformers opens, into an existing directory."""
    from safetensors.numpy import save_file

    backbone = checkpoint.backbone
    architecture = _ARCHITECTURES[checkpoint.class_name]
    config: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": "bert",
        **write_backbone(backbone),
        "pad_token_id": 0 if checkpoint.vocabulary is None else checkpoint.vocabulary.index("[PAD]"),
        "dtype": "float32",
    }
    if checkpoint.head:
        head = checkpoint.head
        names = head["class_names"] or [f"LABEL_{i}" for i in range(head["num_classes"])]
        config["id2label"] = {str(i): name for i, name in enumerate(names)}
        config["label2id"] = {name: i for i, name in enumerate(names)}
        config["problem_type"] = "multi_label_classification" if head["multi_label"] else "single_label_classification"
        config["classifier_dropout"] = head["dropout"]
    prefix = "" if checkpoint.class_name == "BertBackbone" else BACKBONE_PREFIX
    tensors = split_tensors(checkpoint.arrays, prefix)
    save_file(tensors, directory / SAFETENSORS, metadata={"format": "pt"})
    write_json(directory / CONFIG, config)
    if checkpoint.vocabulary is not None:
        length = checkpoint.sequence_length or backbone["max_sequence_length"]
        fields = write_tokenizer(directory, checkpoint.vocabulary, checkpoint.tokenizer, length)
        write_json(directory / TOKENIZER_CONFIG, fields)
    write_json(
        directory / PRESET,
        {
            "format": _FORMAT,
            "class": checkpoint.class_name,
            "causal": backbone["causal"],
            "pooler": backbone["pooler"],
            "sequence_length": checkpoint.sequence_length,
            **({"settings": checkpoint.settings} if checkpoint.settings else {}),
        },
    )
