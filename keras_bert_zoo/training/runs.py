"""Directory and state of runs that may be killed at any time and restarted."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin

import keras
import numpy as np

from keras_bert_zoo.files import is_empty, names_tensors, replacing
from keras_bert_zoo.json_files import read_json
from keras_bert_zoo.training.distribution import is_chief

try:
    import fcntl
except ImportError:  # On Windows.
    fcntl = None  # type: ignore[assignment]


def spell_paths(run: Any, *names: str) -> None:
    """Convert a frozen dataclass' paths to strings, as `run.json` holds them."""
    for name in names:
        if isinstance(getattr(run, name), os.PathLike):
            object.__setattr__(run, name, os.fspath(getattr(run, name)))


def check_types(run: Any) -> None:
    """Reject values of a frozen dataclass that are not of their field's type, as values from JSON may be."""
    for field in fields(run):
        hint, value = field.type, getattr(run, field.name)
        kinds = [get_origin(kind) or kind for kind in (get_args(hint) if isinstance(hint, UnionType) else (hint,))]
        if float in kinds:
            kinds.append(int)
        if not isinstance(value, tuple(kinds)) or (isinstance(value, bool) and bool not in kinds):
            kind = getattr(hint, "__name__", str(hint))
            raise ValueError(f"`{field.name}` must be of type {kind}. Received: {field.name}={value!r}")


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
    elif folder.exists() and not (folder.is_dir() and is_empty(folder)):
        raise ValueError(f"`out` must be a new or empty directory, or that of a run. Received: out={str(folder)!r}")


@contextmanager
def held(config: Path, run: dict[str, Any]) -> Iterator[None]:
    """Make a run's directory and keep other processes from starting in it; remove it if it is new and stays empty.

    Windows and some network file systems cannot lock it: there, a second start is not noticed.

    Args:
        config, run: As in `check_directory`.
    """
    folder = config.parent
    new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    lock = None if fcntl is None else os.open(folder, os.O_RDONLY)
    try:
        try:
            if lock is not None:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            new = False  # It belongs to the other process.
            raise ValueError(f"`out` must not be in use by another process. Received: out={str(folder)!r}") from None
        except OSError:  # The file system has no locks.
            pass
        check_directory(config, run)
        yield
    finally:
        if new:
            with suppress(OSError):
                folder.rmdir()
        if lock is not None:
            os.close(lock)


def whole_rows(log: Path) -> list[str]:
    """Return the lines of a log, except an incomplete last one."""
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True)
    # On Windows, Keras' CSVLogger ends lines with two carriage returns, which are read as an empty line.
    return [line for line in lines if line.endswith("\n") and line.strip()]


def keep_rows(log: Path, count: int) -> None:
    """Truncate a log to its first `count` epochs: it may have one more than the state."""
    if log.is_file():
        lines = whole_rows(log)
        with replacing(log) as beside:
            beside.write_text("".join(lines[: count + 1]), encoding="utf-8", newline="")


def check_backend(began: str, what: str) -> None:
    """Refuse to resume on a backend other than the one it began on: each has its own random numbers."""
    backend = keras.backend.backend()
    if began != backend:
        raise ValueError(f"KERAS_BACKEND must be {began}, the backend on which {what} began. Received: {backend}")


