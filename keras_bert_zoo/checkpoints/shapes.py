"""The shapes of a configuration's weights, checked against a file before a model takes memory."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_bert_zoo.checkpoints.checkpoint import Checkpoint, LazyArrays
from keras_bert_zoo.checks import listed

# More than any BERT has; a file that names more would keep Keras busy for hours.
_MOST_LAYERS = 1000
# Sixty times BERT-large.
_MOST_PARAMETERS = 20_000_000_000
# The widest public label sets, those of extreme classification, have some 670,000 (Amazon-670K).
_MOST_CLASSES = 1_000_000


def backbone_shapes(backbone: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight of a `BertBackbone` by path."""
    width, inner = backbone["hidden_dim"], backbone["intermediate_dim"]
    norm: dict[str, tuple[int, ...]] = {"gamma": (width,), "beta": (width,)}
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings/token_embedding/embeddings": (backbone["vocabulary_size"], width),
        "embeddings/segment_embedding/embeddings": (backbone["num_segments"], width),
        "embeddings/position_embedding/embeddings": (backbone["max_sequence_length"], width),
    }
    shapes.update({f"embeddings/layer_norm/{name}": shape for name, shape in norm.items()})
    dense = {
        "attention/qkv": (width, 3 * width),
        "attention/output": (width, width),
        "intermediate": (width, inner),
        "output": (inner, width),
    }
    for i in range(backbone["num_layers"]):
        for name, shape in dense.items():
            shapes[f"encoder_layer_{i}/{name}/kernel"] = shape
            shapes[f"encoder_layer_{i}/{name}/bias"] = shape[1:]
        for layer in ("attention_norm", "output_norm"):
            shapes.update({f"encoder_layer_{i}/{layer}/{name}": shape for name, shape in norm.items()})
    if backbone["pooler"]:
        shapes["pooler/kernel"], shapes["pooler/bias"] = (width, width), (width,)
    return shapes


def check_layers(path: Path, name: str, stated: int, arrays: Mapping[str, Any]) -> None:
    """Check a config's number of layers, the field `name` of `path`, against the weights."""
    layers = sum(array.endswith("/attention/qkv/kernel") for array in arrays)
    if layers != stated:
        raise ValueError(
            f"{path}: `{name}` must be the number of layers that the weights have, {layers}. Received: {stated}"
        )


def check_shapes(checkpoint: Checkpoint) -> None:
    """Check the configuration against plausible limits and, with weights, against the file's headers.

    Raises:
        ValueError: A weight of the backbone is missing, a weight has another shape, or the model is too large.
    """
    backbone, classes = checkpoint.backbone, checkpoint.head.get("num_classes", 0)
    if backbone["num_layers"] > _MOST_LAYERS:
        raise ValueError(
            f"`num_layers` must be at most {_MOST_LAYERS}. Received: num_layers={backbone['num_layers']:.0e}"
        )
    if classes > _MOST_CLASSES:
        raise ValueError(f"The preset must have at most {_MOST_CLASSES} classes. Received: {classes:.0e}")
    shapes = backbone_shapes(backbone)
    if isinstance(checkpoint.arrays, LazyArrays):
        held, width = checkpoint.arrays.shapes(), backbone["hidden_dim"]
        head = {"classifier/kernel": (width, classes), "classifier/bias": (classes,)} if classes else {}
        check_held(shapes | {name: shape for name, shape in head.items() if name in held}, held)
    parameters = sum(map(math.prod, shapes.values()))
    if parameters > _MOST_PARAMETERS:
        raise ValueError(
            f"The configuration must have at most {_MOST_PARAMETERS:.0e} parameters. Received: {parameters:.0e}"
        )


def check_held(shapes: Mapping[str, tuple[int, ...]], held: Mapping[str, tuple[int, ...]]) -> None:
    """Check that a preset's weights, of the shapes `held`, include a model's, of these shapes."""
    missing = [name for name in shapes if name not in held]
    if missing:
        raise ValueError(f"The preset must hold every weight of the backbone. Received: one without {listed(missing)}")
    for name, shape in shapes.items():
        if held[name] != shape:
            raise ValueError(
                f"The preset's weight {name} must have the shape {shape} that its configuration gives. "
                f"Received: {held[name]}"
            )
