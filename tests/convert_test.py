"""Converting to another layout and back gives the same bytes; TensorFlow and transformers open what was written."""

import json
import logging
import shutil

import numpy as np
import pytest

import keras_bert_zoo as kbz
from keras_bert_zoo import cli
from keras_bert_zoo.checkpoints import bundle, bundle_writer
from keras_bert_zoo.checkpoints.crc32c import crc32c
from keras_bert_zoo.presets import load_preset
from tests import layouts
from tests.helpers import TEXTS, TINY, WORDS, left_to_torch, randomise, short_error
from tests.theirs import saved_model

if left_to_torch():
    pytest.skip("files know no backend: once is enough", allow_module_level=True)


def files(directory):
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


def arrays(preset):
    return dict(load_preset(preset).arrays)


def check_arrays(found, expected):
    assert set(found) == set(expected)
    for name, array in expected.items():
        assert found[name].tobytes() == np.ascontiguousarray(array, "float32").tobytes(), name


def preprocessor(**options):
    return kbz.BertPreprocessor(kbz.BertTokenizer(WORDS, **options), sequence_length=12)


# --- TensorFlow's files


@pytest.mark.parametrize(
    "data, expected",
    [  # RFC 3720, B.4.
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (b"", 0),
        (b"123456789", 0xE3069283),
    ],
)
def test_checksums(data, expected):
    assert crc32c(np.frombuffer(data, "u1")) == expected


@pytest.mark.parametrize("size", [4096 * 4, 3 * 4096 * 4 + 4 * 5 + 3])
def test_checksums_of_long_arrays(size):
    data = np.random.default_rng(0).integers(0, 256, size).astype("u1")
    register = 0xFFFFFFFF
    for byte in data.tolist():  # By the definition, a bit at a time.
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    assert crc32c(data) == register ^ 0xFFFFFFFF


def test_tensorflow_reads_what_is_written(tmp_path):
    tf = pytest.importorskip("tensorflow")
    rng = np.random.default_rng(0)
    shapes = {"b/c": (40, 300), "a": (3,), "ab": (2, 3, 4), "b": (1,), "é": (128, 129)}
    tensors = {name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()}
    tensors |= {f"layer_{i}/kernel": np.full((1, 2), i, "float32") for i in range(300)}
    bundle_writer.write(tmp_path / "model.ckpt", tensors)
    check_arrays({name: tensor.read() for name, tensor in bundle.read(tmp_path / "model.ckpt").items()}, tensors)
    assert dict(tf.train.list_variables(str(tmp_path / "model.ckpt"))) == {n: [*t.shape] for n, t in tensors.items()}
    reader = tf.train.load_checkpoint(str(tmp_path / "model.ckpt"))
    check_arrays({name: reader.get_tensor(name) for name in tensors}, tensors)
    data = tmp_path / "model.ckpt.data-00000-of-00001"
    content = bytearray(data.read_bytes())
    content[-1] ^= 1
    data.write_bytes(content)
    with pytest.raises(tf.errors.OpError, match="Checksum does not match"):
        tf.train.load_checkpoint(str(tmp_path / "model.ckpt")).get_tensor("é")


# --- google-research/bert


MODELS = {
    "BertModel": "BertBackbone",
    "BertForSequenceClassification": "BertTextClassifier",
    "BertForQuestionAnswering": "BertQuestionAnswerer",
    "BertForPreTraining": "BertPretrainer",
    "BertForMaskedLM": "BertMaskedLM",
    "BertForNextSentencePrediction": "BertNextSentencePredictor",
}


