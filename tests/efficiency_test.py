"""Counts of what speed rests on: programs, padding, fused attention, operations. Seconds are in `benchmarks`."""

import math
import re
import traceback
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from keras_bert_zoo.layers import fused_attention
from keras_bert_zoo.layers.passes import weights_kept
from keras_bert_zoo.training.speed import training_flops
from tests.helpers import SHALLOW, TINY, WORDS, numpy, randomise

BACKEND = keras.backend.backend()
pytestmark = pytest.mark.usefixtures("products_of_half_precision")
COMPILES = BACKEND == "jax"  # JAX compiles each shape; TensorFlow's graphs take any, PyTorch has none.


def texts_of(lengths):
    """Return a text of so many tokens for each length, [CLS] and [SEP] counted."""
    words = WORDS[5:16]  # None of them is a part of a word.
    return [" ".join(words[(i + j) % len(words)] for j in range(length - 2)) for i, length in enumerate(lengths)]


@pytest.fixture
def classifier(tokenizer):
    backbone = kbz.BertBackbone(**{**SHALLOW, "max_sequence_length": 64})
    return kbz.BertTextClassifier(backbone, num_classes=2, preprocessor=kbz.BertPreprocessor(tokenizer, 64))


# --- Programs


@pytest.mark.parametrize(("rate", "epochs"), [("fixed", 1), ("scheduled", 2)])
def test_few_programs_a_fit(rate, epochs, classifier):
    """Texts of 20 lengths in two epochs need one program per static length where shapes compile, else one for all.

    Another fit needs no new ones; with the default optimizer, whose rate spans the updates, it must have as many.
    """
    texts, traces = texts_of(np.arange(5, 25)), []
    step = classifier.train_step

    def counted(*arguments, **options):
        traces.append(1)
        return step(*arguments, **options)

    classifier.train_step = counted
    if rate == "fixed":
        classifier.compile(keras.optimizers.SGD(0.1))
    classifier.fit(texts, [i % 2 for i in range(20)], batch_size=2, epochs=2, verbose=0)
    assert len(traces) == {"jax": 2, "tensorflow": 1, "torch": 20}[BACKEND]  # On PyTorch these are steps, not programs.
    classifier.fit(texts[::-1], [0] * 20, batch_size=2, epochs=epochs, verbose=0)
    assert len(traces) == {"jax": 2, "tensorflow": 1, "torch": 20 + 10 * epochs}[BACKEND]


@pytest.mark.parametrize("pass_, name", [("predict", "predict_step"), ("evaluate", "test_step")])
def test_one_program_for_all_passes_that_train_nothing(pass_, name, classifier):
    traces, step = [], getattr(classifier, name)

    def counted(*arguments, **options):
        traces.append(1)
        return step(*arguments, **options)

    setattr(classifier, name, counted)
    labels = [[0, 1, 1, 0]] if pass_ == "evaluate" else []
    for lengths in ([5, 7, 9, 6], [8, 5, 6, 10]):
        getattr(classifier, pass_)(texts_of(lengths), *labels, batch_size=2, verbose=0)
    # On PyTorch these are steps, not programs. To TensorFlow, Keras' `predict` gives batches, not a stream of unknown
    # shape: the second shape makes the program of all others.
    assert len(traces) == {"jax": 1, "tensorflow": 2 if pass_ == "predict" else 1, "torch": 4}[BACKEND]


@pytest.mark.skipif(BACKEND != "tensorflow", reason="Keras makes it in any case on JAX and PyTorch.")
def test_evaluation_needs_no_optimizer_state(classifier):
    classifier.evaluate(texts_of([5, 7]), [0, 1], verbose=0)
    assert not classifier.optimizer.built


@pytest.mark.skipif(not COMPILES, reason="Each shape compiles a program on JAX alone.")
def test_the_short_last_batch_is_one_program_in_all_epochs(classifier):
    texts = texts_of([*range(5, 25), *range(5, 24)])
    shapes = set()
    batches = classifier.batches(texts, [0] * 39, batch_size=2)
    for epoch in range(20):
        batches.epoch = epoch
        shapes |= {inputs["token_ids"].shape for inputs, *_ in batches}
    assert shapes == {(2, 16), (2, 32), (1, 32)}


