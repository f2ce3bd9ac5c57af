"""The answerer: compared with transformers, and what `fit`, `predict` and `answer` take and give."""

import json

import keras
import numpy as np
import pandas
import pytest

import keras_bert_zoo as kbz
from tests import layouts
from tests.helpers import (
    TINY,
    WORDS,
    check_saving,
    crossentropy,
    gradients,
    numpy,
    random_inputs,
    randomise,
    short_error,
    slow_on,
)
from tests.theirs import assert_same_gradients, run_theirs, saved_model

QUESTIONS = ["was the cast good", "was it long ?", "is it slow", "was the plot good"]
CONTEXTS = [
    "The plot was dull. The cast was warm, and it was very very long.",
    "Not long!",
    "A film so fine",
    "The plot was dull. The cast was warm, and it was very very long.",
]
ANSWERS = [[("warm", 32), ("dull", 13)], [("Not long", 0)], [], [("dull", 13)]]


@pytest.fixture
def preprocessor(tokenizer):
    return kbz.BertQuestionPreprocessor(tokenizer, sequence_length=16, stride=3, question_length=4)


@pytest.fixture
def answerer(preprocessor):
    backbone = kbz.BertBackbone(**TINY, dropout=0.0, attention_dropout=0.0, pooler=False)
    return randomise(kbz.BertQuestionAnswerer(backbone, preprocessor=preprocessor), scale=0.5)


def logits_one_by_one(answerer, x):
    """Compute the logits of each window on its own, so without padding and in order."""
    windows = answerer.preprocessor.pack(x)
    rows = [windows.take(np.array([i]), int(length)) for i, length in enumerate(windows.lengths)]
    return windows, [numpy(answerer(row))[0] for row in rows]


@slow_on("jax")
def test_the_same_whatever_the_padding(answerer):
    windows, expected = logits_one_by_one(answerer, (QUESTIONS, CONTEXTS))
    assert windows.questions.tolist() == [0] * 4 + [1, 2] + [3] * 4
    by_question = answerer.predict((QUESTIONS, CONTEXTS), 4, verbose=0)
    assert [len(rows) for rows in by_question] == [4, 1, 1, 4]
    for ours, logits in zip((row for rows in by_question for row in rows), expected, strict=True):
        np.testing.assert_allclose(ours, logits, atol=1e-5)
    arrays = answerer.preprocessor((QUESTIONS, CONTEXTS))
    padded = answerer.predict(arrays, 4, verbose=0)
    assert padded.shape == (10, 2, 16)
    for ours, logits in zip(padded, expected, strict=True):
        np.testing.assert_allclose(ours[:, : logits.shape[1]], logits, atol=1e-5)
        assert (ours[:, logits.shape[1] :] == -1e9).all()
    # The loss is the mean over windows of the mean cross-entropy of both ends; a window has its question's weight.
    places = windows.targets(ANSWERS)
    losses = np.array([crossentropy(logits, own) for logits, own in zip(expected, places, strict=True)])
    right = np.array([logits.argmax(-1) for logits in expected]) == places
    scores = answerer.evaluate((QUESTIONS, CONTEXTS), ANSWERS, batch_size=4, verbose=0, return_dict=True)
    assert scores == {"loss": pytest.approx(losses.mean(), abs=1e-5), "accuracy": pytest.approx(right.mean())}
    assert answerer.evaluate(arrays, places, batch_size=4, verbose=0)[0] == pytest.approx(losses.mean(), abs=1e-5)
    weight = np.array([1, 0, 2, 0.5])
    scores = answerer.evaluate((QUESTIONS, CONTEXTS), ANSWERS, sample_weight=weight, verbose=0)
    weight = weight[windows.questions]
    assert scores[0] == pytest.approx((losses.mean(axis=1) * weight).mean(), abs=1e-5)
    assert scores[1] == pytest.approx((right.mean(axis=1) * weight).sum() / weight.sum())


def test_answers_are_parts_of_their_contexts(answerer):
    spans = answerer.answer(QUESTIONS, CONTEXTS)
    for span, question, context in zip(spans, QUESTIONS, CONTEXTS, strict=True):
        assert context[span.start : span.end] == span.text != ""
        alone = answerer.answer(question, context)
        assert alone[:3] == span[:3]
        np.testing.assert_allclose(alone[3:], span[3:], rtol=1e-4)
    found = answerer.find_answers((QUESTIONS, CONTEXTS), n_best=5, max_answer_tokens=2)
    assert max(len(one.n_best) for one in found) == 5
    texts = [span.text for span in spans]
    keys = [[("dull", 0), ("it", 1)]] * 4
    assert answerer.score((QUESTIONS, CONTEXTS), keys) == kbz.metrics.squad_v1_scores([["dull", "it"]] * 4, texts)
    scores = answerer.tune_null_threshold((QUESTIONS, CONTEXTS), ANSWERS)
    assert scores["f1"] == pytest.approx(scores["best_f1"])
    assert answerer.null_threshold == scores["best_f1_thresh"]
    assert answerer.score((QUESTIONS, CONTEXTS), ANSWERS) == pytest.approx(scores, rel=1e-4)
    answerer.null_threshold = -1e6
    assert [span[:3] for span in answerer.answer(QUESTIONS, CONTEXTS)] == [("", 0, 0)] * 4
    assert answerer.answer(QUESTIONS[0], CONTEXTS[0]).probability > 0


