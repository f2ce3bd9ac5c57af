"""Presets: names, Hugging Face directories in and out, strict loading, atomic saving."""

import json
import logging
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_bert_zoo as kbz
from keras_bert_zoo.models.task import Task
from keras_bert_zoo.presets import presets
from keras_bert_zoo.pretraining import run
from tests.helpers import LABELS, TEXTS, TINY, WORDS, numpy, random_inputs, randomise, short_error, slow_on

PARAMETERS = {
    "bert_tiny": 4_385_920,
    "bert_mini": 11_170_560,
    "bert_small": 28_763_648,
    "bert_medium": 41_373_184,
    "bert_base": 109_482_240,
    "bert_large": 335_141_888,
    "bert_base_cased": 108_310_272,
    "bert_large_cased": 333_579_264,
    "bert_large_whole_word": 335_141_888,
    "bert_base_multilingual_cased": 177_853_440,
    "bert_base_chinese": 102_267_648,
}
# Presets that ship with their weights.
OWN = {"bert_mini_novels": 5_404_928}
# For each text, a word among the first three that the preset finds.
FILLED = {
    "he opened the [MASK] and went out.": "door",
    "i am [MASK] to see you, my dear.": "glad",
    "the doctor came to see the [MASK] man.": "young",
}
# keras-hub's names for the same models.
ALIASES = {
    "bert_tiny_en_uncased": "bert_tiny",
    "bert_mini_en_uncased": "bert_mini",
    "bert_small_en_uncased": "bert_small",
    "bert_medium_en_uncased": "bert_medium",
    "bert_base_en_uncased": "bert_base",
    "bert_base_en": "bert_base_cased",
    "bert_large_en_uncased": "bert_large",
    "bert_large_en": "bert_large_cased",
    "bert_base_multi": "bert_base_multilingual_cased",
    "bert_base_zh": "bert_base_chinese",
}
# Presets whose vocabulary was shared are checked against it: lower-casing before pre-training leaves no capitals.
SHARED_VOCABULARIES = {
    "bert_base": "bert-base-uncased",
    "bert_base_cased": "bert-base-cased",
    "bert_base_multilingual_cased": "bert-base-multilingual-cased",
    "bert_base_chinese": "bert-base-chinese",
}


def count_parameters(vocabulary_size, num_layers, hidden_dim, intermediate_dim, num_segments, max_sequence_length, **_):
    """Count parameters from the shapes in Devlin et al. 2019, section 3."""
    embeddings = (vocabulary_size + num_segments + max_sequence_length + 2) * hidden_dim
    attention = 4 * hidden_dim * (hidden_dim + 1)
    feed_forward = 2 * hidden_dim * intermediate_dim + hidden_dim + intermediate_dim
    return embeddings + num_layers * (attention + feed_forward + 4 * hidden_dim) + hidden_dim * (hidden_dim + 1)


def test_names_and_their_descriptions():
    assert set(kbz.preset_names()) == {*PARAMETERS, *OWN}
    found = {}
    for name, parameters in PARAMETERS.items():
        description = json.loads((presets._shipped() / name / "preset.json").read_text())
        assert description["parameters"] == parameters == count_parameters(**description["backbone"])
        assert description["source"].startswith("hf://google")
        assert description["license"] == "Apache-2.0"
        assert all(score["source"] and score["values"] for score in description["scores"])
        assert description["scores"]
        for alias in (name, *description["aliases"]):
            assert presets.load_preset(alias, load_weights=False).backbone == description["backbone"]
            found[alias] = name
    assert found == {**ALIASES, **{name: name for name in PARAMETERS}}


def test_a_package_in_a_zip_has_no_presets(monkeypatch):
    monkeypatch.setattr(presets, "__file__", "site.zip/keras_bert_zoo/presets/presets.py")
    with pytest.raises(ValueError, match=r"package must be unpacked, .* Received: no folder site.zip/presets$"):
        kbz.preset_names()


def test_our_own_preset_needs_no_network(monkeypatch):
    monkeypatch.setattr("socket.socket.connect", lambda *args: pytest.fail("touched the network"))
    ((name, parameters),) = OWN.items()
    model = kbz.BertPretrainer.from_preset(name)
    assert model.load_report.fresh == model.load_report.unused == ()
    architecture = model.backbone.architecture
    assert model.backbone.count_params() == parameters == count_parameters(**architecture)
    assert (architecture["num_layers"], architecture["hidden_dim"], model.backbone.dtype) == (4, 256, "float32")
    for text, word in FILLED.items():
        assert word in [token for token, _ in model.fill_mask(text, top_k=3)[0]]
    folder = presets._shipped() / name
    assert sum(path.stat().st_size for path in folder.iterdir()) < 25 * 2**20
    assert "keras-bert-zoo pretrain" in (folder / "README.md").read_text()


