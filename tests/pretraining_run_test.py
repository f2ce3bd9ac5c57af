"""Runs that survive interruptions, and the console script from text to preset."""

import csv
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from safetensors import SafetensorError

import keras_bert_zoo as kbz
from keras_bert_zoo import cli
from keras_bert_zoo.pretraining import PretrainingBatches, Run, prepare, pretrain
from keras_bert_zoo.pretraining.progress import Speed
from keras_bert_zoo.training.runs import SaveState, State, StopAtNaN, held, keep_rows
from tests.helpers import SHALLOW, WORDS, broken_off, numpy, short_error, slow_on

SENTENCES = [
    "a good film",
    "it was fine .",
    "so warm",
    "the plot is dull",
    "bad cast !",
    "very , very slow",
    "not good",
]
TEXT = "\n\n".join("\n".join(SENTENCES[(i + j) % 7] for j in range(5)) for i in range(60))


@pytest.fixture
def run(tmp_path, tokenizer):
    (tmp_path / "text").write_text(TEXT)
    prepare([tmp_path / "text"], tmp_path / "data", tokenizer, sequence_length=16, verbose=False)
    kbz.BertPretrainer(kbz.BertBackbone(**SHALLOW), kbz.BertPreprocessor(tokenizer, 16)).save_to_preset(
        tmp_path / "start"
    )
    return Run(
        str(tmp_path / "data"), str(tmp_path / "start"), steps=12, batch_size=16, learning_rate=1e-2, save_every=4
    )


def weights(folder):
    model = kbz.BertPretrainer.from_preset(folder / "preset")
    return {weight.path: numpy(weight) for weight in model.weights}


def started(run, out):
    """Start a process of the run; a batch takes 0.3 seconds, and moving a written file into place takes 0.1."""
    config = {name: getattr(run, name) for name in Run.__dataclass_fields__}
    code = (
        "import json, os, sys, time; from keras_bert_zoo.pretraining import PretrainingBatches, Run, pretrain\n"
        "make = PretrainingBatches.part_of\n"
        "PretrainingBatches.part_of = lambda self, *place: (time.sleep(0.3), make(self, *place))[1]\n"
        "replace = os.replace; os.replace = lambda *paths: (time.sleep(0.1), replace(*paths))[1]\n"
        "pretrain(Run(**json.loads(sys.argv[1])), sys.argv[2], verbose=0)"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, json.dumps(config), str(out)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        stderr=subprocess.DEVNULL,
    )


def times(folder, name):
    found = {}
    for path in folder.glob(name):
        with suppress(FileNotFoundError):  # A file written beside another may just have taken its place.
            found[path] = path.stat().st_mtime_ns
    return found


def wait_for(process, folder, name):
    """Wait until a file of such a name appears or changes; return False if the process ends first."""
    before = times(folder, name)
    for _ in range(12000):
        if times(folder, name) != before:
            return True
        if process.poll() is not None:
            return False
        time.sleep(0.01)
    process.kill()
    raise TimeoutError