def test_the_tuned_threshold_is_the_best_for_f1(answerer, monkeypatch):
    """The second text earns half a point of F1 and none of exact match."""
    found = ["warm", "warm film"], [1.0, 2.0]
    monkeypatch.setattr(answerer, "_search", lambda x, batch_size: None)
    monkeypatch.setattr("keras_bert_zoo.models.question_answerer.texts_and_odds", lambda _: found)
    scores = answerer.tune_null_threshold((QUESTIONS[:2], CONTEXTS[:2]), [["warm"], ["warm"]])
    assert (scores["best_exact_thresh"], scores["best_f1_thresh"], answerer.null_threshold) == (1.0, 2.0, 2.0)


def test_fit_learns_to_answer_and_not_to(preprocessor):
    wide = {"num_layers": 1, "hidden_dim": 32, "intermediate_dim": 64, "initializer_range": 0.1}
    backbone = kbz.BertBackbone(**{**TINY, **wide}, dropout=0.0, attention_dropout=0.0, pooler=False)
    answerer = kbz.BertQuestionAnswerer(backbone, null_threshold=0.0, preprocessor=preprocessor)
    answerer.compile(optimizer=kbz.AdamW(kbz.WarmupPolynomialDecay(1e-2), bias_correction=True))
    x = (QUESTIONS, CONTEXTS)
    history = answerer.fit(x, ANSWERS, batch_size=10, epochs=60, verbose=0).history
    assert history["loss"][-1] < 0.1 * history["loss"][0]
    assert [span.text for span in answerer.answer(QUESTIONS, CONTEXTS)] == ["warm", "Not long", "", "dull"]
    scores = answerer.score(x, ANSWERS)
    assert (scores["exact"], scores["NoAns_f1"]) == (100, 100)


def test_ready_arrays_stream(answerer):
    tf = pytest.importorskip("tensorflow")
    arrays = answerer.preprocessor((QUESTIONS, CONTEXTS))
    places = answerer.preprocessor.pack((QUESTIONS, CONTEXTS)).targets(ANSWERS)
    expected = answerer.evaluate(arrays, places, verbose=0)
    stream = tf.data.Dataset.from_tensor_slices((arrays, places)).batch(5)
    np.testing.assert_allclose(answerer.evaluate(stream, verbose=0), expected, rtol=1e-5)
    beyond = tf.data.Dataset.from_tensor_slices((arrays, np.full_like(places, 15))).batch(5)
    with pytest.raises(ValueError, match="`y` must hold positions of tokens, not of padding"):
        answerer.fit(beyond, verbose=0)
    texts = tf.data.Dataset.from_tensor_slices((QUESTIONS, CONTEXTS)).batch(2)
    with pytest.raises(ValueError, match="`x` must be a data set of ready arrays, or texts in memory"):
        answerer.predict(texts, verbose=0)


# --- Files


def test_saves(preprocessor, tmp_path):
    def build():
        backbone = kbz.BertBackbone(**TINY, pooler=False)
        return kbz.BertQuestionAnswerer(backbone, null_threshold=-1.5, preprocessor=preprocessor)

    loaded = check_saving(build, random_inputs(), tmp_path)
    assert loaded.null_threshold == -1.5
    assert (loaded.preprocessor.stride, loaded.preprocessor.question_length) == (3, 4)