@pytest.mark.parametrize("name", SHARED_VOCABULARIES)
def test_descriptions_fit_the_vocabularies(name, data):
    description = presets.load_preset(name, load_weights=False)
    tokens = kbz.BertTokenizer(data / "vocab" / f"{SHARED_VOCABULARIES[name]}.vocab.txt").vocabulary
    assert len(tokens) == description.backbone["vocabulary_size"]
    has_capitals = any(token.isascii() and token.isalpha() and token.isupper() for token in tokens)
    assert description.tokenizer["lowercase"] is not has_capitals


@pytest.mark.parametrize("name", ["bert_tiny", "bert_mini", "bert_tiny_en_uncased"])
def test_a_name_without_weights_needs_no_network(name, monkeypatch):
    monkeypatch.setattr("socket.socket.connect", lambda *args: pytest.fail("touched the network"))
    backbone = kbz.BertBackbone.from_preset(name, load_weights=False, num_layers=1)
    assert backbone.architecture["num_layers"] == 1
    assert backbone.architecture["hidden_dim"] == (256 if "mini" in name else 128)
    classifier = kbz.BertTextClassifier.from_preset(name, load_weights=False, num_classes=2)
    assert classifier.preprocessor is None


def test_backbone_round_trip_and_transformers(backbone, tmp_path):
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    randomise(backbone)
    backbone.save_to_preset(tmp_path / "preset")
    assert len({path.stat().st_mode for path in (tmp_path / "preset").iterdir()}) == 1  # Who can read one can read all.
    inputs = random_inputs()
    ours = numpy(backbone(inputs)["pooled_output"])
    again = kbz.BertBackbone.from_preset(tmp_path / "preset")
    assert again.architecture == backbone.architecture
    assert set(again.load_report.loaded) == {weight.path for weight in backbone.weights}
    np.testing.assert_array_equal(numpy(again(inputs)["pooled_output"]), ours)
    model = transformers.AutoModel.from_pretrained(tmp_path / "preset").eval()
    with torch.no_grad():
        theirs = model(*(torch.tensor(inputs[k]).long() for k in ("token_ids", "padding_mask", "segment_ids")))
    np.testing.assert_allclose(theirs.pooler_output.numpy(), ours, atol=5e-6)


def test_causal_backbone_opens_in_transformers(tmp_path):
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    backbone = randomise(kbz.BertBackbone(**TINY, causal=True))
    backbone.save_to_preset(tmp_path / "preset")
    inputs = random_inputs()
    ours = numpy(backbone(inputs)["sequence_output"])
    np.testing.assert_array_equal(
        numpy(kbz.BertBackbone.from_preset(tmp_path / "preset")(inputs)["sequence_output"]), ours
    )
    model = transformers.AutoModel.from_pretrained(tmp_path / "preset").eval()
    with torch.no_grad():
        theirs = model(*(torch.tensor(inputs[k]).long() for k in ("token_ids", "padding_mask", "segment_ids")))
    np.testing.assert_allclose(theirs.last_hidden_state.numpy(), ours, atol=5e-6)


@pytest.mark.parametrize("multi_label", [False, True])
def test_classifier_round_trip_and_transformers(backbone, tokenizer, multi_label, tmp_path):
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    preprocessor = kbz.BertPreprocessor(tokenizer, sequence_length=12)
    names = ["no", "yes", "maybe"]
    classifier = randomise(
        kbz.BertTextClassifier(
            backbone, class_names=names, multi_label=multi_label, dropout=0.3, preprocessor=preprocessor
        )
    )
    classifier.save_to_preset(tmp_path / "preset")
    logits = classifier.predict((TEXTS, TEXTS[::-1]), verbose=0)
    again = kbz.BertTextClassifier.from_preset(tmp_path / "preset")
    assert again.head_config() == classifier.head_config()
    assert again.preprocessor.get_config() == preprocessor.get_config()
    np.testing.assert_allclose(again.predict((TEXTS, TEXTS[::-1]), verbose=0), logits, atol=1e-6)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "preset").eval()
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path / "preset")(
        TEXTS, TEXTS[::-1], return_tensors="pt", padding=True, truncation=True
    )
    with torch.no_grad():
        np.testing.assert_allclose(model(**tokens).logits.numpy(), logits, atol=5e-6)
    assert model.config.id2label == dict(enumerate(names))
    assert model.config.problem_type == f"{'multi' if multi_label else 'single'}_label_classification"