def check_same_ends(killed, whole, epochs):
    expected = weights(whole)
    for path, weight in weights(killed).items():
        np.testing.assert_array_equal(weight, expected[path], err_msg=path)
    with (killed / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == [str(epoch) for epoch in range(epochs)]
    assert all(float(row["tokens_per_second"]) > 0 for row in rows)


def test_a_killed_run_ends_with_the_same_weights(run, tmp_path):
    """Dropout is on, so that its random state counts, and the data set draws masks in training."""
    pretrain(run, tmp_path / "whole", verbose=0)
    killed = tmp_path / "killed"
    process = started(run, killed)
    assert wait_for(process, killed, "state.safetensors")
    time.sleep(0.6)  # In the middle of the next epoch.
    assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (killed / "preset").exists()
    pretrain(run, killed, verbose=0)
    check_same_ends(killed, tmp_path / "whole", 3)


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_weights(run, tmp_path):
    """Killed before its first step, when a state is written but not yet in place, within epochs, and at its preset."""
    run = replace(run, save_every=2)
    pretrain(run, tmp_path / "whole", verbose=0)
    killed, chance = tmp_path / "killed", random.Random(5)
    state = "state.safetensors"
    signs = ("run.json", ".state.part*", state, ".state.part*", state, state, ".preset.*")
    for number, sign in enumerate(signs):
        assert (killed / state).is_file() == (number > 2)
        process = started(run, killed)
        assert wait_for(process, killed, sign)
        time.sleep(chance.uniform(0.0, 0.6) if sign == state else 0)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    process = started(run, killed)
    assert process.wait() == 0
    check_same_ends(killed, tmp_path / "whole", 6)


SMALL = {name: SHALLOW[name] for name in ("num_layers", "num_heads", "hidden_dim", "intermediate_dim")}


@slow_on("tensorflow", "jax")
@pytest.mark.parametrize(
    "changes, optimizer",
    [
        ({"optimizer": "lamb"}, kbz.Lamb),
        ({"dropout": 0.2}, kbz.AdamW),
        ({"preset": "bert_tiny", "architecture": SMALL}, kbz.AdamW),
        ({"dtype": "mixed_float16"}, kbz.LossScaleOptimizer),
    ],
)
def test_precision_and_optimizer_are_the_run_s(run, tmp_path, monkeypatch, changes, optimizer):
    monkeypatch.setattr("keras_bert_zoo.pretraining.progress.peak_flops", lambda dtype: 1e9)  # Takes seconds.
    told = replace(run, **{"dtype": "mixed_bfloat16", "steps": 1, "save_every": 1, **changes})
    model = pretrain(told, tmp_path / "run", verbose=0)
    assert f"mixed_{model.backbone.embeddings.compute_dtype}" == told.dtype
    assert isinstance(model.optimizer, optimizer)


def test_another_run_is_not_overwritten(run, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="`out` must be a new or empty directory"):
        pretrain(run, tmp_path / "full")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text(json.dumps({"data": run.data, "steps": 8}))
    with pytest.raises(ValueError, match=r"hold a run of the same configuration. Received: .*steps=12, before 8"):
        pretrain(run, tmp_path / "run")


def test_a_mistake_does_not_lock_the_directory(run, tmp_path):
    other = kbz.BertTokenizer([*WORDS, "zebra"])
    backbone = kbz.BertBackbone(**SHALLOW)
    kbz.BertPretrainer(backbone, kbz.BertPreprocessor(other, 16)).save_to_preset(tmp_path / "other")
    for mistake, words in (
        ({"data": str(tmp_path / "dta")}, "`path` must be a data set"),
        ({"preset": "bert_tny"}, "`preset` must be one of"),
        ({"preset": str(tmp_path / "other")}, "`preset` must have the vocabulary and the tokenizer of the data set"),
        ({"warmup": 2.0}, "`warmup`"),
    ):
        with short_error(words, longest=400):  # It lists all names of presets.
            pretrain(replace(run, **mistake), tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_a_state_that_is_not_finite_is_not_kept(run, tmp_path):
    with pytest.raises(ValueError, match=r"must be finite. Received: .*"):
        pretrain(replace(run, learning_rate=3e38, warmup=0.0, steps=2, save_every=1), tmp_path / "run", verbose=0)
    assert not (tmp_path / "run" / "state.safetensors").exists()


@pytest.mark.parametrize("epoch_steps, place", [(50, "step 150"), (None, "epoch 3")])
def test_the_place_of_a_weight_that_is_no_number(epoch_steps, place, classifier, tmp_path):
    state = State(classifier, tmp_path / "state.safetensors", "", epoch_steps)
    classifier.layers[-1].bias.assign([0, np.inf, 0])
    words = rf"must be finite\. Received: infinite or NaN values after {place}; there is no state yet"
    with pytest.raises(ValueError, match=words):
        state.save(3)


def test_a_state_that_is_half_written_leaves_the_last_one(classifier, tmp_path, monkeypatch):
    """Newer releases of safetensors ensure it themselves, but not all that we accept."""
    state = State(classifier, tmp_path / "state.safetensors", data="")
    state.save(1)
    before = state.path.read_bytes()

    def break_off(arrays, path, metadata):
        Path(path).write_bytes(before[:100])
        raise KeyboardInterrupt

    monkeypatch.setattr("safetensors.numpy.save_file", break_off)
    with pytest.raises(KeyboardInterrupt):
        state.save(2)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == {state.path: before}


def test_a_full_disk_is_named_and_what_a_kill_left_is_removed(classifier, tmp_path, monkeypatch):
    state = State(classifier, tmp_path / "state.safetensors", data="")
    for name in (".tmpAb3dEf", ".tmp"):
        (tmp_path / name).write_text("")

    def fail(arrays, path, metadata):
        raise SafetensorError("No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("safetensors.numpy.save_file", fail)
        with pytest.raises(
            OSError, match=r"state.safetensors could not be written completely. Received: No space left"
        ):
            state.save(1)
    state.save(1)
    assert {path.name for path in tmp_path.iterdir()} == {"state.safetensors", ".tmp"}


def test_a_run_is_of_one_process(run, tmp_path):
    config = tmp_path / "run" / "run.json"
    with (
        held(config, {}),
        pytest.raises(ValueError, match=r"must not be in use by another process. Received: out='.*run'"),
    ):
        pretrain(run, tmp_path / "run", verbose=0)
    assert not config.parent.exists()


def test_a_directory_that_another_start_made_stays(tmp_path, monkeypatch):
    """It is made between our look and our lock."""
    fcntl = pytest.importorskip("fcntl")

    def refuse(*arguments):
        raise BlockingIOError

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        pytest.raises(ValueError, match="must not be in use by another process"),
        held(tmp_path / "run" / "run.json", {}),
    ):
        pytest.fail("it was held")
    assert (tmp_path / "run").is_dir()


@slow_on("tensorflow", "jax")
def test_held_out_text_stays(run, tmp_path, tokenizer):
    (tmp_path / "other").write_text(TEXT.replace("warm", "cold"))
    run = replace(run, steps=2, save_every=1, validation=str(tmp_path / "held_out"))
    options = {"sequence_length": 16, "verbose": False}
    prepare([tmp_path / "text"], run.validation, tokenizer, seed=3, **options)
    with broken_off():
        pretrain(run, tmp_path / "run", verbose=0)
    shutil.rmtree(run.validation)
    prepare([tmp_path / "other"], run.validation, tokenizer, seed=3, **options)
    with pytest.raises(ValueError, match=r"The data of the run in .* must be the data that it began with"):
        pretrain(run, tmp_path / "run", verbose=0)


@slow_on("tensorflow", "jax")
def test_a_finished_run_is_left_as_it_is(run, tmp_path):
    short = replace(run, steps=4)
    pretrain(short, tmp_path / "run", verbose=0)
    before = (tmp_path / "run" / "state.safetensors").read_bytes()
    pretrain(short, tmp_path / "run", verbose=0)
    assert (tmp_path / "run" / "state.safetensors").read_bytes() == before


def test_a_run_that_makes_no_sense_leaves_its_directory_free(run, tokenizer, tmp_path):
    (tmp_path / "text").write_text(TEXT)
    prepare(
        [tmp_path / "text"], tmp_path / "unpaired", tokenizer, sequence_length=16, next_sentence=False, verbose=False
    )
    for changes, words in (
        ({"architecture": {"num_segments": 1}}, "Pairs need a backbone with two segment types"),
        ({"validation": str(tmp_path / "unpaired")}, "`validation` must be PretrainingBatches(next_sentence=True)"),
        ({"architecture": {"max_sequence_length": 8}}, "`sequence_length` must be at most the backbone's"),
        ({"architecture": {"vocabulary_size": 5}}, "a vocabulary no larger than the backbone's embedding"),
    ):
        with short_error(words):
            pretrain(Run(run.data, "bert_tiny", steps=2, save_every=2, batch_size=8, **changes), tmp_path / "out")
        assert not (tmp_path / "out").exists()


@slow_on("tensorflow", "jax")
def test_a_compiled_run_is_the_same_run(run, tmp_path, traced_only):
    run = replace(run, steps=4, dropout=0.0)
    model = pretrain(replace(run, jit_compile=True), tmp_path / "compiled", verbose=0)
    assert model.jit_compile
    if keras.backend.backend() == "torch":
        from keras_bert_zoo.layers.torch_compiled import _programs

        assert _programs[model]
        assert all(_programs[model].values())  # None was given up.
    pretrain(run, tmp_path / "not", verbose=0)
    expected = weights(tmp_path / "not")
    for path, weight in weights(tmp_path / "compiled").items():
        np.testing.assert_allclose(weight, expected[path], atol=1e-5, err_msg=path)


@slow_on("tensorflow", "jax")
def test_an_embedding_of_more_rows_than_tokens(run, tokenizer, tmp_path):
    rows = replace(run, preset="bert_tiny", architecture={**SMALL, "vocabulary_size": 128}, steps=2, save_every=2)
    pretrain(rows, tmp_path / "run", verbose=0)
    model = kbz.BertPretrainer.from_preset(tmp_path / "run" / "preset")
    assert model.backbone.embeddings.token_embedding.embeddings.shape[0] == 128
    assert model.preprocessor.tokenizer.vocabulary == tokenizer.vocabulary
    found = model.fill_mask("a [MASK] film", top_k=tokenizer.vocabulary_size)[0]
    assert {token for token, _ in found} == set(tokenizer.vocabulary)
    assert sum(probability for _, probability in found) == pytest.approx(1, abs=1e-5)


def test_a_state_stays_with_its_backend(run, tmp_path):
    short = replace(run, steps=2, save_every=1)
    pretrain(short, tmp_path / "run", verbose=0)
    state = tmp_path / "run" / "state.safetensors"
    backend = keras.backend.backend()
    other = "x" * len(backend)  # The header keeps its length.
    written = state.read_bytes()
    assert written.count(f'"backend":"{backend}"'.encode()) == 1
    state.write_bytes(written.replace(f'"backend":"{backend}"'.encode(), f'"backend":"{other}"'.encode()))
    with pytest.raises(
        ValueError, match=f"KERAS_BACKEND must be {other}, the backend on which .* began. Received: {backend}"
    ):
        pretrain(short, tmp_path / "run", verbose=0)
    for damaged in (b"", written[:100], b"\x02" + b"\0" * 7 + b"{}"):
        state.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"state.safetensors must be the state of this run. Received: "):
            pretrain(short, tmp_path / "run", verbose=0)


@slow_on("tensorflow", "jax")
def test_a_state_stays_with_its_data(run, tmp_path):
    short = replace(run, steps=2, save_every=1)
    pretrain(short, tmp_path / "run", verbose=0)

    def change(text, seed, vocabulary):
        shutil.rmtree(run.data)
        prepare([text], run.data, kbz.BertTokenizer(WORDS), sequence_length=16, seed=seed, verbose=False)
        kbz.write_vocabulary(Path(run.data) / "vocab.txt", vocabulary)
        preprocessor = kbz.BertPreprocessor(kbz.BertTokenizer(vocabulary), 16)
        kbz.BertPretrainer(kbz.BertBackbone(**SHALLOW), preprocessor).save_to_preset(run.preset)

    (tmp_path / "other").write_text(TEXT.replace("warm", "cold"))
    for text, seed, vocabulary in (
        ("text", 1, WORDS),
        ("other", 12345, WORDS),  # It has as many bytes and examples.
        ("text", 12345, [*WORDS[:-2], *WORDS[:-3:-1]]),
    ):
        change(tmp_path / text, seed, vocabulary)
        with pytest.raises(
            ValueError, match=r"The data of the run in .* must be the data that it began with. Received: different"
        ):
            pretrain(short, tmp_path / "run", verbose=0)
    change(tmp_path / "text", 12345, WORDS)
    pretrain(short, tmp_path / "run", verbose=0)


def test_a_log_of_windows_has_each_epoch_once(tmp_path):
    """Keras' CSVLogger ends its lines there with two carriage returns."""
    (tmp_path / "log.csv").write_bytes(b"epoch,loss\r\r\n0,3\r\r\n1,2\r\r\n2,1\r\r\n")
    keep_rows(tmp_path / "log.csv", 2)
    assert (tmp_path / "log.csv").read_text() == "epoch,loss\n0,3\n1,2\n"


@slow_on("tensorflow", "jax")
def test_a_log_has_each_epoch_once(run, tmp_path, monkeypatch):
    """It is killed after the log is written but before the state, and in the middle of the very first file."""
    short = replace(run, steps=3, save_every=1)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".run.part.json").write_text("{")
    save = SaveState.on_epoch_end

    def stop(self, epoch, logs=None):
        if epoch == 1:
            raise KeyboardInterrupt
        save(self, epoch, logs)

    monkeypatch.setattr(SaveState, "on_epoch_end", stop)
    with pytest.raises(KeyboardInterrupt):
        pretrain(short, tmp_path / "run", verbose=0)
    log = tmp_path / "run" / "log.csv"
    assert len(log.read_text().splitlines()) == 3
    monkeypatch.undo()
    pretrain(short, tmp_path / "run", verbose=0)
    with log.open() as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == ["0", "1", "2"]


