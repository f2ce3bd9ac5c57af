"""`jit_compile=True` on PyTorch: a step as one program, which computes the same as without it."""

import gc
import shutil
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from tests.attention_oracle import hashed
from tests.helpers import LABELS, SHALLOW, TEXTS, numpy, random_inputs, randomise

if keras.backend.backend() != "torch":
    pytest.skip("PyTorch's own", allow_module_level=True)

import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

from keras_bert_zoo.layers import torch_compiled
from keras_bert_zoo.layers.dropout import Dropout
from keras_bert_zoo.layers.torch_compiled import _programs
from keras_bert_zoo.models.trainer.feeding import FedModel


def classifier(tokenizer, jit_compile, change=lambda model: None, pooling="first", **options):
    keras.utils.set_random_seed(3)
    backbone = kbz.BertBackbone(**{**SHALLOW, "dropout": 0.0, "attention_dropout": 0.0, **options})
    preprocessor = tokenizer and kbz.BertPreprocessor(tokenizer, 16)
    options = {"num_classes": 3, "preprocessor": preprocessor, "dropout": 0.0, "pooling": pooling}
    model = randomise(kbz.BertTextClassifier(backbone, **options))
    change(model)
    model.compile(keras.optimizers.SGD(0.1), jit_compile=jit_compile)
    return model


def programs_of(model):
    """Return how many programs there are; either all or none were given up, and then there are 0."""
    programs = _programs.get(model, {}).values()
    assert len({program is None for program in programs}) <= 1
    return len({id(program) for program in programs if program})


def trained(model):
    """Return losses, weights and predictions, for batches of several sizes and lengths."""
    losses = model.fit(TEXTS, LABELS, batch_size=4, epochs=2, shuffle=False, verbose=0).history["loss"]
    return [losses, *map(numpy, model.weights), model.predict(TEXTS, batch_size=2, verbose=0)]


def assert_same_as_without(model, other, atol=1e-5):
    found, expected = trained(model), trained(other)
    assert expected[0][1] < expected[0][0]
    for one, two in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=atol)


of_each_kind = pytest.mark.parametrize(
    "options",
    [
        {},
        {"dtype": "mixed_bfloat16"},
        {"causal": True, "pooling": "last"},
        {"change": lambda model: model.backbone.enable_lora(2)},
        {"change": lambda model: setattr(model.backbone.encoder_layers[0], "trainable", False), "num_layers": 2},
    ],
    ids=["float32", "bfloat16", "left to right", "LoRA", "a frozen block"],
)


def assert_compiled_it_is_the_same(tokenizer, options):
    half = options.get("dtype") == "mixed_bfloat16"
    model = classifier(tokenizer, True, **options)
    assert_same_as_without(model, classifier(tokenizer, False, **options), atol=0.02 if half else 1e-5)
    assert programs_of(model) == 2  # To train, and to predict.


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="PyTorch compiles for a CPU with g++")
@of_each_kind
def test_compiled_it_is_the_same(tokenizer, options):
    assert_compiled_it_is_the_same(tokenizer, options)


@of_each_kind
def test_the_program_is_the_same(tokenizer, traced_only, options):
    assert_compiled_it_is_the_same(tokenizer, options)


def inputs_of(batch, length):
    """Return inputs without padding. `random_inputs` leaves at least two tokens of each text, and needs one more."""
    ids = np.random.default_rng(batch).integers(5, 40, (batch, length)).astype("int32")
    return {"token_ids": ids, "segment_ids": ids % 2, "padding_mask": np.ones_like(ids)}


@pytest.mark.parametrize(
    "first",
    [(1, 9), (4, 1), (4, 16), (4, 8), (8, 9), (2, 9), (9, 9)],
    ids=["one text", "one token", "all positions", "the width", "a batch of the width", "of the segments", "a square"],
)
@pytest.mark.filterwarnings("ignore:You are using a softmax")  # For one token.
def test_whatever_comes_first_the_program_is_for_all_shapes(first, traced_only):
    """PyTorch would take the first sizes for constants, or for sizes of a weight."""
    model, expected = classifier(None, True), classifier(None, False)
    for batch, length in [first, (5, 7), (1, 9), (4, 1), (4, 16), (3, 8)]:
        x, y = inputs_of(batch, length), np.arange(batch) % 3
        np.testing.assert_allclose(model.predict_on_batch(x), expected.predict_on_batch(x), atol=1e-5)
        losses = [each.train_on_batch(x, y)[0] for each in (model, expected)]
        np.testing.assert_allclose(*losses, rtol=1e-4)
    assert programs_of(model) == 2