def test_a_preset_keeps_the_threshold_and_the_windows(answerer, tmp_path):
    answerer.null_threshold = -2.25
    answerer.save_to_preset(tmp_path / "own")
    settings = json.loads((tmp_path / "own" / "preset.json").read_text())["settings"]
    assert settings == {"null_threshold": -2.25, "stride": 3, "question_length": 4}
    loaded = kbz.BertQuestionAnswerer.from_preset(tmp_path / "own")
    assert loaded.preprocessor.get_config() == answerer.preprocessor.get_config()
    assert loaded.null_threshold == -2.25
    assert (loaded.load_report.fresh, loaded.load_report.unused) == ((), ())
    np.testing.assert_array_equal(numpy(loaded(random_inputs())), numpy(answerer(random_inputs())))
    assert kbz.BertQuestionAnswerer.from_preset(tmp_path / "own", null_threshold=None).null_threshold is None
    # A shorter window leaves room for the context.
    for length, kept in ((15, 4), (7, 3)):
        loaded = kbz.BertQuestionAnswerer.from_preset(tmp_path / "own", sequence_length=length).preprocessor
        assert (loaded.sequence_length, loaded.question_length, loaded.stride) == (length, kept, 3)
    # With another task's preset, the lengths are the recipe's, as far as there are positions.
    classifier = kbz.BertTextClassifier(
        kbz.BertBackbone(**{**TINY, "max_sequence_length": 400}),
        num_classes=2,
        preprocessor=kbz.BertPreprocessor(kbz.BertTokenizer(WORDS), 300),
    )
    classifier.save_to_preset(tmp_path / "other")
    fresh = kbz.BertQuestionAnswerer.from_preset(tmp_path / "other")
    for made in (fresh.preprocessor, kbz.BertQuestionPreprocessor(kbz.BertTokenizer(WORDS))):
        config = made.get_config()
        assert [config[name] for name in ("sequence_length", "stride", "question_length")] == [384, 128, 64]
    assert set(fresh.load_report.fresh) == {"spans/kernel", "spans/bias"}
    short = kbz.BertQuestionAnswerer.from_preset(tmp_path / "other", sequence_length=32)
    assert (short.preprocessor.sequence_length, short.preprocessor.question_length) == (32, 16)


def run(model, inputs, places=None):
    labels = {} if places is None else dict(zip(("start_positions", "end_positions"), places.T, strict=True))
    return run_theirs(model, inputs, **labels)


def test_logits_loss_and_gradients_of_transformers(tmp_path):
    model = saved_model("BertForQuestionAnswering", tmp_path / "theirs")
    loaded = kbz.BertQuestionAnswerer.from_preset(tmp_path / "theirs")
    assert (loaded.load_report.fresh, loaded.load_report.unused) == ((), ())
    inputs = random_inputs(3, 20, 90)
    outputs, tokens = run(model, inputs), inputs["padding_mask"] == 1
    ours = numpy(loaded(inputs))
    for i, logits in enumerate((outputs.start_logits, outputs.end_logits)):
        np.testing.assert_allclose(ours[:, i][tokens], logits.detach().numpy()[tokens], atol=5e-6)
    # Without padding, which their loss counts and ours does not.
    inputs["padding_mask"][:] = 1
    places = np.array([[3, 5], [0, 0], [19, 19]])
    outputs = run(model, inputs, places)

    def loss(y):
        return loaded.compute_loss(None, keras.ops.convert_to_tensor(places), y)

    assert float(numpy(loss(loaded(inputs)))) == pytest.approx(outputs.loss.item(), abs=1e-5)
    ours = gradients(loaded, inputs, loss)
    outputs.loss.backward()
    assert_same_gradients(ours, model)
    loaded.save_to_preset(tmp_path / "ours")
    back = type(model).from_pretrained(tmp_path / "ours")
    for name, parameter in model.state_dict().items():
        assert np.array_equal(parameter.numpy(), back.state_dict()[name].numpy()), name


def test_the_head_of_a_tensorflow1_checkpoint(tmp_path):
    pytest.importorskip("tensorflow")
    model = saved_model("BertForQuestionAnswering", tmp_path / "theirs")
    layouts.write_tensorflow1(model, tmp_path / "bert")
    loaded = kbz.BertQuestionAnswerer.from_preset(tmp_path / "bert")
    assert (loaded.load_report.fresh, loaded.load_report.unused) == ((), ())
    inputs = random_inputs(3, 20, 90)
    expected = run(model, inputs).end_logits.detach().numpy()
    tokens = inputs["padding_mask"] == 1
    np.testing.assert_allclose(numpy(loaded(inputs))[:, 1][tokens], expected[tokens], atol=5e-6)


# --- What is refused

ARRAYS = random_inputs(2, 9)
BAD_FIT = [
    ((QUESTIONS, ANSWERS), "`x` must be pairs, a tuple (questions, contexts). Received: single texts"),
    (((QUESTIONS, CONTEXTS[:3]), ANSWERS), "`x` must hold as many first as second texts. Received: 4 and 3"),
    (((QUESTIONS, CONTEXTS), None), "`y` must be given. Received: y=None"),
    (((QUESTIONS, CONTEXTS), [[("warm", 31)], [], [], []]), "occur in their contexts at `start`. Received: y[0]"),
    (((QUESTIONS, CONTEXTS), ANSWERS[:3]), "4 lists in all. Received: 3"),
    ((ARRAYS, [1, 2]), "`y` must hold integers of the shape (2, 2)"),
    ((ARRAYS, [[1, 2], [3, -4]]), "`y` must be in [0, 16). Received: y with -4"),
    ((ARRAYS, [[1, 9], [0, 0]]), "positions of tokens, not of padding. Received: y[0]=[1, 9] for 9 tokens"),
]


