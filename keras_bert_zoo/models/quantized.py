"""Quantized layers as part of a config: Keras 3.15 stores this per layer and forgets layers within layers."""

from collections.abc import Callable
from typing import Any

import keras


def quantized_layers(model: keras.Model, besides: keras.Model | None = None) -> dict[str, Any]:
    """Return the config entry that lists the layers changed by `quantize`; empty if there are none.

    Args:
        model: The model.
        besides: A part of it to leave out, as it has its own config.
    """
    known = set() if besides is None else {id(layer) for layer in besides._flatten_layers()}
    groups: list[dict[str, Any]] = []
    for layer in model._flatten_layers():
        if layer.quantization_mode is None or id(layer) in known:
            continue
        config = keras.saving.serialize_keras_object(layer.quantization_config)
        group = next((group for group in groups if group["config"] == config), None)
        if group is None:
            group = {"config": config, "layers": []}
            groups.append(group)
        group["layers"].append(layer.path)
    return {"quantized": groups} if groups else {}


def quantize_again(build: Callable[..., Any], config: dict[str, Any]) -> Any:
    """Build the model of a config with `quantized_layers`, ready to load its weights."""
    config = dict(config)
    groups = config.pop("quantized", [])
    model = build(**config)
    for group in groups:
        paths = set(group["layers"])
        quantization = keras.saving.deserialize_keras_object(group["config"])
        model.quantize(config=quantization, filters=lambda layer, paths=paths: layer.path in paths)
    return model
