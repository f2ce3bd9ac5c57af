"""Results of a sweep: the best preset, a table, a plot."""

import csv
import io
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from keras_bert_zoo.checkpoints.huggingface import CONFIG, OPTIONAL
from keras_bert_zoo.checkpoints.huggingface import PRESET as MARKER
from keras_bert_zoo.checkpoints.model_card import CARD, is_written_by_hand
from keras_bert_zoo.files import replacing, write_directory
from keras_bert_zoo.finetuning.curve import can_draw, write_figure
from keras_bert_zoo.tuning.failures import failures, reasons
from keras_bert_zoo.tuning.hypermodel import MODEL, PRESET
from keras_bert_zoo.tuning.restarts import Restarts, spread


def best_preset(tuner: Any) -> Path:
    """Return the path of the best trial's preset, from its best restart after the last epoch.

    If a preset cannot hold the task, it is a `.keras` file; see `TaskHyperModel`.
    """
    for trial in _ranked(tuner):  # Of several equally good trials one has a preset.
        for path in (Path(tuner.get_trial_dir(trial.trial_id)) / name for name in (PRESET, MODEL)):
            if trial.status == "COMPLETED" and path.exists():
                return path
    failed = failures(tuner)
    raise ValueError(
        f"`tuner` must have finished a trial of a TaskHyperModel. Received: {tuner.project_dir!r} without one"
        + (f"; failed: {reasons(failed)}" if failed else "")
    )


def save_best(tuner: Any, path: str | os.PathLike[str]) -> None:
    """Copy the best trial's preset to a directory, or its `.keras` file to a file, completely or not at all."""
    source = best_preset(tuner)
    if source.is_file():
        if Path(path).suffix != source.suffix:
            raise ValueError(
                "`path` must end in .keras, as a preset cannot store all of this task. "
                f"Received: path={os.fspath(path)!r}"
            )
        with replacing(Path(path)) as beside:
            shutil.copyfile(source, beside)
        return

    def copy(folder: Path) -> None:
        card = shutil.ignore_patterns(CARD) if is_written_by_hand(Path(path) / CARD) else None
        shutil.copytree(source, folder, dirs_exist_ok=True, ignore=card)

    write_directory(path, MARKER, OPTIONAL, copy, opened_by=CONFIG)


def table(tuner: Any) -> list[dict[str, Any]]:
    """Return a row for each trial, the best first.

    Returns:
        Dicts with the trial's number, its status, its hyperparameters, the mean of the objective under the objective's
        name, the standard deviation over the restarts as `std` (None for fewer than two), the best value, the number of
        restarts, and their duration in seconds, including scoring on the dev set.
    """
    objective = tuner.oracle.objective
    best = max if objective.direction == "max" else min
    rows = []
    for trial in _ranked(tuner):
        restarts = Restarts(Path(tuner.get_trial_dir(trial.trial_id)))
        scores = [objective.get_value(one) for one in restarts.scores()] if trial.status == "COMPLETED" else []
        values = dict(trial.hyperparameters.values)
        if "tuner/epochs" in values:  # The other values that Hyperband stores are internal.
            values["epochs"] = values["tuner/epochs"]
        rows.append(
            {
                "trial": trial.trial_id,
                "status": trial.status,
                **{name: value for name, value in values.items() if not name.startswith("tuner/")},
                objective.name: float(np.mean(scores)) if scores else None,
                "std": spread(scores) if len(scores) > 1 else None,
                "best": best(scores) if scores else None,
                "restarts": len(restarts.done),
                "seconds": round(restarts.seconds, 1),
            }
        )
    return rows


def _ranked(tuner: Any) -> list[Any]:
    """Return the trials, best first, the earliest first among equals, and those without a score last."""
    trials = sorted(tuner.oracle.get_best_trials(1_000_000), key=lambda trial: trial.trial_id)
    done = [trial for trial in trials if trial.status == "COMPLETED"]
    done.sort(key=lambda trial: trial.score, reverse=tuner.oracle.objective.direction == "max")
    return done + [trial for trial in trials if trial.status != "COMPLETED"]


def write_table(tuner: Any, path: str | os.PathLike[str]) -> None:
    """Write the table as CSV or Markdown (`.csv`, `.md`)."""
    target = Path(path)
    if target.suffix not in (".csv", ".md"):
        raise ValueError(f"`path` must end in .csv or .md. Received: path={str(path)!r}")
    rows = table(tuner)
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [["" if row.get(name) is None else _written(row[name]) for name in names] for row in rows]
    text = io.StringIO()
    if target.suffix == ".csv":
        csv.writer(text, lineterminator="\n").writerows([names, *cells])
    else:
        for line in (names, ["---"] * len(names), *cells):
            text.write("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n")
    with replacing(target) as beside:
        beside.write_text(text.getvalue(), encoding="utf-8", newline="")


def _written(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _labels(values: list[Any]) -> list[str]:
    """Return tick labels; paths are shortened to their last part if that is unambiguous."""
    labels = [_written(value) for value in values]
    last = [os.path.basename(label.rstrip("/")) for label in labels]
    return last if len(set(last)) == len(last) else labels


def draw_sweep(tuner: Any, path: str | os.PathLike[str]) -> None:
    """Draw the objective against the searched hyperparameters; without matplotlib log a warning instead.

    There is one panel per hyperparameter. A point is a trial's mean, its bar the standard deviation over the restarts,
    and the ring marks the best trial.
    """
    if not can_draw("the sweep"):
        return
    from matplotlib.figure import Figure

    name = tuner.oracle.objective.name
    rows = [row for row in table(tuner) if row["status"] == "COMPLETED"]
    if not rows:
        raise ValueError(f"`tuner` must have finished a trial. Received: {tuner.project_dir!r} without one")
    swept = [key for key in list(rows[0])[2 : list(rows[0]).index(name)] if len({row.get(key) for row in rows}) > 1]
    figure = Figure(figsize=(4 * max(len(swept), 1), 3.5), layout="constrained")
    panels = figure.subplots(1, max(len(swept), 1), sharey=True, squeeze=False)[0]
    for axes, key in zip(panels, swept or ["trial"], strict=True):
        values = sorted({row[key] for row in rows if key in row})
        # The few values of a grid are neither linear nor logarithmic, so they are spaced evenly. Those of a range are
        # drawn to scale.
        few = len(values) <= 8 or isinstance(values[0], str)
        places = [values.index(row[key]) if few else row[key] for row in rows]
        means, bars = [row[name] for row in rows], [row["std"] or 0.0 for row in rows]
        axes.errorbar(places, means, bars, fmt="o", alpha=0.6, capsize=3)
        axes.plot(places[0], means[0], "o", markersize=12, markerfacecolor="none", color="black")
        if few:
            labels = _labels(values)
            long = max(map(len, labels)) > 12
            axes.set_xticks(range(len(values)), labels, rotation=20 if long else 0, ha="right" if long else "center")
        elif key == "learning_rate":
            axes.set_xscale("log")
        axes.set_xlabel(key)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel(name)
    write_figure(figure, path)
