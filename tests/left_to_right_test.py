"""Left-to-right models against transformers' BertLMHeadModel, their pre-training, and what classifies over them."""

import importlib
import json
from dataclasses import replace

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from keras_bert_zoo.layers import BiLSTM
from keras_bert_zoo.layers.passes import step_of_this_process
from keras_bert_zoo.models.pooling import _last
from keras_bert_zoo.pretraining import Masking, PretrainingBatches, Run, prepare, pretrain
from tests.helpers import LABELS, SHALLOW, TEXTS, check_saving, numpy, random_inputs, randomise, short_error, slow_on
from tests.theirs import run_theirs, saved_model

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TEXT = "a good film\nit was fine .\nso warm\n\nthe plot is dull\nbad cast !\nvery slow\n\n" * 20


@pytest.fixture
def data(tmp_path, tokenizer):
    (tmp_path / "text").write_text(TEXT)
    prepare([tmp_path / "text"], tmp_path / "data", tokenizer, sequence_length=16, verbose=False)
    return tmp_path / "data"


def test_each_token_has_the_next_one_as_target(data):
    batches = PretrainingBatches(data, 8, next_token=True)
    inputs, targets, weights = batches[0]
    assert (set(targets), batches.next_sentence) == ({"mlm"}, False)
    assert inputs["mask_positions"].shape == (8, 15)
    total = sum(len(row[mask > 0]) - 1 for row, mask in zip(inputs["token_ids"], inputs["padding_mask"], strict=True))
    for i in range(8):
        tokens = inputs["token_ids"][i][inputs["padding_mask"][i] > 0].tolist()
        assert tokens[0] == 2  # [CLS]
        assert batches.tokenizer.mask_token_id not in tokens
        last = len(tokens) - 1
        assert inputs["mask_positions"][i].tolist() == [*range(last), *[0] * (15 - last)]
        assert targets["mlm"][i].tolist() == [*tokens[1:], *[0] * (15 - last)]
        np.testing.assert_allclose(weights["mlm"][i], np.r_[np.ones(last), np.zeros(15 - last)] * 8 * 15 / total)
    with pytest.raises(ValueError, match="`next_token` excludes `next_sentence` and `masking`"):
        PretrainingBatches(data, 8, next_sentence=True, next_token=True)
    with pytest.raises(ValueError, match="`next_token` excludes `next_sentence` and `masking`"):
        PretrainingBatches(data, 8, masking=Masking(), next_token=True)


def test_logits_and_loss_are_transformers(tmp_path):
    model = saved_model("BertLMHeadModel", tmp_path / "theirs", is_decoder=True)
    loaded = kbz.BertMaskedLM.from_preset(tmp_path / "theirs")
    assert loaded.backbone.architecture["causal"]
    assert (loaded.load_report.fresh, loaded.load_report.unused) == ((), ())
    inputs = random_inputs(3, 20, 90)
    mask = inputs["padding_mask"]
    expected = run_theirs(model, inputs, labels=np.where(mask > 0, inputs["token_ids"], -100))
    positions = np.tile(np.arange(19, dtype="int32"), (3, 1))
    outputs = loaded({**inputs, "mask_positions": positions})["mlm"]
    np.testing.assert_allclose(numpy(outputs)[mask[:, :-1] > 0], expected.logits[:, :-1][mask[:, :-1] > 0].detach(),
                               atol=5e-6)  # fmt: skip
    targets, weights = {"mlm": inputs["token_ids"][:, 1:]}, {"mlm": mask[:, 1:] * np.float32(57 / mask[:, 1:].sum())}
    tensors = keras.tree.map_structure(keras.ops.convert_to_tensor, (targets, weights))
    loss = loaded.compute_loss(None, tensors[0], {"mlm": outputs}, tensors[1])
    assert float(numpy(loss)) == pytest.approx(expected.loss.item(), abs=1e-5)

    changed = {**inputs, "token_ids": inputs["token_ids"].copy()}
    changed["token_ids"][0, 7] = (changed["token_ids"][0, 7] + 1) % 90
    differs = np.abs(numpy(loaded({**changed, "mask_positions": positions})["mlm"] - outputs))[0].max(axis=-1)
    assert differs[:7].max() < 1e-6
    assert differs[7:].min() > 1e-3

    loaded.save_to_preset(tmp_path / "ours")
    config = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert (config["architectures"], config["is_decoder"]) == (["BertLMHeadModel"], True)
    back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert type(back) is type(model)
    for name, parameter in model.state_dict().items():
        assert torch.equal(parameter, back.state_dict()[name]), name
    again = kbz.BertMaskedLM.from_preset(tmp_path / "ours")
    np.testing.assert_array_equal(numpy(again({**inputs, "mask_positions": positions})["mlm"]), numpy(outputs))