@pytest.mark.parametrize("name", MODELS)
def test_transformers_to_tensorflow1_and_back(name, tmp_path):
    tf = pytest.importorskip("tensorflow")
    torch = pytest.importorskip("torch")
    theirs = saved_model(name, tmp_path / "theirs")
    report = kbz.convert_preset(tmp_path / "theirs", tmp_path / "tf1", to="tensorflow1")
    assert (report.class_name, report.unused) == (MODELS[name], ())
    assert set(report.loaded) == set(arrays(tmp_path / "theirs"))

    # Compare what TensorFlow writes under the names of google-research/bert with what it reads from our file.
    layouts.write_tensorflow1(theirs, tmp_path / "expected")
    expected, ours = (tf.train.load_checkpoint(str(tmp_path / i / "bert_model.ckpt")) for i in ("expected", "tf1"))
    names = [name for name in expected.get_variable_to_shape_map() if "adam" not in name and name != "global_step"]
    assert set(ours.get_variable_to_shape_map()) == set(names)
    check_arrays({n: ours.get_tensor(n) for n in names}, {n: expected.get_tensor(n) for n in names})
    config = json.loads((tmp_path / "tf1" / "bert_config.json").read_text())
    assert json.loads((tmp_path / "expected" / "bert_config.json").read_text()).items() <= config.items()

    assert kbz.convert_preset(tmp_path / "tf1", tmp_path / "back").class_name == MODELS[name]
    again = type(theirs).from_pretrained(tmp_path / "back")
    for key, value in theirs.state_dict().items():
        assert torch.equal(again.state_dict()[key], value), key


def models():
    """Return models of ours with all that a preset may say beside the weights."""
    backbone = kbz.BertBackbone(**TINY, dropout=0.2, activation="relu", num_segments=3)
    squad = kbz.BertQuestionPreprocessor(kbz.BertTokenizer(WORDS, lowercase=False), 12, stride=3, question_length=4)
    names = ["no", 'y"es', "mäßig"]
    return {
        "classifier": kbz.BertTextClassifier(backbone, class_names=names, dropout=0.3, preprocessor=preprocessor()),
        "labels": kbz.BertTextClassifier(backbone, class_names=["LABEL_0", "LABEL_1"], preprocessor=preprocessor()),
        "unnamed": kbz.BertTextClassifier(backbone, 2, preprocessor=preprocessor(lowercase=False)),
        "spans": kbz.BertQuestionAnswerer(backbone, null_threshold=-1.5, preprocessor=squad),
        "pretrainer": kbz.BertPretrainer(backbone, preprocessor()),
        "backbone": kbz.BertBackbone(**TINY, pooler=False),
    }


@pytest.mark.parametrize("name", ["classifier", "labels", "unnamed", "spans", "pretrainer", "backbone"])
def test_ours_to_tensorflow1_and_back_is_the_same_in_every_byte(name, tmp_path):
    randomise(models()[name]).save_to_preset(tmp_path / "ours")
    kbz.convert_preset(tmp_path / "ours", tmp_path / "tf1", to="tensorflow1")
    kbz.convert_preset(tmp_path / "tf1", tmp_path / "back")
    kbz.convert_preset(tmp_path / "back", tmp_path / "tf1 again", to="tensorflow1")
    assert files(tmp_path / "back") == files(tmp_path / "ours")
    assert files(tmp_path / "tf1 again") == files(tmp_path / "tf1")


@pytest.mark.parametrize(
    "build, words",
    [
        (lambda b: kbz.BertTokenClassifier(b, 2), "`class` must be one of ('BertTextClassifier',"),
        (lambda b: kbz.BertTextClassifier(b, 2, multi_label=True), "`multi_label` must be False"),
        (lambda b: kbz.BertBackbone(**TINY, causal=True), "`causal` must be False"),
        (lambda b: kbz.BertBackbone(**TINY, activation="gelu_new"), "`activation` must be one of ('gelu', 'relu',"),
        (lambda b: kbz.BertBackbone(**TINY, layer_norm_epsilon=1e-5), "`layer_norm_epsilon` must be 1e-12"),
        (
            lambda b: kbz.BertTextClassifier(b, 2, preprocessor=preprocessor(strip_accents=False)),
            "`strip_accents` must be one of (None, True)",
        ),
        (
            lambda b: kbz.BertTextClassifier(b, 2, preprocessor=preprocessor(split_chinese=False)),
            "`split_chinese` must be True",
        ),
    ],
)
def test_what_tensorflow1_cannot_hold_is_refused_by_name(backbone, build, words, tmp_path):
    build(backbone).save_to_preset(tmp_path / "ours")
    with short_error(f"google-research/bert's layout: {words}", ". Received: "):
        kbz.convert_preset(tmp_path / "ours", tmp_path / "tf1", to="tensorflow1")
    assert not (tmp_path / "tf1").exists()


