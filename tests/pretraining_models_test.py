"""Masked LM, pre-training and next sentence against transformers, and what `fit` makes of them."""

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from keras_bert_zoo.models.loading import preset_digest
from keras_bert_zoo.pretraining import PretrainingBatches, prepare
from keras_bert_zoo.training.crossentropy import TokenCrossentropy
from tests import layouts
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

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

PAIRS = {
    kbz.BertPretrainer: "BertForPreTraining",
    kbz.BertMaskedLM: "BertForMaskedLM",
    kbz.BertNextSentencePredictor: "BertForNextSentencePrediction",
}


def with_positions(inputs, predictions=4, seed=0):
    rng = np.random.default_rng(seed)
    length = inputs["token_ids"].shape[1]
    positions = np.stack([np.sort(rng.permutation(length)[:predictions]) for _ in inputs["token_ids"]])
    return {**inputs, "mask_positions": positions.astype("int32")}


def logits_of(outputs, inputs):
    """Return their logits under our names, at our positions."""
    found = {}
    tokens = getattr(outputs, "prediction_logits", getattr(outputs, "logits", None))
    if "mask_positions" in inputs and tokens is not None:
        found["mlm"] = np.take_along_axis(tokens.detach().numpy(), inputs["mask_positions"][..., None], axis=1)
    pairs = getattr(outputs, "seq_relationship_logits", None)
    if pairs is not None:
        found["nsp"] = pairs.detach().numpy()
    return found


@pytest.mark.parametrize("ours", PAIRS)
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_heads_in_and_out(ours, activation, tmp_path):
    model = saved_model(PAIRS[ours], tmp_path / "theirs", hidden_act=activation)
    loaded = ours.from_preset(tmp_path / "theirs")
    assert (loaded.load_report.fresh, loaded.load_report.unused) == ((), ())
    inputs = random_inputs(3, 20, 90)
    if ours is kbz.BertNextSentencePredictor:
        expected = run_theirs(model, inputs).logits.detach().numpy()
        np.testing.assert_allclose(numpy(loaded(inputs)), expected, atol=5e-6)
    else:
        inputs = with_positions(inputs)
        outputs, expected = loaded(inputs), logits_of(run_theirs(model, inputs), inputs)
        assert set(outputs) == set(expected)
        for name, logits in expected.items():
            np.testing.assert_allclose(numpy(outputs[name]), logits, atol=5e-6, err_msg=name)
    loaded.save_to_preset(tmp_path / "ours")
    back = getattr(transformers, PAIRS[ours]).from_pretrained(tmp_path / "ours")
    for name, parameter in model.state_dict().items():
        assert torch.equal(parameter, back.state_dict()[name]), name


def test_loss_and_gradients_of_pretraining(tmp_path):
    model = saved_model("BertForPreTraining", tmp_path)
    loaded = kbz.BertPretrainer.from_preset(tmp_path)
    inputs = with_positions(random_inputs(4, 20, 90))
    rng = np.random.default_rng(1)
    weights = np.arange(4) < np.array([4, 2, 3, 1])[:, None]
    ids = rng.integers(0, 90, (4, 4))
    labels = np.full((4, 20), -100)
    np.put_along_axis(labels, inputs["mask_positions"], np.where(weights, ids, -100), axis=1)
    nsp = np.array([0, 1, 1, 0])
    outputs = run_theirs(model, inputs, labels=labels, next_sentence_label=nsp)
    scaled = weights * np.float32(weights.size / weights.sum())
    batch = {"mlm": ids, "nsp": nsp}, {"mlm": scaled, "nsp": np.ones(4, "float32")}
    tensors = keras.tree.map_structure(keras.ops.convert_to_tensor, batch)

    def loss(y):
        return loaded.compute_loss(None, tensors[0], y, tensors[1])

    assert float(numpy(loss(loaded(inputs)))) == pytest.approx(outputs.loss.item(), abs=1e-5)
    ours = gradients(loaded, inputs, loss)
    outputs.loss.backward()
    assert_same_gradients(ours, model)


