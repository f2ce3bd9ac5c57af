"""A model as a program of `torch.compile`; imported on PyTorch alone."""

import itertools
import weakref
from collections.abc import Callable
from typing import Any

import keras
import torch
from torch._dynamo.convert_frame import compile_lock
from torch.fx.experimental.proxy_tensor import make_fx

from keras_bert_zoo.layers.parts import has_hooks
from keras_bert_zoo.layers.passes import read_once
from keras_bert_zoo.layers.recomputed import RecomputedLayer

_programs: Any = weakref.WeakKeyDictionary()


def compiled_call(model: Any, compute: Callable[..., Any], **arguments: Any) -> Any:
    """`compute(**arguments)`, made of the weights of `model`, compiled unless that would leave something out.

    What Keras compiles for `jit_compile` is its step as it stands in Python, of which `torch.compile` makes many small
    programs, and which it gives up at our optimizers. Here the model is drawn as one graph of tensors, its weights
    among the inputs, and compiled for the shapes that come first; and once more for all others, a batch or a length of
    one aside.

    Args:
        model: A Keras layer, built.
        compute: What it does.
        arguments: Tensors `[batch, length]`, one named `output_positions` `[batch, n]`, and hashable constants.
    """
    layers = model._flatten_layers(include_self=False)
    if read_once(model, "does more", lambda: any(map(_does_more, layers))):
        return compute(**arguments)
    weights = model.weights
    values = read_once(model, "values", lambda: [weight.value for weight in weights])  # They are changed in place.
    tensors = {name: value for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    constants = {name: value for name, value in arguments.items() if name not in tensors}
    inputs = [*values, *tensors.values()]
    looks = [(tensor.dtype, tensor.ndim, tensor.device, tensor.requires_grad) for tensor in inputs]
    key = (*tensors, *constants.items(), *looks, torch.is_grad_enabled())
    shapes = [tensor.shape for tensor in tensors.values()]
    programs = _programs.setdefault(model, {})
    if key not in programs:
        with compile_lock:  # PyTorch draws or compiles one graph at a time.
            if key not in programs:
                graph = _graph(weights, compute, tensors, constants)
                programs[key] = shapes, torch.compile(graph, dynamic=False), torch.compile(graph)
    first, program, program_for_others = programs[key]
    if shapes != first:
        program = program_for_others
        for tensor in tensors.values():
            torch._dynamo.maybe_mark_dynamic(tensor, (0, 1))
    # PyTorch takes a graph that another thread draws for one of this thread, and would refuse the call.
    with torch._dynamo.config.patch(error_on_nested_fx_trace=False):
        return program(*inputs)


def forget_programs(model: Any) -> None:
    """What is changed in a layer, such as a rate of dropout, counts from `compile` on, as everywhere in Keras."""
    _programs.pop(model, None)


def _does_more(layer: Any) -> bool:
    """Whether a call of this layer does what is no output: a graph of tensors would leave it out."""
    return (
        has_hooks(layer)
        or layer.activity_regularizer is not None
        or layer.quantization_mode == "float8"  # Keeps a history of what it has seen.
        or (isinstance(layer, RecomputedLayer) and layer.is_recomputed)
    )


def _graph(weights: Any, compute: Any, tensors: dict[str, Any], constants: dict[str, Any]) -> Any:
    """The graph for all shapes of `tensors`, whatever their own are.

    PyTorch takes sizes that are equal while it draws for the same one, and 0 and 1 for constants. So it is shown
    tensors whose sizes are like no other's, the next free ones: code that looks at a length finds one about as long.
    """
    taken = {0, 1, *(size for weight in weights for size in weight.shape)}

    def free(real: int) -> int:
        found = next(size for size in itertools.count(real) if size not in taken)
        taken.add(found)
        return found

    batch, length = map(free, next(iter(tensors.values())).shape)
    stand_ins = [
        tensor.new_zeros(batch, free(tensor.shape[1]) if name == "output_positions" else length)
        for name, tensor in tensors.items()
    ]

    def drawn(*inputs: Any) -> Any:
        with keras.StatelessScope(list(zip(weights, inputs, strict=False))):
            return compute(**dict(zip(tensors, inputs[len(weights) :], strict=True)), **constants)

    values = [weight.value for weight in weights]
    program = make_fx(drawn, tracing_mode="symbolic", pre_dispatch=True)(*values, *stand_ins)
    # What a module that is imported meanwhile asks oneDNN is drawn, and would cut the graph in two.
    program.graph.eliminate_dead_code()
    program.recompile()
    return program
