"""LoRA and frozen backbones: what trains, one step by hand, and what is saved, against transformers."""

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from tests.helpers import LABELS, SHALLOW, TEXTS, TINY, gradients, numpy, random_inputs, randomise, short_error, slow_on
from tests.optimizer_oracles import DECAY, clip
from tests.theirs import run_theirs


@pytest.fixture
def adapted(tokenizer):
    """A classifier of one layer, without dropout, with LoRA."""
    sizes = {**SHALLOW, "dropout": 0.0, "attention_dropout": 0.0}
    preprocessor = kbz.BertPreprocessor(tokenizer, sequence_length=16)
    model = kbz.BertTextClassifier(kbz.BertBackbone(**sizes), num_classes=3, dropout=0.0, preprocessor=preprocessor)
    randomise(model)
    model.backbone.enable_lora(2)
    return model


def values(model):
    return [numpy(weight) for weight in model.weights]


def factors(model):
    qkv = model.backbone.encoder_layers[0].attention.qkv
    return qkv.lora_kernel_a, qkv.lora_kernel_b


def test_one_step_by_hand(adapted):
    """google-research/bert's AdamW on the factors and the head; everything else stays as it was, bit for bit."""
    inputs = adapted.preprocessor(TEXTS)
    adapted.compile(kbz.AdamW(0.1, global_clipnorm=0.01))
    factor_a, factor_b = factors(adapted)
    kernel, bias = adapted.get_layer("classifier").weights
    trained = [factor_a, factor_b, kernel, bias]
    assert {id(weight) for weight in adapted.trainable_weights} == {id(weight) for weight in trained}
    assert [tuple(factor.shape) for factor in (factor_a, factor_b)] == [(8, 2), (2, 24)]
    factor_b.assign(np.random.default_rng(1).normal(size=(2, 24), scale=0.2))  # Zeros would leave some gradients out.

    targets = keras.ops.convert_to_tensor(np.array(LABELS))
    grads = gradients(adapted, inputs, lambda outputs: adapted.loss(targets, outputs))
    grads = clip(grads, 0.01)
    before = {weight.path: numpy(weight).copy() for weight in trained}
    frozen = [(weight, numpy(weight).copy()) for weight in adapted.weights if not any(weight is t for t in trained)]
    adapted.fit(inputs, np.array(LABELS), batch_size=6, verbose=0)
    for weight in trained:
        grad = grads[weight.path]
        update = 0.1 * grad / (np.sqrt(0.001 * grad**2) + 1e-6) + DECAY * before[weight.path] * (weight is not bias)
        assert np.abs(update).max() > 1
        np.testing.assert_allclose(numpy(weight), before[weight.path] - 0.1 * update, atol=1e-4, err_msg=weight.path)
    assert len(frozen) == 19  # Embeddings, LayerNorms and the pooler among them.
    for weight, value in frozen:
        np.testing.assert_array_equal(numpy(weight), value, err_msg=weight.path)


@pytest.mark.parametrize(
    "change, dtype",
    [
        ("lora", "float32"),
        pytest.param("lora", "mixed_bfloat16", marks=slow_on("tensorflow", "jax")),
        pytest.param("int8", "float32", marks=slow_on("jax")),
        pytest.param("int8", "mixed_bfloat16", marks=slow_on("tensorflow", "jax")),
    ],
)
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")  # Keras says so of each Dropout
def test_a_model_that_has_predicted_sees_what_is_done_to_its_backbone(tokenizer, change, dtype):
    preprocessor = kbz.BertPreprocessor(tokenizer, sequence_length=16)
    model = kbz.BertTextClassifier(kbz.BertBackbone(**TINY, dtype=dtype), num_classes=3, preprocessor=preprocessor)
    inputs = preprocessor(TEXTS)
    randomise(model)
    before = model.predict(inputs, verbose=0)
    loss_before = model.evaluate(inputs, np.array(LABELS), verbose=0)
    if change == "lora":
        model.backbone.enable_lora(2)
        factors(model)[1].assign(np.random.default_rng(1).normal(size=(2, 24)))
    else:
        model.backbone.quantize("int8")
        for layer in model.backbone.encoder_layers:  # Not the weights from which int8 was made.
            layer.attention.qkv.kernel_scale.assign(layer.attention.qkv.kernel_scale / 3)
    after = model.predict(inputs, verbose=0)
    assert np.abs(after - before).max() > 0.1
    np.testing.assert_allclose(after, numpy(model(inputs)), atol=0.05 if dtype == "mixed_bfloat16" else 1e-5)
    assert np.abs(np.ravel(model.evaluate(inputs, np.array(LABELS), verbose=0)) - np.ravel(loss_before)).max() > 0.01


