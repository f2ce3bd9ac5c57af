"""Character classes against the `tokenizers` library, and where that differs from google-research/bert."""

import unicodedata

import pytest
from tokenizers import normalizers, pre_tokenizers

import keras_bert_zoo as kbz
from keras_bert_zoo.text import characters
from tests.helpers import WORDS, left_to_torch
from tests.original_tokenizer import OriginalTokenizer

UNICODE = [chr(point) for point in range(0x110000) if not 0xD800 <= point < 0xE000]


def test_classes_are_those_of_the_library():
    if left_to_torch():
        pytest.skip("the tables know no backend: once is enough")

    def normalizer(**on):
        off = {"clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False}
        return normalizers.BertNormalizer(**{**off, **on}).normalize_str

    def points(belongs):
        return {ord(character) for character in UNICODE if belongs(character)}

    clean, chinese, strip = (
        normalizer(clean_text=True),
        normalizer(handle_chinese_chars=True),
        normalizer(strip_accents=True),
    )
    split = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    expected = {
        "DROPPED": points(lambda c: clean(c) == ""),
        "SPACES": points(lambda c: clean(c) == " "),
        "CHINESE": points(lambda c: chinese(c) == f" {c} "),
        "MARKS": points(lambda c: strip(c) == ""),
        "PUNCTUATION": points(lambda c: [word for word, _ in split(f"a{c}b")] == ["a", c, "b"]),
    }
    for name, found in expected.items():
        assert characters.code_points(getattr(characters, name)) == found, name


def test_patterns():
    assert characters.pattern("21-2F 41") == r"[\x{21}-\x{2F}\x{41}]"
    assert characters.code_points("21-23 41") == {0x21, 0x22, 0x23, 0x41}


# Where transformers' tokenizer, and so ours, differs from google-research/bert's: text, lower-casing, ours, theirs.
DIFFERENCES = {
    "private-use characters are dropped": ("a\ue000b", True, ["ab"], ["[UNK]"]),
    "U+2B820 to U+2B91F are no Chinese": ("a\U0002b820", True, ["[UNK]"], ["a", "[UNK]"]),
    "a word of 101 to 200 characters is unknown": ("a" * 101, True, ["[UNK]"], ["a", *["##a"] * 100]),
    "a capital sigma is never a final one": ("ΑΣ", True, ["ασ"], ["ας"]),
    "marks of newer Unicode versions stay": ("a\u0afa", True, ["[UNK]"], ["a"]),
    "punctuation of newer Unicode versions splits no word": ("a\u2e49b", False, ["[UNK]"], ["a", "[UNK]", "[UNK]"]),
    "U+1734 is a mark still": ("a\u1734", True, ["a"], ["[UNK]"]),
    "U+166D and U+111C9 are punctuation still": ("a\u166da", False, ["a", "[UNK]", "a"], ["[UNK]"]),
    "format characters of newer Unicode versions stay": ("a\u08e2", False, ["[UNK]"], ["a"]),
    "new capital letters are lower-cased": ("\ua7cb", True, ["\u0264"], ["[UNK]"]),
    "special tokens in a text stay whole": ("a [MASK]", True, ["a", "[MASK]"], ["a", "[UNK]", "[UNK]", "[UNK]"]),
}
DIFFERENCE_WORDS = [*WORDS, "ab", "##a", "ασ", "ας", "\u0264"]


@pytest.mark.parametrize("name", DIFFERENCES)
def test_differences_from_the_original(name):
    text, lowercase, ours, theirs = DIFFERENCES[name]
    tokenizer = kbz.BertTokenizer(DIFFERENCE_WORDS, lowercase=lowercase)
    assert tokenizer.tokenize(text) == ours
    original = OriginalTokenizer(DIFFERENCE_WORDS, lowercase)
    if int(unicodedata.unidata_version.split(".")[0]) >= 13 and name != "new capital letters are lower-cased":
        assert [DIFFERENCE_WORDS[i] for i in original.encode(text)] == theirs
