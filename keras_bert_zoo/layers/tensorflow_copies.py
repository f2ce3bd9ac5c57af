"""Weights cast once per pass on TensorFlow, where a program outlives the pass that traced it; imported there only."""

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf

from keras_bert_zoo.layers.passes import (
    Read,
    are_weights_kept,
    kept,
    makes_outputs_alone,
    weights_kept,
    when_no_pass_is_left,
)


class _Copies:
    """Variables that hold `read(layer)` for programs; empty while no pass is running."""

    def __init__(self, layer: Any, read: Read) -> None:
        # The variables have any shape, so that they can be emptied. A program that read an empty one would fail, not
        # compute nonsense.
        anything, values = tf.TensorShape(None), read(layer)
        self._read = read
        self.dtype = layer.compute_dtype
        self._variables = [None if v is None else tf.Variable(v, trainable=False, shape=anything) for v in values]
        self._shapes = [None if v is None else v.shape for v in values]
        self._is_filled = True

    def values(self) -> Any:
        def one(variable: Any, shape: Any) -> Any:
            value = variable.read_value()
            value.set_shape(shape)
            return value

        pairs = zip(self._variables, self._shapes, strict=True)
        return tuple(None if variable is None else one(variable, shape) for variable, shape in pairs)

    def refresh(self, layer: Any) -> None:
        if layer.quantization_mode is None and layer.compute_dtype == self.dtype:  # Else no program reads them.
            self._assign(self._read(layer))
            self._is_filled = True

    def clear(self) -> None:
        if self._is_filled:
            self._assign([None if v is None else tf.zeros([0], v.dtype) for v in self._variables])
            self._is_filled = False

    def _assign(self, values: Any) -> None:
        for variable, value in zip(self._variables, values, strict=True):
            if variable is not None:
                variable.assign(value)


_copies: WeakKeyDictionary[Any, _Copies] = WeakKeyDictionary()
_lock = threading.Lock()


def _clear() -> None:
    # Clear all, as a pass may read the copies of a later pass that traced the program.
    for copies in _copies.values():
        copies.clear()


when_no_pass_is_left(_clear)


def copied(layer: Any, read: Read) -> Any:
    """Return `read(layer)`, a tuple of tensors or None; a traced step of `predict` reads it from copies."""
    # Copies are for one device only, and nothing would refresh those of a program that is traced outside a pass.
    is_traced = makes_outputs_alone() and are_weights_kept() and tf.inside_function()
    if not is_traced or tf.distribute.has_strategy():
        return read(layer)
    with _lock, tf.init_scope():  # Outside the program, which later passes run again.
        if layer not in _copies or _copies[layer].dtype != layer.compute_dtype:
            _copies[layer] = _Copies(layer, read)
    return _copies[layer].values()


def with_weights_of_now(model: Any, program: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `program`, a step of `model`, so that its copies are refreshed at the first batch of a pass.

    They cannot be refreshed earlier: Keras' `SwapEMAWeights` changes the weights as a pass begins. A call outside a
    pass is a pass of its own.
    """

    def run(*arguments: Any) -> Any:
        with nullcontext() if are_weights_kept() else weights_kept():
            kept(model, _refresh)
            return program(*arguments)

    return run


def _refresh(model: Any) -> None:
    with _lock:
        for layer in model._flatten_layers() if _copies else ():
            if layer in _copies:
                _copies[layer].refresh(layer)
