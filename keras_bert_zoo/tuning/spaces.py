"""Search spaces: the published grids, and how a choice becomes a hyperparameter."""

import os
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

from keras_bert_zoo.checks import check_positive, check_positive_int, check_rate, check_seed

PAPER: dict[str, Any] = {"learning_rate": [5e-5, 3e-5, 2e-5], "batch_size": [16, 32], "epochs": [2, 3, 4]}
"""Devlin et al. 2019, appendix A.3: 18 points; dropout was 0.1 throughout."""

SMALL_MODELS: dict[str, Any] = {
    "learning_rate": [3e-4, 1e-4, 5e-5, 3e-5],
    "batch_size": [8, 16, 32, 64, 128],
    "epochs": 4,
}
"""google-research/bert, README.md, of the 24 smaller models (BERT tiny to medium): 20 points."""


_CHECKS: dict[str, Callable[..., None]] = {
    "learning_rate": check_positive,
    "batch_size": check_positive_int,
    "epochs": check_positive_int,
    "warmup": check_rate,
    "dropout": check_rate,
    "seed": check_seed,
}
CHOICES = (*_CHECKS, "preset")
_NUMBERS = ("learning_rate", "warmup", "dropout")


def checked_space(**choices: Any) -> dict[str, Any]:
    """Check the choices and return them by name, without those that are None; lists are searched."""
    space = {}
    for name, choice in choices.items():
        if choice is None:
            continue
        several = isinstance(choice, Sequence) and not isinstance(choice, str)
        values = list(choice) if several else [choice]
        kinds = (str, os.PathLike) if name == "preset" else (str, Real)  # A string is refused below.
        if not all(isinstance(value, kinds) for value in values if value is not None or name == "preset"):
            raise ValueError(f"`{name}` must be a value, or a list of them. Received: {name}={choice!r}")
        if not values or len(set(values)) < len(values):
            raise ValueError(f"`{name}` must be a value, or a list of different ones. Received: {name}={choice!r}")
        for value in values:
            if name in _CHECKS:
                _CHECKS[name](**{name: value})
        if name in _NUMBERS:  # Keras Tuner accepts no mixture of integers and floats, such as 0 and 0.1.
            values = [float(value) for value in values]
        elif name == "preset":
            values = [os.fspath(value) for value in values]
        space[name] = values if several else values[0]
    return space


def declare(hp: Any, space: dict[str, Any]) -> dict[str, Any]:
    """Declare the choices as hyperparameters, and return their values."""
    return {
        name: hp.Choice(name, choice) if isinstance(choice, list) else hp.Fixed(name, choice)
        for name, choice in space.items()
    }
