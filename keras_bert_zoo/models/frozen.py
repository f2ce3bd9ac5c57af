"""Frozen weights as part of a config: Keras stores one flag per model and forgets weights frozen in layers."""

from typing import Any

import keras


def frozen_weights(model: keras.Model, besides: keras.Model | None = None) -> dict[str, Any]:
    """Return the config entry that lists frozen weights; empty if none is frozen, or if a frozen model's all are.

    Args:
        model: The model.
        besides: A part of it to leave out, as it has its own config.
    """
    weights = _own_weights(model, besides)
    frozen = [weight.path for weight in weights if not weight.trainable]
    # A layer of a frozen model may have been thawed.
    says_all = not model.trainable and len(frozen) == len(weights)
    return {"frozen": frozen} if frozen and not says_all else {}


def freeze_again(model: Any, frozen: list[str] | None, besides: keras.Model | None = None) -> Any:
    """Freeze the weights that a config with `frozen_weights` lists, and no others; return the model."""
    if frozen is not None:
        paths = set(frozen)
        for weight in _own_weights(model, besides):
            weight.trainable = weight.path not in paths
    return model


def _own_weights(model: keras.Model, besides: keras.Model | None) -> list[Any]:
    known = set() if besides is None else {id(weight) for weight in besides.weights}
    return [weight for weight in model.weights if id(weight) not in known]