@pytest.fixture
def compiled(monkeypatch):
    """Return what PyTorch's front end gives its back end, which takes half a minute but here runs it as it is."""
    graphs = []

    def back_end(graph, inputs):
        graphs.append(graph)
        return make_boxed_func(graph)

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=aot_autograd(fw_compiler=back_end)))
    return graphs


def test_pytorch_compiles_it_for_the_first_shapes_and_once_for_others(compiled, monkeypatch):
    # As in a fresh process, which imports it while it traces.
    monkeypatch.delitem(sys.modules, "keras_bert_zoo.layers.torch_product", raising=False)
    monkeypatch.delattr(kbz.layers, "torch_product", raising=False)
    model, expected = classifier(None, True), classifier(None, False)
    for batch, length in [(9, 9), (9, 7), (4, 16), (9, 9), (3, 8)]:
        x = inputs_of(batch, length)
        np.testing.assert_allclose(model.predict_on_batch(x), expected.predict_on_batch(x), atol=1e-5)
    assert len(compiled) == 2


def test_pytorch_compiles_what_trains(compiled):
    model, expected = classifier(None, True), classifier(None, False)
    for batch, length in [(4, 9), (3, 7), (1, 9)]:
        x, y = inputs_of(batch, length), np.arange(batch) % 3
        np.testing.assert_allclose(*(each.train_on_batch(x, y)[0] for each in (model, expected)), rtol=1e-4)
    assert compiled


def test_threads_trace_one_after_the_other(traced_only):
    models, x = [classifier(None, True) for _ in range(2)], inputs_of(4, 9)
    expected = classifier(None, False).predict_on_batch(x)
    with ThreadPoolExecutor(4) as threads:
        for outputs in threads.map(lambda model: model.predict_on_batch(x), models * 2):
            np.testing.assert_allclose(outputs, expected, atol=1e-5)


def test_a_thread_predicts_while_another_traces(compiled):
    model, other, x = classifier(None, True), classifier(None, True), inputs_of(4, 9)
    expected = model.predict_on_batch(x)
    with ThreadPoolExecutor(1) as threads:
        tracing, during = threads.submit(other.predict_on_batch, x), 0
        while not tracing.done():
            np.testing.assert_allclose(model.predict_on_batch(x), expected, atol=1e-5)
            during += 1
    np.testing.assert_allclose(tracing.result(), expected, atol=1e-5)
    assert during > 1


def test_masked_positions_are_given_to_the_program(traced_only):
    inputs = {**random_inputs(), "mask_positions": np.array([[0, 8], [1, 0], [0, 1]], "int32")}
    targets = {"mlm": np.array([[7, 8], [9, 10], [11, 12]], "int32"), "nsp": np.array([0, 1, 1], "int32")}
    losses = []
    for jit_compile in (True, False):
        backbone = kbz.BertBackbone(**{**SHALLOW, "dropout": 0.0, "attention_dropout": 0.0})
        model = randomise(kbz.BertPretrainer(backbone))
        model.compile(kbz.AdamW(1e-2), jit_compile=jit_compile)
        losses.append([model.train_on_batch(inputs, targets)[0] for _ in range(3)])
        assert programs_of(model) == jit_compile
    assert losses[1][2] < losses[1][0]
    np.testing.assert_allclose(*losses, rtol=1e-4)


def test_each_step_drops_other_values(compiled):
    inputs = random_inputs()
    model = classifier(None, True, dropout=0.5)

    def losses():
        model.compile(keras.optimizers.SGD(0.0), jit_compile=True)
        return {float(model.train_on_batch(inputs, np.array([0, 1, 2]))[0]) for _ in range(3)}

    assert len(losses()) == 3
    for layer in model.backbone._flatten_layers():
        layer.rate = 0.0
    assert len(losses()) == 1


