"""Hugging Face BERT directories, in and out. They are our own format, too: `preset.json` holds what theirs cannot."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_bert_zoo.checkpoints.checkpoint import Checkpoint, LazyArrays
from keras_bert_zoo.checkpoints.files import read_json, typed, write_json
from keras_bert_zoo.checkpoints.huggingface_tensors import BACKBONE_PREFIX, join_tensors, split_tensors

CONFIG, WEIGHTS, VOCABULARY, TOKENIZER, PRESET = (
    "config.json",
    "model.safetensors",
    "vocab.txt",
    "tokenizer_config.json",
    "preset.json",
)
OPTIONAL = (VOCABULARY, TOKENIZER)
_FORMAT = 1

# config.json -> BertBackbone, with the value transformers' BertConfig has where the file is silent.
_BACKBONE_FIELDS: dict[str, tuple[str, Any]] = {
    "vocab_size": ("vocabulary_size", 30522),
    "num_hidden_layers": ("num_layers", 12),
    "num_attention_heads": ("num_heads", 12),
    "hidden_size": ("hidden_dim", 768),
    "intermediate_size": ("intermediate_dim", 3072),
    "hidden_dropout_prob": ("dropout", 0.1),
    "attention_probs_dropout_prob": ("attention_dropout", 0.1),
    "max_position_embeddings": ("max_sequence_length", 512),
    "type_vocab_size": ("num_segments", 2),
    "layer_norm_eps": ("layer_norm_epsilon", 1e-12),
    "hidden_act": ("activation", "gelu"),
    "initializer_range": ("initializer_range", 0.02),
}

# Fields that would change the function, with the only value we honour.
_REFUSED_FIELDS: dict[str, Any] = {
    "model_type": "bert",
    "is_decoder": False,
    "add_cross_attention": False,
    "is_encoder_decoder": False,
    "position_embedding_type": "absolute",
    "pruned_heads": {},
    "quantization_config": {},
}

# The same for tokenizer_config.json.
_REFUSED_TOKENIZER_FIELDS: dict[str, tuple[Any, ...]] = {
    "tokenizer_class": ("BertTokenizer", "BertTokenizerFast", None),
    "do_basic_tokenize": (True, None),
    "never_split": ([], None),
}

# Fields that do not change what the model computes.
_NEUTRAL_FIELDS = {
    "_name_or_path", "architectures", "attn_implementation", "bos_token_id", "chunk_size_feed_forward",
    "directionality", "dtype", "eos_token_id", "finetuning_task", "gradient_checkpointing", "output_attentions",
    "output_hidden_states", "output_past", "pad_token_id", "pooler_fc_size", "pooler_num_attention_heads",
    "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type", "return_dict", "sep_token_id",
    "tie_word_embeddings", "torch_dtype", "transformers_version", "use_cache",
}  # fmt: skip
_HEAD_FIELDS = {"classifier_dropout", "id2label", "label2id", "num_labels", "problem_type"}

_ARCHITECTURES = {"BertBackbone": "BertModel", "BertTextClassifier": "BertForSequenceClassification"}

_logger = logging.getLogger("keras_bert_zoo")


def is_huggingface(directory: Path) -> bool:
    """Whether a directory is in this format."""
    return (directory / CONFIG).is_file()


def read(directory: Path, load_weights: bool = True) -> Checkpoint:
    """Read a directory of `config.json`, `model.safetensors`, `vocab.txt`, `tokenizer_config.json`, `preset.json`.

    Raises:
        ValueError: A config field that we cannot honour, by its name, or a missing or unreadable file.
    """
    path = directory / CONFIG
    config = read_json(path)
    preset = read_json(directory / PRESET) if (directory / PRESET).is_file() else {"format": _FORMAT}
    if preset.get("format") != _FORMAT:
        raise ValueError(f"{directory / PRESET}: `format` must be {_FORMAT}. Received: {preset.get('format')!r}")
    causal = typed(directory / PRESET, preset, "causal", bool, False)
    backbone = {**_read_backbone(path, config, causal), "causal": causal}
    class_name = _read_class_name(path, config, preset)
    arrays: Mapping[str, np.ndarray] = {}
    unknown: tuple[str, ...] = ()
    if load_weights:
        arrays, unknown = _read_arrays(directory / WEIGHTS, heads=class_name == "BertTextClassifier")
        backbone["pooler"] = "pooler/kernel" in arrays
        layers = sum(name.endswith("/attention/qkv/kernel") for name in arrays)
        if layers != backbone["num_layers"]:
            raise ValueError(
                f"{path}: `num_hidden_layers` must be the number of layers that {WEIGHTS} holds, {layers}. "
                f"Received: {backbone['num_layers']}"
            )
    else:
        backbone["pooler"] = typed(directory / PRESET, preset, "pooler", bool, True)
    tokenizer, length = _read_tokenizer(directory)
    length = typed(directory / PRESET, preset, "sequence_length", int, length)
    return Checkpoint(
        class_name=class_name,
        backbone=backbone,
        head=_read_head(path, config) if class_name == "BertTextClassifier" else {},
        arrays=arrays,
        unknown=unknown,
        vocabulary=_read_vocabulary(directory),
        tokenizer=tokenizer,
        sequence_length=None if length is None else min(length, backbone["max_sequence_length"]),
    )


def _read_class_name(path: Path, config: dict[str, Any], preset: dict[str, Any]) -> str:
    """Our name of the class; a head that is none of ours counts as none."""
    architectures = typed(path, config, "architectures", list, None)
    if architectures:
        return {theirs: ours for ours, theirs in _ARCHITECTURES.items()}.get(str(architectures[0]), "BertBackbone")
    if preset.get("class") in _ARCHITECTURES:
        return preset["class"]
    # Files of before 2020 do not say; labels are what tells a classifier then.
    return "BertTextClassifier" if config.get("id2label") or config.get("problem_type") else "BertBackbone"


def _read_tokenizer(directory: Path) -> tuple[dict[str, Any], int | None]:
    """`BertTokenizer`'s options, and the longest input."""
    path = directory / TOKENIZER
    options = read_json(path) if path.is_file() else {}
    for name, allowed in _REFUSED_TOKENIZER_FIELDS.items():
        if options.get(name) not in allowed:
            raise ValueError(f"{path}: `{name}` must be one of {allowed}. Received: {options[name]!r}")
    length = typed(path, options, "model_max_length", float, None)
    return {
        "lowercase": typed(path, options, "do_lower_case", bool, True),
        "strip_accents": typed(path, options, "strip_accents", bool, None),
        "split_chinese": typed(path, options, "tokenize_chinese_chars", bool, True),
        # transformers writes 1e30 where it knows no limit.
    }, int(length) if length is not None and length < 1e9 else None


