"""Checkpoints of google-research/bert: `bert_config.json`, `bert_model.ckpt.index` and `.data-*`, `vocab.txt`."""

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_bert_zoo.checkpoints import bundle
from keras_bert_zoo.checkpoints.bert_config import read_backbone
from keras_bert_zoo.checkpoints.checkpoint import Checkpoint, LazyArrays, Tensor
from keras_bert_zoo.checkpoints.files import read_json
from keras_bert_zoo.checkpoints.huggingface_tensors import BACKBONE
from keras_bert_zoo.checkpoints.huggingface_tokenizer import read_tokenizer, read_vocabulary
from keras_bert_zoo.checkpoints.tensors import Template, join_tensors

CONFIG = "bert_config.json"

# The head of run_classifier.py; its dropout is written there, not in the config.
_HEAD = [
    Template("classifier/kernel", ("output_weights",), transposed=True),
    Template("classifier/bias", ("output_bias",)),
]
_HEAD_DROPOUT = 0.1
# That of run_squad.py.
_SPANS = [
    Template("spans/kernel", ("cls/squad/output_weights",), transposed=True),
    Template("spans/bias", ("cls/squad/output_bias",)),
]
# The heads of run_pretraining.py, which every released checkpoint has.
_PRETRAINING = [
    *(
        Template(f"mlm_head/{ours}", (f"cls/predictions/transform/{theirs}",))
        for ours, theirs in (
            ("dense/kernel", "dense/kernel"),
            ("dense/bias", "dense/bias"),
            ("layer_norm/gamma", "LayerNorm/gamma"),
            ("layer_norm/beta", "LayerNorm/beta"),
        )
    ),
    Template("mlm_bias/bias", ("cls/predictions/output_bias",)),
    Template("nsp/kernel", ("cls/seq_relationship/output_weights",), transposed=True),
    Template("nsp/bias", ("cls/seq_relationship/output_bias",)),
]

# What the optimiser keeps is no weight of the model.
_OPTIMIZER = re.compile(r"global_step|.*/adam_[mv]")

_logger = logging.getLogger("keras_bert_zoo")


def is_tensorflow1(directory: Path) -> bool:
    """Whether a directory is in this format."""
    return (directory / CONFIG).is_file()


def read(directory: Path, load_weights: bool = True) -> Checkpoint:
    """Read a directory as google-research/bert releases it, or as its scripts write it.

    Raises:
        ValueError: A config field that we cannot honour, by its name, or a missing or unreadable file.
    """
    # `hidden_act="gelu"` is the exact GELU here as everywhere: the original's code has had the tanh form since 2019,
    # the released models were trained with either, and Hugging Face's copies of them compute the exact one.
    backbone = read_backbone(directory / CONFIG, read_json(directory / CONFIG))
    arrays: Mapping[str, np.ndarray] = {}
    head: dict[str, Any] = {}
    unknown: tuple[str, ...] = ()
    backbone["pooler"] = True
    if load_weights:
        arrays, unknown = _read_arrays(directory)
        backbone["pooler"] = "pooler/kernel" in arrays
        if "classifier/kernel" in arrays and "classifier/bias" in arrays:
            classes = arrays.shapes()["classifier/kernel"][-1]
            head = {"num_classes": classes, "class_names": None, "multi_label": False, "dropout": _HEAD_DROPOUT}
    vocabulary, tokenizer, length = read_tokenizer(directory, lowercase=_is_uncased(directory))
    return Checkpoint(
        class_name=_class_name(head, arrays),
        backbone=backbone,
        head=head,
        arrays=arrays,
        unknown=unknown,
        vocabulary=vocabulary,
        tokenizer=tokenizer,
        sequence_length=None if length is None else min(length, backbone["max_sequence_length"]),
    )


def _class_name(head: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    if head:
        return "BertTextClassifier"
    if all(template.ours in arrays for template in _SPANS):
        return "BertQuestionAnswerer"
    return "BertPretrainer" if all(template.ours in arrays for template in _PRETRAINING) else "BertBackbone"


def _is_uncased(directory: Path) -> bool:
    """The original is told on the command line; the vocabulary of an uncased model has no capital letter."""
    tokens = read_vocabulary(directory) or []
    capital = next(
        (token for token in tokens if re.search("[A-Z]", token) and not re.fullmatch(r"\[.*\]", token)), None
    )
    if tokens:
        _logger.info("%s: taken as %s", directory, "uncased" if capital is None else f"cased, as it has {capital!r}")
    return capital is None


def _read_arrays(directory: Path) -> tuple[LazyArrays, tuple[str, ...]]:
    tensors = {name: tensor for name, tensor in _read_tensors(directory).items() if not _OPTIMIZER.fullmatch(name)}
    return join_tensors(tensors, [*map(_renamed, BACKBONE), *_HEAD, *_SPANS, *_PRETRAINING])


def _renamed(template: Template) -> Template:
    """PyTorch's names came from TensorFlow's by a rule; this is the way back. Kernels are `[in, out]` as ours are."""

    def rename(name: str) -> str:
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        name = name.replace("_embeddings.weight", "_embeddings").replace(".weight", ".kernel")
        return "bert/" + name.replace("layer.{i}", "layer_{i}").replace(".", "/")

    return template._replace(theirs=tuple(map(rename, template.theirs)), transposed=False)


def _read_tensors(directory: Path) -> dict[str, Tensor]:
    found = sorted(path.name for path in directory.glob("*.index"))
    if len(found) != 1:
        raise ValueError(f"The preset must hold one checkpoint, one file *.index. Received: {found} in {directory}")
    return bundle.read(directory / found[0].removesuffix(".index"))
