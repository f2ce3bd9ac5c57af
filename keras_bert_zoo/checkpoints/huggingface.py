"""Read and write Hugging Face BERT directories. Ours are the same, with a `preset.json` for what theirs cannot hold."""

import reprlib
import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from keras_bert_zoo.checkpoints import sentence_transformers
from keras_bert_zoo.checkpoints.bert_config import NAMED, read_backbone, read_classes, write_backbone, write_classes
from keras_bert_zoo.checkpoints.checkpoint import Checkpoint, Tensor
from keras_bert_zoo.checkpoints.huggingface_tensors import BACKBONE_PREFIX, class_by_head, read_tensors, split_tensors
from keras_bert_zoo.checkpoints.huggingface_tokenizer import FILES as TOKENIZER_FILES
from keras_bert_zoo.checkpoints.huggingface_tokenizer import read_tokenizer, write_tokenizer
from keras_bert_zoo.checkpoints.huggingface_weights import INDEX, PYTORCH, SAFETENSORS, read_weights, shard_names
from keras_bert_zoo.checkpoints.model_card import CARD, write_card
from keras_bert_zoo.checkpoints.shapes import check_layers
from keras_bert_zoo.files import names_tensors
from keras_bert_zoo.json_files import check_allowed, read_json, typed, write_json

CONFIG, PRESET = "config.json", "preset.json"
OPTIONAL = (*TOKENIZER_FILES, *sentence_transformers.OPTIONAL)
_FORMAT = 1

# Files that `read` uses, so that no others need to be downloaded: fnmatch patterns, single files first. `named_files`
# may be others.
SETTINGS = (CONFIG, *TOKENIZER_FILES, PRESET, *sentence_transformers.SETTINGS)
_NUMBER = "[0-9]" * 5
SAFETENSORS_FILES = (SAFETENSORS, SAFETENSORS + INDEX, f"model-{_NUMBER}-of-{_NUMBER}.safetensors")
PYTORCH_FILES = (PYTORCH, PYTORCH + INDEX, f"pytorch_model-{_NUMBER}-of-{_NUMBER}.bin")

ARCHITECTURES = {
    "BertBackbone": "BertModel",
    "BertTextEmbedder": "BertModel",
    "BertTextClassifier": "BertForSequenceClassification",
    "BertTextRegressor": "BertForSequenceClassification",
    "BertTokenClassifier": "BertForTokenClassification",
    "BertMultipleChoice": "BertForMultipleChoice",
    "BertQuestionAnswerer": "BertForQuestionAnswering",
    "BertMaskedLM": "BertForMaskedLM",
    "BertNextSentencePredictor": "BertForNextSentencePrediction",
    "BertPretrainer": "BertForPreTraining",
}
_LEFT_TO_RIGHT = "BertLMHeadModel"  # A causal BertMaskedLM, with the same weights.

_PROBLEMS = (None, "regression", "single_label_classification", "multi_label_classification")
_WITH_CLASSES = ("BertTextClassifier", "BertTokenClassifier")


def named_files(directory: Path, load_weights: bool = True) -> list[str]:
    """Return the paths of what `read` also reads because another file names it: shards and modules' configurations.

    Raises:
        ValueError: A name is not that of a file below the directory.
    """
    modules = [str(PurePosixPath(module.path, CONFIG)) for module in sentence_transformers.read_modules(directory)[1:]]
    return modules + (shard_names(directory) if load_weights else [])


def is_huggingface(directory: Path) -> bool:
    """Whether a directory is in this format."""
    return (directory / CONFIG).is_file()


def read(directory: Path, load_weights: bool = True) -> Checkpoint:
    """Read a directory with `config.json`, weights, the tokenizer's files, and `preset.json` if it is ours.

    Raises:
        ValueError: A config field, which the message names, is not supported, or a file is missing or unreadable.
    """
    path = directory / CONFIG
    config = read_json(path)
    preset = read_json(directory / PRESET) if (directory / PRESET).is_file() else {"format": _FORMAT}
    check_allowed(directory / PRESET, preset, {"format": (_FORMAT,)})
    check_allowed(path, config, {"problem_type": _PROBLEMS})
    backbone = read_backbone(path, config)
    tensors = read_weights(directory) if load_weights else {}
    config = _with_labels(config, tensors)
    class_name = _read_class_name(path, config, preset, tensors)
    arrays: Mapping[str, np.ndarray] = {}
    unknown: tuple[str, ...] = ()
    if load_weights:
        arrays, unknown = read_tensors(tensors, class_name)
        backbone["pooler"] = "pooler/kernel" in arrays
        if class_name == "BertMaskedLM" and backbone["pooler"] and {"nsp/kernel", "nsp/bias"} <= set(arrays):
            class_name = "BertPretrainer"
        check_layers(path, "num_hidden_layers", backbone["num_layers"], arrays)
    else:
        backbone["pooler"] = typed(directory / PRESET, preset, "pooler", bool, True)
    vocabulary, tokenizer, length = read_tokenizer(directory, class_name=config.get("tokenizer_class"))
    return Checkpoint(
        class_name=class_name,
        backbone=backbone,
        head=_read_head(path, config, class_name, typed(directory / PRESET, preset, NAMED, bool, False)),
        head_dropout=_head_dropout(path, config),
        arrays=arrays,
        unknown=unknown,
        vocabulary=vocabulary,
        tokenizer=tokenizer,
        sequence_length=typed(directory / PRESET, preset, "sequence_length", int, length),
        modules=sentence_transformers.read_modules(directory),
        settings=typed(directory / PRESET, preset, "settings", dict, {}),
    )


