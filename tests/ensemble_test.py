"""Ensembles: the mean of what each member says alone, in all that a task does."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from keras_bert_zoo.export_formats import FORMATS
from keras_bert_zoo.models.ensemble import _mean_with
from keras_bert_zoo.text.answers import search_answers
from tests.helpers import SHALLOW, TEXTS, WORDS, numpy, random_inputs, randomise, short_error, slow_on

CHOICES = [TEXTS[:2], TEXTS[1:4], TEXTS[:3], TEXTS[3:6], ["bad", "so slow"], TEXTS[2:4]]
SENTENCES = [["a", "longer", "film"], ["bad"], ["the", "plot", "dullest", "."], []]
QUESTIONS, CONTEXTS = ["was the cast good", "was it long ?"], ["The plot was dull. The cast was warm.", "Not long!"]
LABELS = ["dull", "fine", "fine", "warm", "dull", "fine"]

# A task, its options, its preprocessor with options, and raw input.
TASKS = {
    "classifier": (kbz.BertTextClassifier, {"class_names": ["dull", "fine", "warm"]}, kbz.BertPreprocessor, {}, TEXTS),
    "regressor": (kbz.BertTextRegressor, {}, kbz.BertPreprocessor, {}, TEXTS),
    "tagger": (kbz.BertTokenClassifier, {"class_names": ["B-X", "I-X", "O"]}, kbz.BertWordPreprocessor, {}, SENTENCES),
    "feature_tagger": (
        kbz.BertFeatureTokenClassifier,
        {"class_names": ["B-X", "I-X", "O"], "hidden_layers": [-1, 0], "units": 4, "num_layers": 1},
        kbz.BertWordPreprocessor, {}, SENTENCES,
    ),
    "answerer": (
        kbz.BertQuestionAnswerer, {}, kbz.BertQuestionPreprocessor, {"stride": 4, "question_length": 4},
        (QUESTIONS, CONTEXTS),
    ),
    "chooser": (kbz.BertMultipleChoice, {}, kbz.BertMultipleChoicePreprocessor, {}, (TEXTS, CHOICES)),
    "next_sentence": (kbz.BertNextSentencePredictor, {}, kbz.BertPreprocessor, {}, (TEXTS, TEXTS[::-1])),
    "masked_lm": (kbz.BertMaskedLM, {}, kbz.BertPreprocessor, {}, None),
}  # fmt: skip


def member(task, seed, sizes=None, words=WORDS, **options):
    cls, arguments, preprocessor, window, _ = TASKS[task]
    tokens = kbz.BertTokenizer(words, lowercase=options.pop("lowercase", True))
    length = options.pop("sequence_length", 16)
    backbone = kbz.BertBackbone(**{**SHALLOW, **(sizes or {})})
    task = cls(backbone, **{**arguments, "preprocessor": preprocessor(tokens, length, **window), **options})
    return randomise(task, seed, scale=0.5)


def mean(outputs):
    return keras.tree.map_structure(lambda *arrays: np.mean(arrays, axis=0, dtype="float64"), *outputs)


def assert_close(ours, expected):
    for x, y in zip(keras.tree.flatten(ours), keras.tree.flatten(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize(
    "task",
    [
        name if name in ("classifier", "answerer") else pytest.param(name, marks=slow_on("tensorflow", "jax"))
        for name in TASKS
        if name != "masked_lm"
    ],
)
def test_predicts_the_mean_of_what_members_predict(task, monkeypatch):
    # Members may differ in size.
    members = [member(task, 0), member(task, 1, {"num_layers": 2, "hidden_dim": 4}), member(task, 2)]
    together, x = kbz.ensemble(members), TASKS[task][-1]
    assert isinstance(together, type(members[0]))
    expected = mean([one.predict(x, 2, verbose=0) for one in members])
    packed = []
    pack = type(members[0].preprocessor).pack
    monkeypatch.setattr(type(members[0].preprocessor), "pack", lambda self, x: packed.append(x) or pack(self, x))
    assert_close(together.predict(x, 2, verbose=0), expected)
    assert len(packed) == 1
    if task in ("classifier", "next_sentence"):
        rows = np.exp(expected) / np.exp(expected).sum(-1, keepdims=True)
        for found, row in zip(together.classify(x, 2), rows, strict=True):
            assert [name for name, _ in found] == [members[0].class_names[i] for i in np.argsort(-row)]
    if task == "classifier":
        scores = together.evaluate(x, LABELS, batch_size=2, verbose=0, return_dict=True)
        numbers = ["dull fine warm".split().index(label) for label in LABELS]
        assert scores["loss"] == pytest.approx(-np.log(rows[np.arange(6), numbers]).mean(), abs=1e-5)
        assert scores["accuracy"] == pytest.approx((rows.argmax(-1) == numbers).mean())
    elif task == "chooser":
        for (best, probabilities), row, choices in zip(together.choose(x, 2), expected, CHOICES, strict=True):
            assert (best, len(probabilities)) == (row.argmax(), len(choices))
    elif task == "answerer":
        windows, logits = pack(members[0].preprocessor, x), [window for question in expected for window in question]
        for answer, found in zip(together.answer(*x, 2), search_answers(windows, logits, False), strict=True):
            assert answer[:3] == found.best()[:3]
            assert answer.probability == pytest.approx(found.best().probability, abs=1e-5)
    elif task in ("tagger", "feature_tagger"):
        for found, words, rows in zip(together.tag(x, 2), x, expected, strict=True):
            assert {word for entity in found for word in entity.text.split()} == {
                word
                for word, row in zip(words, rows, strict=True)
                if row.argmax() < 2  # Not "O".
            }


def test_masked_lm():
    members = [member("masked_lm", seed) for seed in range(2)]
    together = kbz.ensemble(members)
    words = ("[CLS] a [MASK] film [SEP]", "[CLS] it [MASK] [SEP] [PAD]")
    ids = np.array([[WORDS.index(word) for word in text.split()] for text in words], "int32")
    inputs = {"token_ids": ids, "segment_ids": np.zeros_like(ids), "padding_mask": (ids > 0).astype("int32")}
    inputs["mask_positions"] = np.array([[2], [2]], "int32")
    logits = mean([numpy(one(inputs)["mlm"]) for one in members])
    assert_close(numpy(together(inputs)["mlm"]), logits)
    found = together.fill_mask(["a [MASK] film", "it [MASK]"], top_k=3)
    for (best,), row in zip(found, logits[:, 0, : len(WORDS)], strict=True):
        shares = np.exp(row) / np.exp(row).sum()
        assert best == [(WORDS[i], pytest.approx(shares[i], abs=1e-5)) for i in np.argsort(-row)[:3]]


def test_what_all_say_is_kept():
    mean = nothing = np.float32(-1e9)
    for count in range(2, 40):
        mean = _mean_with(np.float32(count), mean, nothing)
    assert mean == nothing  # A sum of nine divided by nine is -1e9 + 64 in float32, which would be a choice.


def test_saving(tmp_path):
    together = kbz.ensemble([member("answerer", 0), member("answerer", 1)])
    together.null_threshold = -1.5
    together.save(tmp_path / "ensemble.keras")
    inputs = random_inputs(3)
    for loaded in (keras.models.load_model(tmp_path / "ensemble.keras"), pickle.loads(pickle.dumps(together))):
        assert (type(loaded), loaded.null_threshold, len(loaded.members)) == (type(together), -1.5, 2)
        np.testing.assert_array_equal(numpy(loaded(inputs)), numpy(together(inputs)))
        np.testing.assert_array_equal(numpy(loaded.members[1](inputs)), numpy(together.members[1](inputs)))
        assert loaded.preprocessor.stride == 4
        assert [w.path for w in loaded.weights] == [w.path for w in together.weights]
    assert together.count_params() == sum(one.count_params() for one in together.members)


def test_a_model_over_an_ensemble(tmp_path):
    together, inputs = kbz.ensemble([member("classifier", 0), member("classifier", 1)]), random_inputs()
    model = keras.Model(together.input, keras.layers.Softmax()(together.output))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(numpy(loaded(inputs)), numpy(model(inputs)))
    clone = keras.models.clone_model(together)
    clone.set_weights(together.get_weights())
    np.testing.assert_array_equal(numpy(clone(inputs)), numpy(together(inputs)))


def test_members_keep_their_precision(tmp_path):
    together = kbz.ensemble([member("regressor", 0), member("regressor", 1, {"dtype": "mixed_bfloat16"})])
    assert together.output.dtype == "float32"
    assert [one.backbone.embeddings.compute_dtype for one in together.members] == ["float32", "bfloat16"]
    for module in FORMATS["onnx"].needs[keras.backend.backend()]:
        pytest.importorskip(module)
    with pytest.raises(ValueError, match=r"needs a float32 model\. Received: one of mixed_bfloat16"):
        together.export(tmp_path / "mixed.onnx", "onnx")


OTHER = [*WORDS[:-1], "quick"]


@pytest.mark.parametrize(
    "other, words",
    [
        (("regressor", {}), "must agree in class. Received: class='BertTextClassifier' in members[0], "
                            "class='BertTextRegressor' in members[2]"),
        (("classifier", {"class_names": ["dull", "fine", "cold"]}),
         "agree in class_names. Received: class_names[2]='warm' in members[0], class_names[2]='cold' in members[2]"),
        (("classifier", {"class_names": ["a", "b"]}), "num_classes=3 in members[0], num_classes=2 in members[2]"),
        (("classifier", {"class_names": None, "num_classes": 3}), "class_names=None in members[2]"),
        (("classifier", {"multi_label": True}), "multi_label=False in members[0], multi_label=True in members[2]"),
        (("classifier", {"words": OTHER}), "vocabulary[29]='slow' in members[0], vocabulary[29]='quick' in members[2]"),
        (("classifier", {"words": WORDS[:-1]}), "agree in vocabulary. Received: 30 in members[0], 29 in members[2]"),
        (("classifier", {"lowercase": False}), "lowercase=True in members[0], lowercase=False in members[2]"),
        (("classifier", {"sequence_length": 8}), "sequence_length=16 in members[0], sequence_length=8 in members[2]"),
        (("classifier", {"preprocessor": None}), "agree in preprocessor. Received: preprocessor='BertPreprocessor'"),
        (("classifier", {"sizes": {"num_segments": 1}}), "num_segments=2 in members[0], num_segments=1 in members[2]"),
    ],
)  # fmt: skip
def test_members_that_do_not_agree(other, words):
    task, options = other
    with short_error(words):
        kbz.ensemble([member("classifier", 0), member("classifier", 1), member(task, 2, **options)])


def test_names_that_members_learn_later(tmp_path):
    members = [member("classifier", seed, class_names=None, num_classes=3) for seed in range(2)]
    together = kbz.ensemble(members)
    assert together.class_names is None
    names = ["warm", "dull", "fine", "fine", "dull", "warm"]
    for one in members:
        one.fit(TEXTS, names, verbose=0)
    assert together.class_names == ["dull", "fine", "warm"]
    scores = together.evaluate(TEXTS, names, verbose=0)
    assert scores == together.evaluate(TEXTS, [2, 0, 1, 1, 0, 2], verbose=0)
    together.save(tmp_path / "both.keras")
    assert keras.models.load_model(tmp_path / "both.keras").class_names == together.class_names
    members[1].class_names = ["dull", "warm", "fine"]
    inputs = random_inputs(6)
    for run in (
        lambda: together.predict(TEXTS),
        lambda: together.classify(TEXTS),
        lambda: together.evaluate(TEXTS, names),
        lambda: together.predict_on_batch(inputs),
        lambda: together.test_on_batch(inputs, np.zeros(6, int)),
    ):
        with short_error("agree in class_names. Received: class_names[1]='fine' in members[0], class_names[1]='warm'"):
            run()


def test_bad_members_and_what_an_ensemble_does_not_do(tmp_path):
    one = member("regressor", 0)
    embedder = kbz.BertTextEmbedder(kbz.BertBackbone(**SHALLOW))
    together = kbz.ensemble([one])
    for members, words in (
        ([], "`members` must be a list of tasks. Received: members=[]"),
        (one, "`members` must be a list of tasks"),
        (["run0"], "`members` must be built tasks, each one of BertTextClassifier,"),
        ([one, embedder], "Received: members[1] of type BertTextEmbedder"),
        ([together], "Received: members[0] of type BertTextRegressorEnsemble"),
        ([one, one], "`members` must be different models. Received: members[1] twice"),
    ):
        with short_error(words):
            kbz.ensemble(members)
    for train, x in ((together.fit, TEXTS), (together.train_on_batch, random_inputs(6))):
        with pytest.raises(ValueError, match=r"not trained: fit its members, .* Received: one with 1 members"):
            train(x, np.ones(6, "float32"))
    with pytest.raises(ValueError, match="A preset can store only one model: save each of `members`"):
        together.save_to_preset(tmp_path / "preset")
    assert not (tmp_path / "preset").exists()


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="only there a pass takes a model's variables")
def test_members_take_turns_with_their_ensemble():
    members = [member("classifier", seed) for seed in range(2)]
    together, expected = kbz.ensemble(members), members[1].predict(TEXTS, verbose=0)
    with ThreadPoolExecutor(1) as pool:
        with together.states_back():
            alone = pool.submit(members[1].predict, TEXTS, verbose=0)
            with pytest.raises(TimeoutError):
                alone.result(timeout=0.5)
        np.testing.assert_array_equal(alone.result(), expected)


@pytest.mark.parametrize("name, value", [("causal", True), ("max_sequence_length", 20)])
def test_members_see_alike(name, value):
    with pytest.raises(ValueError, match=f"`members` must agree in {name}. Received: {name}="):
        kbz.ensemble([member("masked_lm", 0), member("masked_lm", 1, {name: value})])
