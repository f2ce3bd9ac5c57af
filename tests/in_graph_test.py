"""The TensorFlow engine of the tokenizer against the other one."""

import ast
import subprocess
import sys
import time
import unicodedata

import keras
import numpy as np
import pytest
from tokenizers import normalizers

import keras_bert_zoo as kbz
from keras_bert_zoo.text import characters
from keras_bert_zoo.text.packing import pack_texts
from tests.characters_test import DIFFERENCE_WORDS, DIFFERENCES, UNICODE
from tests.corpora import VOCABULARIES, vocabulary
from tests.helpers import TEXTS, WORDS, ids_of, run_python, short_error

pytest.importorskip("tensorflow_text")
if keras.backend.backend() != "tensorflow":
    pytest.skip("a TensorFlow graph is the same on every backend", allow_module_level=True)

NEWER = """
    1C89 2C2F A7C0 A7CB-A7CC A7CE A7D0 A7D2 A7D4 A7D6 A7D8 A7DA A7DC 10570-1057A 1057C-1058A 1058C-10592 10594-10595
    105C9 105E4 10D50-10D65 11383 11385 1138E 11391 113C5 113C7-113C8 11938 16121-16128 16D68-16D6A 16EA0-16EB8
"""
"""Characters that got case or a decomposition after Unicode 12, which only one of `tokenizers` and TensorFlow knows.
Alone, these are the only characters on which the two engines differ, if text is lower-cased or stripped of accents. No
released vocabulary contains one.

Several marks in a row may also differ if accents are stripped: the library's decomposition is that of Unicode 9, so it
leaves 120 newer marks, which are not in `characters.MARKS`, where they are, and TensorFlow sorts them among the
others."""

ADVERSARIAL = [
    "", " ", " \t\n\r ", "\0", "a\0b", "\ufffd", "a\x01b\x7f", "a\u0085b", "a\x0bb\x0cc",
    "café CAFÉ cafe\u0301 Ångström", "ΣΊΣΥΦΟΣ ΟΔΥΣΣΕΎΣ. Σ", "Straße STRASSE ẞ", "ﬁne ﬂow ½ ² ㎏ ，。Ａ", "İstanbul ıI",
    "a\xa0b\u2003c\u3000d\u2028e\u1680f", "a\u200bb\u200cc\u200dd\ufeffe\xadf\u2060g", "don't `quote' $5 ^_^ a+b=c <x>",
    "👍🏽 👩\u200d👩\u200d👧 🏳️\u200d🌈 ❤️", "中文字 漢字㐀𠀀𪜀𫝀𫠠\U0002b920豈", "かな カナ ｶﾅ 한국어 ᄒ",
    "\u202eאבג\u202c \u200fשלום\u200e עִבְרִית",
    "अनुच्छेद ไทย မြန်မာ العربية اُردُو", *("x" * n for n in (99, 100, 101, 200, 201)), "é" * 100, "é" * 101, "中" * 120,
    "a [MASK] b", "[MASK][SEP]x[CLS]", "[mask]", "[[MASK]]", "[MA\ue000SK]", "x[UNK]", "[PAD", "\ue000\U0010ff04 a",
    "ALL [MASK] É", "\x1b[0m", "unaffable — “quoted” … ‽", "e\u0301\u0327 \u0301a",
]  # fmt: skip


def engines(vocabulary=WORDS, **options):
    tokenizer = kbz.BertTokenizer(vocabulary, **options)
    return tokenizer, tokenizer.in_graph()


def split_differently(texts, **options):
    """Return those of the texts of which the two engines make other words."""
    tokenizer, graph = engines(**options)
    normalize, split = tokenizer._engine.normalizer.normalize_str, tokenizer._engine.pre_tokenizer.pre_tokenize_str
    both = zip(texts, graph.words(texts).to_list(), strict=True)
    return [text for text, words in both if [word.encode() for word, _ in split(normalize(text))] != words]


@pytest.mark.parametrize("name", VOCABULARIES)
def test_adversarial_texts(name, data):
    tokenizer, graph = engines(vocabulary(data, name), lowercase=VOCABULARIES[name])
    texts = [*ADVERSARIAL, " ".join(ADVERSARIAL)]
    assert graph.encode_batch(texts).to_list() == ids_of(tokenizer, texts)
    for text in texts:  # Alone, so that no other text decides which way it takes.
        assert graph.encode_batch([text]).to_list() == ids_of(tokenizer, [text]), text


