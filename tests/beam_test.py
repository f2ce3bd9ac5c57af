"""`prepare` as a Beam pipeline, on Beam's local runner, writes the same bytes as without."""

import json
import time

import keras
import numpy as np
import pytest

from keras_bert_zoo.pretraining import prepare

if keras.backend.backend() != "torch":
    pytest.skip("data sets know no backend: once is enough", allow_module_level=True)
pytest.importorskip("apache_beam", reason='Apache Beam is not installed: pip install "keras-bert-zoo[beam]"')

OPTIONS = {"sequence_length": 16, "duplicates": 2, "fix_masks": True, "verbose": False}
WORDS = "a good film it was fine so warm the plot is dull bad cast very slow not".split()


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Two languages with documents of very different lengths, cut small; one file is broken and one is empty."""
    monkeypatch.setattr("keras_bert_zoo.pretraining.corpus._PART_CHARACTERS", 200)
    monkeypatch.setattr("keras_bert_zoo.pretraining.corpus._BLOCK_CHARACTERS", 700)
    monkeypatch.setattr("keras_bert_zoo.pretraining.corpus._PARTNER_SENTENCES", 3)
    rng = np.random.default_rng(0)
    names = [f"text{number}" for number in range(6)]
    for name in names:
        documents = [
            "\n".join(" ".join(rng.choice(WORDS, rng.integers(1, 9))) for _ in range(sentences))
            for sentences in rng.choice([1, 3, 10, 150], 6)
        ]
        (tmp_path / name).write_text("\n\n".join(documents))
    (tmp_path / "broken").write_bytes(b"a film\nso good\n\nwarm \xff")
    (tmp_path / "empty").write_text("\n")
    paths = [tmp_path / name for name in (*names[:2], "broken", *names[2:], "empty", "gone")]
    return {"en": paths[:4], "xx": paths[4:]}


def same(one, other):
    names = sorted(path.name for path in one.iterdir())
    assert sorted(path.name for path in other.iterdir()) == names
    assert len(names) == 9
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


@pytest.mark.parametrize("staged", [False, True])
def test_the_bytes_are_those_of_one_machine(files, tmp_path, tokenizer, staged):
    beam = ["--direct_running_mode=multi_threading", "--direct_num_workers=2"]
    if staged:
        beam.append(f"--temp_location={tmp_path / 'staging'}")
    reports = [
        prepare(files, tmp_path / "plain", tokenizer, workers=1, **OPTIONS),
        prepare(files, tmp_path / "beam", tokenizer, beam=beam, **OPTIONS),
    ]
    assert reports[0] == reports[1]
    assert [words.split("/")[-1][:6] for words in reports[1].skipped] == ["broken", "empty ", "gone m"]
    about = json.loads((tmp_path / "beam" / "dataset.json").read_text())
    assert min(made["examples"] for made in about["languages"].values()) > 200
    same(tmp_path / "plain", tmp_path / "beam")
    if staged:
        assert list((tmp_path / "staging").iterdir()) == []


def test_the_first_shard_that_cannot_be_fetched_is_named(tmp_path, monkeypatch):
    """Shards are fetched at the same time, and the second of these fails last."""
    from keras_bert_zoo.pretraining import beam

    names = [f"shard-0000{number}" for number in range(3)]
    for name in names:
        (tmp_path / "staging" / name).mkdir(parents=True)
        np.save(tmp_path / "staging" / name / "ends.npy", np.arange(3))
    (tmp_path / "data").mkdir()
    open_file = beam._open

    def breaks_off(path):
        if names[0] in path:
            return open_file(path)
        time.sleep(0.2 if names[1] in path else 0.0)
        raise OSError(f"the network is gone at {path}")

    monkeypatch.setattr(beam, "_open", breaks_off)
    with pytest.raises(OSError, match=names[1]):
        beam._fetch(str(tmp_path / "staging"), tmp_path / "data", range(3))
    np.testing.assert_array_equal(np.load(tmp_path / "data" / names[0] / "ends.npy"), np.arange(3))


def test_nothing_is_left_of_a_strict_run(files, tmp_path, tokenizer):
    before = {path.name for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match="broken must be UTF-8 text"):
        prepare(files, tmp_path / "data", tokenizer, strict=True, beam=[], **OPTIONS)
    assert {path.name for path in tmp_path.iterdir()} == before


def test_nothing_is_left_of_a_run_that_broke_off(files, tmp_path, tokenizer, monkeypatch):
    from keras_bert_zoo.pretraining import beam

    def breaks_off(*arguments):
        assert len(list((tmp_path / "staging").iterdir())) == 1
        raise OSError("the network is gone")

    monkeypatch.setattr(beam, "_fetch", breaks_off)
    with pytest.raises(OSError, match="the network is gone"):
        prepare(files, tmp_path / "data", tokenizer, beam=[f"--temp_location={tmp_path / 'staging'}"], **OPTIONS)
    assert list((tmp_path / "staging").iterdir()) == []
    assert not (tmp_path / "data").exists()


@pytest.mark.slow
def test_workers_in_processes_of_their_own(tmp_path, tokenizer):
    for name in "abc":
        (tmp_path / name).write_text("a good film\nit was fine\n\nthe plot is dull\nbad cast\n\n" * 20)
    paths = [tmp_path / name for name in "abc"]
    prepare(paths, tmp_path / "plain", tokenizer, **OPTIONS)
    beam = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]
    prepare(paths, tmp_path / "beam", tokenizer, beam=beam, **OPTIONS)
    same(tmp_path / "plain", tmp_path / "beam")
