"""Sweep over hyperparameters on a task's official files, and keep the best preset."""

import logging
import math
import os
import time
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import keras

from keras_bert_zoo.checks import check_positive_int, check_trainable, listed
from keras_bert_zoo.files import check_local
from keras_bert_zoo.finetuning import Run
from keras_bert_zoo.finetuning.finetune import Score
from keras_bert_zoo.json_files import read_json, write_json
from keras_bert_zoo.models.loading import preset_digest
from keras_bert_zoo.training.runs import check_backend, check_directory, held
from keras_bert_zoo.tuning.spaces import CHOICES, PAPER, SMALL_MODELS, checked_space

GRIDS = {"paper": PAPER, "small": SMALL_MODELS}
SEARCHES = ("grid", "random", "bayesian", "hyperband")
# Seconds to wait for the chief, as Keras Tuner's workers do.
_PATIENCE = 3600
# Keras Tuner treats 0 as no seed, and would then draw another one for each search.
_SEED_FOR_0 = 2**31
CONFIG, RESULTS, TRIALS, PRESET = "sweep.json", "results.json", "trials", "preset"

_logger = logging.getLogger("keras_bert_zoo")


def tune(
    run: Run,
    out: str | os.PathLike[str],
    grid: str = "paper",
    search: str = "grid",
    trials: int | None = None,
    restarts: int = 1,
    verbose: Any = "auto",
    **choices: Any,
) -> dict[str, Any] | None:
    """Search for a task's best hyperparameters on its dev set, or resume a killed sweep.

    Several processes can share a sweep in Keras Tuner's way. Make the same call in each, with `KERASTUNER_ORACLE_IP`,
    `KERASTUNER_ORACLE_PORT` and `KERASTUNER_TUNER_ID` in the environment. The id is `chief` in one of them, which
    trains nothing, and a different name in each of the others. All must see `out`. Restart a dead worker under its own
    name, because the chief waits for its trial.

    Args:
        run: The task, its files, and the values that are not searched. Its batch size, learning rate and epochs are
            replaced by the grid's.
        out: Directory of the sweep: `sweep.json`, Keras Tuner's `trials/`, and at the end the best trial's `preset/`,
            `results.json`, `table.csv`, `table.md`, and `sweep.png` if matplotlib is installed.
        grid: `"paper"` or, for models smaller than BERT base, `"small"`: `tuning.PAPER`, `tuning.SMALL_MODELS`.
        search: `"grid"` for all points, `"random"`, `"bayesian"`, or `"hyperband"` up to the most epochs of the space,
            which must have at least as many points as Hyperband's first round (5 for 4 epochs, 12 for 10).
        trials: Number of points to try; by default all of a grid, or 10 of a random or Bayesian search.
        restarts: Number of trainings of each point, with different seeds.
        verbose: As in `fit`; 0 also silences Keras Tuner.
        **choices: Override the grid's and the run's values: `learning_rate`, `batch_size`, `epochs`, `warmup`,
            `dropout`, `preset` and `seed` of `TaskHyperModel`.

    Returns:
        The contents of `results.json`: the task, the objective, and the table's rows, best first. None in a worker of a
        shared sweep.

    Raises:
        ValueError: A file is not as expected, `out` holds another sweep, one under way, or an unfinished one that began
            with other data, other presets or on another backend, Keras Tuner is missing, or trials failed. In the last
            case the results of the others are in `out`, without `results.json`, and the same call retries the failed
            trials. Trials whose loss was NaN or infinite are not retried: they have no score, and the log says so.

    Example:

    ```python
    results = tune(Run("mrpc", "bert_base", data="glue_data"), "sweep", restarts=5)
    results["rows"][0]              # {"learning_rate": 2e-5, "batch_size": 16, …, "val_accuracy": 0.87, "std": 0.01, …}
    ```
    """
    from keras_bert_zoo.tuning.extra import keras_tuner
    from keras_bert_zoo.tuning.hypermodel import TaskHyperModel

    check_local(out=out)
    _check(run, grid, search, trials, restarts, choices)
    space = checked_space(**{"preset": run.preset, "warmup": run.warmup, "seed": run.seed, **GRIDS[grid], **choices})
    most_epochs = max(_values(space["epochs"]))
    if search == "hyperband":
        _check_bands(space, most_epochs)
    fixed = {name: value for name, value in asdict(run).items() if name not in space}
    config = {**fixed, "space": space, "search": search, "trials": trials, "restarts": restarts}
    folder = Path(out)
    if (folder / RESULTS).is_file():
        check_directory(folder / CONFIG, config)
        return read_json(folder / RESULTS)
    train, dev, head = run.read_both()
    config |= {
        "train_digest": train.digest(),
        "dev_digest": dev.digest(),
        "backend": keras.backend.backend(),
    }
    _check_same_sweep(folder, config)
    task, arguments = run.recipe.kind.model_class, {"sequence_length": run.sequence_length, "dtype": run.dtype, **head}
    config["preset_digests"] = {  # This also finds a wrong preset before its trials do.
        preset: preset_digest(task.from_preset(preset, **arguments)) for preset in _values(space["preset"])
    }
    check_directory(folder / CONFIG, config)
    hypermodel = TaskHyperModel(
        task,
        score=Score(run, dev),
        restarts=restarts,
        **space | ({"epochs": None} if search == "hyperband" else {}),
        **arguments,
    )
    with nullcontext() if _is_worker() else held(folder / CONFIG, config):
        if not _is_worker():
            write_json(folder / CONFIG, config)  # Only once the configuration is known to be valid.
        limit = {"max_epochs": most_epochs} if search == "hyperband" else {"max_trials": trials or 10}
        tuner = _tuner_class(search)(
            hypermodel,
            objective=keras_tuner.Objective(f"val_{run.recipe.score}", "max"),
            seed=run.seed or _SEED_FOR_0,
            directory=folder,
            project_name=TRIALS,
            # Neighbouring points may all be too large for the memory, and the chief would not survive a failed search.
            max_consecutive_failed_trials=math.inf,
            **({} if search == "grid" and trials is None else limit),
        )
        tuner.search(train.x, train.y, verbose=verbose)
        return None if _is_worker() else _finish(tuner, folder, run.task, config)


