"""Pre-training examples: the pairs, the masks and the data set on disk, against the rules of the paper."""

import filecmp
import hashlib
import io
import json
import os
import pickle
import sys
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import repeat

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from keras_bert_zoo.pretraining import PretrainingBatches, local, prepare
from keras_bert_zoo.pretraining import examples as ex
from keras_bert_zoo.pretraining import workers as on_cores
from keras_bert_zoo.pretraining.batches import _RowsOf
from keras_bert_zoo.pretraining.corpus import Block, CorpusReport, Document, read_blocks, read_documents
from keras_bert_zoo.pretraining.making import ExampleRules, make_examples, maskable
from keras_bert_zoo.pretraining.sentences import read_prose, split_sentences
from keras_bert_zoo.pretraining.shards import make_shard, open_shard
from keras_bert_zoo.text.masking import MaskedTokens, Masking, mask_tokens
from tests.corpora import novels, vocabulary
from tests.helpers import SHALLOW, WORDS, left_to_torch, short_error

if left_to_torch():
    pytest.skip("data sets know no backend: once is enough", allow_module_level=True)


@pytest.mark.parametrize(
    "text, sentences",
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("Mr. Dalmain came. He sat.", ["Mr. Dalmain came.", "He sat."]),
        ("He came. Mr. Smith sat. Dr. Who did not.", ["He came.", "Mr. Smith sat.", "Dr. Who did not."]),
        ("He sat. J. Smith wrote.", ["He sat.", "J. Smith wrote."]),
        ("J. K. Smith wrote e.g. Books. 1 more.", ["J. K. Smith wrote e.g. Books.", "1 more."]),
        ('"Yes?" she said. "Do tell me more."', ['"Yes?" she said.', '"Do tell me more."']),
        ("Wait... what? No… Yes.", ["Wait... what?", "No…", "Yes."]),
        ("He left (at last.) Then she came.", ["He left (at last.)", "Then she came."]),
        ("我来了。你呢？好！", ["我来了。", "你呢？", "好！"]),
        ("वह आया। मैं गया।", ["वह आया।", "मैं गया।"]),
        ("هل جاء؟ نعم.", ["هل جاء؟", "نعم."]),
        ("it rained. nobody came.", ["it rained.", "nobody came."]),  # In a text without capitals none is needed.
        ("It rained. nobody came.", ["It rained. nobody came."]),
        ("„Komm.“ Er ging. ‚Nein!‘ So.", ["„Komm.“", "Er ging.", "‚Nein!‘", "So."]),
        ("« Non. » Il partit. « Où ? » dit-elle.", ["« Non. »", "Il partit.", "« Où ? » dit-elle."]),
        ("« Bien\u00a0! ‹\u202fOui.\u202f› » Il vint.", ["« Bien\u00a0!", "‹\u202fOui.\u202f› »", "Il vint."]),
        ("Il dit\u00a0: « Non. »", ["Il dit\u00a0: « Non. »"]),
        ("Il cria « Non ! ». Puis il partit.", ["Il cria « Non ! ».", "Puis il partit."]),
        ("« Oui ! », dit-il. Puis.", ["« Oui ! », dit-il.", "Puis."]),
        ("Er kam. »Nein!« ›Doch.‹ So.", ["Er kam.", "»Nein!«", "›Doch.‹", "So."]),
        ("Он сказал: «Нет.» И ушёл. «да» и всё.", ["Он сказал: «Нет.»", "И ушёл. «да» и всё."]),
        ("Sie kam. „Dr. Müller?“ Ja.", ["Sie kam.", "„Dr. Müller?“", "Ja."]),
        ("He came. “Go.” He went. ‘No.’", ["He came.", "“Go.”", "He went.", "‘No.’"]),
        ("He met\tMr. Smith and\u00a0Dr. Who. J.\tK. sat.", ["He met\tMr. Smith and\u00a0Dr. Who.", "J.\tK. sat."]),
        ("It took approx. 𝑛 steps. Then it stopped.", ["It took approx. 𝑛 steps.", "Then it stopped."]),
        (f"He waited{'-' * 64}no. Then he went.", [f"He waited{'-' * 64}no.", "Then he went."]),
        ("აქ არის IBM. ის დიდია. კარგი.", ["აქ არის IBM.", "ის დიდია.", "კარგი."]),  # All its letters are lower-case.
        ("Er aß. ß kam. ŉ man.", ["Er aß. ß kam. ŉ man."]),
        ('It rained. "and so" he left.', ['It rained. "and so" he left.']),
        ("There were 5. Then came more.", ["There were 5.", "Then came more."]),
        ("   ", []),
    ],
)
def test_sentences(text, sentences):
    assert split_sentences(text) == sentences


def test_long_runs_are_read_once():
    """Read anew from each place, they would take hours."""
    for run in ("." * 200_000, "." * 200_000 + '"' * 200_000, ".'" * 200_000):
        assert split_sentences(f"a{run}a") == [f"a{run}a"]
        assert split_sentences(f"a{run} A") == [f"a{run}", "A"]


def test_a_paragraph_is_split_while_it_is_read(monkeypatch):
    prose = [
        "Mr. Dalmain came",
        "at last… and sat.",
        '"Yes?"',
        "she",
        "said. He was J.",
        "K. Smith!",
        "No.",
        "我来了。你呢",
        "？好！",
    ]
    whole = split_sentences(" ".join(prose * 9))
    for size in (1, 8, 20, 60):
        monkeypatch.setattr("keras_bert_zoo.pretraining.sentences._GATHERED", size)
        found = list(read_prose(prose * 9))
        assert " ".join(found) == " ".join(whole)
        if size == 60:
            assert found == whole
    monkeypatch.setattr("keras_bert_zoo.pretraining.sentences._GATHERED", 40)  # Up to the number, without a capital.
    prose = ["Mr. Dalmain came and sat.", "Nobody came.", "1 more.", "and so it was."]
    assert list(read_prose(prose)) == split_sentences(" ".join(prose)) == [*prose[:2], "1 more. and so it was."]
    monkeypatch.undo()
    assert next(read_prose(repeat("Without an end. "))) == "Without an end."
    assert len(next(read_prose(repeat("no sentence ")))) < 2**17


def read(tmp_path, layout, strict=False, **texts):
    for name, text in texts.items():
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    report = CorpusReport()
    documents = list(read_documents([tmp_path / name for name in texts], layout, strict, report))
    return [(document.origin, document.sentences) for document in documents], report


