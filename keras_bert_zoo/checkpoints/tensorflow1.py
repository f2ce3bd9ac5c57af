"""Read and write checkpoints of google-research/bert: `bert_config.json`, `bert_model.ckpt.*`, `vocab.txt`.

Its own code keeps unknown fields of `bert_config.json` (modeling.py, `BertConfig.from_dict`) and takes the rest from
the command line. Therefore that file also holds class names and our settings. A `tokenizer_config.json` holds what
`vocab.txt` does not say about the tokenizer.
"""

import logging
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from keras_bert_zoo.checkpoints import bundle, bundle_writer
from keras_bert_zoo.checkpoints.bert_config import NAMED, read_backbone, read_classes, write_backbone, write_classes
from keras_bert_zoo.checkpoints.checkpoint import Checkpoint, LazyArrays, Tensor
from keras_bert_zoo.checkpoints.huggingface_tensors import BACKBONE
from keras_bert_zoo.checkpoints.huggingface_tokenizer import read_tokenizer, read_tokens, write_tokenizer
from keras_bert_zoo.checkpoints.shapes import check_layers
from keras_bert_zoo.checkpoints.tensors import Template, join_tensors, layer, split_arrays
from keras_bert_zoo.json_files import check_allowed, read_json, typed, write_json
from keras_bert_zoo.text.texts import find_capital

CONFIG, PREFIX = "bert_config.json", "bert_model.ckpt"
_linear = partial(layer, ends={"kernel": "output_weights", "bias": "output_bias"}, transposed=True)

# The head of run_classifier.py, which sets its dropout in code, not in the config.
_CLASSIFIER = _linear("classifier", "")
_HEAD_DROPOUT = 0.1
_SPANS = _linear("spans", "cls/squad/")  # The head of run_squad.py.
# The heads of run_pretraining.py, which every released checkpoint has.
_MASKED_LM = [
    *layer("mlm_head/dense", "cls/predictions/transform/dense/", {"kernel": "kernel", "bias": "bias"}),
    *layer("mlm_head/layer_norm", "cls/predictions/transform/LayerNorm/", {"gamma": "gamma", "beta": "beta"}),
    Template("mlm_bias/bias", ("cls/predictions/output_bias",)),
]
_NEXT_SENTENCE = _linear("nsp", "cls/seq_relationship/")
# Our classes, with the heads of its scripts. A checkpoint is of the first class whose weights it has.
_HEADS = {
    "BertTextClassifier": _CLASSIFIER,
    "BertQuestionAnswerer": _SPANS,
    "BertPretrainer": _MASKED_LM + _NEXT_SENTENCE,
    "BertMaskedLM": _MASKED_LM,
    "BertNextSentencePredictor": _NEXT_SENTENCE,
    "BertBackbone": [],
}
_TEMPLATES = [*_CLASSIFIER, *_SPANS, *_MASKED_LM, *_NEXT_SENTENCE]

# What its code fixes, and the activations that it knows (modeling.py).
_FIXED = {"activation": ("gelu", "relu", "tanh"), "layer_norm_epsilon": (1e-12,), "causal": (False,)}
_WITHOUT = ("layer_norm_eps", "is_decoder")

# The optimizer's variables are not weights of the model.
_OPTIMIZER = re.compile(r"global_step|.*/adam_[mv]")

_logger = logging.getLogger("keras_bert_zoo")


def is_tensorflow1(directory: Path) -> bool:
    """Whether a directory is in this format."""
    return (directory / CONFIG).is_file()


