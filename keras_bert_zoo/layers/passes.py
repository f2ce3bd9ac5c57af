"""What a step may do if it runs where it is traced: use other operations, and cast weights once per pass."""

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import keras

_step = ContextVar("step", default="")


@contextmanager
def step_of_this_process(kind: str, compiled: bool) -> Iterator[None]:
    """Context for tracing a step ("training" or "outputs") that this process runs and does not save.

    The step may use operations that another machine's TensorFlow does not know, and for "outputs" also operations
    without a gradient. If XLA compiles the step (`compiled`), it may use none of these, as XLA does not know them.
    """
    token = _step.set("compiled" if compiled else kind)
    try:
        yield
    finally:
        _step.reset(token)


def is_step() -> bool:
    return bool(_step.get())


def makes_outputs_alone() -> bool:
    return _step.get() == "outputs" and not _has_tape()


def _has_tape() -> bool:
    """Whether a gradient is taken within the step, as a user's loss may do on TensorFlow."""
    if keras.backend.backend() != "tensorflow":
        return False
    from keras_bert_zoo.layers.tensorflow_gradient import has_tape

    return has_tape()


def trains_here() -> bool:
    return _step.get() == "training"


def torch_compiles() -> bool:
    """Whether the current step is one that PyTorch compiles."""
    return _step.get() == "compiled" and keras.backend.backend() == "torch"


# --- What PyTorch's compiled step reads from a model

_readers: Any = weakref.WeakSet()
_lock = threading.Lock()  # Several threads may predict with one model.


def read_once(owner: Any, name: str, read: Callable[[], Any]) -> Any:
    """Return `read()`; steps that PyTorch compiles call it once per run, and other steps each time.

    Keras walks through all layers for each list of layers or weights, a dozen times a step. Together with AdamW's
    lookups for each weight, that took a fifth of the host's time for a step of BERT base, while an H200 waited.
    """
    if not torch_compiles():
        return read()
    found = owner.__dict__.get("_read_once")
    if found is None:
        found = owner.__dict__["_read_once"] = {}  # Stored on the owner, as its lists of layers lead back to it.
        with _lock:
            _readers.add(owner)
    if name not in found:
        found[name] = read()
    return found[name]


def begin_run() -> None:
    """Forget all `read_once` values, so that changes since the last `fit`, `evaluate` or `predict` take effect."""
    with _lock:
        readers = list(_readers)
        _readers.clear()
    for reader in readers:
        reader.__dict__.pop("_read_once", None)


class WalksOnce:
    """Mixin for a `keras.Model` that runs in compiled steps."""

    @property
    def weights(self) -> Any:
        return read_once(self, "weights", lambda: super(WalksOnce, self).weights)  # type: ignore[misc]

    def _flatten_layers(self, include_self: bool = True, recursive: bool = True) -> Any:
        def walk() -> Any:
            return super(WalksOnce, self)._flatten_layers(include_self, recursive)  # type: ignore[misc]

        return read_once(self, f"layers {include_self} {recursive}", walk)


# --- Weights in the compute dtype

Read = Callable[[Any], Any]
_kept: ContextVar[dict[Any, Any] | None] = ContextVar("kept", default=None)
_passes = 0
_last_words: list[Callable[[], None]] = []


@contextmanager
def weights_kept() -> Iterator[None]:
    """Context in which no weight changes from the first batch on, so a Dense casts its weights only once.

    That saves a tenth of the time of predicting short texts in bfloat16, on PyTorch and TensorFlow. The copies are
    deleted when no such pass is running any more.
    """
    global _passes
    token = _kept.set({})
    with _lock:
        _passes += 1
    try:
        yield
    finally:
        _kept.reset(token)
        with _lock:  # A pass that begins now waits.
            _passes -= 1
            if not _passes:
                for say in _last_words:
                    say()


def are_weights_kept() -> bool:
    return _kept.get() is not None


def kept(key: Any, read: Read) -> Any:
    """Return `read(key)` for a layer or model `key`, called only once within `weights_kept`."""
    found = _kept.get()
    if found is None:
        return read(key)
    if (key, read) not in found:
        found[key, read] = read(key)
    return found[key, read]


def when_no_pass_is_left(say: Callable[[], None]) -> None:
    """Register a function that is called when a pass ends and no other is running."""
    _last_words.append(say)
