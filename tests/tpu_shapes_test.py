"""A TPU's programs are of fixed shapes: batches of texts and arrays have one, and `tf.data` sets keep theirs."""

from functools import partial

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from keras_bert_zoo.training.distribution import calls_python, is_tpu
from tests.helpers import LABELS, SHALLOW, TEXTS, WORDS, numpy, random_inputs, randomise

tf = pytest.importorskip("tensorflow")
tensorflow_only = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow's strategies")

COUNT = 13  # In batches of 6 the last is short.
WHOLE = [word for word in WORDS[5:] if word.isalpha()]
SENTENCES = [" ".join(WHOLE[(i * 7 + j) % len(WHOLE)] for j in range(1 + i * 3 % 11)) for i in range(COUNT)]
WORDS_OF = [sentence.split() for sentence in SENTENCES]
WORDS_OF[-1] *= 5  # 20 words: there are two padded lengths.
CONTEXTS = [f"{sentence} it was a good film" for sentence in SENTENCES]
VECTORS = np.random.default_rng(0).normal(size=(COUNT, 8)).astype("float32")

# By task: its class, options, preprocessor and data, the length of the longest input, those of predictions, targets.
TASKS = {
    "classifier": (
        kbz.BertTextClassifier, {"num_classes": 3, "dropout": 0.0}, kbz.BertPreprocessor,
        SENTENCES, [i % 3 for i in range(COUNT)], 16, [16], (6,),
    ),
    "multi-label": (
        kbz.BertTextClassifier, {"class_names": ["a", "b"], "multi_label": True, "dropout": 0.0}, kbz.BertPreprocessor,
        SENTENCES, [["a"], [], ["a", "b"]] * 4 + [["b"]], 16, [16], (6, 2),
    ),
    "regressor": (
        kbz.BertTextRegressor, {"dropout": 0.0}, kbz.BertPreprocessor,
        SENTENCES, [i / 4 for i in range(COUNT)], 16, [16], (6, 1),
    ),
    "next sentence": (
        kbz.BertNextSentencePredictor, {}, kbz.BertPreprocessor,
        (SENTENCES, SENTENCES[::-1]), [i % 2 for i in range(COUNT)], 32, [32], (6,),
    ),
    "token classifier": (
        kbz.BertTokenClassifier, {"num_classes": 3, "dropout": 0.0}, kbz.BertWordPreprocessor,
        WORDS_OF, [[i % 3 for i in range(len(words))] for words in WORDS_OF], 32, [16, 32], (6, 32),
    ),
    "question answerer": (
        kbz.BertQuestionAnswerer, {}, lambda tokenizer, length: kbz.BertQuestionPreprocessor(tokenizer, length, 8, 4),
        (SENTENCES, CONTEXTS), [[("film", context.rindex("film"))] for context in CONTEXTS], 32, [16, 32], (6, 2),
    ),
    "multiple choice": (
        kbz.BertMultipleChoice, {"dropout": 0.0}, kbz.BertMultipleChoicePreprocessor,
        (SENTENCES, [["a good film", "bad"][: 1 + i % 2] for i in range(COUNT)]), [i % 2 for i in range(COUNT)],
        32, [32], (6,),
    ),
    "embedder": (kbz.BertTextEmbedder, {}, kbz.BertPreprocessor, SENTENCES, VECTORS, 16, [16], (6, 8)),
}  # fmt: skip

LIKE_THE_CLASSIFIER = ("multi-label", "regressor", "next sentence")


@pytest.fixture
def tpu(monkeypatch):
    """A function that makes this process' only device count as a TPU."""

    def begin():
        # Patch the functions themselves: every module that imports them has them.
        for function in (is_tpu, calls_python):
            monkeypatch.setattr(function, "__code__", (lambda strategy: True).__code__)

    return begin


def built(name):
    """Return a task, with random weights and without dropout."""
    task, options, preprocessor, *_ = TASKS[name]
    sizes = {**SHALLOW, "max_sequence_length": 40, "dropout": 0.0, "attention_dropout": 0.0}
    backbone = kbz.BertBackbone(**sizes, pooler=name not in ("token classifier", "question answerer", "embedder"))
    model = task(backbone, **options, preprocessor=preprocessor(kbz.BertTokenizer(WORDS), 40))
    # Adam makes steps of rounding where a gradient is zero, such as that of a bias that all choices share.
    model.compile(keras.optimizers.SGD(0.1), **({"loss": "mse"} if name == "embedder" else {}))
    return randomise(model)


def note_shapes(model):
    """Return a list to which each trace of a step adds its name and the shapes of the parts of its batch."""
    traced = []

    def noted(name, step, data):
        inputs, *rest = data
        traced.append((name, tuple(inputs["token_ids"].shape), *(tuple(part.shape) for part in rest)))
        return step(data)

    for name in ("train_step", "test_step", "predict_step"):
        setattr(model, name, partial(noted, name, getattr(model, name)))
    return traced


