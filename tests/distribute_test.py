"""Strategies by name, a batch in parts, training steps for a TPU; many devices are in distribution_test.py."""

import re
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from keras_bert_zoo.on_cpu import on_cpu
from keras_bert_zoo.pretraining import Masking, PretrainingBatches, Run, prepare, pretrain, write_records
from keras_bert_zoo.pretraining.record_batches import RecordBatches
from keras_bert_zoo.training.distribution import calls_python
from tests.helpers import LABELS, SHALLOW, TEXTS, WORDS, Batches, numpy, random_inputs, randomise

BACKEND = keras.backend.backend()
ONE = {"tensorflow": "mirrored", "jax": "data_parallel"}
several = pytest.mark.skipif(BACKEND == "torch", reason="Keras distributes on TensorFlow and JAX only")
tensorflow_only = pytest.mark.skipif(BACKEND != "tensorflow", reason="TensorFlow's strategies")
jax_only = pytest.mark.skipif(BACKEND != "jax", reason="JAX lowers for platforms that are not there")


@pytest.fixture
def data(tmp_path, tokenizer):
    """A function that makes data sets of some 60 examples."""
    words = WORDS[5:]
    lines = [" ".join(words[(i * 7 + j * j) % len(words)] for j in range(3 + i % 5)) for i in range(240)]
    (tmp_path / "text").write_text("\n\n".join("\n".join(lines[i : i + 6]) for i in range(0, 240, 6)))

    def make(name="data", **options):
        prepare([tmp_path / "text"], tmp_path / name, tokenizer, sequence_length=16, verbose=False, **options)
        return tmp_path / name

    return make


def arrays(batch):
    return {f"{i}/{name}": array for i, part in enumerate(batch) for name, array in part.items()}


# --- Names


@pytest.mark.parametrize(
    "name, backend",
    [
        ("mirrored", "tensorflow"),
        ("tpu", "tensorflow"),
        ("multi_worker", "tensorflow"),
        ("data_parallel", "jax"),
        ("model_parallel:2", "jax"),
    ],
)
def test_a_name_of_another_backend(name, backend):
    if backend == BACKEND:
        pytest.skip("this backend has it: what it does is tested below")
    with pytest.raises(
        ValueError, match=rf"`strategy` must be None.* on the {BACKEND} backend. Received: strategy='{name}'"
    ):
        kbz.distribute(name)


@pytest.mark.parametrize(
    "name", ["miror", "", "mirrored:2", "tpu:", "multi_worker:", "data_parallel:2", "model_parallel:"]
)
def test_an_unknown_name(name):
    with pytest.raises(ValueError, match=f"`strategy` must be None.* Received: strategy='{name}'"):
        kbz.distribute(name)


def test_none_changes_nothing():
    with kbz.distribute() as strategy, kbz.distribute(None):
        assert strategy is None