def test_training_goes_on_from_a_file(adapted, tmp_path):
    adapted.compile(kbz.AdamW(1e-2))
    adapted.fit(TEXTS, LABELS, batch_size=6, verbose=0, shuffle=False)
    adapted.save(tmp_path / "adapted.keras")
    loaded = keras.models.load_model(tmp_path / "adapted.keras")
    np.testing.assert_array_equal(loaded.predict(TEXTS, verbose=0), adapted.predict(TEXTS, verbose=0))
    assert [w.path for w in loaded.trainable_weights] == [w.path for w in adapted.trainable_weights]
    for model in (adapted, loaded):
        model.fit(TEXTS, LABELS, batch_size=6, verbose=0, shuffle=False)
    for ours, theirs in zip(values(loaded), values(adapted), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert keras.saving.serialize_keras_object(loaded.backbone)["config"]["lora_rank"] == 2
    assert "lora_rank" not in loaded.backbone.architecture


def test_weights_from_before_lora(adapted, tmp_path):
    """They have no factors. The first factor must not become zeros, from which no gradient leads."""
    plain = kbz.BertTextClassifier.from_config(
        {**adapted.get_config(), "backbone": keras.saving.serialize_keras_object(kbz.BertBackbone(
            **adapted.backbone.architecture))}
    )  # fmt: skip
    randomise(plain, seed=3)
    plain.save_weights(tmp_path / "plain.weights.h5")
    before = numpy(factors(adapted)[0]).copy()
    adapted.load_weights(tmp_path / "plain.weights.h5")
    np.testing.assert_array_equal(numpy(factors(adapted)[0]), before)
    np.testing.assert_array_equal(numpy(factors(adapted)[1]), 0)
    np.testing.assert_array_equal(adapted.predict(TEXTS, verbose=0), plain.predict(TEXTS, verbose=0))


def test_weights_of_another_rank_are_refused_before_a_factor_is_changed(adapted, tmp_path):
    """Keras sets both factors to zero first, and no gradient leads from there."""
    other = kbz.BertTextClassifier(
        kbz.BertBackbone(**adapted.backbone.architecture), num_classes=3, preprocessor=adapted.preprocessor
    )
    other.backbone.enable_lora(3)
    other.save_weights(tmp_path / "other.weights.h5")
    factors = {weight.path: numpy(weight).copy() for weight in adapted.weights if "lora" in weight.name}
    assert all(np.abs(value).max() > 0 for path, value in factors.items() if path.endswith("a"))

    def check():
        for weight in adapted.weights:
            if weight.path in factors:
                np.testing.assert_array_equal(numpy(weight), factors[weight.path], err_msg=weight.path)

    with pytest.raises(ValueError, match="qkv: the file must hold its kernel, and LoRA of rank 2 or none"):
        adapted.load_weights(tmp_path / "other.weights.h5")
    check()
    with pytest.warns(UserWarning, match="and LoRA of rank 2 or none"):
        adapted.load_weights(tmp_path / "other.weights.h5", skip_mismatch=True)
    check()


def test_saving_leaves_lora_on(adapted):
    """Another thread may predict meanwhile."""
    layer = adapted.backbone.encoder_layers[0].attention.qkv
    layer.lora_kernel_b.assign(np.ones((2, 24)))
    asked = []

    class Store(dict):
        def __setitem__(self, name, value):
            asked.append(layer.lora_enabled)
            super().__setitem__(name, value)

    store = Store()
    layer.save_own_variables(store)
    assert asked == [True] * 4
    np.testing.assert_array_equal(numpy(store["0"]), numpy(layer._kernel))
    assert np.abs(numpy(layer.kernel) - numpy(layer._kernel)).max() > 0


def test_preset_holds_the_sums(adapted, tmp_path):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    # Any layer of Keras' may be adapted on its own, and scaled.
    adapted.backbone.encoder_layers[0].intermediate.enable_lora(3, lora_alpha=6)
    adapted.backbone.embeddings.token_embedding.enable_lora(1)
    randomise(adapted, seed=1)
    inputs = random_inputs(4)
    expected = numpy(adapted(inputs))
    adapted.save_to_preset(tmp_path / "task")
    adapted.backbone.save_to_preset(tmp_path / "backbone")
    ours = kbz.BertTextClassifier.from_preset(tmp_path / "task")
    assert (ours.load_report.fresh, ours.load_report.unused) == ((), ())
    assert len(ours.trainable_weights) == len(ours.weights) == 21
    np.testing.assert_allclose(numpy(ours(inputs)), expected, atol=1e-5)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "task")
    np.testing.assert_allclose(run_theirs(theirs.eval(), inputs).logits.detach().numpy(), expected, atol=1e-5)
    backbone = kbz.BertBackbone.from_preset(tmp_path / "backbone")
    assert (backbone.load_report.fresh, backbone.load_report.unused) == ((), ())
    pooled = numpy(adapted.backbone(inputs)["pooled_output"])
    np.testing.assert_allclose(numpy(backbone(inputs)["pooled_output"]), pooled, atol=1e-5)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_a_preset_of_half_precision_has_the_sums_of_float32(dtype, tmp_path):
    """The products are in half precision, the weights are not."""
    backbone = randomise(kbz.BertBackbone(**SHALLOW, dtype=dtype))
    kernel = backbone.get_layer("encoder_layer_0").attention.qkv
    before, table = numpy(kernel.kernel), numpy(backbone.embeddings.token_embedding.embeddings)
    backbone.enable_lora(2)
    backbone.embeddings.token_embedding.enable_lora(2)
    kernel.lora_kernel_b.assign(np.full((2, before.shape[1]), 0.01, "float32"))
    backbone.save_to_preset(tmp_path)
    saved = kbz.BertBackbone.from_preset(tmp_path)
    np.testing.assert_array_equal(numpy(saved.embeddings.token_embedding.embeddings), table)
    expected = before + numpy(kernel.lora_kernel_a) @ numpy(kernel.lora_kernel_b)  # alpha is the rank.
    np.testing.assert_allclose(
        numpy(saved.get_layer("encoder_layer_0").attention.qkv.kernel), expected, rtol=1e-6, atol=1e-8
    )