def test_bad_configurations():
    for options, words in (
        (
            {"steps": 10, "save_every": 4},
            "`save_every`, the updates between two states, must divide `steps`, or be left out. "
            "Received: save_every=4, steps=10",
        ),
        ({"steps": 10, "save_every": 0}, "`save_every` must be a positive integer"),
        ({"steps": 0}, "`steps` must be a positive integer"),
        ({"steps": 2**63}, "`steps` must be at most 2147483647. Received: steps=9223372036854775808"),
        ({"learning_rate": 10**400}, "`learning_rate` must be a positive number. Received: learning_rate=1000"),
        ({"optimizer": "sgd"}, "`optimizer` must be one of ['adamw', 'lamb']"),
        ({"batch_size": 0}, "`batch_size` must be"),
        ({"learning_rate": -1.0}, "`learning_rate` must be"),
        ({"batch_size": 10, "gradient_accumulation_steps": 4}, "`gradient_accumulation_steps` must divide"),
        ({"dropout": 1.5}, "`dropout` must be a number in [0, 1)"),
        ({"dtype": "bfloat16"}, '`dtype` must be "mixed_bfloat16" to train'),
        ({"steps_per_execution": 0}, "`steps_per_execution` must be"),
        ({"warmup": 1.0}, "`warmup` must be a number in [0, 1). Received: warmup=1.0"),
        ({"warmup": "0.1"}, "`warmup` must be of type float. Received: warmup='0.1'"),
        ({"seed": "x"}, "`seed` must be of type int. Received: seed='x'"),
        ({"seed": -1}, "`seed` must be an integer in [0, 2**32). Received: seed=-1"),
        ({"strategy": 3}, "`strategy` must be of type str | None. Received: strategy=3"),
        ({"steps": True}, "`steps` must be of type int. Received: steps=True"),
        ({"preset": None}, "`preset` must be of type str. Received: preset=None"),
    ):
        with short_error(words):
            Run("data", **options)