def _read_backbone(path: Path, config: dict[str, Any], causal: bool) -> dict[str, Any]:
    for name, only in _REFUSED_FIELDS.items():
        if name == "is_decoder" and causal:
            continue
        value = config.get(name, only)
        if value != only and value is not None:
            raise ValueError(f"{path}: `{name}` must be {only!r}, nothing else is supported. Received: {value!r}")
    known = {*_BACKBONE_FIELDS, *_REFUSED_FIELDS, *_NEUTRAL_FIELDS, *_HEAD_FIELDS}
    for name in sorted(set(config) - known):
        _logger.warning("%s: ignored unknown field %r", path, name)
    return {
        ours: typed(path, config, theirs, type(default), default)
        for theirs, (ours, default) in _BACKBONE_FIELDS.items()
    }


def _read_head(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    names = typed(path, config, "id2label", dict, None) or {}
    count = len(names) or typed(path, config, "num_labels", int, 2)
    class_names = [names.get(str(i)) for i in range(count)] if names else None
    if class_names is not None and not all(isinstance(name, str) for name in class_names):
        raise ValueError(f"{path}: `id2label` must name the classes 0 to {count - 1}. Received: {names}")
    if class_names == [f"LABEL_{i}" for i in range(count)]:  # what transformers writes where nobody named the classes
        class_names = None
    dropout = typed(path, config, "classifier_dropout", float, None)
    return {
        "num_classes": count,
        "class_names": class_names,
        "multi_label": config.get("problem_type") == "multi_label_classification",
        "dropout": typed(path, config, "hidden_dropout_prob", float, 0.1) if dropout is None else dropout,
    }


def _read_vocabulary(directory: Path) -> list[str] | None:
    from keras_bert_zoo.text.tokenizer import read_vocabulary

    return read_vocabulary(directory / VOCABULARY) if (directory / VOCABULARY).is_file() else None


def _read_arrays(path: Path, heads: bool) -> tuple[LazyArrays, tuple[str, ...]]:
    import safetensors

    if not path.is_file():
        raise ValueError(f"The preset must hold {path.name}; pass load_weights=False for none. Received: {path.parent}")
    try:
        handle = safetensors.safe_open(path, framework="numpy")
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} must be a safetensors file ({error})") from None
    return join_tensors(handle.keys(), handle.get_tensor, heads)


def write(directory: Path, checkpoint: Checkpoint) -> None:
    """Write what `read` reads and transformers opens, into an existing directory."""
    from safetensors.numpy import save_file

    backbone = checkpoint.backbone
    architecture = _ARCHITECTURES[checkpoint.class_name]
    config: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": "bert",
        **{theirs: backbone[ours] for theirs, (ours, _) in _BACKBONE_FIELDS.items()},
        "pad_token_id": 0 if checkpoint.vocabulary is None else checkpoint.vocabulary.index("[PAD]"),
        "dtype": "float32",
    }
    if backbone["causal"]:
        config["is_decoder"] = True
    if checkpoint.head:
        head = checkpoint.head
        names = head["class_names"] or [f"LABEL_{i}" for i in range(head["num_classes"])]
        config["id2label"] = {str(i): name for i, name in enumerate(names)}
        config["label2id"] = {name: i for i, name in enumerate(names)}
        config["problem_type"] = "multi_label_classification" if head["multi_label"] else "single_label_classification"
        config["classifier_dropout"] = head["dropout"]
    prefix = "" if checkpoint.class_name == "BertBackbone" else BACKBONE_PREFIX
    tensors = split_tensors(checkpoint.arrays, prefix)
    save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})
    write_json(directory / CONFIG, config)
    if checkpoint.vocabulary is not None:
        text = "".join(f"{token}\n" for token in checkpoint.vocabulary)
        (directory / VOCABULARY).write_bytes(text.encode("utf-8"))
        write_json(
            directory / TOKENIZER,
            {
                "tokenizer_class": "BertTokenizer",
                "do_lower_case": checkpoint.tokenizer["lowercase"],
                "strip_accents": checkpoint.tokenizer["strip_accents"],
                "tokenize_chinese_chars": checkpoint.tokenizer["split_chinese"],
                "model_max_length": checkpoint.sequence_length or backbone["max_sequence_length"],
            },
        )
    write_json(
        directory / PRESET,
        {
            "format": _FORMAT,
            "class": checkpoint.class_name,
            "causal": backbone["causal"],
            "pooler": backbone["pooler"],
            "sequence_length": checkpoint.sequence_length,
        },
    )