@tensorflow_only
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LIKE_THE_CLASSIFIER else []) for name in TASKS]
)
def test_batches_of_one_shape_train_evaluate_and_predict_as_others_do(name, tpu):
    *_, x, y, length, lengths, targets = TASKS[name]
    found = []
    for begin in (lambda: None, tpu):
        begin()
        keras.utils.set_random_seed(1)
        model = built(name)
        traced = note_shapes(model)
        model.fit(x, y, batch_size=6, epochs=2, verbose=0)
        scores = model.evaluate(x, y, batch_size=6, verbose=0, return_dict=True)
        logits = keras.tree.flatten(model.predict(x, verbose=0))
        found.append((scores, [numpy(weight) for weight in model.trainable_variables], logits))
    middle = (2,) if name == "multiple choice" else ()
    of_weights = targets if name == "token classifier" else (6,)
    fed = ((6, *middle, length), targets, of_weights)
    predicted = [("predict_step", (32, *middle, each)) for each in lengths]
    assert traced == [("train_step", *fed), ("test_step", *fed), *predicted]
    for other, one in zip(*(keras.tree.flatten(each) for each in found), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


@tensorflow_only
def test_a_second_shape_is_a_program_of_its_own(tpu):
    """Keras' own functions would take any length from then on."""
    tpu()
    before, model = tf.function, built("classifier")
    traced = note_shapes(model)
    for length in (16, 32, 16):
        x, y = random_inputs(5, length), np.zeros(5, "int32")
        model.fit(x, y, batch_size=4, verbose=0)
        model.evaluate(x, y, batch_size=4, verbose=0)
        model.predict(x, batch_size=4, verbose=0)
    steps = [("train_step", (4,), (4,)), ("test_step", (4,), (4,)), ("predict_step",)]
    assert traced == [(name, (4, length), *rest) for length in (16, 32) for name, *rest in steps]
    assert tf.function is before


def shapes_of(dataset):
    return [tuple(spec.shape) for spec in tf.nest.flatten(dataset.element_spec)]


@pytest.mark.parametrize("name", TASKS)
def test_a_stream_of_arrays_keeps_its_shape(name):
    *_, x, y, _, _, targets = TASKS[name]
    model = built(name)
    examples = model._examples(x)
    y = model._targets(examples, y, learn=True)[0]
    rows = np.arange(len(y))
    if name == "token classifier":
        y = np.pad(y, ((0, 0), (0, 32 - y.shape[1])), constant_values=-100)
    whole = tf.data.Dataset.from_tensor_slices((examples.take(rows, 32), y, rows))
    middle = (2,) if name == "multiple choice" else ()
    for kept, size in ((True, 6), (False, None)):
        stream = model._streamed(whole.batch(6, drop_remainder=kept), needs_targets=True)
        of_targets = (size, *targets[1:])
        of_weights = of_targets if name == "token classifier" else (size,)
        assert shapes_of(stream) == [(size, *middle, 32)] * 3 + [of_targets, of_weights]
        for _ in stream.take(1):  # What it has is of this shape.
            pass

    def cut(length, batch):
        return tf.nest.map_structure(lambda x: x[..., :length], batch)

    free = tf.data.Dataset.from_generator(
        lambda: map(cut, (32, 30, 28), whole.batch(6)),
        output_signature=tf.nest.map_structure(
            lambda spec: tf.TensorSpec((None,) * (1 + spec.shape.rank), spec.dtype), whole.element_spec
        ),
    )
    stream = model._streamed(free, needs_targets=True)
    assert shapes_of(stream)[:3] == [(None,) * (2 + len(middle))] * 3
    assert len(list(stream)) == -(-len(y) // 6)


def test_targets_of_a_stream_may_have_no_rank(classifier):
    signature = {name: tf.TensorSpec((4, None), "int32") for name in random_inputs()}, tf.TensorSpec(None, "int32")
    data = tf.data.Dataset.from_generator(lambda: [(random_inputs(4), [0, 1, 2, 0])], output_signature=signature)
    stream = classifier._streamed(data, needs_targets=True)
    assert shapes_of(stream) == [(4, None)] * 3 + [(4,)]
    assert next(iter(stream))[1].numpy().tolist() == [0, 1, 2, 0]


@tensorflow_only
def test_a_stream_of_texts_has_one_length_on_a_tpu(tpu):
    """All texts are padded to the longest that the preprocessor makes."""
    data, classifier = tf.data.Dataset.from_tensor_slices((TEXTS, LABELS)), built("classifier")

    def streamed(kept):
        return classifier._streamed(data.batch(3, drop_remainder=kept), needs_targets=True)

    assert shapes_of(streamed(True)) == [(3, None)] * 3 + [(3,)]
    tpu()
    assert shapes_of(streamed(False)) == [(None, None)] * 3 + [(None,)]
    stream = streamed(True)
    assert shapes_of(stream) == [(3, 40)] * 3 + [(3,)]
    batches = list(stream.as_numpy_iterator())
    for name, array in classifier.preprocessor(TEXTS).items():
        given = np.concatenate([inputs[name] for inputs, _ in batches])
        np.testing.assert_array_equal(given, np.pad(array, ((0, 0), (0, 40 - array.shape[1]))))