def test_a_tensorflow1_config_that_states_other_layers_is_refused(backbone, tmp_path):
    backbone.save_to_preset(tmp_path / "ours")
    kbz.convert_preset(tmp_path / "ours", tmp_path / "tf1", to="tensorflow1")
    path = tmp_path / "tf1" / "bert_config.json"
    for layers in (1, 3):
        path.write_text(json.dumps({**json.loads(path.read_text()), "num_hidden_layers": layers}))
        with pytest.raises(ValueError, match=f"`num_hidden_layers` must be the number.*have, 2. Received: {layers}"):
            kbz.BertBackbone.from_preset(tmp_path / "tf1")


# --- Other sources


@pytest.mark.parametrize("kind", ["BertBackbone", "BertTextClassifier", "BertTextEmbedder", "BertMaskedLM"])
def test_keras_hub_to_transformers(kind, tmp_path):
    models = pytest.importorskip("keras_hub").models
    sizes = {name: size for name, size in TINY.items() if name != "vocabulary_size"}
    theirs = models.BertBackbone(vocabulary_size=40, num_segments=2, **sizes)
    if kind != "BertBackbone":
        options = {"num_classes": 3} if kind == "BertTextClassifier" else {}
        theirs = getattr(models, kind)(theirs, **options)
    randomise(theirs).save_to_preset(tmp_path / "theirs")
    report = kbz.convert_preset(tmp_path / "theirs", tmp_path / "ours")
    assert (report.class_name, report.unused) == (kind, ())
    check_arrays(arrays(tmp_path / "ours"), arrays(tmp_path / "theirs"))
    before, after = load_preset(tmp_path / "theirs"), load_preset(tmp_path / "ours")
    assert after.backbone == before.backbone
    ours, again = (getattr(kbz, kind).from_preset(tmp_path / name) for name in ("theirs", "ours"))
    if kind != "BertBackbone":
        assert again.head_config() == ours.head_config()


def test_weights_of_other_heads_are_left_out_and_said(tmp_path):
    """A classifier that was trained from a whole checkpoint of pre-training may have them."""
    saved_model("BertForPreTraining", tmp_path / "theirs")
    kbz.convert_preset(tmp_path / "theirs", tmp_path / "tf1", to="tensorflow1")
    prefix = tmp_path / "tf1" / "bert_model.ckpt"
    tensors = {name: tensor.read() for name, tensor in bundle.read(prefix).items()}
    head = {"output_weights": np.ones((3, 24), "float32"), "output_bias": np.ones(3, "float32")}
    bundle_writer.write(prefix, {**tensors, **head, "cls/other": np.ones(2, "float32")})
    report = kbz.convert_preset(tmp_path / "tf1", tmp_path / "ours")
    assert (report.class_name, len(report.loaded)) == ("BertTextClassifier", 33)
    assert report.unused[-1] == "cls/other"
    assert {name.split("/")[0] for name in report.unused} == {"mlm_head", "mlm_bias", "nsp", "cls"}
    assert set(arrays(tmp_path / "ours")) == set(report.loaded)
    classifier = kbz.BertTextClassifier.from_preset(tmp_path / "ours")
    assert (classifier.load_report.unused, classifier.dropout) == ((), 0.1)  # google-research/bert, run_classifier.py.