def test_transformers_heads_are_loaded_and_the_rest_is_said(tmp_path, caplog):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    options = {
        "vocab_size": 40, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16,
        "max_position_embeddings": 16, "id2label": {0: "no", 1: "yes", 2: "maybe"}, "classifier_dropout": 0.25,
    }  # fmt: skip
    config = transformers.BertConfig(**options)
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / "classifier")
    classifier = kbz.BertTextClassifier.from_preset(tmp_path / "classifier")
    assert (classifier.class_names, classifier.dropout) == (["no", "yes", "maybe"], 0.25)
    assert (classifier.load_report.fresh, classifier.load_report.unused) == ((), ())

    caplog.set_level(logging.WARNING, "keras_bert_zoo")
    other = kbz.BertTextClassifier.from_preset(tmp_path / "classifier", num_classes=2)
    assert other.load_report.fresh == other.load_report.unused == ("classifier/kernel", "classifier/bias")
    assert "freshly initialised, to be trained: classifier/kernel, classifier/bias" in caplog.text
    assert "in the preset, but not used: classifier/kernel, classifier/bias" in caplog.text

    assert other.dropout == 0.25  # The config's rate is for a fresh head too.
    assert kbz.BertTextClassifier.from_preset(tmp_path / "classifier", num_classes=2, dropout=0.5).dropout == 0.5

    # A token classifier's head has the same name and shape, but another meaning.
    transformers.BertForTokenClassification(config).save_pretrained(tmp_path / "tagger")
    tagger = kbz.BertTextClassifier.from_preset(tmp_path / "tagger", num_classes=3)
    assert tagger.load_report.unused == ("classifier/kernel", "classifier/bias")
    assert tagger.dropout == 0.25

    transformers.BertForMaskedLM(config).save_pretrained(tmp_path / "mlm")
    classifier = kbz.BertTextClassifier.from_preset(tmp_path / "mlm", num_classes=2)
    assert set(classifier.load_report.fresh) == {
        "classifier/kernel", "classifier/bias", "pooler/kernel", "pooler/bias",
    }  # fmt: skip
    assert "mlm_head/dense/kernel" in classifier.load_report.unused
    assert kbz.BertBackbone.from_preset(tmp_path / "mlm").pooler_layer is None


def test_nothing_is_drawn_that_the_checkpoint_overwrites(backbone, tmp_path, monkeypatch):
    drawn = []
    draw = keras.initializers.TruncatedNormal.__call__

    def noted(self, shape, dtype=None):
        drawn.append(tuple(shape))
        return draw(self, shape, dtype)

    backbone.save_to_preset(tmp_path / "preset")
    monkeypatch.setattr(keras.initializers.TruncatedNormal, "__call__", noted)
    kbz.BertTextRegressor.from_preset(tmp_path / "preset")
    width = TINY["hidden_dim"]
    assert drawn == [(width, width), (width, 1)]  # A pooler may be fresh, and the head always is.
    kbz.BertBackbone.from_preset(tmp_path / "preset", load_weights=False)
    assert len(drawn) == 2 + 3 + 4 * TINY["num_layers"] + 1
    assert (TINY["vocabulary_size"], width) in drawn


def test_a_missing_or_misshapen_weight_is_refused(backbone, tmp_path):
    backbone.save_to_preset(tmp_path / "preset")
    path = tmp_path / "preset" / "model.safetensors"
    tensors = load_file(path)
    bias = tensors.pop("encoder.layer.1.attention.self.key.bias")
    save_file(tensors, path)
    with pytest.raises(ValueError, match="one without encoder_layer_1/attention/qkv/bias"):
        kbz.BertBackbone.from_preset(tmp_path / "preset")
    tensors["encoder.layer.1.attention.self.key.bias"] = bias
    name = "encoder.layer.0.attention.self.{}.bias"
    uneven = {name.format("query"): np.zeros(4, "float32"), name.format("key"): np.zeros(12, "float32")}
    save_file({**tensors, **uneven}, path)
    with pytest.raises(
        ValueError, match=r"of one layer must fit each other. Received: .*query.bias \(4,\), .* \(12,\)"
    ):
        kbz.BertBackbone.from_preset(tmp_path / "preset")
    save_file({**tensors, "embeddings.LayerNorm.gamma": np.zeros(8, "float32")}, path)
    with pytest.raises(ValueError, match=r"once. Received: embeddings.LayerNorm.gamma beside embeddings.LayerNorm.wei"):
        kbz.BertBackbone.from_preset(tmp_path / "preset")
    tensors["pooler.dense.weight"] = np.zeros((8, 9), "float32")
    save_file(tensors, path)
    with pytest.raises(ValueError, match=r"pooler/kernel must have the shape \(8, 8\).*Received: \(9, 8\)"):
        kbz.BertBackbone.from_preset(tmp_path / "preset")


