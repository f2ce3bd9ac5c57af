"""Calls of layers within a layer, without Keras' work around each call where that work takes longer than the layer."""

from typing import Any, TypeVar

import keras

_PLAIN: set[type] = set()
_Class = TypeVar("_Class", bound=type)


def plain_part(kind: _Class) -> _Class:
    """Mark a class whose `call` does all that calling the layer does; its subclasses are not marked.

    Such a layer does not cast its inputs, adds no loss, and gets `training` from its caller.
    """
    _PLAIN.add(kind)
    return kind


def call_part(owner: keras.layers.Layer, part: keras.layers.Layer, *inputs: Any, **options: Any) -> Any:
    """Return `part(*inputs, **options)` within `owner.call`, for a part that `owner` has built.

    Keras converts, checks and names things around each call of a layer. On PyTorch this happens at every batch, not
    once per program. It takes 0.25 ms a call on a CPU, 30 ms for the 120 calls in BERT base's blocks, while an
    accelerator waits. So this function calls `part.call` directly, unless `part` needs something that only its full
    call does. Hooks that PyTorch runs for all modules see only the owner.
    """
    is_direct = keras.backend.backend() == "torch" and is_plain(owner, part, inputs[0]) and not part._remat_mode
    return (part.call if is_direct else part)(*inputs, **options)


def is_plain(owner: Any, part: Any, hidden: Any) -> bool:
    """Whether `part` only does what its class computes, in the dtypes of `owner` and `hidden`."""
    return (
        type(part) in _PLAIN
        and "call" not in vars(part)  # Calibration puts an observing `call` there.
        and not has_hooks(part)
        and part.quantization_mode is None
        and part.activity_regularizer is None
        and not is_recomputed(part)
        and owner.autocast
        and part.variable_dtype == owner.variable_dtype
        and part.compute_dtype == owner.compute_dtype == keras.backend.standardize_dtype(hidden.dtype)
    )


def is_recomputed(layer: Any) -> bool:
    """Whether `keras.RematScope` makes Keras recompute this layer for the gradient."""
    mode = layer._remat_mode
    return bool(mode and mode.mode and (mode.mode != "list_of_layers" or layer.name in mode.layer_names))


def has_hooks(layer: Any) -> bool:
    """Whether the layer has PyTorch module hooks, which only its full call runs."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(layer, name, None) for name in hooks)