def test_a_run_walks_through_the_layers_once(traced_only, monkeypatch):
    looks, look = [], torch_compiled._does_more
    monkeypatch.setattr(torch_compiled, "_does_more", lambda layer: looks.append(layer) or look(layer))
    model = classifier(None, True)
    layers = len(list(model._flatten_layers()))
    for _ in range(2):
        looks.clear()
        model.fit(inputs_of(8, 9), np.arange(8) % 3, batch_size=2, epochs=2, verbose=0)
        assert len(looks) == layers


def test_a_model_may_go_after_its_run(traced_only):
    model = classifier(None, True)
    model.fit(inputs_of(4, 9), np.arange(4) % 3, verbose=0)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def add_factors(model):
    model.backbone.enable_lora(2)
    for layer in model.backbone.encoder_layers:
        layer.attention.qkv.lora_kernel_b.assign(np.full((2, 24), 0.3, "float32"))
        layer.attention.qkv.lora_kernel_a.assign(np.full((8, 2), 0.2, "float32"))


def quantize(model):
    model.backbone.quantize("int8")


def freeze(model):
    model.backbone.encoder_layers[0].trainable = False


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")  # Keras says so of each Dropout.
@pytest.mark.parametrize("change, trains", [(add_factors, False), (quantize, False), (freeze, True)])
def test_what_changes_between_runs_counts(traced_only, change, trains):
    found, x, y = [], inputs_of(4, 9), np.arange(4) % 3
    for jit_compile in (True, False):
        model = classifier(None, jit_compile)
        before = model.predict(x, verbose=0)
        if trains:
            model.fit(x, y, epochs=2, verbose=0)
        change(model)
        if trains:
            model.fit(x, y, epochs=2, verbose=0)
        found.append([model.predict(x, verbose=0), *map(numpy, model.weights)])
        assert np.abs(found[-1][0] - before).max() > 1e-3
    for one, two in zip(*found, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)


def test_a_program_on_a_card_drops_values_out_by_words_of_rows_and_columns(monkeypatch):
    monkeypatch.setattr("keras_bert_zoo.layers.dropout.on_cpu", lambda tensor: False)
    monkeypatch.setattr("keras_bert_zoo.layers.torch_product.is_traced", lambda: True)
    layer = Dropout(0.1)
    layer.build((None, None, 500))
    inputs = torch.full((4, 300, 500), 3.0, requires_grad=True)
    torch.manual_seed(0)
    rows, columns = (torch.randint(-(2**31), 2**31 - 1, size, dtype=torch.int32) for size in ((4, 300, 1), (500,)))
    torch.manual_seed(0)
    outputs = layer(inputs, training=True)
    outputs.sum().backward()
    kept = numpy(outputs) != 0
    hashes = hashed(*(numpy(words).view("uint32") for words in (rows[..., 0], columns)))
    np.testing.assert_array_equal(kept, hashes.view("int32") >= round(0.1 * 2**32) - 2**31)
    np.testing.assert_allclose(numpy(outputs)[kept], 3 / 0.9, rtol=1e-6)
    np.testing.assert_allclose(numpy(inputs.grad), kept / 0.9, rtol=1e-6)


def add_hook(model, seen):
    model.backbone.encoder_layers[0].register_forward_hook(lambda *_: seen.append(1))


def add_loss(model, seen):
    model.backbone.encoder_layers[0].intermediate.activity_regularizer = keras.regularizers.L2(1.0)


def add_history(model, seen):
    model.backbone.encoder_layers[0].intermediate.quantize("float8")


@pytest.mark.parametrize("change", [add_hook, add_loss, add_history])
def test_what_a_graph_would_leave_out_is_not_compiled(change):
    losses, seen = [], ([], [])
    for jit_compile in (True, False):
        model = classifier(None, jit_compile, partial(change, seen=seen[jit_compile]))
        losses.append([model.train_on_batch(inputs_of(4, 9), np.arange(4) % 3)[0] for _ in range(3)])
        assert model not in _programs
        assert model.backbone not in _programs
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert seen[0] == seen[1]
    assert bool(seen[0]) == (change is add_hook)


def test_blocks_that_are_computed_again_are_not_compiled(tokenizer):
    with keras.RematScope("list_of_layers", layer_names=["encoder_layer_0"]):
        model = classifier(tokenizer, True)
    assert_same_as_without(model, classifier(tokenizer, False))
    assert model not in _programs
    assert model.backbone not in _programs


# --- The step: losses, metrics and what else it changes