@pytest.mark.skipif(BACKEND == "tensorflow", reason="TensorFlow's graphs take any number of rows.")
@pytest.mark.parametrize("task", [kbz.BertTextClassifier, kbz.BertTokenClassifier])
def test_few_programs_for_any_number_of_predictions(task):
    """Up to a batch, there are six numbers of rows where each compiles a program, else as many as are asked for."""
    model = randomise(task(kbz.BertBackbone(**SHALLOW), num_classes=2))
    tokens = np.arange(16) < np.random.default_rng(0).integers(1, 17, (32, 1))
    arrays = {name: tokens.astype("int32") for name in ("token_ids", "padding_mask")}
    arrays["token_ids"] *= np.random.default_rng(1).integers(5, 40, tokens.shape, "int32")
    arrays["segment_ids"] = 0 * arrays["token_ids"]
    expected = numpy(model(arrays))
    real = tokens if expected.ndim == 3 else tokens[:, 0]  # At padding a tagger's outputs have no meaning.
    traced, step = [], model.predict_step

    def noted(*arguments):
        traced.append(keras.tree.flatten(arguments[-1])[0].shape[0])
        return step(*arguments)

    model.predict_step = noted
    for count in range(1, 33):
        outputs = model.predict({name: array[:count] for name, array in arrays.items()}, verbose=0)
        assert len(outputs) == count
        np.testing.assert_allclose(outputs[real[:count]], expected[:count][real[:count]], atol=1e-5)
    assert traced == ([1, 2, 4, 8, 16, 32] if COMPILES else [*range(1, 33)])


# --- Padding


def padding(batches):
    masks = [np.asarray(inputs["padding_mask"]) for inputs, *_ in batches]
    return 1 - sum(mask.sum() for mask in masks) / sum(mask.size for mask in masks)


def test_padding_of_batches_of_texts(classifier):
    """Lengths are like those of MRPC's pairs: a bell around 53."""
    lengths = np.clip(np.random.default_rng(0).normal(53, 12, 640).round().astype(int), 8, 64)
    texts, labels = texts_of(lengths), [0] * 640
    assert 1 - lengths.mean() / 64 > 0.17  # Padded to one length.
    share = padding(classifier.batches(texts, labels, batch_size=32))
    assert 0 < share < (0.12 if COMPILES else 0.03)


# --- Input


@pytest.mark.skipif(BACKEND != "tensorflow", reason="TensorFlow alone takes batches from tf.data.")
def test_no_thread_tunes_the_batches(classifier):
    """Dropping their iterator would wait for that thread to wake up, for up to a minute."""
    batches = classifier.batches(texts_of([8, 9]), [0, 1], batch_size=2)
    assert batches.options().autotune.enabled is False


# --- Fused attention


@pytest.fixture
def fused_calls(monkeypatch):
    """Calls of the backend's own attention."""
    calls = []

    def count(module, name):
        function = getattr(module, name)

        def counted(*arguments, **options):
            calls.append(name)
            return function(*arguments, **options)

        monkeypatch.setattr(module, name, counted)

    if BACKEND == "torch":
        import torch

        count(torch.nn.functional, "scaled_dot_product_attention")
    elif BACKEND == "jax":
        import jax

        count(jax.nn, "dot_product_attention")
    else:
        count(keras.ops, "dot_product_attention")
    return calls


@pytest.mark.parametrize(
    "dropout, training, asked, calls",
    [
        (0.1, False, {}, 1),
        (0.1, None, {}, 1),
        (0.0, True, {}, 1),
        (0.1, True, {}, 0),
        (0.0, False, {"return_attention_scores": True}, 0),
        (0.0, False, {"output_positions": 0}, 0),
    ],
)
def test_fused_attention_runs_wherever_no_dropout_acts_on_it(fused_calls, dropout, training, asked, calls, monkeypatch):
    monkeypatch.setattr(fused_attention, "_FEW_SCORES", 0)
    layer = kbz.layers.SelfAttention(8, 2, dropout=dropout)
    layer(np.ones((2, 5, 8), "float32"), np.ones((2, 5), "int32"), training=training, **asked)
    assert len(fused_calls) == (0 if BACKEND == "tensorflow" else calls)  # TensorFlow has none; Keras' uses einsums.


