"""The tagger: words, documents and texts in, one class per word out; against transformers and each word on its own."""

import importlib.util
import random
from functools import partial

import keras
import numpy as np
import pandas
import pytest

import keras_bert_zoo as kbz
from keras_bert_zoo.json_files import read_json
from keras_bert_zoo.text.characters import CHINESE, PUNCTUATION, SPACES, character_set
from keras_bert_zoo.text.token_batches import TokenBatches
from keras_bert_zoo.text.words import split_text
from tests.helpers import (
    SHALLOW,
    WORDS,
    check_saving,
    crossentropy,
    gradients,
    numpy,
    random_inputs,
    randomise,
    short_error,
    slow_on,
    streams,
)
from tests.theirs import assert_same_gradients, run_theirs, saved_model

NAMES = ["B-PER", "I-PER", "O"]
# "longer" is two tokens, "zz" is an unknown token, and a zero-width space is none at all.
SENTENCES = [["a", "longer", "film"], ["bad"], ["the", "plot", "zz", "\u200b", "dullest", "."], [], ["so", "slow"]]
TAGS = [["O", "B-PER", "I-PER"], ["O"], ["B-PER", "O", "O", "I-PER", "B-PER", "O"], [], ["B-PER", "I-PER"]]


@pytest.fixture
def tagger(tokenizer):
    preprocessor = kbz.BertWordPreprocessor(tokenizer, sequence_length=16)
    model = kbz.BertTokenClassifier(
        kbz.BertBackbone(**SHALLOW, pooler=False), class_names=NAMES, preprocessor=preprocessor
    )
    return randomise(model)


def pieces(tagger, words):
    return [tagger.preprocessor.tokenizer.encode(word).token_ids[1:-1] or [1] for word in words]


def logits_of(tagger, words):
    """Return the logits at each word's first token of a sentence on its own, without padding."""
    tokens = pieces(tagger, words)
    ids = np.array([[2, *(token for word in tokens for token in word), 3]], "int32")
    starts = np.cumsum([1, *map(len, tokens)])[:-1]
    inputs = {"token_ids": ids, "segment_ids": np.zeros_like(ids), "padding_mask": np.ones_like(ids)}
    return numpy(tagger(inputs))[0, starts.astype(int)]


@slow_on("jax")
def test_predictions_are_of_first_tokens_in_the_order_given(tagger):
    expected = [logits_of(tagger, words) for words in SENTENCES]
    for batch_size in (1, None):
        predicted = tagger.predict(SENTENCES, batch_size, verbose=0)
        assert [len(rows) for rows in predicted] == [3, 1, 6, 0, 2]
        for x, y in zip(predicted, expected, strict=True):
            np.testing.assert_allclose(x, y, atol=1e-5)
    assert [len(rows) for rows in tagger.predict(SENTENCES, 2, verbose=0, steps=1)] == [3, 1]
    assert len(tagger.predict([["a"]] * 40, verbose=0, steps=1)) == 32


def test_sentences_may_be_tuples(tagger):
    """As `zip(*sentence)` gives them; `x` as a tuple would be a pair."""
    words, tags = [tuple(row) for row in SENTENCES], [tuple(row) for row in TAGS]
    for x, y in ((words, tags), ([words], [tags])):
        ours, lists = tagger.evaluate(x, y, verbose=0), (SENTENCES, TAGS) if x is words else ([SENTENCES], [TAGS])
        assert ours == tagger.evaluate(*lists, verbose=0)
    with short_error("`x` must be a list of sentences"):
        tagger.predict(tuple(words), verbose=0)


def test_sentences_of_a_document_see_each_other(tagger):
    documents = [SENTENCES[:2], [["it", "is"]]]
    predicted = tagger.predict(documents, verbose=0)
    joined = logits_of(tagger, [*SENTENCES[0], *SENTENCES[1]])
    assert [[len(rows) for rows in document] for document in predicted] == [[3, 1], [2]]
    np.testing.assert_allclose(np.concatenate(predicted[0]), joined, atol=1e-5)
    np.testing.assert_allclose(predicted[1][0], logits_of(tagger, ["it", "is"]), atol=1e-5)
    assert np.abs(joined[3] - logits_of(tagger, SENTENCES[1])).max() > 1e-3


