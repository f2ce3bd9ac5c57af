"""The activation names of BERT configs and what they compute."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import keras

from keras_bert_zoo.on_cpu import on_cpu

_spelling: ContextVar[Callable[[Any], Any] | None] = ContextVar("spelling", default=None)


def _gelu_tanh(x: Any) -> Any:
    return keras.ops.gelu(x, approximate=True)


def _gelu_erf(x: Any) -> Any:
    if spelling := _spelling.get():
        return spelling(x)
    return _of_erf(x) if keras.backend.backend() == "jax" else keras.ops.gelu(x, approximate=False)


def _gelu_erf_in_training(x: Any) -> Any:
    # Only in training: without a gradient, TensorFlow fuses its own GELU with the matmul before it.
    if keras.backend.backend() != "tensorflow" or not on_cpu(x) or _spelling.get():
        return _gelu_erf(x)
    from keras_bert_zoo.layers.tensorflow_gradient import takes_gradients, with_gradient

    return with_gradient(_of_erf, partial(_gradient_of_erf, x), [x]) if takes_gradients() else _of_erf(x)


def _of_erf(x: Any) -> Any:
    """Return the exact GELU, computed with erf.

    TensorFlow and JAX use erfc, which is several times the work on a CPU. In half precision TensorFlow's erfc also has
    only half the digits.
    """
    wide, _, below = _parts(x)
    return keras.ops.cast(wide * below, x.dtype)


def _gradient_of_erf(x: Any, outer: Any) -> list[Any]:
    """Return the gradient for x: Phi(x) + x phi(x), times the gradient of the output, `outer`.

    TensorFlow's own gradient passes over memory seven times, this one five times: the graph optimizer merges its Phi(x)
    with that of the output.
    """
    _, scaled, below = _parts(x)
    slope = below + scaled * keras.ops.exp(-keras.ops.square(scaled)) * (1 / math.sqrt(math.pi))
    return [keras.ops.cast(keras.ops.cast(outer, slope.dtype) * slope, x.dtype)]


def _parts(x: Any) -> tuple[Any, Any, Any]:
    """Return x, x over the square root of two and Phi(x), in float32 at least."""
    wide = _wide(x)
    scaled = wide * math.sqrt(0.5)
    return wide, scaled, 0.5 * keras.ops.erf(scaled) + 0.5


def gelu_of_products(x: Any) -> Any:
    """Return the exact GELU, in operations that ONNX and LiteRT have; the backends' own GELUs use erfc.

    ONNX Runtime makes one operation of it, with the bias before it, where x is divided as here, but not multiplied.
    """
    return 0.5 * x * (1.0 + keras.ops.erf(x / math.sqrt(2.0)))


def gelu_of_erfc(x: Any) -> Any:
    """Return the exact GELU by erfc: TensorFlow 2.21 does not know the erf operation that JAX 0.10 exports."""
    return keras.ops.cast(keras.ops.gelu(_wide(x), approximate=False), x.dtype)


def _wide(x: Any) -> Any:
    return keras.ops.cast(x, keras.backend.result_type(x.dtype, "float32"))


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
_IN_TRAINING = {"gelu": _gelu_erf_in_training}


def get_activation(name: str, training: bool | None = False) -> Callable[[Any], Any]:
    """Return the function for a config's activation name; an unknown name raises a `ValueError`.

    With `training`, return a version with a faster gradient if there is one.
    """
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise ValueError(f"`activation` must be one of {sorted(ACTIVATIONS)}. Received: activation={name!r}")
    return _IN_TRAINING[name] if training and name in _IN_TRAINING else ACTIVATIONS[name]


@contextmanager
def gelu_spelled(spelling: Callable[[Any], Any]) -> Iterator[None]:
    """Context in which the exact GELU is traced with this implementation."""
    token = _spelling.set(spelling)
    try:
        yield
    finally:
        _spelling.reset(token)
