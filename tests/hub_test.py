"""`hf://org/name` against a hub on loopback: what is fetched, and what is said when it cannot be."""

import json

import numpy as np
import pytest

import keras_bert_zoo as kbz
from keras_bert_zoo import cli
from keras_bert_zoo.presets import presets
from tests.helpers import TEXTS, TINY, left_to_torch, numpy, random_inputs, randomise, short_error
from tests.hub_server import Hub, files_of

if left_to_torch():
    pytest.skip("the hub knows no backend: once is enough", allow_module_level=True)

huggingface_hub = pytest.importorskip("huggingface_hub")
constants = pytest.importorskip("huggingface_hub.constants")


@pytest.fixture
def backbone_folder(backbone, tmp_path):
    folder = tmp_path / "repository"
    randomise(backbone).save_to_preset(folder)
    (folder / "README.md").write_text("A model card.")
    (folder / "pytorch_model.bin").write_bytes(b"never asked for")
    (folder / "tf_model.h5").write_bytes(b"never asked for")
    return folder


@pytest.fixture
def hub(backbone_folder, tmp_path, monkeypatch):
    hub = Hub()
    hub.repositories["org/bert"] = {"main": backbone_folder}
    hub.storage = tmp_path / "made"
    with hub.serve() as url:
        monkeypatch.setattr(constants, "ENDPOINT", url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # Another protocol, which no loopback speaks.
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        huggingface_hub.close_session()
        yield hub
    huggingface_hub.close_session()


def outputs(preset, **options):
    return numpy(kbz.BertBackbone.from_preset(preset, **options)(random_inputs())["sequence_output"])


def check(preset, backbone):
    np.testing.assert_array_equal(outputs(preset), numpy(backbone(random_inputs())["sequence_output"]))


def refused(words, preset="hf://org/bert", **options):
    with short_error(*words, longest=500):
        kbz.BertBackbone.from_preset(preset, **options)


def be_quick(monkeypatch):
    """Do not wait between attempts, and make chunks small enough that some of a tiny file arrives."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 512)


def test_fetches_what_is_needed_once(hub, backbone):
    check("hf://org/bert", backbone)
    assert hub.fetched() == {"config.json", "model.safetensors", "preset.json"}
    hub.requests.clear()
    check("hf://org/bert", backbone)
    assert hub.fetched() == set()


def test_without_weights_none_are_fetched(hub, backbone):
    model = kbz.BertBackbone.from_preset("hf://org/bert", load_weights=False)
    assert model.architecture == backbone.architecture
    assert hub.fetched() == {"config.json", "preset.json"}


def divide(folder, files):
    """Divide a preset's weights into two shards of these names."""
    from safetensors.numpy import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    for i, file in enumerate(files):
        save_file(dict(list(tensors.items())[i::2]), folder / file)
    places = {name: files[i % 2] for i, name in enumerate(tensors)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def test_shards_and_tokenizer(hub, backbone, backbone_folder):
    files = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    divide(backbone_folder, files)
    (backbone_folder / "tokenizer.json").write_text("{}")
    (backbone_folder / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    (backbone_folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
    check("hf://org/bert", backbone)
    assert hub.fetched() == {
        "config.json", "preset.json", "vocab.txt", "tokenizer.json", "tokenizer_config.json",
        "model.safetensors.index.json", *files,
    }  # fmt: skip


@pytest.fixture
def files_of_other_names(backbone_folder):
    """A repository whose shards and modules have names that only its own files tell."""
    names = ["part1.safetensors", "other-part.safetensors"]
    divide(backbone_folder, names)
    kinds = {"Transformer": "", "Pooling": "pooling", "Normalize": "2_Normalize"}  # The last has no configuration.
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in kinds.items()]
    (backbone_folder / "modules.json").write_text(json.dumps(modules))
    (backbone_folder / "pooling").mkdir()
    (backbone_folder / "pooling" / "config.json").write_text('{"pooling_mode_max_tokens": true}')
    return {*names, "model.safetensors.index.json", "modules.json", "pooling/config.json"}


def test_what_files_name_is_fetched_and_uploaded(hub, token, backbone, backbone_folder, files_of_other_names):
    kbz.upload_preset("hf://org/new", backbone_folder)
    assert set(held(hub)) == {"config.json", "preset.json", "README.md", *files_of_other_names}
    kbz.BertBackbone.from_preset("hf://org/new", load_weights=False)
    assert hub.fetched() == {"config.json", "preset.json", "modules.json"}
    assert any(path.endswith("/pooling/config.json") for method, path, _ in hub.requests if method == "GET")
    check("hf://org/new", backbone)
    assert hub.fetched() == {"config.json", "preset.json", *files_of_other_names} - {"pooling/config.json"}
    hub.requests.clear()
    check("hf://org/new", backbone)
    assert len(hub.requests) == 1  # For the revision; all files are there.


def test_tokens_that_were_added_are_refused_there_too(hub, backbone_folder):
    (backbone_folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
    (backbone_folder / "added_tokens.json").write_text('{"<ent>": 5}')
    refused(["added_tokens.json: `added_tokens` must be among", "Received: '<ent>'"])
    (backbone_folder / "added_tokens.json").unlink()


def test_pytorch_only_where_there_is_nothing_better(hub, backbone, backbone_folder):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    torch.save(load_file(backbone_folder / "model.safetensors"), backbone_folder / "pytorch_model.bin")
    (backbone_folder / "model.safetensors").unlink()
    check("hf://org/bert", backbone)
    assert hub.fetched() == {"config.json", "preset.json", "pytorch_model.bin"}


def test_redirects(hub, backbone):
    hub.far = {"model.safetensors"}  # On another host, as large files are.
    hub.moved = {"org/old-name": "org/bert"}
    check("hf://org/old-name", backbone)
    assert any(path.startswith("/cdn/") for _, path, _ in hub.requests)


def test_revisions(hub, backbone, tmp_path):
    other = randomise(kbz.BertBackbone(**TINY), seed=1)
    other.save_to_preset(tmp_path / "other")
    hub.repositories["org/bert"]["v1.0"] = tmp_path / "other"
    check("hf://org/bert", backbone)
    check("hf://org/bert@v1.0", other)
    refused(["The revision must exist on the hub. Received: 'hf://org/bert@v2.0'"], "hf://org/bert@v2.0")


def test_private_and_missing(hub, backbone, monkeypatch):
    hub.private = {"org/bert"}
    words = ["is private and needs a token", "`hf auth login`", "HF_TOKEN", "HTTP 401"]
    refused(words)
    refused(words, "hf://org/nothing")
    monkeypatch.setenv("HF_TOKEN", hub.token)
    check("hf://org/bert", backbone)
    refused(["hf://org/nothing is not on the hub", "HTTP 404"], "hf://org/nothing")


def test_a_repository_without_weights_says_so(hub, backbone_folder):
    (backbone_folder / "model.safetensors").unlink()
    (backbone_folder / "pytorch_model.bin").unlink()
    refused(["must hold model.safetensors", "without pytorch_model.bin"])
    (backbone_folder / "config.json").unlink()
    refused(["must be a directory with a config.json"])


@pytest.mark.parametrize("far", [False, True])
def test_a_download_cut_in_the_middle(hub, backbone, far, monkeypatch, tmp_path):
    be_quick(monkeypatch)
    hub.far = {"model.safetensors"} if far else set()
    hub.cut = {"model.safetensors"}
    refused(["could not be reached", str(tmp_path / "cache"), "load_weights=False", "without one. Received: "])
    assert not list((tmp_path / "cache").rglob("model.safetensors"))
    assert any(span for _, _, span in hub.requests)
    hub.cut = set()
    check("hf://org/bert", backbone)


def test_a_download_is_resumed(hub, backbone, monkeypatch):
    be_quick(monkeypatch)
    hub.cut_once = {"model.safetensors"}
    check("hf://org/bert", backbone)
    assert sum(span is not None for _, _, span in hub.requests) == 1


@pytest.mark.parametrize("how", ["gone", "offline"])
def test_offline_with_a_warm_cache(hub, backbone, how, tmp_path, monkeypatch):
    check("hf://org/bert", backbone)
    hub.requests.clear()
    if how == "gone":
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    else:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    huggingface_hub.close_session()
    check("hf://org/bert", backbone)
    assert hub.requests == []
    refused(["hf://org/other could not be reached", str(tmp_path / "cache"), "load_weights=False"], "hf://org/other")


def test_offline_with_a_cache_that_lacks_the_weights(hub, tmp_path, monkeypatch):
    kbz.BertBackbone.from_preset("hf://org/bert", load_weights=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    huggingface_hub.close_session()
    refused(["hf://org/bert could not be reached", str(tmp_path / "cache")])


def test_a_released_name_goes_the_same_way(hub, backbone, monkeypatch, tmp_path):
    (tmp_path / "presets" / "bert_toy").mkdir(parents=True)
    description = {"source": "hf://org/bert", "aliases": [], "backbone": backbone.architecture}
    description["tokenizer"] = {"lowercase": False}  # Its directory does not say this.
    (tmp_path / "presets" / "bert_toy" / "preset.json").write_text(json.dumps(description))
    monkeypatch.setattr(presets, "_shipped", lambda: tmp_path / "presets")
    check("bert_toy", backbone)
    assert presets.load_preset("bert_toy").tokenizer == {"lowercase": False}
    assert hub.fetched() == {"config.json", "model.safetensors", "preset.json"}


@pytest.mark.parametrize(
    "address", ["hf://org", "hf://org/a/b", "hf://org/a--b", "hf://../..", "hf://org/bert@", "hf://"]
)
def test_addresses_of_another_form(hub, address):
    refused(["A hub address must"], address)
    assert hub.requests == []


# --- Uploads


def held(hub, repository="org/new"):
    folder = hub.repositories[repository]["main"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files_of(folder)}


def not_uploaded(words, *arguments, **options):
    with short_error(*words, longest=500):
        kbz.upload_preset(*arguments, **options)


@pytest.fixture
def token(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", hub.token)


@pytest.mark.parametrize("private", [True, False])
def test_an_upload_comes_back(hub, token, classifier, private, tmp_path, capsys):
    randomise(classifier).save_to_preset(tmp_path / "preset")
    (tmp_path / "preset" / "notes.txt").write_text("mine")
    if private:  # From the console.
        assert cli.main(["upload", str(tmp_path / "preset"), "hf://org/new", "--private"]) == 0
        assert capsys.readouterr().out == f"{hub.url}/org/new\n"
    else:
        assert kbz.upload_preset("hf://org/new", tmp_path / "preset") == f"{hub.url}/org/new"
    assert ("org/new" in hub.private) == private
    preset = {path.name: path.read_bytes() for path in (tmp_path / "preset").iterdir() if path.name != "notes.txt"}
    assert held(hub) == preset
    assert {"README.md", "model.safetensors", "vocab.txt"} <= set(preset)
    assert preset["model.safetensors"] in hub.blobs.values()  # As a large file.
    again = kbz.BertTextClassifier.from_preset("hf://org/new")
    np.testing.assert_array_equal(again.predict(TEXTS, verbose=0), classifier.predict(TEXTS, verbose=0))


def test_an_upload_replaces_a_preset_and_leaves_the_rest(hub, token, backbone, classifier, tmp_path):
    randomise(classifier).save_to_preset(tmp_path / "preset")
    kbz.upload_preset("hf://org/bert", tmp_path / "preset")
    now = held(hub, "org/bert")
    assert "pytorch_model.bin" not in now  # It would have other weights.
    assert now["tf_model.h5"] == b"never asked for"
    assert now["README.md"] == b"A model card."
    assert now["config.json"] == (tmp_path / "preset" / "config.json").read_bytes()
    (tmp_path / "preset" / "README.md").write_text("---\nlicense: mit\n---\nMine.")
    kbz.upload_preset("hf://org/bert", tmp_path / "preset")
    assert held(hub, "org/bert")["README.md"].endswith(b"Mine.")
    backbone.save_to_preset(tmp_path / "other")
    kbz.upload_preset("hf://org/bert", tmp_path / "other")
    assert "vocab.txt" not in held(hub, "org/bert")


def test_uploads_that_cannot_be(hub, backbone, monkeypatch, tmp_path):
    be_quick(monkeypatch)
    preset = tmp_path / "preset"
    backbone.save_to_preset(preset)
    not_uploaded(["needs a token that may write", "`hf auth login`", "HF_TOKEN"], "hf://org/new", preset)
    not_uploaded(["`uri` must be hf://org/name, without a revision"], "hf://org/new@main", preset)
    not_uploaded(["A hub address must be hf://org/name"], "org/new", preset)
    for wrong in (tmp_path, tmp_path / "nothing", "bert_base"):
        not_uploaded(["`preset` must be a directory with a config.json. Received: preset="], "hf://org/new", wrong)
    assert hub.requests == []
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    not_uploaded(["The token must be one that may write to hf://org/new", "HTTP 401"], "hf://org/new", preset)
    monkeypatch.setenv("HF_TOKEN", hub.token)
    not_uploaded(["may write to hf://others/new", "HTTP 403"], "hf://others/new", preset)
    not_uploaded(
        ["hf://org/bert could not", "`private` needs", "one that is public"], "hf://org/bert", preset, private=True
    )
    for front, complaint in {"license: mine": "no such license", "license: [": "expected the node"}.items():
        (preset / "README.md").write_text(f"---\n{front}\n---\nMine.")
        not_uploaded(["hf://org/new could not be written. Received: ", complaint], "hf://org/new", preset)
        assert "org/new" not in hub.repositories
    (preset / "README.md").unlink()
    hub.full = True
    not_uploaded(["hf://org/new could not be written at http://127"], "hf://org/new", preset)
    hub.full = False
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    not_uploaded(["hf://org/new could not be written at http://127.0.0.1:9. Received: Conn"], "hf://org/new", preset)
    (preset / "model.safetensors").write_bytes(b"")
    not_uploaded(["model.safetensors must be a safetensors file"], "hf://org/new", preset)