def assert_steps_are_the_same(make, batches, traced=True):
    """Logs of training and evaluation, weights and states, batch after batch."""
    models = [make(jit_compile) for jit_compile in (True, False)]
    for batch in batches:
        logs = [(each.train_on_batch(*batch), each.test_on_batch(*batch)) for each in models]
        for one, two in zip(*map(np.ravel, logs), strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-6)
    for one, two in zip(*(each.variables for each in models), strict=True):
        np.testing.assert_allclose(numpy(one), numpy(two), rtol=1e-3, atol=1e-5, err_msg=one.path)
    assert bool(programs_of(models[0])) == traced
    return models[0]


def backbone_of(**options):
    return kbz.BertBackbone(**{**SHALLOW, "dropout": 0.0, "attention_dropout": 0.0, **options})


def compiled_as(model, jit_compile, optimizer=None, **options):
    randomise(model).compile(optimizer or kbz.AdamW(1e-2), jit_compile=jit_compile, **options)
    return model


SHAPES = [(4, 9), (3, 7), (1, 9), (5, 3)]


def test_metrics_and_weights_of_examples(traced_only):
    def make(jit_compile):
        metrics = ["accuracy", keras.metrics.SparseCategoricalCrossentropy(from_logits=True)]
        model = kbz.BertTextClassifier(backbone_of(), num_classes=3, dropout=0.0)
        return compiled_as(model, jit_compile, weighted_metrics=metrics)

    batches = [(inputs_of(n, length), np.arange(n) % 3, np.arange(1, n + 1) / n) for n, length in SHAPES]
    assert programs_of(assert_steps_are_the_same(make, batches)) == 2


def test_classes_as_vectors(traced_only, caplog):
    """There are three, as many as tokens in the last batch."""

    def make(jit_compile):
        model = kbz.BertTextClassifier(backbone_of(), num_classes=3, dropout=0.0)
        loss, metrics = keras.losses.CategoricalCrossentropy(from_logits=True), ["accuracy", "mean_squared_error"]
        return compiled_as(model, jit_compile, loss=loss, metrics=metrics)

    batches = [(inputs_of(n, length), np.eye(3, dtype="float32")[np.arange(n) % 3]) for n, length in SHAPES]
    assert programs_of(assert_steps_are_the_same(make, batches[::-1])) == 2
    assert "keras_bert_zoo" not in {record.name for record in caplog.records}


def test_what_pytorch_traces_for_one_size_alone_is_not_compiled(traced_only, caplog):
    def make(jit_compile):
        model = kbz.BertTextClassifier(backbone_of(), num_classes=3, dropout=0.0)
        return compiled_as(model, jit_compile, metrics=[keras.metrics.SparseTopKCategoricalAccuracy(2)])

    assert_steps_are_the_same(make, [(inputs_of(n, length), np.arange(n) % 3) for n, length in SHAPES], traced=False)
    records = [record for record in caplog.records if record.name == "keras_bert_zoo"]
    assert sorted(record.getMessage().partition(",")[0] for record in records) == [
        "Not compiled as a whole: the step of evaluation",
        "Not compiled as a whole: the step of training",
    ]


def test_a_method_of_anybody_s_is_not_compiled(traced_only):
    """A graph would keep the value that it had at first."""

    class Growing:
        scale = 1.0

        def loss(self, y_true, y_pred):
            return self.scale * crossentropy(y_true, y_pred)

    growing, (x, y) = Growing(), (inputs_of(4, 9), np.arange(4) % 3)
    for role in ("loss", "metrics"):
        options = {"loss": growing.loss} if role == "loss" else {"metrics": [growing.loss]}
        model = compiled_as(kbz.BertTextClassifier(backbone_of(), 3, dropout=0.0), True, kbz.AdamW(1e-12), **options)
        values = []
        for growing.scale in (1.0, 1.0, 10.0):
            values.append(model.train_on_batch(x, y)[-1 if role == "metrics" else 0])
            model.reset_metrics()
        assert values == pytest.approx([values[0], values[0], 10 * values[0]], rel=1e-4)


def test_an_epoch_has_the_mean_of_its_batches(traced_only):
    x, y = inputs_of(10, 9), np.arange(10) % 3
    histories = []
    for jit_compile in (True, False):
        model = classifier(None, jit_compile)
        history = model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0, validation_data=(x, y)).history
        histories.append([*history.values(), model.evaluate(x, y, batch_size=4, verbose=0)])
        assert set(history) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    for one, two in zip(*histories, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4)