def read(directory: Path, load_weights: bool = True) -> Checkpoint:
    """Read a directory as google-research/bert releases it, or as its scripts write it.

    Raises:
        ValueError: A config field, which the message names, is not supported, or a file is missing or unreadable.
    """
    # `hidden_act="gelu"` is the exact GELU here as everywhere: the original's code has had the tanh form since 2019,
    # the released models were trained with either, and Hugging Face's copies of them compute the exact one.
    path = directory / CONFIG
    config = read_json(path)
    settings = typed(path, config, "settings", dict, {})
    are_named = typed(path, config, NAMED, bool, False)
    theirs = {name: value for name, value in config.items() if name not in ("settings", NAMED)}
    backbone = read_backbone(path, theirs)
    arrays: Mapping[str, np.ndarray] = {}
    head: dict[str, Any] = {}
    unknown: tuple[str, ...] = ()
    class_name = "BertBackbone"
    backbone["pooler"] = True
    if load_weights:
        arrays, unknown = _read_arrays(directory)
        backbone["pooler"] = "pooler/kernel" in arrays
        check_layers(path, "num_hidden_layers", backbone["num_layers"], arrays)
        class_name = _class_name(arrays)
        if class_name == "BertTextClassifier":
            classes = {"num_labels": arrays.shapes()["classifier/kernel"][-1], **config}
            dropout = typed(path, config, "classifier_dropout", float, _HEAD_DROPOUT)
            head = {**read_classes(path, classes, are_named), "multi_label": False, "dropout": dropout}
    vocabulary, tokenizer, length = read_tokenizer(directory, lowercase=_is_uncased(directory))
    return Checkpoint(
        class_name=class_name,
        backbone=backbone,
        head=head,
        arrays=arrays,
        unknown=unknown,
        vocabulary=vocabulary,
        tokenizer=tokenizer,
        sequence_length=length,
        settings=settings,
    )


def write(directory: Path, checkpoint: Checkpoint) -> None:
    """Write into an existing directory what `read` and google-research/bert's scripts load.

    Raises:
        ValueError: The layout cannot hold a property, which the message names.
    """
    _check_fits(checkpoint)
    backbone = checkpoint.backbone
    config = {name: value for name, value in write_backbone(backbone).items() if name not in _WITHOUT}
    if checkpoint.head:
        config |= write_classes(checkpoint.head) | {"classifier_dropout": checkpoint.head["dropout"]}
        config |= {NAMED: True} if checkpoint.head["class_names"] else {}
    if checkpoint.settings:
        config["settings"] = checkpoint.settings
    tensors = split_arrays(checkpoint.arrays, [*map(_renamed, BACKBONE), *_TEMPLATES], "google-research/bert")
    bundle_writer.write(directory / PREFIX, tensors)
    write_json(directory / CONFIG, config)
    write_tokenizer(directory, checkpoint)


def _check_fits(checkpoint: Checkpoint) -> None:
    backbone, options = checkpoint.backbone, checkpoint.tokenizer
    held = {"class": checkpoint.class_name, "multi_label": False, **backbone, **checkpoint.head, **options}
    allowed: dict[str, tuple[Any, ...]] = {"class": tuple(_HEADS), **_FIXED, "multi_label": (False,)}
    if checkpoint.vocabulary is not None:  # Its tokenizer strips accents if it lower-cases.
        allowed |= {"strip_accents": (None, options["lowercase"]), "split_chinese": (True,)}
    check_allowed("google-research/bert's layout", held, allowed)


def _class_name(arrays: Mapping[str, np.ndarray]) -> str:
    return next(name for name, head in _HEADS.items() if all(template.ours in arrays for template in head))


def _is_uncased(directory: Path) -> bool:
    """Whether the vocabulary has no capital letters; the original takes this from the command line."""
    tokens = read_tokens(directory) or []
    capital = find_capital(tokens)
    if tokens:
        _logger.info("%s: taken as %s", directory, "uncased" if capital is None else f"cased, as it has {capital!r}")
    return capital is None


def _read_arrays(directory: Path) -> tuple[LazyArrays, tuple[str, ...]]:
    tensors = {name: tensor for name, tensor in _read_tensors(directory).items() if not _OPTIMIZER.fullmatch(name)}
    return join_tensors(tensors, [*map(_renamed, BACKBONE), *_TEMPLATES])


def _renamed(template: Template) -> Template:
    """Convert PyTorch's names back to TensorFlow's, from which they come. Kernels are `[in, out]` like ours."""

    def rename(name: str) -> str:
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        name = name.replace("_embeddings.weight", "_embeddings").replace(".weight", ".kernel")
        return "bert/" + name.replace("layer.{i}", "layer_{i}").replace(".", "/")

    return template._replace(theirs=tuple(map(rename, template.theirs)), transposed=False)


def _read_tensors(directory: Path) -> dict[str, Tensor]:
    # Of a file named `.index` or `..index`, the prefix would be the directory itself.
    found = sorted(path.name for path in directory.glob("*[!.].index") if path.is_file())
    if len(found) != 1:
        raise ValueError(
            f"The preset must hold exactly one checkpoint (one *.index file). Received: {found} in {directory}"
        )
    return bundle.read(directory / found[0].removesuffix(".index"))
