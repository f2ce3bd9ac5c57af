"""The tokenizer against hand-worked cases and transformers' BertTokenizer."""

import pickle
import random

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from tests.corpora import GLUE, glue_texts
from tests.helpers import WORDS, ids_of, left_to_torch, short_error


def test_pieces_offsets_and_segments(tokenizer):
    encoding = tokenizer.encode("A lóngest  film!", "bad, zebra")
    assert encoding.tokens == ["[CLS]", "a", "long", "##est", "film", "!", "[SEP]", "bad", ",", "[UNK]", "[SEP]"]
    assert encoding.token_ids == [2, 5, 15, 17, 8, 22, 3, 6, 21, 1, 3]
    assert encoding.segment_ids == [0] * 7 + [1] * 4
    offsets = [(0, 0), (0, 1), (2, 6), (6, 9), (11, 15), (15, 16), (0, 0), (0, 3), (3, 4), (5, 10), (0, 0)]
    assert encoding.offsets == offsets
    assert tokenizer.tokenize("longer") == ["long", "##er"]
    assert tokenizer.encode("").token_ids == [2, 3]
    assert tokenizer.encode("bad", "").tokens == ["[CLS]", "bad", "[SEP]", "[SEP]"]


@pytest.mark.parametrize("together", [1, 2, 10_000])
def test_a_batch_end_to_end(tokenizer, monkeypatch, together):
    monkeypatch.setattr("keras_bert_zoo.text.tokenizer._JOINED_TOGETHER", together)
    texts = ["a  film", "", "longest\u2003bád", " \n", "bad\x1cplot a[MASK]film"]
    token_ids, lengths = tokenizer.encode_batch(iter(texts))
    assert lengths.tolist() == [2, 0, 3, 0, 4]
    assert (token_ids.dtype, lengths.dtype) == ("int32", "int64")
    assert ids_of(tokenizer, texts) == [tokenizer.encode(text).token_ids[1:-1] for text in texts]
    assert token_ids.tolist() == [5, 8, 15, 17, 6, 1, 5, 4, 8]
    assert ids_of(tokenizer, []) == []


def test_a_batch_looks_at_parts_of_words_as_at_whole_texts(tokenizer):
    """Each text gives what the engine makes of it as a whole, even where parts begin with marks or look special."""
    pieces = ["[MASK]", "[", "MASK]", "[UNK]", "film", "good", "!", ".", "_", "`", "~", "{", "^", "\\", "]", "@", ":"]
    pieces += [
        "\u0301",
        "\u0338",
        "≠",
        "\u00ad",
        "\x00",
        "\x1c",
        "\u2028",
        " ",
        "\u3000",
        "中",
        "É",
        "“",
        "’",
        "##est",
        "9",
    ]
    rng = random.Random(0)
    texts = ["".join(rng.choices(pieces, k=rng.randrange(1, 10))) for _ in range(5000)]
    assert ids_of(tokenizer, texts) == [tokenizer.encode(text).token_ids[1:-1] for text in texts]


def test_special_tokens_in_a_text_stay_whole(tokenizer):
    assert tokenizer.tokenize("a [MASK] film") == ["a", "[MASK]", "film"]
    assert (tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.mask_token_id) == (0, 1, 4)


def test_case_is_kept_on_request():
    cased = kbz.BertTokenizer([*WORDS, "Film"], lowercase=False)
    assert cased.tokenize("Film film Bád") == ["Film", "film", "[UNK]"]


def test_a_cased_vocabulary_that_is_lower_cased_is_warned_of(caplog):
    for words, lowercase in (([*WORDS, "<S>", "\u211d"], True), ([*WORDS, "Film"], False)):
        kbz.BertTokenizer(words, lowercase)
    assert not caplog.records
    kbz.BertTokenizer([*WORDS, "Film"])
    assert "the vocabulary is cased, as it has 'Film'" in caplog.text