class State:
    """Everything that a run needs in order to continue, in one file.

    Args:
        model: The compiled model.
        path: The file.
        data: Identifies the run's data, so that other data in its place are noticed.
        epoch_steps: Updates per epoch, if errors are to name the step; None if each batch is an update.
        preset: Identifies what the run starts from.
    """

    def __init__(
        self, model: keras.Model, path: Path, data: str, epoch_steps: int | None = None, preset: str = ""
    ) -> None:
        self.path = path
        self.epoch_steps = epoch_steps
        self._model = model
        self._data = data
        self._preset = preset

    def _variables(self) -> dict[str, Any]:
        # The model's variables include dropout's seed generators.
        variables = [*self._model.variables, *self._model.optimizer.variables]
        # By number: names of seed generators depend on how many the process has created.
        return {str(number): variable for number, variable in enumerate(variables)}

    def save(self, epochs: int) -> None:
        from safetensors.numpy import save_file

        arrays = {name: keras.ops.convert_to_numpy(variable) for name, variable in self._variables().items()}
        if any(array.dtype.kind == "f" and not np.isfinite(array).all() for array in arrays.values()):
            place = f"epoch {epochs}" if self.epoch_steps is None else f"step {epochs * self.epoch_steps}"
            raise ValueError(
                f"The weights must be finite. Received: infinite or NaN values after {place}; {self.last()}"
            )
        if keras.backend.backend() == "torch":
            import torch

            arrays["torch"] = torch.get_rng_state().numpy()
            if torch.cuda.is_available():
                arrays["torch.cuda"] = torch.cuda.get_rng_state().numpy()  # Of the one device that Keras uses.
        if not is_chief():  # All workers have the same variables, but reading one may need all workers.
            return
        contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
        for left in self.path.parent.glob(".tmp??????"):  # Left by safetensors in a process that was killed.
            left.unlink(missing_ok=True)
        with replacing(self.path) as beside, names_tensors(self.path):
            about = {
                "epochs": str(epochs),
                "backend": keras.backend.backend(),
                "data": self._data,
                "preset": self._preset,
            }
            save_file(contiguous, beside, metadata=about)

    def restore(self) -> int:
        """Load the saved state, if there is one, and return the number of finished epochs."""
        if not self.path.is_file():
            return 0
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.path, framework="numpy") as file:
                about = file.metadata() or {}
                self._check(about)
                for name, variable in self._variables().items():
                    variable.assign(file.get_tensor(name))
                return int(about["epochs"])
        except (SafetensorError, KeyError) as error:
            raise ValueError(f"{self.path} must be the state of this run. Received: {error}") from None

    def _check(self, about: dict[str, str]) -> None:
        check_backend(about["backend"], f"the run in {self.path.parent}")
        if about["data"] != self._data:
            raise ValueError(
                f"The data of the run in {self.path.parent} must be the data that it began with. "
                "Received: different data"
            )
        if about["preset"] != self._preset:
            raise ValueError(
                f"The preset of the run in {self.path.parent} must be the one it began with. "
                "Received: a different tokenizer, model or weights"
            )

    def restore_generator(self) -> None:
        """Restore PyTorch's global generator, which dropout uses, as does `fit` before the first step."""
        if keras.backend.backend() == "torch" and self.path.is_file():
            import torch
            from safetensors import safe_open

            with safe_open(self.path, framework="numpy") as file:
                torch.set_rng_state(torch.from_numpy(file.get_tensor("torch")))
                if torch.cuda.is_available() and "torch.cuda" in file.keys():  # noqa: SIM118, it is no dict
                    torch.cuda.set_rng_state(torch.from_numpy(file.get_tensor("torch.cuda")))

    def last(self) -> str:
        """Describe the last saved state."""
        return f"the last state is {self.path}" if self.path.is_file() else "there is no state yet"


class SaveState(keras.callbacks.Callback):
    """Save the state after each epoch, and restore PyTorch's generator from it.

    Args:
        state: The state.
        stream: Whether the data are opened once per run, not once per epoch. PyTorch's loader then uses the generator;
            in an uninterrupted run it did so before the state was saved.
    """

    def __init__(self, state: State, stream: bool = False) -> None:
        super().__init__()
        self._state = state
        self._stream = stream
        self._opened = False

    def on_train_begin(self, logs: Any = None) -> None:
        if not self._stream:
            self._state.restore_generator()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._stream and not self._opened:
            self._opened = True
            self._state.restore_generator()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._state.save(epoch + 1)


def batches_done(callback: keras.callbacks.Callback, batch: int) -> int:
    """Return an epoch's batches so far, at `on_train_batch_end`: Keras counts an incomplete last execution as full."""
    return min(batch + 1, callback.params["steps"])


class StopAtNaN(keras.callbacks.Callback):
    """End a run whose loss is not finite.

    Args:
        state: The state that the run can return to.
    """

    # Otherwise Keras would wait for each step's loss before it starts the next step. As a result, an error ends `fit` a
    # little later.
    async_safe = True

    def __init__(self, state: State) -> None:
        super().__init__()
        self._state = state
        self._epoch = 0
        self._first: int | None = None  # First step without a finite loss: later ones may be seen before it.

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        loss = (logs or {}).get("loss")
        if loss is not None and not np.isfinite(loss):
            epoch_steps = self._state.epoch_steps or self.params["steps"]
            parts = self.params["steps"] // epoch_steps  # More than 1 where an update takes several batches.
            step = self._epoch * epoch_steps + (batches_done(self, batch) - 1) // parts + 1
            self._first = min(step, self._first or step)
            raise ValueError(
                f"The loss must be finite. Received: {loss} after step {self._first}; {self._state.last()}"
            )