def test_saving_is_all_or_nothing(backbone, tmp_path, monkeypatch):
    target = tmp_path / "preset"
    backbone.save_to_preset(target)
    before = {path.name: path.read_bytes() for path in target.iterdir()}
    randomise(backbone)

    def fail(*args, **kwargs):
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr("keras_bert_zoo.checkpoints.huggingface.write_json", fail)
        with pytest.raises(OSError, match="disk full"):
            backbone.save_to_preset(target)
        with pytest.raises(OSError, match="disk full"):
            backbone.save_to_preset(tmp_path / "new")
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["preset"]
    backbone.save_to_preset(target)
    assert (target / "model.safetensors").read_bytes() != before["model.safetensors"]
    assert set(before) == {path.name for path in target.iterdir()}


def test_a_crash_while_replacing_brings_the_old_preset_back(backbone, tmp_path, monkeypatch):
    target = tmp_path / "preset"
    backbone.save_to_preset(target)
    (target / "notes.md").write_text("mine")
    before = {path.name: path.read_bytes() for path in target.iterdir()}
    rename = Path.rename

    def fail_at_the_last(self, other):
        if self.parent.name == "coming" and len(list(self.parent.iterdir())) == 1:
            raise OSError("disk gone")
        return rename(self, other)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fail_at_the_last)
        with pytest.raises(OSError, match="disk gone"):
            randomise(backbone).save_to_preset(target)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before
    backbone.save_to_preset(target)
    assert (target / "notes.md").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["preset"]


def test_weights_say_that_they_are_pytorch_s(backbone, tmp_path):
    """transformers 4 asks for it."""
    from safetensors import safe_open

    backbone.save_to_preset(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "numpy") as file:
        assert file.metadata() == {"format": "pt"}


def test_saving_again_leaves_nothing_stale(backbone, classifier, tmp_path):
    classifier.save_to_preset(tmp_path / "preset")
    backbone.save_to_preset(tmp_path / "preset")
    assert {path.name for path in (tmp_path / "preset").iterdir()} == {
        "config.json", "model.safetensors", "preset.json", "README.md",
    }  # fmt: skip
    assert "BERT: text encoder" in (tmp_path / "preset" / "README.md").read_text()


def test_saving_spares_other_peoples_directories(backbone, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="must be a new or empty directory"):
        backbone.save_to_preset(tmp_path)
    with pytest.raises(ValueError, match=r"`path` must be a directory\. Received: path='.*thesis\.tex', a file"):
        backbone.save_to_preset(tmp_path / "thesis.tex")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_bad_presets(backbone, tmp_path):
    with short_error("`load_weights` must be True or False. Received: load_weights='no'"):
        kbz.BertBackbone.from_preset("bert_tiny", load_weights="no")

    def refused(words, preset, **options):
        with short_error(words, longest=400):  # It lists all names.
            kbz.BertBackbone.from_preset(preset, **options)

    refused("`preset` must be one of ['bert_base',", "bert_bse")
    refused("`preset` must be a name, a directory, or hf://org/name. Received: preset=None", None)
    refused("Received: preset=b'bert_base'", b"bert_base")
    refused("Received: preset='nowhere/bert', which is not a directory", "nowhere/bert")
    refused("must be a directory with a config.json", tmp_path)
    refused("A hub address must be hf://org/name", "hf://nowhere")
    backbone.save_to_preset(tmp_path / "preset")
    weights = tmp_path / "preset" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    refused("must be a safetensors file", tmp_path / "preset")
    weights.unlink()
    refused("must hold model.safetensors; pass load_weights=False", tmp_path / "preset")
    with pytest.raises(ValueError, match=r"^BertTextClassifier has no argument of this name\. Received: num_labels$"):
        kbz.BertTextClassifier.from_preset(tmp_path / "preset", num_labels=2)
    assert kbz.BertBackbone.from_preset(tmp_path / "preset", load_weights=False).architecture == backbone.architecture
    (tmp_path / "preset" / "config.json").write_text("[1]")
    refused("config.json must hold a JSON object", tmp_path / "preset", load_weights=False)


