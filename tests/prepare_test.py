"""`prepare` from text to arrays: what a label says, and its options at the console."""

import filecmp
import os
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import keras_bert_zoo as kbz
from keras_bert_zoo import cli
from keras_bert_zoo.pretraining import prepare
from keras_bert_zoo.pretraining.shards import join_shards, open_shard
from keras_bert_zoo.pretraining.workers import in_order
from tests.helpers import WORDS, left_to_torch

if left_to_torch():
    pytest.skip("data sets know no backend: once is enough", allow_module_level=True)


def test_a_label_is_1_where_the_second_segment_is_of_another_document(tmp_path, tokenizer):
    """Each of the two documents repeats one word."""
    (tmp_path / "text").write_text("good\n" * 100 + "\n" + "bad\n" * 100)
    prepare([tmp_path / "text"], tmp_path / "data", tokenizer, sequence_length=8, verbose=False)
    shard = open_shard(tmp_path / "data", fixed_masks=False)
    first, last = shard.token_ids[np.r_[0, shard.ends[:-1]] + 1], shard.token_ids[shard.ends - 2]
    np.testing.assert_array_equal(shard.next_sentence_labels, first != last)
    assert set(shard.next_sentence_labels) == {0, 1}


@pytest.mark.parametrize("pairs", [True, False])
def test_of_long_lines_nothing_is_lost(tmp_path, tokenizer, pairs):
    """Each line is a paragraph. It is cut into parts of a quarter of an example, and words stay whole."""
    words = ["good", "longest", "bad"] * 40  # `longest` is two tokens.
    (tmp_path / "text").write_text(" ".join(words) + "\n\n" + "the film\n" * 3)
    options = {"sequence_length": 32, "short_rate": 0.0, "next_sentence": pairs, "verbose": False}
    prepare([tmp_path / "text"], tmp_path / "data", tokenizer, **options)
    shard = open_shard(tmp_path / "data", fixed_masks=False)
    count = sum(np.isin(shard.token_ids, tokenizer.encode_batch(["good bad"])[0]))
    assert count > 60 if pairs else count == 80
    if not pairs:
        assert np.diff(shard.ends, prepend=0).max() == 26  # Three parts of eight tokens, and [CLS] and [SEP].
    begins = np.r_[0, shard.ends[:-1]] + 1
    assert not tokenizer.continues_word[shard.token_ids[begins]].any()
    assert set(shard.next_sentence_labels) == ({0, 1} if pairs else {0})


def test_a_file_s_name_need_not_be_text(tmp_path, tokenizer):
    path = os.fsencode(tmp_path) + b"/caf\xe9"
    with open(path, "wb") as file:
        file.write(b"a good film\ncaf\xe9\n\nso warm\n")
    report = prepare([os.fsdecode(path)], tmp_path / "data", tokenizer, sequence_length=8, verbose=False)
    assert report.skipped[0].startswith(f"{tmp_path}/caf\\udce9 must be UTF-8 text (")
    assert (report.skips, report.sentences) == (1, 2)


@pytest.mark.parametrize("end", ["\n\n", "\n", " "])
def test_memory_does_not_grow_with_the_text(tmp_path, tokenizer, monkeypatch, end):
    """The text has six blocks or sixty: documents of one sentence, one document of all sentences, or a single line."""
    for name in ("_BLOCK_CHARACTERS", "_PART_CHARACTERS"):
        monkeypatch.setattr(f"keras_bert_zoo.pretraining.corpus.{name}", 2**15)
    monkeypatch.setattr("keras_bert_zoo.text.files._LONGEST_LINE", 2**15)
    peaks = []
    for times in (2, 20):
        paths = [tmp_path / f"text{times}", tmp_path / "other"]
        paths[0].write_text(f"A good film and a very , very long plot .{end}" * 2000 * times)
        paths[1].write_text(f"It is fine .{end}" * 10)
        options = {"layout": "prose" if end == " " else "sentences", "sequence_length": 16, "fix_masks": True}
        tracemalloc.start()
        prepare(paths, tmp_path / f"data{times}", tokenizer, workers=1, verbose=False, **options)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    small, large = ((tmp_path / f"data{times}" / "token_ids.npy").stat().st_size for times in (2, 20))
    assert large > 8 * small
    assert peaks[1] < 1.5 * peaks[0]


