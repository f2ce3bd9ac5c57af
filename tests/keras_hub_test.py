"""Directories that keras-hub wrote, compared with keras-hub."""

import json
import logging
import shutil

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from tests.helpers import TEXTS, WORDS, numpy, random_inputs, randomise, short_error

if keras.backend.backend() != "torch":
    pytest.skip("files know no backend: once is enough", allow_module_level=True)

keras_hub = pytest.importorskip("keras_hub")

SIZES = {"num_layers": 12, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16, "max_sequence_length": 16}


def build(kind, **options):
    backbone = keras_hub.models.BertBackbone(vocabulary_size=40, num_segments=2, dropout=0.2, **SIZES)
    return randomise(backbone if kind == "BertBackbone" else getattr(keras_hub.models, kind)(backbone, **options))


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    tokenizer = keras_hub.models.BertTokenizer(WORDS, lowercase=True)
    preprocessor = keras_hub.models.BertTextClassifierPreprocessor(tokenizer, sequence_length=12)
    model = build("BertTextClassifier", num_classes=3, dropout=0.3, preprocessor=preprocessor)
    directory = tmp_path_factory.mktemp("hub") / "classifier"
    model.save_to_preset(directory)
    return model, directory


def test_backbone(tmp_path):
    theirs = build("BertBackbone")
    theirs.save_to_preset(tmp_path)
    ours = kbz.BertBackbone.from_preset(tmp_path)
    assert ours.architecture["activation"] == "gelu_new"
    assert ours.architecture["dropout"] == ours.architecture["attention_dropout"] == 0.2
    assert ours.load_report.fresh == ours.load_report.unused == ()
    inputs = random_inputs()
    for name, expected in theirs(inputs).items():
        np.testing.assert_allclose(numpy(ours(inputs)[name]), numpy(expected), atol=1e-5)


def test_classifier_with_its_texts(classifier, tmp_path):
    theirs, directory = classifier
    ours = kbz.BertTextClassifier.from_preset(directory)
    assert (ours.num_classes, ours.dropout) == (3, 0.3)
    assert ours.load_report.fresh == ours.load_report.unused == ()
    assert ours.preprocessor.sequence_length == 12
    np.testing.assert_allclose(ours.predict(TEXTS, verbose=0), theirs.predict(TEXTS, verbose=0), atol=1e-5)
    ours.save_to_preset(tmp_path / "ours")
    again = kbz.BertTextClassifier.from_preset(tmp_path / "ours")
    np.testing.assert_allclose(again.predict(TEXTS, verbose=0), ours.predict(TEXTS, verbose=0), atol=1e-6)


def test_a_softmax_head_gives_its_logits(classifier, tmp_path, caplog):
    theirs = build("BertTextClassifier", num_classes=3, activation="softmax")
    theirs.save_to_preset(tmp_path)
    caplog.set_level(logging.WARNING, "keras_bert_zoo")
    ours = kbz.BertTextClassifier.from_preset(tmp_path)
    assert "our model returns logits" in caplog.text
    expected = numpy(theirs(random_inputs()))
    np.testing.assert_allclose(numpy(keras.ops.softmax(ours(random_inputs()))), expected, atol=1e-5)
    assert not np.allclose(numpy(ours(random_inputs())), expected, atol=0.1)
    assert kbz.BertBackbone.from_preset(tmp_path).load_report.unused == ("classifier/kernel", "classifier/bias")
    assert kbz.BertTextClassifier.from_preset(tmp_path, multi_label=True).load_report.fresh


def test_a_linear_head_may_be_for_several_classes(classifier):
    """Its file does not say."""
    ours = kbz.BertTextClassifier.from_preset(classifier[1], multi_label=True)
    assert (ours.multi_label, ours.load_report.fresh) == (True, ())


def test_a_classifier_under_the_name_that_keras_nlp_gave_it(classifier, tmp_path):
    shutil.copytree(classifier[1], tmp_path / "preset")
    path = tmp_path / "preset" / "task.json"
    path.write_text(path.read_text().replace("keras_hub>BertTextClassifier", "keras_nlp>BertClassifier"))
    assert kbz.BertTextClassifier.from_preset(tmp_path / "preset").load_report.fresh == ()


@pytest.mark.parametrize("pooling, normalize", [("mean", True), ("max", False)])
def test_embedder(pooling, normalize, tmp_path):
    theirs = build("BertTextEmbedder", pooling_mode=pooling, normalize=normalize)
    theirs.save_to_preset(tmp_path)
    ours = kbz.BertTextEmbedder.from_preset(tmp_path)
    np.testing.assert_allclose(numpy(ours(random_inputs())), numpy(theirs(random_inputs())), atol=1e-5)