@pytest.mark.skipif(BACKEND != "jax", reason="JAX alone has a composition of einsums that is slow for few scores.")
@pytest.mark.parametrize("dtype, few, calls", [("float32", 100, 0), ("float32", 99, 1), ("float16", 100, 1)])
def test_few_scores_are_made_by_separate_operations(fused_calls, dtype, few, calls, monkeypatch):
    monkeypatch.setattr(fused_attention, "_FEW_SCORES", few)  # There are 2 texts of 2 heads of 5 x 5.
    layer = randomise(kbz.layers.SelfAttention(8, 2, dtype=dtype))
    hidden, mask = np.random.default_rng(0).normal(size=(2, 5, 8)), np.array([[1] * 5, [1, 1, 1, 0, 0]])
    outputs = np.asarray(layer(hidden.astype(dtype), mask))
    assert len(fused_calls) == calls
    monkeypatch.setattr(fused_attention, "_FEW_SCORES", 100 if calls else 0)  # The other way.
    close = 1e-2 if dtype == "float16" else 1e-5
    np.testing.assert_allclose(outputs, np.asarray(layer(hidden.astype(dtype), mask)), atol=close)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="TensorFlow's graph rewriter joins operations.")
def test_bias_follows_each_product_of_a_block():
    """The products have two dimensions: only there does the rewriter join the bias and GELU to them."""
    import tensorflow as tf

    layer = kbz.layers.EncoderLayer(hidden_dim=8, num_heads=2, intermediate_dim=16)
    layer.build((None, None, 8))
    spec = tf.TensorSpec((None, None, 8))
    graph = tf.function(lambda hidden: layer(hidden, training=False)).get_concrete_function(spec).graph
    followers = [
        output.type for op in graph.get_operations() if op.type == "MatMul" for output in op.outputs[0].consumers()
    ]
    assert followers == ["BiasAdd"] * 4


# --- What a GPU's host waits for


@pytest.mark.skipif(BACKEND != "torch", reason="Elsewhere a step is one program.")
def test_a_step_reads_no_value_and_sends_few():
    """The host would wait for the GPU where it reads a value or sends one; Keras sends six."""
    import torch
    from torch.overrides import TorchFunctionMode

    reads = {"item", "__bool__", "__float__", "__int__", "__index__", "__array__", "tolist", "numpy", "cpu", "nonzero"}

    class Waits(TorchFunctionMode):
        read: list = []
        sent: list = []

        def __torch_function__(self, function, types, args=(), kwargs=None):
            name, kwargs = getattr(function, "__name__", ""), kwargs or {}
            if name in reads:
                self.read.append(name)
            if name in ("tensor", "as_tensor") and "device" in kwargs and not isinstance(args[0], torch.Tensor):
                self.sent.append(np.asarray(args[0]).tolist())
            return function(*args, **kwargs)

    model = kbz.BertPretrainer(kbz.BertBackbone(**TINY, dtype="mixed_bfloat16"))
    model.compile(kbz.AdamW(kbz.WarmupPolynomialDecay(1e-4, total_steps=10)))
    ids, places = torch.ones(5, 6, dtype=torch.int32), torch.ones(5, 2, dtype=torch.int32)
    inputs = {"token_ids": ids, "segment_ids": ids, "padding_mask": ids, "mask_positions": places}
    targets = {"mlm": places, "nsp": places[:, 0]}
    weights = {name: torch.ones(target.shape) for name, target in targets.items()}
    model.train_step((inputs, targets, weights))  # Makes the optimizer's variables.
    with Waits() as waits:
        model.train_step((inputs, targets, weights))
    assert waits.read == []
    of_outputs, of_loss, of_counter = [[5, 2], 5, [5], 5], [5], [1]  # Predictions of a loss, examples of its mean.
    assert waits.sent == of_outputs + of_loss + of_counter


# --- Passes in which nothing is trained


