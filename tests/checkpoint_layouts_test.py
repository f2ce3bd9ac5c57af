"""Every layout that `from_preset` takes, compared with transformers on the model it was written from."""

import json
import logging
import shutil
import sys

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from tests import layouts
from tests.helpers import TEXTS, WORDS, numpy, random_inputs, short_error

transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")

CONFIG = {
    "vocab_size": 40, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16,
    "max_position_embeddings": 16, "num_labels": 3, "hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3,
}  # fmt: skip
HARD_TEXTS = ["A Good film!", "naïve café, 長い", "LONG longest", "[MASK] slow-film", "\u200bbad\tfilm"]


def build(kind, **options):
    model = kind(transformers.BertConfig(**CONFIG), **options).eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.2 + (parameter.ndim == 1)
    return model


@pytest.fixture(scope="module")
def bert():
    return build(transformers.BertModel)


@pytest.fixture(scope="module")
def theirs():
    return build(transformers.BertForSequenceClassification)


def run(model, inputs):
    with torch.no_grad():
        return model(*(torch.tensor(inputs[k]).long() for k in ("token_ids", "padding_mask", "segment_ids")))


def check_backbone(model, directory, pooler=True):
    backbone = kbz.BertBackbone.from_preset(directory)
    assert [backbone.architecture[name] for name in ("dropout", "attention_dropout")] == [0.2, 0.3]
    inputs = random_inputs()
    ours, expected = backbone(inputs), run(model, inputs)
    np.testing.assert_allclose(numpy(ours["sequence_output"]), expected.last_hidden_state.numpy(), atol=5e-6)
    assert ("pooled_output" in ours) == pooler
    if pooler:
        np.testing.assert_allclose(numpy(ours["pooled_output"]), expected.pooler_output.numpy(), atol=5e-6)
    assert backbone.load_report.fresh == backbone.load_report.unused == ()
    assert all(weight.dtype == "float32" for weight in backbone.weights)


@pytest.mark.parametrize("layout", layouts.LAYOUTS)
def test_backbone(bert, layout, tmp_path):
    if layout.startswith("TF1"):
        pytest.importorskip("tensorflow")
    layouts.LAYOUTS[layout](bert, tmp_path / "bert")
    check_backbone(layouts.reference(bert, layout, tmp_path / "bert"), tmp_path / "bert")


@pytest.mark.parametrize("layout", layouts.LAYOUTS)
def test_classifier(theirs, layout, tmp_path):
    if layout.startswith("TF1"):
        pytest.importorskip("tensorflow")
    layouts.LAYOUTS[layout](theirs, tmp_path / "bert")
    ours = kbz.BertTextClassifier.from_preset(tmp_path / "bert")
    expected = run(layouts.reference(theirs, layout, tmp_path / "bert"), random_inputs()).logits
    np.testing.assert_allclose(numpy(ours(random_inputs())), expected.numpy(), atol=5e-6)
    assert ours.load_report.fresh == ours.load_report.unused == ()


def test_prefix_where_none_is_usual(bert, tmp_path):
    layouts.write_other_prefix(bert, tmp_path / "bert")
    check_backbone(bert, tmp_path / "bert")


@pytest.mark.parametrize("write", [layouts.write_plain, layouts.write_pytorch, layouts.write_tensorflow1])
def test_without_pooler(write, tmp_path):
    if write is layouts.write_tensorflow1:
        pytest.importorskip("tensorflow")
    model = build(transformers.BertModel, add_pooling_layer=False)
    write(model, tmp_path / "bert")
    check_backbone(model, tmp_path / "bert", pooler=False)


def test_double_precision(bert, tmp_path):
    state = {name: value.double() for name, value in bert.state_dict().items()}
    layouts._write_safetensors(bert, tmp_path / "safetensors", state)
    check_backbone(bert, tmp_path / "safetensors")
    for zipped in (True, False):
        layouts._write_pytorch(bert, tmp_path / "pytorch", state, zipped)
        check_backbone(bert, tmp_path / "pytorch")


def test_safetensors_come_before_pytorch(bert, tmp_path):
    layouts.write_plain(bert, tmp_path / "bert")
    (tmp_path / "bert" / "pytorch_model.bin").write_bytes(b"\x80\x02cposix\nsystem\n")
    check_backbone(bert, tmp_path / "bert")