@pytest.mark.parametrize(
    "steps, expected",
    [
        (10_000, 500),
        (20_000, 500),
        (60, 60),
        (7, 7),
        (1, 1),
        (750, 375),
        (501, 167),
        (7038, 414),
        (509, 509),
        (1018, 509),
        (10**9 + 7, 10**9 + 7),
    ],
)
def test_states_are_bearably_far_apart(steps, expected):
    """Worked out by hand: 501 is 3 x 167, 7038 is 17 x 414, 509 is a prime number."""
    assert Run("data", steps=steps).save_every == expected
    assert Run("data", steps=steps, save_every=1).save_every == 1


@pytest.mark.skipif(keras.backend.backend() == "torch", reason="Keras returns to Python after each batch there.")
def test_states_of_a_stream_are_whole_executions_apart():
    """900 steps, 8 batches per execution, 2 per update: an execution has 4 updates, of which 450 is no multiple."""
    records = {"vocab": "vocab.txt", "gradient_accumulation_steps": 2, "steps_per_execution": 8}
    assert Run("*.tfrecord", steps=900, **records).save_every == 300
    assert Run("data", steps=900, gradient_accumulation_steps=2, steps_per_execution=8).save_every == 450
    with pytest.raises(ValueError, match="Received: steps_per_execution=8, of 1802"):
        Run("*.tfrecord", steps=901, **records)