def test_long_sentences_come_in_windows(tagger):
    """By hand: 40 one-token words in windows of 14 that half overlap; each word where its contexts are largest."""
    words = [WORDS[5 + i % 11] for i in range(40)]
    windows = tagger.preprocessor.pack([["bad"], words])
    assert windows.lengths.tolist() == [3, 16, 16, 16, 16, 16]
    assert windows.starts.tolist() == [0, 1, 8, 15, 22, 27]
    expected = np.empty((40, 3))
    for first, begin, end in [(0, 0, 11), (7, 11, 18), (14, 18, 25), (21, 25, 31), (26, 31, 40)]:
        logits = logits_of(tagger, words[first : first + 14])
        expected[begin:end] = logits[begin - first : end - first]
    np.testing.assert_allclose(tagger.predict([words], verbose=0)[0], expected, atol=1e-5)
    # A word that more than fills a window stands alone and is still labelled.
    huge = ["a", "longest" + "est" * 30, "film"]
    assert [len(rows) for rows in tagger.predict([huge], verbose=0)] == [3]
    assert tagger.preprocessor.pack([huge]).lengths.max() == 16


def test_windows_of_several_examples_are_those_of_each(tagger):
    examples = [[], ["bad"], ["film"] * 40, [], ["a"] * 14, ["a"] * 15, ["longest", "film"] * 20, ["so", "slow"], []]
    together = tagger.preprocessor.pack(examples)
    alone = [tagger.preprocessor.pack([words]) for words in examples]
    numbers = [len(windows.lengths) for windows in alone]
    assert numbers == [0, 1, 5, 0, 1, 2, 8, 1, 0]
    assert together.examples.tolist() == np.repeat(np.arange(len(examples)), numbers).tolist()
    expected = [row for windows in alone for row in windows.take(np.arange(len(windows.lengths)), 16)["token_ids"]]
    np.testing.assert_array_equal(together.take(np.arange(sum(numbers)), 16)["token_ids"], expected)
    places = [[windows.word_windows + before, windows.word_positions]
              for windows, before in zip(alone, np.cumsum([0, *numbers]), strict=False)]  # fmt: skip
    np.testing.assert_array_equal([together.word_windows, together.word_positions], np.concatenate(places, axis=1))


@slow_on("jax")
def test_loss_is_the_mean_over_words(tagger):
    labels = [NAMES.index(tag) for tags in TAGS for tag in tags]
    logits = np.concatenate([logits_of(tagger, words) for words in SENTENCES])
    losses = crossentropy(logits, labels)
    for batch_size in (1, 2, 8):
        scores = tagger.evaluate(SENTENCES, TAGS, batch_size, verbose=0, return_dict=True)
        assert scores["loss"] == pytest.approx(np.mean(losses), abs=1e-5)
        assert scores["accuracy"] == pytest.approx(np.mean(logits.argmax(-1) == labels))
    still = randomise(
        kbz.BertTokenClassifier(
            kbz.BertBackbone(**SHALLOW, dropout=0.0, attention_dropout=0.0, pooler=False),
            class_names=NAMES,
            dropout=0.0,
            preprocessor=tagger.preprocessor,
        )
    )
    still.compile(keras.optimizers.SGD(0.0))
    numbers = [[NAMES.index(tag) for tag in tags] for tags in TAGS]
    weights = np.repeat([1.0, 0, 2, 1, 1], [3, 1, 6, 0, 2])
    for y, options, expected in [
        (numbers, {}, losses),
        (TAGS, {"class_weight": {"O": 0.5, 1: 3.0}}, losses * np.array([1, 3, 0.5])[labels]),
        (TAGS, {"sample_weight": [1.0, 0, 2, 1, 1]}, losses * weights),
    ]:
        history = still.fit(SENTENCES, y, verbose=0, **options).history
        assert history["loss"][0] == pytest.approx(np.mean(expected), abs=1e-5)
    # At padding these batches have class 0 and no weight.
    history = still.fit(still.batches(SENTENCES, TAGS), verbose=0).history
    assert history["loss"][0] == pytest.approx(np.mean(losses), abs=1e-5)
    if importlib.util.find_spec("tensorflow"):
        import tensorflow as tf

        lain = still.preprocessor.pack(SENTENCES).lay(labels)
        stream = tf.data.Dataset.from_tensors((still.preprocessor(SENTENCES), lain))
        history = still.fit(stream, class_weight={"O": 0.5, 1: 3.0}, verbose=0).history
        assert history["loss"][0] == pytest.approx(np.mean(losses * np.array([1, 3, 0.5])[labels]), abs=1e-5)


