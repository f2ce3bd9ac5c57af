"""A model's computations as `torch.compile` programs; imported on PyTorch only."""

import itertools
import logging
import weakref
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import keras
import torch
from torch._dynamo.convert_frame import compile_lock
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode

from keras_bert_zoo.layers.parts import has_hooks, is_recomputed
from keras_bert_zoo.layers.passes import read_once
from keras_bert_zoo.layers.recomputed import RecomputedLayer
from keras_bert_zoo.layers.torch_product import is_traced

_logger = logging.getLogger("keras_bert_zoo")
_programs: Any = weakref.WeakKeyDictionary()


class NotTracedError(Exception):
    """The computation has no program, or is part of one, and must be run as it is."""


class _Program(NamedTuple):
    sizes: tuple[tuple[int, ...], ...]
    shapes: list[Any]
    for_shapes: Callable[..., Any]
    for_others: Callable[..., Any]
    changed: list[int]
    """Indices of the variables whose new values are returned with the outputs."""


def outputs_of_program(
    model: Any, name: str, compute: Callable[..., Any], *data: Any, metrics: Callable[[], list[Any]] = list
) -> Any:
    """Return `compute(*data)`, compiled with the variables of `model`, unless that would leave something out.

    With `jit_compile`, Keras compiles its Python step. `torch.compile` splits that step into many small programs and
    gives up at our optimizers. Here the computation is traced as one graph of tensors. Its inputs include the
    variables, and its outputs the new values of those that it assigns to. The graph is compiled for the first shapes
    and once more for all others, except a batch size or length of one.

    Args:
        model: A built Keras model.
        name: Name of `compute`, unique within this model.
        compute: A function of only its arguments and the variables.
        data: Structures of tensors `[batch, ...]` and hashable constants. The program is for all sizes of the first
            structure; sizes in the others vary only with the batch or with one of these. `compute` must not ask for
            their values.
        metrics: Returns the variables other than the model's.

    Raises:
        NotTracedError: There is no such program.
    """
    if is_traced() or read_once(model, f"does more in {name}", lambda: any(map(_does_more, model._flatten_layers()))):
        raise NotTracedError
    variables = read_once(model, f"variables of {name}", lambda: [*model.variables, *metrics()])
    # The values are changed in place.
    values = read_once(model, f"values of {name}", lambda: [variable.value for variable in variables])
    looks = read_once(model, f"looks of {name}", lambda: tuple(map(_look, values)))
    leaves = keras.tree.flatten_with_path(data)
    tensors = [leaf for _, leaf in leaves if isinstance(leaf, torch.Tensor)]
    if not all(isinstance(leaf, Hashable) for _, leaf in leaves):
        raise NotTracedError
    kinds = tuple((path, _look(leaf) if isinstance(leaf, torch.Tensor) else leaf) for path, leaf in leaves)
    programs = _programs.setdefault(model, {})

    def key_of(constant_targets: bool) -> tuple[Any, ...]:
        return name, kinds, _sizes(data, tensors, constant_targets), looks, torch.is_grad_enabled()

    key = key_of(constant_targets=False)
    if key not in programs:
        with compile_lock:  # PyTorch traces or compiles one graph at a time.
            if key not in programs:
                # Targets may have as many classes as a text has tokens by chance; they do not change with its length.
                other = key_of(constant_targets=True)
                program = _traced(name, variables, compute, data, tensors, key[2], warns=key == other)
                if program is None and key != other:
                    if other not in programs:
                        programs[other] = _traced(name, variables, compute, data, tensors, other[2])
                    program = programs[other]
                programs[key] = program
    program = programs[key]
    if program is None:
        raise NotTracedError
    call = program.for_shapes
    if [tensor.shape for tensor in tensors] != program.shapes:
        call = program.for_others
        for tensor, names in zip(tensors, program.sizes, strict=True):
            torch._dynamo.maybe_mark_dynamic(tensor, [axis for axis, name in enumerate(names) if name < 0])
    # PyTorch mistakes a graph that another thread traces for one of this thread, and would refuse the call.
    with torch._dynamo.config.patch(error_on_nested_fx_trace=False):
        outputs, news = call(*values, *tensors)
    if news:
        with torch.no_grad():
            torch._foreach_copy_([values[place] for place in program.changed], news)
    return outputs


def forget_programs(*models: Any) -> None:
    """Delete the programs, so that changes to layers (such as a dropout rate) count after `compile`, as elsewhere."""
    for model in models:
        _programs.pop(model, None)


def _does_more(layer: Any) -> bool:
    """Whether a call of this layer does something that a graph of its outputs would leave out."""
    return (
        has_hooks(layer)
        or layer.activity_regularizer is not None
        or layer.quantization_mode == "float8"  # Keeps a history of its inputs.
        or (layer.quantization_mode is not None and torch.is_grad_enabled())  # Has a custom gradient.
        or (isinstance(layer, RecomputedLayer) and is_recomputed(layer))
    )


def _look(tensor: Any) -> tuple[Any, ...]:
    return tensor.dtype, tensor.ndim, tensor.device, tensor.requires_grad