def test_the_step_of_a_nan():
    """Six batches, two per update: the last execution of four has only two batches."""
    callback = StopAtNaN(SimpleNamespace(epoch_steps=3, last=lambda: "no state"))
    callback.set_params({"steps": 6})
    for epoch, batch, step in ((1, 7, 6), (1, 3, 5), (0, 0, 1), (1, 7, 1)):
        callback.on_epoch_begin(epoch)
        with pytest.raises(ValueError, match=f"after step {step}; no state"):
            callback.on_train_batch_end(batch, {"loss": np.nan})


def test_a_nan_stops_the_run(run, tmp_path):
    start = kbz.BertPretrainer.from_preset(run.preset)
    start.weights[0].assign(np.full(start.weights[0].shape, np.nan))
    start.save_to_preset(tmp_path / "nan")
    with pytest.raises(ValueError, match=r"The loss must be finite. Received: nan after step 1; there is no state yet"):
        pretrain(
            Run(run.data, str(tmp_path / "nan"), steps=4, batch_size=16, save_every=4), tmp_path / "run", verbose=0
        )


def test_a_nan_leaves_the_last_state(run, tmp_path, monkeypatch):
    save = SaveState.on_epoch_end

    def save_and_poison(self, epoch, logs=None):
        save(self, epoch, logs)
        weight = self.model.weights[0]
        weight.assign(np.full(weight.shape, np.nan))

    monkeypatch.setattr(SaveState, "on_epoch_end", save_and_poison)
    last = re.escape(str(tmp_path / "run" / "state.safetensors"))
    with pytest.raises(ValueError, match=rf"step \d+.*the last state is {last}"):
        pretrain(replace(run, steps=2, save_every=1), tmp_path / "run", verbose=0)