@tensorflow_only
def test_what_is_not_there_on_tensorflow(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    for name in ("tpu", "tpu:no-such-tpu"):
        with pytest.raises(
            ValueError, match=f"`strategy` must name a TPU that can be reached. Received: strategy='{name}'"
        ):
            kbz.distribute(name)
    with pytest.raises(ValueError, match="only if the environment variable TF_CONFIG lists the workers"):
        kbz.distribute("multi_worker")


@jax_only
@pytest.mark.parametrize("count", ["0", "2", "-1", "two"])
def test_shares_among_more_devices_than_there_are(count):
    with pytest.raises(ValueError, match=f"divides 1. Received: strategy='model_parallel:{count}'"):
        kbz.distribute(f"model_parallel:{count}")


@jax_only
def test_no_share_of_a_model_is_in_another_process(monkeypatch):
    devices = [SimpleNamespace(platform="cpu", id=i, process_index=i // 2) for i in range(4)]
    monkeypatch.setattr("jax.devices", lambda backend=None: devices)
    with pytest.raises(ValueError, match=r"among devices of one process.* Received: strategy='model_parallel', "):
        kbz.distribute("model_parallel")
    kbz.distribute("model_parallel:2")


# --- A run of it


def test_a_run_takes_its_strategy_first(data, tmp_path):
    with pytest.raises(ValueError, match="Received: strategy='none such'"):
        pretrain(Run(str(data()), strategy="none such"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@several
@pytest.mark.slow
def test_a_run_in_a_strategy_is_the_run_without(data, tmp_path, tokenizer):
    backbone = kbz.BertBackbone(**SHALLOW)
    kbz.BertPretrainer(backbone, kbz.BertPreprocessor(tokenizer, 16)).save_to_preset(tmp_path / "start")
    weights = []
    for strategy in (None, ONE[BACKEND]):
        run = Run(
            str(data(str(strategy))), str(tmp_path / "start"), steps=2, batch_size=8, learning_rate=1e-2, save_every=1,
            strategy=strategy,
        )  # fmt: skip
        pretrain(run, tmp_path / f"run {strategy}", verbose=0)
        model = kbz.BertPretrainer.from_preset(tmp_path / f"run {strategy}" / "preset")
        weights.append([numpy(weight) for weight in model.weights])
    for alone, within in zip(*weights, strict=True):
        np.testing.assert_allclose(within, alone, atol=1e-6)


@several
def test_many_steps_an_execution_are_the_same_steps(data):
    """The host hands over several batches at once, and an odd one at the end."""
    weights = []
    for steps in (1, 3):
        keras.utils.set_random_seed(0)
        model = kbz.BertPretrainer(kbz.BertBackbone(**SHALLOW))
        model.compile(kbz.AdamW(kbz.WarmupPolynomialDecay(1e-2)), steps_per_execution=steps)
        model.fit(PretrainingBatches(data(str(steps)), 8, epoch_batches=4), verbose=0)
        assert int(numpy(model.optimizer.iterations)) == 4
        weights.append(model.get_weights())
    for one, three in zip(*weights, strict=True):
        np.testing.assert_allclose(three, one, atol=1e-6)


# --- Streams


@pytest.mark.parametrize("kind", ["arrays", "another loss", "pre-training"])
def test_streamed_batches_divide_among_replicas(kind, classifier, monkeypatch):
    """A size that all have, or a task's first batch, is refused at once, another where it comes."""
    tf = pytest.importorskip("tensorflow")
    model, x, y, early = classifier, random_inputs(10), np.arange(10) % 3, ValueError
    if kind == "another loss":
        model.compile(loss=keras.losses.CategoricalCrossentropy(from_logits=True))
        y = np.eye(3, dtype="float32")[y]
    if kind == "pre-training":
        model, early = kbz.BertMaskedLM(kbz.BertBackbone(**SHALLOW)), tf.errors.InvalidArgumentError
        x, y = {**x, "mask_positions": np.zeros((10, 2), "int32")}, {"mlm": np.full((10, 2), 7)}
    monkeypatch.setattr("keras_bert_zoo.models.trainer.tf_streams.replicas", lambda task: 4)
    data, words = tf.data.Dataset.from_tensor_slices((x, y)), "the number of replicas, 4, .* Received: a batch of "
    with pytest.raises(ValueError, match=f"{words}6"):
        model.evaluate(data.batch(6, drop_remainder=True), verbose=0)
    with pytest.raises(early, match=f"{words}10"):
        next(iter(model._streamed(data.batch(10), needs_targets=True)))
    late = pytest.raises(tf.errors.InvalidArgumentError, match=f"{words}2")
    for needs_targets, refused in ((True, late), (False, late if BACKEND == "jax" else nullcontext())):
        stream = data.batch(8) if needs_targets else data.batch(8).map(lambda x, y: (x,))
        batches = iter(model._streamed(stream, needs_targets=needs_targets))
        assert len(next(batches)[0]["token_ids"]) == 8
        with refused:
            next(batches)


class Tpu:
    """What is asked of a TPU's strategy."""

    num_replicas_in_sync = 1

    def __init__(self, master, hosts):
        self.cluster_resolver = SimpleNamespace(master=lambda: master)
        self.extended = SimpleNamespace(num_hosts=hosts, _in_multi_worker_mode=lambda: False)


@tensorflow_only
def test_which_strategies_call_python(monkeypatch):
    import tensorflow as tf

    assert calls_python(tf.distribute.get_strategy())
    monkeypatch.setattr(tf.distribute, "TPUStrategy", Tpu)
    given = [("", 1), ("local", 1), ("grpc://10.0.0.2:8470", 1), ("", 4)]
    assert [calls_python(Tpu(*each)) for each in given] == [True, True, False, False]


@tensorflow_only
def test_python_makes_no_batches_for_hosts_that_cannot_call_it(data, tmp_path, tokenizer, monkeypatch):
    import tensorflow as tf

    backbone, preprocessor = kbz.BertBackbone(**SHALLOW), kbz.BertPreprocessor(tokenizer, 16)
    classifier = kbz.BertTextClassifier(backbone, 3, preprocessor=preprocessor)
    pretrainer = kbz.BertPretrainer(backbone)
    made = data(fix_masks=True)
    write_records(made, tmp_path / "records", verbose=False)
    monkeypatch.setattr(tf.distribute, "TPUStrategy", Tpu)
    monkeypatch.setattr(keras.Model, "distribute_strategy", Tpu("grpc://10.0.0.2:8470", 1))
    monkeypatch.setattr(kbz.pretraining.run, "distribute", lambda strategy: nullcontext())
    for run, x in (
        (lambda x: classifier.fit(x, LABELS), TEXTS),
        (classifier.predict, random_inputs()),
        (kbz.BertQuestionAnswerer(backbone).predict, random_inputs()),
        (classifier.evaluate, Batches((random_inputs(), np.array([0, 1, 2])))),
        (classifier.predict, tf.data.Dataset.from_tensors(TEXTS)),
        (pretrainer.fit, PretrainingBatches(made, 8)),
        (lambda x: pretrain(Run(str(x), steps=1, save_every=1, batch_size=8), tmp_path / "run"), made),
    ):
        with pytest.raises(
            ValueError, match=r"on the only host of a TPU.* Received: a TPU at 'grpc://10\.0\.0\.2:8470', hosts=1$"
        ):
            run(x)
    assert not (tmp_path / "run").exists()
    records = RecordBatches(str(tmp_path / "records" / "*"), tokenizer, 8)
    pretrainer.check_batches(records)
    assert pretrainer._streamed(records.in_order(), needs_targets=True).element_spec[0]["token_ids"].shape == (8, 16)


@tensorflow_only
@pytest.mark.parametrize(
    "option, message",
    [
        ({"jit_compile": True}, "`jit_compile` must be False on several replicas, .* jit_compile=True on 2 replicas$"),
        (
            {"steps_per_execution": 2},
            "`steps_per_execution` must be 1 on several replicas, except on a TPU. "
            "Received: steps_per_execution=2 on 2 replicas$",
        ),
    ],
)
def test_what_several_replicas_cannot_do_is_refused_before_anything_is_written(
    data, option, message, tmp_path, monkeypatch
):
    strategy = Tpu("", 1)
    strategy.num_replicas_in_sync = 2
    monkeypatch.setattr(keras.Model, "distribute_strategy", strategy)
    run = Run(str(data()), "bert_tiny", steps=2, save_every=2, batch_size=8, architecture=SHALLOW, **option)
    with pytest.raises(ValueError, match=message):
        pretrain(run, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@jax_only
def test_processes_of_jax_share_no_batches_of_our_own(data, tokenizer, tmp_path, monkeypatch):
    backbone = kbz.BertBackbone(**SHALLOW)
    classifier = kbz.BertTextClassifier(backbone, 3, preprocessor=kbz.BertPreprocessor(tokenizer, 16))
    with kbz.distribute("data_parallel"):
        monkeypatch.setattr(keras.distribution.distribution(), "_is_multi_process", True)
        for run in (
            lambda: classifier.fit(TEXTS, LABELS),
            lambda: classifier.evaluate(TEXTS, LABELS),
            lambda: classifier.predict(random_inputs()),
            lambda: kbz.BertPretrainer(backbone).fit(PretrainingBatches(data(), 8)),
        ):
            with pytest.raises(ValueError, match=r"`x` must be a `tf\.data\.Dataset`.* `prepare` in 1 processes$"):
                run()
        run = Run(str(data("more")), "bert_tiny", steps=2, save_every=2, batch_size=8, architecture=SHALLOW)
        with pytest.raises(ValueError, match="in several processes of JAX"):
            pretrain(run, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@jax_only
def test_a_run_of_data_parallel_steps(data, tmp_path):
    """Keras lays out the state when it makes a step's function, so all of it must be there."""
    options = {"steps": 2, "save_every": 2, "batch_size": 8, "architecture": SHALLOW}
    folder = str(data())
    one, several = (
        pretrain(Run(folder, "bert_tiny", **options, strategy=strategy), tmp_path / str(strategy), verbose=0)
        for strategy in (None, "data_parallel")
    )
    for weight, expected in zip(several.weights, one.weights, strict=True):
        np.testing.assert_allclose(weight, expected, atol=1e-6, err_msg=weight.path)
    assert (tmp_path / "data_parallel" / "preset").exists()


# --- A batch in parts


@pytest.mark.parametrize(
    "options, masking",
    [({}, None), ({}, Masking(16, rate=0.95)), ({}, Masking(2, whole_words=True)), ({"fix_masks": True}, None)],
    ids=["drawn", "all that may be masked", "whole words", "fixed"],
)
@pytest.mark.parametrize("pairs", [True, False])
def test_the_workers_rows_are_the_batch(data, options, masking, pairs):
    batches = PretrainingBatches(data(next_sentence=pairs, **options), 8, masking, epoch_batches=9)
    batches.epoch = 3
    for index in range(len(batches)):
        whole = arrays(batches[index])
        parts = [arrays(batches.part_of(index, part, 4)) for part in range(4)]
        assert all(len(array) == 2 for part in parts for array in part.values())
        for name, array in whole.items():
            joined = np.concatenate([part[name] for part in parts])
            assert joined.dtype == array.dtype
            np.testing.assert_array_equal(joined, array, err_msg=name)


@pytest.mark.parametrize(
    "options",
    [{}, {"masking": Masking(2, whole_words=True)}, {"next_token": True}],
    ids=["drawn", "whole words", "next tokens"],
)
def test_the_batches_of_an_update_are_one_batch(data, options):
    """Each of its four is taken on its own, and split between two workers."""
    path = data()
    whole = PretrainingBatches(path, 16, epoch_batches=3, **options)
    pieces = PretrainingBatches(path, 4, epoch_batches=12, gradient_accumulation_steps=4, **options)
    whole.epoch = pieces.epoch = 2
    assert len(pieces) == 4 * len(whole)
    for index in range(len(whole)):
        for workers in (1, 2):
            parts = [arrays(pieces.part_of(4 * index + i, part, workers)) for i in range(4) for part in range(workers)]
            for name, array in arrays(whole[index]).items():
                np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), array, err_msg=name)


def test_a_worker_reads_its_own_rows_only(data, monkeypatch):
    batches, read = PretrainingBatches(data(), 8), []
    rows_of = kbz.pretraining.batches.rows_of
    monkeypatch.setattr(
        "keras_bert_zoo.pretraining.batches.rows_of", lambda *a, **k: (read.append(len(a[2])), rows_of(*a, **k))[1]
    )
    batches.part_of(0, 1, 4)
    assert read == [2]


@tensorflow_only
def test_the_workers_rows_are_the_epoch(data):
    """Two workers with two devices each take every row of the epoch once, and in each step the rows of its batch."""
    import tensorflow as tf

    from keras_bert_zoo.models.trainer.workers import part_for

    batches = PretrainingBatches(data(), 8)
    contexts = [tf.distribute.InputContext(2, worker, 4) for worker in range(2)]
    taken = [[arrays(rows) for rows in part_for(batches, context).as_numpy_iterator()] for context in contexts]
    assert [len(rows) for rows in taken] == [2 * len(batches)] * 2
    for index, whole in enumerate(map(arrays, batches)):
        devices = [taken[worker][2 * index + device] for worker in range(2) for device in range(2)]
        for name, array in whole.items():
            np.testing.assert_array_equal(np.concatenate([rows[name] for rows in devices]), array, err_msg=name)


# --- What a TPU asks for


OPTIMIZERS = pytest.mark.parametrize(
    "optimizer", [kbz.AdamW, kbz.Lamb, partial(kbz.AdamW, gradient_accumulation_steps=2)]
)
DTYPES = pytest.mark.parametrize("dtype, short", [("float32", "f32"), ("mixed_bfloat16", "bf16")])


def small_pretrainer(optimizer, dtype="float32", **options):
    model = randomise(kbz.BertPretrainer(kbz.BertBackbone(**SHALLOW, dtype=dtype)))
    model.compile(optimizer=optimizer(kbz.WarmupPolynomialDecay(1e-3, total_steps=4)), **options)
    model.optimizer.build(model.trainable_variables)
    return model


@pytest.fixture
def accelerator(monkeypatch):
    """Make this CPU trace what a TPU runs, without a CPU's spellings."""
    # Patch the function itself: every module that imports it has it, even one that is imported later.
    monkeypatch.setattr(on_cpu, "__code__", (lambda tensor: False).__code__)


@tensorflow_only
@OPTIMIZERS
@DTYPES
@pytest.mark.parametrize("name", ["mirrored", pytest.param(None, marks=pytest.mark.slow)])
def test_the_step_is_one_xla_program_of_fixed_shapes(data, optimizer, accelerator, dtype, short, name):
    """Dropout is on; the strategy's replica, or the only device, clips and updates within the program."""
    import tensorflow as tf

    with kbz.distribute(name) if name else nullcontext(tf.distribute.get_strategy()) as strategy:
        model = small_pretrainer(optimizer, dtype, jit_compile=True)
    batches = PretrainingBatches(data(), 8, epoch_batches=2)
    batch = keras.tree.map_structure(tf.constant, batches[0])

    @tf.function(jit_compile=True)
    def step(data):
        return strategy.run(model.train_step, args=(data,))

    assert_fit_for_tpu(step.experimental_get_compiler_ir(batch)(stage="hlo"), rf"\b{short}\[8,16,8\]")


@tensorflow_only
@pytest.mark.parametrize("count, rows", [(4, 8), (3, None)])
def test_executions_of_several_steps_have_batches_of_one_shape(data, count, rows, monkeypatch):
    """Not where the data end within an execution; then, too, all batches are taken."""
    monkeypatch.setattr("keras_bert_zoo.models.trainer.workers.is_tpu", lambda strategy: True)
    path, found = data(), []
    for steps in (1, 2):
        keras.utils.set_random_seed(0)
        with kbz.distribute("mirrored"):
            model = kbz.BertPretrainer(kbz.BertBackbone(**SHALLOW, dropout=0.0, attention_dropout=0.0))
            model.compile(kbz.AdamW(kbz.WarmupPolynomialDecay(1e-3)), steps_per_execution=steps)
        shapes = []

        def noted(data, step=model.train_step, shapes=shapes):
            shapes.append(tuple(data[0]["token_ids"].shape))
            return step(data)

        monkeypatch.setattr(model, "train_step", noted)
        batches = PretrainingBatches(path, 8, epoch_batches=count)
        losses = model.fit(batches, epochs=2, verbose=0, validation_data=batches).history["val_loss"]
        assert int(numpy(model.optimizer.iterations)) == 2 * count
        assert set(shapes) == {(8 if steps == 1 else rows, 16)}
        found.append([*losses, *model.get_weights()])
    for one, several in zip(*found, strict=True):
        np.testing.assert_allclose(several, one, atol=1e-6)


@tensorflow_only
@pytest.mark.slow
def test_fit_compiles_in_a_strategy(data):
    """This includes the gradients of the tables, which TensorFlow hands on as slices."""
    weights = []
    for options in ({}, {"jit_compile": True}):
        keras.utils.set_random_seed(0)
        with kbz.distribute("mirrored"):
            model = kbz.BertPretrainer(kbz.BertBackbone(**SHALLOW, dropout=0.0, attention_dropout=0.0))
            model.compile(kbz.AdamW(kbz.WarmupPolynomialDecay(1e-3)), **options)
        model.fit(PretrainingBatches(data(f"data{len(weights)}"), 8), epochs=2, verbose=0)
        weights.append(model.get_weights())
    for plain, compiled in zip(*weights, strict=True):
        np.testing.assert_allclose(compiled, plain, atol=1e-5)


@jax_only
@OPTIMIZERS
@DTYPES
def test_the_step_lowers_for_tpu(data, optimizer, accelerator, dtype, short):
    import jax

    model = small_pretrainer(optimizer, dtype)
    batch = PretrainingBatches(data(), 8)[0]
    model._symbolic_build(data_batch=batch)
    state = model._get_jax_state(
        trainable_variables=True, non_trainable_variables=True, optimizer_variables=True, metrics_variables=True
    )
    program = jax.jit(model.train_step).trace(state, batch).lower(lowering_platforms=("tpu",)).as_text()
    assert_fit_for_tpu(program, rf"tensor<8x16x8x{short}>")


def assert_fit_for_tpu(program, activation):
    """Allow no dynamic shape and no way out to the host; `activation` shows that it is the program meant."""
    assert re.search(activation, program)
    assert not re.search(
        r"<=\d|tensor<[^>]*\?|dynamic-(reshape|dimension)|get-dimension-size|set_dimension_size", program
    )
    assert not re.search(r"infeed|outfeed|\bsend\b|\brecv\b|[Cc]allback|PyFunc|xla_python", program)
    targets = set(re.findall(r'custom_call_target="([^"]+)"|custom_call @(\w+)', program))
    assert targets <= {("", "Sharding")}, targets
