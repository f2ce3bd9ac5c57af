"""What a pass over batches allows in which nothing is trained: other operations, and weights cast once."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


class _Copies:
    """Variables with a layer's weights, which a TensorFlow program reads while passes use them; empty else."""

    def __init__(self, values: Any) -> None:
        import tensorflow as tf

        # Of any shape, so that they can be emptied; and whoever read them then would be stopped, not answered.
        anything = tf.TensorShape(None)
        self.variables = [None if v is None else tf.Variable(v, trainable=False, shape=anything) for v in values]
        self.shapes = [None if v is None else v.shape for v in values]
        self.passes = 0

    def read(self) -> Any:
        def one(variable: Any, shape: Any) -> Any:
            value = variable.read_value()
            value.set_shape(shape)
            return value

        pairs = zip(self.variables, self.shapes, strict=True)
        return tuple(None if variable is None else one(variable, shape) for variable, shape in pairs)

    def assign(self, values: Any) -> None:
        for variable, value in zip(self.variables, values, strict=True):
            if variable is not None:
                variable.assign(value)

    def clear(self) -> None:
        self.assign([None if v is None else keras.ops.zeros((0,), v.dtype.name) for v in self.variables])


Read = Callable[[Any], Any]
_kept: ContextVar[dict[Any, Any] | None] = ContextVar("kept", default=None)
_copies: WeakKeyDictionary[Any, tuple[_Copies, Read]] = WeakKeyDictionary()
_lock = threading.RLock()  # Several threads may predict with one model.


@contextmanager
def weights_kept(model: Any) -> Iterator[None]:
    """Within, no weight of `model` changes: on PyTorch and TensorFlow a Dense casts its own once, not at each batch.

    That takes a tenth of the prediction of short texts in bfloat16. The copies go when it ends.
    """
    token = _kept.set({})
    try:
        with _lock:
            for layer in model._flatten_layers() if _copies else ():
                if layer in _copies:
                    _use(layer)
        yield
    finally:
        weights = _kept.get() or {}
        _kept.reset(token)
        with _lock:
            for copies in weights.values():
                if isinstance(copies, _Copies):
                    copies.passes -= 1
                    if not copies.passes:
                        copies.clear()


def are_weights_kept() -> bool:
    return _kept.get() is not None


def kept(layer: Any, read: Read) -> Any:
    """What `read(layer)` gives, a tuple of tensors or None, read once for `layer` within `weights_kept`."""
    weights = _kept.get()
    if weights is None:
        return read(layer)
    if layer not in weights:
        if keras.backend.backend() == "tensorflow":
            if not _has_programs_of_its_own():
                return read(layer)
            import tensorflow as tf

            with _lock, tf.init_scope():  # Out of the program, which later passes run again.
                if layer not in _copies:
                    _copies[layer] = _Copies(read(layer)), read
                _use(layer)
        else:
            weights[layer] = read(layer)
    found = weights[layer]
    return found.read() if isinstance(found, _Copies) else found


def _use(layer: Any) -> None:
    """For the pass that has begun: its copies have the weights of now."""
    copies, read = _copies[layer]
    if not copies.passes:
        copies.assign(read(layer))
    copies.passes += 1
    weights = _kept.get()
    assert weights is not None
    weights[layer] = copies


def _has_programs_of_its_own() -> bool:
    """Whether TensorFlow draws a step of `evaluate` or `predict`, for one device."""
    import tensorflow as tf

    return _outputs_alone.get() and tf.inside_function() and not tf.distribute.has_strategy()