@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="Keras reads each step's loss on TensorFlow.")
def test_no_step_waits_for_the_loss_of_the_one_before(run, tmp_path, monkeypatch):
    threads, original = [], Speed.on_train_batch_end

    def recorded(*arguments, **options):
        threads.append(threading.current_thread())
        original(*arguments, **options)

    monkeypatch.setattr(Speed, "on_train_batch_end", recorded)
    pretrain(replace(run, steps=2, save_every=1), tmp_path / "run", verbose=0)
    assert len(threads) == 2
    assert threading.main_thread() not in threads


@slow_on("tensorflow", "jax")
def test_from_text_to_preset(tmp_path, capsys, monkeypatch, caplog):
    (tmp_path / "text").write_text(TEXT)
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        return cli.main(list(arguments))

    assert run("vocab", "text", "--size", "60", "--out", "vocab.txt") == 0
    assert run("prepare", "text", "gone", "--vocab", "vocab.txt", "--sequence-length", "16", "--out", "data") == 0
    shown = capsys.readouterr()
    assert "sentences; skipped: 1\nskipped: gone must be a text file" in shown.out
    examples = json.loads(Path("data/dataset.json").read_text())["examples"]
    assert re.search(rf"\r100%  {examples} examples  [\d,]+/s  0 s left $", shown.err.removesuffix("\n"))
    monkeypatch.setattr("keras_bert_zoo.pretraining.run.load_preset", small_preset)
    options = ("--data", "data", "--steps", "2", "--save-every", "1", "--batch-size", "8", "--optimizer", "lamb")
    assert run("pretrain", *options, "--out", "run") == 0
    assert "bert_tiny gives only the architecture: weights start at random" in caplog.text
    *_, line, last = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"run/preset: [\d,]+ weights", last)
    assert all(f" - {name}: " in line for name in ("loss", "mlm_accuracy", "nsp_accuracy", "tokens_per_second", "mfu"))
    config = json.loads(Path("run/run.json").read_text())
    assert (config["optimizer"], config["data"], config["preset"]) == ("lamb", str(tmp_path / "data"), "bert_tiny")
    assert run("pretrain", *options, "--out", "run") == 0
    assert capsys.readouterr().out == f"{last} (already finished; nothing was trained)\n"
    Path("elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert run("pretrain", "--config", "../run/run.json", "--steps", "3", "--out", "../again") == 0
    monkeypatch.chdir(tmp_path)
    assert json.loads(Path("again/run.json").read_text())["save_every"] == 3
    caplog.clear()
    assert run("pretrain", *options, "--preset", "run/preset", "--out", "on") == 0
    assert "random" not in caplog.text
    model = kbz.BertPretrainer.from_preset("run/preset")
    assert model.preprocessor.tokenizer.vocabulary == kbz.BertTokenizer("vocab.txt").vocabulary
    assert len(model.fill_mask("the [MASK] is dull", 2)[0]) == 2
    capsys.readouterr()
    for arguments, words in (
        (("pretrain", "--out", "run2"), "--data or --config must be given"),
        (("pretrain", "--config", "gone", "--out", "run2"), "--config must be a file. Received: gone"),
        (("pretrain", "--config", "data/dataset.json", "--out", "run2"), "must be the configuration of a run"),
        (("vocab", "gone", "--size", "9", "--out", "v"), "gone must be a text file"),
        (("prepare", "text", "--vocab", "gone", "--out", "d"), "The vocabulary must be a text file (No such file"),
        (("prepare", "text", "--vocab", "vocab.txt", "--masking", '{"share": 1}', "--out", "d"), "`masking` must be a"),
        (("vocab", "text", "--size", "60", "--out", "gone/v"), "--out must be a file in an existing directory"),
    ):
        assert run(*arguments) == 2
        assert words in capsys.readouterr().err


def test_masks_of_other_shares_from_the_console(tmp_path, monkeypatch):
    """All that is predicted is masked, and it is the same share of each example, even of the longest."""
    (tmp_path / "text").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["vocab", "text", "--size", "60", "--out", "vocab.txt"]) == 0
    masking = '{"mask": 1.0, "random": 0.0, "rate": 0.2}'
    length = ("--sequence-length", "20", "--short-rate", "0")
    fixed = ("--fix-masks", "--masking", masking, "--out", "data")
    assert cli.main(["prepare", "text", "--vocab", "vocab.txt", *length, *fixed]) == 0
    batches = PretrainingBatches("data", batch_size=1)
    assert (batches.shard.mask_replacements == batches.tokenizer.mask_token_id).all()
    predictions = np.diff(batches.shard.mask_ends, prepend=0)
    lengths = np.diff(batches.shard.ends, prepend=0)
    np.testing.assert_array_equal(predictions, np.rint(lengths * 0.2))
    assert (lengths == 20).any()


