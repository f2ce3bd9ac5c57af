"""Multiple choice: compared with transformers, and what `fit`, `evaluate` and `predict` take, give and refuse."""

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from tests.helpers import (
    SHALLOW,
    TEXTS,
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

# Two, three or four choices, of different lengths.
CHOICES = [TEXTS[:2], TEXTS[1:5], TEXTS[:3], TEXTS[3:6], ["bad", "so slow"], TEXTS[2:4]]
X = (TEXTS, CHOICES)
Y = [0, 3, 1, 2, 1, 0]


@pytest.fixture
def chooser(tokenizer):
    backbone = kbz.BertBackbone(**SHALLOW)
    preprocessor = kbz.BertMultipleChoicePreprocessor(tokenizer, sequence_length=16)
    return randomise(kbz.BertMultipleChoice(backbone, preprocessor=preprocessor))


def folded(inputs, choices):
    """Fold the rows into questions of this number of choices."""
    return {name: array.reshape(-1, choices, array.shape[1]) for name, array in inputs.items()}


def logits_row_by_row(chooser):
    """Compute the logit of each choice from its own pair of texts, with the head written out."""
    pairs = [(context, choice) for context, choices in zip(*X, strict=True) for choice in choices]
    inputs = kbz.BertPreprocessor(chooser.preprocessor.tokenizer, 16)(tuple(map(list, zip(*pairs, strict=True))))
    kernel, bias = (numpy(weight) for weight in chooser.get_layer("scorer").weights)
    scores = (numpy(chooser.backbone(inputs)["pooled_output"]) @ kernel + bias)[:, 0]
    return np.split(scores, np.cumsum([len(choices) for choices in CHOICES])[:-1])


def padded(rows, fill):
    width = max(map(len, rows))
    return np.array([[*row, *[fill] * (width - len(row))] for row in rows])


def softmax(row):
    return np.exp(row) / np.exp(row).sum()


@slow_on("jax")
def test_hugging_face_in_and_out(tmp_path):
    torch = pytest.importorskip("torch")
    sizes = {"vocab_size": 40, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16}
    options = {**sizes, "max_position_embeddings": 16}
    model = saved_model("BertForMultipleChoice", tmp_path / "theirs", scale=0.2, **options)
    inputs, labels = folded(random_inputs(12), 3), np.array([2, 0, 1, 1])
    inputs["padding_mask"] = inputs["padding_mask"][:, :, ::-1].copy()  # Padding may come first.
    theirs = run_theirs(model, inputs, labels=labels)
    expected = theirs.logits.detach().numpy()

    ours = kbz.BertMultipleChoice.from_preset(tmp_path / "theirs")
    assert (ours.load_report.fresh, ours.load_report.unused, ours.dropout) == ((), (), 0.0)
    np.testing.assert_allclose(numpy(ours(inputs)), expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(ours.predict(inputs, verbose=0), expected, rtol=0, atol=1e-5)
    scores = ours.evaluate(inputs, labels, batch_size=2, verbose=0, return_dict=True)
    assert scores["loss"] == pytest.approx(theirs.loss.item(), abs=1e-5)
    assert scores["accuracy"] == pytest.approx(np.mean(expected.argmax(-1) == labels))

    targets = keras.ops.convert_to_tensor(ours.encode_targets(labels, 4))
    mine = gradients(ours, inputs, lambda outputs: keras.ops.mean(ours.loss(targets, outputs)))
    theirs.loss.backward()
    assert_same_gradients(mine, model)

    ours.save_to_preset(tmp_path / "ours")
    again, report = type(model).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values())
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, again.state_dict()[name]), name
    back = kbz.BertMultipleChoice.from_preset(tmp_path / "ours")
    np.testing.assert_array_equal(numpy(back(inputs)), numpy(ours(inputs)))


@slow_on("jax")
def test_predictions_come_in_the_order_given(chooser):
    rows = logits_row_by_row(chooser)
    expected = padded(rows, -1e9)
    for batch_size in (2, None):
        logits = chooser.predict(X, batch_size, verbose=0)
        assert (logits.shape, logits.dtype) == ((6, 4), "float32")
        np.testing.assert_allclose(logits, expected, atol=1e-5)
    arrays = chooser.preprocessor(X)
    assert arrays["token_ids"].shape[:2] == (6, 4)
    np.testing.assert_allclose(chooser.predict(arrays, 4, verbose=0), expected, atol=1e-5)
    chosen = chooser.choose((tuple(TEXTS), [np.array(row) for row in CHOICES]))
    for (best, probabilities), row in zip(chosen, rows, strict=True):
        assert best == row.argmax()
        np.testing.assert_allclose(probabilities, softmax(row), atol=1e-6)


