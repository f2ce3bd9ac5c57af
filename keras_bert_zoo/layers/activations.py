"""The activation names of BERT configs and what they compute."""

from collections.abc import Callable
from typing import Any

import keras


def _gelu_tanh(x: Any) -> Any:
    return keras.ops.gelu(x, approximate=True)


def _gelu_erf(x: Any) -> Any:
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


def get_activation(name: str) -> Callable[[Any], Any]:
    """The function behind a config's activation name; a name it does not know is a `ValueError`."""
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise ValueError(f"`activation` must be one of {sorted(ACTIVATIONS)}. Received: activation={name!r}")
    return ACTIVATIONS[name]