def _check(run: Run, grid: str, search: str, trials: int | None, restarts: int, choices: dict[str, Any]) -> None:
    for name, value, known in (("grid", grid, tuple(GRIDS)), ("search", search, SEARCHES)):
        if value not in known:
            raise ValueError(f"`{name}` must be one of {known}. Received: {name}={value!r}")
    check_positive_int(restarts=restarts, **({} if trials is None else {"trials": trials}))
    check_trainable(run.dtype)
    if trials is not None and search == "hyperband":
        raise ValueError(f"`trials` must be None for hyperband, which counts epochs. Received: trials={trials}")
    for name, value in choices.items():
        if name not in CHOICES:
            raise ValueError(f"A choice must be one of {CHOICES}; the rest is the run's. Received: {name}={value!r}")
        if value is None and name != "dropout":
            raise ValueError(f"`{name}` must be a value or a list of them. Received: {name}=None")
    if run.strategy is not None:
        raise ValueError(
            "`strategy` must be None: the trials of a sweep are what many devices share. "
            f"Received: strategy={run.strategy!r}"
        )


def _values(choice: Any) -> list[Any]:
    return choice if isinstance(choice, list) else [choice]


def _check_same_sweep(folder: Path, config: dict[str, Any]) -> None:
    """Refuse a directory of another sweep; a worker waits until the chief has made it."""
    if _is_worker():
        _wait_for(folder / CONFIG)
    if (folder / CONFIG).is_file():
        check_backend(read_json(folder / CONFIG).get("backend", config["backend"]), f"the sweep in {folder}")
    check_directory(folder / CONFIG, config)