@pytest.mark.parametrize("name", VOCABULARIES)
def test_adversarial_texts_in_transformers(name, data):
    transformers = pytest.importorskip("transformers")
    tokenizer = kbz.BertTokenizer(vocabulary(data, name), lowercase=VOCABULARIES[name])
    ids = {token: i for i, token in enumerate(tokenizer.vocabulary)}
    theirs = transformers.BertTokenizer(vocab=ids, do_lower_case=VOCABULARIES[name])
    texts = [*ADVERSARIAL, " ".join(ADVERSARIAL)]
    assert ids_of(tokenizer, texts) == theirs(texts, add_special_tokens=False)["input_ids"]
    for text in texts:
        expected, encoding = theirs(text, return_offsets_mapping=True), tokenizer.encode(text)
        assert encoding.token_ids == expected["input_ids"], text
        assert encoding.offsets == expected["offset_mapping"], text
        # Cutting it out of the given text gives the token again, where nothing was folded or unknown.
        for token, (start, end) in zip(encoding.tokens, encoding.offsets, strict=True):
            piece = text[start:end]
            if end > start and piece.isascii() and token != "[UNK]" and piece.isprintable():
                assert token.removeprefix("##") == (piece if token[0] == "[" else tokenizer_case(tokenizer, piece))


def tokenizer_case(tokenizer, piece):
    return piece.lower() if tokenizer.lowercase else piece


@pytest.mark.parametrize("lowercase, strip_accents", [(True, None), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("split_chinese", [True, False])
def test_options(lowercase, strip_accents, split_chinese):
    words = [*WORDS, "中", "中文", "Bad", "Bád", "bád"]
    options = {"lowercase": lowercase, "strip_accents": strip_accents, "split_chinese": split_chinese}
    tokenizer, graph = engines(words, **options)
    texts = ["Bad bad", "Bád bád", "中文 bad", "Bád中"]
    assert graph.encode_batch(texts).to_list() == ids_of(tokenizer, texts)


@pytest.mark.parametrize("locale", ["tr_TR.UTF-8", pytest.param("lt_LT.UTF-8", marks=pytest.mark.slow)])
def test_a_locale_changes_no_letter(locale):
    """TensorFlow's operation looks at the process' locale, once."""
    texts = ["— IT JIĮ İ ÌÍĨ", "I\u0307 I\u0300 J\u0300 Į\u0300 ΟΔΟΣ"]
    program = f"""
import keras_bert_zoo as kbz
for strip_accents in (True, False):
    graph = kbz.BertTokenizer({WORDS!r}, strip_accents=strip_accents).in_graph()
    print([[word.decode() for word in words] for words in graph.words({texts!r}).to_list()])
"""
    printed = run_python(program, LC_ALL=locale, PYTHONUTF8="1")
    for strip_accents, line in zip((True, False), printed.splitlines(), strict=True):
        engine = kbz.BertTokenizer(WORDS, strip_accents=strip_accents)._engine
        normalized = [engine.normalizer.normalize_str(text) for text in texts]
        expected = [[word for word, _ in engine.pre_tokenizer.pre_tokenize_str(text)] for text in normalized]
        assert ast.literal_eval(line) == expected


def test_differences_from_the_original_are_the_same():
    for name, (text, lowercase, ours, _) in DIFFERENCES.items():
        graph = engines(DIFFERENCE_WORDS, lowercase=lowercase)[1]
        if name != "new capital letters are lower-cased":  # One of `NEWER`.
            assert [DIFFERENCE_WORDS[i] for i in graph.encode_batch([text])[0]] == ours, name


@pytest.mark.parametrize(
    "lowercase, step", [(True, 7), *(pytest.param(lowercase, 1, marks=pytest.mark.slow) for lowercase in (True, False))]
)
def test_all_of_unicode(lowercase, step):
    """The few characters that one of the engines does not know are the only ones to differ."""
    texts = [f"e{character}\u0301a Ab" for character in UNICODE[::step]]
    different = {ord(text[1]) for text in split_differently(texts, lowercase=lowercase)}
    assert different <= (characters.code_points(NEWER) if lowercase else set())


def test_marks_in_a_row():
    """Marks that stay are sorted alike, but for those that the library does not know."""
    marks = [c for c in UNICODE if unicodedata.combining(c) and c not in characters.character_set(characters.MARKS)]
    sort = normalizers.NFD().normalize_str
    known = [c for c in marks if sort(f"{c}\u0334") != f"{c}\u0334" or sort(f"\u0345{c}") != f"\u0345{c}"]
    assert len(known) == 83
    assert split_differently([f"a{first}{second}" for first in known for second in known]) == []
    assert split_differently(["a\u0d3b\u0c3c", "a\u0c3c\u0d3b"]) == ["a\u0d3b\u0c3c"]
    assert split_differently(["a\u1dfb\u0301\u302e", "a\u1dfb\u093a\u302e"]) == []  # U+093A keeps them apart.


@pytest.mark.parametrize("marks", ["\u0301\u0327", "\u0f73"])  # The second decomposes to two.
def test_marks_by_the_thousand_are_dropped_in_linear_time(marks, tokenizer):
    start = time.process_time()
    assert tokenizer.in_graph().encode_batch(["a" + marks * 100_000 + " film"]).to_list() == [[5, 8]]
    assert time.process_time() - start < 5


def test_marks_by_the_thousand_that_stay_are_a_long_word_in_linear_time():
    tokenizer, graph = engines([*WORDS, "\U00011446", "##\U00011446", "##\u1b44"])
    run, counts = "\u1b44\U00011446" * 50_000, (99, 100, 101, 102, 100_000)
    texts = [f"{letter}{run[:count]} film" for letter in ("a", "") for count in counts]
    start = time.process_time()
    ids = graph.encode_batch(texts).to_list()
    assert time.process_time() - start < 5
    assert ids == ids_of(tokenizer, texts)
    assert [row == [1, 8] for row in ids] == [False, True, True, True, True, False, False, True, True, True]


@pytest.mark.parametrize("name", VOCABULARIES)
def test_no_vocabulary_holds_a_newer_character(name, data):
    newer = characters.code_points(NEWER)
    assert not newer & {
        ord(character) for token in engines(vocabulary(data, name))[0].vocabulary for character in token
    }


@pytest.mark.parametrize("sequence_length", [4, 5, 8, 100])
def test_packs_as_numpy_does(tokenizer, sequence_length):
    graph = tokenizer.in_graph()
    seconds = ["very , very slow", "", "a long plot", "fine", "it was bad , bad , bad", "good"]
    for second in (None, seconds):
        packed = pack_texts(tokenizer, TEXTS, second, sequence_length)
        for lengths, length in (((), packed.lengths.max()), ((16, 32, 128), 16 if packed.lengths.max() <= 16 else 32)):
            batch = graph.pack(TEXTS, second, sequence_length, lengths)
            for name, array in packed.take(np.arange(len(TEXTS)), int(length)).items():
                np.testing.assert_array_equal(batch[name], array, err_msg=name)
                assert batch[name].dtype == "int32"


def test_no_text_is_no_row(tokenizer):
    import tensorflow as tf

    for columns in ([TEXTS[:0]], [TEXTS[:0]] * 2):
        strings = (tf.constant(column, tf.string) for column in columns)
        batch = tokenizer.in_graph().pack(*strings, sequence_length=8)
        assert {tuple(array.shape) for array in batch.values()} == {(0, 2)}


def test_in_tf_data_and_in_an_exported_graph(tmp_path):
    import tensorflow as tf

    tokenizer, graph = engines()
    texts = [*TEXTS, "a bád [MASK] film", "FINE"]
    expected = ids_of(tokenizer, texts)
    stream = tf.data.Dataset.from_tensor_slices(texts).batch(3).map(graph.encode_batch)
    assert [ids for batch in stream for ids in batch.to_list()] == expected
    graph.serve = tf.function(
        lambda texts: graph.encode_batch(texts).to_tensor(-1), input_signature=[tf.TensorSpec([None], tf.string)]
    )
    tf.saved_model.save(graph, str(tmp_path / "saved"))
    code = (
        "import sys, tensorflow as tf, tensorflow_text\n"
        "print(tf.saved_model.load(sys.argv[1]).serve(tf.constant(sys.argv[2:])).numpy().tolist())\n"
        "assert 'keras_bert_zoo' not in sys.modules"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "saved"), *texts], capture_output=True, text=True, cwd=tmp_path
    )
    assert run.returncode == 0, run.stderr[-2000:]
    width = max(map(len, expected))
    assert run.stdout.strip() == str([ids + [-1] * (width - len(ids)) for ids in expected])


