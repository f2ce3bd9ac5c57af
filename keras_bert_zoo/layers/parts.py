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
    return (part.call if _is_plain(owner, part, inputs[0]) else part)(*inputs, **options)


def _is_plain(owner: Any, part: Any, hidden: Any) -> bool:
    if keras.backend.backend() != "torch" or type(part) not in _PLAIN:
        return False
    hooks = part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks
    return (
        not hooks
        and part.quantization_mode is None
        and part.activity_regularizer is None
        and not part._remat_mode
        and owner.autocast
        and part.variable_dtype == owner.variable_dtype
        and part.compute_dtype == owner.compute_dtype == keras.backend.standardize_dtype(hidden.dtype)
    )