def test_shares_of_tags_have_weights_of_their_places(tagger):
    inputs = random_inputs()
    numbers = np.random.default_rng(0).integers(0, len(NAMES), inputs["token_ids"].shape)
    weights = np.where(np.arange(9) < 5, 1.0, 0.0) * np.array([[1.0], [2.0], [0.5]])
    tagger.compile(kbz.AdamW(1e-3), loss=keras.losses.CategoricalCrossentropy(from_logits=True), metrics=[])
    losses = crossentropy(tagger.predict(inputs, verbose=0).reshape(-1, len(NAMES)), numbers.reshape(-1))
    expected = (losses.reshape(weights.shape) * weights).mean()
    found = tagger.test_on_batch(inputs, np.eye(len(NAMES), dtype="float32")[numbers], weights)
    assert np.ravel(found)[0] == pytest.approx(expected, abs=1e-5)


def test_metrics_are_of_words_alone(tagger):
    """A callback finds out in which direction they improve."""
    expected = tagger.evaluate(SENTENCES, TAGS, batch_size=2, verbose=0, return_dict=True)
    tagger.compile(metrics=["accuracy", "sparse_categorical_crossentropy"])
    scores = tagger.evaluate(SENTENCES, TAGS, batch_size=6, verbose=0, return_dict=True)
    assert scores["accuracy"] == pytest.approx(expected["accuracy"])
    assert scores["sparse_categorical_crossentropy"] == pytest.approx(expected["loss"], rel=1e-5)
    with pytest.raises(
        ValueError, match="`metrics` and `weighted_metrics` exclude each other in a BertTokenClassifier"
    ):
        tagger.compile(metrics=["accuracy"], weighted_metrics=["accuracy"])
    tagger.compile()
    stop = keras.callbacks.EarlyStopping("val_accuracy", restore_best_weights=True)
    tagger.fit(SENTENCES, TAGS, validation_data=(SENTENCES, TAGS), callbacks=[stop], verbose=0)
    assert stop.best > 0
    assert stop.monitor_op(0.9, 0.8)


def test_copies_that_fill_a_batch_do_not_count(tagger):
    """Three windows in batches of two on two devices: the last batch is filled with a copy."""
    examples = tagger.preprocessor.pack(SENTENCES[:3])
    targets = examples.lay(np.arange(10) % 3)
    options = {"batch_size": 2, "multiple_of": 2}
    scored = TokenBatches(examples, targets, **options)
    rows = sum((weights.sum(1) / weights.shape[1]).sum() for _, _, weights in scored)
    assert rows == pytest.approx(sum(len(weights) for _, _, weights in scored))  # A loss of 1 per word has mean 1.
    (_, _, full), (_, _, filled) = TokenBatches(examples, targets, training=True, **options)
    assert full.mean() == pytest.approx(1)
    assert filled.mean() == pytest.approx(1)
    assert not filled[1].any()


@pytest.mark.parametrize("label, kind", [(2, "int8"), (127, "int8"), (128, "int16"), (32_768, "int32")])
def test_labels_are_laid_in_the_smallest_integers(tagger, label, kind):
    laid = tagger.preprocessor.pack([["so", "longer"], ["bad"]]).lay(np.array([0, label, 1]))
    assert laid.dtype == kind
    assert laid.tolist() == [[-100, 0, label, -100, -100], [-100, 1, -100, -100, -100]]


@pytest.mark.parametrize("together", [2, 10_000])
def test_each_word_counts_the_same_in_whichever_batch(tagger, monkeypatch, together):
    """Ten labelled words in three sentences: any batch of two is taken to have the mean, 6.67."""
    monkeypatch.setattr("keras_bert_zoo.text.token_batches._COUNTED_TOGETHER", together)
    examples = tagger.preprocessor.pack(SENTENCES[:3])
    targets = examples.lay(np.arange(10) % 3)
    for seed in range(3):  # Each seed pairs other sentences.
        batches = list(TokenBatches(examples, targets, batch_size=2, training=True, shuffle_seed=seed))
        for (_, _, weights), sentences in zip(batches, (2, 1), strict=True):
            each = weights[weights > 0] / weights.size  # Keras divides by the size.
            np.testing.assert_allclose(each, 1 / (10 / 3 * sentences), rtol=1e-6)
        assert sum((weights > 0).sum() for _, _, weights in batches) == 10