SMALL = {"num_layers": 1, "num_heads": 2, "hidden_dim": 32, "intermediate_dim": 64, "max_sequence_length": 16}


@slow_on("tensorflow", "jax")
def test_a_causal_run_learns_to_go_on(data, tmp_path):
    """Pairs in the data set are left alone; the six sentences begin with different words, so the rest can be known."""
    run = Run(str(data), steps=40, batch_size=16, save_every=40, learning_rate=4e-3, warmup=0.1, dropout=0.0)
    run = replace(run, architecture={**SMALL, "causal": True})
    model = pretrain(run, tmp_path / "run", verbose=0)
    assert type(model) is kbz.BertMaskedLM
    saved = kbz.BertMaskedLM.from_preset(tmp_path / "run" / "preset")
    assert (saved.backbone.architecture["causal"], saved.backbone.architecture["hidden_dim"]) == (True, 32)
    scores = saved.evaluate(PretrainingBatches(data, 16, next_token=True), verbose=0, return_dict=True)
    assert scores["accuracy"] > 0.7
    inputs, _, _ = PretrainingBatches(data, 16, next_token=True)[0]
    guesses = numpy(saved(inputs)["mlm"]).argmax(-1)
    tokenizer = saved.preprocessor.tokenizer
    for row, guess in zip(inputs["token_ids"], guesses, strict=True):
        places = np.flatnonzero(row == tokenizer.vocabulary.index("plot"))
        assert all(tokenizer.vocabulary[guess[place]] == "is" for place in places)


def test_a_run_masks_as_it_says(data, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        kbz.BertPretrainer, "fit", lambda self, x, **options: seen.extend([x, options["validation_data"]])
    )
    run = Run(str(data), steps=2, batch_size=16, save_every=2, architecture=SMALL, validation=str(data))
    run = replace(run, masking={"mask": 1.0, "random": 0.0, "rate": 0.3, "max_predictions": 5})
    pretrain(run, tmp_path / "run", verbose=0)
    for batches in seen:
        inputs, _, weights = batches[0]
        assert inputs["mask_positions"].shape == (16, 5)
        there = np.take_along_axis(inputs["token_ids"], inputs["mask_positions"], axis=1)
        assert (there[weights["mlm"] > 0] == batches.tokenizer.mask_token_id).all()
    assert len(seen) == 2


def test_a_greater_rate_has_room_for_its_predictions(data, tmp_path, tokenizer, monkeypatch):
    """Held-out masks that are fixed stay as they are."""
    (tmp_path / "text").write_text(TEXT)
    prepare([tmp_path / "text"], tmp_path / "fixed", tokenizer, sequence_length=16, fix_masks=True, verbose=False)
    seen = []
    monkeypatch.setattr(kbz.BertPretrainer, "fit", lambda self, x, **o: seen.extend([x, o["validation_data"]]))
    run = Run(str(data), steps=2, batch_size=16, save_every=2, architecture=SMALL, masking={"rate": 0.5})
    pretrain(replace(run, validation=str(tmp_path / "fixed")), tmp_path / "run", verbose=0)
    batches, held_out = seen
    assert (batches.masking.max_predictions, held_out.masking.max_predictions) == (8, 3)
    assert (batches[0][2]["mlm"] > 0).sum(axis=1).max() > 3


