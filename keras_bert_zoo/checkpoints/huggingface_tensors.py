"""The tensor names of Hugging Face's BERT and ours, both ways.

Theirs are PyTorch's: linear weights `[out, in]`, query, key and value apart. Ours are the paths of the Keras variables.
"""

import re
from collections.abc import Mapping

import numpy as np

from keras_bert_zoo.checkpoints.checkpoint import LazyArrays, Tensor
from keras_bert_zoo.checkpoints.tensors import Template, join_tensors

BACKBONE_PREFIX = "bert."

BACKBONE = [
    Template("embeddings/token_embedding/embeddings", ("embeddings.word_embeddings.weight",)),
    Template("embeddings/segment_embedding/embeddings", ("embeddings.token_type_embeddings.weight",)),
    Template("embeddings/position_embedding/embeddings", ("embeddings.position_embeddings.weight",)),
    Template("embeddings/layer_norm/gamma", ("embeddings.LayerNorm.weight",)),
    Template("embeddings/layer_norm/beta", ("embeddings.LayerNorm.bias",)),
    *(
        Template(
            f"encoder_layer_{{i}}/attention/qkv/{ours}",
            tuple(f"encoder.layer.{{i}}.attention.self.{part}.{theirs}" for part in ("query", "key", "value")),
            transposed=ours == "kernel",
        )
        for ours, theirs in (("kernel", "weight"), ("bias", "bias"))
    ),
    *(
        Template(
            f"encoder_layer_{{i}}/{ours}/{our_kind}",
            (f"encoder.layer.{{i}}.{theirs}.{their_kind}",),
            transposed=our_kind == "kernel",
        )
        for ours, theirs in (
            ("attention/output", "attention.output.dense"),
            ("intermediate", "intermediate.dense"),
            ("output", "output.dense"),
        )
        for our_kind, their_kind in (("kernel", "weight"), ("bias", "bias"))
    ),
    *(
        Template(f"encoder_layer_{{i}}/{ours}/{our_kind}", (f"encoder.layer.{{i}}.{theirs}.{their_kind}",))
        for ours, theirs in (
            ("attention_norm", "attention.output.LayerNorm"),
            ("output_norm", "output.LayerNorm"),
        )
        for our_kind, their_kind in (("gamma", "weight"), ("beta", "bias"))
    ),
    Template("pooler/kernel", ("pooler.dense.weight",), transposed=True),
    Template("pooler/bias", ("pooler.dense.bias",)),
]
_HEADS = [
    Template("classifier/kernel", ("classifier.weight",), transposed=True),
    Template("classifier/bias", ("classifier.bias",)),
]

# A buffer of positions that older versions of transformers wrote; it holds 0, 1, 2, ….
_BUFFERS = {"embeddings.position_ids"}

# What LayerNorm's weights were called in the first PyTorch ports.
_OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


def _templates(prefix: str, heads: bool = True) -> list[Template]:
    backbone = [template._replace(theirs=tuple(prefix + name for name in template.theirs)) for template in BACKBONE]
    return backbone + _HEADS if heads else backbone


def read_tensors(tensors: Mapping[str, Tensor], heads: bool) -> tuple[LazyArrays, tuple[str, ...]]:
    """Their tensors as our arrays, and the names that have no place.

    Args:
        tensors: By their names.
        heads: Whether the file's head is one of ours: token classifiers call theirs as text classifiers do.
    """
    tensors = {_modern(name): tensor for name, tensor in tensors.items()}
    prefix = BACKBONE_PREFIX if any(name.startswith(BACKBONE_PREFIX) for name in tensors) else ""
    arrays, unknown = join_tensors(tensors, _templates(prefix, heads))
    return arrays, tuple(name for name in unknown if name.removeprefix(prefix) not in _BUFFERS)


def _modern(name: str) -> str:
    for old, new in _OLD_NAMES.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


def split_tensors(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """Our arrays as their tensors, float32; an array without a place on their side is a `ValueError`."""
    templates = {template.ours: template for template in _templates(prefix)}
    tensors = {}
    for ours, array in arrays.items():
        match = re.fullmatch(r"encoder_layer_(\d+)/(.+)", ours)
        template = templates.get(f"encoder_layer_{{i}}/{match[2]}" if match else ours)
        if template is None:
            raise ValueError(f"A weight must have a place in Hugging Face's BERT. Received: {ours!r}")
        theirs = [name.replace("{i}", match[1] if match else "") for name in template.theirs]
        for name, part in zip(theirs, np.split(array, len(theirs), axis=-1), strict=True):
            tensors[name] = np.ascontiguousarray(part.T if template.transposed else part, dtype="float32")
    return tensors