def test_views_of_one_storage(bert, tmp_path):
    """Slices, transposed and expanded tensors, as state dicts have them."""
    state = bert.state_dict()
    flat = torch.cat([torch.zeros(3), state["embeddings.LayerNorm.weight"], state["embeddings.LayerNorm.bias"]])
    name = "encoder.layer.0.intermediate.dense.weight"
    state |= {
        name: state[name].T.contiguous().T,
        "embeddings.LayerNorm.weight": flat[3:11],
        "embeddings.LayerNorm.bias": flat[11:],
        "embeddings.position_ids": torch.arange(16).expand((1, -1)),
    }
    assert state[name].stride() == (1, 16)
    for zipped in (True, False):
        layouts._write_pytorch(bert, tmp_path / "bert", state, zipped)
        check_backbone(bert, tmp_path / "bert")


def test_other_heads_of_a_tensorflow1_checkpoint_are_said(bert, tmp_path):
    tf = pytest.importorskip("tensorflow")
    layouts.write_tensorflow1(bert, tmp_path / "bert")
    reader = tf.train.load_checkpoint(str(tmp_path / "bert" / "bert_model.ckpt"))
    tensors = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    tensors |= {"cls/predictions/output_bias": np.zeros(40, "float32"), "cls/other/output_weights": np.ones((2, 8))}
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "bert" / "bert_model.ckpt"),
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=[tf.constant(value) for value in tensors.values()],
    )
    backbone = kbz.BertBackbone.from_preset(tmp_path / "bert")
    assert backbone.load_report.unused == ("mlm_bias/bias", "cls/other/output_weights")
    (tmp_path / "bert" / "model.ckpt-100.index").write_bytes(b"")
    with pytest.raises(
        ValueError, match=r"one \*.index file\). Received: \['bert_model.ckpt.index', 'model.ckpt-100.in"
    ):
        kbz.BertBackbone.from_preset(tmp_path / "bert")


def test_a_tensorflow1_checkpoint_needs_no_tensorflow(bert, tmp_path, monkeypatch):
    if keras.backend.backend() == "tensorflow":
        pytest.skip("TensorFlow is the backend and cannot be missing")
    pytest.importorskip("tensorflow")
    layouts.write_tensorflow1(bert, tmp_path / "bert")
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    check_backbone(bert, tmp_path / "bert")


@pytest.mark.parametrize(
    "extra, lowercase",
    [([], True), (["[unused1]", "<S>", "\u211d"], True), (["Film"], False), (["фильм", "Фильм"], False)],
)
def test_a_tensorflow1_vocabulary_says_whether_it_is_cased(extra, lowercase, tmp_path, caplog):
    caplog.set_level(logging.INFO, "keras_bert_zoo")
    fields = {k: v for k, v in transformers.BertConfig(**CONFIG).to_dict().items() if k in CONFIG}
    (tmp_path / "bert_config.json").write_text(json.dumps(fields))
    (tmp_path / "vocab.txt").write_text("\n".join([*WORDS, *extra]) + "\n")

    def tokenizer():
        model = kbz.BertTextClassifier.from_preset(tmp_path, load_weights=False, num_classes=2)
        return model.preprocessor.tokenizer

    assert tokenizer().lowercase is lowercase
    assert ("taken as uncased" if lowercase else f"taken as cased, as it has {extra[-1]!r}") in caplog.text
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": not lowercase}))
    assert tokenizer().lowercase is not lowercase


@pytest.mark.parametrize("config", [True, False])
@pytest.mark.parametrize("options", [{}, {"do_lower_case": False}, {"strip_accents": False}, {"do_lower_case": False,
                         "strip_accents": True, "tokenize_chinese_chars": False}])  # fmt: skip
def test_tokenizer_json_alone(theirs, options, config, tmp_path):
    theirs.save_pretrained(tmp_path / "bert")
    (tmp_path / "vocab.txt").write_text("\n".join([*WORDS, "Good", "Film", "naïve", "naive", "長"]) + "\n")
    shutil.copy(tmp_path / "vocab.txt", tmp_path / "bert")
    transformers.BertTokenizer.from_pretrained(tmp_path / "bert", **options).save_pretrained(tmp_path / "bert")
    (tmp_path / "bert" / "vocab.txt").unlink()
    assert (tmp_path / "bert" / "tokenizer.json").exists()
    if not config:
        (tmp_path / "bert" / "tokenizer_config.json").unlink()
    ours = kbz.BertTextClassifier.from_preset(tmp_path / "bert").preprocessor
    expected = transformers.BertTokenizer(str(tmp_path / "vocab.txt"), **options)(
        HARD_TEXTS + TEXTS, TEXTS[:5] + TEXTS[::-1], padding=True, return_tensors="np"
    )
    packed = ours((HARD_TEXTS + TEXTS, TEXTS[:5] + TEXTS[::-1]))
    np.testing.assert_array_equal(packed["token_ids"], expected["input_ids"])
    np.testing.assert_array_equal(packed["segment_ids"], expected["token_type_ids"])


