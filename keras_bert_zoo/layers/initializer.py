"""BERT's first weights, drawn only where they stay."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import keras

_are_loaded = ContextVar("are_loaded", default=False)


@contextmanager
def weights_are_loaded(loaded: bool) -> Iterator[None]:
    """Within, if `loaded`, a `Normal` draws nothing, as a checkpoint overwrites what it would be.

    To draw BERT base takes as long as to read it, on PyTorch twice as long.
    """
    token = _are_loaded.set(loaded)
    try:
        yield
    finally:
        _are_loaded.reset(token)


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class Normal(keras.initializers.TruncatedNormal):
    """The original's truncated normal (google-research/bert, modeling.py: create_initializer)."""

    def __call__(self, shape: Any, dtype: Any = None) -> Any:
        if _are_loaded.get():
            return keras.ops.zeros(shape, dtype)
        return super().__call__(shape, dtype)