@pytest.mark.parametrize("name", ["bert_tiny", "bert_tiny_en_uncased"])
def test_a_directory_of_a_known_name(name, backbone, tokenizer, tmp_path, monkeypatch):
    """It counts if it holds a preset, but not if it belongs to a run that was killed."""
    monkeypatch.chdir(tmp_path)
    for folder in (name, "mine"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "run.json").write_text("{}")
    named = kbz.BertBackbone.from_preset(name, load_weights=False)
    assert named.architecture["hidden_dim"] == 128
    data = SimpleNamespace(next_sentence=False, tokenizer=tokenizer, sequence_length=16)
    fresh = run._build(run.Run("data", name), data, named.architecture)  # A pre-training run asks the same.
    assert fresh.backbone.architecture["hidden_dim"] == 128
    for folder in (f"./{name}", tmp_path / name, "mine"):
        with pytest.raises(ValueError, match=r"`preset` must be a directory with a config\.json or"):
            kbz.BertBackbone.from_preset(folder)
    (tmp_path / name / "run.json").unlink()
    backbone.save_to_preset(name)
    assert kbz.BertBackbone.from_preset(name).architecture == backbone.architecture
    with pytest.raises(ValueError, match="`architecture` must be None for a preset whose weights are taken"):
        run._build(run.Run("data", name, architecture={}), data, {})


def test_offline_says_what_was_tried(tmp_path, monkeypatch):
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        ValueError, match=r"hf://google-bert/bert-base-uncased could not be reached.*load_weights=False"
    ):
        kbz.BertBackbone.from_preset("bert_base")


@pytest.mark.parametrize(
    "file, field, value",
    [
        ("config.json", "layer_norm_eps", "small"),
        ("config.json", "layer_norm_eps", -5.0),
        ("config.json", "initializer_range", "x"),
        ("config.json", "hidden_act", {}),
        ("config.json", "architectures", 5),
        ("config.json", "id2label", ["a", "b", "c"]),
        ("config.json", "id2label", {"0": "a", "5": "b"}),
        ("config.json", "num_hidden_layers", 1_000_000),
        ("config.json", "quantization_config", {"bits": 4}),
        ("tokenizer_config.json", "do_lower_case", "false"),
        ("tokenizer_config.json", "model_max_length", [512]),
        ("tokenizer_config.json", "tokenizer_class", "BertJapaneseTokenizer"),
        ("tokenizer_config.json", "word_tokenizer_type", "mecab"),
        ("tokenizer_config.json", "never_split", ["film"]),
        ("tokenizer_config.json", "truncation_side", "left"),
        ("tokenizer_config.json", "split_special_tokens", True),
        ("tokenizer_config.json", "model_input_names", ["input_ids", "attention_mask"]),
        ("tokenizer_config.json", "cls_token", "<s>"),
        ("tokenizer_config.json", "mask_token", {"content": "<mask>"}),
        ("config.json", "problem_type", "classification"),
        ("config.json", "is_decoder", "false"),
        ("preset.json", "sequence_length", [16]),
        ("preset.json", "format", 99),
    ],
)
def test_fields_of_the_wrong_kind_are_refused_by_name(classifier, file, field, value, tmp_path):
    classifier.save_to_preset(tmp_path / "preset")
    path = tmp_path / "preset" / file
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with short_error(field, longest=400):
        kbz.BertTextClassifier.from_preset(tmp_path / "preset")


def test_what_a_config_may_say(classifier, tmp_path):
    """It may have a dropout of zero, nothing in an unsupported field, and more tokens than there are positions."""
    head = {**classifier.head_config(), "dropout": 0.0}
    kbz.BertTextClassifier(classifier.backbone, preprocessor=classifier.preprocessor, **head).save_to_preset(tmp_path)
    for file, fields in (
        ("config.json", {"quantization_config": None}),
        ("tokenizer_config.json", {"model_max_length": 512}),
        ("preset.json", {"sequence_length": None}),
    ):
        path = tmp_path / file
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    loaded = kbz.BertTextClassifier.from_preset(tmp_path)
    assert (loaded.dropout, loaded.preprocessor.sequence_length) == (0.0, TINY["max_sequence_length"])