EASY = [["a", "film"], ["warm", "film"], ["bad", "cast"], ["the", "longer", "plot"]]
EASY_TAGS = [["O", "B-PER"], ["I-PER", "B-PER"], ["O", "B-PER"], ["O", "I-PER", "B-PER"]]


def test_fit_learns_and_scores_entities(tokenizer, tmp_path):
    backbone = kbz.BertBackbone(
        **{**SHALLOW, "hidden_dim": 32, "intermediate_dim": 64}, dropout=0.0, attention_dropout=0.0, pooler=False
    )
    preprocessor = kbz.BertWordPreprocessor(tokenizer, sequence_length=16)
    tagger = kbz.BertTokenClassifier(backbone, num_classes=3, preprocessor=preprocessor)
    tagger.compile(kbz.AdamW(5e-3, bias_correction=True))
    tagger.fit(EASY, EASY_TAGS, batch_size=4, epochs=20, verbose=0)
    assert tagger.class_names == NAMES
    scores = kbz.metrics.ValidationScores(lambda model: model.evaluate_entities([EASY], [EASY_TAGS]))
    history = tagger.fit(EASY, EASY_TAGS, verbose=0, validation_data=(EASY, EASY_TAGS), callbacks=[scores]).history
    assert [history[f"val_{name}"] for name in ("accuracy", "precision", "recall", "f1")] == [[1]] * 4
    text = "warm  film"
    (one, two) = tagger.tag(text)
    assert (one[:4], two[:4]) == (("warm", "PER", 0, 4), ("film", "PER", 6, 10))
    tagger.save_to_preset(tmp_path / "preset")
    loaded = kbz.BertTokenClassifier.from_preset(tmp_path / "preset")
    assert loaded.class_names == NAMES
    assert loaded.tag(text) == tagger.tag(text)


def test_tags_have_places(tagger, monkeypatch):
    """The test gives the logits and checks what is found where. No entity goes from one sentence into the next."""
    x = {"B": [9.0, 0, 0], "I": [0, 9.0, 0], "O": [0, 0, 9.0]}
    monkeypatch.setattr(tagger, "_word_logits", lambda examples, *a, **k: np.array([x[c] for c in given], "float32"))
    score = pytest.approx(1 / (1 + 2 * np.exp(-9)))
    given = "OBIIOI"  # ( Bill O 'Brien , he
    assert tagger.tag("(Bill O'Brien, he") == [
        ("Bill O'Brien", "PER", 1, 13, score),
        ("he", "PER", 15, 17, score),
    ]
    given = "OB"
    assert tagger.tag("so Rene\u0301 ") == [("Rene\u0301", "PER", 3, 8, score)]
    words = [[["Ann", "Lee"], ["Smith", "."]], [["x", "y"]]]
    given = "BIIOOB"
    assert tagger.tag(words) == [
        [[("Ann Lee", "PER", 0, 2, score)], [("Smith", "PER", 0, 1, score)]],
        [[("y", "PER", 1, 2, score)]],
    ]
    true = [[["B-PER", "I-PER"], ["B-PER", "O"]], [["O", "B-PER"]]]
    assert tagger.evaluate_entities(words, true) == {"precision": 1, "recall": 1, "f1": 1}
    true[1] = [["B-ORG", "B-PER"]]  # A label that the model does not have counts as missed.
    assert tagger.evaluate_entities(words, true) == {"precision": 1, "recall": 3 / 4, "f1": pytest.approx(6 / 7)}


def test_an_entity_scores_the_mean_of_its_own_words(tagger, monkeypatch):
    """It is not the best of them, and takes nothing from the text before."""
    shares = [[0.6, 0.3, 0.1], [0.2, 0.7, 0.1], [0.1, 0.1, 0.8], [0.9, 0.05, 0.05]]
    monkeypatch.setattr(tagger, "_word_logits", lambda *a, **k: np.log(shares).astype("float32"))
    assert tagger.tag(["Ann Lee .", "Bo"]) == [
        [("Ann Lee", "PER", 0, 7, pytest.approx(0.65))],
        [("Bo", "PER", 0, 2, pytest.approx(0.9))],
    ]


@pytest.mark.parametrize(
    "text, words",
    [
        ("(in the U.S.)", ["(", "in", "the", "U.S", ".", ")"]),
        ("Clinton's well-known", ["Clinton", "'s", "well-known"]),
        ("Clinton’s", ["Clinton", "’s"]),
        ("at 东京, GDP高", ["at", "东", "京", ",", "GDP", "高"]),
    ],
)
def test_words_of_a_text(text, words):
    assert [text[start:end] for start, end in split_text(text)] == words