def small_preset(name, load_weights):
    from keras_bert_zoo.presets import load_preset

    checkpoint = load_preset(name, load_weights)
    checkpoint.backbone.update(num_layers=1, hidden_dim=16, num_heads=2, intermediate_dim=16)
    return checkpoint


@pytest.mark.parametrize("command", ["vocab", "prepare", "records", "pretrain"])
def test_help_shows_examples(command, capsys, monkeypatch):
    with pytest.raises(SystemExit) as leaves:
        cli.main([command, "--help"])
    assert leaves.value.code == 0
    examples = capsys.readouterr().out.split("keras-bert-zoo ")
    assert len(examples) > 3
    monkeypatch.setattr(f"keras_bert_zoo.cli.pretraining._{command}", lambda options: None)
    for example in examples[2:]:  # After the usage.
        words = shlex.split(example.split("\n\n")[0].replace("\\\n", " "))
        assert cli.main(words) == 0


@slow_on("tensorflow", "jax")
def test_dropout_is_the_run_s_and_the_preset_keeps_its_own(run, tmp_path):
    """Without dropout the steps are those of a loop over the same batches; held-out text is scored as they go."""
    run = replace(run, dropout=0.0, validation=run.data)
    pretrain(run, tmp_path / "run", verbose=0)
    saved = kbz.BertPretrainer.from_preset(tmp_path / "run" / "preset")
    assert saved.backbone.architecture["dropout"] == saved.backbone.architecture["attention_dropout"] == 0.1
    start = kbz.BertPretrainer.from_preset(run.preset)
    still = kbz.BertPretrainer(kbz.BertBackbone(**SHALLOW, dropout=0.0, attention_dropout=0.0), start.preprocessor)
    still.set_weights(start.get_weights())
    still.compile(kbz.AdamW(kbz.WarmupPolynomialDecay(run.learning_rate, run.warmup, run.steps)))
    batches = PretrainingBatches(run.data, run.batch_size, seed=run.seed, epoch_batches=run.save_every)
    still.fit(batches, epochs=3, verbose=0)
    expected = {weight.path: numpy(weight) for weight in still.weights}
    for path, weight in weights(tmp_path / "run").items():
        np.testing.assert_allclose(weight, expected[path], atol=1e-6, err_msg=path)
    held_out = PretrainingBatches(run.data, run.batch_size, seed=0)  # Whatever seed the run has.
    loss = still.evaluate(held_out, verbose=0, return_dict=True)["loss"]
    with (tmp_path / "run" / "log.csv").open() as file:
        logged = [float(row["val_loss"]) for row in csv.DictReader(file)]
    assert len(logged) == 3
    assert logged[-1] == pytest.approx(loss, abs=1e-5)


@slow_on("tensorflow", "jax")
@pytest.mark.parametrize("whole_words", [False, True])
def test_an_update_in_parts_is_the_same_update(run, tmp_path, whole_words):
    """Parts may have few predictions or many, but all predictions of an update count alike."""
    run = replace(run, dropout=0.0, steps=4, masking={"whole_words": whole_words, "rate": 0.3})
    parts = PretrainingBatches(run.data, 4, gradient_accumulation_steps=4)
    assert len({(parts[i][2]["mlm"] > 0).sum() for i in range(4)}) > 1
    pretrain(run, tmp_path / "whole", verbose=0)
    pretrain(replace(run, gradient_accumulation_steps=4), tmp_path / "parts", verbose=0)
    expected = weights(tmp_path / "whole")
    for path, weight in weights(tmp_path / "parts").items():
        np.testing.assert_allclose(weight, expected[path], atol=2e-5, err_msg=path)


