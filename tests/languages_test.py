"""Several languages in their smoothed shares: 1,024 to 1, which is 2**10, becomes 128 to 1, which is 2**(10 * 0.7)."""

import json
import os

import numpy as np
import pytest

import keras_bert_zoo as kbz
from keras_bert_zoo import cli
from keras_bert_zoo.pretraining import corpus, prepare
from keras_bert_zoo.text.languages import smoothed_passes
from tests.helpers import WORDS, left_to_torch, short_error

if left_to_torch():
    pytest.skip("languages know no backend: once is enough", allow_module_level=True)

SPECIAL = WORDS[:5]
# 128 of 129 where it was 1,024 of 1,025.
OFTEN, RARE = 128 / 129 / (1024 / 1025), 1 / 129 / (1 / 1025)


def test_passes_by_hand():
    assert smoothed_passes({"en": 1024, "is": 1}) == pytest.approx({"en": OFTEN, "is": RARE})
    assert smoothed_passes({"a": 7, "b": 7}) == pytest.approx({"a": 1, "b": 1})
    # google-research/bert, multilingual.md: a thousand times as much becomes about a hundred times as much.
    passes = smoothed_passes({"en": 1000, "is": 1, "de": 300})
    assert 100 < 1000 * passes["en"] / passes["is"] < 130
    assert 1000 * passes["en"] + passes["is"] + 300 * passes["de"] == pytest.approx(1301)


@pytest.mark.parametrize("times, learned", [(7, "cd"), (8, "ab"), (9, "ab")])
def test_words_count_as_often_as_their_language_is_taken(times, learned):
    """One rare word weighs as much as eight of the large language do; at such a tie the alphabet decides."""
    texts = {"is": ["cd"], "en": ["ab"] * times + ["x"] * (1024 - times)}
    assert kbz.learn_vocabulary(texts, 11) == [*SPECIAL, "##b", "##d", "a", "c", "x", learned]


def test_one_language_is_none():
    texts = ["it is a film", "a fine film"]
    assert kbz.learn_vocabulary({"en": texts}, 40) == kbz.learn_vocabulary(texts, 40)


def test_vocabulary_mistakes():
    with pytest.raises(ValueError, match=r"must hold words of each language. Received: none of \['is'\]"):
        kbz.learn_vocabulary({"en": ["a"], "is": [" "]}, 40)
    with pytest.raises(ValueError, match=r"must be a list of strings. Received: texts"):
        kbz.learn_vocabulary({"en": "a b"}, 40)


@pytest.fixture
def files(tmp_path):
    """Each line is a document, and each document an example."""
    (tmp_path / "en").write_text("good\n\n" * 1024)
    (tmp_path / "is").write_text("slow\n\n")
    return {"en": [tmp_path / "en"], "is": [tmp_path / "is"]}


def test_examples_have_the_smoothed_shares(files, tmp_path, tokenizer):
    options = {"sequence_length": 8, "next_sentence": False, "verbose": False}
    for duplicates, name in ((1, "once"), (10, "data"), (10, "again")):
        prepare(files, tmp_path / name, tokenizer, duplicates=duplicates, **options)
        token_ids = np.load(tmp_path / name / "token_ids.npy")
        counted = {"en": (token_ids == tokenizer.token_to_id("good")).sum()}
        counted["is"] = (token_ids == tokenizer.token_to_id("slow")).sum()
        for language, count, passes in (("en", 1024, OFTEN), ("is", 1, RARE)):
            about = json.loads((tmp_path / name / "dataset.json").read_text())["languages"][language]
            assert about == {"passes": pytest.approx(passes), "examples": counted[language]}
            # Whole passes and a part of one more, which is a whole number of examples.
            assert abs(counted[language] - duplicates * count * passes) < 1
    for path in (tmp_path / "data").iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()


@pytest.mark.parametrize("characters", [2**21, 512])
def test_what_is_skipped_counts_for_no_language(files, tmp_path, tokenizer, monkeypatch, characters):
    """Where one block holds a language its examples are counted; else the sizes of its files tell."""
    monkeypatch.setattr(corpus, "_BLOCK_CHARACTERS", characters)
    (tmp_path / "utf16").write_text("slow\n\n" * 4096, encoding="utf-16")
    (tmp_path / "binary").write_bytes(b"\xff\n" * 4096)
    passes = []
    for more in ([], [tmp_path / "utf16", tmp_path / "binary"]):
        out = tmp_path / f"data{len(more)}"
        mixed = {"en": [*more, *files["en"]], "is": [*files["is"], *more]}
        prepare(mixed, out, tokenizer, sequence_length=8, next_sentence=False, verbose=False)
        passes.append(json.loads((out / "dataset.json").read_text())["languages"])
    assert passes[0] == passes[1]
    if characters > 4096:
        assert passes[0]["en"]["passes"] == pytest.approx(OFTEN)


def test_a_part_of_a_pass_is_right_on_average(files, tmp_path, tokenizer):
    """0.857 of an example is one example in 86 of 100 cases."""
    (tmp_path / "en").write_text("good\n\n" * 2)
    made = []
    for seed in range(30):
        out = tmp_path / str(seed)
        prepare(files, out, tokenizer, sequence_length=8, next_sentence=False, seed=seed, verbose=False)
        made.append(json.loads((out / "dataset.json").read_text())["languages"]["en"]["examples"])
    share = 2**0.7 / (2**0.7 + 1)
    assert set(made) == {1, 2}
    assert abs(np.mean(made) - 3 * share) < 0.2


def test_data_mistakes(files, tmp_path, tokenizer):
    (tmp_path / "empty").write_text("\n")
    gone = {**files, "xx": [tmp_path / "gone"]}
    with pytest.raises(ValueError, match="gone must be a text file"):
        prepare(gone, tmp_path / "data", tokenizer, next_sentence=False, strict=True, verbose=False)
    os.mkfifo(tmp_path / "pipe")
    for paths, words in (
        ({**files, "xx": [tmp_path / "pipe"]}, "files, which are read twice. Received: "),
        ({**files, "xx": [tmp_path / "empty"]}, "Received: none in 'xx', "),
        ({**files, "xx": [tmp_path / "empty"]}, "empty must hold text. Received: an empty document"),
        ({**files, "xx": []}, "`paths` must be a list of files, or one for each language"),
        ({**files, "xx": "file"}, "`paths` must be a list of files, or one for each language"),
        ({}, "`paths` must be a list of files, or one for each language"),
    ):
        with short_error(words):
            prepare(paths, tmp_path / "data", tokenizer, next_sentence=False, verbose=False)
        assert not (tmp_path / "data").exists()


def test_from_the_console(files, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "half").write_text("good\n\n" * 512)
    languages = ("--language", "en", "half", "--language", "is", "is", "--language", "en", "half")
    assert cli.main(["vocab", "--size", "20", "--out", "vocab.txt", *languages]) == 0
    assert cli.main(["prepare", "--vocab", "vocab.txt", "--out", "data", "--no-pairs", *languages]) == 0
    assert "en: 99.2% of the examples, 0.993 of its text for each pass" in capsys.readouterr().out
    for arguments, words in (
        (("--language", "en"), "--language must be a name and files. Received: en"),
        (("en", *languages), "files or --language must be given, and not both. Received: both"),
        ((), "files or --language must be given, and not both. Received: neither"),
    ):
        assert cli.main(["prepare", "--vocab", "vocab.txt", "--out", "other", *arguments]) == 2
        assert words in capsys.readouterr().err
