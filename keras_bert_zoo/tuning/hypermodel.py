"""A task as Keras Tuner's search space."""

import math
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_bert_zoo.checks import check_positive_int
from keras_bert_zoo.files import replacing
from keras_bert_zoo.metrics import ValidationScores
from keras_bert_zoo.models.backbone import BertBackbone
from keras_bert_zoo.training import AdamW, WarmupPolynomialDecay
from keras_bert_zoo.tuning.extra import keras_tuner
from keras_bert_zoo.tuning.restarts import Restarts
from keras_bert_zoo.tuning.spaces import PAPER, checked_space, declare

PRESET = "preset"
MODEL = "model.keras"  # In its place, where a preset has none for all of a model.
CHECKPOINT = "checkpoint.weights.h5"  # Keras Tuner's.


class TaskHyperModel(keras_tuner.HyperModel):
    """A search over the fine-tuning of a task, for any of Keras Tuner's tuners.

    Each choice is a value, which stands, or a list, which is searched; the paper's grid unless told otherwise. A
    continuous range goes the way of Keras Tuner: `hyperparameters=` of the tuner, with `hp.Float("learning_rate", …)`.

    A point is trained with each of `restarts` seeds, and its score is the mean after the last epoch, where the rate has
    come down to zero. Each training is kept on disk when it is done, and the best one as a preset, for `best_preset`
    and `save_best`; a trial that is no better than one before it keeps the numbers only. Where a preset has no place
    for all of the task, as for the BiLSTM of `BertFeatureTokenClassifier`, the best one is a `.keras` file. Keras
    Tuner's own checkpoint, behind `get_best_models`, is of the best epoch, and goes with the preset: there is the best
    model, and none to rank after it.

    `epochs=None` is for `Hyperband`, which sets them. A trial that it promotes is trained anew, with more epochs: the
    schedule of the rate spans all of them, so that what was trained with fewer is no beginning of it. Hyperband opens
    the checkpoint of what it promotes all the same, so that with it all trials keep theirs.

    Args:
        task: The class, such as `BertTextClassifier`.
        preset: What to start from: what `from_preset` takes.
        learning_rate: The peak.
        batch_size: Examples an update; of what comes in windows, windows. None leaves it to `search(batch_size=)`.
        epochs: Passes over the training data. None leaves them to Hyperband, or to `search(epochs=)`.
        warmup: Share of the updates spent warming up.
        dropout: Of sub-layers, attention and head; None takes the preset's own.
        seed: Where chance comes from: a fresh head, the order of the examples, dropout.
        restarts: Trainings of a point, with the seeds `seed`, `seed + 1`, ….
        score: Takes the model and gives numbers by name, after each epoch; the objective may be one of them, with
            `val_` before its name. See `ValidationScores`.
        **arguments: Those of `from_preset`, such as `num_classes`, `sequence_length` and `dtype`.

    Example:

    ```python
    hypermodel = TaskHyperModel(BertTextClassifier, "bert_tiny", num_classes=2, restarts=3, **SMALL_MODELS)
    tuner = GridSearch(hypermodel, objective="val_accuracy", directory="sweeps", project_name="sst2")
    tuner.search(train_texts, train_labels, validation_data=(dev_texts, dev_labels))    # goes on if it was killed
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
                "`seed` and those that `restarts` counts from it must be below 2**32. "
                f"Received: seed={seed!r}, restarts={restarts}"
            )
        self._task = task
        self._restarts = restarts
        self._score = None if score is None else ValidationScores(score)
        self._arguments = arguments

    def build(self, hp: Any) -> keras.Model:
        """The compiled task of a point, under its first seed."""
        values = declare(hp, self.space)
        return self._make(values, values["seed"])

    def fit(self, hp: Any, model: keras.Model, *args: Any, callbacks: Any = None, **kwargs: Any) -> Any:
        """Train a point with each of its seeds, or with those that are missing; called by the tuner.

        Returns:
            The mean of each score after the last epoch, and with several seeds its standard deviation, `<name>_std`.
            Called without a tuner it trains `model` alone, as `fit` does.
        """
        values = {name: hp.values[name] for name in self.space}
        options = {**kwargs, **self._fit_options(values, kwargs)}
        options["callbacks"] = [*([self._score] if self._score else []), *(callbacks or [])]
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
        # One that Hyperband promotes comes with weights.
        fresh: keras.Model | None = None if "tuner/trial_id" in hp.values else model
        for seed in range(values["seed"], values["seed"] + self._restarts):
            if seed in done.seeds:
                continue
            trained = fresh if fresh is not None and seed == values["seed"] else self._make(values, seed)
            start = time.perf_counter()
            history = trained.fit(*args, **options).history
            scores = {name: numbers[-1] for name, numbers in history.items()}
            objective = at.tuner.oracle.objective
            if isinstance(objective, keras_tuner.Objective) and not objective.has_value(scores):
                names = [one.name for one in getattr(objective, "objectives", [objective])]
                raise keras_tuner.errors.FatalValueError(
                    f"`objective` must be one of the scores, {sorted(scores)}, or a list of them; those of the dev set "
                    f"need validation_data or score. Received: objective={names if len(names) > 1 else names[0]!r}"
                )
            # Keras Tuner looks for the sum of several objectives by its name.
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
            model = _with_dropout(model, values["dropout"])
        model.compile(AdamW(WarmupPolynomialDecay(values["learning_rate"], values["warmup"])))
        return model

    def _fit_options(self, values: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
        """Batch size and epochs, from the space or from `search`."""
        for name in ("batch_size", "epochs"):
            if name in values and name in given:
                raise keras_tuner.errors.FatalValueError(
                    f"`{name}` must be in the space or come from `search` or Hyperband, not both: pass {name}=None to "
                    f"the hypermodel. Received: {name}={self.space[name]} and {given[name]}"
                )
        options: dict[str, Any] = {name: values[name] for name in ("batch_size", "epochs") if name in values}
        if "initial_epoch" in given:  # Where Hyperband would go on.
            options["initial_epoch"] = 0
        return options


def _with_dropout(model: Any, rate: float) -> Any:
    """The same weights under another rate of dropout, which is part of a layer."""
    rates = {"dropout": rate, "attention_dropout": rate}
    backbone = BertBackbone(**{**model.backbone.architecture, "dtype": model.backbone.embeddings.dtype_policy, **rates})
    config = {name: value for name, value in model.get_config().items() if name not in ("backbone", "preprocessor")}
    if "dropout" in config:
        config["dropout"] = rate
    other = type(model)(backbone, preprocessor=model.preprocessor, **config)
    other.set_weights(model.get_weights())
    return other


def _keep(model: Any, folder: Path) -> None:
    """As a preset, or as a `.keras` file where a preset would lose something."""
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
    if "tuner/epochs" not in hp.values:  # Hyperband opens it when it promotes the trial.
        (folder / CHECKPOINT).unlink(missing_ok=True)


def _is_best(objective: Any, scores: dict[str, float], before: list[dict[str, float]]) -> bool:
    """Whether this is better than the trainings of the same point before it."""
    mine = objective.get_value(scores)
    return all(objective.better_than(mine, objective.get_value(one)) for one in before)


def _is_best_trial(oracle: Any, summary: dict[str, float]) -> bool:
    """Whether this is better than all finished trials."""
    finished = [trial for trial in oracle.get_best_trials(1) if trial.status == "COMPLETED"]
    # In single precision, as the chief of a shared sweep gives scores.
    mine = np.float32(oracle.objective.get_value(summary))
    return all(oracle.objective.better_than(mine, np.float32(trial.score)) for trial in finished)