def _read_class_name(path: Path, config: dict[str, Any], preset: dict[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Return our class for a file with these tensors; an unknown head counts as none."""
    architectures = typed(path, config, "architectures", list, None)
    if architectures:
        if "model_type" not in config and not str(architectures[0]).startswith("Bert"):
            raise ValueError(f"{path}: `architectures` must be BERT's. Received: {reprlib.repr(architectures[0])}")
        # The first of our classes that corresponds to theirs.
        classes = [*ARCHITECTURES.items(), ("BertMaskedLM", _LEFT_TO_RIGHT)]
        name = next((ours for ours, theirs in classes if theirs == architectures[0]), "BertBackbone")
        if name == "BertBackbone":  # Of a class with another name, or named by hand: a head may still be known.
            name = class_by_head(tensors) or name
    elif str(preset.get("class")) in ARCHITECTURES:
        name = preset["class"]
    else:  # Files from before 2020 name no class. A classifier must also have labels: others use the same tensor names.
        is_classifier = any(config.get(field) for field in ("id2label", "num_labels", "problem_type"))
        is_classifier = is_classifier and (not tensors or "classifier.weight" in tensors)
        name = class_by_head(tensors) or ("BertTextClassifier" if is_classifier else "BertBackbone")
    return _by_loss(path, config) if name == "BertTextClassifier" else name


def _with_labels(config: dict[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the config with the number of labels that a classifier's weights have, if nothing else states it."""
    bias = tensors.get("classifier.bias")
    if not config.get("architectures") or bias is None or len(bias.shape) != 1 or not bias.shape[0]:
        return config
    stated = config.get("id2label") or config.get("num_labels")
    return config if stated else {**config, "num_labels": bias.shape[0]}


def _by_loss(path: Path, config: dict[str, Any]) -> str:
    """Return our class for `BertForSequenceClassification`.

    By default, one label means regression. Our regressor has exactly one, so a regression with several labels is read
    as a backbone.
    """
    labels = read_classes(path, config)["num_classes"]
    problem = config.get("problem_type") or ("regression" if labels == 1 else "classification")
    if problem != "regression":
        return "BertTextClassifier"
    return "BertTextRegressor" if labels == 1 else "BertBackbone"


def _read_head(path: Path, config: dict[str, Any], class_name: str, are_named: bool) -> dict[str, Any]:
    """Return the arguments of the head, empty if it has none."""
    if class_name not in (*_WITH_CLASSES, "BertTextRegressor", "BertMultipleChoice"):
        return {}
    head: dict[str, Any] = {"dropout": _head_dropout(path, config)}
    if class_name in _WITH_CLASSES:
        head |= read_classes(path, config, are_named)
    if class_name == "BertTextClassifier" and config.get("problem_type") is not None:  # Many files do not say.
        head["multi_label"] = config["problem_type"] == "multi_label_classification"
    return head


def _head_dropout(path: Path, config: dict[str, Any]) -> float:
    dropout = typed(path, config, "classifier_dropout", float, None)
    return typed(path, config, "hidden_dropout_prob", float, 0.1) if dropout is None else dropout


def write(directory: Path, checkpoint: Checkpoint, card: bool = True, license: str | None = None) -> None:
    """Write a directory that `read` and transformers can load.

    Args:
        directory: An existing directory.
        checkpoint: The checkpoint.
        card: Whether to write a model card as well.
        license: License that the card names, by the hub's name.
    """
    from safetensors.numpy import save_file

    backbone = checkpoint.backbone
    architecture = ARCHITECTURES[checkpoint.class_name]
    if backbone["causal"] and checkpoint.class_name == "BertMaskedLM":
        architecture = _LEFT_TO_RIGHT
    config: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": "bert",
        **write_backbone(backbone),
        "pad_token_id": 0 if checkpoint.vocabulary is None else checkpoint.vocabulary.index("[PAD]"),
        "dtype": "float32",
    }
    if checkpoint.class_name == "BertTextEmbedder":
        sentence_transformers.write_modules(directory, checkpoint)
    elif checkpoint.head:
        config |= _write_head(checkpoint.class_name, checkpoint.head)
    prefix = "" if architecture == "BertModel" else BACKBONE_PREFIX
    tensors = split_tensors(checkpoint.arrays, prefix)
    write_json(directory / CONFIG, config)
    with names_tensors(directory / SAFETENSORS):
        save_file(tensors, directory / SAFETENSORS, metadata={"format": "pt"})
    shutil.copymode(directory / CONFIG, directory / SAFETENSORS)  # safetensors' files are readable by their owner only.
    write_tokenizer(directory, checkpoint)
    write_json(
        directory / PRESET,
        {
            "format": _FORMAT,
            "class": checkpoint.class_name,
            "pooler": backbone["pooler"],
            "sequence_length": checkpoint.sequence_length,
            **({NAMED: True} if checkpoint.head.get("class_names") else {}),
            **({"settings": checkpoint.settings} if checkpoint.settings else {}),
        },
    )
    if card:
        write_card(directory / CARD, checkpoint, architecture, license)


def _write_head(class_name: str, head: dict[str, Any]) -> dict[str, Any]:
    if class_name == "BertMultipleChoice":  # It has as many logits as a question has choices.
        return {"classifier_dropout": head["dropout"]}
    classes, problem = {"num_classes": 1, "class_names": None}, {"problem_type": "regression"}
    if class_name in _WITH_CLASSES:
        classes, problem = head, {}
    if class_name == "BertTextClassifier":
        problem = {"problem_type": f"{'multi' if head.get('multi_label') else 'single'}_label_classification"}
    return {**write_classes(classes), "classifier_dropout": head["dropout"], **problem}