@pytest.mark.skipif(BACKEND != "torch", reason="Elsewhere a cast is part of a program.")
@pytest.mark.parametrize("batches", [1, 3])
def test_a_pass_casts_each_kernel_once(batches):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Casts(TorchDispatchMode):
        shapes: list = []

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if "_to_copy" in str(function):
                self.shapes.append(tuple(args[0].shape))
            return function(*args, **(kwargs or {}))

    model = kbz.BertTextClassifier(kbz.BertBackbone(**TINY, dtype="mixed_bfloat16"), num_classes=2)
    ids, dim = np.ones((2 * batches, 6), "int32"), TINY["hidden_dim"]
    with Casts() as casts:
        model.predict({"token_ids": ids, "segment_ids": ids, "padding_mask": ids}, batch_size=2, verbose=0)
    assert casts.shapes.count((dim, 3 * dim)) == TINY["num_layers"]


@pytest.mark.skipif(BACKEND != "torch", reason="PyTorch alone lets a kernel be packed for its products.")
@pytest.mark.parametrize("dtype, packed", [("mixed_bfloat16", 4 * TINY["num_layers"]), ("float32", 0)])
def test_a_pass_packs_each_kernel_once(dtype, packed, monkeypatch):
    from keras_bert_zoo.layers import torch_product

    if not torch_product._ONEDNN:
        pytest.skip("This PyTorch, or this processor, has none.")
    shapes, pack = [], torch_product.pack

    def noted(kernel):
        shapes.append(tuple(kernel.shape))
        return pack(kernel)

    monkeypatch.setattr(torch_product, "pack", noted)
    model = randomise(kbz.BertTextClassifier(kbz.BertBackbone(**TINY, dtype=dtype), num_classes=2))
    ids = np.random.default_rng(0).integers(5, TINY["vocabulary_size"], (6, 6)).astype("int32")
    arrays = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": np.ones_like(ids)}
    outputs = model.predict(arrays, batch_size=2, verbose=0)
    # This includes the pooler's, but not the last block's of queries, keys and values, which is read by rows alone.
    assert len(shapes) == packed
    with torch_product.torch.no_grad():
        np.testing.assert_allclose(outputs, numpy(model(arrays)), atol=0.03 if packed else 1e-5)
    assert len(shapes) == packed  # A direct call has no pass to pack for.


@pytest.mark.skipif(BACKEND != "tensorflow", reason="Elsewhere no program outlives a pass and reads its copies.")
def test_a_program_reads_copies_that_each_pass_makes_anew():
    import tensorflow as tf

    from keras_bert_zoo.layers.tensorflow_copies import with_weights_of_now

    model = randomise(kbz.BertTextClassifier(kbz.BertBackbone(**TINY, dtype="mixed_bfloat16"), num_classes=2))
    ids = tf.ones((2, 6), tf.int32)
    batch = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": ids}
    step = tf.function(lambda inputs: model.predict_step((inputs,)))
    program = with_weights_of_now(model, step)
    kernels = {tuple(weight.shape) for weight in model.weights if weight.path.endswith("kernel")}
    outputs = []
    for _ in range(2):
        with weights_kept():
            with weights_kept():  # Another pass traces the program, and ends first.
                outputs.append(program(batch).numpy())
            np.testing.assert_array_equal(step(batch), outputs[-1])
            np.testing.assert_allclose(outputs[-1], model(batch), atol=0.05)
        for weight in model.weights:
            weight.assign(weight * 1.5)
    assert np.abs(outputs[0] - outputs[1]).max() > 0.1
    operations = step.get_concrete_function(batch).graph.get_operations()
    casts = [op.name for op in operations if op.type == "Cast" and tuple(op.inputs[0].shape or ()) in kernels]
    assert not casts
    with pytest.raises(tf.errors.InvalidArgumentError):  # Not an answer from old weights.
        step(batch)
    np.testing.assert_allclose(program(batch), model(batch), atol=0.05)  # The call is itself a pass.


