"""Learning a vocabulary."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from tokenizers import normalizers, pre_tokenizers

import keras_bert_zoo as kbz
from keras_bert_zoo import cli
from keras_bert_zoo.text import files
from keras_bert_zoo.text.vocabulary import _count_words, _merge
from tests.helpers import WORDS, left_to_torch, run_python, short_error

if left_to_torch():
    pytest.skip("a vocabulary knows no backend: once is enough", allow_module_level=True)

SPECIAL = WORDS[:5]


def test_merges_by_hand():
    # Pairs: a+##b 4 times (ab, ab, abc, abc), ##b+##c 2 times, then ab+##c 2 times.
    assert kbz.learn_vocabulary(["ab ab", "ABC abc!"], 11) == [*SPECIAL, "!", "##b", "##c", "a", "ab", "abc"]
    # A tie goes to the pair that comes first in the alphabet.
    assert kbz.learn_vocabulary(["xy ab"], 10) == [*SPECIAL, "##b", "##y", "a", "x", "ab"]


def test_pairs_within_one_word_are_merged_from_the_left():
    assert _merge(["a", "##a", "##a", "##a"], ("##a", "##a"), "##aa") == ["a", "##aa", "##a"]


def test_merges_are_those_of_counting_anew_each_time():
    """Words over an alphabet of three letters, in which pairs overlap, vanish and come again."""
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(["a", "b", "c"], rng.integers(1, 9))) for _ in range(400)]
    words = [([word[0], *("##" + letter for letter in word[1:])], count) for word, count in Counter(texts).items()]
    expected = [*SPECIAL, *sorted({piece for pieces, _ in words for piece in pieces})]
    while True:
        pairs = Counter()
        for pieces, count in words:
            for pair in pairwise(pieces):
                pairs[pair] += count
        if not pairs:
            break
        pair = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merged = pair[0] + pair[1].removeprefix("##")
        expected += [merged] if merged not in expected else []
        words = [(_merge(pieces, pair, merged), count) for pieces, count in words]
    assert len(expected) > 300
    assert kbz.learn_vocabulary(texts, 10_000) == expected
    assert kbz.learn_vocabulary(texts, 100) == expected[:100]


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("together", [1, 200, 2**26])
def test_words_are_counted_as_the_tokenizer_splits_them(lowercase, together, monkeypatch):
    """The words are those of each text as a whole, with all that a word may begin with, hold or end with."""
    monkeypatch.setattr("keras_bert_zoo.text.vocabulary._BYTES_COUNTED_TOGETHER", together)
    pieces = [*" " * 12, *"abAB'.,-!|$12“”…éÅßΣςİǅſﬁ", *"\t\n\r\v\f\x00\x07\x1c\x1f\x7f\x85\xa0\xad", "[MASK]", "##a"]
    pieces += [*"\u0301\u0327\u0345\u093c\u1ab0\u200b\u200d\u2009\u2028\u2029\u202f\u3000\u1680\u180e\ufeff\ufffd"]
    pieces += [*"中国\uf900\U0002f800、。「あア가\u1100\u1161กि\U0001f600\U0001d165\ue000", "q" * 100, "q" * 101]
    rng = np.random.default_rng(0)
    texts = ["".join(pieces[i] for i in rng.integers(0, len(pieces), rng.integers(0, 30))) for _ in range(2000)]
    normalizer, splitter = normalizers.BertNormalizer(lowercase=lowercase), pre_tokenizers.BertPreTokenizer()
    split = (splitter.pre_tokenize_str(normalizer.normalize_str(text)) for text in texts)
    expected = Counter(word for found in split for word, _ in found if len(word) <= 100)
    assert len(expected) > 900
    assert _count_words(iter(texts), lowercase) == expected


def test_a_text_of_learned_words_needs_few_pieces():
    texts = ["the plot was warm", "the cast was cold", "the plot was not cold"]
    tokenizer = kbz.BertTokenizer(kbz.learn_vocabulary(texts, 100))
    assert tokenizer.tokenize("The cast was warm") == ["the", "cast", "was", "warm"]
    assert kbz.learn_vocabulary(reversed(texts), 100) == tokenizer.vocabulary


def test_the_longest_piece_has_256_bytes():
    """Here 64 characters: the pieces of one word grow from its second character on, alphabetically the first."""
    word = "".join(chr(0x10428 + i) for i in range(40)) + "".join(chr(0x118C0 + i) for i in range(26))
    characters = sorted([word[0], *(f"##{character}" for character in word[1:])])
    merged = [f"##{word[1:end]}" for end in range(3, 66)]
    assert len(merged[-1].encode()) == 2 + 256
    assert kbz.learn_vocabulary([word], 1000) == [*SPECIAL, *characters, *merged]


def test_case_is_kept_on_request():
    vocabulary = kbz.learn_vocabulary(["Á b"], 10, lowercase=False)
    assert vocabulary == [*SPECIAL, "b", "Á"]
    assert kbz.learn_vocabulary(["Á b"], 10) == [*SPECIAL, "a", "b"]


def test_too_small():
    with pytest.raises(ValueError, match=r"must be at least 8, .* Received: vocabulary_size=7"):
        kbz.learn_vocabulary(["a b c"], 7)
    with pytest.raises(ValueError, match=r"`vocabulary_size` must be a positive integer. Received: .*=8000.0"):
        kbz.learn_vocabulary(["a b c"], 8000.0)


@pytest.mark.parametrize(
    "texts, words",
    [
        ("a b c", "`texts` must be a list of strings. Received: texts='a b c'"),
        (None, "`texts` must be a list of strings. Received: texts=None"),
        ({"en": None}, "`texts['en']` must be a list of strings. Received: texts['en']=None"),
        (iter(["a", float("nan")]), "`texts` must hold strings. Received: texts[1]=nan of type float"),
        ({"en": ["a", b"a"]}, "`texts['en']` must hold strings. Received: texts['en'][1]=b'a' of type bytes"),
        (["a", "\ud800"], "`texts` must hold valid Unicode. Received: texts[1] with half a surrogate pair"),
    ],
)
def test_what_is_no_text(texts, words):
    with pytest.raises(ValueError) as error:
        kbz.learn_vocabulary(texts, 30)
    assert str(error.value) == words


def test_from_text_files(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeffxy\u2028ab\r\n\r\n".encode())
    (tmp_path / "b.txt").write_bytes(b"ab")
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    assert list(kbz.read_lines(paths)) == ["xy\u2028ab", "ab"]
    vocabulary = kbz.learn_vocabulary(kbz.read_lines(paths), 11)
    assert vocabulary == [*SPECIAL, "##b", "##y", "a", "x", "ab", "xy"]
    kbz.write_vocabulary(tmp_path / "vocab.txt", vocabulary)
    assert kbz.BertTokenizer(tmp_path / "vocab.txt").vocabulary == vocabulary
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.txt", "vocab.txt"]


@pytest.mark.parametrize(
    "vocabulary, words",
    [
        ("abc", "must be a list of tokens in the order of their ids. Received: vocabulary of type str"),
        ({"a": 0}, "must be a list of tokens in the order of their ids. Received: vocabulary of type dict"),
        (["a", "a\nb"], "`vocabulary` must hold right-stripped strings of one line. Received: vocabulary[1]='a\\nb'"),
        (["a "], "`vocabulary` must hold right-stripped strings of one line. Received: vocabulary[0]='a '"),
        (["a\r"], "`vocabulary` must hold right-stripped strings of one line. Received: vocabulary[0]='a\\r'"),
        (["a", 3], "`vocabulary` must hold strings. Received: vocabulary[1]=3 of type int"),
        (["\ufeffa"], "`vocabulary` must not begin with U+FEFF. Received: vocabulary[0] with it"),
        (["\ud800"], "`vocabulary` must hold valid Unicode. Received: vocabulary[0] with half a surrogate pair"),
    ],
)
def test_what_is_no_vocabulary_is_not_written(vocabulary, words, tmp_path):
    with short_error(words):
        kbz.write_vocabulary(tmp_path / "vocab.txt", vocabulary)
    assert list(tmp_path.iterdir()) == []


def test_a_long_line_comes_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_LONGEST_LINE", 4)
    (tmp_path / "a.txt").write_text("abcdefghij\nk")
    assert list(kbz.read_lines(tmp_path / "a.txt")) == ["abcd", "efgh", "ij", "k"]
    with pytest.raises(ValueError, match=r"a.txt must have lines shorter than 1 MiB. Received: a longer line 1"):
        list(kbz.read_lines(tmp_path / "a.txt", whole=True))
    (tmp_path / "a.txt").write_bytes(b"a\nb\xffcdefg\xc3\xa4h\nk")  # Its parts end at d and within the umlaut.
    skipped = []
    lines = kbz.read_lines(tmp_path / "a.txt", skip=lambda number, reason: skipped.append((number, reason)))
    assert (list(lines), skipped) == (["a", "k"], [(2, "invalid start byte")])
    (tmp_path / "a.txt").write_bytes(b"a\nbcd\xc3")  # It ends within an umlaut, and its last part is full.
    lines = kbz.read_lines(tmp_path / "a.txt", skip=lambda number, reason: skipped.append((number, reason)))
    assert (list(lines), skipped[1:]) == (["a", "bcd"], [(2, "unexpected end of data")])
    with pytest.raises(ValueError, match=r"a.txt must be UTF-8 text \(unexpected end of data in line 2\)"):
        list(kbz.read_lines(tmp_path / "a.txt"))
    (tmp_path / "a.txt").write_text("abcdefgh\n\nk\n")  # The first line's end is a part of its own.
    assert list(kbz.read_lines(tmp_path / "a.txt", empty=True)) == ["abcd", "efgh", "", "k"]
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbf\xc3\xa4b\nk\n")  # The part of the mark ends within the umlaut.
    assert list(kbz.read_lines(tmp_path / "a.txt")) == ["\u00e4b", "k"]


def test_bad_files(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"fine\nb\xff")
    with pytest.raises(ValueError, match=r"a.txt must be UTF-8 text \(invalid start byte in line 2\)"):
        list(kbz.read_lines(tmp_path / "a.txt"))
    for encoding in ("utf-16-le", "utf-16-be"):
        (tmp_path / "a.txt").write_text("\ufefffine\n", encoding=encoding)
        with pytest.raises(ValueError, match=r"a.txt must be UTF-8 text\. Received: UTF-16"):
            list(kbz.read_lines(tmp_path / "a.txt", skip=print))
    with pytest.raises(ValueError, match=r"b.txt must be a text file \(No such file"):
        list(kbz.read_lines(tmp_path / "b.txt"))


def test_rare_characters_give_way():
    common = [chr(0xAC00 + i) for i in range(998)]
    texts = ["ab ab ab", *common, *common, "a\u3042"]
    vocabulary = kbz.learn_vocabulary(texts, 2000, lowercase=False)
    assert set(vocabulary) == {*SPECIAL, *common, "a", "##b", "ab"}
    tokens = kbz.learn_vocabulary([*texts, *["\u3042\u3044"] * 3], 2000, lowercase=False)
    assert "\u3042\u3044" in tokens
    assert len({token.removeprefix("##") for token in tokens if len(token.removeprefix("##")) == 1}) == 1000


def test_chinese_characters_are_words():
    """They fill half of the room that 1,000 other characters leave."""
    chinese, common = [chr(0x4E00 + i) for i in range(1500)], [chr(0xAC00 + i) for i in range(900)]
    texts = ["".join(chinese), *common, *common]
    for size, count in ((2100, 100), (5000, 1500), (4000, 1000)):
        tokens = kbz.learn_vocabulary(texts, size, lowercase=False)
        assert set(common) < set(tokens)
        assert [token for token in tokens if token in set(chinese)] == chinese[:count]
        other = kbz.learn_vocabulary(["".join(reversed(chinese)), *texts[1:]], size, lowercase=False)
        assert other == tokens  # Of equally frequent ones the first ones stay, in whatever order they come.


def test_what_the_tokenizer_does_not_cut_is_not_learned_from():
    texts = ["good film"]
    expected = kbz.learn_vocabulary(texts, 30)
    assert kbz.learn_vocabulary(["qz" * 50 + "q good film"], 30) == expected
    assert any("zq" in token for token in kbz.learn_vocabulary(["qz" * 50 + " good film"], 30))  # Of 100 characters.


@pytest.mark.parametrize("texts", [[], [""], ["\x00"], ["q" * 101]])
def test_no_words(texts):
    with pytest.raises(ValueError, match=r"`texts` must hold words\. Received: none"):
        kbz.learn_vocabulary(texts, 30)


def test_the_same_in_every_process(tmp_path):
    (tmp_path / "a.txt").write_text("it is a film and it is fine , the plot is thin but the cast shines\n" * 3)
    code = "import sys, keras_bert_zoo as kbz; print(kbz.learn_vocabulary(kbz.read_lines(sys.argv[1]), 60))"
    outputs = {run_python(code, tmp_path / "a.txt", PYTHONHASHSEED=seed) for seed in ("1", "2")}
    assert len(outputs) == 1
    assert len(outputs.pop()) > 300


def test_case_at_the_console(tmp_path):
    (tmp_path / "text").write_text("Film film\n" * 9)
    for more, there in (([], False), (["--cased"], True)):
        options = [str(tmp_path / "text"), "--size", "40", "--out", str(tmp_path / "vocab.txt"), *more]
        assert cli.main(["vocab", *options]) == 0
        assert ("Film" in kbz.BertTokenizer(tmp_path / "vocab.txt").vocabulary) == there