def test_loss_refuses_targets_of_another_shape():
    with pytest.raises(ValueError, match="`y_true` must have the shape"):
        TokenCrossentropy()(np.zeros((4, 6), "int32"), np.zeros((6, 4, 8), "float32"))


def test_heads_of_a_tensorflow1_checkpoint(tmp_path):
    pytest.importorskip("tensorflow")
    model = saved_model("BertForPreTraining", tmp_path / "theirs")
    layouts.write_tensorflow1(model, tmp_path / "bert")
    loaded = kbz.BertPretrainer.from_preset(tmp_path / "bert")
    assert (loaded.load_report.fresh, loaded.load_report.unused) == ((), ())
    inputs = with_positions(random_inputs(3, 20, 90))
    outputs = loaded(inputs)
    for name, logits in logits_of(run_theirs(model, inputs), inputs).items():
        np.testing.assert_allclose(numpy(outputs[name]), logits, atol=5e-6, err_msg=name)


def test_a_copy_that_is_not_tied_is_refused(tmp_path):
    model = saved_model("BertForMaskedLM", tmp_path)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    (tmp_path / "model.safetensors").unlink()
    torch.save(state, tmp_path / "pytorch_model.bin")
    assert kbz.BertMaskedLM.from_preset(tmp_path).load_report.unused == ()
    tied = preset_digest(kbz.BertTextClassifier.from_preset(tmp_path, num_classes=2))
    state["cls.predictions.decoder.weight"][3, 3] += 1
    torch.save(state, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"decoder.weight must be tied to embeddings.word_embeddings.weight"):
        kbz.BertMaskedLM.from_preset(tmp_path)
    # It does not matter to models without that head.
    classifier = kbz.BertTextClassifier.from_preset(tmp_path, num_classes=2)
    assert "mlm_bias/bias" in classifier.load_report.unused
    assert preset_digest(classifier) == tied
    kbz.BertBackbone.from_preset(tmp_path)


def test_a_bias_may_stand_under_its_other_name_alone(tmp_path):
    model = saved_model("BertForMaskedLM", tmp_path)
    state = {name: value.clone() for name, value in model.state_dict().items() if name != "cls.predictions.bias"}
    (tmp_path / "model.safetensors").unlink()
    torch.save(state, tmp_path / "pytorch_model.bin")
    masked = kbz.BertMaskedLM.from_preset(tmp_path)
    assert (masked.load_report.fresh, masked.load_report.unused) == ((), ())
    inputs = with_positions(random_inputs(3, 20, 90))
    expected = logits_of(run_theirs(model, inputs), inputs)["mlm"]
    np.testing.assert_allclose(numpy(masked(inputs)["mlm"]), expected, atol=5e-6)
    state["cls.predictions.decoder.weight"][3, 3] += 1
    for left_out in ("", "cls.predictions.decoder.bias"):
        state.pop(left_out, None)
        torch.save(state, tmp_path / "pytorch_model.bin")
        with pytest.raises(ValueError, match=r"decoder.weight must be tied to embeddings.word_embeddings.weight"):
            kbz.BertMaskedLM.from_preset(tmp_path)


def test_other_heads_are_reported(tmp_path):
    saved_model("BertForPreTraining", tmp_path)
    masked = kbz.BertMaskedLM.from_preset(tmp_path)
    assert masked.load_report.fresh == ()
    assert masked.load_report.unused == ("pooler/kernel", "pooler/bias", "nsp/kernel", "nsp/bias")
    classifier = kbz.BertTextClassifier.from_preset(tmp_path, num_classes=2)
    assert classifier.load_report.fresh == ("classifier/kernel", "classifier/bias")
    assert len(classifier.load_report.unused) == 7


