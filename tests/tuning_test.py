"""Sweeps with Keras Tuner: the grids, what reaches `fit`, restarts, interruptions, and the best preset."""

import csv
import gc
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file

import keras_bert_zoo as kbz
from keras_bert_zoo import cli
from keras_bert_zoo.checks import NotANumberError
from keras_bert_zoo.finetuning import Run, finetune
from keras_bert_zoo.json_files import write_json
from keras_bert_zoo.training.runs import held
from keras_bert_zoo.tuning import PAPER, SMALL_MODELS, tune
from keras_bert_zoo.tuning.restarts import Restarts
from keras_bert_zoo.tuning.spaces import checked_space, declare
from tests.finetuning_test import SENTENCES, mrpc, write
from tests.helpers import LABELS, SHALLOW, TEXTS, WORDS, other_weights, short_error, slow_on

keras_tuner = pytest.importorskip("keras_tuner")
POINT = {"learning_rate": 1e-3, "batch_size": 4, "epochs": 1}


def without_cleaning(monkeypatch):
    """Skip what Keras Tuner does before each trial, for a second."""
    for module, name in ((keras.backend, "clear_session"), (gc, "collect")):
        monkeypatch.setattr(module, name, lambda: None)


class Trainings:
    """Stands in for training, which takes longer than all else: keeps what reached `fit`, and makes up the scores.

    One model goes through all of it, so that nothing is compiled; its bias says which training it was.
    """

    def __init__(self, monkeypatch):
        tokenizer = kbz.BertTokenizer(WORDS)
        backbone = kbz.BertBackbone(**SHALLOW)
        preprocessor = kbz.BertPreprocessor(tokenizer, 16)
        for _ in range(2):  # The first one makes the class functional, and would itself fail as a promoted trial.
            self.model = kbz.BertTextClassifier(backbone, 3, preprocessor=preprocessor)
        self.rows = []
        self.stop_before = None
        self.fails = {}
        self.seed = None
        monkeypatch.setattr(kbz.BertTextClassifier, "from_preset", self.from_preset)
        monkeypatch.setattr(kbz.BertTextClassifier, "fit", self.fit)
        without_cleaning(monkeypatch)
        seed = keras.utils.set_random_seed
        monkeypatch.setattr(keras.utils, "set_random_seed", lambda n: (setattr(self, "seed", n), seed(n)))

    def from_preset(self, preset, **arguments):
        self.model.layers[-1].bias.assign([0, 0, 0])
        return self.model

    def fit(self, x, y, batch_size, epochs, callbacks, verbose, validation_data, initial_epoch=0):
        if len(self.rows) == self.stop_before:
            self.stop_before = None
            raise KeyboardInterrupt
        if len(self.rows) in self.fails:
            self.rows.append(None)
            raise self.fails.pop(len(self.rows) - 1)
        assert initial_epoch == 0
        np.testing.assert_array_equal(self.model.layers[-1].bias, 0)  # Nothing is trained twice.
        schedule = self.model.optimizer._learning_rate
        row = (schedule.learning_rate, batch_size, epochs, schedule.warmup, self.seed)
        self.rows.append(row)
        scores = [self.score(row, epoch) for epoch in range(1, epochs + 1)]
        self.model.layers[-1].bias.assign([len(self.rows), self.seed, scores[-1]])
        for callback in callbacks:
            callback.set_model(self.model)
            callback.on_train_begin()
            for epoch, score in enumerate(scores):
                callback.on_epoch_end(epoch, {"loss": 1.0, "val_accuracy": score})
        history = keras.callbacks.History()
        history.history = {"loss": [1.0] * epochs, "val_accuracy": scores}
        return history

    @staticmethod
    def score(row, epoch):
        """Return a number in which the first epoch is best; no epoch but the last may count."""
        return (hash(row) % 1000) / 1000 + 1.0 / epoch


@pytest.fixture
def trainings(monkeypatch):
    return Trainings(monkeypatch)


def tuner_of(kind, folder, options=None, **space):
    hypermodel = kbz.tuning.TaskHyperModel(kbz.BertTextClassifier, "start", **{**POINT, **space})
    return kind(hypermodel, objective="val_accuracy", directory=folder, project_name="sweep", **options or {})


def search(tuner, **options):
    tuner.search(TEXTS, LABELS, verbose=0, validation_data=(TEXTS, LABELS), **options)
    return tuner


def test_the_papers_grid(trainings, tmp_path):
    """The 18 points are each tried once, and this is what of them reaches the optimizer and `fit`."""
    search(tuner_of(kbz.tuning.GridSearch, tmp_path, **PAPER))
    points = product([5e-5, 3e-5, 2e-5], [16, 32], [2, 3, 4])
    assert sorted(trainings.rows) == sorted((*point, 0.1, 12345) for point in points)
    hypermodel = kbz.tuning.TaskHyperModel(kbz.BertTextClassifier, "start")
    assert {**hypermodel.space, **PAPER} == hypermodel.space
    rates, sizes = [3e-4, 1e-4, 5e-5, 3e-5], [8, 16, 32, 64, 128]
    assert {"learning_rate": rates, "batch_size": sizes, "epochs": 4} == SMALL_MODELS


def test_restarts(trainings, tmp_path):
    """Mean and spread against NumPy; the preset is the best training of the best point."""
    space = {"learning_rate": [1e-2, 1e-3, 1e-4], "warmup": [0, 0.25], "epochs": 2, "seed": 7, "restarts": 3}
    tuner = search(tuner_of(kbz.tuning.GridSearch, tmp_path, **space))
    points = list(product([1e-2, 1e-3, 1e-4], [4], [2], [0, 0.25]))
    assert trainings.rows == [(*point, seed) for point in points for seed in (7, 8, 9)]
    scores = {point: [trainings.score((*point, seed), 2) for seed in (7, 8, 9)] for point in points}
    ranked = sorted(points, key=lambda point: -np.mean(scores[point]))
    rows = kbz.tuning.table(tuner)
    assert [tuple(row[name] for name in ("learning_rate", "batch_size", "epochs", "warmup")) for row in rows] == ranked
    for row, point in zip(rows, ranked, strict=True):
        assert row["val_accuracy"] == pytest.approx(np.mean(scores[point]), abs=1e-9)
        assert row["std"] == pytest.approx(np.std(scores[point], ddof=1), abs=1e-9)
        assert (row["best"], row["restarts"], row["status"]) == (max(scores[point]), 3, "COMPLETED")
    trial = tuner.oracle.get_best_trials(1)[0]
    assert trial.score == pytest.approx(rows[0]["val_accuracy"])
    assert trial.metrics.get_best_value("val_accuracy_std") == pytest.approx(rows[0]["std"])
    best = trainings.rows.index((*ranked[0], 7 + int(np.argmax(scores[ranked[0]])))) + 1
    kbz.tuning.save_best(tuner, tmp_path / "best")
    (tmp_path / "best" / "README.md").write_text("mine")
    kbz.tuning.save_best(tuner, tmp_path / "best")
    assert (tmp_path / "best" / "README.md").read_text() == "mine"
    assert load_file(tmp_path / "best" / "model.safetensors")["classifier.bias"][0] == best
    means = [np.mean(scores[point]) for point in points]
    better = [f"{i:04d}" for i in range(6) if means[i] > max(means[:i], default=0)]  # Better than those before.
    trials = tmp_path / "sweep"
    for weights in ("preset/model.safetensors", "checkpoint.weights.h5"):
        assert sorted(path.relative_to(trials).parts[0][6:] for path in trials.glob(f"trial_*/{weights}")) == better
    for name in ("table.csv", "table.md"):
        kbz.tuning.write_table(tuner, tmp_path / name)
    written = list(csv.DictReader((tmp_path / "table.csv").open()))
    assert [float(row["std"]) for row in written] == pytest.approx([row["std"] for row in rows], rel=1e-5)
    lines = (tmp_path / "table.md").read_text().splitlines()
    assert [line.count("|") for line in lines] == [len(rows[0]) + 1] * 8