@pytest.mark.skipif(BACKEND != "tensorflow", reason="Elsewhere no program outlives a pass and reads its copies.")
def test_a_program_traced_outside_a_pass_reads_the_weights_themselves():
    import tensorflow as tf

    model = randomise(kbz.BertTextClassifier(kbz.BertBackbone(**TINY, dtype="mixed_bfloat16"), num_classes=2))
    ids = tf.ones((2, 6), tf.int32)
    batch = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": ids}
    step = tf.function(lambda inputs: model.predict_step((inputs,)))
    before = step(batch).numpy()
    for weight in model.weights:
        weight.assign(weight * 1.5)
    after = step(batch).numpy()
    assert np.abs(after - before).max() > 0.1
    np.testing.assert_allclose(after, model(batch), atol=0.05)


def test_a_batch_has_the_weights_of_its_time_and_threads_do_not_take_them_from_each_other():
    model = randomise(kbz.BertTextClassifier(kbz.BertBackbone(**TINY, dtype="mixed_bfloat16"), num_classes=2))
    ids = np.random.default_rng(0).integers(5, TINY["vocabulary_size"], (8, 6)).astype("int32")
    arrays = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": np.ones_like(ids)}
    before = model.predict(arrays, verbose=0)
    loss_before = model.evaluate(arrays, [0] * 8, verbose=0)
    for weight in model.weights:
        weight.assign(weight * 1.5)
    after = model.predict(arrays, verbose=0)
    assert np.abs(after - before).max() > 0.1
    np.testing.assert_allclose(np.asarray(model.predict_on_batch(arrays)), after, atol=1e-2)
    losses = model.evaluate(arrays, [0] * 8, verbose=0), model.test_on_batch(arrays, np.zeros(8, "int32"))
    np.testing.assert_allclose(np.ravel(losses[1])[0], np.ravel(losses[0])[0], rtol=1e-2)
    exact = -np.log(keras.ops.convert_to_numpy(keras.ops.softmax(after.astype("float32")))[:, 0]).mean()
    np.testing.assert_allclose(np.ravel(losses[0])[0], exact, rtol=1e-2)
    assert abs(np.ravel(loss_before)[0] - exact) > 0.05
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: model.predict(arrays, batch_size=2, verbose=0), range(12)):
            np.testing.assert_allclose(found, after, atol=1e-2)


def test_weights_that_a_callback_changes_as_a_pass_begins():
    """Keras' SwapEMAWeights does so; a second pass, whose program is traced already, must also have its weights."""

    class Twice(keras.callbacks.Callback):
        def on_predict_begin(self, logs=None):
            for weight in self.model.weights:
                weight.assign(weight * 1.5)

    model = randomise(kbz.BertTextClassifier(kbz.BertBackbone(**TINY, dtype="mixed_bfloat16"), num_classes=2))
    ids = np.random.default_rng(0).integers(5, TINY["vocabulary_size"], (8, 6)).astype("int32")
    arrays = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": np.ones_like(ids)}
    for _ in range(2):
        changed = model.predict(arrays, callbacks=[Twice()], verbose=0)
        np.testing.assert_allclose(changed, model.predict(arrays, verbose=0), atol=1e-2)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_each_pass_has_the_weights_of_its_time(dtype):
    """After an update, a pass gives what a new model with the same weights does; `fit` evaluates between updates."""
    model = kbz.BertTextClassifier(kbz.BertBackbone(**TINY, dtype=dtype), num_classes=2)
    ids = np.random.default_rng(0).integers(5, TINY["vocabulary_size"], (8, 6)).astype("int32")
    ones = np.ones_like(ids)
    arrays, labels = {"token_ids": ids, "segment_ids": 0 * ones, "padding_mask": ones}, [0, 1] * 4
    randomise(model)
    model.compile(keras.optimizers.SGD(0.1))
    before = model.predict(arrays, verbose=0)
    losses = model.fit(
        arrays, labels, epochs=2, batch_size=4, validation_data=(arrays, labels), shuffle=False, verbose=0
    ).history["val_loss"]
    after = model.predict(arrays, verbose=0)
    assert np.abs(after - before).max() > 0.01
    again = model.from_config(model.get_config())
    again.set_weights(model.get_weights())
    np.testing.assert_array_equal(again.predict(arrays, verbose=0), after)
    again.compile()
    np.testing.assert_allclose(
        again.evaluate(arrays, labels, verbose=0, return_dict=True)["loss"], losses[-1], rtol=1e-6
    )
    assert losses[0] != losses[1]


