"""Loading of a checkpoint's arrays into a model, with a report on each."""

import json
import logging
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import keras
import numpy as np

from keras_bert_zoo.checkpoints import Checkpoint
from keras_bert_zoo.checkpoints.checkpoint import LazyArrays
from keras_bert_zoo.checkpoints.shapes import check_held
from keras_bert_zoo.checks import listed

_logger = logging.getLogger("keras_bert_zoo")


@dataclass(frozen=True)
class LoadReport:
    """Names of the weights that were loaded, fresh or unused.

    Attributes:
        loaded: Weights loaded from the checkpoint.
        fresh: Head weights not loaded from the checkpoint, left as initialised.
        unused: Checkpoint tensors that the model lacks, or whose head is new.
    """

    loaded: tuple[str, ...]
    fresh: tuple[str, ...]
    unused: tuple[str, ...]


def load_arrays(
    model: keras.Model, checkpoint: Checkpoint, head: tuple[str, ...] = (), new_head: tuple[str, ...] = ()
) -> LoadReport:
    """Assign `checkpoint.arrays` to `model`'s weights by path.

    Args:
        model: Built model.
        checkpoint: The checkpoint to load.
        head: Layers whose weights may be missing from the checkpoint, or have another shape there.
        new_head: Layers whose weights are not loaded even if they would fit.

    Raises:
        ValueError: A required weight is missing or has another shape.
    """
    weights = {weight.path: weight for weight in model.weights}
    shapes = {path: tuple(weight.shape) for path, weight in weights.items()}
    assert isinstance(checkpoint.arrays, LazyArrays)
    held = checkpoint.arrays.shapes()
    check_held({path: shape for path, shape in shapes.items() if path.split("/")[0] not in head}, held)
    loaded = [path for path in weights if held.get(path) == shapes[path] and path.split("/")[0] not in new_head]
    for path in loaded:
        weights[path].assign(checkpoint.arrays[path])
    fresh = tuple(path for path in weights if path not in loaded)
    unused = (*(path for path in checkpoint.arrays if path not in loaded), *checkpoint.unknown)
    report = LoadReport(tuple(loaded), fresh, unused)
    if report.fresh:
        _logger.warning("%s: freshly initialised, to be trained: %s", model.name, listed(report.fresh))
    if report.unused:
        _logger.warning("%s: in the preset, but not used: %s", model.name, listed(report.unused))
    return report


def preset_digest(task: Any) -> str:
    """Return a SHA-256 of what a task from `from_preset` starts with: settings, vocabulary and the loaded weights."""
    config = keras.saving.serialize_keras_object(task.get_config())
    found = sha256(json.dumps(config, sort_keys=True).encode())
    weights = {weight.path: weight for weight in task.weights}
    for path in task.load_report.loaded:
        found.update(path.encode())
        found.update(keras.ops.convert_to_numpy(weights[path]).tobytes())
    return found.hexdigest()


def arrays_of(model: keras.Model) -> dict[str, np.ndarray]:
    """Return every weight by path, with LoRA's low-rank products (Hu et al. 2021) added to adapted weights.

    Raises:
        ValueError: The model is quantized.
    """
    quantized = next((layer for layer in model._flatten_layers() if layer.quantization_mode is not None), None)
    if quantized is not None:  # Floats would give other outputs: inputs are also quantized.
        raise ValueError(
            'A preset holds float weights: save it before quantize(), or use save(".keras"), which keeps both. '
            f"Received: {quantized.path} in {quantized.quantization_mode}"
        )
    adapted = [layer for layer in model._flatten_layers() if getattr(layer, "lora_enabled", False)]
    factors = [weight for layer in adapted for weight in layer.weights if weight.name.startswith("lora_")]
    sums = {weight.path: _with_lora(layer, weight) for layer in adapted for weight in layer.weights
            if weight.name in ("kernel", "embeddings")}  # fmt: skip
    return {
        weight.path: keras.ops.convert_to_numpy(sums.get(weight.path, weight))
        for weight in model.weights
        if not any(weight is factor for factor in factors)
    }


def _with_lora(layer: keras.Layer, weight: keras.Variable) -> np.ndarray:
    """Return the sum as in `layer.kernel` or `layer.embeddings`, but without Keras' rounding to the compute dtype."""
    sum_, a, b = map(keras.ops.convert_to_numpy, (weight, *(getattr(layer, f"lora_{weight.name}_{x}") for x in "ab")))
    return sum_ + (layer.lora_alpha / layer.lora_rank * (a @ b)).astype(sum_.dtype)