def test_a_line_between_columns_is_no_part_of_a_cell(tmp_path, monkeypatch):
    rows = [{"preset": "a|b", "val_f1": 0.5, "std": None}]
    monkeypatch.setattr("keras_bert_zoo.tuning.results.table", lambda tuner: rows)
    kbz.tuning.write_table(None, tmp_path / "table.md")
    header = "| preset | val_f1 | std |\n| --- | --- | --- |\n"
    assert (tmp_path / "table.md").read_text() == header + "| a\\|b | 0.5 |  |\n"


@pytest.mark.parametrize("from_epoch, best", [(0, 1), (9, 2)])
def test_restored_weights_have_the_score_of_their_epoch(from_epoch, best, trainings, tmp_path):
    """The first of two epochs is better; before `start_from_epoch` nothing is kept to be restored."""
    stop = keras.callbacks.EarlyStopping(
        "val_accuracy", mode="max", restore_best_weights=True, start_from_epoch=from_epoch
    )
    tuner = search(tuner_of(kbz.tuning.GridSearch, tmp_path, epochs=2), callbacks=[stop])
    expected = trainings.score(trainings.rows[0], best)
    assert kbz.tuning.table(tuner)[0]["val_accuracy"] == pytest.approx(expected, abs=1e-9)


def test_the_sweep_is_drawn(trainings, tmp_path, monkeypatch):
    """Each hyperparameter that was searched has a panel with all means, their spreads, and a ring around the best."""
    pytest.importorskip("matplotlib")
    from keras_bert_zoo.tuning import results

    figures, write_figure = [], results.write_figure

    def keep(figure, path):
        figures.append(figure)
        write_figure(figure, path)

    monkeypatch.setattr(results, "write_figure", keep)
    space = {"learning_rate": [1e-2, 1e-3], "warmup": [0, 0.25], "restarts": 3}
    tuner = search(tuner_of(kbz.tuning.GridSearch, tmp_path, **space))
    kbz.tuning.draw_sweep(tuner, tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")
    scores = {
        (rate, warmup): [trainings.score((rate, 4, 1, warmup, seed), 1) for seed in (12345, 12346, 12347)]
        for rate in (1e-2, 1e-3)
        for warmup in (0.0, 0.25)
    }
    best = max(scores, key=lambda point: np.mean(scores[point]))
    panels = figures[0].axes
    assert [axes.get_xlabel() for axes in panels] == ["learning_rate", "warmup"]
    assert panels[0].get_ylabel() == "val_accuracy"
    for number, (axes, values) in enumerate(zip(panels, ([1e-3, 1e-2], [0.0, 0.25]), strict=True)):
        assert [label.get_text() for label in axes.get_xticklabels()] == [f"{value:g}" for value in values]
        (bars,) = axes.containers
        points, _, (spreads,) = bars.lines
        drawn = sorted(
            (x, y, *sorted(bar[:, 1])) for (x, y), bar in zip(points.get_xydata(), spreads.get_segments(), strict=True)
        )
        expected = sorted(
            (values.index(point[number]), mean, mean - spread, mean + spread)
            for point, mean, spread in ((point, np.mean(row), np.std(row, ddof=1)) for point, row in scores.items())
        )
        np.testing.assert_allclose(drawn, expected, atol=1e-9)
        (ring,) = [line for line in axes.lines if line.get_markerfacecolor() == "none"]
        assert ring.get_xydata().tolist() == [[values.index(best[number]), pytest.approx(np.mean(scores[best]))]]


def test_of_paths_a_picture_has_what_tells_them_apart():
    from keras_bert_zoo.tuning import results

    assert results._labels(["hf://google/bert", "runs/small/", 3e-5]) == ["bert", "small", "3e-05"]
    assert results._labels(["one/preset", "two/preset"]) == ["one/preset", "two/preset"]


SEARCHES = {
    "grid": (lambda: kbz.tuning.GridSearch, {}),
    "random": (lambda: keras_tuner.RandomSearch, {"max_trials": 5}),
    "bayesian": (lambda: keras_tuner.BayesianOptimization, {"max_trials": 5}),
    "hyperband": (lambda: keras_tuner.Hyperband, {"max_epochs": 2, "factor": 2}),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_a_killed_sweep_goes_on(name, trainings, tmp_path):
    """Killed in the second training of a trial, it has the same trainings as if it were not, none of them twice."""
    kind, options = SEARCHES[name][0](), {**SEARCHES[name][1], "seed": 3}
    space = {"learning_rate": [1e-2, 1e-3], "batch_size": [2, 4, 8], "restarts": 2}
    space |= {"epochs": None} if name == "hyperband" else {}
    search(tuner_of(kind, tmp_path / "whole", options, **space))
    whole, trainings.rows = trainings.rows, []
    trainings.stop_before = 5
    with pytest.raises(KeyboardInterrupt):
        search(tuner_of(kind, tmp_path / "killed", options, **space))
    assert trainings.rows == whole[:5]
    tuner = search(tuner_of(kind, tmp_path / "killed", options, **space))
    assert len(set(trainings.rows)) == len(trainings.rows) or name == "hyperband"
    assert trainings.rows == whole
    assert len(whole) == 12 or name != "grid"
    assert {row["restarts"] for row in kbz.tuning.table(tuner)} == {2}
    count = len(trainings.rows)
    again = search(tuner_of(kind, tmp_path / "killed", options, **space))
    assert len(trainings.rows) == count
    assert kbz.tuning.table(again) == kbz.tuning.table(tuner)


@pytest.mark.parametrize("name", SEARCHES)
def test_a_sweep_goes_on_between_two_of_its_files(name, trainings, tmp_path, monkeypatch):
    """The disk had room for a trial's file, but none for that of all trials."""
    from keras_bert_zoo.tuning import resuming
    from keras_bert_zoo.tuning.sweep import _tuner_class

    kind, options = _tuner_class(name), {**SEARCHES[name][1], "seed": 3}
    space = {"learning_rate": [i / 1000 for i in range(1, 7)]} | ({"epochs": None} if name == "hyperband" else {})
    search(tuner_of(kind, tmp_path / "whole", options, **space))
    whole, trainings.rows = trainings.rows, []

    def full(path, value):
        if path.name == "oracle.json" and len(value["start_order"]) == 3:
            raise OSError("No space left on device")
        write_json(path, value)

    with monkeypatch.context() as patched:
        patched.setattr(resuming, "write_json", full)
        with pytest.raises(OSError, match="No space left"):
            search(tuner_of(kind, tmp_path / "full", options, **space))
    assert len(trainings.rows) == 2
    tuner = search(tuner_of(kind, tmp_path / "full", options, **space))
    assert {row["status"] for row in kbz.tuning.table(tuner)} == {"COMPLETED"}
    more = name == "hyperband"  # Its rounds do not know of the trial.
    assert len(trainings.rows) == len(whole) + more
    assert len(set(trainings.rows)) == len(trainings.rows) or more


@pytest.mark.parametrize("name", SEARCHES)
def test_what_failed_is_tried_again(name, trainings, tmp_path):
    """Lack of memory passes, in the second training of a trial too; a loss that is no number is the point's own."""
    from keras_bert_zoo.tuning.failures import failures, reasons
    from keras_bert_zoo.tuning.sweep import _tuner_class

    kind, options = _tuner_class(name), {**SEARCHES[name][1], "seed": 3}
    space = {"learning_rate": [1e-2, 1e-3], "batch_size": [2, 4, 8], "restarts": 2}
    space |= {"epochs": None} if name == "hyperband" else {}
    trainings.fails = {
        1: MemoryError("Out of it.\nA long story."),
        5: NotANumberError("nan"),  # From a score.
    }
    tuner = search(tuner_of(kind, tmp_path, options, **space))
    assert trainings.rows[1] is None
    first = trainings.rows[0]
    failed = failures(tuner)
    (memory, loss) = sorted(failed)
    diverged = "FailedTrialError: The loss must be finite. Received: nan"
    assert reasons(failed) == f"trial {memory} (MemoryError: Out of it.), trial {loss} ({diverged})"
    assert [failed[one].passing for one in (memory, loss)] == [True, False]
    folder = Path(tuner.get_trial_dir(memory))
    assert "tuning_test.py" in json.loads((folder / "failure.json").read_text())["traceback"]
    values, count = tuner.oracle.trials[memory].hyperparameters.values, len(trainings.rows)
    trainings.fails = {count: MemoryError("Again.")}
    tuner = search(tuner_of(kind, tmp_path, options, **space))
    assert trainings.rows[count:] == [None]
    assert failures(tuner)[memory].reason == "MemoryError: Again."
    trainings.stop_before = count + 1
    with pytest.raises(KeyboardInterrupt):
        search(tuner_of(kind, tmp_path, options, **space))
    tuner = search(tuner_of(kind, tmp_path, options, **space))
    assert trainings.rows[count + 1] == (*first[:-1], first[-1] + 1)  # The first training was done.
    assert not (folder / "failure.json").exists()
    trial = tuner.oracle.trials[memory]
    assert (trial.status, trial.message, trial.hyperparameters.values) == ("COMPLETED", None, values)
    assert tuner.oracle.end_order.count(memory) == 1
    assert set(failures(tuner)) == {loss}
    if name == "grid":
        assert len(trainings.rows) == 12 + 2
        assert {row["restarts"] for row in kbz.tuning.table(tuner)} == {1, 2}
    count = len(trainings.rows)
    search(tuner_of(kind, tmp_path, options, **space))
    assert len(trainings.rows) == count


@pytest.mark.parametrize("name", SEARCHES)
def test_a_chief_that_starts_again_leaves_trials_to_their_workers(name, trainings, tmp_path, monkeypatch):
    """One that failed and is tried again is its worker's; one that ended, or waits to be tried again, is nobody's."""
    from keras_bert_zoo.tuning.sweep import _tuner_class

    for variable, value in (("ORACLE_IP", "127.0.0.1"), ("ORACLE_PORT", "1"), ("TUNER_ID", "chief")):
        monkeypatch.setenv(f"KERASTUNER_{variable}", value)
    options = {**SEARCHES[name][1], "seed": 3, "max_retries_per_trial": 1}
    space = {"learning_rate": [i / 1000 for i in range(1, 7)]} | ({"epochs": None} if name == "hyperband" else {})

    def started():
        return tuner_of(_tuner_class(name), tmp_path, options, **space).oracle

    def end(trial, status):
        if status == "COMPLETED":
            oracle.update_trial(trial.trial_id, {"val_accuracy": 0.5})
        trial.status = status
        oracle.end_trial(trial)

    tuner_of(_tuner_class(name), tmp_path, options, **space).save()
    oracle = started()
    two = oracle.create_trial("two")
    end(two, "INVALID")
    assert oracle.create_trial("two") is two
    one = oracle.create_trial("one")
    oracle = started()
    ongoing = {worker: oracle.create_trial(worker) for worker in ("one", "two")}
    assert [trial.trial_id for trial in ongoing.values()] == [one.trial_id, two.trial_id]
    assert oracle.tuner_ids == {"one", "two"}  # The chief stays until they are told that all is done.
    end(ongoing["one"], "INVALID")
    end(ongoing["two"], "COMPLETED")
    oracle = started()
    assert (oracle.ongoing_trials, oracle._retry_queue) == ({}, [one.trial_id])
    assert oracle.trials[two.trial_id].status == "COMPLETED"


def test_the_preset_of_a_trial_that_failed_is_not_the_best(trainings, tmp_path):
    trainings.fails = {1: MemoryError("Out of it.")}
    tuner = search(tuner_of(kbz.tuning.GridSearch, tmp_path, restarts=2))
    assert list(tmp_path.glob("sweep/trial_*/preset"))
    with pytest.raises(ValueError, match=r"must have finished a trial .* failed: trial 0000 \(MemoryError: Out of it"):
        kbz.tuning.best_preset(tuner)


def test_a_trial_that_is_tried_again_has_all_of_its_tries(trainings, tmp_path):
    options = {"max_retries_per_trial": 1}
    trainings.fails = dict.fromkeys((0, 1), MemoryError("Out of it."))
    search(tuner_of(kbz.tuning.GridSearch, tmp_path, options))
    trainings.fails = {2: MemoryError("Out of it.")}
    tuner = search(tuner_of(kbz.tuning.GridSearch, tmp_path, options))
    assert trainings.rows[:3] == [None] * 3
    assert len(trainings.rows) == 4
    assert [row["status"] for row in kbz.tuning.table(tuner)] == ["COMPLETED"]


@pytest.mark.parametrize("name, trials, most", [("grid", None, None), ("random", None, 10), ("bayesian", 3, 3)])
def test_how_many_points_are_tried(name, trials, most, start, tmp_path, monkeypatch):
    for part in ("train", "dev"):
        mrpc(tmp_path, part)
    seen = []

    def tuner(hypermodel, **options):
        seen.append(options.get("max_trials"))
        raise KeyboardInterrupt

    monkeypatch.setattr("keras_bert_zoo.tuning.sweep._tuner_class", lambda name: tuner)
    with pytest.raises(KeyboardInterrupt):
        tune(Run("mrpc", start, data=tmp_path, sequence_length=80), tmp_path / "out", search=name, trials=trials)
    assert seen == [most]


def test_a_point_without_a_number_is_not_the_best():
    from keras_tuner import Objective

    from keras_bert_zoo.tuning.hypermodel import _is_best, _is_best_trial

    objective, before = Objective("val_f1", "max"), [{"val_f1": 0.5}]
    for earlier in ([], before):
        assert not _is_best(objective, {"val_f1": math.nan}, earlier)
        assert _is_best(objective, {"val_f1": 0.6}, earlier)
    oracle = SimpleNamespace(objective=objective, get_best_trials=lambda count: [])
    assert [_is_best_trial(oracle, {"val_f1": score}) for score in (math.nan, 0.6)] == [False, True]


def test_a_preset_is_a_name():
    for preset in (3, ["a", None]):
        with short_error(f"`preset` must be a value, or a list of them. Received: preset={preset!r}"):
            kbz.tuning.TaskHyperModel(kbz.BertTextClassifier, preset)


def test_none_and_some_of_it_are_one_choice():
    for name in ("warmup", "dropout"):
        assert declare(keras_tuner.HyperParameters(), checked_space(**{name: [0, 0.1]})) == {name: 0.0}


@slow_on("tensorflow", "jax")
@pytest.mark.filterwarnings("ignore:All-NaN axis encountered")  # NumPy, within Keras Tuner.
def test_a_sweep_says_what_failed(start, tmp_path, monkeypatch, caplog):
    """It is not complete, keeps what there is, and goes on until all is well; three failures in a row do not end it."""
    for part in ("train", "dev"):
        mrpc(tmp_path, part)
    broken, trained = dict.fromkeys((2, 3, 4), MemoryError("Out of it.")), []

    def fit(self, x, y, batch_size, **options):
        trained.append(batch_size)
        if batch_size in broken:
            raise broken[batch_size]
        history = keras.callbacks.History()
        history.history = {"loss": [1.0], f"val_{run.recipe.score}": [math.nan if batch_size == 5 else batch_size / 10]}
        return history

    monkeypatch.setattr(kbz.BertTextClassifier, "fit", fit)
    run, out = Run("mrpc", start, data=str(tmp_path), sequence_length=80), tmp_path / "out"
    grid = {"learning_rate": 1e-2, "epochs": 1, "batch_size": [2, 3, 4, 8], "verbose": 0}
    why = "(MemoryError: Out of it.)"
    for count in (4, 7):
        with pytest.raises(ValueError) as error:
            tune(run, out, **grid)
        said = f"Received: 3 of 4 failed: trial 0000 {why}, trial 0001 {why}, trial 0002 {why}"
        assert str(error.value).endswith(said)
        written = {"sweep.json", "trials", "preset", "table.csv", "table.md"}
        assert {path.name for path in out.iterdir()} - {"sweep.png"} == written
        assert len(trained) == count
    broken.clear()
    broken[3] = keras_tuner.errors.FailedTrialError("No number.")
    results = tune(run, out, **grid)
    assert trained[7:] == [2, 3, 4]
    assert [row["batch_size"] for row in results["rows"]] == [8, 4, 2, 3]
    assert [row["status"] for row in results["rows"]] == ["COMPLETED"] * 3 + ["FAILED"]
    assert "1 of 4 trials have no score: trial 0001 (FailedTrialError: No number.)" in caplog.messages
    assert tune(run, out, **grid) == results
    broken[2] = broken[3]
    for _ in range(2):
        with pytest.raises(ValueError) as error:
            tune(run, tmp_path / "none", **{**grid, "batch_size": [2, 3, 5]})
        why = "(FailedTrialError: No number.)"
        said = f"none of 3: trial 0000 {why}, trial 0001 {why}, trial 0002 (the objective is NaN)"
        assert str(error.value) == f"A trial must have a score. Received: {said}"
    assert trained[10:] == [2, 3, 5]
    tuner = kbz.tuning.GridSearch(
        kbz.tuning.TaskHyperModel(kbz.BertTextClassifier, start, num_classes=2, **POINT),
        objective="val_accuracy",
        directory=tmp_path / "none",
        project_name="trials",
    )
    with pytest.raises(
        ValueError, match=r"`tuner` must have .* without one; failed: trial 0000 \(FailedTrialError: No"
    ):
        kbz.tuning.best_preset(tuner)


@slow_on("tensorflow", "jax")
def test_a_sweep_stays_with_its_data(start, tmp_path, monkeypatch):
    for part in ("train", "dev"):
        mrpc(tmp_path, part)
    broken = [MemoryError("Out of it.")]

    def fit(self, x, y, **options):
        if broken:
            raise broken[0]
        history = keras.callbacks.History()
        history.history = {"loss": [1.0], f"val_{run.recipe.score}": [0.5]}
        return history

    monkeypatch.setattr(kbz.BertTextClassifier, "fit", fit)
    run, out = Run("mrpc", start, data=str(tmp_path), sequence_length=80), tmp_path / "out"
    with pytest.raises(ValueError, match="1 of 1 failed"):
        tune(run, out, verbose=0, **POINT)
    for part in ("train", "dev"):
        path = tmp_path / "MRPC" / f"{part}.tsv"
        before = path.read_text()
        path.write_text(before.replace("so warm", "so cold"))
        with pytest.raises(ValueError, match=f"a run of the same configuration. Received: {part}_digest='"):
            tune(run, out, verbose=0, **POINT)
        path.write_text(before)
    with (
        other_weights(start),
        pytest.raises(ValueError, match=r"of the same configuration. Received: preset_digests=\{"),
    ):
        tune(run, out, verbose=0, **POINT)
    config = out / "sweep.json"
    with held(config, {}), pytest.raises(ValueError, match="`out` must not be in use by another process"):
        tune(run, out, verbose=0, **POINT)
    before = config.read_text()
    backend = keras.backend.backend()
    config.write_text(before.replace(f'"backend": "{backend}"', '"backend": "x"'))
    with pytest.raises(ValueError, match=rf"KERAS_BACKEND must be x, the backend on which the sweep in .* {backend}"):
        tune(run, out, verbose=0, **POINT)
    config.write_text(before)
    broken.clear()
    results = tune(run, out, verbose=0, **POINT)
    assert results["sweep"]["preset_digests"].keys() == {start}
    path.unlink()
    assert tune(run, out, verbose=0, **POINT) == results


def test_seed_0_is_a_seed(start, tmp_path, monkeypatch):
    """To Keras Tuner, 0 means no seed."""
    for part in ("train", "dev"):
        mrpc(tmp_path, part)
    monkeypatch.setattr(kbz.BertTextClassifier, "fit", lambda *arguments, **options: 1 / 0)
    seeds = []
    for name in ("one", "two"):
        run = Run("mrpc", start, data=str(tmp_path), sequence_length=80, seed=0)
        with pytest.raises(ValueError, match="1 of 1 failed: trial 0 "):
            tune(run, tmp_path / name, search="random", trials=1, verbose=0)
        seeds.append(json.loads((tmp_path / name / "trials" / "oracle.json").read_text())["seed"])
    assert seeds == [2**31, 2**31]


@pytest.mark.parametrize("name", SEARCHES)
def test_no_kill_leaves_half_a_file(name, trainings, tmp_path, monkeypatch):
    """Files are replaced, never written into; a file that is broken otherwise is named."""
    from keras_bert_zoo.tuning.sweep import _tuner_class

    options = {**SEARCHES[name][1], "seed": 3}
    space = {"learning_rate": [1e-2, 1e-3], "batch_size": [2, 4]}
    space |= {"epochs": None} if name == "hyperband" else {}
    tuner = tuner_of(_tuner_class(name), tmp_path, options, **space)
    fit, kept = trainings.fit, {}

    def link(model, *arguments, **options):
        if len(trainings.rows) == 1:
            for path in (tmp_path / "sweep").rglob("*.json"):
                kept[path] = tmp_path / f"{len(kept)}.json"
                kept[path].hardlink_to(path)
        return fit(*arguments, **options)

    monkeypatch.setattr(kbz.BertTextClassifier, "fit", link)
    search(tuner)
    second = max(path for path in kept if path.name == "trial.json")
    files = [tmp_path / "sweep" / "oracle.json", tmp_path / "sweep" / "tuner0.json", second]
    for path in files:
        assert not kept[path].samefile(path)
    assert [json.loads(path.read_text())["status"] for path in (kept[second], second)] == ["RUNNING", "COMPLETED"]
    for path in files:
        whole = path.read_text()
        path.write_text(whole[: len(whole) // 2])
        with pytest.raises(ValueError, match=f"{path} must hold a JSON object"):
            tuner_of(_tuner_class(name), tmp_path, options, **space)
        path.write_text(whole)


def test_several_objectives(trainings, tmp_path):
    """Keras Tuner minimises their sum, with those to be maximised negated."""
    hypermodel = kbz.tuning.TaskHyperModel(
        kbz.BertTextClassifier, "start", **{**POINT, "learning_rate": [1e-2, 1e-3]}, restarts=2
    )
    tuner = kbz.tuning.GridSearch(hypermodel, objective=["val_accuracy", "loss"], directory=tmp_path)
    search(tuner)
    sums = {rate: [1 - trainings.score((rate, 4, 1, 0.1, seed), 1) for seed in (12345, 12346)] for rate in (1e-2, 1e-3)}
    ranked = sorted(sums, key=lambda rate: np.mean(sums[rate]))
    rows = kbz.tuning.table(tuner)
    assert [row["learning_rate"] for row in rows] == ranked
    for row in rows:
        expected = sums[row["learning_rate"]]
        found = (row["multi_objective"], row["std"], row["best"])
        assert found == pytest.approx((np.mean(expected), np.std(expected, ddof=1), min(expected)))
    assert tuner.oracle.get_best_trials()[0].score == pytest.approx(np.mean(sums[ranked[0]]))
    bias = load_file(kbz.tuning.best_preset(tuner) / "model.safetensors")["classifier.bias"]
    assert bias[1] == 12345 + int(np.argmin(sums[ranked[0]]))
    other = kbz.tuning.GridSearch(hypermodel, objective=["val_accuracy", "val_loss"], directory=tmp_path / "other")
    with pytest.raises(ValueError, match=r"or a list of them; .* Received: objective=\['val_accuracy', 'val_loss'\]"):
        search(other)


@pytest.mark.parametrize("written", [False, True])
def test_a_grid_goes_on_between_two_trials(written, trainings, tmp_path, monkeypatch):
    """Nothing was under way, or only a trial's file was there: Keras Tuner's own grid search would end at once."""
    space = {"learning_rate": [1e-2, 1e-3], "batch_size": [2, 4, 8]}
    tuner = tuner_of(kbz.tuning.GridSearch, tmp_path, **space)
    monkeypatch.setattr(tuner, "pre_create_trial", lambda: 1 / (4 - len(trainings.rows)))
    with pytest.raises(ZeroDivisionError):
        search(tuner)
    if written:
        trial = keras_tuner.engine.trial.Trial(tuner.oracle.get_space(), "0004")
        trial.hyperparameters.values |= {"learning_rate": 1e-3, "batch_size": 4}
        (tmp_path / "sweep" / "trial_0004").mkdir()
        trial.save(str(tmp_path / "sweep" / "trial_0004" / "trial.json"))
    search(tuner_of(kbz.tuning.GridSearch, tmp_path, **space))
    points = [(rate, size) for rate in (1e-2, 1e-3) for size in (2, 4, 8)]
    assert sorted(row[:2] for row in trainings.rows) == sorted(points)


def test_hyperband_sets_the_epochs(trainings, tmp_path):
    """Each trial is trained from the start with the epochs of its round; nothing in the space sets others."""
    options = {"max_epochs": 4, "factor": 2, "seed": 1}
    rates = [i / 1000 for i in range(1, 100)]  # Enough points for all brackets.
    tuner = search(tuner_of(keras_tuner.Hyperband, tmp_path, options, epochs=None, learning_rate=rates))
    rows = kbz.tuning.table(tuner)
    trials = tuner.oracle.trials
    # Three brackets: 4 points of 1 epoch, of which 2 get 2 and 1 gets 4; 3 of 2, of which 2 get 4; 3 of 4.
    assert Counter(row["epochs"] for row in rows) == {1: 4, 2: 2 + 3, 4: 1 + 2 + 3}
    assert [row[2] for row in trainings.rows] == [
        trial.hyperparameters.values["tuner/epochs"] for trial in trials.values()
    ]
    assert all(row["status"] == "COMPLETED" for row in rows)
    assert sum("tuner/trial_id" in trial.hyperparameters.values for trial in trials.values()) == 2 + 1 + 2
    assert not any(name.startswith("tuner/") for row in rows for name in row)


def test_a_range_and_a_choice_of_presets(trainings, tmp_path):
    hp = keras_tuner.HyperParameters()
    hp.Float("learning_rate", 1e-5, 1e-3, sampling="log")
    hypermodel = kbz.tuning.TaskHyperModel(kbz.BertTextClassifier, ["a", "b"], **POINT)
    tuner = keras_tuner.RandomSearch(
        hypermodel, "val_accuracy", max_trials=4, seed=1, hyperparameters=hp, directory=tmp_path
    )
    search(tuner)
    rates = [row[0] for row in trainings.rows]
    assert len(set(rates)) == 4
    assert all(1e-5 <= rate <= 1e-3 for rate in rates)
    assert {row["preset"] for row in kbz.tuning.table(tuner)} == {"a", "b"}
    (model,) = tuner.get_best_models()  # Keras Tuner's own way still works.
    best = tuner.oracle.get_best_trials()[0].hyperparameters.values["learning_rate"]
    assert model.layers[-1].bias[0] == rates.index(best) + 1


def test_what_is_wrong_is_said(trainings, tmp_path, start):
    for arguments, words in (
        ({"learning_rate": [1e-5, 0]}, "`learning_rate` must be a positive number. Received: learning_rate=0"),
        ({"batch_size": [16, 16]}, "`batch_size` must be a value, or a list of different ones"),
        ({"epochs": []}, "`epochs` must be a value, or a list of different ones. Received: epochs=[]"),
        ({"warmup": 1}, "`warmup` must be a number in [0, 1)"),
        ({"warmup": None}, "`warmup` must be a value or a list of them"),
        ({"dropout": [0.1, 1]}, "`dropout` must be a number in [0, 1)"),
        ({"seed": -1}, "`seed` must be an integer in [0, 2**32)"),
        ({"seed": [1, 2**32]}, "`seed` must be an integer in [0, 2**32). Received: seed=4294967296"),
        (
            {"seed": [2**32 - 2, 1], "restarts": 3},
            "`seed` + `restarts` must be at most 2**32",
        ),
        ({"restarts": 0}, "`restarts` must be a positive integer"),
    ):
        with short_error(words):
            kbz.tuning.TaskHyperModel(kbz.BertTextClassifier, "start", **arguments)
    for kind, options, given, words in (
        (keras_tuner.Hyperband, {"max_epochs": 2}, {}, r"`epochs` must be in the space or come from .* epochs=1 and 2"),
        (keras_tuner.RandomSearch, {}, {"batch_size": 2}, "`batch_size` must be in the space or come from"),
        (keras_tuner.RandomSearch, {"executions_per_trial": 2}, {}, "`executions_per_trial` must be 1, as `restarts`"),
    ):
        with pytest.raises(ValueError, match=words):
            search(tuner_of(kind, tmp_path / words[:9], options), **given)
    assert not trainings.rows
    with pytest.raises(ValueError, match="`tuner` must have finished a trial"):
        kbz.tuning.best_preset(tuner_of(keras_tuner.RandomSearch, tmp_path / "new"))
    for options, words in (
        ({"grid": "large"}, "`grid` must be one of ('paper', 'small'). Received: grid='large'"),
        ({"search": "all"}, "`search` must be one of ('grid', 'random', "),
        ({"search": "hyperband", "trials": 3}, "`trials` must be None for hyperband"),
        (
            {"search": "hyperband", "batch_size": 8, "learning_rate": [i / 1000 for i in range(1, 5)]},
            "fewer than 5 points for 4 epochs. Received: 4 points",
        ),
        ({"batch_size": 0}, "`batch_size` must be a positive integer"),
        ({"epochs": None}, "`epochs` must be a value or a list of them. Received: epochs=None"),
        ({"lr": 3}, "A choice must be one of ('learning_rate', 'batch_size', "),
        ({}, "`data` must be a directory with train.tsv"),
    ):
        with short_error(words):
            tune(Run("mrpc", start, data=str(tmp_path)), tmp_path / "out", **options)
        assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match=r'`dtype` must be "mixed_bfloat16" to train'):
        tune(Run("mrpc", start, data=str(tmp_path), dtype="bfloat16"), tmp_path / "out")


def test_a_wrong_preset_and_half_a_shared_sweep_are_refused(start, tmp_path, monkeypatch):
    for part in ("train", "dev"):
        mrpc(tmp_path, part)
    with pytest.raises(ValueError, match=r"`preset` must be one of .* Received: preset='bert_bsae'"):
        tune(Run("mrpc", start, data=tmp_path, sequence_length=80), tmp_path / "out", preset=[start, "bert_bsae"])
    assert not (tmp_path / "out").exists()
    monkeypatch.setenv("KERASTUNER_ORACLE_IP", "127.0.0.1")
    with pytest.raises(ValueError, match=r"A shared sweep needs all of .* Received: no KERASTUNER_ORACLE_PORT"):
        tune(Run("mrpc", start, data=str(tmp_path)), tmp_path / "alone")
    monkeypatch.setenv("KERASTUNER_ORACLE_PORT", "1")
    monkeypatch.setenv("KERASTUNER_TUNER_ID", "one")
    times = [3601, 3599, 0]
    clock = SimpleNamespace(monotonic=lambda: times[-1], sleep=lambda _: times.pop())
    monkeypatch.setattr("keras_bert_zoo.tuning.sweep.time", clock)
    with pytest.raises(ValueError, match=r"must be the chief's directory\. Received: no .*sweep.json for an hour"):
        tune(Run("mrpc", start, data=tmp_path), tmp_path / "alone")
    assert times == [3601]


@pytest.mark.parametrize("missing, needed", [("keras_tuner", "Keras Tuner"), ("six", "six, for Keras Tuner")])
def test_a_missing_module_is_named(missing, needed, monkeypatch):
    class Missing:
        @staticmethod
        def find_spec(name, *_):
            if name == "keras_tuner":
                raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    for name in ("keras_tuner", "keras_bert_zoo.tuning.extra", "keras_bert_zoo.tuning.grid"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Missing, *sys.meta_path])
    for use in (lambda: tune(Run("mrpc", "start"), "out"), lambda: kbz.tuning.GridSearch):
        with pytest.raises(ValueError) as error:
            use()
        assert str(error.value) == (
            f"`tuning` needs {needed}: pip install \"keras-bert-zoo[tuner]\". Received: No module named '{missing}'"
        )


@slow_on("tensorflow", "jax")
def test_a_sweep_from_the_console_is_fine_tuning(start, tmp_path, capsys, monkeypatch):
    """The best trial's preset is, to the last bit, that of `finetune` with the trial's hyperparameters."""
    monkeypatch.chdir(tmp_path)
    for part in ("train", "dev"):
        mrpc(tmp_path, part)
    point = ("--learning-rate", "1e-2", "--batch-size", "4", "--epochs", "1", "--seed", "5")
    files = ("--data", ".", "--preset", "start", "--sequence-length", "80")
    assert cli.main(["tune", "mrpc", "--data", ".", "--preset", "strat", *point, "--out", "typo"]) == 2
    assert "`preset` must be one of" in capsys.readouterr().err
    assert not Path("typo").exists()
    command = ["tune", "mrpc", *files, *point, "--restarts", "2", "--out", "sweep"]
    assert cli.main(command) == 0
    results = json.loads(Path("sweep/results.json").read_text())
    assert capsys.readouterr().out.rstrip().endswith("results.json has the numbers")
    written = {path.name for path in Path("sweep").iterdir()} - {"sweep.png"}
    assert written == {"sweep.json", "trials", "preset", "results.json", "table.csv", "table.md"}
    assert not list(Path("sweep").rglob("checkpoint*"))
    done = json.loads(Path("sweep/trials/trial_0000/restarts.json").read_text())["restarts"]
    assert [one["seed"] for one in done] == [5, 6]
    objective = results["objective"]
    best = max(done, key=lambda one: one["scores"][objective])
    run = Run("mrpc", "start", data=".", sequence_length=80, learning_rate=1e-2, batch_size=4, epochs=1)
    alone = finetune(replace(run, seed=best["seed"]), "alone", verbose=0)
    assert {f"val_{name}": value for name, value in alone["scores"].items()}.items() <= best["scores"].items()
    theirs, ours = (load_file(f"{folder}/preset/model.safetensors") for folder in ("alone", "sweep"))
    assert theirs.keys() == ours.keys()
    for name, array in theirs.items():
        np.testing.assert_array_equal(ours[name], array, err_msg=name)
    row = results["rows"][0]
    scores = [one["scores"][objective] for one in done]
    assert (row[objective], row["std"]) == pytest.approx((np.mean(scores), np.std(scores, ddof=1)))
    capsys.readouterr()
    assert cli.main(command) == 0  # There is nothing left to do.
    assert capsys.readouterr().out.endswith("has the numbers (already finished; nothing was trained)\n")
    assert cli.main([*command, "--epochs", "2"]) == 2
    assert "`out` must be new, or hold a run of the same configuration. Received: space=" in capsys.readouterr().err


@slow_on("tensorflow", "jax")
def test_what_no_preset_holds_is_kept_as_a_file(start, tmp_path, monkeypatch):
    """The BiLSTM's sweep saves the file of the best point alone, which computes what that point trained."""
    words, tags = (
        [["a", "good", "film"], ["bad", "cast", "!"], ["so", "warm"]],
        [["O", "B-X", "O"], ["O"] * 3, ["O"] * 2],
    )
    head = {"class_names": ["O", "B-X"], "hidden_layers": [0, -1], "units": 4, "sequence_length": 16}
    space = {"learning_rate": [1e-5, 3e-2, 1e-6], "batch_size": 3, "epochs": 4, "seed": 5}
    without_cleaning(monkeypatch)
    hypermodel = kbz.tuning.TaskHyperModel(kbz.BertFeatureTokenClassifier, start, **space, **head)
    objective = keras_tuner.Objective("val_loss", "min")
    tuner = kbz.tuning.GridSearch(hypermodel, objective=objective, directory=tmp_path, project_name="sweep")
    tuner.search(words, tags, verbose=0, validation_data=(words, tags))
    row = kbz.tuning.table(tuner)[0]
    assert row["learning_rate"] == 3e-2
    kept = sorted(path.relative_to(tmp_path / "sweep").as_posix() for path in tmp_path.glob("sweep/trial_*/[mp]*"))
    assert kept == ["trial_0000/model.keras", "trial_0001/model.keras"]  # The third is no better.
    assert kbz.tuning.best_preset(tuner) == tmp_path / "sweep" / "trial_0001" / "model.keras"
    with pytest.raises(ValueError, match=r"`path` must end in .keras, as a preset .* Received: path='best'"):
        kbz.tuning.save_best(tuner, "best")
    kbz.tuning.save_best(tuner, tmp_path / "best.keras")
    tagger = keras.saving.load_model(tmp_path / "best.keras")
    assert tagger.evaluate(words, tags, batch_size=3, verbose=0, return_dict=True)["loss"] == pytest.approx(
        row["best"], abs=1e-6
    )


@slow_on("tensorflow", "jax")
def test_every_task_takes_a_dropout(start):
    """The weights are those of `from_preset` after the same seed, under the rate of the point."""
    names = ["O", "B-X"]
    for task, arguments in (
        (kbz.BertTextClassifier, {"class_names": names}),
        (kbz.BertTextRegressor, {}),
        (kbz.BertTokenClassifier, {"class_names": names}),
        (kbz.BertFeatureTokenClassifier, {"class_names": names, "hidden_layers": [0, -1], "units": 4}),
        (kbz.BertQuestionAnswerer, {"null_threshold": -1.5, "sequence_length": 80}),
        (kbz.BertMultipleChoice, {}),
    ):
        hypermodel = kbz.tuning.TaskHyperModel(task, start, dropout=[0.3, 0.1], seed=8, **arguments)
        model = hypermodel.build(keras_tuner.HyperParameters())
        keras.utils.set_random_seed(8)
        plain = task.from_preset(start, **arguments)
        for one, other in zip(model.get_weights(), plain.get_weights(), strict=True):
            np.testing.assert_array_equal(one, other)
        rates = {"dropout": 0.3, "attention_dropout": 0.3}
        assert model.backbone.architecture == {**plain.backbone.architecture, **rates}
        config = plain.head_config() | ({"dropout": 0.3} if "dropout" in plain.head_config() else {})
        assert (model.head_config(), model.settings()) == (config, plain.settings())
        schedule = model.optimizer._learning_rate
        assert (schedule.learning_rate, schedule.warmup) == (5e-5, 0.1)


# Runs until it is killed; a training takes a second longer, so that the kill comes within it.
SEARCHING = """
import json, sys, time
import keras_bert_zoo as kbz
from keras_bert_zoo.checks import NotANumberError
from keras_bert_zoo.finetuning import Run
from keras_bert_zoo.tuning import tune

fit = kbz.BertTextClassifier.fit
kbz.BertTextClassifier.fit = lambda *arguments, **options: (time.sleep(1), fit(*arguments, **options))[1]
run, out, grid = json.loads(sys.argv[1])
tune(Run(**run), out, verbose=0, **grid)
"""


@pytest.mark.slow
def test_a_sweep_whose_process_is_killed_goes_on(start, tmp_path, monkeypatch):
    """SIGKILL in the second point's second training: what was done is not done again, and the results are the same."""
    for part in ("train", "dev"):
        mrpc(tmp_path, part)
    run = {"task": "mrpc", "preset": start, "data": str(tmp_path), "sequence_length": 80}
    grid = {"learning_rate": [1e-2, 5e-3, 1e-3], "batch_size": 4, "epochs": 1, "restarts": 2, "seed": 7}
    killed = tmp_path / "killed"
    process = subprocess.Popen(
        [sys.executable, "-c", SEARCHING, json.dumps([run, str(killed), grid])],
        env={**os.environ, "PYTHONPATH": str(Path(kbz.__file__).parents[1])},
        stderr=subprocess.DEVNULL,
    )
    try:
        while not (killed / "trials" / "trial_0001" / "restarts.json").is_file():
            assert process.poll() is None
            time.sleep(0.01)
    finally:
        process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not (killed / "results.json").exists()
    trained, fit = [], kbz.BertTextClassifier.fit

    def keep(model, *arguments, **options):
        trained.append(model.optimizer._learning_rate.learning_rate)
        return fit(model, *arguments, **options)

    monkeypatch.setattr(kbz.BertTextClassifier, "fit", keep)
    again = tune(Run(**run), killed, verbose=0, **grid)
    assert trained == [5e-3, 1e-3, 1e-3]
    whole = tune(Run(**run), tmp_path / "whole", verbose=0, **grid)
    assert trained[3:] == [1e-2, 1e-2, 5e-3, 5e-3, 1e-3, 1e-3]
    for results in (again, whole):
        assert all(row.pop("seconds") > 0 for row in results["rows"])
    assert again == whole
    presets = [load_file(folder / "preset" / "model.safetensors") for folder in (killed, tmp_path / "whole")]
    assert presets[0].keys() == presets[1].keys()
    for name, array in presets[0].items():
        np.testing.assert_array_equal(array, presets[1][name], err_msg=name)


CONSOLE = "import sys; from keras_bert_zoo import cli; sys.exit(cli.main(sys.argv[1:]))"
SHARED = ["tune", "mrpc", "--data", ".", "--preset", "start", "--sequence-length", "80", "--epochs", "1"]
SHARED += ["--learning-rate", "1e-2", "5e-3", "1e-3", "--batch-size", "4", "8", "--out", "shared"]


def share(folder, command, code=CONSOLE):
    """Run a worker, a chief and another worker; return their exit statuses and stderr."""
    for part in ("train", "dev"):
        mrpc(folder, part)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"KERASTUNER_ORACLE_IP": "127.0.0.1", "KERASTUNER_ORACLE_PORT": port}
    path = str(Path(kbz.__file__).parents[1])
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, *command],
            env={**os.environ, "PYTHONPATH": path, **shared, "KERASTUNER_TUNER_ID": name},
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in ("one", "chief", "two")
    ]
    try:
        errors = [process.communicate(timeout=540)[1] for process in processes]
        return [(process.returncode, error) for process, error in zip(processes, errors, strict=True)]
    finally:
        for process in processes:
            process.kill()