@pytest.mark.skipif(BACKEND != "torch", reason="PyTorch's fused attention alone leaves bfloat16 products aside.")
@pytest.mark.parametrize(
    "amx, length, training, calls",
    [
        (False, 8, True, 0),
        (False, 257, True, 2),
        (False, 257, False, 0),
        (True, 257, True, 0),
        (True, 257, False, 2),
        (True, 15, False, 0),
    ],
)
def test_fused_attention_in_bfloat16_is_left_aside_where_it_is_slow(
    fused_calls, amx, length, training, calls, monkeypatch
):
    """Its gradient does not use AMX, and its outputs use bfloat16 products with AMX alone."""
    import torch

    monkeypatch.setattr("keras_bert_zoo.layers.torch_product.HAS_AMX", amx)
    backbone = kbz.BertBackbone(**{**TINY, "max_sequence_length": 257}, attention_dropout=0.0, dtype="mixed_bfloat16")
    fused_calls.clear()
    ids = np.ones((2, length), "int32")
    with torch.set_grad_enabled(training):
        backbone({"token_ids": ids, "segment_ids": ids, "padding_mask": ids}, training=training)
    assert len(fused_calls) == calls


@pytest.mark.skipif(BACKEND != "torch", reason="PyTorch's kernel alone drops out.")
def test_off_the_cpu_pytorch_drops_out_within_fused_attention(monkeypatch):
    import torch

    rates, original = [], torch.nn.functional.scaled_dot_product_attention

    def recorded(*arguments, dropout_p, **options):
        rates.append(dropout_p)
        return original(*arguments, dropout_p=dropout_p, **options)

    backbone = kbz.BertBackbone(**TINY, attention_dropout=0.1)
    monkeypatch.setattr("keras_bert_zoo.layers.fused_attention.on_cpu", lambda tensor: False)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", recorded)
    ids = np.ones((2, 8), "int32")
    for training in (True, False):
        backbone({"token_ids": ids, "segment_ids": ids, "padding_mask": ids}, training=training)
    assert rates == [0.1, 0.1, 0.0, 0.0]


@pytest.mark.skipif(BACKEND != "torch", reason="The other backends put constants into their programs.")
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_no_number_of_ours_is_sent_to_the_device_in_a_step(dtype):
    """On a GPU, each send would wait for what was started before. Keras sends some, for the loss and its metrics."""
    from torch.overrides import TorchFunctionMode

    senders = []

    class Sent(TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), options=None):
            if function.__name__ in ("as_tensor", "tensor") and isinstance(arguments[0], int | float):
                frames = [frame.filename for frame in traceback.extract_stack()[:-1]]
                outside = [name for name in frames if not re.search("keras/src/(backend|ops)/|/torch/", name)]
                senders.append("ours" if "keras_bert_zoo" in outside[-1] else "Keras")
            return function(*arguments, **(options or {}))

    backbone = kbz.BertBackbone(**TINY, dtype=dtype)
    model = kbz.BertTextClassifier(backbone, num_classes=2)
    model.compile(kbz.AdamW(kbz.WarmupPolynomialDecay(1e-3, 0.1, 10)))
    ids = np.ones((2, 8), "int32")
    inputs = {"token_ids": ids, "segment_ids": ids, "padding_mask": ids}
    model.train_on_batch(inputs, np.array([0, 1]))
    with Sent():
        model.train_on_batch(inputs, np.array([0, 1]))
    assert "Keras" in senders
    assert "ours" not in senders


@pytest.mark.skipif(BACKEND != "jax", reason="JAX lowers for platforms that are not there.")
@pytest.mark.parametrize("length, causal, kernels", [(8, False, 1), (8, True, 1), (9, False, 0)])
def test_on_a_gpu_jax_takes_cudnns_flash_attention_and_its_gradient(monkeypatch, length, causal, kernels):
    import jax
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    from keras_bert_zoo.layers.fused_attention import fused_attention

    # What a Hopper card would answer.
    monkeypatch.setattr("keras_bert_zoo.layers.fused_attention.on_cpu", lambda tensor: False)
    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(cudnn, "check_compute_capability", lambda capability: True)

    def loss(qkv, mask):
        return fused_attention(qkv, mask, causal).astype("float32").sum()

    qkv, mask = np.zeros((2, length, 3, 2, 64), jax.numpy.bfloat16), np.ones((2, 1, 1, length), bool)
    program = jax.jit(jax.grad(loss)).trace(qkv, mask).lower(lowering_platforms=("cuda",)).as_text()
    for name in ("fmhaScaleBiasSoftmax", "fmhaScaleBiasSoftmaxBackward"):
        assert len(re.findall(rf"@__cudnn\${name}\(", program)) == kernels