def test_targets_of_tokens_spans_and_choices(traced_only):
    """As many tokens as choices make another graph; as many tokens as classes or examples do not."""
    tokens = [(inputs_of(n, length), np.arange(n * length).reshape(n, length) % 3) for n, length in [*SHAPES, (3, 3)]]
    model = assert_steps_are_the_same(
        lambda compiled: compiled_as(
            kbz.BertTokenClassifier(backbone_of(pooler=False), num_classes=3, dropout=0.0), compiled
        ),
        [(x, y, np.ones(y.shape) / 2) for x, y in tokens],
    )
    assert programs_of(model) == 2
    spans = [(inputs_of(n, length), np.arange(2 * n).reshape(n, 2) % length) for n, length in SHAPES]
    assert_steps_are_the_same(
        lambda compiled: compiled_as(kbz.BertQuestionAnswerer(backbone_of(pooler=False)), compiled), spans
    )
    choices = [
        (
            {name: np.stack([array] * 2 + [array[:, ::-1]], axis=1) for name, array in inputs_of(n, length).items()},
            np.arange(n) % 3,
        )
        for n, length in [(4, 9), (2, 7), (4, 3)]
    ]
    model = assert_steps_are_the_same(
        lambda compiled: compiled_as(kbz.BertMultipleChoice(backbone_of(), dropout=0.0), compiled), choices
    )
    assert programs_of(model) == 4  # Two of them for three choices of three tokens.


def test_numbers_to_predict(traced_only):
    for column in (False, True):
        numbers = [(inputs_of(n, length), np.linspace(0, 1, n)) for n, length in SHAPES]
        assert_steps_are_the_same(
            lambda compiled: compiled_as(kbz.BertTextRegressor(backbone_of(), dropout=0.0), compiled),
            [(x, y[:, None] if column else y) for x, y in numbers],
        )


def test_regularizers_and_states_of_layers(traced_only):
    """With SGD: before the norm, many gradients are zero but for rounding, which AdamW would turn into whole steps."""

    def make(jit_compile):
        backbone = backbone_of()
        model = kbz.BertTextClassifier(backbone, num_classes=3, dropout=0.0)
        model = FedModel(model.input, keras.layers.BatchNormalization(name="norm")(model.output))
        model.backbone = backbone
        model.get_layer("classifier").kernel.regularizer = keras.regularizers.L1(0.1)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        compiled_as(model, jit_compile, keras.optimizers.SGD(1e-2), loss=loss, metrics=["accuracy"])
        model.get_layer("norm").moving_variance.assign(np.ones(3))
        return model

    batches = [(inputs_of(n, length), np.arange(n) % 3) for n, length in SHAPES]
    model = assert_steps_are_the_same(make, batches)
    assert np.abs(numpy(model.get_layer("norm").moving_variance) - 1).max() > 0.01


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: kbz.AdamW(1e-2, gradient_accumulation_steps=2),
        lambda: kbz.LossScaleOptimizer(kbz.AdamW(1e-2), initial_scale=64.0),
        lambda: keras.optimizers.Adam(1e-2, use_ema=True),
    ],
    ids=["accumulation", "loss scaling", "Keras'"],
)
def test_optimizers_of_a_traced_step(traced_only, optimizer):
    batches = [(inputs_of(4, 9), np.arange(4) % 3)] * 4
    assert_steps_are_the_same(
        lambda compiled: compiled_as(kbz.BertTextClassifier(backbone_of(), 3, dropout=0.0), compiled, optimizer()),
        batches,
    )


def crossentropy(y_true, y_pred):
    return keras.ops.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)


def looks_at_values(y_true, y_pred):
    found = crossentropy(y_true, y_pred)
    return found * 2 if float(keras.ops.mean(keras.ops.stop_gradient(found))) > 0.5 else found


def looks_at_sizes(y_true, y_pred):
    return crossentropy(y_true, y_pred) * (10 if len(y_true) > 3 else 1)


class Reversal(torch.autograd.Function):
    @staticmethod
    def forward(context, inputs):
        return inputs.view_as(inputs)

    @staticmethod
    def backward(context, gradient):
        return -gradient