def test_fill_mask(tmp_path, tokenizer, monkeypatch):
    model = saved_model("BertForMaskedLM", tmp_path)
    ours = kbz.BertMaskedLM.from_preset(tmp_path, preprocessor=kbz.BertPreprocessor(tokenizer, 16))
    texts = ["a [MASK] film", "the plot was [MASK] and very [MASK] .", "[MASK]"]
    filled = ours.fill_mask(texts, top_k=3)
    assert [len(masks) for masks in filled] == [1, 2, 1]
    assert ours.fill_mask([]) == []
    assert len(ours.fill_mask(texts[0])[0]) == 5
    assert ours.fill_mask([text.encode() for text in texts], top_k=3) == filled
    assert ours.fill_mask(texts[1], top_k=3)[1][0][0] == filled[1][1][0][0]
    sizes, predict = [], ours.predict_fed
    monkeypatch.setattr(
        ours, "predict_fed", lambda x, **given: sizes.append(given["batch_size"]) or predict(x, **given)
    )
    best = [masks[0][0][0] for masks in ours.fill_mask(texts * 20, batch_size=50)]
    assert best == [masks[0][0][0] for masks in filled] * 20
    assert sizes == [50, 10]
    for text, masks in zip(texts, filled, strict=True):
        encoding = tokenizer.encode(text)
        ids = torch.tensor([encoding.token_ids])
        with torch.no_grad():
            logits = model(ids).logits[0, :, : len(WORDS)]
        places = [i for i, token in enumerate(encoding.token_ids) if token == tokenizer.mask_token_id]
        for place, best in zip(places, masks, strict=True):
            probabilities, tokens = logits[place].softmax(-1).topk(3)
            assert [token for token, _ in best] == [WORDS[i] for i in tokens]
            np.testing.assert_allclose([share for _, share in best], probabilities, atol=1e-6)


@pytest.mark.parametrize("cls", PAIRS)
def test_models_save(cls, tmp_path, tokenizer):
    def build():
        backbone = kbz.BertBackbone(**SHALLOW, pooler=cls.needs_pooler)
        return cls(backbone, preprocessor=kbz.BertPreprocessor(tokenizer, 16))

    inputs = random_inputs()
    check_saving(build, inputs if cls is kbz.BertNextSentencePredictor else with_positions(inputs, 2), tmp_path)


def test_head_layers_save(tmp_path):
    x, inputs = np.random.default_rng(0).normal(size=(3, 5, 8)).astype("float32"), keras.Input((5, 8))
    for build in (lambda: kbz.MaskedLMHead(8, "relu", 1e-6), kbz.VocabularyBias):
        check_saving(build, x, tmp_path, lambda layer: keras.Model(inputs, layer(inputs)))


def test_next_sentence_takes_pairs(tokenizer):
    model = kbz.BertNextSentencePredictor(kbz.BertBackbone(**SHALLOW), kbz.BertPreprocessor(tokenizer, 16))
    x = (["a film", "so slow"], ["it is good", "bad"])
    model.fit(x, ["is_next", "not_next"], epochs=1, verbose=0)
    assert {name for name, _ in model.classify(x)[0]} == {"is_next", "not_next"}
    with pytest.raises(ValueError, match="must be pairs, a tuple"):
        model.predict(["a film"], verbose=0)


def test_bad_input(tokenizer):
    inputs = with_positions(random_inputs(), 2)
    positions = inputs["mask_positions"]
    model = kbz.BertMaskedLM(kbz.BertBackbone(**SHALLOW, pooler=False), kbz.BertPreprocessor(tokenizer, 16))
    randomise(model)
    before = numpy(model(inputs)["mlm"])
    batch = inputs, {"mlm": positions}, {"mlm": np.ones(positions.shape, "float32")}
    for run, words in (
        (lambda: model.fit(["a film"], [0]), "`x` must be PretrainingBatches"),
        (lambda: model.fit((each for each in [batch]), [0]), "`y` must be None, as batches hold it. Received: y of"),
        (lambda: model.fit((each for each in [batch]), validation_data=batch),
         "`validation_data` must be PretrainingBatches, or a data set of such batches. Received: "),
        (lambda: model({**inputs, "mask_positions": positions + 9}), "`mask_positions` must be in [0, 9)"),
        (lambda: model({**inputs, "mask_positions": positions[:2]}), "must have the shape [batch, n]"),
        (lambda: model(random_inputs()), "Inputs must have `mask_positions`"),
        (lambda: model({**inputs, "mask_positions": [[1]]}), "`mask_positions` must be an integer array"),
        (lambda: model.fill_mask("a film"), "`texts` must each hold [MASK], all within the preprocessor's"),
        (lambda: model.fill_mask("[MASK] " + "a " * 16 + "[MASK]"), "all within the preprocessor's sequence_length"),
        (lambda: model.fill_mask(None), "`texts` must be a list of strings"),
        (lambda: model.fill_mask("[MASK]", top_k=31), "`top_k` must be at most 30. Received: top_k=31"),
        (lambda: kbz.BertMaskedLM(model.backbone).fill_mask("[MASK]"), "`fill_mask` needs a preprocessor"),
        (lambda: kbz.BertPretrainer(model.backbone), "`backbone` must have a pooler"),
        (lambda: kbz.BertPretrainer(kbz.BertBackbone(**SHALLOW), units=3), "no argument of this name. Received: units"),
    ):  # fmt: skip
        with short_error(words):
            run()
    np.testing.assert_array_equal(numpy(model(inputs)["mlm"]), before)


