"""The tensor names of Hugging Face's BERT and ours, both ways.

Theirs are PyTorch's: linear weights `[out, in]`, query, key and value apart. Ours are the paths of the Keras variables.
"""

import re
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from keras_bert_zoo.checkpoints.checkpoint import LazyArrays

BACKBONE_PREFIX = "bert."

# Ours, theirs. `{i}` is the layer's number; several names on their side are one array on ours, side by side.
_BACKBONE: list[tuple[str, list[str]]] = [
    ("embeddings/token_embedding/embeddings", ["embeddings.word_embeddings.weight"]),
    ("embeddings/segment_embedding/embeddings", ["embeddings.token_type_embeddings.weight"]),
    ("embeddings/position_embedding/embeddings", ["embeddings.position_embeddings.weight"]),
    ("embeddings/layer_norm/gamma", ["embeddings.LayerNorm.weight"]),
    ("embeddings/layer_norm/beta", ["embeddings.LayerNorm.bias"]),
    *(
        (
            f"encoder_layer_{{i}}/attention/qkv/{ours}",
            [f"encoder.layer.{{i}}.attention.self.{part}.{theirs}" for part in ("query", "key", "value")],
        )
        for ours, theirs in (("kernel", "weight"), ("bias", "bias"))
    ),
    *(
        (f"encoder_layer_{{i}}/{ours}/{our_kind}", [f"encoder.layer.{{i}}.{theirs}.{their_kind}"])
        for ours, theirs in (
            ("attention/output", "attention.output.dense"),
            ("intermediate", "intermediate.dense"),
            ("output", "output.dense"),
        )
        for our_kind, their_kind in (("kernel", "weight"), ("bias", "bias"))
    ),
    *(
        (f"encoder_layer_{{i}}/{ours}/{our_kind}", [f"encoder.layer.{{i}}.{theirs}.{their_kind}"])
        for ours, theirs in (
            ("attention_norm", "attention.output.LayerNorm"),
            ("output_norm", "output.LayerNorm"),
        )
        for our_kind, their_kind in (("gamma", "weight"), ("beta", "bias"))
    ),
    ("pooler/kernel", ["pooler.dense.weight"]),
    ("pooler/bias", ["pooler.dense.bias"]),
]
_HEADS: list[tuple[str, list[str]]] = [
    ("classifier/kernel", ["classifier.weight"]),
    ("classifier/bias", ["classifier.bias"]),
]

# A buffer of positions that older versions of transformers wrote; it holds 0, 1, 2, ….
_BUFFERS = {"embeddings.position_ids"}


def _templates(prefix: str, heads: bool = True) -> list[tuple[str, list[str]]]:
    backbone = [(ours, [prefix + name for name in theirs]) for ours, theirs in _BACKBONE]
    return backbone + _HEADS if heads else backbone


def _to_ours(tensor: np.ndarray, name: str) -> np.ndarray:
    return tensor.T if name.endswith("kernel") else tensor


def join_tensors(
    names: Iterable[str], read: Callable[[str], np.ndarray], heads: bool
) -> tuple[LazyArrays, tuple[str, ...]]:
    """Their tensors as our arrays, read when asked for, and the names that have no place.

    Args:
        names: Their names.
        read: Gives the tensor of a name.
        heads: Whether the file's head is one of ours: token classifiers call theirs as text classifiers do.
    """
    left = set(names)
    prefix = BACKBONE_PREFIX if any(name.startswith(BACKBONE_PREFIX) for name in left) else ""
    layers = sorted({int(m.group(1)) for name in left if (m := re.search(r"\bencoder\.layer\.(\d{1,4})\.", name))})
    readers: dict[str, Callable[[], np.ndarray]] = {}

    def reader(ours: str, theirs: list[str]) -> Callable[[], np.ndarray]:
        return lambda: np.concatenate([_to_ours(read(name), ours) for name in theirs], axis=-1)

    for ours, theirs in _templates(prefix, heads):
        for i in layers if "{i}" in ours else [0]:
            sources = [name.replace("{i}", str(i)) for name in theirs]
            if left.issuperset(sources):
                target = ours.replace("{i}", str(i))
                readers[target] = reader(target, sources)
                left.difference_update(sources)
    left.difference_update(prefix + name for name in _BUFFERS)
    return LazyArrays(readers), tuple(sorted(left))


def split_tensors(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """Our arrays as their tensors, float32; an array without a place on their side is a `ValueError`."""
    templates = dict(_templates(prefix))
    tensors = {}
    for ours, array in arrays.items():
        match = re.fullmatch(r"encoder_layer_(\d+)/(.+)", ours)
        template = f"encoder_layer_{{i}}/{match.group(2)}" if match else ours
        if template not in templates:
            raise ValueError(f"A weight must have a place in Hugging Face's BERT. Received: {ours!r}")
        theirs = [name.replace("{i}", match.group(1) if match else "") for name in templates[template]]
        for name, part in zip(theirs, np.split(array, len(theirs), axis=-1), strict=True):
            tensors[name] = np.ascontiguousarray(_to_ours(part, ours), dtype="float32")
    return tensors
