"""The activation names of BERT configs and what they compute."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import keras

from keras_bert_zoo.layers.on_cpu import on_cpu

_spelled_out = ContextVar("spelled_out", default=False)


def _gelu_tanh(x: Any) -> Any:
    return keras.ops.gelu(x, approximate=True)


def _gelu_erf(x: Any, training: bool | None = False) -> Any:
    if _spelled_out.get():
        return 0.5 * x * (1.0 + keras.ops.erf(x * math.sqrt(0.5)))
    # TensorFlow computes erfc, on a CPU several times the work of erf, and in half precision with half its digits.
    # Without a gradient it fuses its own with the product before it.
    if keras.backend.backend() == "tensorflow" and training and on_cpu(x):
        wide = keras.ops.cast(x, keras.backend.result_type(x.dtype, "float32"))
        return keras.ops.cast(wide * (0.5 * keras.ops.erf(wide * math.sqrt(0.5)) + 0.5), x.dtype)
    return keras.ops.gelu(x, approximate=False)


# "gelu" is the exact (erf) form, as in every Hugging Face config; the tanh form has two names there.
ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "gelu": _gelu_erf,
    "gelu_new": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "relu": keras.ops.relu,
    "silu": keras.ops.silu,
    "swish": keras.ops.silu,
    "tanh": keras.ops.tanh,
}


def get_activation(name: str, training: bool | None = False) -> Callable[[Any], Any]:
    """The function behind a config's activation name; a name it does not know is a `ValueError`.

    With `training` one whose gradient is quick, where that is another.
    """
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise ValueError(f"`activation` must be one of {sorted(ACTIVATIONS)}. Received: activation={name!r}")
    function = ACTIVATIONS[name]
    return partial(function, training=True) if training and function is _gelu_erf else function


@contextmanager
def gelu_spelled_out() -> Iterator[None]:
    """What is traced within has the exact GELU in operations that ONNX and LiteRT have; the backends' use erfc."""
    token = _spelled_out.set(True)
    try:
        yield
    finally:
        _spelled_out.reset(token)