def test_metrics_may_be_named_auto():
    model = kbz.BertMaskedLM(kbz.BertBackbone(**SHALLOW))
    model.compile(metrics="auto")
    inputs = with_positions(random_inputs(), 3)
    batch = inputs, {"mlm": inputs["mask_positions"]}, {"mlm": np.ones((3, 3), "float32")}
    assert set(model.test_on_batch(*batch, return_dict=True)) == {"loss", "accuracy"}


@pytest.mark.parametrize("metrics", [{"mlm": ["accuracy"]}, ["accuracy"]])
def test_metrics_are_of_predictions_alone(metrics):
    model = randomise(kbz.BertMaskedLM(kbz.BertBackbone(**SHALLOW)))
    inputs = with_positions(random_inputs(), 3)
    targets = numpy(model(inputs)["mlm"]).argmax(-1)
    targets[:, 1] = (targets[:, 1] + 1) % 40  # Wrong.
    weights = np.array([[1.0, 1.0, 0.0]] * 3, "float32")
    targets[:, 2] = 0  # No prediction.
    model.compile(metrics=metrics)
    assert model.test_on_batch(inputs, {"mlm": targets}, {"mlm": weights}, return_dict=True)["accuracy"] == 0.5


def test_ready_arrays_are_predicted_as_they_come():
    model = randomise(kbz.BertMaskedLM(kbz.BertBackbone(**SHALLOW)))
    inputs = with_positions(random_inputs(), 2)
    expected = numpy(model(inputs)["mlm"])
    np.testing.assert_allclose(model.predict(inputs, batch_size=2, verbose=0)["mlm"], expected, atol=1e-5)


@pytest.mark.parametrize("cls", [kbz.BertMaskedLM, kbz.BertPretrainer])
def test_what_streams_is_checked(cls):
    """For a wrong place, JAX would take another row's, or none."""
    model = cls(kbz.BertBackbone(**SHALLOW))
    inputs = with_positions(random_inputs(), 2)
    targets = {"mlm": np.full((3, 2), 7), "nsp": np.array([0, 1, 1])}
    targets = {name: targets[name] for name in model.output}
    weights = {name: np.ones(target.shape, "float32") for name, target in targets.items()}
    expected = model.test_on_batch(inputs, targets, weights)
    seen = {**inputs, "padding_mask": inputs["padding_mask"] > 0}
    for data in streams((seen, targets, weights)):
        np.testing.assert_allclose(model.evaluate(data, steps=1, verbose=0), expected, rtol=1e-5)
    wrong = [
        (({**inputs, "mask_positions": inputs["mask_positions"] + 9}, targets), "`mask_positions` must be in [0, 9)"),
        (({**inputs, "token_ids": inputs["token_ids"] + 40}, targets), "`token_ids` must be in [0, 40)"),
        ((inputs, {**targets, "mlm": np.full((3, 2), 40)}), "`mlm` must be in [0, 40). Received: mlm with 40"),
    ]
    if "nsp" in targets:
        wrong.append(((inputs, {**targets, "nsp": np.array([0, 1, 2])}), "`nsp` must be in [0, 2)"))
    for batch, words in wrong:
        for data in streams((*batch, weights)):
            with short_error(words):
                model.evaluate(data, steps=1, verbose=0)
        with short_error(words):
            model.test_on_batch(*batch, weights)


