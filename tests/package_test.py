"""The package from outside: what importing it does, what installs hold, what a fresh process can load."""

import importlib.util
import io
import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from keras_bert_zoo import cli
from tests.helpers import REPOSITORY, TEXTS, left_to_torch, run_python


@pytest.mark.skipif(left_to_torch(), reason="Keras is imported in the same way on each: once is enough.")
@pytest.mark.parametrize("name", ["tensorflow", "torch"])
def test_a_backend_that_is_missing_is_named(name):
    told = run_python(
        """
import sys

class Missing:
    def find_spec(self, name, *_):
        if name == sys.argv[1]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
try:
    import keras_bert_zoo
except ImportError as error:
    print(type(error).__name__, error.__suppress_context__, error)
""",
        name,
        KERAS_BACKEND=name,
    )
    assert told == (
        f'ImportError True Keras needs its backend: pip install "keras-bert-zoo[{name}]", or set KERAS_BACKEND to '
        f"another one. Received: No module named '{name}'\n"
    )


@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="Keras itself imports it on this backend")
def test_import_leaves_tensorflow_alone():
    # Nor does fitting on text touch it.
    run_python("""
import sys, keras
assert "tensorflow" not in sys.modules
import keras_bert_zoo as kbz
vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]
preprocessor = kbz.BertPreprocessor(kbz.BertTokenizer(vocabulary), 16)
model = kbz.BertTextClassifier(kbz.BertBackbone(7, 1, 2, 8, 16), 2, preprocessor=preprocessor)
model.fit(["a", "b"], [0, 1], verbose=0)
assert "tensorflow" not in sys.modules
""")


def test_import_is_light():
    """Counted, not timed: nothing heavy may load before it is used. `benchmarks/import_time.py` has the seconds."""
    loaded = run_python("""
import sys, keras
before = set(sys.modules)
import keras_bert_zoo
print(*sorted({name.split(".")[0] for name in set(sys.modules) - before}))
""").split()
    assert not set(loaded) & {
        "tokenizers",
        "safetensors",
        "huggingface_hub",
        "tensorflow",
        "torch",
        "jax",
        "transformers",
        "keras_tuner",
        "grpc",
    }
    assert "keras_bert_zoo" in loaded


def test_a_file_loads_in_a_fresh_process_on_another_backend(classifier, tmp_path):
    """The backend is the same only where no other is installed."""
    backend = keras.backend.backend()
    other = {"tensorflow": "jax", "jax": "torch", "torch": "tensorflow"}[backend]
    backend = other if importlib.util.find_spec(other) else backend
    classifier.save(tmp_path / "model.keras")
    code = """
import sys, json, keras, keras_bert_zoo
print(json.dumps(keras.models.load_model(sys.argv[1]).predict(json.loads(sys.argv[2]), verbose=0).tolist()))
"""
    printed = run_python(code, tmp_path / "model.keras", json.dumps(TEXTS), KERAS_BACKEND=backend).splitlines()[-1]
    np.testing.assert_allclose(json.loads(printed), classifier.predict(TEXTS, verbose=0), atol=1e-6)


def test_every_public_class_with_a_config_is_registered():
    """Keras imports only its own packages when it loads a file; ours must be known by then."""
    classes = {name: thing for name, thing in vars(kbz).items() if hasattr(thing, "get_config")}
    assert len(classes) > 25
    for name, thing in classes.items():
        assert keras.saving.get_registered_object(f"keras_bert_zoo>{name}") is thing


@pytest.mark.slow
def test_presets_come_with_wheel_and_sdist(tmp_path):
    if left_to_torch():
        pytest.skip("packaging knows no backend: once is enough")
    pytest.importorskip("build")
    subprocess.run([sys.executable, "-m", "build", "--outdir", tmp_path, REPOSITORY], check=True, capture_output=True)
    (wheel,), (sdist,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"keras_bert_zoo"}
    presets = {name for name in names if name.endswith("preset.json")}
    assert presets == {f"keras_bert_zoo/presets/data/{name}/preset.json" for name in kbz.preset_names()}
    with tarfile.open(sdist) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
    assert sum(name.endswith("/preset.json") for name in files) == len(presets)
    # Links in docs/ lead to these folders.
    assert files >= {"notebooks/quickstart.py", "benchmarks/README.md"}
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = "import sys, keras_bert_zoo as kbz; assert kbz.__file__.startswith(sys.argv[1]); print(kbz.preset_names())"
    assert "bert_large" in run_python(code, tmp_path / "site", PYTHONPATH=str(tmp_path / "site"))


def test_the_console_has_a_version(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert (stop.value.code, capsys.readouterr().out) == (0, f"keras-bert-zoo {kbz.__version__}\n")


def test_the_console_prints_a_path_that_its_encoding_lacks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("a b a b")
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding="cp1252", write_through=True))
    assert cli.main(["vocab", "--size", "7", "--out", "ft中", "text.txt"]) == 0
    assert printed.getvalue().split() == [b"ft\\u4e2d:", b"7", b"tokens"]