# Keeps who ran which trial, which Keras Tuner does not; in its first trial the faster worker waits for the other's.
MARKED = """
import glob, os, time
from keras_bert_zoo.tuning.resuming import Resuming

run_trial = Resuming.run_trial

def marked(self, trial, *arguments, **options):
    with open(os.environ["KERASTUNER_TUNER_ID"] + ".ran", "a") as file:
        print(trial.trial_id, file=file)
    end = time.monotonic() + 300
    while len(glob.glob("*.ran")) < 2 and time.monotonic() < end:
        time.sleep(0.1)
    return run_trial(self, trial, *arguments, **options)

Resuming.run_trial = marked
"""


@pytest.mark.slow
def test_processes_share_a_sweep(start, tmp_path):
    """A chief and two workers find what one process finds, and each worker has a part in it."""
    for status, errors in share(tmp_path, [*SHARED, "--restarts", "2"], MARKED + CONSOLE):
        assert status == 0, errors[-3000:]
    assert {"one.json", "two.json", "chief.json"} <= {path.name for path in (tmp_path / "shared" / "trials").iterdir()}
    ran = {path.stem: path.read_text().split() for path in tmp_path.glob("*.ran")}
    assert set(ran) == {"one", "two"}
    assert sorted(ran["one"] + ran["two"]) == [f"{number:04d}" for number in range(6)]
    run = Run("mrpc", str(tmp_path / "start"), data=str(tmp_path), sequence_length=80)
    grid = {"learning_rate": [1e-2, 5e-3, 1e-3], "batch_size": [4, 8], "epochs": 1}
    alone = tune(run, tmp_path / "alone", restarts=2, verbose=0, **grid)
    together = json.loads((tmp_path / "shared" / "results.json").read_text())
    found = [
        sorted(
            (row["learning_rate"], row["batch_size"], round(row[results["objective"]], 6), round(row["std"], 6))
            for row in results["rows"]
        )
        for results in (alone, together)
    ]
    assert len(found[0]) == 6
    assert found[0] == found[1]
    assert (tmp_path / "shared" / "preset" / "model.safetensors").is_file()