def split_plainly(text):
    """Return the words of a text, found in its runs of characters without white space."""
    spaces, chinese, punctuation = map(character_set, (SPACES, CHINESE, PUNCTUATION))
    marks = "".join(punctuation)
    words = []
    for run in "".join(f" {c} " if c in chinese else " " if c in spaces else c for c in text).split(" "):
        rest = run.lstrip(marks)
        inside = rest.rstrip(marks)
        words += run[: len(run) - len(rest)]
        words += filter(None, inside.replace("'", " '").replace("’", " ’").split(" "))
        words += rest[len(inside) :]
    return words


def test_words_of_any_text():
    rng = random.Random(0)
    classes = ["'’", "ab", " ", *(sorted(character_set(ranges)) for ranges in (SPACES, CHINESE, PUNCTUATION))]
    for _ in range(5000):
        drawn = [rng.choice(rng.choice([*classes, [chr(rng.randrange(0x110000))]])) for _ in range(rng.randrange(15))]
        text = "".join(drawn)
        spans = split_text(text)
        assert [text[start:end] for start, end in spans] == split_plainly(text), drawn
        assert spans == sorted(spans)


def test_spans_of_texts_are_tags(tagger):
    text = "so (Ann O'Lee), bad!"
    by_span = tagger.evaluate([text, ""], [[(4, 13, "PER")], []], verbose=0)
    words = [["so", "(", "Ann", "O", "'Lee", ")", ",", "bad", "!"]]
    by_word = tagger.evaluate(words, [["O", "O", "B-PER", "I-PER", "I-PER", "O", "O", "O", "O"]], verbose=0)
    np.testing.assert_allclose(by_span, by_word, rtol=1e-6)


def test_nothing_is_found_where_there_are_no_words(tagger):
    assert tagger.tag("") == []
    assert tagger.tag(["", " "]) == [[], []]
    assert [logits.shape for logits in tagger.predict([[], []], verbose=0)] == [(0, 3), (0, 3)]
    with pytest.raises(ValueError, match="`x` must hold at least one example"):
        tagger.tag([])
    with pytest.raises(ValueError, match="`x` must hold at least one example with words"):
        tagger.fit([""], [[]], verbose=0)


@pytest.mark.parametrize("kind", [list, np.array])
def test_words_without_a_label(tagger, kind):
    tags = [[0, -100, 2], [-100], [1, 1, -100, 0, 2, -100], [], [2, 0]]
    rows = [kind(row) for row in tags]
    flat, logits = np.concatenate(tags), np.concatenate(tagger.predict(SENTENCES, verbose=0))
    losses = crossentropy(logits[flat >= 0], flat[flat >= 0].astype(int))
    assert tagger.evaluate(SENTENCES, rows, verbose=0)[0] == pytest.approx(losses.mean(), rel=1e-5)
    assert tagger.evaluate(SENTENCES, [[-100] * len(row) for row in tags], verbose=0)[0] == 0


def test_a_batch_that_streams_weighs_its_labelled_tokens(tagger):
    inputs = random_inputs()
    targets = np.where((np.arange(9) % 2 == 1) & (inputs["padding_mask"] > 0), np.arange(27).reshape(3, 9) % 3, -100)
    expected = tagger.evaluate(inputs, targets, verbose=0)
    losses = crossentropy(tagger.predict(inputs, verbose=0)[targets >= 0], targets[targets >= 0])
    assert expected[0] == pytest.approx(losses.mean(), rel=1e-5)
    for data in streams((inputs, targets)):
        np.testing.assert_allclose(tagger.evaluate(data, steps=1, verbose=0), expected, rtol=1e-5)
    np.testing.assert_allclose(tagger.test_on_batch(inputs, targets), expected, rtol=1e-5)
    weights = np.array([1.0, 3.0, 0.5])
    of_rows = np.repeat(weights, (targets >= 0).sum(1))
    for data in streams((inputs, targets, weights)):
        assert tagger.evaluate(data, steps=1, verbose=0)[0] == pytest.approx((losses * of_rows).mean(), rel=1e-5)
    tagger.backbone.trainable = False
    for layer in tagger._flatten_layers():
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0
    tagger.compile(keras.optimizers.SGD(0.0))
    assert tagger.train_on_batch(inputs, targets)[0] == pytest.approx(losses.mean(), rel=1e-5)
    of_classes = np.array([1.0, 3.0, 0.5])[targets[targets >= 0]]
    for data in streams((inputs, targets)):
        history = tagger.fit(
            data, class_weight={"B-PER": 1.0, "I-PER": 3.0, "O": 0.5}, steps_per_epoch=1, verbose=0
        ).history
        assert history["loss"][0] == pytest.approx((losses * of_classes).mean(), rel=1e-5)