def test_decode_joins_pieces(tokenizer):
    ids = tokenizer.encode("the longest film, it is fine!").token_ids
    assert tokenizer.decode(ids) == "the longest film, it is fine!"
    assert tokenizer.decode(ids, skip_special_tokens=False).startswith("[CLS] the longest")
    for others in (np.array(ids, "uint8"), keras.ops.convert_to_tensor(ids, "int32"), iter(ids)):
        assert tokenizer.decode(others) == "the longest film, it is fine!"


def test_tokens_and_ids(tokenizer):
    assert [tokenizer.token_to_id(token) for token in WORDS] == list(range(len(WORDS)))
    assert [tokenizer.id_to_token(i) for i in range(tokenizer.vocabulary_size)] == WORDS


def test_saves(tokenizer, tmp_path):
    config = keras.saving.serialize_keras_object(tokenizer)
    for again in (keras.saving.deserialize_keras_object(config), pickle.loads(pickle.dumps(tokenizer))):
        assert again.get_config() == tokenizer.get_config()
        assert again.encode("a lóngest film").token_ids == tokenizer.encode("a lóngest film").token_ids
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n", "utf-8")
    assert kbz.BertTokenizer(tmp_path / "vocab.txt").vocabulary == WORDS


def test_files_of_a_vocabulary(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\ufeff" + "\n".join(WORDS), "utf-8")  # As some editors save it.
    assert kbz.BertTokenizer(path).vocabulary == WORDS
    with path.open("wb") as file:
        file.truncate(257 * 2**20)
    with pytest.raises(ValueError, match=r"vocab.txt must be at most 256 MiB\. Received: 257 MiB"):
        kbz.BertTokenizer(path)


def test_white_space_after_a_token_is_not_of_it(tmp_path):
    """As in transformers, which takes away Unicode's too, and so makes `##` of a token of bert-base-chinese."""
    transformers = pytest.importorskip("transformers")
    if left_to_torch():
        pytest.skip("the tokenizer knows no backend: once is enough")
    path = tmp_path / "vocab.txt"
    path.write_bytes("\n".join([*WORDS, "  ", "##\u2028"]).replace("film", "film \t").replace("bad", "bad \r").encode())
    tokenizer = kbz.BertTokenizer(path)
    assert tokenizer.vocabulary == [*WORDS, "  ", "##\u2028"]
    theirs = transformers.BertTokenizer.from_pretrained(tmp_path)
    assert tokenizer.encode("a bad film").token_ids == theirs("a bad film")["input_ids"] == [2, 5, 6, 8, 3]
    kbz.text.write_vocabulary(path, tokenizer.vocabulary)
    assert kbz.BertTokenizer(path).vocabulary == tokenizer.vocabulary


@pytest.mark.parametrize(
    "run, words",
    [
        (lambda t: kbz.BertTokenizer(WORDS[1:]), "['[PAD]']"),
        (
            lambda t: kbz.BertTokenizer(dict.fromkeys(WORDS)),
            "a list of tokens in the order of their ids. Received: v",
        ),
        (lambda t: kbz.BertTokenizer(set(WORDS)), "a list of tokens in the order of their ids"),
        (lambda t: kbz.BertTokenizer([*WORDS, "bad"]), "must not hold a token twice. Received: 'bad' twice"),
        (lambda t: kbz.BertTokenizer([*WORDS, "x\ny"]), "right-stripped strings of one line. Received: vocabulary[30]"),
        (lambda t: kbz.BertTokenizer([*WORDS, "\ud800"]), "Received: vocabulary[30] with half a surrogate pair"),
        (lambda t: t.encode(3), "`text` must be a string. Received: text=3 of type int"),
        (lambda t: t.encode("a", b"b"), "`pair` must be a string"),
        (lambda t: t.encode("a", "\ud800"), "A text must be valid Unicode. Received: one with half a surrogate pair"),
        (lambda t: t.tokenize("\ud800"), "A text must be valid Unicode. Received: one with half a surrogate pair"),
        (lambda t: t.encode_batch("a film"), "`texts` must be a list of strings. Received: texts='a film'"),
        (lambda t: t.encode_batch(None), "`texts` must be a list of strings. Received: texts=None"),
        (
            lambda t: t.encode_batch(iter(["a film", float("nan")])),
            "`texts` must hold strings. Received: texts[1]=nan of type float",
        ),
        (lambda t: t.encode_batch(["a", b"film"]), "Received: texts[1]=b'film' of type bytes"),
        (lambda t: t.encode_batch(["\ud800 a"]), "A text must be valid Unicode. Received: one with half"),
        (lambda t: t.encode_words(["a", None]), "`texts` must hold strings. Received: texts[1]=None of type NoneType"),
        (lambda t: t.encode_batch_offsets("a film"), "`texts` must be a list of strings. Received: texts='a film'"),
        (lambda t: t.encode_batch_offsets(["a", float("nan")]), "Received: texts[1]=nan of type float"),
        (lambda t: t.encode_batch_offsets(["a", "\ud800"]), "Received: texts[1] with half a surrogate pair"),
        (lambda t: kbz.BertTokenizer(None), "`vocabulary` must be a file or a list of tokens in the order of their"),
        (
            lambda t: kbz.BertTokenizer("gone/vocab.txt"),
            "must be a text file (No such file or directory). Received: path='gone/vocab.txt'",
        ),
        (lambda t: t.token_to_id("zebra"), "Received: token='zebra'"),
        (lambda t: t.token_to_id(["a"]), "`token` must be in the vocabulary. Received: token=['a']"),
        (lambda t: t.id_to_token(-1), "`token_id` must be an integer in [0, 30). Received: token_id=-1"),
        (lambda t: t.id_to_token("a"), "Received: token_id='a'"),
        (lambda t: t.id_to_token(1.5), "Received: token_id=1.5"),
        (lambda t: t.decode([2, 30]), "Received: token_id=30"),
        (lambda t: t.decode([5.9]), "a list of integers, such as encode(text).token_ids. Received: token_ids=[5.9]"),
        (lambda t: t.decode([float("inf")]), "Received: token_ids=[inf]"),
        (lambda t: t.decode(np.array([[5]])), "Received: token_ids=array([[5]])"),
        (lambda t: t.decode([[5]]), "Received: token_ids=[[5]]"),
        (lambda t: t.decode(5), "Received: token_ids=5"),
        (lambda t: t.decode(None), "Received: token_ids=None"),
        (lambda t: t.decode(b"\2"), "Received: token_ids=b'\\x02'"),
        (lambda t: t.decode(""), "Received: token_ids=''"),
        (lambda t: t.decode(t.encode("a")), "Received: token_ids=Encoding("),
    ],
)
def test_bad_input(tokenizer, run, words):
    with short_error(words):
        run(tokenizer)


@pytest.mark.parametrize("vocabulary, lowercase", [("bert-base-uncased", True), ("bert-base-cased", False)])
def test_equal_to_transformers_on_glue(data, vocabulary, lowercase):
    transformers = pytest.importorskip("transformers")
    if left_to_torch():
        pytest.skip("the tokenizer knows no backend: once is enough")
    path = data / "vocab" / f"{vocabulary}.vocab.txt"
    ours = kbz.BertTokenizer(path, lowercase=lowercase)
    tokens = {token: i for i, token in enumerate(ours.vocabulary)}
    theirs = transformers.BertTokenizer(vocab=tokens, do_lower_case=lowercase)
    texts = [text for task in GLUE for text in glue_texts(data, task)]
    assert len(texts) > 100_000
    assert ids_of(ours, texts) == theirs(texts, add_special_tokens=False)["input_ids"]
    for first, second in zip(texts[:2000], texts[2000:4000], strict=True):
        expected = theirs(first, second, return_offsets_mapping=True)
        encoding = ours.encode(first, second)
        assert encoding.token_ids == expected["input_ids"]
        assert encoding.segment_ids == expected["token_type_ids"]
        assert encoding.offsets == expected["offset_mapping"]
    for text in texts[:500]:
        ids = ours.encode(text).token_ids
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