def test_tokenizer_json_says_what_a_missing_config_does_not(theirs, tmp_path):
    theirs.save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    transformers.BertTokenizer.from_pretrained(tmp_path, do_lower_case=False).save_pretrained(tmp_path)

    def lowercase():
        return kbz.BertTextClassifier.from_preset(tmp_path).preprocessor.tokenizer.lowercase

    assert lowercase() is False
    (tmp_path / "tokenizer_config.json").unlink()
    assert lowercase() is False
    (tmp_path / "tokenizer.json").unlink()
    assert lowercase() is True


@pytest.mark.parametrize(
    "place, value, words",
    [
        (("model", "type"), "BPE", "`type` must be one of ('WordPiece', None). Received: 'BPE'"),
        (("model", "unk_token"), "<unk>", "`unk_token` must be '[UNK]'. Received: '<unk>'"),
        (("model", "continuing_subword_prefix"), "@@", "`continuing_subword_prefix` must be '##'. Received: '@@'"),
        (("model", "max_input_chars_per_word"), 200, "`max_input_chars_per_word` must be 100. Received: 200"),
        (("model", "vocab", "bad"), 99, "`vocab` must number its tokens from 0 on"),
        (("model", "vocab", "bad"), "6", "`vocab` must map tokens to integers"),
        (("model", "vocab"), [], "`vocab` must be of type dict. Received: []"),
        (("normalizer", "type"), "NFKC", "`type` must be 'BertNormalizer'. Received: 'NFKC'"),
        (("normalizer", "clean_text"), False, "`clean_text` must be True. Received: False"),
        (("normalizer", "lowercase"), "yes", "`lowercase` must be of type bool. Received: 'yes'"),
        (("normalizer",), None, "`type` must be 'BertNormalizer'. Received: None"),
        (("pre_tokenizer", "type"), "Metaspace", "`type` must be 'BertPreTokenizer'. Received: 'Metaspace'"),
        (("post_processor", "single"), [], "`post_processor` must be BERT's for `single`. Received: []"),
        (("added_tokens", 0, "content"), "<ent>", "Received: '<ent>'"),
        (("added_tokens", 0, "lstrip"), True, "`lstrip` must be False. Received: True"),
        (("added_tokens", 0, "id"), 3, "`added_tokens` must be in the vocabulary. Received: '[PAD]' as 3"),
        (("added_tokens", 0, "id"), "a\n" * 500, "must be in the vocabulary. Received: '[PAD]' as 'a"),
        (("model", "vocab", "a\n" * 500), 99, "`vocab` must number its tokens from 0 on. Received: 'a"),
    ],
)
def test_a_tokenizer_json_that_is_not_berts_is_refused_by_name(theirs, place, value, words, tmp_path):
    theirs.save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    transformers.BertTokenizer.from_pretrained(tmp_path).save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").unlink()
    document = json.loads((tmp_path / "tokenizer.json").read_text())
    part = document
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    with short_error(words, "tokenizer.json", longest=400):
        kbz.BertBackbone.from_preset(tmp_path)


def test_another_kind_of_tokenizer_is_refused_by_its_name(theirs, tmp_path):
    """Such as XLM-R's, whose tokens are a list of pairs; multilingual models with BERT's layers have it."""
    theirs.save_pretrained(tmp_path)
    unigram = {"model": {"type": "Unigram", "vocab": [["<s>", 0.0]]}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(unigram))
    for config, words in (
        ({"tokenizer_class": "XLMRobertaTokenizer"}, "`tokenizer_class` must be one of"),
        ({}, "`type` must be one of ('WordPiece', None). Received: 'Unigram'"),
    ):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        with short_error(words, longest=400):
            kbz.BertBackbone.from_preset(tmp_path)