def test_a_stream_s_texts_are_no_longer_than_the_model_takes():
    """On a GPU the positions beyond it would have vectors of zeros."""
    tf = pytest.importorskip("tensorflow")
    model = kbz.BertMaskedLM(kbz.BertBackbone(**SHALLOW))
    batch = with_positions(random_inputs(length=17), 2), {"mlm": np.full((3, 2), 7)}
    unknown = tf.data.Dataset.from_generator(
        lambda: [batch],
        output_signature=tf.nest.map_structure(lambda x: tf.TensorSpec([None, None], x.dtype), batch),
    )
    with pytest.raises(Exception, match=r"`token_ids` must have at most 16 tokens, .* Received:\] \[17\]"):
        model.evaluate(unknown, verbose=0)


def test_one_of_two_losses_needs_one_target():
    model = kbz.BertPretrainer(kbz.BertBackbone(**SHALLOW))
    inputs, targets = with_positions(random_inputs(), 2), {"mlm": np.full((3, 2), 7)}
    expected = np.mean(crossentropy(numpy(model(inputs)["mlm"]), targets["mlm"]))
    model.compile(loss={"mlm": TokenCrossentropy()}, metrics=None, weighted_metrics=None)
    given = [*streams((inputs, targets))]
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        given.append(tf.data.Dataset.from_tensors((inputs, targets)))
    for data in given:
        assert model.evaluate(data, steps=1, verbose=0) == pytest.approx(expected, rel=1e-5)
    assert model.test_on_batch(inputs, targets) == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ValueError, match=r"`y` must be a dict of mlm, nsp\. Received: a target 'nps'"):
        model.test_on_batch(inputs, {**targets, "nps": np.array([0, 1, 1])})


def test_batches_of_another_kind(tmp_path, tokenizer):
    (tmp_path / "text").write_text("a good film\nso slow\n\nbad cast\nit is fine\n\n" * 20)
    prepare([tmp_path / "text"], tmp_path / "data", tokenizer, sequence_length=16, verbose=False)
    batches = PretrainingBatches(tmp_path / "data", 8)
    alone = PretrainingBatches(tmp_path / "data", 8, next_sentence=False)
    masked, both = (
        kbz.BertMaskedLM(kbz.BertBackbone(**SHALLOW, pooler=False)),
        kbz.BertPretrainer(kbz.BertBackbone(**SHALLOW)),
    )
    small = kbz.BertPretrainer(kbz.BertBackbone(**{**SHALLOW, "vocabulary_size": 20}))
    short = kbz.BertPretrainer(kbz.BertBackbone(**{**SHALLOW, "max_sequence_length": 8}))
    for run, words in (
        (lambda: masked.fit(batches), "`x` must be PretrainingBatches(next_sentence=False) for a BertMaskedLM"),
        (lambda: both.evaluate(alone), "`x` must be PretrainingBatches(next_sentence=True) for a BertPretrainer"),
        (lambda: small.fit(batches), "`x` must have a vocabulary of at most 20, the backbone's. Received: 30"),
        (lambda: short.fit(batches), "`x` must have a sequence_length of at most 8, the backbone's. Received: 16"),
        (lambda: both.fit(batches, steps_per_epoch=2), "`steps_per_epoch` must be None if the batches define"),
    ):
        with short_error(words):
            run()
    masked.fit(alone, epochs=1, verbose=0)
    assert int(masked.optimizer.iterations) == len(alone)