# --- Operations

SIZES = {**TINY, "vocabulary_size": 300, "num_layers": 1, "hidden_dim": 128, "intermediate_dim": 512}
EXAMPLES, LENGTH = 2, 16


def pretraining_step(predictions):
    """Return a pre-trainer, a batch, and the matrix products' operations by the formula and by hand."""
    model = kbz.BertPretrainer(kbz.BertBackbone(**SIZES))
    model.compile(keras.optimizers.SGD(0.1))
    ids = np.ones((EXAMPLES, LENGTH), "int32")
    masked, some = ids[:, :predictions], np.ones((EXAMPLES, predictions), "float32")
    inputs = {"token_ids": ids, "segment_ids": ids, "padding_mask": ids, "mask_positions": masked}
    batch = inputs, {"mlm": masked, "nsp": ids[:, 0]}, {"mlm": some, "nsp": some[:, 0]}
    # Not in the formula: the next-sentence head, and the products with ones and zeros that take the vectors and queries
    # of the first token and the masked ones. Nobody asks for the gradient of the ones and zeros, though it stands in
    # TensorFlow's graph until that is pruned. Of the other tokens the last block computes query, key and value alone.
    passes, read, width = 3 if BACKEND == "tensorflow" else 2, 1 + predictions, SIZES["hidden_dim"]
    beside = passes * 2 * 2 * read * LENGTH * width + 3 * 2 * 2 * width
    left_out = 3 * 2 * (LENGTH - read) * (width * width + 2 * width * SIZES["intermediate_dim"] + 2 * LENGTH * width)
    formula = training_flops(model.backbone.architecture, LENGTH, predictions)
    return model, batch, EXAMPLES * (formula + beside - left_out)


@pytest.mark.parametrize("predictions", [2, 8])
def test_operations_of_a_step_are_the_formulas(predictions):
    """The masked-LM head and most of the last block, here the only one, are computed at the predictions alone."""
    model, batch, expected = pretraining_step(predictions)
    assert step_flops(model, batch) == expected


def test_operations_of_a_classifiers_step_are_the_formulas():
    """The last of two blocks is computed at [CLS] alone."""
    model = kbz.BertTextClassifier(kbz.BertBackbone(**{**SIZES, "num_layers": 2}), num_classes=3)
    model.compile(keras.optimizers.SGD(0.1))
    ids = np.ones((EXAMPLES, LENGTH), "int32")
    batch = {"token_ids": ids, "segment_ids": ids, "padding_mask": ids}, ids[:, 0]
    of_one_block = training_flops({**model.backbone.architecture, "num_layers": 1}, LENGTH)
    head = 3 * 2 * SIZES["hidden_dim"] * 3
    expected = EXAMPLES * (of_one_block + 3 * at_one_position(LENGTH) + head)
    assert step_flops(model, batch) == expected


def test_operations_at_one_position():
    """No token's key or value exists: both kernels meet one row per text, and each head meets all tokens, twice."""
    length, width = 64, SIZES["hidden_dim"]
    layer = kbz.layers.EncoderLayer(width, SIZES["num_heads"], SIZES["intermediate_dim"])
    hidden = np.random.default_rng(0).normal(size=(EXAMPLES, length, width)).astype("float32")
    layer.build(hidden.shape)
    expected = EXAMPLES * at_one_position(length)

    def call(hidden):
        return layer(hidden, output_positions=0, training=False)

    if BACKEND == "torch":
        assert torch_flops(lambda: call(hidden)) == expected
    elif BACKEND == "jax":
        assert jaxpr_flops(call, hidden) == expected
    else:
        assert graph_flops(call, hidden) == expected