def has_its_own_gradient(y_true, y_pred):
    return crossentropy(y_true, Reversal.apply(y_pred))


class HasState(keras.losses.Loss):
    def __init__(self):
        super().__init__()
        self.mean = keras.Variable(0.0, trainable=False)

    def call(self, y_true, y_pred):
        found = crossentropy(y_true, y_pred)
        self.mean.assign(0.5 * self.mean + 0.5 * keras.ops.mean(found))
        return found * keras.ops.stop_gradient(self.mean.value)


class Annealed(kbz.BertTextClassifier):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        return loss * min(1.0, 0.1 + int(self.optimizer.iterations) / 5)


class MeanOfFirst(keras.metrics.Mean):
    def update_state(self, y_true, y_pred, sample_weight=None):
        super().update_state(float(keras.ops.stop_gradient(y_pred)[0, 0]))


@pytest.mark.parametrize(
    "make, options",
    [
        (kbz.BertTextClassifier, {"loss": looks_at_values}),
        (kbz.BertTextClassifier, {"loss": looks_at_sizes}),
        (kbz.BertTextClassifier, {"loss": has_its_own_gradient}),
        (kbz.BertTextClassifier, {"loss": HasState}),
        (kbz.BertTextClassifier, {"metrics": lambda: [MeanOfFirst()]}),
        (kbz.BertTextClassifier, {"weighted_metrics": lambda: [keras.metrics.MeanMetricWrapper(looks_at_values)]}),
        (Annealed, {}),
    ],
    ids=["values", "sizes", "a gradient", "a state", "a metric", "a metric's function", "a method"],
)
def test_what_is_not_keras_nor_ours_leaves_the_backbone_compiled_alone(traced_only, make, options):
    def model_of(jit_compile):
        made = {name: value() if value is HasState or name != "loss" else value for name, value in options.items()}
        return compiled_as(make(backbone_of(), 3, dropout=0.0), jit_compile, **made)

    batches = [(inputs_of(n, length), np.arange(n) % 3) for n, length in SHAPES]
    model = assert_steps_are_the_same(model_of, batches, traced=False)
    assert model not in _programs
    assert programs_of(model.backbone) == 2


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
def test_quantized_kernels_are_trained_with_their_own_gradient(traced_only):
    def make(jit_compile):
        keras.utils.set_random_seed(1)  # For LoRA's factors.
        model = randomise(kbz.BertTextClassifier(backbone_of(), 3, dropout=0.0))
        quantize(model)
        model.backbone.enable_lora(2)
        model.compile(keras.optimizers.SGD(0.1), jit_compile=jit_compile)
        return model

    models = [make(jit_compile) for jit_compile in (True, False)]
    for n, length in SHAPES:
        losses = [each.train_on_batch(inputs_of(n, length), np.arange(n) % 3)[0] for each in models]
        np.testing.assert_allclose(*losses, rtol=1e-4)
    for one, two in zip(*(each.weights for each in models), strict=True):
        np.testing.assert_allclose(numpy(one), numpy(two), rtol=1e-3, atol=1e-4, err_msg=one.path)
    assert not any(programs_of(each) or programs_of(each.backbone) for each in models)


def test_losses_of_layers_are_not_compiled(traced_only):
    """This holds whatever else keeps the step from being traced."""

    def make(jit_compile):
        backbone = backbone_of()
        backbone.encoder_layers[0].intermediate.activity_regularizer = keras.regularizers.L2(0.1)
        metrics = [keras.metrics.SparseTopKCategoricalAccuracy(2)]
        return compiled_as(kbz.BertTextClassifier(backbone, 3, dropout=0.0), jit_compile, metrics=metrics)

    batches = [(inputs_of(n, length), np.arange(n) % 3) for n, length in SHAPES]
    assert programs_of(assert_steps_are_the_same(make, batches, traced=False).backbone) == 0


def test_nothing_to_train(traced_only):
    model = compiled_as(kbz.BertTextClassifier(backbone_of(), 3), True)
    model.trainable = False
    before = [*map(numpy, model.weights)]
    with pytest.warns(UserWarning, match="does not have any trainable weights"):
        model.fit(inputs_of(4, 9), np.arange(4) % 3, verbose=0)
    for one, two in zip(before, map(numpy, model.weights), strict=True):
        np.testing.assert_array_equal(one, two)