def test_tokens_that_were_added_are_refused_by_name(theirs, tmp_path):
    """They stand in one file or the other beside `vocab.txt`, and would otherwise be cut into pieces."""
    theirs.save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    token = {"lstrip": False, "normalized": True, "rstrip": False, "single_word": False, "special": False}
    specials = {str(i): {**token, "content": name, "special": True} for i, name in enumerate(WORDS[:5])}
    config = {"tokenizer_class": "BertTokenizer", "added_tokens_decoder": specials}

    def load(config, added=None):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        if added is not None:
            (tmp_path / "added_tokens.json").write_text(json.dumps(added))
        return kbz.BertTextClassifier.from_preset(tmp_path).preprocessor.tokenizer.vocabulary

    assert load(config) == WORDS  # transformers 4 writes this for any BERT.
    more = {**specials, str(len(WORDS)): {**token, "content": "<ent>"}}
    with pytest.raises(ValueError, match=r"tokenizer_config.json: `added_tokens` must be among .* Received: '<ent>'"):
        load({**config, "added_tokens_decoder": more})
    with pytest.raises(ValueError, match=r"added_tokens.json: `added_tokens` must be among .* Received: '<ent>'"):
        load(config, {"<ent>": len(WORDS)})
    assert load(config, {WORDS[4]: 4}) == WORDS
    usual = {"truncation_side": "right", "split_special_tokens": False, "model_input_names": ["input_ids",
             "token_type_ids"], "cls_token": {"content": "[CLS]"}, "unk_token": "[UNK]", "pad_token": None}  # fmt: skip
    assert load(config | usual) == WORDS
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"sep_token": {"content": "[CLS]"}}))
    with pytest.raises(ValueError, match=r"special_tokens_map.json: `sep_token` must be one of .* Received: '\[CLS\]'"):
        load(config)
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        for field, token in (
            ("additional_special_tokens", [{"content": "film"}]),
            ("extra_special_tokens", {"a": "film"}),
        ):
            specials = {"cls_token": "[CLS]", field: token}
            (tmp_path / "special_tokens_map.json").write_text(json.dumps(specials if "map" in name else {}))
            with pytest.raises(ValueError, match=rf"{name}: `{field}` must be among .* Received: 'film'"):
                load(config | ({} if "map" in name else specials))


def test_tokens_that_transformers_5_adds_are_refused_by_name(theirs, tmp_path):
    """It writes them to `tokenizer.json` alone, and leaves an older `vocab.txt` where it is."""
    theirs.save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    tokenizer = transformers.BertTokenizer.from_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert kbz.BertTextClassifier.from_preset(tmp_path).preprocessor.tokenizer.vocabulary == WORDS
    tokenizer.add_tokens(["<ent>"])
    tokenizer.save_pretrained(tmp_path)
    assert (tmp_path / "vocab.txt").is_file()
    with pytest.raises(ValueError, match=r"tokenizer.json: `added_tokens` must be among .* Received: '<ent>'"):
        kbz.BertTextClassifier.from_preset(tmp_path)


def test_the_vocabulary_of_a_tokenizer_that_was_learned_anew(theirs, tmp_path):
    """transformers 5 writes it to `tokenizer.json` and reads it there; an older `vocab.txt` stays beside it."""
    theirs.save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    tokenizer = transformers.BertTokenizer.from_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    path = tmp_path / "tokenizer.json"
    document = json.loads(path.read_text())
    words = [*WORDS[:5], *sorted(WORDS[5:], reverse=True)]
    document["model"]["vocab"] = {word: i for i, word in enumerate(words)}
    path.write_text(json.dumps(document))
    with pytest.raises(ValueError, match=r"tokenizer.json must have the tokens of vocab.txt, in its order"):
        kbz.BertTextClassifier.from_preset(tmp_path)
    (tmp_path / "vocab.txt").unlink()
    assert kbz.BertTextClassifier.from_preset(tmp_path).preprocessor.tokenizer.vocabulary == words


@pytest.mark.parametrize("name", ["TokenizersBackend", "PreTrainedTokenizerFast"])
def test_classes_that_leave_all_to_tokenizer_json(theirs, name, tmp_path):
    theirs.save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    transformers.BertTokenizer.from_pretrained(tmp_path, do_lower_case=False).save_pretrained(tmp_path)
    assert (tmp_path / "vocab.txt").is_file()
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
    assert kbz.BertTextClassifier.from_preset(tmp_path).preprocessor.tokenizer.lowercase is False
    others = {"do_lower_case": True, "strip_accents": True, "tokenize_chinese_chars": False, "pad_token": "[PAD]"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name, **others}))
    ours = kbz.BertTextClassifier.from_preset(tmp_path).preprocessor
    expected = transformers.AutoTokenizer.from_pretrained(tmp_path)(HARD_TEXTS, padding=True, return_tensors="np")
    np.testing.assert_array_equal(ours(HARD_TEXTS)["token_ids"], expected["input_ids"])
    assert ours.tokenizer.get_config() | {"vocabulary": []} == {
        "vocabulary": [], "lowercase": False, "strip_accents": None, "split_chinese": True,
    }  # fmt: skip
