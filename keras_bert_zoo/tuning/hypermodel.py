"""A task as a search space of Keras Tuner."""

import math
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_bert_zoo.checks import NotANumberError, check_positive_int
from keras_bert_zoo.files import replacing
from keras_bert_zoo.metrics import ValidationScores
from keras_bert_zoo.models.rebuilt import with_dropout
from keras_bert_zoo.training import AdamW, WarmupPolynomialDecay
from keras_bert_zoo.tuning.extra import keras_tuner
from keras_bert_zoo.tuning.restarts import Restarts
from keras_bert_zoo.tuning.spaces import PAPER, checked_space, declare

PRESET = "preset"
MODEL = "model.keras"  # Used instead if a preset cannot hold the whole model.
CHECKPOINT = "checkpoint.weights.h5"  # Written by Keras Tuner.


class TaskHyperModel(keras_tuner.HyperModel):
    """A search over the fine-tuning of a task, for any of Keras Tuner's tuners.

    Each choice is a fixed value or a list to search; the defaults are the paper's grid. For a continuous range use the
    tuner's `hyperparameters=` with `hp.Float("learning_rate", …)`.

    Each point is trained with `restarts` seeds. Its score is their mean after the last epoch, where the learning rate
    has decayed to zero, or after the epoch whose weights `EarlyStopping(restore_best_weights=True)` restored. Every
    finished training is recorded on disk, and the best one is kept as a preset, for `best_preset` and `save_best`; a
    trial that does not improve on earlier ones keeps only its numbers. If a preset cannot hold the whole task, as with
    the BiLSTM of `BertFeatureTokenClassifier`, the best one is a `.keras` file.
    Keras Tuner's own checkpoint, for `get_best_models`, is of the best epoch and is deleted together with the preset,
    so only the best model is available.

    `epochs=None` is for `Hyperband`, which sets them. A trial that it promotes is trained from the start with more
    epochs, because the learning rate schedule spans all epochs. Hyperband nevertheless opens the checkpoint of a trial
    it promotes, so under Hyperband all trials keep theirs.

    Args:
        task: The class, such as `BertTextClassifier`.
        preset: Preset to start from, as in `from_preset`.
        learning_rate: Peak learning rate.
        batch_size: Number of examples per update, or of windows if inputs are split. None leaves it to
            `search(batch_size=)`.
        epochs: Passes over the training data. None leaves them to Hyperband, or to `search(epochs=)`.
        warmup: Fraction of the updates used for warm-up.
        dropout: Dropout rate of sub-layers, attention and head; None takes the preset's.
        seed: Random seed of the new head, the order of the examples and dropout.
        restarts: Number of trainings of each point, with the seeds `seed`, `seed + 1`, ….
        score: Function from the model to numbers by name, called after each epoch. The objective may be one of them,
            prefixed with `val_`. See `ValidationScores`.
        **arguments: Arguments of `from_preset`, such as `num_classes`, `sequence_length` and `dtype`.

    Example:

    ```python
    hypermodel = TaskHyperModel(BertTextClassifier, "bert_tiny", num_classes=2, restarts=3, **SMALL_MODELS)
    tuner = GridSearch(hypermodel, objective="val_accuracy", directory="sweeps", project_name="sst2")
    tuner.search(train_texts, train_labels, validation_data=(dev_texts, dev_labels))    # resumes if it was killed
    save_best(tuner, "my_sst2")
    write_table(tuner, "sst2.md")
    ```
    """

    def __init__(
        self,
        task: Any,
        preset: str | os.PathLike[str] | Sequence[str],
        learning_rate: float | Sequence[float] = tuple(PAPER["learning_rate"]),
        batch_size: int | Sequence[int] | None = tuple(PAPER["batch_size"]),
        epochs: int | Sequence[int] | None = tuple(PAPER["epochs"]),
        warmup: float | Sequence[float] = 0.1,
        dropout: float | Sequence[float] | None = None,
        seed: int | Sequence[int] = 12345,
        restarts: int = 1,
        score: Callable[[Any], Mapping[str, float]] | None = None,
        **arguments: Any,
    ) -> None:
        check_positive_int(restarts=restarts)
        for name, value in (("preset", preset), ("learning_rate", learning_rate), ("warmup", warmup), ("seed", seed)):
            if value is None:
                raise ValueError(f"`{name}` must be a value or a list of them. Received: {name}=None")
        super().__init__(name=f"{task.__name__}_sweep")
        self.space = checked_space(
            preset=preset,
            learning_rate=learning_rate,
            batch_size=batch_size,
            epochs=epochs,
            warmup=warmup,
            dropout=dropout,
            seed=seed,
        )
        seeds = self.space["seed"]
        if (max(seeds) if isinstance(seeds, list) else seeds) + restarts > 2**32:
            raise ValueError(
                "`seed` + `restarts` must be at most 2**32, as restart i has the seed + i. "
                f"Received: seed={seed!r}, restarts={restarts}"
            )
        self._task = task
        self._restarts = restarts
        self._score = None if score is None else ValidationScores(score)
        self._arguments = arguments

    def build(self, hp: Any) -> keras.Model:
        """Build and compile the task at a point, with its first seed."""
        values = declare(hp, self.space)
        return self._make(values, values["seed"])

    def fit(self, hp: Any, model: keras.Model, *args: Any, callbacks: Any = None, **kwargs: Any) -> Any:
        """Train a point with each of its seeds that is not done yet; called by the tuner.

        Returns:
            The mean of each score of the weights at the end and, with several seeds, its standard deviation as
            `<name>_std`. Without a tuner it trains only `model` and returns what `fit` does.
        """
        values = {name: hp.values[name] for name in self.space}
        options = {**kwargs, **self._fit_options(values, kwargs)}
        logs = _Logs()
        options["callbacks"] = [*([self._score] if self._score else []), *(callbacks or []), logs]
        at = next((one for one in options["callbacks"] if hasattr(one, "trial") and hasattr(one, "tuner")), None)
        if at is None:
            return model.fit(*args, **options)
        if at.tuner.executions_per_trial != 1:
            raise keras_tuner.errors.FatalValueError(
                "`executions_per_trial` must be 1, as `restarts` repeats with other seeds. "
                f"Received: executions_per_trial={at.tuner.executions_per_trial}"
            )
        folder = Path(at.tuner.get_trial_dir(at.trial.trial_id))
        done = Restarts(folder, {**values, "epochs": options.get("epochs"), "batch_size": options.get("batch_size")})
        # A model that Hyperband promotes comes with weights.
        fresh: keras.Model | None = None if "tuner/trial_id" in hp.values else model
        for seed in range(values["seed"], values["seed"] + self._restarts):
            if seed in done.seeds:
                continue
            trained = fresh if fresh is not None and seed == values["seed"] else self._make(values, seed)
            start = time.perf_counter()
            try:
                history = trained.fit(*args, **options).history
            except NotANumberError as error:  # From a score.
                _keep_numbers_only(folder, hp)
                raise keras_tuner.errors.FailedTrialError(f"The loss must be finite. Received: {error}") from None
            scores = {name: numbers[-1] for name, numbers in history.items()} | logs.restored(callbacks or [])
            objective = at.tuner.oracle.objective
            if isinstance(objective, keras_tuner.Objective) and not objective.has_value(scores):
                names = [one.name for one in getattr(objective, "objectives", [objective])]
                raise keras_tuner.errors.FatalValueError(
                    f"`objective` must be one of the scores, {sorted(scores)}, or a list of them; those of the dev set "
                    f"need validation_data or score. Received: objective={names if len(names) > 1 else names[0]!r}"
                )
            # Keras Tuner looks up the sum of several objectives by name.
            scores.setdefault(objective.name, objective.get_value(scores))
            if not math.isfinite(scores["loss"]):
                _keep_numbers_only(folder, hp)
                raise keras_tuner.errors.FailedTrialError(f"The loss must be finite. Received: {scores['loss']}")
            if _is_best(objective, scores, done.scores()):
                _keep(trained, folder)
            done.add(seed, time.perf_counter() - start, scores)
        summary = done.summary()
        if not _is_best_trial(at.tuner.oracle, summary):
            _keep_numbers_only(folder, hp)
        return summary

    def _make(self, values: dict[str, Any], seed: int) -> keras.Model:
        keras.utils.set_random_seed(seed)
        model = self._task.from_preset(values["preset"], **self._arguments)
        if "dropout" in values:
            model = with_dropout(model, values["dropout"], values["dropout"])
        model.compile(AdamW(WarmupPolynomialDecay(values["learning_rate"], values["warmup"])))
        return model

    def _fit_options(self, values: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
        """Return batch size and epochs, from the space or from `search`."""
        for name in ("batch_size", "epochs"):
            if name in values and name in given:
                raise keras_tuner.errors.FatalValueError(
                    f"`{name}` must be in the space or come from `search` or Hyperband, not both: pass {name}=None to "
                    f"the hypermodel. Received: {name}={self.space[name]} and {given[name]}"
                )
        options: dict[str, Any] = {name: values[name] for name in ("batch_size", "epochs") if name in values}
        if "initial_epoch" in given:  # The epoch from which Hyperband would continue.
            options["initial_epoch"] = 0
        return options


class _Logs(keras.callbacks.Callback):
    """Keeps each epoch's scores, because the weights at the end may be those of an earlier epoch."""

    def on_train_begin(self, logs: Any = None) -> None:
        self._by_epoch: dict[int, dict[str, float]] = {}

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._by_epoch[epoch] = dict(logs or {})

    def restored(self, callbacks: Sequence[Any]) -> dict[str, float]:
        """Return the scores of the epoch whose weights a callback restored; none if none did."""
        stopping = [one for one in callbacks if isinstance(one, keras.callbacks.EarlyStopping)]
        epochs = [one.best_epoch for one in stopping if one.restore_best_weights and one.best_weights is not None]
        return self._by_epoch[epochs[-1]] if epochs else {}


def _keep(model: Any, folder: Path) -> None:
    """Save a preset, or a `.keras` file if a preset would lose something."""
    try:
        model.check_preset()
    except ValueError:
        with replacing(folder / MODEL) as beside:
            model.save(beside)
    else:
        model.save_to_preset(folder / PRESET)


def _keep_numbers_only(folder: Path, hp: Any) -> None:
    shutil.rmtree(folder / PRESET, ignore_errors=True)
    (folder / MODEL).unlink(missing_ok=True)
    if "tuner/epochs" not in hp.values:  # Hyperband opens it to promote the trial.
        (folder / CHECKPOINT).unlink(missing_ok=True)


def _is_best(objective: Any, scores: dict[str, float], before: list[dict[str, float]]) -> bool:
    """Whether this is better than all earlier trainings of the same point."""
    mine = objective.get_value(scores)
    return not np.isnan(mine) and all(objective.better_than(mine, objective.get_value(one)) for one in before)


def _is_best_trial(oracle: Any, summary: dict[str, float]) -> bool:
    """Whether this is better than all finished trials."""
    finished = [trial for trial in oracle.get_best_trials(1) if trial.status == "COMPLETED"]
    # In single precision, in which the chief of a shared sweep sends scores.
    mine = np.float32(oracle.objective.get_value(summary))
    return not np.isnan(mine) and all(oracle.objective.better_than(mine, np.float32(trial.score)) for trial in finished)