def test_bad_runs(data, tmp_path, backbone, tokenizer):
    kbz.BertPretrainer(backbone, kbz.BertPreprocessor(tokenizer, 16)).save_to_preset(tmp_path / "start")
    run = Run(str(data), batch_size=16)
    for options, words in (
        ({"masking": {"share": 1.0}}, "`masking` must be a dict of ['mask',"),
        ({"masking": {"mask": 2.0}}, "`mask` and `random` must be shares"),
        ({"masking": {"rate": 0.2}, "architecture": {"causal": True}}, "`next_token` excludes"),
        ({"architecture": {"pooler": False}}, "`architecture` must be a dict without"),
        ({"architecture": 4}, "`architecture` must be of type dict"),
        ({"architecture": {"layers": 4}}, "BertBackbone has no argument of this name. Received: layers"),
        ({"architecture": SMALL, "preset": str(tmp_path / "start")}, "`architecture` must be None for a preset whose"),
    ):
        with short_error(words):
            pretrain(replace(run, **options), tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_targets_that_can_be_read_are_refused(data, backbone):
    left = kbz.BertMaskedLM(kbz.BertBackbone(**SHALLOW, causal=True, pooler=False))
    for run, words in (
        (
            lambda: kbz.BertMaskedLM(backbone).fit(PretrainingBatches(data, 8, next_token=True)),
            "(next_token=False) for",
        ),
        (lambda: left.fit(PretrainingBatches(data, 8, next_sentence=False)), "(next_token=True) for a backbone with"),
    ):
        with short_error(words):
            run()
    left.preprocessor = kbz.BertPreprocessor(PretrainingBatches(data, 8).tokenizer, 16)
    with pytest.raises(ValueError, match="`fill_mask` needs a backbone that sees both sides"):
        left.fill_mask("a [MASK] film")


# --- Classifiers


def lstm_oracle(layer, width):
    """Return PyTorch's LSTM with the weights of Keras' (the gates are in the same order)."""
    lstm = torch.nn.LSTM(width, layer.units, layer.num_layers, batch_first=True, bidirectional=True)
    for i, keras_lstm in enumerate(layer.lstms):
        for suffix, one_way in (("", keras_lstm.forward_layer), ("_reverse", keras_lstm.backward_layer)):
            kernel, recurrent, bias = (torch.tensor(numpy(weight)) for weight in one_way.weights)
            with torch.no_grad():
                getattr(lstm, f"weight_ih_l{i}{suffix}").copy_(kernel.T)
                getattr(lstm, f"weight_hh_l{i}{suffix}").copy_(recurrent.T)
                getattr(lstm, f"bias_ih_l{i}{suffix}").copy_(bias)
                getattr(lstm, f"bias_hh_l{i}{suffix}").zero_()
    return lstm


def test_bilstm_is_pytorchs(tmp_path):
    x = np.random.default_rng(0).normal(size=(3, 5, 4)).astype("float32")
    mask = (np.arange(5) < np.array([5, 3, 1])[:, None]).astype("int32")
    hidden, places = keras.Input((None, 4)), keras.Input((None,), dtype="int32")

    def as_model(layer):
        return keras.Model([hidden, places], layer(hidden, places))

    layer = BiLSTM(3, num_layers=2)
    ours = numpy(randomise(as_model(layer), scale=0.7)([x, mask]))
    packed = torch.nn.utils.rnn.pack_padded_sequence(torch.tensor(x), [5, 3, 1], batch_first=True)
    expected, _ = torch.nn.utils.rnn.pad_packed_sequence(lstm_oracle(layer, 4)(packed)[0], batch_first=True)
    np.testing.assert_allclose(ours, expected.detach(), atol=1e-6)
    check_saving(lambda: BiLSTM(3, 2), [x, mask], tmp_path, as_model)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="the others have no such operation")
def test_a_program_that_may_be_saved_has_no_cudnn(monkeypatch):
    import tensorflow as tf

    # The package has a function of this name, too.
    monkeypatch.setattr(importlib.import_module("keras.src.backend.tensorflow.rnn"), "_is_gpu_available", lambda: True)
    layer, hidden, mask = BiLSTM(3), tf.ones([2, 5, 4]), tf.ones([2, 5], "int32")
    layer.build(hidden.shape)

    def operations():
        graph = tf.function(lambda *given: layer(*given)).get_concrete_function(hidden, mask).graph
        return {each.type for each in graph.get_operations()}

    assert "CudnnRNNV3" not in operations()
    for kind, compiled in (("training", False), ("outputs", False), ("training", True)):
        with step_of_this_process(kind, compiled):
            assert ("CudnnRNNV3" in operations()) is not compiled