def test_sentence_transformers_keep_their_modules(backbone, tmp_path, caplog):
    embedder = kbz.BertTextEmbedder(backbone, "max", normalize=True, preprocessor=preprocessor())
    randomise(embedder).save_to_preset(tmp_path / "theirs")
    (tmp_path / "theirs" / "preset.json").unlink()
    prompts = {"prompts": {"query": "query: ", "document": ""}, "default_prompt_name": None}
    (tmp_path / "theirs" / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    caplog.set_level(logging.WARNING, "keras_bert_zoo")
    assert kbz.convert_preset(tmp_path / "theirs", tmp_path / "ours").class_name == "BertTextEmbedder"
    assert "prompts are not kept; write them before the texts yourself: query" in caplog.text
    again = kbz.BertTextEmbedder.from_preset(tmp_path / "ours")
    np.testing.assert_array_equal(again.embed(TEXTS), embedder.embed(TEXTS))
    assert again.head_config() == {"pooling": "max", "normalize": True}


def test_the_released_models_keep_both_heads_of_pretraining(tmp_path):
    """They call themselves BertForMaskedLM."""
    theirs = saved_model("BertForPreTraining", tmp_path / "theirs")
    path = tmp_path / "theirs" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "architectures": ["BertForMaskedLM"]}))
    report = kbz.convert_preset(tmp_path / "theirs", tmp_path / "ours")
    assert (report.class_name, report.unused) == ("BertPretrainer", ())
    assert kbz.BertPretrainer.from_preset(tmp_path / "theirs").load_report.fresh == ()
    found = kbz.BertMaskedLM.from_preset(tmp_path / "theirs").load_report
    assert found.fresh == ()
    assert set(found.unused) == {"nsp/kernel", "nsp/bias", "pooler/kernel", "pooler/bias"}
    assert type(theirs).from_pretrained(tmp_path / "ours").config.architectures == ["BertForPreTraining"]


def test_the_console(backbone, tmp_path, capsys):
    from safetensors.numpy import load_file, save_file

    def run(*arguments):
        status = cli.main(["convert", *map(str, arguments)])
        printed = capsys.readouterr()
        return status, printed.out + printed.err

    kbz.BertTextClassifier(backbone, 3).save_to_preset(tmp_path / "ours")
    weights = tmp_path / "ours" / "model.safetensors"
    tensors = load_file(weights)
    save_file({**tensors, "other.weight": np.ones(2, "float32")}, weights)
    status, printed = run(tmp_path / "ours", tmp_path / "out", "--license", "mit")
    assert (status, printed) == (0, f"{tmp_path / 'out'}: BertTextClassifier, 33 weights\nleft out: other.weight\n")
    assert 'license: "mit"\n' in (tmp_path / "out" / "README.md").read_text()
    for arguments, words in (
        (("out",), "`path` must be a new or empty directory. Received: path="),
        (("new", "--license", "my own\nwords"), "`license` must be one of the hub's names"),
        (("new", "--to", "tensorflow1", "--license", "mit"), "`license` is for the model card"),
    ):
        status, printed = run(tmp_path / "ours", tmp_path / arguments[0], *arguments[1:])
        assert status == 2
        assert words in printed
    del tensors["classifier.weight"]
    save_file(tensors, weights)
    status, printed = run(tmp_path / "ours", tmp_path / "new")
    assert status == 2
    assert "every weight of a BertTextClassifier. Received: one without classifier/kernel" in printed
    assert not (tmp_path / "new").exists()
    (tmp_path / "empty").mkdir()
    save_file(load_file(tmp_path / "out" / "model.safetensors"), weights)
    assert run(tmp_path / "ours", tmp_path / "empty", "--to", "tensorflow1")[0] == 0
    with pytest.raises(ValueError, match="`to` must be one of"):
        kbz.convert_preset(tmp_path / "ours", tmp_path / "new", to="keras")
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "out").write_text("a file")
    assert run(tmp_path / "ours", tmp_path / "out")[0] == 2
