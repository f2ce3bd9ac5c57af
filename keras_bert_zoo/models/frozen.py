"""Which weights are frozen, as part of a config: Keras asks a model as a whole and forgets those within layers."""

from typing import Any

import keras


def frozen_weights(model: keras.Model, besides: keras.Model | None = None) -> dict[str, Any]:
    """What a config has to say of single weights that are frozen; nothing where none is, or all are.

    Args:
        model: The model.
        besides: A part of it that has a config of its own.
    """
    weights = _own_weights(model, besides)
    frozen = [weight.path for weight in weights if not weight.trainable]
    return {"frozen": frozen} if model.trainable and frozen else {}


def freeze_again(model: Any, frozen: list[str] | None, besides: keras.Model | None = None) -> Any:
    """The model, with the weights frozen that a config with `frozen_weights` names, and no others."""
    if frozen is not None:
        paths = set(frozen)
        for weight in _own_weights(model, besides):
            weight.trainable = weight.path not in paths
    return model


def _own_weights(model: keras.Model, besides: keras.Model | None) -> list[Any]:
    known = set() if besides is None else {id(weight) for weight in besides.weights}
    return [weight for weight in model.weights if id(weight) not in known]
