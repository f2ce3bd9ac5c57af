"""Exported models in their own runtimes, and quantized models in files, against what Keras computes."""

import importlib.util
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from keras_bert_zoo.export import write_model
from keras_bert_zoo.export_formats import _NO_LOOPS, FORMATS
from keras_bert_zoo.layers.activations import gelu_of_erfc, gelu_of_products, gelu_spelled, get_activation
from tests.helpers import LABELS, SHALLOW, TEXTS, TINY, WORDS, numpy, random_inputs, randomise, slow_on

BACKEND = keras.backend.backend()
SUFFIXES = {"tf_saved_model": "", "onnx": ".onnx", "openvino": ".xml", "litert": ".tflite", "torch": ".pt2"}
TOLERANCE = 2e-5  # Below what the tanh form of GELU would change.
FIRST = {"tensorflow": "onnx", "jax": "tf_saved_model", "torch": "torch"}[BACKEND]
HERE = [
    pytest.param(name, marks=() if name == FIRST else pytest.mark.slow)
    for name, known in FORMATS.items()
    if BACKEND in known.needs
]
SECONDS = ["very , very slow", "Fine film [MASK] !", "", "a long plot", "é unknown wörd", "good " * 30]

pytestmark = [
    pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method"),  # Keras says so of each Dropout
    pytest.mark.filterwarnings("ignore::UserWarning:(?!keras_bert_zoo|tests)"),  # The exporters', about themselves.
]


def tiny(kind, activation="gelu", **arguments):
    model = randomise(kind(kbz.BertBackbone(**SHALLOW, activation=activation), **arguments))
    kernel = model.backbone.get_layer("encoder_layer_0").intermediate.kernel
    kernel.assign(kernel * 8)  # To where the exact GELU and its tanh form differ.
    return model


def with_text(kind, **arguments):
    return tiny(kind, preprocessor=kbz.BertPreprocessor(kbz.BertTokenizer(WORDS), sequence_length=16), **arguments)


def named(outputs):
    outputs = outputs if isinstance(outputs, dict) else {"output_0": outputs}
    return {name: numpy(output) for name, output in outputs.items()}


def inputs_of(model, batch, length):
    """Padding in all rows but the first; two choices a question; three masked positions a text, two of them equal."""
    if isinstance(model, kbz.BertMultipleChoice):
        rows = random_inputs(2 * batch, length, seed=batch)
        return {name: array.reshape(batch, 2, length) for name, array in rows.items()}
    inputs = random_inputs(batch, length, seed=batch)
    if "mask_positions" in model.input:
        inputs["mask_positions"] = np.tile(np.array([[1, 0, 1]], "int32"), (batch, 1))
    return inputs


def runtime(format, path):
    """Open the file in its own runtime and return a function from NumPy inputs to NumPy outputs, by name."""
    if format == "tf_saved_model":
        tf = pytest.importorskip("tensorflow")
        loaded = tf.saved_model.load(path)
        names = loaded.signatures.keys()
        run = loaded.signatures["serve_tokens" if "serve_tokens" in names else "serving_default"]
        return lambda inputs: named(run(**{name: tf.constant(array) for name, array in inputs.items()}))
    if format == "onnx":
        session = pytest.importorskip("onnxruntime").InferenceSession(path)
        names = [output.name for output in session.get_outputs()]
        return lambda inputs: dict(zip(names, session.run(None, inputs), strict=True))
    if format == "openvino":
        openvino = pytest.importorskip("openvino")
        compiled = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        return lambda inputs: {output.get_any_name(): array for output, array in compiled(inputs).items()}
    if format == "litert":
        interpreter = pytest.importorskip("ai_edge_litert.interpreter").Interpreter(model_path=str(path))
        run = interpreter.get_signature_runner("serving_default")
        return lambda inputs: run(**inputs)
    import torch

    module = torch.export.load(path).module()
    return lambda inputs: named(module({name: torch.tensor(array) for name, array in inputs.items()}))