def test_accuracy_is_of_predictions_and_not_of_what_fills_their_rows(tmp_path, tokenizer):
    (tmp_path / "text").write_text("a good film\nso slow\n\nbad cast\nit is fine\n\n" * 20)
    prepare([tmp_path / "text"], tmp_path / "data", tokenizer, sequence_length=16, verbose=False)
    batches = PretrainingBatches(tmp_path / "data", PretrainingBatches(tmp_path / "data", 1).examples)
    model = randomise(kbz.BertPretrainer(kbz.BertBackbone(**SHALLOW)))
    scores = model.evaluate(batches, verbose=0, return_dict=True)
    ((inputs, targets, weights),) = batches
    logits = model(inputs)
    right = {name: numpy(logits[name]).argmax(-1) == targets[name] for name in ("mlm", "nsp")}
    for name, hits in right.items():
        assert scores[f"{name}_accuracy"] == pytest.approx(hits[weights[name] > 0].mean())
    assert right["mlm"].mean() != pytest.approx(scores["mlm_accuracy"], rel=0.1)


@slow_on("tensorflow", "jax")
def test_the_smoke_run(tmp_path):
    """Overfit some KB of text, as in google-research/bert's README (there 20 steps, accuracy 0.985 and 1.0)."""
    rng = np.random.default_rng(0)
    words = ["ab", "cd", "ef", "gh", "ij", "kl", "mn", "op", "qr", "st"]
    sentences = [" ".join(words[i] for i in rng.integers(0, 10, 8)) for _ in range(160)]
    (tmp_path / "text").write_text("\n\n".join("\n".join(sentences[i : i + 16]) for i in range(0, 160, 16)))
    assert (tmp_path / "text").stat().st_size > 3500
    tokenizer = kbz.BertTokenizer([*WORDS[:5], *words])
    prepare([tmp_path / "text"], tmp_path / "data", tokenizer, sequence_length=32, fix_masks=True, verbose=False)
    batches = PretrainingBatches(tmp_path / "data", 16)
    backbone = kbz.BertBackbone(15, 2, 4, 96, 192, max_sequence_length=32, dropout=0.0, attention_dropout=0.0)
    model = kbz.BertPretrainer(backbone)
    model.compile(kbz.AdamW(kbz.WarmupPolynomialDecay(4e-3), bias_correction=True))
    model.fit(batches, epochs=200 // len(batches), verbose=0)
    scores = model.evaluate(batches, verbose=0, return_dict=True)
    assert scores["mlm_accuracy"] > 0.95
    assert scores["nsp_accuracy"] == 1.0


@slow_on("tensorflow", "jax")
def test_blanks_are_filled_batch_by_batch(tokenizer):
    model = randomise(kbz.BertMaskedLM(kbz.BertBackbone(**SHALLOW), kbz.BertPreprocessor(tokenizer, 16)))
    texts = [f"{word} [MASK] {word}" for word in ("a", "bad", "good", "film", "fine")]
    expected = [model.fill_mask(text, top_k=1)[0][0][0] for text in texts]
    assert [masks[0][0][0] for masks in model.fill_mask(texts, top_k=1, batch_size=2)] == expected
    assert len(set(expected)) > 1


def test_the_head_s_epsilon_is_the_backbone_s(tmp_path):
    model = saved_model("BertForMaskedLM", tmp_path, layer_norm_eps=0.5)
    inputs = with_positions(random_inputs(3, 20, 90))
    expected = logits_of(run_theirs(model, inputs), inputs)["mlm"]
    ours = kbz.BertMaskedLM.from_preset(tmp_path)(inputs)["mlm"]
    np.testing.assert_allclose(numpy(ours), expected, rtol=0, atol=5e-6)


def test_heads_are_in_float32():
    """This keeps the digits of the losses."""
    backbone = kbz.BertBackbone(**SHALLOW, dtype="mixed_bfloat16")
    for task, options in (
        (kbz.BertTextRegressor, {}),
        (kbz.BertTokenClassifier, {"num_classes": 3}),
        (kbz.BertQuestionAnswerer, {}),
        (kbz.BertMultipleChoice, {}),
        (kbz.BertPretrainer, {}),
    ):
        model = task(backbone, **options)
        assert {tensor.dtype for tensor in keras.tree.flatten(model.output)} == {"float32"}, task
        assert model.get_layer(model.head_layers[-1]).compute_dtype == "float32", task
