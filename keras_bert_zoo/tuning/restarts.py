"""The trainings of a trial, from which mean and standard deviation are computed."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from keras_bert_zoo.json_files import read_json, write_json

_FILE = "restarts.json"


class Restarts:
    """The trainings of one point with several seeds, stored in a file of the trial's directory.

    Each is written as soon as it is done, so that a killed trial continues with the next one.

    Args:
        folder: The trial's directory.
        values: The trial's hyperparameters; a file left by a trial with other values is ignored.
    """

    def __init__(self, folder: Path, values: dict[str, Any] | None = None) -> None:
        self._path = folder / _FILE
        self._values = values
        self.done: list[dict[str, Any]] = []
        if self._path.is_file():
            before = read_json(self._path)
            if values is None or before["values"] == values:
                self.done = before["restarts"]

    def add(self, seed: int, seconds: float, scores: dict[str, float]) -> None:
        # JSON has no NaN, which is the correlation with a constant.
        kept = {name: float(value) if math.isfinite(value) else None for name, value in scores.items()}
        self.done.append({"seed": seed, "seconds": round(seconds, 3), "scores": kept})
        write_json(self._path, {"values": self._values, "restarts": self.done})

    @property
    def seeds(self) -> set[int]:
        return {restart["seed"] for restart in self.done}

    @property
    def seconds(self) -> float:
        return sum(restart["seconds"] for restart in self.done)

    def scores(self) -> list[dict[str, float]]:
        """Return the scores of each training."""
        return [
            {name: math.nan if value is None else value for name, value in restart["scores"].items()}
            for restart in self.done
        ]

    def summary(self) -> dict[str, float]:
        """Return the mean of each score and, with several seeds, its standard deviation as `<name>_std`."""
        rows = self.scores()
        numbers = {name: [row[name] for row in rows] for name in rows[0]}
        means = {name: float(np.mean(values)) for name, values in numbers.items()}
        return means | {f"{name}_std": spread(values) for name, values in numbers.items() if len(values) > 1}


def spread(values: list[float]) -> float:
    """Return the sample standard deviation of `values`."""
    return float(np.std(values, ddof=1))