def _sizes(data: tuple[Any, ...], tensors: list[Any], constant_targets: bool) -> tuple[tuple[int, ...], ...]:
    """Return, for each size of each tensor, a negative name (-1 for the batch), or the size itself if it is constant.

    Equal sizes share a name, except those of targets if these are constant. A batch in which other sizes are equal
    needs another graph.
    """
    inputs = sum(isinstance(leaf, torch.Tensor) for leaf in keras.tree.flatten(data[0]))
    if not inputs or any(tensor.shape[:1] != tensors[0].shape[:1] or not tensor.ndim for tensor in tensors):
        raise NotTracedError
    varying = {size: None for tensor in tensors[:inputs] for size in tensor.shape[1:]}
    names = {size: -2 - place for place, size in enumerate(varying)}
    # A target's size of 1 does not mean a text of one token.
    others = {size: name for size, name in names.items() if size != 1 and not constant_targets}
    return tuple(
        (-1, *((names if place < inputs else others).get(size, size) for size in tensor.shape[1:]))
        for place, tensor in enumerate(tensors)
    )


def _traced(
    name: str, variables: Any, compute: Any, data: Any, tensors: Any, sizes: Any, warns: bool = True
) -> _Program | None:
    try:
        graph, changed = _graph(variables, compute, data, tensors, sizes)
    except Exception as error:
        level = logging.WARNING if warns else logging.DEBUG
        _logger.log(level, "Not compiled as a whole: %s, for which no graph can be traced (%s)", name, error)
        return None
    shapes = [tensor.shape for tensor in tensors]
    return _Program(sizes, shapes, torch.compile(graph, dynamic=False), torch.compile(graph), changed)


def _graph(variables: Any, compute: Any, data: Any, tensors: Any, sizes: Any) -> tuple[Any, list[int]]:
    """Return the graph for all shapes of `tensors` with the same names, and the indices of the variables it changes.

    When tracing, PyTorch treats equal sizes as the same one, and 0 and 1 as constants. So it gets stand-ins with
    distinct sizes. These are smaller where possible, as a model limits the length of texts.
    """
    taken = {0, 1, *(size for variable in variables for size in variable.shape)}
    taken.update(name for names in sizes for name in names)
    shown: dict[int, int] = {}
    for tensor, names in zip(tensors, sizes, strict=True):
        for size, name in zip(tensor.shape, names, strict=True):
            if name < 0 and name not in shown:
                nearest = itertools.chain(range(size, 1, -1), itertools.count(size))
                shown[name] = next(free for free in nearest if free not in taken)
                taken.add(shown[name])
    stand_ins = [
        tensor.new_zeros([shown.get(name, name) for name in names])
        for tensor, names in zip(tensors, sizes, strict=True)
    ]

    changed: list[int] = []

    def traced(*inputs: Any) -> Any:
        values, given = inputs[: len(variables)], iter(inputs[len(variables) :])
        with keras.StatelessScope(list(zip(variables, values, strict=True))) as scope, _NumbersTraced():
            before = [*map(scope.get_current_value, variables)]
            leaves = [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in keras.tree.flatten(data)]
            outputs = compute(*keras.tree.pack_sequence_as(data, leaves))
            after = [*map(scope.get_current_value, variables)]
        if len(scope.state_mapping) > len({*map(id, variables)}):
            raise ValueError("it changes a variable that is not the model's")
        changed[:] = [place for place, value in enumerate(before) if after[place] is not value]
        return outputs, [after[place].detach() for place in changed]

    values = [variable.value for variable in variables]
    # Tensors that are not variables, such as a regularizer's rate, are read in place.
    trace = make_fx(traced, tracing_mode="symbolic", pre_dispatch=True, _allow_non_fake_inputs=True)
    program = trace(*values, *stand_ins)
    given = program.graph.find_nodes(op="placeholder")[len(variables) :]
    for node, names in zip(given, sizes, strict=True):
        for size, name in zip(node.meta["val"].shape, names, strict=True):
            if name < 0 and not (isinstance(size, torch.SymInt) and size.node.maybe_as_int() is None):
                raise ValueError("it would work for one size only, which PyTorch treats as a constant")
    # oneDNN calls by modules that are imported meanwhile are also traced, and would split the graph.
    program.graph.eliminate_dead_code()
    program.recompile()
    return program, changed


class _NumbersTraced(TorchFunctionMode):
    """Mode in which tensors made of numbers and sizes are created in the graph, where they are used.

    PyTorch would create them immediately, on the host and from the stand-ins' sizes, as it would Keras' count of loss
    values.
    """

    def __torch_function__(self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        is_made = function in (torch.as_tensor, torch.tensor) and args and kwargs.keys() <= {"dtype", "device"}
        if is_made and _is_of_numbers(args[0]):
            return _made(args[0], **kwargs)
        return function(*args, **kwargs)


_DTYPES = {bool: torch.bool, int: torch.int64, torch.SymInt: torch.int64, float: torch.float32}


def _is_of_numbers(value: Any) -> bool:
    return type(value) in _DTYPES or (
        isinstance(value, (list, tuple)) and bool(value) and all(map(_is_of_numbers, value))
    )


def _made(value: Any, dtype: Any = None, device: Any = None) -> Any:
    if isinstance(value, (list, tuple)):
        return torch.stack([_made(each, dtype, device) for each in value])
    return torch.scalar_tensor(value, dtype=dtype or _DTYPES[type(value)], device=device)