def test_layouts(tmp_path):
    assert read(tmp_path, "sentences", a="x y\nz\n\n\n \nq\n", b="r")[0] == [(0, ["x y", "z"]), (1, ["q"]), (2, ["r"])]
    prose = "A hard\nwrapped line. And\nmore.\n\nHEADING\n\nEnd."
    documents, report = read(tmp_path, "prose", a=prose)
    assert documents == [(0, ["A hard wrapped line.", "And more.", "HEADING", "End."])]
    assert (report.files, report.documents, report.sentences, report.bytes) == (1, 1, 4, 44)  # Including line ends.


def test_bad_files_are_named(tmp_path):
    bad = {"a": "fine\n", "b": b"one\n\ntwo \xff\n\nthree\nf\xfcnf\nsix \xc3", "c": "\n \n", "d": "last"}
    bad["e"] = b"\xff\n\xfc"
    documents, report = read(tmp_path, "sentences", **bad)
    assert documents == [(0, ["fine"]), (1, ["one"]), (2, ["three"]), (4, ["last"])]
    assert [words.split("/")[-1] for words in report.skipped] == [
        "b must be UTF-8 text (invalid start byte in line 3); lines left out: 3",
        "c must hold text. Received: an empty document",
        "e must be UTF-8 text (invalid start byte in line 1); lines left out: 2",
    ]
    assert (report.files, report.documents, report.skips) == (3, 4, 3)
    with pytest.raises(ValueError, match=r"b must be UTF-8 text \(invalid start byte in line 3\)$"):
        read(tmp_path, "sentences", strict=True, **bad)
    controls = {"a": "one\n\n\x00\x07\n\ufffd\n\ntwo", "b": "\x1b\ufeff\u200b \xad\ue000"}
    documents, report = read(tmp_path, "sentences", **controls)
    assert documents == [(0, ["one"]), (2, ["two"])]
    assert [words.split("/")[-1] for words in report.skipped] == [
        f"{name} must hold text. Received: control characters" for name in "ab"
    ]
    assert (report.files, report.documents) == (1, 2)
    with pytest.raises(ValueError, match=r"a must hold text. Received: control characters"):
        read(tmp_path, "sentences", strict=True, **controls)


def test_what_is_skipped_is_named_but_not_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr("keras_bert_zoo.pretraining.corpus._NAMED", 3)
    report = read(tmp_path, "sentences", a="\n\n".join(["\x07"] * 5))[1]
    assert (len(report.skipped), report.skips) == (3, 5)
    total = CorpusReport.total([report, CorpusReport(files=1, skipped=["one"], skips=1), report])
    assert (len(total.skipped), total.skips, total.files) == (3, 11, 1)


def test_a_file_that_breaks_off_is_a_document(tmp_path, monkeypatch):
    monkeypatch.setattr("keras_bert_zoo.pretraining.corpus._PART_CHARACTERS", 4)
    (tmp_path / "a").write_text("one\ntwo\nthree\nfour")

    class BreaksOff(io.FileIO):
        def readline(self, size):
            if self.tell() == 14:
                raise OSError("the disk is gone")
            return super().readline(size)

    report = CorpusReport()
    found = read_documents([tmp_path / "a"], "sentences", False, report, lambda path, mode: BreaksOff(path))
    assert [document.sentences for document in found] == [["one", "two"], ["three"]]
    assert (report.files, report.documents, report.sentences) == (1, 1, 3)
    assert report.skipped == [f"{tmp_path / 'a'} must be a text file (the disk is gone)"]


def test_long_documents_come_in_parts_and_never_pair_with_themselves(tmp_path, monkeypatch):
    monkeypatch.setattr("keras_bert_zoo.pretraining.corpus._PART_CHARACTERS", 4)
    monkeypatch.setattr("keras_bert_zoo.pretraining.corpus._BLOCK_CHARACTERS", 8)
    monkeypatch.setattr("keras_bert_zoo.pretraining.corpus._FEW_CHARACTERS", 4)
    documents = read(tmp_path, "sentences", a="abcd\nefgh\nij\nkl\nmnop\nqrst\n\nuv", b="wx\nyz")[0]
    assert [origin for origin, _ in documents] == [0, 0, 0, 0, 0, 1, 2]
    paths = {"": [tmp_path / "b", tmp_path / "a"]}
    blocks = list(read_blocks(paths, {"": 1.0}, "sentences", False, {"": CorpusReport()}))
    assert [[d.sentences for d in block.documents] for block in blocks] == [
        [["wx", "yz"], ["abcd"]], [["efgh"], ["ij", "kl"]], [["mnop"], ["qrst"]], [["uv"]],
    ]  # fmt: skip
    strangers = [[d.sentences for d in block.partners] for block in blocks]
    assert strangers == [[], [["wx", "yz"]], [["wx", "yz"]], [["wx", "yz"], ["qrst"]]]
    # Beside a document of few characters, those before it are partners too.
    paths = {"": [tmp_path / "b", tmp_path / "c"]}
    (tmp_path / "c").write_text("a\n\nabcd\nefgh")
    blocks = list(read_blocks(paths, {"": 1.0}, "sentences", False, {"": CorpusReport()}))
    assert [[d.sentences for d in block.documents] for block in blocks] == [
        [["wx", "yz"], ["a"], ["abcd"]], [["efgh"]],
    ]  # fmt: skip
    monkeypatch.setattr("keras_bert_zoo.pretraining.corpus._BLOCK_CHARACTERS", 5)
    blocks = list(read_blocks(paths, {"": 1.0}, "sentences", False, {"": CorpusReport()}))
    assert [[d.sentences for d in block.partners] for block in blocks] == [[], [["wx", "yz"], ["a"]]]
    monkeypatch.setattr("keras_bert_zoo.pretraining.corpus._PARTNER_SENTENCES", 1)  # Only the last ones.
    blocks = list(read_blocks(paths, {"": 1.0}, "sentences", False, {"": CorpusReport()}))
    assert [[d.sentences for d in block.partners] for block in blocks] == [[], [["yz"], ["a"]]]


# --- Pairs


def documents_of(*lengths, partners=0):
    """Make documents of sentences of these lengths; the tokens are their own positions."""
    flat = [length for document in lengths for length in document]
    return ex.TokenisedDocuments(
        np.arange(sum(flat), dtype="int32"),
        np.cumsum(flat),
        np.cumsum([len(document) for document in lengths]),
        np.arange(len(lengths)),
        partners,
    )


def scripted(monkeypatch, *draws):
    left = list(draws)
    monkeypatch.setattr(ex, "_draws", lambda rng: iter(lambda: left.pop(0), None))
    return left