@slow_on("jax")
def test_batches_between_two_returns_to_python(run, tmp_path):
    if keras.backend.backend() == "torch":
        with pytest.raises(ValueError, match="`steps_per_execution` must be 1 on PyTorch"):
            replace(run, steps_per_execution=2)
        return
    pretrain(replace(run, steps=4), tmp_path / "one", verbose=0)
    pretrain(replace(run, steps=4, steps_per_execution=2), tmp_path / "two", verbose=0)
    expected = weights(tmp_path / "one")
    for path, weight in weights(tmp_path / "two").items():
        np.testing.assert_allclose(weight, expected[path], atol=1e-6, err_msg=path)


@slow_on("tensorflow", "jax")
def test_the_log_and_tensorboard_say_how_fast(run, tmp_path, monkeypatch):
    """`mfu` follows from the rate and the operations of an example: 3 x 2 x the multiplications, counted by hand."""
    monkeypatch.setattr("keras_bert_zoo.pretraining.progress.peak_flops", lambda dtype: 1e9)
    pretrain(run, tmp_path / "run", verbose=0)
    with (tmp_path / "run" / "log.csv").open() as file:
        rows = [{name: float(value) for name, value in row.items() if value != "NA"} for row in csv.DictReader(file)]
    length = PretrainingBatches(run.data, 16).mean_length
    layer = 4 * 8 * 8 + 2 * 8 * 16 + 2 * 8 * length  # Four projections, feed-forward, scores and their sums.
    head = 8 * 8 + 8 * 40
    multiplications = length * layer + 0.15 * length * head + 8 * 8
    for row in rows:
        assert row["tokens_per_second"] > 0
        assert row["mfu"] == pytest.approx(row["tokens_per_second"] / length * 6 * multiplications / 1e9)
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    for name in ("loss", "mlm_accuracy", "nsp_accuracy", "tokens_per_second", "mfu"):
        scalars = events.Tensors(name)
        assert [event.step for event in scalars] == [4, 8, 12]
        assert [event.tensor_proto.float_val[0] for event in scalars] == pytest.approx([row[name] for row in rows])


@slow_on("tensorflow", "jax")
def test_phase_2_goes_on_from_phase_1_at_a_greater_length(run, tmp_path):
    """As in the paper's last tenth (A.2); positions not seen before have the rows that the first phase left alone."""
    phase_1 = pretrain(replace(run, data=short_data(run, tmp_path)), tmp_path / "run", verbose=0)
    positions = numpy(phase_1.backbone.embeddings.position_embedding.weights[0])
    start = kbz.BertPretrainer.from_preset(run.preset)
    untouched = numpy(start.backbone.embeddings.position_embedding.weights[0])
    assert (positions[:8] != untouched[:8]).any(axis=1).all()
    preset = str(tmp_path / "run" / "preset")
    none = pretrain(replace(run, preset=preset, learning_rate=1e-12), tmp_path / "none", verbose=0)
    np.testing.assert_allclose(numpy(none.backbone.embeddings.position_embedding.weights[0]), positions, atol=1e-6)
    phase_2 = pretrain(replace(run, preset=preset), tmp_path / "run16", verbose=0)
    assert phase_2.preprocessor.sequence_length == 16
    moved = numpy(phase_2.backbone.embeddings.position_embedding.weights[0])
    assert (moved != positions).any(axis=1).all()


def short_data(run, tmp_path):
    (tmp_path / "text").write_text(TEXT)
    tokenizer = PretrainingBatches(run.data, 16).tokenizer
    prepare([tmp_path / "text"], tmp_path / "short", tokenizer, sequence_length=8, verbose=False)
    return str(tmp_path / "short")


def test_held_out_text_has_the_same_vocabulary(run, tmp_path):
    (tmp_path / "text").write_text(TEXT)
    other = kbz.BertTokenizer([*WORDS, "zebra"])
    prepare([tmp_path / "text"], tmp_path / "other", other, sequence_length=16, verbose=False)
    with pytest.raises(ValueError, match="`validation` must have the vocabulary"):
        pretrain(replace(run, validation=str(tmp_path / "other")), tmp_path / "run")