def test_options_at_the_console(tmp_path, capsys, monkeypatch):
    texts, vocab = [tmp_path / name for name in ("a", "b")], str(tmp_path / "vocab.txt")
    for text in texts:
        text.write_text("A Good film. So slow. It is fine.\n\nBad cast. The plot was dull.\n\n" * 20)
    kbz.write_vocabulary(vocab, WORDS)
    command = ["prepare", "--vocab", vocab, "--cased", "--sequence-length", "16", "--duplicates", "2"]
    command += ["--short-rate", "0.5", "--seed", "7", "--layout", "prose", "--workers", "1", *map(str, texts)]
    seen = []

    def kept(*arguments, **options):
        seen.append(options)
        return prepare(*arguments, **options)

    monkeypatch.setattr("keras_bert_zoo.cli.pretraining.prepare", kept)
    assert cli.main([*command, "--out", str(tmp_path / "console")]) == 0
    assert seen[0]["workers"] == 1  # It changes no byte.
    options = {"sequence_length": 16, "duplicates": 2, "short_rate": 0.5, "seed": 7, "layout": "prose"}
    prepare(texts, tmp_path / "python", kbz.BertTokenizer(vocab, lowercase=False), **options, verbose=False)
    names = sorted(path.name for path in (tmp_path / "python").iterdir())
    assert filecmp.cmpfiles(tmp_path / "console", tmp_path / "python", names, shallow=False) == (names, [], [])
    monkeypatch.setattr("keras_bert_zoo.pretraining.corpus._NAMED", 1)
    command += [str(tmp_path / "gone"), str(tmp_path / "lost")]
    capsys.readouterr()
    assert cli.main([*command, "--out", str(tmp_path / "lenient")]) == 0
    first, *others = capsys.readouterr().out.splitlines()
    assert first.endswith("; skipped: 2")
    assert others[0].startswith(f"skipped: {tmp_path / 'gone'} must be a text file")
    assert others[1:] == ["skipped: 1 more"]
    assert cli.main([*command, "--out", str(tmp_path / "strict"), "--strict"]) == 2
    assert "gone must be a text file" in capsys.readouterr().err