def test_is_built_once_and_for_every_graph(tokenizer):
    import tensorflow as tf

    tokenizer = kbz.BertTokenizer(tokenizer.vocabulary)
    traced = tf.function(lambda texts: tokenizer.in_graph().encode_batch(texts))
    assert traced(TEXTS).to_list() == ids_of(tokenizer, TEXTS)
    assert tokenizer.in_graph().encode_batch(TEXTS).to_list() == ids_of(tokenizer, TEXTS)
    assert tokenizer.in_graph() is tokenizer.in_graph()


def test_bytes_that_are_no_utf8(tokenizer):
    assert tokenizer.in_graph().encode_batch([b"a \xff\xfe film"]).to_list() == ids_of(tokenizer, ["a film"])


@pytest.mark.parametrize("begin", ["", "##"])
def test_a_token_has_at_most_256_bytes(begin):
    word = "\u0e01" * 85 + "a"
    tokenizer, graph = engines([*WORDS, begin + word])
    texts = [f"bad{word}", f"{word}"]
    assert graph.encode_batch(texts).to_list() == ids_of(tokenizer, texts)
    assert 30 in graph.encode_batch(texts).to_list()[not begin]
    with short_error(
        "`vocabulary` must hold tokens of at most 256 bytes in a TensorFlow graph. Received: vocabulary[30]="
    ):
        engines([*WORDS, f"{begin}{word}a"])


def test_without_tensorflow_text(tokenizer, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_text", None)
    monkeypatch.delitem(sys.modules, "keras_bert_zoo.text.in_graph", raising=False)
    with pytest.raises(ValueError, match=r"need tensorflow-text: pip install .keras-bert-zoo\[tensorflow\]"):
        tokenizer.in_graph()