@pytest.mark.slow
def test_a_shared_sweep_outlives_failures(start, tmp_path):
    """The workers end well, and the chief has the reasons, for which messages between them have no room."""
    broken = "import keras_bert_zoo as kbz; kbz.BertTextClassifier.fit = lambda *arguments, **options: 1 / 0; "
    (one, _), (chief, said), (two, _) = share(tmp_path, SHARED, broken + CONSOLE)
    assert (one, chief, two) == (0, 2, 0)
    why = ", ".join(f"trial {number:04d} (ZeroDivisionError: division by zero)" for number in range(6))
    assert said.rstrip().endswith(f"Received: 6 of 6 failed: {why}")
    for status, errors in share(tmp_path, SHARED):
        assert status == 0, errors[-3000:]
    results = json.loads((tmp_path / "shared" / "results.json").read_text())
    assert [row["status"] for row in results["rows"]] == ["COMPLETED"] * 6


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer")  # Keras Tuner says so of promoted trials.
@pytest.mark.parametrize(
    "options", [{"search": "random", "trials": 2}, {"search": "bayesian"}, {"search": "hyperband"}]
)
def test_other_searches_train(options, start, tmp_path):
    for name in ("train", "dev"):
        rows = (f"{text}\t{i % 2}" for i, text in enumerate(SENTENCES))
        write(tmp_path / f"{name}.tsv", "text\tlabel", *rows)
    run = Run("texts", start, data=str(tmp_path), sequence_length=16)
    rates = [i / 1000 for i in range(1, 7)] if options["search"] == "hyperband" else [1e-2, 1e-3]
    grid = {"learning_rate": rates, "batch_size": 8, "epochs": [1, 3]}
    results = tune(run, tmp_path / "sweep", verbose=0, **options, **grid)
    assert all(row["status"] == "COMPLETED" for row in results["rows"])
    epochs = Counter(row["epochs"] for row in results["rows"])
    if options["search"] == "hyperband":  # By thirds: 3 points of 1 epoch, of which 1 gets 3, and 2 of 3.
        assert epochs == {1: 3, 3: 1 + 2}
    else:
        assert set(epochs) <= {1, 3}
        assert epochs.total() == {"random": 2, "bayesian": 4}[options["search"]]
    classifier = kbz.BertTextClassifier.from_preset(tmp_path / "sweep" / "preset")
    said = [classifier.class_names[i] for i in classifier.predict(SENTENCES, verbose=0).argmax(-1)]
    assert np.mean([one == other for one, other in zip(said, "01" * 4, strict=True)]) == results["rows"][0]["best"]