def test_bad_data_leaves_the_model_usable(answerer):
    before = [numpy(weight) for weight in answerer.weights]
    for (x, y), words in BAD_FIT:
        for call in (answerer.fit, answerer.evaluate):
            with short_error(words):
                call(x, y, verbose=0)
    for call, words in [
        (lambda: answerer.answer("is it", CONTEXTS), "must both be strings, or both be lists. Received: str and list"),
        (lambda: answerer.answer(["is it"], None), "or both be lists. Received: list and NoneType"),
        (lambda: answerer.answer(None, None), "or both be lists. Received: NoneType and NoneType"),
        (lambda: answerer.find_answers(ARRAYS), "`x` must be a tuple (questions, contexts). Received: x of type dict"),
        (lambda: answerer.score((QUESTIONS, CONTEXTS), ["a"] * 4), "`answers` must hold for each question a list of"),
        (
            lambda: answerer.score((QUESTIONS, CONTEXTS), None),
            "`answers` must be a list with one entry per question. Received: answers of type NoneType",
        ),
        (
            lambda: answerer.tune_null_threshold((QUESTIONS, CONTEXTS), [["a"]]),
            "one entry per question, 4. Received: len(answers)=1",
        ),
        (lambda: answerer.find_answers((QUESTIONS, CONTEXTS), n_best=0), "`n_best` must be a positive integer"),
        (lambda: answerer.predict((QUESTIONS, CONTEXTS), steps=1), "`steps` needs streamed data"),
        (lambda: answerer.fit((QUESTIONS, CONTEXTS), ANSWERS, sample_weight=[1.0]), "the shape (4,), one per question"),
        (lambda: answerer.fit((QUESTIONS, CONTEXTS), ANSWERS, class_weight={0: 1.0}), "`class_weight` needs classes"),
    ]:
        with short_error(words):
            call()
    for weight, value in zip(answerer.weights, before, strict=True):
        np.testing.assert_array_equal(numpy(weight), value)


def test_answers_may_be_a_column(answerer):
    x = (pandas.Series(QUESTIONS), pandas.Series(CONTEXTS))
    answers = [*ANSWERS[:2], [("fine", 10)], ANSWERS[3]]
    column = pandas.Series(answers, index=[3, 1, 4, 2])
    assert answerer.score(x, column) == answerer.score((QUESTIONS, CONTEXTS), answers)
    with pytest.raises(ValueError, match=r"one entry per question, 4. Received: len\(answers\)=1"):
        answerer.score(x, pandas.Series(answers[:1]))


@pytest.mark.parametrize("threshold", ["1", True, float("nan"), float("inf"), 10**400])
def test_bad_thresholds(threshold, backbone):
    with pytest.raises(ValueError, match="`null_threshold` must be a number or None"):
        kbz.BertQuestionAnswerer(backbone, null_threshold=threshold)


def test_bad_windows(tokenizer):
    for options, words in [
        ({"stride": 0}, "`stride` must be a positive integer"),
        ({"question_length": 1.5}, "`question_length` must be a positive integer"),
        ({"sequence_length": 67}, "at least question_length + 4. Received: sequence_length=67, question_length=64"),
    ]:
        with short_error(words):
            kbz.BertQuestionPreprocessor(tokenizer, **options)


def test_answers_are_as_long_as_they_may_be(answerer):
    found = answerer.find_answers((QUESTIONS, CONTEXTS), max_answer_tokens=2)
    tokens = answerer.preprocessor.tokenizer.tokenize
    assert max(len(tokens(span.text)) for one in found for span in one.n_best) == 2


@pytest.mark.parametrize("threshold", [None, 0.5])
def test_as_many_answers_of_such_a_length_are_looked_at_as_in_the_original(answerer, monkeypatch, threshold):
    """google-research/bert, run_squad.py: 20 and 30."""
    monkeypatch.setattr(
        "keras_bert_zoo.models.question_answerer.search_answers",
        lambda windows, logits, with_null, n_best, max_answer_tokens: [with_null, n_best, max_answer_tokens],
    )
    answerer.null_threshold = threshold
    assert answerer.find_answers((QUESTIONS, CONTEXTS)) == [threshold is not None, 20, 30]