def test_the_tokenizer_s_class_may_stand_in_the_config(classifier, tmp_path):
    classifier.save_to_preset(tmp_path)
    for file, change in (("tokenizer_config.json", {"tokenizer_class": None}), ("config.json", {})):
        path = tmp_path / file
        other = {"tokenizer_class": "BertJapaneseTokenizer"} | change
        config = {**json.loads(path.read_text()), **other}
        path.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))
    with pytest.raises(ValueError, match=r"`tokenizer_class` must be one of .* Received: 'BertJapaneseTokenizer'"):
        kbz.BertTextClassifier.from_preset(tmp_path)


def test_a_model_of_another_kind_is_refused_by_name(backbone, tmp_path):
    backbone.save_to_preset(tmp_path)
    path = tmp_path / "config.json"
    config = {**json.loads(path.read_text()), "architectures": ["RobertaModel"]}
    del config["model_type"]
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"config.json: `architectures` must be BERT's. Received: 'RobertaModel'"):
        kbz.BertBackbone.from_preset(tmp_path)


@pytest.mark.parametrize(
    "task", ["BertMaskedLM", "BertPretrainer", "BertNextSentencePredictor", "BertQuestionAnswerer"]
)
def test_a_head_is_told_by_its_tensors(task, tmp_path):
    """This is so in files of 2019."""
    getattr(kbz, task)(kbz.BertBackbone(**TINY)).save_to_preset(tmp_path)
    (tmp_path / "preset.json").unlink()
    path = tmp_path / "config.json"
    config = {**json.loads(path.read_text()), "num_labels": 2}
    del config["architectures"]
    path.write_text(json.dumps(config))
    loaded = getattr(kbz, task).from_preset(tmp_path)
    assert loaded.load_report.fresh == ()
    with pytest.raises(ValueError, match="`num_classes` or `class_names` must be given: the preset has no classif"):
        kbz.BertTextClassifier.from_preset(tmp_path)
    assert {path.split("/")[0] for path in loaded.load_report.unused} <= {"pooler"}


@pytest.mark.parametrize("architecture", ["BertModel", "BertForSomethingElse"])
def test_a_head_is_told_by_its_tensors_whatever_the_class_is_called(architecture, tmp_path):
    randomise(kbz.BertMaskedLM(kbz.BertBackbone(**TINY))).save_to_preset(tmp_path)
    (tmp_path / "preset.json").unlink()
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "architectures": [architecture]}))
    for name in ("cls.predictions.bias", "cls.predictions.decoder.bias"):
        tensors = load_file(tmp_path / "model.safetensors")
        tensors[name] = tensors.pop("cls.predictions.bias")
        save_file(tensors, tmp_path / "model.safetensors")
        assert kbz.BertMaskedLM.from_preset(tmp_path).load_report.fresh == ()
        assert "mlm_head/dense/kernel" in kbz.BertBackbone.from_preset(tmp_path).load_report.unused
    # Of three rows, it is the head of no class of ours.
    width = TINY["hidden_dim"]
    three = {"qa_outputs.weight": np.zeros((3, width), "float32"), "qa_outputs.bias": np.zeros(3, "float32")}
    rest = {name: tensor for name, tensor in tensors.items() if not name.startswith("cls.")}
    save_file({**rest, **three}, tmp_path / "model.safetensors")
    report = kbz.convert_preset(tmp_path, tmp_path / "out")
    assert (report.class_name, report.unused) == ("BertBackbone", ("qa_outputs.bias", "qa_outputs.weight"))


