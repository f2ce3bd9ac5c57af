"""What a run's log shows: the learning curve and the time."""

import csv
import logging
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from keras_bert_zoo.files import replacing

_logger = logging.getLogger("keras_bert_zoo")


def read_log(path: Path) -> list[dict[str, float]]:
    """The rows, one an epoch, without what was not logged."""
    with path.open(newline="", encoding="utf-8") as file:
        return [{name: float(value) for name, value in row.items() if value != "NA"} for row in csv.DictReader(file)]


def train_seconds(path: Path) -> float:
    """What all epochs took, dev scores not counted."""
    return round(sum(row["seconds"] for row in read_log(path)), 1)


def draw_curve(log: Path, path: Path, score: str) -> None:
    """Draw the loss and the dev score after each epoch, where matplotlib is installed; else the log says so."""
    if not can_draw("the learning curve"):
        return
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    rows = read_log(log)
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
    """Whether matplotlib is installed; else the log says what there is no picture of."""
    if find_spec("matplotlib") is None:
        _logger.warning('No picture of %s: that needs matplotlib (pip install "keras-bert-zoo[plot]").', what)
        return False
    return True


def write_figure(figure: Any, path: str | os.PathLike[str]) -> None:
    """Write matplotlib's figure, all of it or nothing."""
    with replacing(Path(path)) as beside:
        figure.savefig(beside, dpi=150)
