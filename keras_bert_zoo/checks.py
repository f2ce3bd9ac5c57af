"""Checks of arguments, so that every class and function raises the same errors."""

import math
import reprlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np


class NotANumberError(ValueError):
    """A model whose training has diverged predicts NaN."""


def listed(names: Sequence[str]) -> str:
    """Join the first six names and count the others; those that are long or could not be printed are quoted."""
    shown = ", ".join(name if name.isprintable() and len(name) <= 200 else reprlib.repr(name) for name in names[:6])
    return shown if len(names) <= 6 else f"{shown} and {len(names) - 6} more"


def python_number(value: Any) -> Any:
    """Return NumPy's number as Python's, which cannot overflow; Keras' methods take both."""
    return value.item() if isinstance(value, np.generic) else value


def check_positive_int(**arguments: Any) -> None:
    """Check that each keyword holds an integer of at least 1."""
    _check_int("a positive integer", 1, math.inf, arguments)


def check_count(**arguments: Any) -> None:
    """Check that each keyword holds an integer of at least 0."""
    _check_int("an integer of at least 0", 0, math.inf, arguments)


def check_positive(**arguments: Any) -> None:
    """Check that each keyword holds a finite number above 0."""
    for name, value in arguments.items():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not (is_number and 0 < value <= sys.float_info.max):
            raise ValueError(f"`{name}` must be a positive number. Received: {name}={reprlib.repr(value)}")


def check_heads(hidden_dim: int, num_heads: int) -> None:
    """Check that attention's heads have equal widths."""
    check_positive_int(hidden_dim=hidden_dim, num_heads=num_heads)
    if hidden_dim % num_heads:
        raise ValueError(
            f"`num_heads` must divide `hidden_dim`. Received: num_heads={num_heads}, hidden_dim={hidden_dim}"
        )


def check_rate(**arguments: Any) -> None:
    """Check that each keyword holds a number in [0, 1), such as a dropout rate."""
    for name, value in arguments.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
            raise ValueError(f"`{name}` must be a number in [0, 1). Received: {name}={reprlib.repr(value)}")


def check_seed(**arguments: Any) -> None:
    """Check that each keyword holds an integer that can seed random numbers."""
    _check_int("an integer in [0, 2**32)", 0, 2**32, arguments)


def _check_int(expected: str, low: int, stop: float, arguments: dict[str, Any]) -> None:
    for name, value in arguments.items():
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value < stop:
            raise ValueError(f"`{name}` must be {expected}. Received: {name}={reprlib.repr(value)}")


def check_flag(**arguments: Any) -> None:
    """Check that each keyword holds True or False. Other values also count as true or false, but seldom as meant."""
    for name, value in arguments.items():
        if not isinstance(value, bool):
            raise ValueError(f"`{name}` must be True or False. Received: {name}={reprlib.repr(value)}")


def check_position(length: Any, **arguments: Any) -> None:
    """Check that each keyword holds a position in a text of `length` tokens; the length may be unknown."""
    for name, value in arguments.items():
        if value < 0 or (isinstance(length, int) and value >= length):
            raise ValueError(
                f"`{name}` must be at least 0 and below the length. Received: {name}={value}, length {length}"
            )


def check_logits(logits: np.ndarray) -> None:
    """Check that a model predicts numbers, where the greatest counts: with NaN that would be any."""
    if np.isnan(logits).any():
        raise NotANumberError("The model must predict numbers. Received: NaN, as after training that diverged")


def check_trainable(dtype: str) -> None:
    """Check that weights are not in half precision."""
    if dtype in ("bfloat16", "float16"):
        raise ValueError(
            f'`dtype` must be "mixed_{dtype}" to train: half-precision weights lose small updates. '
            f'Received: dtype="{dtype}"'
        )


def refuse_unknown(class_name: str, arguments: dict[str, Any], known: tuple[str, ...] = ()) -> None:
    """Raise a `ValueError` for unknown keywords, which `keras.Model` ignores."""
    unknown = sorted(set(arguments) - set(known))
    if unknown:
        raise ValueError(f"{class_name} has no argument of this name. Received: {', '.join(unknown)}")