def test_evaluate_is_loss_and_accuracy(chooser):
    rows = logits_row_by_row(chooser)
    losses = np.array([crossentropy(row, y) for row, y in zip(rows, Y, strict=True)])
    hits = np.array([row.argmax() == y for row, y in zip(rows, Y, strict=True)])
    scores = chooser.evaluate(X, Y, batch_size=4, verbose=0, return_dict=True)
    assert scores["loss"] == pytest.approx(losses.mean(), abs=1e-5)
    assert scores["accuracy"] == pytest.approx(hits.mean())
    weights = np.array([1, 0, 0, 2, 0, 1.0])
    scores = chooser.evaluate(X, Y, batch_size=4, sample_weight=weights, verbose=0, return_dict=True)
    assert scores["accuracy"] == pytest.approx(np.average(hits, weights=weights))


def test_pairs_are_cut_at_the_longer_text(chooser):
    tokenizer = chooser.preprocessor.tokenizer
    ids = tokenizer.token_to_id
    words, cls, sep = [ids("film")] * 20, ids("[CLS]"), ids("[SEP]")
    arrays = chooser.preprocessor(([" ".join(["film"] * 20)], [["good bad", " ".join(["dull"] * 20)]]))
    np.testing.assert_array_equal(
        arrays["token_ids"][0],
        [[cls, *words[:11], sep, ids("good"), ids("bad"), sep], [cls, *words[:7], sep, *[ids("dull")] * 6, sep]],
    )
    np.testing.assert_array_equal(arrays["segment_ids"][0].argmax(-1), [13, 9])


def test_fit_learns_which_choice(tokenizer):
    backbone = kbz.BertBackbone(
        **{**SHALLOW, "hidden_dim": 32, "intermediate_dim": 64}, dropout=0.0, attention_dropout=0.0
    )
    preprocessor = kbz.BertMultipleChoicePreprocessor(tokenizer, sequence_length=16)
    chooser = kbz.BertMultipleChoice(backbone, dropout=0.0, preprocessor=preprocessor)
    schedule = chooser.optimizer.get_config()["learning_rate"]["config"]  # The default of `compile`.
    assert schedule["learning_rate"] == 2e-5
    chooser.compile(kbz.AdamW(kbz.WarmupPolynomialDecay(1e-2), bias_correction=True))
    choices = [["fine", "bad"], ["dull", "fine"], ["cold", "slow", "fine"], ["slow", "fine", "bad"]]
    x, y = (["the film was", "it is", "a cast", "the plot"], choices), [0, 1, 2, 1]
    losses = chooser.fit(x, y, epochs=20, verbose=0).history["loss"]
    assert losses[0] > 0.5
    assert losses[-1] < 0.1
    assert [best for best, _ in chooser.choose(x)] == y


@slow_on("jax")
def test_fit_takes_the_papers_batch_and_epochs(chooser):
    """17 questions are two batches of at most 16, three times."""
    steps = []
    count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: steps.append(batch))
    x = (["it is"] * 17, [["fine", "bad"]] * 17)
    chooser.fit(x, [0] * 17, verbose=0, callbacks=[count])
    assert steps == [0, 1] * 3


@slow_on("tensorflow", "jax")
def test_ready_arrays_stream(chooser):
    tf = pytest.importorskip("tensorflow")
    arrays = chooser.preprocessor(X)
    stream = tf.data.Dataset.from_tensor_slices((arrays, Y)).batch(4)
    expected = chooser.evaluate(X, Y, batch_size=4, verbose=0)
    np.testing.assert_allclose(chooser.evaluate(stream, verbose=0), expected, rtol=1e-5)
    assert np.isfinite(chooser.fit(stream, epochs=1, verbose=0).history["loss"][0])
    for weights in ((), (np.ones(6, "float32"),)):
        wrong = tf.data.Dataset.from_tensor_slices((arrays, [0, 3, 1, 2, 2, 0], *weights)).batch(6)
        with pytest.raises(ValueError, match=r"one of the question's choices. Received: y\[4\]=2 of \[0, 1\]"):
            chooser.fit(wrong, epochs=1, verbose=0)
    with pytest.raises(ValueError, match="a data set of ready arrays, or contexts and choices in memory"):
        chooser.predict(tf.data.Dataset.from_tensor_slices((TEXTS, TEXTS)).batch(2), verbose=0)


def test_only_rows_without_weight_may_have_any_target(chooser):
    arrays, wrong, weights = (
        chooser.preprocessor(X),
        np.array([0, 3, 1, 2, 2, 0]),
        np.array([1, 0, 1, 1, 1, 1], "float32"),
    )
    for data in streams((arrays, wrong, weights)):
        with pytest.raises(ValueError, match=r"one of the question's choices. Received: y\[4\]=2 of \[0, 1\]"):
            chooser.evaluate(data, steps=1, verbose=0)
    weights = np.array([1, 0, 1, 1, 0, 1], "float32")
    expected = chooser.test_on_batch(arrays, np.array([0, 3, 1, 2, 0, 0]), weights)
    for data in streams((arrays, wrong, weights)):
        np.testing.assert_allclose(chooser.evaluate(data, steps=1, verbose=0), expected, rtol=1e-5)


