"""Runs that may be killed at any time and started again: their directory, their state."""

import os
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_bert_zoo.files import read_json, replacing
from keras_bert_zoo.training.distribution import is_chief


def spell_paths(run: Any, *names: str) -> None:
    """Make strings of a frozen dataclass' paths, as `run.json` holds them."""
    for name in names:
        if isinstance(getattr(run, name), os.PathLike):
            object.__setattr__(run, name, os.fspath(getattr(run, name)))


def check_directory(config: Path, run: dict[str, Any]) -> None:
    """Refuse to write into a directory that is neither empty nor that of this run.

    Args:
        config: The file in the directory that holds a run's configuration.
        run: The configuration, as JSON values.
    """
    folder = config.parent
    if config.is_file():
        before = read_json(config)
        different = [name for name in run if before.get(name) != run[name]]
        if different:
            described = ", ".join(f"{name}={run[name]!r}, before {before.get(name)!r}" for name in different)
            raise ValueError(f"`out` must be new, or hold a run of the same configuration. Received: {described}")
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"`out` must be a new or empty directory, or that of a run. Received: out={str(folder)!r}")


class State:
    """All that a run needs to go on, in one file."""

    def __init__(self, model: keras.Model, path: Path) -> None:
        self.path = path
        self._model = model

    def _variables(self) -> dict[str, Any]:
        # Dropout's seed generators are among the model's.
        variables = [*self._model.variables, *self._model.optimizer.variables]
        # By number: the names of seed generators count how many a process has made.
        return {str(number): variable for number, variable in enumerate(variables)}

    def save(self, epochs: int) -> None:
        from safetensors.numpy import save_file

        arrays = {name: keras.ops.convert_to_numpy(variable) for name, variable in self._variables().items()}
        if any(array.dtype.kind == "f" and not np.isfinite(array).all() for array in arrays.values()):
            raise ValueError(f"The weights must be finite. Received: others after epoch {epochs}; {self.last()}")
        if keras.backend.backend() == "torch":
            import torch

            arrays["torch"] = torch.get_rng_state().numpy()
            if torch.cuda.is_available():
                arrays["torch.cuda"] = torch.cuda.get_rng_state().numpy()  # Of the one device that Keras uses.
        if not is_chief():  # The variables are the same on all workers, and to read one they may have to meet.
            return
        contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
        with replacing(self.path) as beside:
            save_file(contiguous, beside, metadata={"epochs": str(epochs), "backend": keras.backend.backend()})

    def restore(self) -> int:
        """Take the state that is there, and return the number of epochs behind it."""
        if not self.path.is_file():
            return 0
        from safetensors import safe_open

        with safe_open(self.path, framework="numpy") as file:
            backend = file.metadata()["backend"]
            if backend != keras.backend.backend():  # Each has random numbers of its own.
                raise ValueError(
                    f"KERAS_BACKEND must be {backend}, on which the run in {self.path.parent} began. "
                    f"Received: {keras.backend.backend()}"
                )
            for name, variable in self._variables().items():
                variable.assign(file.get_tensor(name))
            return int(file.metadata()["epochs"])

    def restore_generator(self) -> None:
        """On PyTorch dropout draws from its one generator, and so does `fit` before the first step."""
        if keras.backend.backend() == "torch" and self.path.is_file():
            import torch
            from safetensors import safe_open

            with safe_open(self.path, framework="numpy") as file:
                torch.set_rng_state(torch.from_numpy(file.get_tensor("torch")))
                if torch.cuda.is_available() and "torch.cuda" in file.keys():  # noqa: SIM118, it is no dict
                    torch.cuda.set_rng_state(torch.from_numpy(file.get_tensor("torch.cuda")))

    def last(self) -> str:
        """Where to go back to, in words."""
        return f"the last state is {self.path}" if self.path.is_file() else "there is no state yet"


class SaveState(keras.callbacks.Callback):
    def __init__(self, state: State) -> None:
        super().__init__()
        self._state = state

    def on_train_begin(self, logs: Any = None) -> None:
        self._state.restore_generator()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._state.save(epoch + 1)


class StopAtNaN(keras.callbacks.Callback):
    """Ends a run whose loss is no number.

    Args:
        state: What the run can go back to.
        epoch_steps: Updates an epoch; None where each batch is one.
    """

    def __init__(self, state: State, epoch_steps: int | None = None) -> None:
        super().__init__()
        self._state = state
        self._epoch_steps = epoch_steps
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        loss = (logs or {}).get("loss")
        if loss is not None and not np.isfinite(loss):
            epoch_steps = self._epoch_steps or self.params["steps"]
            parts = self.params["steps"] // epoch_steps  # Where an update takes several batches.
            step = self._epoch * epoch_steps + batch // parts + 1
            raise ValueError(f"The loss must be finite. Received: {loss} after step {step}; {self._state.last()}")