@pytest.mark.skipif(BACKEND == "jax", reason="XLA makes one loop of a weight's update by itself.")
def test_adamw_updates_each_weight_in_one_kernel():
    """This includes the embedding tables, whose gradients are slices on TensorFlow."""
    model = kbz.BertTextClassifier(kbz.BertBackbone(**SHALLOW), num_classes=2)
    model.compile(kbz.AdamW(1e-3))
    ids, updated = np.ones((EXAMPLES, LENGTH), "int32"), []
    batch = {"token_ids": ids, "segment_ids": ids, "padding_mask": ids}, ids[:, 0]
    if BACKEND == "torch":
        from torch.utils._python_dispatch import TorchDispatchMode

        class Updates(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                if "_fused_adamw_" in str(function):
                    updated.append(len(args[0]))
                return function(*args, **(kwargs or {}))

        with Updates():
            model.train_on_batch(*batch)
        assert len(updated) == 2  # With decay and without.
    else:
        model.optimizer.build(model.trainable_variables)
        model._symbolic_build(data_batch=batch)
        operations = graph_of(model.train_step, batch).get_operations()
        updated = [1 for operation in operations if operation.type == "ResourceApplyAdam"]
    assert sum(updated) == len(model.trainable_variables)


def at_one_position(length):
    """Return the operations of an example's block, forward."""
    width, inner, heads = SIZES["hidden_dim"], SIZES["intermediate_dim"], SIZES["num_heads"]
    return 2 * (4 * width * width + 2 * width * inner + 2 * heads * length * width)


def step_flops(model, batch):
    if BACKEND == "torch":
        model.train_on_batch(*batch)  # The first one also builds.
        return torch_flops(lambda: model.train_on_batch(*batch))
    if BACKEND == "jax":
        return jaxpr_flops(model.train_step, jax_state(model, batch), batch)
    return graph_flops(model.train_step, batch)


def torch_flops(run):
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    def of_onednn(inputs, weight, *_, **__):
        return 2 * math.prod(inputs) * weight[0]

    formulas = {getattr(torch.ops.mkldnn, "_linear_pointwise", None): of_onednn}  # The counter has only PyTorch's own.
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter:
        run()
    return counter.get_total_flops()


def jaxpr_flops(function, *arguments):
    """Return the operations of the matrix products in JAX's program."""
    import jax
    from jax.extend.core import jaxprs_in_params

    def count(jaxpr):
        total = 0
        for equation in jaxpr.eqns:
            if equation.primitive.name == "dot_general":
                (contracted, _), _ = equation.params["dimension_numbers"]
                left, (product,) = equation.invars[0].aval.shape, equation.outvars
                total += 2 * math.prod(product.aval.shape) * math.prod(left[axis] for axis in contracted)
            assert equation.primitive.name not in ("scan", "while", "cond")  # They would count more than once, or less.
            total += sum(map(count, jaxprs_in_params(equation.params)))
        return total

    return count(jax.make_jaxpr(function)(*arguments).jaxpr)


def jax_state(model, batch):
    model.optimizer.build(model.trainable_variables)
    model._symbolic_build(data_batch=batch)
    return model._get_jax_state(
        trainable_variables=True, non_trainable_variables=True, optimizer_variables=True, metrics_variables=True
    )


def graph_of(function, argument):
    import tensorflow as tf

    return tf.function(function).get_concrete_function(keras.tree.map_structure(tf.constant, argument)).graph


def graph_flops(function, argument):
    """Return the operations of the matrix products in TensorFlow's graph."""
    total = 0
    for operation in graph_of(function, argument).get_operations():
        if operation.type in ("MatMul", "BatchMatMulV2", "_MklBatchMatMulV2"):
            left, (product,) = operation.inputs[0].shape, operation.outputs
            if operation.type == "MatMul" and 1 in product.shape:
                continue  # A product with a vector, for a sum.
            transposed = operation.get_attr("transpose_a" if operation.type == "MatMul" else "adj_x")
            total += 2 * product.shape.num_elements() * left[-2 if transposed else -1]
        assert operation.type != "Einsum"
    return total
