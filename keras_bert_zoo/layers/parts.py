"""Layers within a layer, called without what Keras does around a call where that takes longer than what it is for."""

from typing import Any, TypeVar

import keras

_PLAIN: set[type] = set()
_Class = TypeVar("_Class", bound=type)


def plain_part(kind: _Class) -> _Class:
    """Says of a class, not of those derived from it: its `call` alone computes what a call computes.

    It casts none of its inputs, has no loss of its own, and takes `training` from whoever calls it.
    """
    _PLAIN.add(kind)
    return kind


def call_part(owner: keras.layers.Layer, part: keras.layers.Layer, *inputs: Any, **options: Any) -> Any:
    """`part(*inputs, **options)` within `owner.call`, for a part that `owner` has built.

    Keras converts, checks and names around each call of a layer. On PyTorch, which does so at every batch and not once
    a program, that takes 0.25 ms a call on a CPU: 30 ms for the 120 of BERT base's blocks, in which an accelerator
    waits. What is called here is `part.call`, unless something is asked of `part` that only its own call does. The
    hooks that PyTorch runs for all modules see the owner only.
    """
    is_direct = keras.backend.backend() == "torch" and is_plain(owner, part, inputs[0]) and not part._remat_mode
    return (part.call if is_direct else part)(*inputs, **options)


def is_plain(owner: Any, part: Any, hidden: Any) -> bool:
    """Whether nothing is asked of `part` but what its class computes, in the dtypes of `owner` and `hidden`."""
    return (
        type(part) in _PLAIN
        and "call" not in vars(part)  # As calibration puts one there, which looks on.
        and not has_hooks(part)
        and part.quantization_mode is None
        and part.activity_regularizer is None
        and not is_recomputed(part)
        and owner.autocast
        and part.variable_dtype == owner.variable_dtype
        and part.compute_dtype == owner.compute_dtype == keras.backend.standardize_dtype(hidden.dtype)
    )


def is_recomputed(layer: Any) -> bool:
    """Whether `keras.RematScope` has Keras compute the inside of this layer again for the gradient."""
    mode = layer._remat_mode
    return bool(mode and mode.mode and (mode.mode != "list_of_layers" or layer.name in mode.layer_names))


def has_hooks(layer: Any) -> bool:
    """Whether there are hooks of a PyTorch module, which its call runs."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(layer, name, None) for name in hooks)
