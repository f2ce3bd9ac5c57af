"""A model as a program of `torch.compile`; imported on PyTorch alone."""

import weakref
from collections.abc import Callable
from typing import Any

import keras
import torch
from torch.fx.experimental.proxy_tensor import make_fx

_programs: Any = weakref.WeakKeyDictionary()


def compiled_call(model: Any, compute: Callable[..., Any], **arguments: Any) -> Any:
    """`compute(**arguments)`, made of the weights of `model`, compiled.

    What Keras compiles for `jit_compile` is its step as it stands in Python, of which `torch.compile` makes many small
    programs, and which it gives up at our optimizers. Here the model is drawn as one graph of tensors, its weights
    among the inputs, and compiled for the shapes that come first; and once more, for all others.

    Args:
        model: A Keras layer, built.
        compute: What it does.
        arguments: Tensors `[batch, length]`, and hashable constants.
    """
    weights = model.weights
    tensors = {name: value for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    constants = {name: value for name, value in arguments.items() if name not in tensors}
    inputs = [*(weight.value for weight in weights), *tensors.values()]
    looks = [(tensor.dtype, tensor.ndim, tensor.device, tensor.requires_grad) for tensor in inputs]
    key = (*tensors, *constants.items(), *looks, torch.is_grad_enabled())
    shapes = [tensor.shape for tensor in tensors.values()]
    programs = _programs.setdefault(model, {})
    if key not in programs:

        def drawn(*inputs: Any) -> Any:
            with keras.StatelessScope(list(zip(weights, inputs, strict=False))):
                return compute(**dict(zip(tensors, inputs[len(weights) :], strict=True)), **constants)

        graph = make_fx(drawn, tracing_mode="symbolic", pre_dispatch=True)(*inputs)
        programs[key] = shapes, torch.compile(graph, dynamic=False), torch.compile(graph)
    first, program, program_for_others = programs[key]
    if shapes == first:
        return program(*inputs)
    for tensor in tensors.values():
        torch._dynamo.maybe_mark_dynamic(tensor, (0, 1))
    return program_for_others(*inputs)


def forget_programs(model: Any) -> None:
    """What is changed in a layer, such as a rate of dropout, counts from `compile` on, as everywhere in Keras."""
    _programs.pop(model, None)