def _finish(tuner: Any, folder: Path, task: str, config: dict[str, Any]) -> dict[str, Any]:
    """Write what the trials have found."""
    from keras_bert_zoo.tuning.hypermodel import CHECKPOINT
    from keras_bert_zoo.tuning.results import draw_sweep, save_best, table, write_table

    if any(trial.status == "COMPLETED" for trial in tuner.oracle.trials.values()):
        save_best(tuner, folder / PRESET)
        for name in ("table.csv", "table.md"):
            write_table(tuner, folder / name)
        draw_sweep(tuner, folder / "sweep.png")
    _report_failures(tuner)
    for checkpoint in (folder / TRIALS).glob(f"trial_*/{CHECKPOINT}"):
        checkpoint.unlink()  # Each is as large as a preset, and nothing opens it any more.
    results = {"task": task, "objective": tuner.oracle.objective.name, "rows": table(tuner), "sweep": config}
    write_json(folder / RESULTS, results)  # Last, because it marks the sweep as finished.
    return results


def _report_failures(tuner: Any) -> None:
    """Refuse to call a sweep complete if trials can be retried or none has a score."""
    from keras_bert_zoo.tuning.failures import failures, reasons

    failed, total = failures(tuner), len(tuner.oracle.trials)
    passing = {trial_id: failure for trial_id, failure in failed.items() if failure.passing}
    if passing:
        raise ValueError(
            "All trials must finish; run the same sweep again to retry those that failed. "
            f"Received: {len(passing)} of {total} failed: {reasons(passing)}"
        )
    if len(failed) == total:
        raise ValueError(f"A trial must have a score. Received: none of {total}: {reasons(failed)}")
    if failed:
        _logger.warning("%d of %d trials have no score: %s", len(failed), total, reasons(failed))


def _check_bands(space: dict[str, Any], most_epochs: int) -> None:
    """Refuse too few points for Hyperband's first round: Keras Tuner would end after it, with all trials cut short."""
    from keras_bert_zoo.tuning.extra import keras_tuner

    oracle = keras_tuner.oracles.HyperbandOracle(max_epochs=most_epochs)
    fewest = oracle._get_size(oracle._get_num_brackets() - 1, 0)
    points = math.prod(len(values) for name, values in space.items() if name != "epochs" and isinstance(values, list))
    if points < fewest:
        raise ValueError(
            f"`search` must not be hyperband with fewer than {fewest} points for {most_epochs} epochs. "
            f"Received: {points} points"
        )


def _is_worker() -> bool:
    """Whether another process, the chief, chooses the trials."""
    names = ("KERASTUNER_ORACLE_IP", "KERASTUNER_ORACLE_PORT", "KERASTUNER_TUNER_ID")
    if names[0] not in os.environ:
        return False
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise ValueError(f"A shared sweep needs all of {listed(names)} in the environment. Received: no {missing[0]}")
    return "chief" not in os.environ[names[2]]


def _wait_for(config: Path) -> None:
    """Wait for the chief's configuration, so that processes started together do not see a half-made directory."""
    end = time.monotonic() + _PATIENCE
    while not config.is_file():
        if time.monotonic() > end:
            raise ValueError(f"`out` must be the chief's directory. Received: no {config} for an hour")
        time.sleep(0.2)


def _tuner_class(search: str) -> Any:
    from keras_bert_zoo.tuning.extra import keras_tuner
    from keras_bert_zoo.tuning.grid import GridSearch
    from keras_bert_zoo.tuning.resuming import Resuming

    if search == "grid":
        return GridSearch
    theirs = {
        "random": keras_tuner.RandomSearch,
        "bayesian": keras_tuner.BayesianOptimization,
        "hyperband": keras_tuner.Hyperband,
    }[search]
    return type(theirs.__name__, (Resuming, theirs), {})