@pytest.mark.parametrize("pooling", ["last", pytest.param("bilstm", marks=slow_on("tensorflow", "jax"))])
def test_classifier_over_a_causal_backbone(pooling, tmp_path, tokenizer):
    def build():
        preprocessor = kbz.BertPreprocessor(tokenizer, 16)
        backbone = kbz.BertBackbone(**SHALLOW, causal=True)
        return kbz.BertTextClassifier(backbone, 3, pooling=pooling, preprocessor=preprocessor)

    inputs = random_inputs(4, 9)
    classifier = check_saving(build, inputs, tmp_path)
    hidden = numpy(classifier.backbone(inputs)["sequence_output"])
    weights = {weight.path: numpy(weight) for weight in classifier.weights}
    lengths = inputs["padding_mask"].sum(axis=1)
    if pooling == "last":
        vector = hidden[np.arange(4), lengths - 1]
    else:
        packed = torch.nn.utils.rnn.pack_padded_sequence(
            torch.tensor(hidden), lengths.tolist(), batch_first=True, enforce_sorted=False
        )
        _, (states, _) = lstm_oracle(classifier.get_layer("bilstm"), 8)(packed)
        vector = np.concatenate(states.detach().numpy(), axis=-1)
    pooled = np.tanh(vector @ weights["pooler/kernel"] + weights["pooler/bias"])
    expected = pooled @ weights["classifier/kernel"] + weights["classifier/bias"]
    np.testing.assert_allclose(numpy(classifier(inputs)), expected, atol=1e-5)
    classifier.fit(TEXTS, LABELS, batch_size=3, epochs=1, verbose=0)
    assert int(classifier.optimizer.iterations) == 2
    with pytest.raises(ValueError, match='A preset needs `pooling="first"`'):
        classifier.save_to_preset(tmp_path / "preset")


def test_bad_poolings():
    for pooling, options, words in (
        ("mean", {}, "`pooling` must be one of ('first', 'last', 'bilstm'). Received: pooling='mean'"),
        ("first", {"causal": True}, '`pooling` must be "last" or "bilstm" over a causal backbone'),
        ("bilstm", {"num_heads": 1, "hidden_dim": 7}, "needs an even hidden_dim. Received: hidden_dim=7"),
        ("last", {"pooler": False}, "`backbone` must have a pooler"),
    ):
        with short_error(words):
            kbz.BertTextClassifier(kbz.BertBackbone(**{**SHALLOW, **options}), 2, pooling=pooling)


@pytest.mark.parametrize(
    "task, options",
    [
        (kbz.BertTextRegressor, {}),
        (kbz.BertMultipleChoice, {}),
        (kbz.BertPretrainer, {}),
        (kbz.BertTextEmbedder, {"pooling": "cls"}),
    ],
)
def test_the_first_token_of_a_causal_backbone_tells_nothing(task, options):
    with pytest.raises(ValueError) as error:
        task(kbz.BertBackbone(**SHALLOW, causal=True), **options)
    assert str(error.value) == (
        "`backbone` must not be causal, as its [CLS] sees nothing but itself. Received: one with causal=True"
    )
    kbz.BertTextEmbedder(kbz.BertBackbone(**SHALLOW, causal=True))  # The mean of all tokens does.


def test_a_left_to_right_preset_is_fine_tuned(tmp_path, tokenizer):
    left = kbz.BertMaskedLM(kbz.BertBackbone(**SHALLOW, causal=True, pooler=False), kbz.BertPreprocessor(tokenizer, 16))
    left.save_to_preset(tmp_path / "left")
    classifier = kbz.BertTextClassifier.from_preset(tmp_path / "left", num_classes=2, pooling="bilstm")
    fresh = {path.split("/")[0] for path in classifier.load_report.fresh}
    assert fresh == {"pooler", "bilstm", "classifier"}


def test_the_last_token_is_the_last_that_the_mask_has():
    hidden = np.arange(12, dtype="float32").reshape(4, 3, 1)
    mask = np.array([[1, 1, 1], [1, 1, 0], [1, 0, 1], [0, 1, 0]], "int32")
    found = _last(keras.ops.convert_to_tensor(hidden), keras.ops.convert_to_tensor(mask))
    np.testing.assert_array_equal(numpy(found)[:, 0], [2, 4, 8, 10])