def check_export(model, format, path, **options):
    """Check any batch and length, with padding in it; if the format has one length, that of the preprocessor."""
    fixed = BACKEND in FORMATS[format].fixed_length
    if fixed and getattr(model, "preprocessor", None) is None:
        options.setdefault("sequence_length", 16)
    for module in FORMATS[format].needs[BACKEND]:
        pytest.importorskip(module, reason=f"{format} needs {module}")
    path = path.with_suffix(SUFFIXES[format])
    model.export(path, format, **options)
    files = {path.with_suffix(suffix).name for suffix in FORMATS[format].suffixes or ("",)}
    if (format, BACKEND) == ("onnx", "jax"):  # jax2onnx alone decides which weights are large.
        files |= {file.name for file in path.parent.glob(f"{path.name}.data")}
    assert {file.name for file in path.parent.iterdir()} == files
    run = runtime(format, path)
    for shape in ((3, 16), (1, 16)) if fixed else ((3, 9), (1, 5), (4, 16)):
        inputs = inputs_of(model, *shape)
        expected, outputs = named(model(inputs)), run(inputs)
        assert outputs.keys() == expected.keys()
        for name in expected:
            np.testing.assert_allclose(
                outputs[name], expected[name], atol=TOLERANCE, rtol=1e-5, err_msg=f"{name} {shape}"
            )


@pytest.mark.parametrize("format", HERE)
def test_runtimes(format, tmp_path):
    check_export(with_text(kbz.BertTextClassifier, num_classes=3), format, tmp_path / "model")


def test_the_tolerance_of_exports_tells_the_exact_gelu_from_its_tanh_form():
    exact, approximate = (with_text(kbz.BertTextClassifier, activation=a, num_classes=3) for a in ("gelu", "gelu_new"))
    inputs = inputs_of(exact, 3, 16)
    apart = np.abs(numpy(exact(inputs)) - numpy(approximate(inputs))).max()
    assert apart > 3 * TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize(
    "build",
    [
        lambda: with_text(kbz.BertTextRegressor),
        lambda: with_text(kbz.BertTextEmbedder),
        lambda: with_text(kbz.BertNextSentencePredictor),
        lambda: tiny(kbz.BertTokenClassifier, num_classes=3),
        lambda: tiny(kbz.BertQuestionAnswerer),
        lambda: tiny(kbz.BertMultipleChoice),
        lambda: with_text(kbz.BertMaskedLM),
        lambda: tiny(kbz.BertPretrainer),
        lambda: randomise(kbz.BertBackbone(**{**TINY, "causal": True})),
        lambda: kbz.ensemble([with_text(kbz.BertTextClassifier, num_classes=3) for _ in range(2)]),
    ],
    ids=["number", "vector", "next", "tags", "answer", "choice", "mlm", "pretrainer", "backbone", "ensemble"],
)
@pytest.mark.parametrize("format", [name for name, known in FORMATS.items() if BACKEND in known.needs])
def test_every_task(build, format, tmp_path):
    model = build()
    lost = {kbz.BertMultipleChoice: "choices", kbz.BertPretrainer: "both tasks of pre-training"}.get(type(model))
    if BACKEND == "jax" and format in ("onnx", "openvino") and lost:
        for module in FORMATS[format].needs[BACKEND]:
            pytest.importorskip(module, reason=f"{format} needs {module}")
        message = f'`format="{format}"` cannot export {lost} on this backend, because jax2onnx'
        with pytest.raises(ValueError, match=message):
            model.export((tmp_path / "model").with_suffix(SUFFIXES[format]), format)
        assert not list(tmp_path.iterdir())
        return
    check_export(model, format, tmp_path / "model")


@pytest.mark.slow
@pytest.mark.parametrize(
    "build",
    [
        lambda: tiny(kbz.BertTextClassifier, num_classes=3, pooling="bilstm"),
        lambda: tiny(kbz.BertFeatureTokenClassifier, num_classes=3, hidden_layers=[0, -1], units=4, num_layers=1),
    ],
    ids=["bilstm", "features"],
)
@pytest.mark.parametrize("format", HERE)
def test_loops_over_tokens(build, format, tmp_path, monkeypatch):
    model = build()
    if (format, BACKEND) not in _NO_LOOPS:
        check_export(model, format, tmp_path / "model")
        return
    monkeypatch.setattr("importlib.util.find_spec", lambda module: object())  # Whether it is there or not.
    reason = f"cannot export a loop over tokens on this backend, because {_NO_LOOPS[format, BACKEND]}; use "
    why = re.escape(f'`format="{format}"` {reason}"tf_saved_model"')
    with pytest.raises(ValueError, match=why):
        model.export((tmp_path / "model").with_suffix(SUFFIXES[format]), format)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.skipif(BACKEND != "torch", reason="Keras' own export to ONNX, which fails at shapes on PyTorch")
