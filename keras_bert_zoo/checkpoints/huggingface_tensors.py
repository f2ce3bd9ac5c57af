"""Conversion between the tensor names of Hugging Face's BERT and ours.

Theirs are PyTorch's: linear weights are `[out, in]`, and query, key and value are separate. Ours are the paths of the
Keras variables.
"""

from collections.abc import Mapping
from functools import partial

import numpy as np

from keras_bert_zoo.checkpoints.checkpoint import LazyArrays, Tensor
from keras_bert_zoo.checkpoints.tensors import Template, join_tensors, layer, split_arrays

BACKBONE_PREFIX = "bert."
_linear = partial(layer, ends={"kernel": ".weight", "bias": ".bias"}, transposed=True)
_norm = partial(layer, ends={"gamma": ".weight", "beta": ".bias"})

BACKBONE = [
    Template("embeddings/token_embedding/embeddings", ("embeddings.word_embeddings.weight",)),
    Template("embeddings/segment_embedding/embeddings", ("embeddings.token_type_embeddings.weight",)),
    Template("embeddings/position_embedding/embeddings", ("embeddings.position_embeddings.weight",)),
    *_norm("embeddings/layer_norm", "embeddings.LayerNorm"),
    *(
        Template(
            f"encoder_layer_{{i}}/attention/qkv/{ours}",
            tuple(f"encoder.layer.{{i}}.attention.self.{part}.{theirs}" for part in ("query", "key", "value")),
            transposed=ours == "kernel",
        )
        for ours, theirs in (("kernel", "weight"), ("bias", "bias"))
    ),
    *_linear("encoder_layer_{i}/attention/output", "encoder.layer.{i}.attention.output.dense"),
    *_linear("encoder_layer_{i}/intermediate", "encoder.layer.{i}.intermediate.dense"),
    *_linear("encoder_layer_{i}/output", "encoder.layer.{i}.output.dense"),
    *_norm("encoder_layer_{i}/attention_norm", "encoder.layer.{i}.attention.output.LayerNorm"),
    *_norm("encoder_layer_{i}/output_norm", "encoder.layer.{i}.output.LayerNorm"),
    *_linear("pooler", "pooler.dense"),
]
_MASKED_LM = [
    *_linear("mlm_head/dense", "cls.predictions.transform.dense"),
    *_norm("mlm_head/layer_norm", "cls.predictions.transform.LayerNorm"),
    Template("mlm_bias/bias", ("cls.predictions.bias",)),
]
_NEXT_SENTENCE = _linear("nsp", "cls.seq_relationship")
# The tensors of the head of each of our classes. Several heads have the same tensor names as the text classifier's.
HEADS: dict[str, list[Template]] = {
    "BertBackbone": [],
    "BertTextEmbedder": [],
    "BertTextClassifier": _linear("classifier", "classifier"),
    "BertTextRegressor": _linear("regressor", "classifier"),
    "BertTokenClassifier": _linear("classifier", "classifier"),
    "BertMultipleChoice": _linear("scorer", "classifier"),
    "BertQuestionAnswerer": _linear("spans", "qa_outputs"),
    "BertMaskedLM": _MASKED_LM,
    "BertNextSentencePredictor": _NEXT_SENTENCE,
    "BertPretrainer": _MASKED_LM + _NEXT_SENTENCE,
}

# Copies of tied tensors in older files.
_TIED_BIAS = ("cls.predictions.decoder.bias", "cls.predictions.bias")
_TIED = dict([("cls.predictions.decoder.weight", "embeddings.word_embeddings.weight"), _TIED_BIAS])

# A buffer of positions that older versions of transformers wrote; it holds 0, 1, 2, ….
_BUFFERS = {"embeddings.position_ids"}

# Names of LayerNorm's weights in the first PyTorch ports.
_OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


def _templates(prefix: str, heads: list[Template]) -> list[Template]:
    return [
        *(template._replace(theirs=tuple(prefix + name for name in template.theirs)) for template in BACKBONE),
        *heads,
    ]


_OF_TWO = {"cls.seq_relationship.bias", "qa_outputs.bias"}  # With more rows, they are of other heads.
# Classes that the names of their heads' tensors tell apart. A head with more tensors may include another: it is first.
_TOLD_BY_HEAD = ("BertPretrainer", "BertMaskedLM", "BertNextSentencePredictor", "BertQuestionAnswerer")


def class_by_head(tensors: Mapping[str, Tensor]) -> str | None:
    """Return the first of these classes whose whole head is among the tensors, if there is one."""
    shapes = {_modern(name): tensor.shape for name, tensor in tensors.items()}
    found = {name for name, shape in shapes.items() if name not in _OF_TWO or shape == (2,)}
    if _TIED_BIAS[0] in found:
        found.add(_TIED_BIAS[1])
    return next((ours for ours in _TOLD_BY_HEAD if all(found.issuperset(t.theirs) for t in HEADS[ours])), None)


def read_tensors(tensors: Mapping[str, Tensor], class_name: str) -> tuple[LazyArrays, tuple[str, ...]]:
    """Return their tensors as our arrays, and the names of those that have no place.

    Args:
        tensors: Tensors by name.
        class_name: Our name for the file's class.
    """
    names = {name: _modern(name) for name in tensors}
    if len(set(names.values())) < len(names):
        twice = next(name for name, modern in names.items() if name != modern and modern in names)
        raise ValueError(f"The preset must hold each weight once. Received: {twice} beside {names[twice]}")
    tensors = {names[name]: tensor for name, tensor in tensors.items()}
    prefix = BACKBONE_PREFIX if any(name.startswith(BACKBONE_PREFIX) for name in tensors) else ""
    # The released models call themselves BertForMaskedLM but also have the other head of pre-training.
    heads = HEADS["BertPretrainer" if class_name == "BertMaskedLM" else class_name]
    known = {prefix + name for name in _BUFFERS}
    if _MASKED_LM[0] in heads:
        if (copied := _TIED_BIAS[0]) in tensors:  # Newer files may hold the copy alone.
            tensors.setdefault(_TIED_BIAS[1], tensors[copied])
        copies = _copies(tensors, prefix)
        known |= set(copies)
        (first,) = _MASKED_LM[0].theirs
        if first in tensors:
            tensors[first] = _once_tied(tensors[first], copies)
    arrays, unknown = join_tensors(tensors, _templates(prefix, heads))
    return arrays, tuple(name for name in unknown if name not in known)


def _copies(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, tuple[Tensor, Tensor]]:
    """Return each copy, by its name, with the tensor to which it should be tied."""
    originals = {copy: tensors.get(name, tensors.get(prefix + name)) for copy, name in _TIED.items()}
    return {
        copy: (tensors[copy], original)
        for copy, original in originals.items()
        if copy in tensors and original is not None
    }


def _once_tied(tensor: Tensor, copies: dict[str, tuple[Tensor, Tensor]]) -> Tensor:
    """Check the copies when `tensor` is read. Only a masked LM reads it: other tasks need no tied tensors."""

    def read() -> np.ndarray:
        for copy, (theirs, original) in copies.items():
            if not np.array_equal(theirs.read(), original.read()):
                raise ValueError(f"The preset's {copy} must be tied to {_TIED[copy]}. Received: other values")
        return tensor.read()

    return Tensor(tensor.shape, read)


def _modern(name: str) -> str:
    for old, new in _OLD_NAMES.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


def split_tensors(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """Return our arrays as their float32 tensors; an array without a place there raises a `ValueError`."""
    heads = [template for head in HEADS.values() for template in head]
    return split_arrays(arrays, _templates(prefix, heads), "Hugging Face's BERT")