@slow_on("tensorflow", "jax")
def test_labels_that_stream_are_integers(tagger):
    """Floats had no weights, so that tokens without a label counted."""
    inputs = tagger.preprocessor(SENTENCES)
    for data in streams((inputs, np.full(inputs["token_ids"].shape, -100.0))):
        tagger.compile(keras.optimizers.SGD(0.1))
        assert tagger.evaluate(data, steps=1, verbose=0)[0] == 0  # None is labelled.
    for data in streams((inputs, np.full(inputs["token_ids"].shape, 1.0))):
        with pytest.raises(ValueError, match=r"`y` must hold integers or class names\. Received: y\.dtype=float64"):
            tagger.evaluate(data, steps=1, verbose=0)


def test_ready_arrays_and_streams(tagger):
    tf = pytest.importorskip("tensorflow")
    arrays, windows = tagger.preprocessor(SENTENCES), tagger.preprocessor.pack(SENTENCES)
    targets = windows.lay(np.array([NAMES.index(tag) for tags in TAGS for tag in tags]))
    expected = tagger.evaluate(SENTENCES, TAGS, verbose=0)
    np.testing.assert_allclose(tagger.evaluate(arrays, targets, verbose=0), expected, rtol=1e-5)
    stream = tf.data.Dataset.from_tensor_slices((arrays, targets)).batch(4)
    for data in (stream, stream.map(lambda x, y: (x, y, None))):
        np.testing.assert_allclose(tagger.evaluate(data, verbose=0), expected, rtol=1e-5)
    logits = tagger.predict(arrays, verbose=0)
    np.testing.assert_allclose(logits, tagger.predict(stream.map(lambda x, y: x), verbose=0), atol=1e-5)
    np.testing.assert_allclose(
        logits[windows.word_windows, windows.word_positions],
        np.concatenate(tagger.predict(SENTENCES, verbose=0)),
        atol=1e-5,
    )
    assert len(tagger.fit(stream, verbose=0).history["loss"]) == 1
    short = {name: array[:2, :8] for name, array in arrays.items()}
    uneven = tf.data.Dataset.from_tensors(arrays).concatenate(tf.data.Dataset.from_tensors(short))
    with pytest.raises(ValueError, match="`x` must have batches of one length if it is streamed"):
        tagger.predict(uneven, verbose=0)
    with pytest.raises(ValueError, match="`x` must be a data set of ready arrays, or words in memory"):
        tagger.fit(tf.data.Dataset.from_tensor_slices((["a"], [[0]])).batch(1), verbose=0)


def test_saves(tokenizer, tmp_path):
    def build():
        return kbz.BertTokenClassifier(
            kbz.BertBackbone(**SHALLOW, pooler=False),
            class_names=NAMES,
            dropout=0.2,
            preprocessor=kbz.BertWordPreprocessor(tokenizer, sequence_length=12),
        )

    loaded = check_saving(build, random_inputs(), tmp_path)
    assert loaded.head_config() == {"num_classes": 3, "class_names": NAMES, "dropout": 0.2}
    assert loaded.preprocessor.pack([["bad"] * 20]).lengths.max() == 12