def test_nothing_is_overwritten_and_a_stop_is_one_line(tmp_path, capsys, monkeypatch):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("a good film\n" * 20)
    files = [str(tmp_path / name) for name in ("a.txt", "b.txt")]
    assert cli.main(["vocab", "--size", "30", "--out", *files]) == 2  # As `--out *.txt` would be read.
    assert "--out must be new, or a vocabulary" in capsys.readouterr().err
    assert (tmp_path / "a.txt").read_text() == "a good film\n" * 20

    def closed(**options):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr("tempfile.TemporaryFile", closed)
        patch.delattr("keras_bert_zoo.cli.pretraining.learn_vocabulary")
        assert cli.main(["vocab", "--size", "30", "--out", str(tmp_path / "vocab.txt"), *files]) == 2
    assert "`out` must be where files can be written" in capsys.readouterr().err

    def stop(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("keras_bert_zoo.cli.pretraining.learn_vocabulary", stop)
    assert cli.main(["vocab", "--size", "30", "--out", str(tmp_path / "vocab.txt"), *files]) == 130
    assert capsys.readouterr().err == "keras-bert-zoo vocab: stopped\n"

    def terminate(*arguments, **options):
        signal.raise_signal(signal.SIGTERM)

    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    monkeypatch.setattr("keras_bert_zoo.cli.pretraining.learn_vocabulary", terminate)
    assert cli.main(["vocab", "--size", "30", "--out", str(tmp_path / "vocab.txt"), *files]) == 143
    assert capsys.readouterr().err == "keras-bert-zoo vocab: stopped\n"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_vocabulary_is_replaced(tmp_path):
    command = ["vocab", "--size", "25", "--out", str(tmp_path / "vocab.txt"), str(tmp_path / "text")]
    for word in ("film", "plot"):
        (tmp_path / "text").write_text(f"a good {word}\n" * 20)
        assert cli.main(command) == 0
        assert word in kbz.BertTokenizer(tmp_path / "vocab.txt").vocabulary


def test_masks_are_a_masking(tmp_path, tokenizer):
    (tmp_path / "a.txt").write_text("a good film\n" * 20)
    with pytest.raises(ValueError, match=r"`masking` must be a Masking. Received: masking={'rate': 5}"):
        prepare([tmp_path / "a.txt"], tmp_path / "out", tokenizer, masking={"rate": 5}, verbose=False)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("given", [None, 3, b"a", [None], [b"a"], {"en": None}, {"en": ["a", None]}])
def test_paths_are_lists_of_paths(tmp_path, tokenizer, given):
    with pytest.raises(ValueError) as error:
        prepare(given, tmp_path / "out", tokenizer, verbose=False)
    assert str(error.value) == f"`paths` must be a list of files, or one for each language. Received: paths={given!r}"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("given", ["vocab.txt", None])
def test_a_tokenizer_is_one(tmp_path, given):
    (tmp_path / "a.txt").write_text("a good film\n" * 20)
    with pytest.raises(ValueError, match=rf"`tokenizer` must be a BertTokenizer. Received: tokenizer={given!r}$"):
        prepare([tmp_path / "a.txt"], tmp_path / "out", given, verbose=False)
    assert not (tmp_path / "out").exists()


def test_of_two_at_once_the_second_to_end_is_refused(tmp_path, tokenizer, monkeypatch):
    """The other process has the number 1. What a third one left when it was killed is removed."""
    (tmp_path / "text").write_text("a good film\nso warm\n\nbad cast\nit is fine\n" * 5)
    options = {"sequence_length": 8, "verbose": False, "workers": 1}
    (tmp_path / f".data.part{2**30}" / "shard-00000").mkdir(parents=True)

    def prepare_another(*arguments):
        monkeypatch.undo()
        with monkeypatch.context() as patched:
            patched.setattr(os, "getpid", lambda: 1)
            prepare([tmp_path / "text"], tmp_path / "data", tokenizer, seed=2, **options)
        return join_shards(*arguments)

    monkeypatch.setattr(sys.modules[prepare.__module__], "join_shards", prepare_another)
    with pytest.raises(ValueError, match=r"`out` must not exist yet. Received: out='.*data', which exists already"):
        prepare([tmp_path / "text"], tmp_path / "data", tokenizer, seed=1, **options)
    assert {path.name for path in tmp_path.iterdir()} == {"text", "data"}
    assert '"seed": 2' in (tmp_path / "data" / "dataset.json").read_text()
    open_shard(tmp_path / "data", fixed_masks=False)


def test_arrays_are_joined_by_writing(tmp_path, monkeypatch):
    """On a full disk writing raises an error, but writing into a mapped file ends the process.

    Files that have been joined are removed, to make room for the rest.
    """
    parts = {"token_ids": [[1, 2, 3], [4]], "ends": [[1, 3], [1]]}
    for name, arrays in parts.items():
        for number, array in enumerate(arrays):
            (tmp_path / str(number)).mkdir(exist_ok=True)
            np.save(tmp_path / str(number) / f"{name}.npy", np.array(array, "uint16" if name == "token_ids" else int))
    np.save(tmp_path / "expected.npy", np.array([1, 2, 3, 4], "uint16"))
    open_memmap = np.lib.format.open_memmap

    def read_only(path, mode, **options):
        assert mode == "r"
        return open_memmap(path, mode, **options)

    monkeypatch.setattr("numpy.lib.format.open_memmap", read_only)
    monkeypatch.setattr("numpy.lib._format_impl.open_memmap", read_only, raising=False)
    join_shards([tmp_path / "0", tmp_path / "1"], tmp_path)
    assert (tmp_path / "token_ids.npy").read_bytes() == (tmp_path / "expected.npy").read_bytes()
    np.testing.assert_array_equal(np.load(tmp_path / "ends.npy"), [1, 3, 4])
    assert {path.name for path in tmp_path.iterdir()} == {"token_ids.npy", "ends.npy", "expected.npy"}


def test_a_worker_that_ends_is_named():
    """The kernel ends a worker in this way when memory runs out."""
    with pytest.raises(ChildProcessError, match=r"must run to the end.* Received: one of 2 that ended early"):
        list(in_order(iter(["__import__('os')._exit(1)"] * 2), eval, 2))


PARENT = """
import os
from keras_bert_zoo.pretraining.workers import in_order
for process in in_order(iter(["__import__('os').getpid()"] * 3), eval, 2):
    print(process, flush=True)
    os.kill(os.getpid(), 9)
"""


def test_no_worker_outlives_a_process_that_is_killed():
    """Its stdout is theirs too, so that its end is not seen before theirs."""
    path = str(Path(kbz.__file__).parents[1])
    parent = subprocess.run(
        [sys.executable, "-c", PARENT], env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, timeout=60
    )
    assert parent.returncode == -signal.SIGKILL
    assert int(parent.stdout) > 0