def test_a_frozen_backbone_stays_frozen(classifier, tmp_path):
    classifier.backbone.trainable = False
    before = values(classifier.backbone)
    head = [numpy(weight) for weight in classifier.trainable_weights]
    assert len(head) == 2
    model = classifier
    for _ in range(2):
        model.compile(kbz.AdamW(1e-1))
        model.fit(TEXTS, LABELS, batch_size=6, verbose=0)
        model.save(tmp_path / "frozen.keras")
        model = keras.models.load_model(tmp_path / "frozen.keras")  # A state that does not fit would be a warning.
    for weight, value in zip(values(model.backbone), before, strict=True):
        np.testing.assert_array_equal(weight, value)
    assert [w.path for w in model.trainable_weights] == ["classifier/kernel", "classifier/bias"]
    assert all((numpy(weight) != value).any() for weight, value in zip(model.trainable_weights, head, strict=True))
    model.backbone.trainable = True
    assert len(model.trainable_weights) == len(model.weights)


def freeze_first_layers(model):
    model.backbone.embeddings.trainable = False
    model.backbone.encoder_layers[0].trainable = False


def thaw_the_last_block(model):
    model.backbone.trainable = False
    model.backbone.encoder_layers[-1].trainable = True


def freeze_pooler_and_head(model):
    model.backbone.pooler_layer.trainable = False
    model.get_layer("classifier").trainable = False


def leave_the_pooler_out_of_lora(model):
    model.backbone.enable_lora(2)
    for weight in model.backbone.pooler_layer.weights:
        weight.trainable = True


