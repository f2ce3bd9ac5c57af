"""Convert the config fields that google-research/bert and transformers share to `BertBackbone`'s arguments and back."""

import logging
import reprlib
from pathlib import Path
from typing import Any

from keras_bert_zoo.checks import listed
from keras_bert_zoo.json_files import check_allowed, typed

# config.json -> BertBackbone, with the default of transformers' BertConfig.
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
    "is_decoder": ("causal", False),
}

# Fields that would change what the model computes, with the only values we support.
_REFUSED_FIELDS: dict[str, tuple[Any, ...]] = {
    "model_type": ("bert", None),
    "add_cross_attention": (False, None),
    "is_encoder_decoder": (False, None),
    "position_embedding_type": ("absolute", None),
    "pruned_heads": ({}, None),
    "quantization_config": ({}, None),
}

# Fields that do not change what the model computes.
_NEUTRAL_FIELDS = {
    "_name_or_path", "architectures", "attn_implementation", "bos_token_id", "chunk_size_feed_forward",
    "directionality", "dtype", "eos_token_id", "finetuning_task", "gradient_checkpointing", "output_attentions",
    "output_hidden_states", "output_past", "pad_token_id", "pooler_fc_size", "pooler_num_attention_heads",
    "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type", "return_dict", "sep_token_id",
    "tie_word_embeddings", "tokenizer_class", "torch_dtype", "transformers_version", "use_cache",
}  # fmt: skip
_HEAD_FIELDS = {"classifier_dropout", "id2label", "label2id", "num_labels", "problem_type"}

_logger = logging.getLogger("keras_bert_zoo")


def read_backbone(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Return `BertBackbone`'s arguments except the pooler; an unsupported field raises a `ValueError` that names it."""
    check_allowed(path, config, _REFUSED_FIELDS)
    known = {*_BACKBONE_FIELDS, *_REFUSED_FIELDS, *_NEUTRAL_FIELDS, *_HEAD_FIELDS}
    unknown = sorted(set(config) - known)
    if unknown:
        _logger.warning("%s: ignored unknown fields %s", path, listed(unknown))
    return {
        ours: typed(path, config, theirs, type(default), default)
        for theirs, (ours, default) in _BACKBONE_FIELDS.items()
    }


def write_backbone(backbone: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that hold `BertBackbone`'s arguments."""
    return {theirs: backbone[ours] for theirs, (ours, _) in _BACKBONE_FIELDS.items()}


NAMED = "named_classes"
"""Our own field, which marks classes as named, because their names may look like transformers' defaults."""


def read_classes(path: Path, config: dict[str, Any], are_named: bool = False) -> dict[str, Any]:
    """Return `num_classes`, and `class_names` if `are_named` is True or they are not transformers' defaults."""
    names = typed(path, config, "id2label", dict, {})
    class_names = [names.get(str(i)) for i in range(len(names))]
    if not all(isinstance(name, str) for name in class_names):
        raise ValueError(
            f"{path}: `id2label` must name the classes 0 to {len(names) - 1}. Received: {reprlib.repr(names)}"
        )
    # transformers writes `LABEL_0` and so on for unnamed classes. Before 3.0 it wrote two of them, however many classes
    # there were.
    are_named = are_named or class_names != [f"LABEL_{i}" for i in range(len(names))]
    count = typed(path, config, "num_labels", int, None)
    if count is None or (names and are_named):
        count = len(names) or 2
    return {
        "num_classes": count,
        "class_names": class_names if are_named and names else None,
    }


def write_classes(head: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that hold a head's classes."""
    names = head["class_names"] or [f"LABEL_{i}" for i in range(head["num_classes"])]
    return {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }
