"""Read keras-hub's presets: JSON of Keras objects, a vocabulary and weights in HDF5. Nothing in them is executed."""

import logging
import math
import re
import reprlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from keras_bert_zoo.checkpoints.checkpoint import Checkpoint, Tensor
from keras_bert_zoo.checkpoints.hdf5 import read_hdf5
from keras_bert_zoo.checkpoints.shapes import check_layers
from keras_bert_zoo.checkpoints.tensors import Template, join_tensors, layer
from keras_bert_zoo.json_files import read_json, read_json_if_there, typed
from keras_bert_zoo.text.files import read_vocabulary

CONFIG, TASK, PREPROCESSOR, TOKENIZER = "config.json", "task.json", "preprocessor.json", "tokenizer.json"
VOCABULARY = "assets/tokenizer/vocabulary.txt"
WEIGHTS, TASK_WEIGHTS = "model.weights.h5", "task.weights.h5"

# Files that `read` uses.
SETTINGS = (CONFIG, TASK, PREPROCESSOR, TOKENIZER, VOCABULARY)
FILES = (WEIGHTS, TASK_WEIGHTS)

# keras-hub was called keras-nlp before 2024.
_REGISTERED = re.compile(r"keras_(?:hub|nlp)>(\w+)")
_SIZES = ("vocabulary_size", "num_layers", "num_heads", "hidden_dim", "intermediate_dim", "max_sequence_length")
# Our arguments that their BertBackbone does not have.
_FIXED = {"activation": "gelu_new", "layer_norm_epsilon": 1e-12, "initializer_range": 0.02, "causal": False}
# Options of their tokenizer, with the only values that BERT's has.
_TOKENIZER: dict[str, Any] = {"split": True, "suffix_indicator": "##", "oov_token": "[UNK]", "special_tokens": None}

_dense = partial(layer, ends={"kernel": "/vars/0", "bias": "/vars/1"})
_norm = partial(layer, ends={"gamma": "/vars/0", "beta": "/vars/1"})
_BLOCK = "encoder/layer_{i}"
_BACKBONE = [
    Template("embeddings/token_embedding/embeddings", ("reversible_embedding/vars/0",)),
    Template("embeddings/segment_embedding/embeddings", ("embedding/vars/0",)),
    Template("embeddings/position_embedding/embeddings", ("position_embedding/vars/0",)),
    *_norm("embeddings/layer_norm", "layer_normalization"),
    *(
        Template(
            f"encoder_layer_{{i}}/attention/qkv/{ours}",
            tuple(f"{_BLOCK}/_self_attention_layer/{part}_dense/vars/{number}" for part in ("query", "key", "value")),
        )
        for number, ours in enumerate(("kernel", "bias"))
    ),
    *_dense("encoder_layer_{i}/attention/output", f"{_BLOCK}/_self_attention_layer/output_dense"),
    *_norm("encoder_layer_{i}/attention_norm", f"{_BLOCK}/_self_attention_layer_norm"),
    *_dense("encoder_layer_{i}/intermediate", f"{_BLOCK}/_feedforward_intermediate_dense"),
    *_dense("encoder_layer_{i}/output", f"{_BLOCK}/_feedforward_output_dense"),
    *_norm("encoder_layer_{i}/output_norm", f"{_BLOCK}/_feedforward_layer_norm"),
    *_dense("pooler", "dense"),
]
_HEADS = {
    "BertTextClassifier": _dense("classifier", "head/dense"),
    "BertMaskedLM": [
        *_dense("mlm_head/dense", "head/masked_lm_head/_intermediate_dense"),
        *_norm("mlm_head/layer_norm", "head/masked_lm_head/_intermediate_layer_norm"),
        Template("mlm_bias/bias", ("head/masked_lm_head/vars/0",)),
    ],
    "BertTextEmbedder": [],
}

_logger = logging.getLogger("keras_bert_zoo")


def is_keras_hub(directory: Path) -> bool:
    """Whether a directory is in this format; Hugging Face's configs have the same file name."""
    path = directory / CONFIG
    return path.is_file() and _registered(read_json(path)) is not None


def read(directory: Path, load_weights: bool = True) -> Checkpoint:
    """Read a directory that keras-hub's `save_to_preset` wrote for BERT.

    Raises:
        ValueError: The model is not BERT, a field, which the message names, is not supported, or a file is missing or
            unreadable.
    """
    path = directory / CONFIG
    document = read_json(path)
    if _registered(document) != "BertBackbone":
        raise ValueError(f"{path}: the model must be a BertBackbone. Received: {reprlib.repr(_registered(document))}")
    backbone = _read_backbone(path, typed(path, document, "config", dict, {}))
    class_name, head = _read_task(directory / TASK)
    arrays: Mapping[str, np.ndarray] = {}
    unknown: tuple[str, ...] = ()
    if load_weights:
        tensors = _read_tensors(directory / WEIGHTS, backbone["num_heads"])
        heads = _HEADS.get(class_name, [])
        if heads:  # Both files have a layer named `dense`.
            tensors |= {
                f"head/{name}": tensor
                for name, tensor in _read_tensors(directory / TASK_WEIGHTS, backbone["num_heads"]).items()
            }
        arrays, unknown = join_tensors(tensors, [*_BACKBONE, *heads])
        check_layers(path, "num_layers", backbone["num_layers"], arrays)
    vocabulary, tokenizer = _read_tokenizer(directory)
    return Checkpoint(
        class_name=class_name,
        backbone=backbone,
        head=head,
        arrays=arrays,
        unknown=unknown,
        vocabulary=vocabulary,
        tokenizer=tokenizer,
        sequence_length=_read_length(directory / PREPROCESSOR),
    )