def test_labels_that_a_config_does_not_count(backbone, tmp_path):
    kbz.BertTextClassifier(backbone, 3).save_to_preset(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    del config["id2label"], config["label2id"]
    path.write_text(json.dumps(config))
    for asked in ({}, {"num_classes": 3}):
        loaded = kbz.BertTextClassifier.from_preset(tmp_path, **asked)
        assert (loaded.num_classes, loaded.load_report.fresh) == (3, ())
    assert kbz.BertBackbone.from_preset(tmp_path).load_report.unused == ("classifier/kernel", "classifier/bias")


def test_a_number_of_labels_may_contradict_their_names(backbone, tmp_path):
    """transformers before 3.0 wrote two names that mean nothing, however many labels there were."""
    kbz.BertTextClassifier(backbone, 3).save_to_preset(tmp_path)
    path = tmp_path / "config.json"
    names = {"id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "num_labels": 3}
    path.write_text(json.dumps({**json.loads(path.read_text()), **names}))
    loaded = kbz.BertTextClassifier.from_preset(tmp_path)
    assert (loaded.num_classes, loaded.class_names, loaded.load_report.fresh) == (3, None, ())
    path.write_text(json.dumps({**json.loads(path.read_text()), "id2label": {"0": "no", "1": "yes"}}))
    with pytest.raises(ValueError, match="classifier/kernel"):  # Names that somebody chose do count.
        kbz.BertTextClassifier.from_preset(tmp_path)


def test_a_head_is_found_without_architectures(classifier, tmp_path):
    randomise(classifier).save_to_preset(tmp_path / "preset")
    path = tmp_path / "preset" / "config.json"
    config = json.loads(path.read_text())
    del config["architectures"]
    path.write_text(json.dumps(config))
    for _ in range(2):
        again = kbz.BertTextClassifier.from_preset(tmp_path / "preset")
        assert again.load_report.fresh == ()
        np.testing.assert_allclose(again.predict(TEXTS, verbose=0), classifier.predict(TEXTS, verbose=0), atol=1e-6)
        (tmp_path / "preset" / "preset.json").unlink(missing_ok=True)


def test_other_class_names_are_another_head(backbone, tmp_path):
    kbz.BertTextClassifier(backbone, class_names=["a", "b"]).save_to_preset(tmp_path / "preset")
    same = kbz.BertTextClassifier.from_preset(tmp_path / "preset", class_names=["a", "b"])
    assert same.load_report.fresh == ()
    other = kbz.BertTextClassifier.from_preset(tmp_path / "preset", class_names=["b", "a"])
    assert other.load_report.fresh == other.load_report.unused == ("classifier/kernel", "classifier/bias")


@pytest.mark.parametrize("several", [False, True])
def test_a_head_for_one_class_is_none_for_several(several, backbone, tmp_path):
    kbz.BertTextClassifier(backbone, class_names=["a", "b"], multi_label=several).save_to_preset(tmp_path / "preset")
    load = partial(kbz.BertTextClassifier.from_preset, tmp_path / "preset")
    assert load(multi_label=several).load_report.fresh == ()
    assert load(multi_label=not several).load_report.fresh == ("classifier/kernel", "classifier/bias")
    (tmp_path / "preset" / "preset.json").unlink()
    config = json.loads((tmp_path / "preset" / "config.json").read_text())
    del config["problem_type"]  # As in many directories of transformers, which then do not say.
    (tmp_path / "preset" / "config.json").write_text(json.dumps(config))
    assert load(multi_label=True).load_report.fresh == load().load_report.fresh == ()


def test_what_is_left_out_the_preset_says(backbone, tmp_path):
    """None is the constructor's default, which a wrapper passes on."""
    kbz.BertTextClassifier(backbone, class_names=["a", "b", "c"]).save_to_preset(tmp_path / "preset")
    for options in ({"class_names": None}, {"num_classes": None}, {"num_classes": None, "class_names": None}):
        classifier = kbz.BertTextClassifier.from_preset(tmp_path / "preset", **options)
        assert (classifier.class_names, classifier.load_report.fresh) == (["a", "b", "c"], ())


@pytest.mark.parametrize("names", [["LABEL_0", "LABEL_1"], None])
def test_names_such_as_nobody_gives(names, backbone, tmp_path):
    kbz.BertTextClassifier(backbone, 2, class_names=names).save_to_preset(tmp_path / "preset")
    assert kbz.BertTextClassifier.from_preset(tmp_path / "preset").class_names == names


def test_a_missing_vocabulary_is_said(backbone, tmp_path, caplog):
    backbone.save_to_preset(tmp_path / "preset")
    caplog.set_level(logging.WARNING, "keras_bert_zoo")
    kbz.BertTextClassifier.from_preset(tmp_path / "preset", num_classes=2)
    assert "no vocabulary" in caplog.text


def test_pooler_survives_without_weights(tmp_path):
    kbz.BertBackbone(**TINY, pooler=False).save_to_preset(tmp_path / "preset")
    assert kbz.BertBackbone.from_preset(tmp_path / "preset", load_weights=False).pooler_layer is None


def test_vocabulary_survives_unusual_tokens(backbone, tmp_path):
    words = [*kbz.BertTokenizer(Path(__file__).parent / "unusual_vocab.txt").vocabulary]
    assert len(words) == 9
    tokenizer = kbz.BertTokenizer(words, lowercase=False, strip_accents=True, split_chinese=False)
    preprocessor = kbz.BertPreprocessor(tokenizer, 8)
    kbz.BertTextClassifier(backbone, 2, preprocessor=preprocessor).save_to_preset(tmp_path / "preset")
    loaded = kbz.BertTextClassifier.from_preset(tmp_path / "preset").preprocessor.tokenizer
    assert loaded.get_config() == tokenizer.get_config()


def test_a_users_subclass_is_a_preset_of_its_parent(classifier, tmp_path):
    class Loud(kbz.BertTextClassifier):
        def classify(self, x, batch_size=None):
            return [[(name.upper(), p) for name, p in row] for row in super().classify(x, batch_size)]

    loud = Loud(classifier.backbone, class_names=["a", "b"], preprocessor=classifier.preprocessor)
    loud.save_to_preset(tmp_path / "preset")
    again, plain = (cls.from_preset(tmp_path / "preset") for cls in (Loud, kbz.BertTextClassifier))
    assert json.loads((tmp_path / "preset" / "preset.json").read_text())["class"] == "BertTextClassifier"
    np.testing.assert_array_equal(again.predict(TEXTS, verbose=0), loud.predict(TEXTS, verbose=0))
    assert {name for name, _ in again.classify(TEXTS)[0]} == {"A", "B"}
    assert {name for name, _ in plain.classify(TEXTS)[0]} == {"a", "b"}


def test_what_a_preset_would_lose_is_refused(backbone, classifier, tmp_path):
    class Reversed(kbz.BertPreprocessor):
        def pack(self, x):
            return super().pack([text[::-1] for text in x])

    class Lower(kbz.BertTokenizer):
        pass

    class Own(Task):
        preprocessor_class, head_layers = kbz.BertPreprocessor, ("own",)

        def __init__(self, backbone, name="own_task"):
            output = keras.layers.Dense(1, name="own")(backbone.output["pooled_output"])
            super().__init__(backbone, None, backbone.input, output, name)

    for model, words in (
        (kbz.BertTextClassifier(backbone, 2, preprocessor=Reversed(classifier.preprocessor.tokenizer, 16)), "Reversed"),
        (kbz.BertTextClassifier(backbone, 2, preprocessor=kbz.BertPreprocessor(Lower(WORDS), 16)), "Lower"),
        (Own(backbone), "Own"),
    ):
        with pytest.raises(ValueError, match=rf'use save\("\.keras"\)\. Received: {words}$'):
            model.save_to_preset(tmp_path / "preset")
    assert not list(tmp_path.iterdir())


@slow_on("tensorflow", "jax")
def test_fit_then_save_then_go_on(classifier, tmp_path):
    classifier.fit(TEXTS, LABELS, epochs=1, verbose=0)
    classifier.save_to_preset(tmp_path / "preset")
    again = kbz.BertTextClassifier.from_preset(tmp_path / "preset")
    np.testing.assert_allclose(again.predict(TEXTS, verbose=0), classifier.predict(TEXTS, verbose=0), atol=1e-6)
    again.fit(TEXTS, LABELS, epochs=1, verbose=0)


def test_padding_has_its_number(tmp_path):
    tokenizer = kbz.BertTokenizer(["[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "[PAD]"])
    backbone = kbz.BertBackbone(**TINY)
    kbz.BertTextRegressor(backbone, preprocessor=kbz.BertPreprocessor(tokenizer, 8)).save_to_preset(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["pad_token_id"] == 5


# --- What is left out

# transformers' names for what has a default.
FIELDS = {
    "vocab_size": "vocabulary_size", "num_hidden_layers": "num_layers", "num_attention_heads": "num_heads",
    "hidden_size": "hidden_dim", "intermediate_size": "intermediate_dim", "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout", "max_position_embeddings": "max_sequence_length",
    "type_vocab_size": "num_segments", "layer_norm_eps": "layer_norm_epsilon", "hidden_act": "activation",
    "initializer_range": "initializer_range", "is_decoder": "causal",
}  # fmt: skip


def test_a_field_that_a_config_leaves_out_is_transformers(tmp_path):
    theirs = pytest.importorskip("transformers").BertConfig()
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    ours = presets.load_preset(tmp_path, load_weights=False).backbone
    assert {name: ours[name] for name in FIELDS.values()} == {
        name: getattr(theirs, field) for field, name in FIELDS.items()
    }


def test_an_argument_that_is_left_out_is_transformers():
    """This leaves aside the sizes, which must be given."""
    theirs = pytest.importorskip("transformers").BertConfig()
    sizes = {name: TINY[name] for name in TINY if name != "max_sequence_length"}
    ours = kbz.BertBackbone(**sizes).architecture
    expected = {name: getattr(theirs, field) for field, name in FIELDS.items()} | sizes | {"pooler": True}
    assert ours == expected
