"""Fine-tune a preset on a task's files: a new preset, its scores and its predictions."""

import os
import platform
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

import keras

from keras_bert_zoo.checks import NotANumberError, check_trainable
from keras_bert_zoo.files import check_local, check_out
from keras_bert_zoo.finetuning.curve import draw_curve, train_seconds
from keras_bert_zoo.finetuning.kinds import Data, Scores
from keras_bert_zoo.finetuning.predictions import write_predictions
from keras_bert_zoo.finetuning.run import Run
from keras_bert_zoo.json_files import read_json, typed, write_json
from keras_bert_zoo.metrics import ValidationScores
from keras_bert_zoo.models.loading import preset_digest
from keras_bert_zoo.training import distribute
from keras_bert_zoo.training.runs import SaveState, State, StopAtNaN, check_directory, held, keep_rows

CONFIG, STATE, LOG, CURVE = "run.json", "state.safetensors", "log.csv", "curve.png"
RESULTS, SCORES, PREDICTIONS, PRESET = "results.json", "scores.json", "predictions", "preset"

# Fields of a run that affect an evaluation; the others affect training only.
_OF_AN_EVALUATION = ("task", "preset", "data", "dev", "dtype", "language", "text", "label")


def finetune(run: Run, out: str | os.PathLike[str], verbose: Any = "auto") -> dict[str, Any]:
    """Fine-tune and score, or resume a killed run of the same configuration.

    The state is saved after each epoch, so that a resumed run ends with the same weights as an uninterrupted one if the
    backend's operations are deterministic. The weights are those after the last epoch.

    Args:
        run: The configuration.
        out: Directory of the run: `run.json`, the last state, `log.csv` with the scores of each epoch, and at the end
            `preset/`, `results.json`, the dev set's `predictions/`, and `curve.png` if matplotlib is installed.
        verbose: As in `fit`.

    Returns:
        The contents of `results.json`. A finished run is returned as it is, even if the data files have changed.

    Raises:
        ValueError: A file is not as expected (the message names file and line), `out` holds another run, one under way,
            or an unfinished one that began with other data or another preset, or the loss became NaN or infinite (the
            message names the step and the last state).

    Example:

    ```python
    results = finetune(Run("mrpc", "bert_base", data="glue_data"), "mrpc")
    results["scores"]               # {"accuracy": 0.87, "f1": 0.91}
    ```
    """
    check_local(out=out)
    folder = Path(out)
    check_trainable(run.dtype)
    check_directory(folder / CONFIG, asdict(run))
    if (folder / RESULTS).is_file():
        results = read_json(folder / RESULTS)
        for name, kind in {"task": str, "scores": dict}.items():
            if typed(folder / RESULTS, results, name, kind, None) is None:
                raise ValueError(f"{folder / RESULTS} must be a finished run's. Received: a file without `{name}`")
        return results
    with distribute(run.strategy), ExitStack() as holding:
        return _finetune(run, folder, verbose, holding)


def _finetune(run: Run, folder: Path, verbose: Any, holding: ExitStack) -> dict[str, Any]:
    train, dev, head = run.read_both()
    keras.utils.set_random_seed(run.seed)
    model = run.build(head)
    model.optimizer.build(model.trainable_variables)
    holding.enter_context(held(folder / CONFIG, asdict(run)))
    preset = preset_digest(model)
    state = State(model, folder / STATE, f"{train.digest()} {dev.digest()}", preset=preset)
    done = state.restore()
    score = Score(run, dev)
    if done < run.epochs:  # type: ignore[operator]
        keep_rows(folder / LOG, done)
        callbacks = [
            # Only when training begins: until then the data may be refused and corrected.
            keras.callbacks.LambdaCallback(on_train_begin=lambda logs: write_json(folder / CONFIG, asdict(run))),
            StopAtNaN(state),
            _Seconds(),
            ValidationScores(score),  # Before the state, because it draws random numbers on PyTorch.
            keras.callbacks.CSVLogger(str(folder / LOG), append=done > 0),
            SaveState(state),
        ]
        options = {"batch_size": run.batch_size, "epochs": run.epochs, "initial_epoch": done, "callbacks": callbacks}
        try:
            model.fit(train.x, train.y, verbose=verbose, **options)
        except NotANumberError as error:  # From the scores: the last update of an epoch changes no loss of that epoch.
            raise NotANumberError(f"{error}; {state.last()}") from None
    scores = score.last or score(model)
    model.save_to_preset(folder / PRESET)
    write_predictions(folder / PREDICTIONS, run, model, dev, score.predictions)
    draw_curve(folder / LOG, folder / CURVE, run.recipe.score)
    results = {
        **_described(run, scores, asdict(run)),
        "preset_digest": preset,
        "seed": run.seed,
        "examples": {"train": train.size, "dev": dev.size},
        "train_seconds": train_seconds(folder / LOG),
    }
    write_json(folder / RESULTS, results)  # Last, because it marks the run as finished.
    return results


def evaluate(run: Run, out: str | os.PathLike[str] | None = None, verbose: Any = 0) -> dict[str, Any]:
    """Score a fine-tuned preset on a dev set.

    Args:
        run: The task, the preset, and the files as for `finetune`; the training file is not read.
        out: Directory for `scores.json` and `predictions/`; None to write nothing.
        verbose: As in `keras.Model.predict`; 1 shows a progress bar.

    Returns:
        The contents of `scores.json`: those of `results.json` without what training adds.

    Example:

    ```python
    evaluate(Run("mnli", "mnli/preset", dev="MNLI/dev_mismatched.tsv"))["scores"]       # {"accuracy": 0.83}
    ```
    """
    if out is not None:
        if Path(out).is_file():
            raise ValueError(f"`out` must be a directory. Received: out={str(out)!r}, a file")
        check_out(out, Path(out))
    dev = run.read("dev")
    model = run.load()
    predictions = run.recipe.kind.predict(model, dev, verbose)
    scores = run.recipe.kind.score(model, dev, predictions)
    settings = {name: value for name, value in asdict(run).items() if name in _OF_AN_EVALUATION}
    results = {**_described(run, scores, settings), "examples": {"dev": dev.size}}
    if out is not None:
        write_predictions(Path(out) / PREDICTIONS, run, model, dev, predictions)
        write_json(Path(out) / SCORES, results)
    return results


class Score:
    """Scores a model on the dev set, and keeps the last scores and predictions."""

    def __init__(self, run: Run, dev: Data) -> None:
        self._kind = run.recipe.kind
        self._dev = dev
        self.predictions: Any = None
        self.last: Scores = {}

    def __call__(self, model: keras.Model) -> Scores:
        self.predictions = self._kind.predict(model, self._dev)
        self._kind.tune(model, self._dev, self.predictions)
        self.last = self._kind.score(model, self._dev, self.predictions)
        return self.last


class _Seconds(keras.callbacks.Callback):
    """Adds the training time of each epoch to the logs, in seconds."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._start = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if logs is not None:
            logs["seconds"] = time.perf_counter() - self._start


def _described(run: Run, scores: Scores, settings: dict[str, Any]) -> dict[str, Any]:
    backend = keras.backend.backend()
    # JSON has no NaN, which is the correlation with a constant.
    kept = {name: value if isfinite(value) else None for name, value in scores.items()}
    return {
        "task": run.task,
        "score": {run.recipe.score: kept[run.recipe.score]},
        "scores": kept,
        "run": settings,
        "versions": {
            "keras_bert_zoo": sys.modules["keras_bert_zoo"].__version__,
            "python": platform.python_version(),
            "keras": keras.__version__,
            backend: sys.modules[backend].__version__,
        },
    }