def test_pairs_by_hand(monkeypatch):
    documents = documents_of([3, 4, 5, 2], [6, 7])
    # Length 13 leaves 10 tokens: the first three sentences. The draws: short? where A ends? B random? from where?
    left = scripted(
        monkeypatch,
        0.9, 0.6, 0.7,  # not short; A is two of three sentences; B the rest: 0..7, 7..12
        0.9, 0.9, 0.6,  # one sentence is left, so B is random: document 1, its second sentence: 12..14, 20..27
        0.05, 0.99, 0.2, 0.0,  # document 1: short, target 2 + 8 = 10; A is sentence 1; B is random …
        0.9, 0.3, 0.6,  # … not from itself, from document 0, its third sentence, up to 10 - 6 tokens: 14..20, 7..12
        0.9, 0.3, 0.1,  # the unused sentence alone: document 0 from its first, up to 10 - 7 tokens: 20..27, 0..3
    )  # fmt: skip
    spans = ex.draw_pairs(documents, 13, 0.1, np.random.default_rng(0))
    rows = np.concatenate([spans.first, spans.second, spans.next_sentence_labels[:, None]], axis=1).tolist()
    assert rows == [[0, 7, 7, 12, 0], [12, 14, 20, 27, 1], [14, 20, 7, 12, 1], [20, 27, 0, 3, 1]]
    assert left == []


def test_partners_are_drawn_from_only():
    spans = ex.draw_pairs(documents_of([3, 4, 5], [6, 7], partners=1), 64, 0.0, np.random.default_rng(0))
    assert spans.first.max() <= 12
    alone = ex.draw_pairs(documents_of([3, 4, 5]), 10, 0.0, np.random.default_rng(0))
    assert not alone.next_sentence_labels.any()


def test_parts_of_one_document_are_no_partners():
    """Each part is one sentence, so its partner is always random, and always from the other document."""
    documents = replace(documents_of(*[[4]] * 9), origins=np.repeat([0, 1], [8, 1]))
    spans = ex.draw_pairs(documents, 64, 0.0, np.random.default_rng(0))
    assert spans.next_sentence_labels.all()
    assert spans.second[:8].tolist() == [[32, 36]] * 8
    assert spans.second[8, 1] <= 32


@pytest.fixture(scope="module")
def many():
    rng = np.random.default_rng(1)
    return documents_of(*[rng.integers(1, 30, rng.integers(1, 40)).tolist() for _ in range(300)])


def test_pairs_cover_every_token_once_and_balance(many):
    spans = ex.draw_pairs(many, 64, 0.1, np.random.default_rng(2))
    random = spans.next_sentence_labels == 1
    covered = np.zeros(len(many.token_ids), int)
    for start, end in (*spans.first, *spans.second[~random]):
        covered[start:end] += 1
    assert (covered == 1).all()
    assert (spans.second[~random, 0] == spans.first[~random, 1]).all()
    bounds = many.sentence_ends[many.document_ends - 1]
    document = np.searchsorted(bounds, spans.first[:, 0], side="right")
    other = np.searchsorted(bounds, spans.second[:, 0], side="right")
    assert ((document == other) == ~random).all()
    assert (np.searchsorted(bounds, spans.second[:, 1] - 1, side="right") == other).all()
    assert 0.5 < random.mean() < 0.62  # Half of them, and always where one sentence is left.


def test_short_examples(many):
    def lengths(rate):
        spans = ex.draw_packed(many, 66, rate, np.random.default_rng(3))
        covered = np.zeros(len(many.token_ids), int)
        for start, end in spans.first:
            covered[start:end] += 1
        assert (covered == 1).all()
        return np.diff(spans.first, axis=1)

    assert (lengths(0.0) <= 64).all()
    assert lengths(0.0).mean() > 45
    assert lengths(1.0).mean() < 35


def test_packing_cuts_the_longer_side_at_random_ends():
    spans = ex.Spans(np.tile([[0, 30]], (2000, 1)), np.tile([[30, 40]], (2000, 1)), np.zeros(2000, int))
    tokens = np.arange(40, dtype="int32") + 100
    packed = next(ex.pack(tokens, spans, 23, (1, 2, 0), np.random.default_rng(0)))
    assert (packed.lengths == 23).all()
    assert (packed.first_lengths == 12).all()
    rows = packed.token_ids
    assert (rows[:, 0] == 1).all()
    assert (rows[:, [11, 22]] == 2).all()
    assert (np.diff(rows[:, 1:11]) == 1).all()
    assert (rows[:, 12:22] == np.arange(130, 140)).all()
    front = rows[:, 1] - 100  # Each of the 20 tokens that are cut is cut at the front with probability one half.
    assert abs(front.mean() - 10) < 4 * np.sqrt(5 / 2000)
    assert 4 < front.var() < 6


def test_packing_short_ones_pads():
    spans = ex.Spans(np.array([[0, 2], [2, 12]]), np.array([[3, 4], [0, 0]]), np.array([1, 0]))
    packed = next(ex.pack(np.arange(12) + 10, spans, 8, (1, 2, 0), np.random.default_rng(0)))
    assert packed.token_ids[0].tolist() == [1, 10, 11, 2, 13, 2, 0, 0]
    assert packed.lengths.tolist() == [6, 8]
    assert packed.first_lengths.tolist() == [4, 8]
    assert packed.token_ids[1, [0, 7]].tolist() == [1, 2]


@pytest.mark.parametrize("vocabulary_size, kind", [(2**16, "uint16"), (2**16 + 1, "int32")])
def test_the_last_id_of_a_large_vocabulary(vocabulary_size, kind):
    last = vocabulary_size - 1
    spans = ex.Spans(np.array([[0, 2]]), np.array([[0, 0]]), np.array([0]))
    packed = list(ex.pack(np.array([5, last]), spans, 6, (1, 2, 0), np.random.default_rng(0)))
    mask = MaskedTokens(packed[0].token_ids, np.array([[2, 0]]), np.array([[last, 0]]), np.array([[1.0, 0.0]]))
    shard = make_shard(packed, [mask], vocabulary_size)
    assert (shard.token_ids.tolist(), shard.mask_replacements.tolist()) == ([1, 5, last, 2], [last])
    assert (shard.token_ids.dtype, shard.mask_replacements.dtype) == (kind, kind)


# --- Masks