@pytest.mark.filterwarnings("ignore")  # Of PyTorch, which traces.
def test_a_users_own_model_over_a_backbone(tmp_path):
    pytest.importorskip("onnxscript")
    backbone = kbz.BertBackbone(**SHALLOW)
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in backbone.input}
    model = keras.Model(inputs, keras.layers.Dense(2)(backbone(inputs)["pooled_output"]))
    arrays = random_inputs()
    expected = numpy(model(arrays))
    model.export(tmp_path / "model.onnx", "onnx", verbose=False)
    (outputs,) = runtime("onnx", tmp_path / "model.onnx")(arrays).values()
    np.testing.assert_allclose(outputs, expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(BACKEND != "torch", reason="PyTorch's exporter has weights of more than 1.5 GiB in a second file")
def test_large_weights_have_a_file_of_their_own(tmp_path, monkeypatch):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    monkeypatch.setattr("torch.onnx._internal.exporter._onnx_program._LARGE_MODEL_THRESHOLD", 0)
    model, path = with_text(kbz.BertTextClassifier, num_classes=3), tmp_path / "model.onnx"
    replace, failures, order = os.replace, [OSError("disk gone")], []

    def record(source, target):
        if Path(target).parent == tmp_path:
            if failures:
                raise failures.pop()
            order.append(Path(target).name)
        replace(source, target)

    monkeypatch.setattr(os, "replace", record)
    (tmp_path / f".model.onnx.export.part{2**30}" / "new").mkdir(parents=True)  # Left by a process that was killed.
    with pytest.raises(OSError, match="disk gone"):
        model.export(path, "onnx")
    assert not list(tmp_path.iterdir())
    model.export(path, "onnx")
    assert order == ["model.onnx.data", "model.onnx"]  # The model is never there without its weights.
    assert {file.name for file in tmp_path.iterdir()} == set(order)
    tensors = onnx.load(path, load_external_data=False).graph.initializer
    places = {field.value for tensor in tensors for field in tensor.external_data if field.key == "location"}
    assert places == {"model.onnx.data"}
    inputs = inputs_of(model, 3, 9)
    outputs = runtime("onnx", path)(inputs)
    np.testing.assert_allclose(outputs["output_0"], numpy(model(inputs)), atol=TOLERANCE, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("format", HERE)
def test_the_preset(format, tmp_path):
    """It has trained weights, in sizes that are used."""
    model = kbz.BertTextClassifier.from_preset("bert_mini_novels", num_classes=3, sequence_length=16)
    check_export(model, format, tmp_path / "model")


@pytest.mark.slow
@pytest.mark.parametrize("format", HERE)
def test_quantized_whole(format, tmp_path):
    """This includes the embeddings, where the format takes them; `test_int8_from_a_file` has PyTorch's refusals."""
    model = tiny(kbz.BertTextClassifier, num_classes=3)
    model.quantize("int8")
    if format == "litert":
        with pytest.raises(ValueError, match=r'`format="litert"` needs a model before quantize\(\)'):
            model.export(tmp_path / "model.tflite", format)
    elif BACKEND == "torch" and format in ("onnx", "openvino"):
        for module in FORMATS[format].needs[BACKEND]:
            pytest.importorskip(module, reason=f"{format} needs {module}")
        with pytest.raises(ValueError, match=f'`format="{format}"` takes no quantized embeddings on the torch backend'):
            model.export((tmp_path / "model").with_suffix(SUFFIXES[format]), format)
        assert not list(tmp_path.iterdir())
    else:
        check_export(model, format, tmp_path / "model")


@pytest.mark.slow
def test_opset_version(tmp_path):
    for module in FORMATS["onnx"].needs[BACKEND]:
        pytest.importorskip(module)
    import onnx

    model = with_text(kbz.BertTextClassifier, num_classes=3)
    for version in (18, 15) if BACKEND == "tensorflow" else (18,):  # 15 has no LayerNorm.
        check_export(model, "onnx", tmp_path / "model", opset_version=version)
        written = onnx.load(tmp_path / "model.onnx")
        assert [each.version for each in written.opset_import if not each.domain] == [version]
        if BACKEND == "tensorflow":
            kinds = [node.op_type for node in written.graph.node]
            assert kinds.count("LayerNormalization") == (2 * SHALLOW["num_layers"] + 1 if version > 16 else 0)


@pytest.mark.slow
@pytest.mark.parametrize("format", [name for name in HERE if name.values[0] in ("tf_saved_model", "torch", "onnx")])
def test_quantized_and_half(format, tmp_path):
    """Quantized, it gives the numbers of Keras' own int8 model; in bfloat16, as near as its eight bits allow."""
    quantized = tiny(kbz.BertTextClassifier, num_classes=3)
    quantized.quantize("int8", filters="attention|intermediate|output")
    (tmp_path / "int8").mkdir()
    check_export(quantized, format, tmp_path / "int8" / "model")
    if format in ("tf_saved_model", "torch"):
        path = (tmp_path / "half").with_suffix(SUFFIXES[format])
        half = randomise(kbz.BertBackbone(**SHALLOW, dtype="bfloat16"))
        half.export(path, format)
        inputs = inputs_of(half, 3, 9)
        expected, outputs = half(inputs), runtime(format, path)(inputs)
        for name, tensor in expected.items():
            found = np.asarray(outputs[name], "float32")
            np.testing.assert_allclose(found, numpy(keras.ops.cast(tensor, "float32")), atol=0.05, err_msg=name)


@pytest.mark.skipif(BACKEND != "torch", reason="PyTorch's exporter takes the model apart")
def test_a_model_that_was_exported_is_quantized_and_comes_back(tmp_path):
    model = tiny(kbz.BertTextClassifier, num_classes=3)
    model.export(tmp_path / "model.pt2", "torch")
    model.quantize("int8")
    assert {str(weight.dtype) for weight in model.backbone.embeddings.weights} == {"int8", "float32"}
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    inputs = inputs_of(model, 3, 9)
    np.testing.assert_array_equal(numpy(again(inputs)), numpy(model(inputs)))


SERVE = """
import json, sys
import tensorflow as tf, tensorflow_text
folders, first, second = json.loads(sys.argv[1])
outputs = []
for folder, columns in zip(folders, ({"text": first}, {"first": first, "second": second})):
    loaded = tf.saved_model.load(folder)
    serve = loaded.signatures["serving_default"]
    outputs.append(serve(**{name: tf.constant(texts) for name, texts in columns.items()})["output_0"].numpy().tolist())
    assert loaded.serve(*map(tf.constant, columns.values())).numpy().tolist() == outputs[-1]
    one = serve(**{name: tf.constant(texts[:1]) for name, texts in columns.items()})["output_0"].numpy()
    assert abs(one - outputs[-1][:1]).max() < 1e-5
assert not [name for name in sys.modules if name.startswith("keras_bert_zoo")]
print(json.dumps(outputs))
"""


@pytest.mark.skipif(BACKEND == "torch", reason="Keras on PyTorch writes no SavedModel")
@slow_on("jax")
def test_strings_in_a_process_without_us(tmp_path):
    pytest.importorskip("tensorflow_text")
    models = with_text(kbz.BertTextClassifier, num_classes=3), with_text(kbz.BertNextSentencePredictor)
    folders = [str(tmp_path / model.name / "1") for model in models]
    (tmp_path / models[0].name / "1").mkdir(parents=True)
    (tmp_path / models[0].name / "1" / "saved_model.pb").write_text("old")  # This is replaced.
    for model, folder in zip(models, folders, strict=True):
        model.export(folder)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, "-c", SERVE, json.dumps([folders, TEXTS, SECONDS])]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    outputs = json.loads(done.stdout.splitlines()[-1])
    for model, x, output in zip(models, (TEXTS, (TEXTS, SECONDS)), outputs, strict=True):
        np.testing.assert_allclose(output, model.predict(x, verbose=0), atol=1e-5)


def test_of_a_replaced_saved_model_nothing_is_left(classifier, tmp_path, monkeypatch):
    """Its assets are the vocabulary for strings, and the new one may take no strings."""
    for name in ("saved_model.pb", "fingerprint.pb", "variables/variables.index", "assets/vocab.txt", "notes.md"):
        (tmp_path / "model" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "model" / name).write_text("old")

    def write(model, folder, *arguments):
        (folder / "saved_model.pb").write_text("new")

    monkeypatch.setattr("keras_bert_zoo.export._write_saved_model", write)
    write_model(classifier, tmp_path / "model", "tf_saved_model", {}, {})
    assert {path.name: path.read_text() for path in (tmp_path / "model").iterdir()} == {
        "saved_model.pb": "new", "notes.md": "old",
    }  # fmt: skip


def test_a_fixed_length_is_the_preprocessor_s(tmp_path, monkeypatch, capsys):
    """The format needs one on this backend; what was written is printed on request."""
    lengths = []

    def write(model, path, format, axes, *arguments):
        lengths.append({sizes[-1] for sizes in axes.values()})

    monkeypatch.setattr("keras_bert_zoo.models.exporting.check_format", lambda path, format: path)
    monkeypatch.setattr("keras_bert_zoo.models.exporting.write_model", write)
    monkeypatch.setitem(FORMATS, "onnx", FORMATS["onnx"]._replace(fixed_length=(BACKEND,)))
    backbone, path = kbz.BertBackbone(**SHALLOW), tmp_path / "model.onnx"
    model = kbz.BertTextClassifier(backbone, 3, preprocessor=kbz.BertPreprocessor(kbz.BertTokenizer(WORDS), 12))
    model.export(path, "onnx")
    backbone.export(path, "onnx")
    assert capsys.readouterr().out == ""
    model.export(path, "onnx", sequence_length=8, verbose=True)
    assert capsys.readouterr().out == f"Saved artifact at '{path}'.\n"
    assert lengths == [{12}, {16}, {8}]


@slow_on("jax")
def test_onnx_runtime_joins_operations(tmp_path):
    """GELU, but on TensorFlow, where bias and product are one operation, with the bias; LayerNorm, but not on JAX."""
    for module in FORMATS["onnx"].needs[BACKEND]:
        pytest.importorskip(module)
    onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    tiny(kbz.BertTextClassifier, num_classes=3).export(tmp_path / "model.onnx", "onnx")
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(tmp_path / "model.onnx", options, providers=["CPUExecutionProvider"])
    kinds = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    blocks = SHALLOW["num_layers"]
    assert (kinds.count("Gelu" if BACKEND == "tensorflow" else "BiasGelu"), kinds.count("Erf")) == (blocks, 0)
    if BACKEND != "jax":
        assert kinds.count("LayerNormalization") + kinds.count("SkipLayerNormalization") == 2 * blocks + 1
        assert not {"ReduceMean", "GlobalAveragePool"} & set(kinds)


@pytest.mark.parametrize("spelling", [gelu_of_products, gelu_of_erfc])
def test_spelled_gelu(spelling):
    x = np.linspace(-6, 6, 101, dtype="float32")
    expected = [0.5 * value * (1 + math.erf(value / math.sqrt(2))) for value in x.tolist()]
    with gelu_spelled(spelling):
        spelled = numpy(get_activation("gelu")(keras.ops.convert_to_tensor(x)))
    np.testing.assert_allclose(spelled, expected, atol=1e-6)
    if (spelling is gelu_of_erfc) == (BACKEND == "jax"):  # The other is what the backend has everywhere.
        assert (spelled != numpy(get_activation("gelu")(keras.ops.convert_to_tensor(x)))).any()  # Unchanged outside.


def test_refusals(classifier, tmp_path, monkeypatch):
    backend = BACKEND

    def refused(model, path, *arguments, **options):
        with pytest.raises(ValueError) as error:
            model.export(tmp_path / path, *arguments, **options)
        assert not list(tmp_path.iterdir())
        return str(error.value)

    assert "`format` must be one of ['tf_saved_model'" in refused(classifier, "model", "tflite")
    for name, known in FORMATS.items():
        if backend not in known.needs:
            message = refused(classifier, f"model{SUFFIXES[name]}", name)
            assert (
                f'`format="{name}"` needs the {" or ".join(known.needs)} backend, because {known.lacks[backend]}: '
                in message
            )
            assert f"Received: the {backend} backend" in message
    if backend == "torch":
        name = "torch"
    else:
        name = "tf_saved_model"
        if not importlib.util.find_spec("tensorflow"):
            assert 'pip install "keras-bert-zoo[tensorflow]"' in refused(classifier, "model")
            return
    path, ready = f"model{SUFFIXES[name]}", tiny(kbz.BertTokenClassifier, num_classes=3)
    assert "`sequence_length` must be at most max_sequence_length=16" in refused(ready, path, name, sequence_length=17)
    assert "`sequence_length` must be a positive integer" in refused(ready, path, name, sequence_length=0)
    assert "`pairs` must be None if the export takes no strings" in refused(ready, path, name, pairs=True)
    assert "`input_signature` is the model's own" in refused(ready, path, name, input_signature=[])
    if backend == "torch":
        assert "`filepath` must end with .pt2" in refused(classifier, "model.pt", "torch")
        bilstm = tiny(kbz.BertTextClassifier, num_classes=3, pooling="bilstm")
        assert "cannot export a loop over tokens on this backend" in refused(bilstm, path, name)
        os.mkfifo(tmp_path / path)
        with pytest.raises(ValueError, match=r"`filepath` must be a file .* a pipe or a device"):
            classifier.export(tmp_path / path, name)
        (tmp_path / path).unlink()
    else:
        pytest.importorskip("tensorflow_text")
        follows = with_text(kbz.BertNextSentencePredictor)
        assert "`x` must be pairs" in refused(follows, path, name, pairs=False)
        assert "`sequence_length` must be None if the export takes strings" in refused(
            classifier, path, sequence_length=8
        )
    if backend != "jax" and importlib.util.find_spec("onnx"):
        mode, other = {"torch": ("int4", "torch"), "tensorflow": ("float8", "tf_saved_model")}[backend]
        ready.quantize(mode, filters="attention|intermediate|output")
        message = refused(ready, "model.onnx", "onnx")
        assert f'`format="onnx"` cannot export {mode} on the {backend} backend' in message
        assert f'"{other}" can. Received: a model quantized to {mode}' in message
    half = kbz.BertBackbone(**TINY, dtype="bfloat16")
    monkeypatch.setattr("importlib.util.find_spec", lambda module: object())
    assert '`format="onnx"` needs a float32 model' in refused(half, "model.onnx", "onnx")
    monkeypatch.setattr("importlib.util.find_spec", lambda module: None)
    message = refused(classifier, "model.onnx", "onnx")
    extra = "export-jax" if backend == "jax" else "export"
    assert f"pip install \"keras-bert-zoo[{extra}]\". Received: format='onnx'" in message


@slow_on("tensorflow", "jax")
def test_int8_from_a_file(tmp_path, monkeypatch):
    """The model is quantized in part, as Keras allows: what comes back computes the same."""
    model = with_text(kbz.BertTextClassifier, num_classes=3)
    model.quantize("int8", filters=lambda layer: layer.name != "position_embedding")
    expected = model.predict(TEXTS, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    modes = [
        {layer.path: layer.quantization_mode for layer in some._flatten_layers() if layer.weights and not layer._layers}
        for some in (model, loaded)
    ]
    assert modes[0] == modes[1]
    assert [path for path, mode in modes[0].items() if mode is None and "norm" not in path] == [
        "embeddings/position_embedding"
    ]
    assert [weight.path for weight in loaded.weights] == [weight.path for weight in model.weights]
    np.testing.assert_array_equal(loaded.predict(TEXTS, verbose=0), expected)
    for one in (loaded, loaded.backbone):
        with pytest.raises(ValueError, match="A preset holds float weights: save it before quantize"):
            one.save_to_preset(tmp_path / "preset")
    assert not (tmp_path / "preset").exists()
    if BACKEND == "torch":
        monkeypatch.setattr("importlib.util.find_spec", lambda module: object())  # Whether they are there or not.
        for name in ("onnx", "openvino"):
            with pytest.raises(
                ValueError, match=f'`format="{name}"` takes no quantized embeddings on the torch backend'
            ):
                model.export(tmp_path / f"model{SUFFIXES[name]}", format=name)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["int8", "int4"])
def test_quantized_after_training(mode, tmp_path):
    """The model is quantized between two runs of `fit`, and with LoRA."""
    model = with_text(kbz.BertTextClassifier, num_classes=3)
    model.backbone.enable_lora(2)
    model.fit(TEXTS, LABELS, batch_size=6, verbose=0)
    model.quantize(mode)
    expected = model.predict(TEXTS, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(TEXTS, verbose=0), expected)
    configs = [json.dumps(keras.saving.serialize_keras_object(some.backbone)) for some in (loaded, model)]
    assert configs[0] == configs[1]
    loaded.fit(TEXTS, LABELS, batch_size=6, verbose=0)
    assert (loaded.predict(TEXTS, verbose=0) != expected).any()