@pytest.mark.parametrize(
    "change, count",
    [
        (freeze_first_layers, 16),
        (thaw_the_last_block, 14),
        (freeze_pooler_and_head, 29),
        (leave_the_pooler_out_of_lora, 8),
    ],
)
def test_what_is_frozen_within_stays_frozen(tokenizer, tmp_path, change, count):
    preprocessor = kbz.BertPreprocessor(tokenizer, sequence_length=16)
    classifier = kbz.BertTextClassifier(kbz.BertBackbone(**TINY), num_classes=3, preprocessor=preprocessor)
    change(classifier)
    classifier.compile(kbz.AdamW(1e-1))
    expected = [w.path for w in classifier.trainable_weights]
    assert len(expected) == count
    model = classifier
    for epochs in range(2):
        if epochs:
            model.fit(TEXTS, LABELS, batch_size=6, verbose=0)
        model.save(tmp_path / "model.keras")
        model = keras.models.load_model(tmp_path / "model.keras")  # A state that does not fit would be a warning.
        assert [w.path for w in model.trainable_weights] == expected
    for weight, other in zip(model.weights, classifier.weights, strict=True):
        assert weight.path == other.path
        if weight.path not in expected:
            np.testing.assert_array_equal(numpy(weight), numpy(other))
    again = kbz.BertBackbone.from_config(classifier.backbone.get_config())
    assert [w.path for w in again.trainable_weights] == [w.path for w in classifier.backbone.trainable_weights]


def test_lora_after_freezing_and_in_a_config(backbone):
    backbone.trainable = False
    backbone.enable_lora(8)
    again = kbz.BertBackbone.from_config(backbone.get_config())
    for model in (backbone, again):
        assert [w.name for w in model.trainable_weights] == ["lora_kernel_a", "lora_kernel_b"] * 2


def test_bad_ranks(backbone):
    for rank, words in (
        (0, "`rank` must be a positive integer. Received: rank=0"),
        (True, "`rank` must be a positive integer. Received: rank=True"),
        (2.0, "`rank` must be a positive integer. Received: rank=2.0"),
        (9, "`rank` must be at most hidden_dim=8. Received: rank=9"),
    ):
        with short_error(words):
            backbone.enable_lora(rank)
    assert len(backbone.trainable_weights) == len(backbone.weights)
    backbone.enable_lora(1)
    with pytest.raises(ValueError, match=r"LoRA is enabled already, with rank=1\. Received: rank=2"):
        backbone.enable_lora(2)


def test_lora_that_is_frozen_stays_frozen(adapted, tmp_path):
    adapted.backbone.trainable = False
    adapted.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert [w.path for w in loaded.trainable_weights] == ["classifier/kernel", "classifier/bias"]
    for before, after in zip(values(adapted), values(loaded), strict=True):
        np.testing.assert_array_equal(before, after)


def test_what_would_not_come_back_is_not_saved(adapted):
    """Keras' own method has no place in the backbone's config."""
    backbone = kbz.BertBackbone(**SHALLOW)
    backbone.encoder_layers[0].attention.qkv.enable_lora(2)
    with pytest.raises(ValueError, match=r"LoRA must be enabled by the backbone's `enable_lora`.*attention/qkv"):
        backbone.get_config()
    adapted.get_config()


def test_precision_that_would_not_come_back_is_not_saved():
    backbone = kbz.BertBackbone(**SHALLOW)
    backbone.encoder_layers[0].attention.qkv.dtype_policy = "mixed_bfloat16"
    with pytest.raises(ValueError, match=r"must be given by a DTypePolicyMap .*attention/qkv with mixed_bfloat16"):
        backbone.get_config()
    policies = keras.dtype_policies.DTypePolicyMap(default_policy="float32")
    policies["encoder_layer_0/attention/qkv"] = "mixed_bfloat16"
    again = kbz.BertBackbone.from_config(kbz.BertBackbone(**SHALLOW, dtype=policies).get_config())
    assert again.encoder_layers[0].attention.qkv.compute_dtype == "bfloat16"
    assert again.encoder_layers[0].attention.compute_dtype == "float32"
