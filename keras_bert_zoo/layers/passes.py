"""What a pass over batches allows in which nothing is trained: other operations, and weights cast once."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

import keras

_outputs_alone = ContextVar("outputs_alone", default=False)


@contextmanager
def outputs_alone(compiled: bool) -> Iterator[None]:
    """Within, outputs are made by this process, for no gradient and no graph to be saved; XLA is told by `compiled`.

    So there may be operations that have no gradient and that another machine's TensorFlow does not know.
    """
    token = _outputs_alone.set(not compiled)
    try:
        yield
    finally:
        _outputs_alone.reset(token)


def makes_outputs_alone() -> bool:
    return _outputs_alone.get()


# --- Weights in the compute dtype

Read = Callable[[Any], Any]
_kept: ContextVar[dict[Any, Any] | None] = ContextVar("kept", default=None)
_passes = 0
_lock = threading.RLock()  # Several threads may predict with one model.


@contextmanager
def weights_kept() -> Iterator[None]:
    """Within, no weight changes from the first batch on: a Dense casts its own once, not at each batch.

    That takes a tenth of the prediction of short texts in bfloat16, on PyTorch and TensorFlow. The copies go when no
    such pass is left.
    """
    global _passes
    token = _kept.set({})
    with _lock:
        _passes += 1
    try:
        yield
    finally:
        _kept.reset(token)
        with _lock:
            _passes -= 1
            if not _passes:  # One that began before another drew the program reads the other's copies.
                for copies in _copies.values():
                    copies.clear()


def are_weights_kept() -> bool:
    return _kept.get() is not None


def kept(layer: Any, read: Read) -> Any:
    """What `read(layer)` gives, a tuple of tensors or None, read once for `layer` within `weights_kept`."""
    weights = _kept.get()
    if weights is None:
        return read(layer)
    if keras.backend.backend() == "tensorflow":
        return _of_program(layer, read)
    if (layer, read) not in weights:
        weights[layer, read] = read(layer)
    return weights[layer, read]


# --- On TensorFlow a program outlives the pass that has drawn it


class _Copies:
    """Variables with what `read(layer)` gives, which programs read; empty where no pass is under way."""

    def __init__(self, layer: Any, read: Read) -> None:
        import tensorflow as tf

        # Of any shape, so that they can be emptied; and whoever read them then would be stopped, not answered.
        anything, values = tf.TensorShape(None), read(layer)
        self._read = read
        self._dtype = layer.compute_dtype
        self._variables = [None if v is None else tf.Variable(v, trainable=False, shape=anything) for v in values]
        self._shapes = [None if v is None else v.shape for v in values]

    def values(self) -> Any:
        def one(variable: Any, shape: Any) -> Any:
            value = variable.read_value()
            value.set_shape(shape)
            return value

        pairs = zip(self._variables, self._shapes, strict=True)
        return tuple(None if variable is None else one(variable, shape) for variable, shape in pairs)

    def refresh(self, layer: Any) -> None:
        if layer.quantization_mode is None and layer.compute_dtype == self._dtype:  # Else no program reads them.
            self._assign(self._read(layer))

    def clear(self) -> None:
        self._assign([None if v is None else keras.ops.zeros((0,), v.dtype.name) for v in self._variables])

    def _assign(self, values: Any) -> None:
        for variable, value in zip(self._variables, values, strict=True):
            if variable is not None:
                variable.assign(value)


_copies: WeakKeyDictionary[Any, _Copies] = WeakKeyDictionary()


def _of_program(layer: Any, read: Read) -> Any:
    import tensorflow as tf

    # A step of `evaluate` or `predict` that is drawn, for one device.
    if not (_outputs_alone.get() and tf.inside_function()) or tf.distribute.has_strategy():
        return read(layer)
    with _lock, tf.init_scope():  # Out of the program, which later passes run again.
        if layer not in _copies:
            _copies[layer] = _Copies(layer, read)
    return _copies[layer].values()


def with_weights_of_now(model: Any, program: Callable[..., Any]) -> Callable[..., Any]:
    """`program`, a step of `model`, whose copies are made anew at the first batch of a pass.

    Not before: Keras' `SwapEMAWeights` changes the weights as a pass begins. By itself a call is a pass.
    """

    def run(*arguments: Any) -> Any:
        with nullcontext() if are_weights_kept() else weights_kept():
            weights = _kept.get()
            assert weights is not None
            if model not in weights:
                weights[model] = True
                with _lock:
                    for layer in model._flatten_layers() if _copies else ():
                        if layer in _copies:
                            _copies[layer].refresh(layer)
            return program(*arguments)

    return run