def masked(masking, n=4000, length=40, seed=0):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, length + 1, n)
    tokens = rng.integers(10, 1000, (n, length))
    first = np.maximum(lengths // 2, 2)
    allowed = maskable(tokens, lengths, first)
    continues = np.arange(1000) % 3 == 0
    result = mask_tokens(tokens, allowed, lengths, masking, 4, 1000, rng, continues[tokens])
    return tokens, lengths, first, allowed, continues, result


@pytest.mark.parametrize("whole_words", [False, True])
def test_mask_counts_and_places(whole_words):
    masking = Masking(max_predictions=5, whole_words=whole_words)
    tokens, lengths, _, allowed, continues, result = masked(masking)
    counts = result.mask_weights.sum(axis=1)
    wanted = np.array([min(5, max(1, round(0.15 * length))) for length in lengths.tolist()])
    wanted = np.minimum(wanted, allowed.sum(axis=1))
    chosen = np.zeros_like(allowed)
    for row, (positions, count) in enumerate(zip(result.mask_positions, counts.astype(int), strict=True)):
        assert (np.diff(positions[:count]) > 0).all()
        assert (positions[count:] == 0).all()
        chosen[row, positions[:count]] = True
    assert not (chosen & ~allowed).any()
    assert (
        result.mask_ids == np.where(result.mask_weights, np.take_along_axis(tokens, result.mask_positions, 1), 0)
    ).all()
    assert (result.token_ids == tokens)[~chosen].all()
    if not whole_words:
        assert (counts == wanted).all()
        return
    assert (counts <= wanted).all()
    assert counts.mean() > 0.85 * wanted.mean()
    inner = allowed & np.pad(allowed, ((0, 0), (1, 0)))[:, :-1] & continues[tokens]
    assert (chosen[:, 1:] == chosen[:, :-1])[inner[:, 1:]].all()


@pytest.mark.parametrize("shares", [(), (0.8, 0.1), (1.0, 0.0), (0.8, 0.0), (0.0, 0.8), (0.0, 1.0)])
def test_shares_of_masks(shares):
    mask, random = shares or (0.8, 0.1)  # The paper's.
    *_, result = masked(Masking(20, 0.15, *shares), n=8000)
    real = result.mask_weights == 1
    now = np.take_along_axis(result.token_ids, result.mask_positions, axis=1)[real]
    was = result.mask_ids[real]
    n = len(was)
    chance = random / 1000  # A random token may be the one that was there, or [MASK].
    for share, expected in (((now == 4).mean(), mask + chance), ((now == was).mean(), 1 - mask - random + chance)):
        assert abs(share - expected) <= 4 * np.sqrt(expected * (1 - expected) / n) + 1e-4
    drawn = now[(now != 4) & (now != was)]
    if random:
        assert abs(drawn.mean() - 499.5) < 4 * 289 / np.sqrt(len(drawn))
        assert drawn.min() < 10  # Special tokens are drawn too, as in the original.


def test_places_are_uniform():
    _, lengths, *_, result = masked(Masking(20), n=20000, length=20)
    full = lengths == 20
    hits = np.bincount(result.mask_positions[full][result.mask_weights[full] == 1], minlength=20)
    expected = hits.sum() / 17
    assert hits[[0, 9, 19]].sum() == 0
    assert (abs(hits[hits > 0] - expected) < 5 * np.sqrt(expected)).all()


@pytest.mark.parametrize("pieces, whole_words", [(1, False), (2, True)])
def test_sets_of_places_are_uniform(pieces, whole_words):
    """Three of six tokens, or words, are masked: not only each place but each of the twenty sets is as frequent."""
    n, shape = 20000, (20000, 6 * pieces)
    continues = np.broadcast_to(np.arange(6 * pieces) % pieces > 0, shape)
    masking = Masking(3 * pieces, rate=0.5, whole_words=whole_words)
    rng = np.random.default_rng(3)
    result = mask_tokens(
        np.full(shape, 7), np.ones(shape, dtype=bool), np.full(n, shape[1]), masking, 4, 1000, rng, continues
    )
    _, counts = np.unique(result.mask_positions, axis=0, return_counts=True)
    assert len(counts) == 20
    assert ((counts - n / 20) ** 2 / (n / 20)).sum() < 43.8  # Chi squared at 19 degrees of freedom, one in a thousand.


def test_bad_masking():
    for arguments, words in (
        ({"max_predictions": 0}, "`max_predictions` must be a positive integer"),
        ({"max_predictions": 20.0}, "`max_predictions` must be a positive integer"),
        ({"rate": "0.15"}, "`rate` must be a number. Received: rate='0.15'"),
        ({"mask": float("nan")}, "`mask` and `random` must be shares"),
        ({"max_predictions": 2**16}, "`max_predictions` must be at most 65535. Received: max_predictions=65536"),
        ({"rate": 10**400}, "`rate` must be in (0, 1). Received: rate=1000"),
        ({"mask": 10**400}, "`mask` and `random` must be shares of one whole. Received: mask=1000"),
        ({"whole_words": "false"}, "`whole_words` must be True or False. Received: whole_words='false'"),
        ({"rate": 1.5}, "`rate` must be in (0, 1)"),
        ({"mask": 0.9, "random": 0.2}, "`mask` and `random` must be shares"),
    ):
        with short_error(words, longest=150):
            Masking(**arguments)


# --- Data sets

TEXT = "a good film\nit was fine .\nso warm\n\nthe plot is dull\nbad cast !\nvery , very slow\nnot good\n\n" * 30


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text(TEXT)
    return path


@pytest.mark.parametrize("fix_masks", [False, True])
@pytest.mark.parametrize("masking", [None, Masking(3, whole_words=True)])
def test_a_data_set_and_its_batches(corpus, tmp_path, tokenizer, masking, fix_masks):
    options = {"sequence_length": 16, "masking": masking, "fix_masks": fix_masks, "duplicates": 2, "verbose": False}
    report = prepare([corpus], tmp_path / "data", tokenizer, **options)
    assert (report.documents, report.sentences) == (60, 210)
    batches = PretrainingBatches(tmp_path / "data", 8)
    assert batches.masking == (masking or Masking(3))  # 15 % of 16, rounded up
    assert batches.examples >= 120
    assert len(batches) == batches.examples // 8
    (inputs, targets, weights), again = batches[0], batches[0]
    for x, y in zip(keras.tree.flatten((inputs, targets, weights)), keras.tree.flatten(again), strict=True):
        np.testing.assert_array_equal(x, y)
    restored = inputs["token_ids"].copy()
    real = weights["mlm"] > 0
    np.testing.assert_allclose(weights["mlm"][real], real.size / real.sum())
    rows = np.arange(8)[:, None].repeat(3, axis=1)[real]
    restored[rows, inputs["mask_positions"][real]] = targets["mlm"][real]
    seen = " | ".join(TEXT.split("\n"))
    for ids, segments, mask, label in zip(
        restored, inputs["segment_ids"], inputs["padding_mask"], targets["nsp"], strict=True
    ):
        length, split = mask.sum(), int(np.argmax(segments))
        assert (ids[0], ids[split - 1], ids[length - 1]) == (2, 3, 3)
        assert (ids[length:] == tokenizer.pad_token_id).all()
        assert segments.tolist() == [0] * split + [1] * (length - split) + [0] * (16 - length)
        words = [
            " ".join(tokenizer.vocabulary[i] for i in part) for part in (ids[1 : split - 1], ids[split : length - 1])
        ]
        follows = " ".join(words) in seen.replace(" | ", " ")
        assert follows or label == 1 or length == 16
    batches.epoch = 1
    assert (batches[0][0]["token_ids"] != inputs["token_ids"]).any()


def test_the_same_bytes_whatever_the_number_of_workers(data, tmp_path):
    """A real shard or two, whose statistics follow the rules of google-research/bert, create_pretraining_data.py."""
    paths = []
    for (name, text), _ in zip(novels(data), range(6), strict=False):
        paths.append(tmp_path / name.split("/")[-1])
        paths[-1].write_text(text)
    tokenizer = kbz.BertTokenizer(vocabulary(data, "bert-base-uncased"))
    options = {"layout": "prose", "fix_masks": True, "verbose": False}
    for workers in (1, 2):
        prepare(paths, tmp_path / f"data{workers}", tokenizer, workers=workers, **options)
    names = sorted(path.name for path in (tmp_path / "data1").iterdir())
    assert len(names) == 9
    same, different, missing = filecmp.cmpfiles(tmp_path / "data1", tmp_path / "data2", names, shallow=False)
    assert (sorted(same), different, missing) == (names, [], [])
    batches = PretrainingBatches(tmp_path / "data1", 4096)
    inputs, targets, weights = batches[0]
    lengths = inputs["padding_mask"].sum(axis=1)
    real = weights["mlm"] > 0
    assert (real.sum(axis=1) == np.minimum(20, np.maximum(1, np.rint(0.15 * lengths)))).all()
    assert abs(targets["nsp"].mean() - 0.51) < 0.03
    assert 0.85 < (lengths == 128).mean() < 0.97  # One in ten aims at a shorter length.
    now = np.take_along_axis(inputs["token_ids"], inputs["mask_positions"], axis=1)[real]
    assert abs((now == tokenizer.mask_token_id).mean() - 0.8) < 0.006
    assert abs((now == targets["mlm"][real]).mean() - 0.1) < 0.005
    special = [tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id]
    assert not np.isin(targets["mlm"][real], special).any()


def test_a_data_set_has_a_checksum_of_its_arrays(corpus, tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr("keras_bert_zoo.pretraining.corpus._BLOCK_CHARACTERS", 500)
    prepare([corpus], tmp_path / "data", tokenizer, sequence_length=16, fix_masks=True, verbose=False)
    names = "token_ids ends first_lengths next_sentence_labels mask_ends mask_positions mask_replacements".split()
    values = b"".join(np.load(tmp_path / "data" / f"{name}.npy").tobytes() for name in names)
    path = tmp_path / "data" / "dataset.json"
    about = json.loads(path.read_text())
    assert about.pop("arrays") == hashlib.sha256(values).hexdigest()
    path.write_text(json.dumps(about))  # Data sets were like this before there was one.
    assert PretrainingBatches(tmp_path / "data", 8).examples == about["examples"]


def test_processes_do_without_keras(monkeypatch):
    """Importing it would take most of the time that they save. Here each piece of work is a piece of Python code."""
    heavy = "[name for name in ('numpy', 'keras') if name in __import__('sys').modules]"
    pieces = [f"__import__('keras_bert_zoo.pretraining.prepare') and {heavy}", "__import__('os').getpid()", "3"]
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")  # As a user may set it.
    before, main = dict(os.environ), sys.modules["__main__"]
    results = on_cores.in_order(iter(pieces), eval, 2)
    found = next(results)
    assert dict(os.environ) == before  # Also while they work.
    assert sys.modules["__main__"] is main
    number, three = results
    assert found == ["numpy"]
    assert number != os.getpid()
    assert three == 3
    assert dict(os.environ) == before
    assert sys.modules["__main__"] is main


class UpperCase(kbz.BertTokenizer):
    """A user's own tokenizer, whose module imports the whole package."""

    def encode_batch(self, texts):
        return super().encode_batch(text.swapcase() for text in texts)


@pytest.mark.parametrize("kind", [kbz.BertTokenizer, UpperCase])
def test_processes_make_the_same_bytes(corpus, tmp_path, monkeypatch, kind):
    monkeypatch.setattr("keras_bert_zoo.pretraining.corpus._BLOCK_CHARACTERS", 500)
    tokenizer = kind(WORDS, lowercase=False)
    for workers in (1, 2):
        out = tmp_path / f"data{workers}"
        prepare([corpus], out, tokenizer, sequence_length=16, fix_masks=True, verbose=False, workers=workers)
    names = sorted(path.name for path in (tmp_path / "data1").iterdir())
    assert filecmp.cmpfiles(tmp_path / "data1", tmp_path / "data2", names, shallow=False) == (names, [], [])


def test_work_that_cannot_travel_is_named(monkeypatch):
    monkeypatch.setattr(UpperCase, "__module__", "__main__")  # As in a script or a notebook.
    monkeypatch.setattr(sys.modules["__main__"], "UpperCase", UpperCase, raising=False)
    work = partial(UpperCase.tokenize, UpperCase(WORDS))
    with pytest.raises(pickle.PicklingError, match="UpperCase"):
        list(on_cores.in_order(iter("ab"), work, 2, light=False))


def test_results_come_in_the_order_of_their_pieces():
    pieces = [f"__import__('time').sleep({0.5 / (i + 1)}) or {i}" for i in range(12)]
    assert list(on_cores.in_order(iter(pieces), eval, 3)) == list(range(12))


def test_little_text_starts_no_processes(corpus, tmp_path, tokenizer, monkeypatch):
    chosen = []

    def in_order(blocks, work, workers, light):
        chosen.append(workers)
        return map(work, blocks)

    monkeypatch.setattr(local, "in_order", in_order)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    for duplicates, times in ((1, 1), (9, 2)):  # Eight further passes cost as much as the first.
        for more in (0, 1):
            monkeypatch.setattr(local, "_WORTH_PROCESSES", times * corpus.stat().st_size + more)
            prepare([corpus], tmp_path / f"{duplicates} {more}", tokenizer, duplicates=duplicates, verbose=False)
    assert chosen == [8, 1] * 2


def test_one_document_makes_no_pairs(tmp_path, tokenizer):
    (tmp_path / "one").write_text("a good film\nit is fine\nso warm")
    (tmp_path / "two").write_text("bad\n\nnot good")
    one, two, gone = (tmp_path / name for name in ("one", "two", "gone"))
    options = {"sequence_length": 16, "verbose": False}
    for layout, paths, received in (
        ("sentences", [one], "1$"),
        ("sentences", [one, gone], r"1, .*gone must be a text file \(No such file or directory\)$"),
        ("prose", [one], "1$"),
        ("sentences", {"x": [two], "y": [one]}, "1 of 'y'$"),  # Otherwise the language would tell what follows.
        ("prose", {"x": [two, one], "y": [one]}, "1 of 'y'$"),
    ):
        with pytest.raises(
            ValueError, match=f"`paths` must hold at least two documents of each .* Received: {received}"
        ):
            prepare(paths, tmp_path / "data", tokenizer, layout, **options)
        assert not (tmp_path / "data").exists()
    prepare([one], tmp_path / "packed", tokenizer, next_sentence=False, **options)
    prepare([two], tmp_path / "pairs", tokenizer, **options)
    assert np.load(tmp_path / "pairs" / "next_sentence_labels.npy").all()


def test_nothing_is_left_of_a_failed_run(tmp_path, corpus, tokenizer):
    (tmp_path / "empty.txt").write_text("")
    for paths, options, words in (
        ([tmp_path / "empty.txt"], {}, "`paths` must hold text. Received:"),
        ([tmp_path / "nowhere.txt"], {"strict": True}, "nowhere.txt must be a text file"),
        ([corpus], {"layout": "poem"}, "`layout` must be one of"),
        ([corpus], {"sequence_length": 4}, "`sequence_length` must be at least 8"),
        ([corpus], {"sequence_length": 2**16}, "`sequence_length` must be at least 8 and at most 65535"),
        ([corpus], {"short_rate": 1.5}, "`short_rate`"),
        ([corpus], {"next_sentence": "no"}, "`next_sentence` must be True or False. Received: next_sentence='no'"),
        ([corpus], {"strict": "no"}, "`strict` must be True or False. Received: strict='no'"),
        ([corpus], {"beam": "--runner=X"}, "`beam` must be a list of options. Received: beam='--runner=X'"),
        (str(corpus), {}, "`paths` must be a list of files"),
    ):
        with short_error(words):
            prepare(paths, tmp_path / "data", tokenizer, verbose=False, **options)
    (tmp_path / "data").mkdir()
    with pytest.raises(ValueError, match="`out` must not exist yet"):
        prepare([corpus], tmp_path / "data", tokenizer, verbose=False)
    assert {path.name for path in tmp_path.iterdir()} == {"empty.txt", "corpus.txt", "data"}
    with pytest.raises(ValueError, match=r"`path` must be a data set with a dataset\.json"):
        PretrainingBatches(tmp_path / "data")


def array_bytes(header):
    """Return a file with this header (numpy.lib.format, version 1.0)."""
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


# NumPy raises TokenError, IndentationError, MemoryError, TypeError, OverflowError, BadZipFile and EOFError.
BROKEN_ARRAYS = [
    *map(array_bytes, (b"{'descr': ", b"a\n    b\n  c", b"-" * 9000, b"{[]: 1}")),
    array_bytes(b"{'descr': '<i8', 'fortran_order': False, 'shape': (%d,)}" % 10**30),
    b"PK\x03\x04" + bytes(100),
    b"",
]


def test_broken_data_sets(tmp_path, corpus, tokenizer):
    data = tmp_path / "data"
    prepare([corpus], data, tokenizer, sequence_length=16, fix_masks=True, verbose=False)
    about = json.loads((data / "dataset.json").read_text())
    ends = np.load(data / "ends.npy")

    def refused(words, **options):
        with short_error(words, longest=400):
            PretrainingBatches(data, **options)

    refused("`masking` must be None for a data set of fixed masks", masking=Masking(3))
    refused("`batch_size` must be at most the number of examples", batch_size=10**6)
    refused("`next_sentence` must be True or False. Received: next_sentence='no'", next_sentence="no")
    refused("`next_token` must be True or False. Received: next_token=1", next_token=1)
    for array, words in (
        (ends[:-1], "must hold arrays that fit each other"),
        (np.array([{}], dtype=object), "ends.npy must hold a NumPy array"),
        (ends.astype(float), "ends.npy must hold integers in one dimension"),
        (ends[:, None], "ends.npy must hold integers in one dimension"),
        (ends[::-1], "ends.npy must hold integers in one dimension, and ends in order"),
        (ends[::-1].astype("uint64"), "ends.npy must hold integers in one dimension, and ends in order"),
        (np.r_[np.uint64(2**64 - 1), ends[1:].astype("uint64")], "ends.npy must hold integers in one dimension, and"),
        (np.r_[np.int64([2**63 - 1, -(2**63), -1]), ends[3:]], "ends.npy must hold integers in one dimension, and"),
    ):
        np.save(data / "ends.npy", array)
        refused(words)
    for content in BROKEN_ARRAYS:
        (data / "ends.npy").write_bytes(content)
        refused("ends.npy must hold a NumPy array (")
    np.save(data / "ends.npy", ends)
    for field, words in (({"masking": {"rates": 1}}, "`masking` must have the fields of Masking"),
                         ({"tokenizer": {"foo": 1}}, "`tokenizer` must have the options of BertTokenizer"),
                         ({"masking": {"a\n" * 500: 1}}, "`masking` must have the fields of Masking"),
                         ({"masking": {"max_predictions": 10**9}}, "`max_predictions` must be at most 65535"),
                         ({"sequence_length": 7}, "`sequence_length` must be at least 8 and at most 65535. Received"),
                         ({"sequence_length": 2**16}, "`sequence_length` must be at least 8 and at most 65535"),
                         ({"format": "a\n" * 500}, "`format` must be 1. Received: 'a"),
                         ({"format": 9}, "`format` must be 1"), ({"next_sentence": 3}, "`next_sentence`")):  # fmt: skip
        (data / "dataset.json").write_text(json.dumps({**about, **field}))
        refused(words)
    (data / "dataset.json").write_text(json.dumps(about))
    (data / "mask_ends.npy").unlink()
    refused("mask_ends.npy must hold a NumPy array (No such file or directory)")


def test_ends_of_an_unsigned_type(tmp_path, corpus, tokenizer):
    data = tmp_path / "data"
    prepare([corpus], data, tokenizer, sequence_length=16, fix_masks=True, verbose=False)
    expected = PretrainingBatches(data, 8)[0]
    for name in ("ends", "mask_ends"):
        np.save(data / f"{name}.npy", np.load(data / f"{name}.npy").astype("uint64"))
    for ours, theirs in zip(*map(keras.tree.flatten, (PretrainingBatches(data, 8)[0], expected)), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    "name, value, words",
    [
        ("token_ids", 60000, "token_ids.npy: a token id must be in [0, 30). Received: 60000"),
        ("mask_positions", 15, "mask_positions.npy: a position must be in [0, "),
        ("mask_replacements", 30, "mask_replacements.npy: a token id must be in [0, 30). Received: 30"),
        ("first_lengths", 17, "first_lengths.npy: a length must be in [0, "),
        ("next_sentence_labels", 2, "next_sentence_labels.npy: a label must be in [0, 2). Received: 2"),
    ],
)
def test_values_that_no_example_has(tmp_path, corpus, tokenizer, name, value, words):
    data = tmp_path / "data"
    prepare([corpus], data, tokenizer, sequence_length=16, fix_masks=True, verbose=False)
    values = np.load(data / f"{name}.npy")
    values[-1] = value
    np.save(data / f"{name}.npy", values)
    batches = PretrainingBatches(data, 1)
    with short_error(words):
        batches.take(np.array([batches.examples - 1]))


def test_examples_that_are_longer_than_is_said(tmp_path, corpus, tokenizer):
    prepare([corpus], tmp_path / "data", tokenizer, sequence_length=16, verbose=False)
    about = tmp_path / "data" / "dataset.json"
    about.write_text(json.dumps({**json.loads(about.read_text()), "sequence_length": 8}))
    with pytest.raises(ValueError, match=r"ends.npy: a length must be in \[0, 9\). Received: 1\d$"):
        list(PretrainingBatches(tmp_path / "data", 4))


def test_examples_without_predictions(tmp_path, tokenizer):
    """A word of five pieces is more than the one prediction that so short an example has."""
    (tmp_path / "text").write_text("longererererer\n\n" * 20)
    options = {"sequence_length": 16, "masking": Masking(3, whole_words=True), "verbose": False}
    for fix_masks in (False, True):
        prepare([tmp_path / "text"], tmp_path / f"data{fix_masks}", tokenizer, fix_masks=fix_masks, **options)
        _, _, weights = PretrainingBatches(tmp_path / f"data{fix_masks}", 4)[0]
        assert (weights["mlm"] == 0).all()


def test_epochs_go_on_where_the_last_one_ended(tmp_path, corpus, tokenizer):
    prepare([corpus], tmp_path / "data", tokenizer, sequence_length=16, verbose=False)
    whole = PretrainingBatches(tmp_path / "data", 8)
    some = PretrainingBatches(tmp_path / "data", 8, epoch_batches=5)
    for step in range(2 * len(whole)):
        whole.epoch, place = divmod(step, len(whole))
        some.epoch, index = divmod(step, 5)
        np.testing.assert_array_equal(whole[place][0]["token_ids"], some[index][0]["token_ids"])


MASKINGS = pytest.mark.parametrize(
    "options", [{}, {"masking": Masking(2, whole_words=True)}, {"next_token": True}], ids=["drawn", "words", "next"]
)


def flat(batch):
    return [array.tobytes() for array in keras.tree.flatten(batch)]


@MASKINGS
def test_parts_are_the_same_in_any_order(tmp_path, corpus, tokenizer, options):
    """Parts of one update share what is drawn for it; parts of two updates share nothing."""
    prepare([corpus], tmp_path / "data", tokenizer, sequence_length=16, verbose=False)
    options = {"batch_size": 8, "epoch_batches": 6, **options}
    whole = PretrainingBatches(tmp_path / "data", **{**options, "batch_size": 24, "epoch_batches": 2})
    parts = PretrainingBatches(tmp_path / "data", gradient_accumulation_steps=3, **options)
    whole.epoch = parts.epoch = 4
    for index, part in np.random.default_rng(0).permutation([(i, p) for i in range(6) for p in range(2)]).tolist() * 2:
        own = slice(place := 8 * (index % 3) + 4 * part, place + 4)
        expected = keras.tree.map_structure(lambda array, own=own: array[own], whole[index // 3])
        assert flat(parts.part_of(index, part, 2)) == flat(expected)


@MASKINGS
def test_predictions_are_counted_once_an_update(tmp_path, corpus, tokenizer, options, monkeypatch):
    """Random numbers are drawn once too: the cost of an update does not grow with its parts."""
    prepare([corpus], tmp_path / "data", tokenizer, sequence_length=16, verbose=False)
    batches = PretrainingBatches(tmp_path / "data", 4, gradient_accumulation_steps=4, **options)
    counted, drawn = [], []
    count, random = PretrainingBatches._predictions, np.random.default_rng

    class Counted:
        def __init__(self, seed):
            self._rng = random(seed)

        def __getattr__(self, name):
            return lambda *arguments: drawn.append(name) or getattr(self._rng, name)(*arguments)

    batches[0]  # This draws the order.
    batches._update = None
    monkeypatch.setattr(np.random, "default_rng", Counted)
    monkeypatch.setattr(PretrainingBatches, "_predictions", lambda *a: counted.append(1) or count(*a))
    for index in range(8):
        batches.part_of(index, index % 2, 2)
    assert len(counted) == 2
    assert drawn == ([] if batches.next_token else ["random", "random", "integers"] * 2)


def test_a_part_may_be_taken_while_another_is_drawn(tmp_path, corpus, tokenizer, monkeypatch):
    """One of two threads takes its part while the other still draws, as TensorFlow's iterators may."""
    prepare([corpus], tmp_path / "data", tokenizer, sequence_length=16, verbose=False)
    whole = PretrainingBatches(tmp_path / "data", 16)[0]
    batches, others = PretrainingBatches(tmp_path / "data", 16), []
    integers = _RowsOf.integers

    def after_another_part(*arguments):
        if not others:
            others.append(None)
            others.append(batches.part_of(0, 1, 2))
        return integers(*arguments)

    monkeypatch.setattr(_RowsOf, "integers", after_another_part)
    first = batches.part_of(0, 0, 2)
    for number, part in enumerate((first, others[1])):
        own = slice(8 * number, 8 * number + 8)
        assert flat(part) == flat(keras.tree.map_structure(lambda array, own=own: array[own], whole))


def test_means_are_those_of_all_examples(corpus, tmp_path, tokenizer):
    """They are the tokens and predictions of an example, from which the speed of a run is computed."""
    prepare([corpus], tmp_path / "data", tokenizer, sequence_length=16, verbose=False)
    batches = PretrainingBatches(tmp_path / "data", next_token=True)
    inputs, _, weights = batches.take(np.arange(batches.examples))
    assert batches.mean_length == pytest.approx(inputs["padding_mask"].sum(axis=1).mean())
    assert batches.mean_predictions == pytest.approx((weights["mlm"] > 0).sum(axis=1).mean())
    assert len(PretrainingBatches(tmp_path / "data", batches.examples)) == 1
    few = PretrainingBatches(tmp_path / "data", masking=Masking(1, rate=0.5))
    assert few.mean_predictions == (few[0][2]["mlm"] > 0).sum(axis=1).mean() == 1


# --- Chance


def test_masks_are_of_seed_pass_and_place(corpus, tmp_path, tokenizer):
    """The same example is taken over and over, so that only chance differs."""
    prepare([corpus], tmp_path / "data", tokenizer, sequence_length=16, short_rate=0.0, verbose=False)

    def masks(seed, epoch, index):
        batches = PretrainingBatches(tmp_path / "data", 8, seed=seed)
        batches.epoch = epoch
        batches._order = lambda number: np.zeros(batches.examples, "int32")
        return batches[index][0]["mask_positions"].tobytes()

    assert len({masks(*place) for place in ((0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0))}) == 4


def test_the_first_masks_are_not_of_the_order_s_stream(corpus, tmp_path, tokenizer, monkeypatch):
    prepare([corpus], tmp_path / "data", tokenizer, sequence_length=16, verbose=False)
    batches, drawn = PretrainingBatches(tmp_path / "data", 8, seed=1), []
    monkeypatch.setattr(batches, "take", lambda rows, rng: drawn.append(rng.random()))
    batches[0]
    assert drawn[0] not in (np.random.default_rng((1, number)).random() for number in range(2))


def test_the_order_is_of_seed_and_pass(corpus, tmp_path, tokenizer):
    prepare([corpus], tmp_path / "data", tokenizer, sequence_length=16, verbose=False)

    def order(seed, epoch):
        batches = PretrainingBatches(tmp_path / "data", 32, next_token=True, seed=seed)  # Nothing is masked.
        batches.epoch = epoch
        return batches[0][0]["token_ids"].tobytes()

    assert len({order(*place) for place in ((0, 0), (0, 1), (1, 0))}) == 3


def test_sentences_that_fit_exactly_are_packed():
    spans = ex.draw_packed(documents_of([3, 4, 5, 2]), 9, 0.0, np.random.default_rng(0))
    assert spans.first.tolist() == [[0, 7], [7, 14]]


def test_duplicates_are_other_examples(corpus, tmp_path, tokenizer):
    """If the same examples came twice, each would be there an even number of times."""
    prepare([corpus], tmp_path / "data", tokenizer, sequence_length=64, duplicates=2, verbose=False)
    shard = open_shard(tmp_path / "data", False)
    counts = Counter(map(bytes, np.split(shard.token_ids, shard.ends[:-1])))
    assert any(count % 2 for count in counts.values())


def test_the_chance_of_a_block_is_its_own(tokenizer):
    documents = [Document(i, [WORDS[5 + (i + j) % 20].strip("#") for j in range(9)]) for i in range(20)]
    made = set()
    for number, seed in ((0, 1), (1, 1), (0, 2)):
        rules = ExampleRules(16, True, 0.1, 1, seed, Masking(), False)
        made.add(make_examples(Block(number, documents, []), rules, tokenizer).token_ids.tobytes())
    assert len(made) == 3


def test_half_a_pass_is_of_any_examples(tokenizer):
    """Each of twenty documents, of a word of its own, is in half of a hundred blocks."""
    words = [word for word in WORDS[5:] if not word.startswith("##")][:20]
    documents = [Document(i, [word]) for i, word in enumerate(words)]
    rules = ExampleRules(16, False, 0.0, 1, 0, Masking(), False)
    shards = [make_examples(Block(number, documents, [], passes=0.5), rules, tokenizer) for number in range(100)]
    assert {len(shard) for shard in shards} == {10}
    counts = np.bincount(np.concatenate([shard.token_ids for shard in shards]))[tokenizer.encode_batch(words)[0]]
    assert (abs(counts - 50) < 25).all()  # Five standard deviations.


def test_examples_of_a_document_do_not_stand_together(tmp_path, tokenizer):
    (tmp_path / "text").write_text("\n\n".join("\n".join([word] * 40) for word in ("good", "bad", "so", "fine")))
    prepare([tmp_path / "text"], tmp_path / "data", tokenizer, sequence_length=8, verbose=False)
    shard = open_shard(tmp_path / "data", False)
    first = shard.token_ids[np.r_[0, shard.ends[:-1]] + 1]
    assert np.count_nonzero(np.diff(first.astype(int))) > len(first) / 3


def test_what_a_kill_has_left_is_cleared_away(corpus, tmp_path, tokenizer):
    (tmp_path / ".data.part" / "shard-00000").mkdir(parents=True)
    prepare([corpus], tmp_path / "data", tokenizer, sequence_length=16, verbose=False)
    assert {path.name for path in tmp_path.iterdir()} == {"corpus.txt", "data"}


def test_each_epoch_of_fit_has_batches_of_its_own(corpus, tmp_path, tokenizer):
    prepare([corpus], tmp_path / "data", tokenizer, sequence_length=16, verbose=False)
    taken = []

    class Noted(PretrainingBatches):
        def part_of(self, index, part, parts):
            taken.append((self.epoch, index))
            return super().part_of(index, part, parts)

    model = kbz.BertPretrainer(kbz.BertBackbone(**SHALLOW))
    model.fit(Noted(tmp_path / "data", 8, epoch_batches=2), epochs=3, initial_epoch=1, shuffle=False, verbose=0)
    assert {(1, 0), (1, 1), (2, 0), (2, 1)} <= set(taken)