def test_saving(tokenizer, tmp_path):
    preprocessor = kbz.BertMultipleChoicePreprocessor(tokenizer, sequence_length=16)
    loaded = check_saving(
        lambda: kbz.BertMultipleChoice(kbz.BertBackbone(**SHALLOW), dropout=0.2, preprocessor=preprocessor),
        folded(random_inputs(6), 2),
        tmp_path,
    )
    assert loaded.dropout == 0.2
    assert loaded.predict(X, verbose=0).shape == (6, 4)


def test_heads_of_another_kind_are_not_taken(chooser, tmp_path):
    chooser.save_to_preset(tmp_path / "chooser")
    back = kbz.BertMultipleChoice.from_preset(tmp_path / "chooser")
    assert isinstance(back.preprocessor, kbz.BertMultipleChoicePreprocessor)
    np.testing.assert_array_equal(back.predict(X, verbose=0), chooser.predict(X, verbose=0))
    fresh = kbz.BertTextClassifier.from_preset(tmp_path / "chooser", num_classes=2)
    assert fresh.load_report.fresh == ("classifier/kernel", "classifier/bias")
    assert fresh.load_report.unused == ("scorer/kernel", "scorer/bias")
    fresh.save_to_preset(tmp_path / "classifier")
    fresh = kbz.BertMultipleChoice.from_preset(tmp_path / "classifier")
    assert fresh.load_report.fresh == ("scorer/kernel", "scorer/bias")


ARRAYS = folded(random_inputs(6), 2)
ONE_MISSING = {**ARRAYS, "padding_mask": ARRAYS["padding_mask"] * np.array([[[1], [1]], [[1], [1]], [[1], [0]]])}
FIRST_MISSING = {**ARRAYS, "padding_mask": ONE_MISSING["padding_mask"][:, ::-1]}
BAD = [
    ((TEXTS, Y), "`x` must be a tuple (contexts, choices)"),
    (([[text] for text in TEXTS], Y), "`x` must be a tuple (contexts, choices), a dict of arrays or a data set"),
    (((TEXTS, TEXTS), Y), "`x[1]` must hold one non-empty list of choices per question. Received: x[1][0] with str"),
    (((TEXTS, [*CHOICES[:5], []]), Y), "Received: x[1][5] with none"),
    (((TEXTS, [*CHOICES[:5], ["a", None]]), Y), "`x[1][5]` must hold strings. Received: x[1][5][1]=None"),
    (((TEXTS[:5], CHOICES), Y), "as many contexts as lists of choices. Received: 5 and 6"),
    (((["a", 1], CHOICES[:2]), Y[:2]), "`x[0]` must hold strings. Received: x[0][1]=1"),
    ((([], []), []), "`x` must hold at least one example"),
    ((X, Y[:5]), "`y` must have the shape (6,), one choice per question. Received: y.shape=(5,)"),
    ((X, [0.0] * 6), "`y` must hold the numbers of the choices. Received: y.dtype=float64"),
    ((X, [0, 3, 1, 2, -1, 0]), "from 0 on. Received: y with -1"),
    ((X, [0, 3, 1, 2, 2, 0]), "one of the question's choices. Received: y[4]=2 of [0, 1]"),
    ((ONE_MISSING, [0, 1, 1]), "Received: y[2]=1 of [0]"),
    ((FIRST_MISSING, [0, 1, 0]), "Received: y[2]=0 of [1]"),
    ((random_inputs(), [0, 0, 0]), "`token_ids` must have the shape [questions, choices, length]"),
    (({**ARRAYS, "token_ids": ARRAYS["token_ids"] + 40}, [0, 0, 0]), "`token_ids` must be in [0, 40)"),
]


def test_bad_data(chooser):
    """All cases run on one model, which must survive each of them and still predict."""
    before = chooser.predict(X, verbose=0)
    for arguments, words in BAD:
        for run in (chooser.fit, chooser.evaluate):
            with short_error(words):
                run(*arguments, verbose=0)
    np.testing.assert_array_equal(chooser.predict(X, verbose=0), before)


def test_bad_arguments(tokenizer):
    backbone = kbz.BertBackbone(**SHALLOW)
    for options, words in (
        ({"dropout": 1.0}, "`dropout` must be a number in [0, 1). Received: dropout=1.0"),
        ({"num_choices": 4}, "BertMultipleChoice has no argument of this name. Received: num_choices"),
    ):
        with short_error(words):
            kbz.BertMultipleChoice(backbone, **options)
    with pytest.raises(ValueError, match="`backbone` must have a pooler"):
        kbz.BertMultipleChoice(kbz.BertBackbone(**SHALLOW, pooler=False))
    single = kbz.BertMultipleChoice(
        kbz.BertBackbone(**SHALLOW, num_segments=1), preprocessor=kbz.BertMultipleChoicePreprocessor(tokenizer, 16)
    )
    with pytest.raises(ValueError, match="Pairs need a backbone with two segment types"):
        single.predict(X, verbose=0)
