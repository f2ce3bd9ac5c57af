"""The same presets on Keras' OpenVINO backend, which predicts but does not train.

A separate process reads them: `python openvino_test.py FOLDER` predicts with each and writes the predictions.
"""

import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from tests.helpers import TEXTS, TINY, WORDS, randomise

pytestmark = pytest.mark.skipif(keras.backend.backend() != "torch", reason="One backend to compare with is enough.")

SENTENCES = [text.split() for text in TEXTS]


def spans(model):
    found = model.find_answers((TEXTS[:2], [TEXTS[2], TEXTS[3]]))
    return np.array([[one.start, one.end, one.probability] for each in found for one in each.n_best[:3]])


def masks(model):
    found = model.fill_mask(["a [MASK] film", "the [MASK] was [MASK]"], top_k=3)
    vocabulary = model.preprocessor.tokenizer.vocabulary
    return np.array([[vocabulary.index(token), p] for text in found for mask in text for token, p in mask])


TASKS = {
    "classifier": (kbz.BertTextClassifier, {"num_classes": 3}, lambda model: model.predict(TEXTS, verbose=0)),
    "pairs": (kbz.BertTextClassifier, {"num_classes": 2}, lambda model: model.predict((TEXTS, TEXTS[::-1]), verbose=0)),
    "regressor": (kbz.BertTextRegressor, {}, lambda model: model.predict(TEXTS, verbose=0)),
    "next_sentence": (kbz.BertNextSentencePredictor, {}, lambda model: model.predict((TEXTS, TEXTS), verbose=0)),
    "tags": (
        kbz.BertTokenClassifier,
        {"class_names": ["B-PER", "O"]},
        lambda model: np.concatenate(model.predict(SENTENCES, verbose=0)),
    ),
    "spans": (kbz.BertQuestionAnswerer, {}, spans),
    "choices": (
        kbz.BertMultipleChoice,
        {},
        lambda model: model.predict((TEXTS[:2], [TEXTS[2:4], TEXTS[4:6]]), verbose=0),
    ),
    "embeddings": (kbz.BertTextEmbedder, {}, lambda model: model.embed(TEXTS)),
    "masks": (kbz.BertMaskedLM, {}, masks),
}


def build(kind, options):
    lengths = {
        "sequence_length": 16,
        **({"question_length": 6, "stride": 4} if kind is kbz.BertQuestionAnswerer else {}),
    }
    preprocessor = kind.preprocessor_class(kbz.BertTokenizer(WORDS), **lengths)
    backbone = kbz.BertBackbone(**{**TINY, "vocabulary_size": len(WORDS)})
    return randomise(kind(backbone, preprocessor=preprocessor, **options))


def test_each_task_predicts_what_it_does_elsewhere(tmp_path):
    pytest.importorskip("openvino")
    expected = {}
    for name, (kind, options, predict) in TASKS.items():
        model = build(kind, options)
        model.save_to_preset(tmp_path / name)
        expected[name] = predict(model)
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, str(tmp_path)],
        env={**os.environ, "KERAS_BACKEND": "openvino", "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stderr[-2000:]
    found = np.load(tmp_path / "found.npz")
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, atol=2e-5, rtol=1e-4, err_msg=name)
    assert "refused: " in done.stdout
    assert "openvino" in done.stdout.lower()


def predict_all(folder: Path) -> None:
    import openvino

    compile_model = openvino.compile_model
    # On a processor with bfloat16, OpenVINO computes in bfloat16 unless told otherwise.
    openvino.compile_model = lambda model, device: compile_model(model, device, {"INFERENCE_PRECISION_HINT": "f32"})
    models = {name: kind.from_preset(folder / name) for name, (kind, _, _) in TASKS.items()}
    np.savez(folder / "found.npz", **{name: TASKS[name][2](model) for name, model in models.items()})
    try:
        models["classifier"].fit(TEXTS, [0, 1, 2] * 2, verbose=0)
    except NotImplementedError as error:
        print(f"refused: {error}")


if __name__ == "__main__":
    predict_all(Path(sys.argv[1]))
