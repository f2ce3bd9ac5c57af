"""BERT's initial weights, sampled only if no checkpoint overwrites them."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import keras

_are_loaded = ContextVar("are_loaded", default=False)


@contextmanager
def weights_are_loaded(loaded: bool) -> Iterator[None]:
    """Context in which `Normal` samples nothing if `loaded`, as a checkpoint then overwrites the weights.

    Sampling BERT base takes as long as reading it, and twice as long on PyTorch.
    """
    token = _are_loaded.set(loaded)
    try:
        yield
    finally:
        _are_loaded.reset(token)


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class Normal(keras.initializers.TruncatedNormal):
    """BERT's truncated normal (google-research/bert, modeling.py: create_initializer)."""

    def __call__(self, shape: Any, dtype: Any = None) -> Any:
        if _are_loaded.get():
            return keras.ops.zeros(shape, dtype)
        values = super().__call__(shape, dtype)
        if keras.backend.backend() == "torch":  # There Keras draws four times and keeps what is still outside.
            values = keras.ops.clip(values, self.mean - 2 * self.stddev, self.mean + 2 * self.stddev)
        return values