def test_trainings_of_another_point_do_not_count(tmp_path):
    for seed, seconds in ((5, 1.0), (6, 2.5)):
        Restarts(tmp_path, {"learning_rate": 1e-3}).add(seed, seconds, {"val_accuracy": 0.5})
    same = Restarts(tmp_path, {"learning_rate": 1e-3})
    assert (same.seeds, same.seconds) == ({5, 6}, 3.5)
    assert Restarts(tmp_path, {"learning_rate": 1e-4}).seeds == set()


def test_options_at_the_console(monkeypatch):
    seen = []
    monkeypatch.setattr("keras_bert_zoo.cli.finetuning.tune", lambda run, out, **options: seen.append(options))
    options = "--grid small --search random --trials 8 --restarts 2 --dropout 0.1 0.2"
    assert cli.main(f"tune sst2 --preset bert_tiny {options} --out x".split()) == 0
    said = {"grid": "small", "search": "random", "trials": 8, "restarts": 2, "dropout": [0.1, 0.2]}
    assert seen == [{"verbose": 1, "preset": "bert_tiny", **said}]


def test_a_sweep_has_the_run_s_precision_and_warm_up(start, tmp_path, monkeypatch):
    for part in ("train", "dev"):
        mrpc(tmp_path, part)
    seen = []

    def fit(self, *arguments, **options):
        seen.append((self.backbone.embeddings.compute_dtype, self.optimizer._learning_rate.warmup))
        history = keras.callbacks.History()
        history.history = {"loss": [1.0], "val_accuracy": [0.5], "val_f1": [0.5]}
        return history

    monkeypatch.setattr(kbz.BertTextClassifier, "fit", fit)
    run = Run("mrpc", start, data=tmp_path, sequence_length=80, dtype="mixed_bfloat16", warmup=0.25)
    tune(run, tmp_path / "out", verbose=0, learning_rate=1e-3, batch_size=4, epochs=1)
    assert seen == [("bfloat16", 0.25)]