def _registered(document: dict[str, Any]) -> str | None:
    match = _REGISTERED.fullmatch(str(document.get("registered_name")))
    return None if match is None else match[1]


def _read_backbone(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    missing = [name for name in _SIZES if config.get(name) is None]
    if missing:
        raise ValueError(f"{path}: `config` must have {', '.join(_SIZES)}. Received: one without {', '.join(missing)}")
    dropout = typed(path, config, "dropout", float, 0.1)
    return {
        **{name: typed(path, config, name, int, None) for name in _SIZES},
        "num_segments": typed(path, config, "num_segments", int, 2),
        "dropout": dropout,
        "attention_dropout": dropout,
        **_FIXED,
        "pooler": True,
    }


def _read_task(path: Path) -> tuple[str, dict[str, Any]]:
    """Return the name of the class, which is the same as ours, and its head's arguments."""
    document = read_json_if_there(path)
    class_name = _registered(document)
    if class_name == "BertClassifier":  # As it was called before 2024.
        class_name = "BertTextClassifier"
    if class_name not in _HEADS:
        return "BertBackbone", {}
    config = typed(path, document, "config", dict, {})
    if class_name == "BertTextEmbedder":
        pooling = typed(path, config, "pooling_mode", str, "mean")
        return class_name, {"pooling": pooling, "normalize": typed(path, config, "normalize", bool, True)}
    if class_name == "BertMaskedLM":
        # Only in the head, theirs has the exact GELU and an epsilon of 1e-5, which no BERT config can express.
        _logger.warning("%s: the head is computed as BERT's; probabilities differ from keras-hub's by about 1e-3", path)
        return class_name, {}
    activation = config.get("activation")
    if activation == "softmax":
        _logger.warning("%s: our model returns logits; `classify` returns keras-hub's probabilities", path)
    elif activation not in (None, "linear"):
        raise ValueError(f"{path}: `activation` must be linear or softmax. Received: {reprlib.repr(activation)}")
    head = {
        "num_classes": typed(path, config, "num_classes", int, 2),
        "dropout": typed(path, config, "dropout", float, 0.1),
    }
    several = {"multi_label": False} if activation == "softmax" else {}  # A linear one does not say.
    return class_name, {**head, "class_names": None, **several}


def _read_tokenizer(directory: Path) -> tuple[list[str] | None, dict[str, Any]]:
    path = directory / VOCABULARY
    if not path.is_file():
        return None, {}
    vocabulary = read_vocabulary(path)
    path = directory / TOKENIZER
    config = typed(path, read_json_if_there(path), "config", dict, {})
    for name, only in _TOKENIZER.items():
        if config.get(name, only) != only:
            raise ValueError(f"{path}: `{name}` must be {only!r}. Received: {reprlib.repr(config[name])}")
    # Theirs keeps accents by default, even if it lower-cases.
    options = {name: typed(path, config, name, bool, False) for name in ("lowercase", "strip_accents")}
    return vocabulary, {**options, "split_chinese": True}


def _read_length(path: Path) -> int | None:
    config = typed(path, read_json_if_there(path), "config", dict, {})
    return typed(path, config, "sequence_length", int, None)


def _read_tensors(path: Path, num_heads: int) -> dict[str, Tensor]:
    """Return the tensors below `layers/` by path, as matrices. Those of an optimizer are left out."""
    tensors = {}
    for name, tensor in read_hdf5(path).items():
        if name.startswith("layers/"):
            # The first layer has no number.
            place = re.sub(r"^layers/transformer_encoder(?:_(\d+))?/", lambda m: f"encoder/layer_{m[1] or 0}/", name)
            tensors[place.removeprefix("layers/")] = _flat(name, tensor, num_heads)
    return tensors


def _flat(name: str, tensor: Tensor, num_heads: int) -> Tensor:
    """Reshape attention's weights, which are split by heads, to a linear layer's."""
    place = re.search(r"/(query|key|value|output)_dense/vars/(\d)$", name)
    if place is None:
        return tensor
    heads = tensor.shape[-3 if place[1] == "output" else -2 :][:1]
    if place.groups() != ("output", "1") and heads != (num_heads,):
        raise ValueError(f"The preset's weight {name} must have num_heads={num_heads}. Received: shape {tensor.shape}")
    shape: tuple[int, ...]
    if place[2] == "1":
        shape = (math.prod(tensor.shape),)
    elif place[1] == "output":
        shape = (math.prod(tensor.shape[:-1]), *tensor.shape[-1:])
    else:
        shape = (*tensor.shape[:1], math.prod(tensor.shape[1:]))
    return Tensor(shape, lambda: tensor.read().reshape(shape))