def test_what_a_file_leaves_out_is_keras_hub_s(classifier, tmp_path):
    def without(file, *names):
        path = tmp_path / file
        document = json.loads(path.read_text())
        document["config"] = {name: value for name, value in document["config"].items() if name not in names}
        path.write_text(json.dumps(document))

    build("BertTextEmbedder").save_to_preset(tmp_path)
    without("task.json", "pooling_mode", "normalize")
    assert kbz.BertTextEmbedder.from_preset(tmp_path).head_config() == {"pooling": "mean", "normalize": True}
    shutil.copytree(classifier[1], tmp_path, dirs_exist_ok=True)
    without("tokenizer.json", "strip_accents")
    assert kbz.BertTextClassifier.from_preset(tmp_path).preprocessor.tokenizer.strip_accents is False


def test_masked_lm_up_to_what_its_head_has_of_its_own(tmp_path, caplog):
    theirs = build("BertMaskedLM")
    theirs.save_to_preset(tmp_path)
    caplog.set_level(logging.WARNING, "keras_bert_zoo")
    ours = kbz.BertMaskedLM.from_preset(tmp_path)
    assert "the head is computed as BERT's" in caplog.text
    inputs = {**random_inputs(), "mask_positions": np.array([[1, 2], [3, 4], [0, 1]], "int32")}
    head = theirs.get_layer("mlm_head")
    assert (head.intermediate_activation, head.layer_norm_epsilon) == (keras.activations.gelu, 1e-5)
    np.testing.assert_allclose(numpy(ours(inputs)["mlm"]), numpy(theirs(inputs)), atol=5e-3)
    assert ours.load_report.fresh == ()


def test_half_precision(tmp_path):
    theirs = build("BertBackbone")
    expected = {weight.path: numpy(weight) for weight in theirs.weights}
    halved = keras_hub.models.BertBackbone(vocabulary_size=40, num_segments=2, dtype="bfloat16", **SIZES)
    halved.set_weights(list(expected.values()))
    halved.save_to_preset(tmp_path)
    ours = kbz.BertBackbone.from_preset(tmp_path).embeddings.token_embedding.embeddings
    np.testing.assert_allclose(numpy(ours), numpy(theirs.token_embedding.embeddings), rtol=2**-8)
    assert not np.array_equal(numpy(ours), numpy(theirs.token_embedding.embeddings))


@pytest.mark.parametrize(
    "file, place, value, words",
    [
        ("config.json", ("registered_name",), "keras_hub>RobertaBackbone", "must be a BertBackbone."),
        ("config.json", ("config", "num_layers"), None, "Received: one without num_layers"),
        ("config.json", ("config", "num_layers"), "12", "`num_layers` must be of type int. Received: '12'"),
        ("config.json", ("config", "num_layers"), 11, "the number of layers that the weights have, 12. Received: 11"),
        ("config.json", ("config", "num_heads"), 4, "must have num_heads=4. Received: shape ("),
        ("task.json", ("config", "activation"), "sigmoid", "`activation` must be linear or softmax."),
        ("tokenizer.json", ("config", "suffix_indicator"), "@@", "`suffix_indicator` must be '##'. Received: '@@'"),
        ("tokenizer.json", ("config", "split"), False, "`split` must be True. Received: False"),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_refused_by_name(classifier, file, place, value, words, tmp_path):
    shutil.copytree(classifier[1], tmp_path / "preset")
    path = tmp_path / "preset" / file
    document = json.loads(path.read_text())
    part = document
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    path.write_text(json.dumps(document))
    with short_error(words):
        kbz.BertTextClassifier.from_preset(tmp_path / "preset")


def test_files_that_lie(classifier, tmp_path):
    import h5py

    def refused(words):
        with short_error(words, longest=400):
            kbz.BertTextClassifier.from_preset(tmp_path / "preset")

    shutil.copytree(classifier[1], tmp_path / "preset")
    weights = tmp_path / "preset" / "model.weights.h5"
    (tmp_path / "secret.h5").write_bytes(weights.read_bytes())
    place = "layers/dense/vars/0"
    with h5py.File(weights, "a") as file:
        del file[place]
        file[place] = h5py.ExternalLink(str(tmp_path / "secret.h5"), place)
    refused("one without pooler/kernel")
    with h5py.File(weights, "a") as file:
        del file[place]
        file.create_dataset(place, (8, 8), "float32", external=[(str(tmp_path / "secret.h5"), 0, 256)])
    refused("kept in another file")
    with h5py.File(weights, "a") as file:
        del file[place]
        file.create_dataset(place, (1 << 20, 1 << 20), "float32", chunks=(8, 8), compression="gzip")
    refused("must hold the values of its tensors")
    for kind in (np.dtype(("float32", (1 << 24,))), np.dtype("S1000000000")):
        with h5py.File(weights, "a") as file:
            del file[place]
            file.create_dataset(place, (8,), kind)
        refused("must hold arrays of numbers. Received: 'layers/dense/vars/0'")
    with h5py.File(weights, "a") as file:
        del file[place]
        file[place] = h5py.Empty("float32")
    refused("must hold arrays of numbers")
    weights.write_bytes(weights.read_bytes()[:2000])
    refused("must be an HDF5 file")
    weights.unlink()
    refused("must hold model.weights.h5; pass load_weights=False to do without")
    assert kbz.BertTextClassifier.from_preset(tmp_path / "preset", load_weights=False).num_classes == 3
