"""What a run's log shows: the learning curve and the training time."""

import csv
import logging
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from keras_bert_zoo.files import replacing
from keras_bert_zoo.training.runs import whole_rows

_logger = logging.getLogger("keras_bert_zoo")


def _read_log(path: Path) -> list[dict[str, float]]:
    """Return the rows of a log, one per epoch, without values that were not logged."""
    rows = csv.DictReader(whole_rows(path))
    return [{name: float(value) for name, value in row.items() if value != "NA"} for row in rows]


def train_seconds(path: Path) -> float:
    """Return the training time of all epochs, without scoring on the dev set."""
    return round(sum(row["seconds"] for row in _read_log(path)), 1)


def draw_curve(log: Path, path: Path, score: str) -> None:
    """Draw the loss and the dev score after each epoch; without matplotlib log a warning instead."""
    if not can_draw("the learning curve"):
        return
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    rows = _read_log(log)
    epochs = [int(row["epoch"]) + 1 for row in rows]
    figure = Figure(figsize=(8, 3.5), layout="constrained")
    for axes, (name, title) in zip(
        figure.subplots(1, 2), (("loss", "loss in training"), (f"val_{score}", f"{score} on the dev set")), strict=True
    ):
        axes.plot(epochs, [row[name] for row in rows], marker="o")
        axes.set(xlabel="epochs", ylabel=title)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
    write_figure(figure, path)


def can_draw(what: str) -> bool:
    """Whether matplotlib is installed; if not, log what is not drawn."""
    if find_spec("matplotlib") is None:
        _logger.warning('No picture of %s: that needs matplotlib (pip install "keras-bert-zoo[plot]").', what)
        return False
    return True


def write_figure(figure: Any, path: str | os.PathLike[str]) -> None:
    """Write a matplotlib figure, completely or not at all."""
    with replacing(Path(path)) as beside:
        figure.savefig(beside, dpi=150)