@pytest.fixture
def reference(tmp_path):
    """transformers' tagger, with a vocabulary."""
    model = saved_model(
        "BertForTokenClassification", tmp_path / "theirs", scale=0.2, vocab_size=len(WORDS), num_attention_heads=2,
        max_position_embeddings=32, classifier_dropout=0.3, id2label=dict(enumerate(NAMES)),
        label2id={name: i for i, name in enumerate(NAMES)},
    )  # fmt: skip
    (tmp_path / "theirs" / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return model


def test_transformers_heads_come_and_go(reference, tmp_path):
    import transformers

    inputs = random_inputs(vocabulary_size=len(WORDS))

    def logits(model):
        return run_theirs(model, inputs).logits.detach().numpy()

    expected = logits(reference)
    tagger = kbz.BertTokenClassifier.from_preset(tmp_path / "theirs")
    assert (tagger.load_report.fresh, tagger.load_report.unused) == ((), ())
    assert tagger.head_config() == {"num_classes": 3, "class_names": NAMES, "dropout": pytest.approx(0.3)}
    np.testing.assert_allclose(numpy(tagger(inputs)), expected, atol=1e-5)
    tagger.save_to_preset(tmp_path / "ours")
    saved, info = transformers.AutoModelForTokenClassification.from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert not info["missing_keys"] | info["unexpected_keys"]
    assert (type(saved).__name__, saved.config.id2label) == ("BertForTokenClassification", dict(enumerate(NAMES)))
    np.testing.assert_allclose(logits(saved.eval()), expected, atol=1e-5)
    assert read_json(tmp_path / "ours" / "config.json")["classifier_dropout"] == pytest.approx(0.3)
    # A head for texts is not one for tokens, nor the other way round, although the tensors have the same names.
    other = kbz.BertTextClassifier.from_preset(tmp_path / "ours", num_classes=3)
    assert "classifier/kernel" in other.load_report.fresh
    assert "classifier/kernel" in other.load_report.unused
    other.save_to_preset(tmp_path / "texts")
    with pytest.raises(ValueError, match=r"the preset has no classification head\. Received: neither"):
        kbz.BertTokenClassifier.from_preset(tmp_path / "texts")
    with pytest.raises(ValueError, match=r"`num_classes` must be a positive integer. Received: num_classes=0"):
        kbz.BertTokenClassifier.from_preset(tmp_path / "texts", num_classes=0)


def test_loss_and_gradients_are_those_of_transformers(reference, tmp_path):
    tagger = kbz.BertTokenClassifier.from_preset(tmp_path / "theirs", dropout=0.0)
    windows = tagger.preprocessor.pack(SENTENCES)
    labels = windows.lay(np.array([NAMES.index(tag) for tags in TAGS for tag in tags]))
    ((inputs, targets, weights),) = TokenBatches(windows, labels, training=True)
    loss = run_theirs(reference, inputs, labels=labels).loss
    loss.backward()
    tagger.compile()
    arrays = [keras.ops.convert_to_tensor(array) for array in (targets, weights)]

    def entropy(logits):
        return tagger.compute_loss(None, arrays[0], logits, arrays[1])

    ours = gradients(tagger, inputs, entropy)
    value = float(numpy(entropy(tagger(inputs))))
    assert value == pytest.approx(float(loss.detach()), abs=1e-5)
    assert_same_gradients(ours, reference)


def test_tokens_are_those_of_transformers(tokenizer, tmp_path):
    transformers = pytest.importorskip("transformers")
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    theirs = transformers.BertTokenizerFast(str(tmp_path / "vocab.txt"))
    sentences = [words for words in SENTENCES if words and "\u200b" not in words]
    encoded = theirs(sentences, is_split_into_words=True)
    windows = kbz.BertWordPreprocessor(tokenizer).pack(sentences)
    for i, ids in enumerate(encoded["input_ids"]):
        batch = windows.take(np.array([i]), len(ids) + 1)
        assert batch["token_ids"][0].tolist() == [*ids, 0]
        assert batch["padding_mask"][0].sum() == len(ids)
        numbers = encoded.word_ids(i)
        firsts = [k for k, word in enumerate(numbers) if word is not None and word != numbers[k - 1]]
        assert windows.word_positions[windows.word_windows == i].tolist() == firsts


BAD = [
    ((("a", "b"), TAGS), "`x` must be a list of sentences, documents or texts. Received: a tuple"),
    (([["a"], "b"], TAGS), "`x` must be a list of sentences, each a list of words"),
    (([["a"], [["b"]]], TAGS), "`x` must be a list of sentences, each a list of words"),
    ((pandas.DataFrame({"sentence": ["a"]}), TAGS), "or texts. Received: x of type DataFrame"),
    (([["a", None]], [["O", "O"]]), "`x[0]` must hold strings. Received: x[0][1]=None of type NoneType"),
    (([[["a"], "b"]], TAGS), "Received: x[0][1] of type str"),
    (([[], []], [[], []]), "`x` must hold at least one example"),
    ((SENTENCES, TAGS[:4]), "`y` must have the form of `x`, one tag per word. Received: y with 4 for 5"),
    (([["a", "b"]], [["O"]]), "Received: y[0] with 1 for 2"),
    (([[["a"], ["b"]]], [[["O"], []]]), "Received: y[0][1] with 0 for 1"),
    (([["a"]], ["O"]), "Received: y[0] of type str"),
    (([["a"]], [["B-LOC"]]), "`y` must hold names of ['B-PER', 'I-PER', 'O']. Received: y with 'B-LOC'"),
    (([["a"]], [[3]]), "`y` must be in [0, 3). Received: y with 3"),
    (([["a"]], None), "`y` must be given"),
    ((["a film"], [[(0, 3, "PER")]]), "`y` must hold spans of whole words"),
    ((["a film"], [[(0, 6, "PER"), (2, 6, "PER")]]), "`y` must hold spans that do not overlap"),
    ((["a film"], [[(0, "PER")]]), "`y` must hold (start, end, label) for texts. Received: y[0] with (0, 'PER')"),
    ((["a film"], [[([0], 1, "PER")]]), "for texts. Received: y[0] with ([0], 1, 'PER')"),
    ((random_inputs(), np.zeros(3, int)), "`y` must have the shape (3, length) for ready arrays"),
    ((random_inputs(), np.zeros((3, 5), int)), "`y` must have the shape (3, 9), as `token_ids`"),
    ((random_inputs(), np.zeros((3, 9), int)), "`y` must be -100 at padding"),
]


def test_bad_data_leaves_the_model_usable(tagger):
    before = [numpy(weight) for weight in tagger.weights]
    for arguments, words in BAD:
        for run in (tagger.fit, tagger.evaluate):
            with short_error(words):
                run(*arguments, verbose=0)
    with pytest.raises(ValueError, match=r"`sample_weight` must have the shape \(5,\)"):
        tagger.fit(SENTENCES, TAGS, sample_weight=[1.0], verbose=0)
    for weight, value in zip(tagger.weights, before, strict=True):
        np.testing.assert_array_equal(numpy(weight), value)
    unnamed = kbz.BertTokenClassifier(tagger.backbone, 3, preprocessor=tagger.preprocessor)
    with pytest.raises(ValueError, match="Entities need `class_names` such as O, B-PER"):
        unnamed.tag("a film")


@slow_on("tensorflow", "jax")
@pytest.mark.parametrize(
    "names, words",
    [
        ({"O", "B-X"}, "`class_names` must be a list of strings. Received: class_names={"),
        ({"O": 0, "B-X": 1}, "`class_names` must be a list of strings. Received: class_names={'B-X': 1, 'O': 0}"),
        (5, "`class_names` must be a list of strings. Received: class_names=5"),
        ((name for name in "ab"), "`class_names` must be a list of strings. Received: class_names=<generator"),
        (np.array([["O", "B-X"]]), "`class_names` must be different strings"),
        (["O", ["B-X"]], "`class_names` must be different strings. Received: class_names=['O', ['B-X']]"),
    ],
)
def test_names_of_classes_have_an_order(names, words, tmp_path):
    backbone = kbz.BertBackbone(**SHALLOW)
    kbz.BertTokenClassifier(backbone, class_names=np.array(["O", "B-X"])).save_to_preset(tmp_path / "preset")
    for build in (
        partial(kbz.BertTokenClassifier, backbone),
        partial(kbz.BertTokenClassifier.from_preset, tmp_path / "preset"),
    ):
        with short_error(words):
            build(class_names=names)


def test_a_held_out_part_has_its_own_tags(tagger):
    x, y = ([row for row in rows if row] for rows in (SENTENCES, TAGS))
    history = tagger.fit(x, y, validation_split=0.5, verbose=0).history
    assert history["val_loss"][0] == pytest.approx(tagger.evaluate(x[2:], y[2:], verbose=0)[0], abs=1e-5)


@slow_on("tensorflow", "jax")
def test_the_weight_of_a_sentence_holds_in_all_of_its_windows(tagger):
    x = [["bad"], [WORDS[5 + i % 11] for i in range(40)], ["so", "slow"]]
    y = [["O"], ["O", "B-PER"] * 20, ["O", "O"]]
    numbers = [NAMES.index(tag) for tags in y for tag in tags]
    losses = crossentropy(np.concatenate(tagger.predict(x, verbose=0)), numbers)
    loss = tagger.evaluate(x, y, sample_weight=[1.0, 0.5, 3.0], verbose=0)[0]
    assert loss == pytest.approx(np.mean(losses * np.repeat([1.0, 0.5, 3.0], [1, 40, 2])), abs=1e-5)
