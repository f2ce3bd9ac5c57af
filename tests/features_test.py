"""Features of chosen layers: transformers' hidden states, words, JSON lines, order, memory."""

import json

import keras
import numpy as np
import pandas
import pytest

import keras_bert_zoo as kbz
from tests.helpers import LABELS, TEXTS, TINY, randomise, short_error

LAYERS = (-1, -2)
WORDS = [["the", "long", "longest", "film"], [], ["\x00", "bad"], ["slowest"] * 20, ["good"]]


@pytest.fixture
def embedder(tokenizer):
    backbone = kbz.BertBackbone(**TINY, pooler=False)
    return randomise(kbz.BertTextEmbedder(backbone, preprocessor=kbz.BertPreprocessor(tokenizer, 16)))


@pytest.fixture
def hidden_states(embedder, tmp_path):
    """A function from a text or pair to transformers' tokens and their states `[layers, tokens, hidden_dim]`."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    embedder.save_to_preset(tmp_path / "preset")
    model = transformers.BertModel.from_pretrained(tmp_path / "preset").eval()
    tokenizer = transformers.BertTokenizer.from_pretrained(tmp_path / "preset")

    def run(first, second=None):
        inputs = tokenizer(first, second, return_tensors="pt", truncation=True, max_length=16)
        with torch.no_grad():
            states = model(**inputs, output_hidden_states=True).hidden_states
        return tokenizer.convert_ids_to_tokens(inputs["input_ids"][0]), torch.cat(states).numpy()

    return run


def test_tokens_against_transformers(embedder, hidden_states):
    texts = [*TEXTS, "long " * 30]
    found = list(kbz.extract_features(embedder, iter(texts), layers=(0, -1, 1), batch_size=3))
    assert len(found) == len(texts)
    for text, (tokens, layers, values) in zip(texts, found, strict=True):
        expected_tokens, states = hidden_states(text)
        assert (tokens, layers, values.dtype) == (expected_tokens, (0, -1, 1), "float32")
        np.testing.assert_allclose(values, states[[0, -1, 1]], rtol=0, atol=1e-5)
    ((tokens, _, values),) = kbz.extract_features(embedder, [("a film", "it is good")], layers=[-2])
    expected_tokens, states = hidden_states("a film", "it is good")
    assert tokens == expected_tokens
    np.testing.assert_allclose(values, states[[-2]], rtol=0, atol=1e-5)


@pytest.mark.parametrize("blocks, expected", [(2, (-1, -2)), (5, (-1, -2, -3, -4))])
def test_the_last_four_layers_are_the_default(blocks, expected, tokenizer):
    backbone = kbz.BertBackbone(**{**TINY, "num_layers": blocks}, pooler=False)
    task = randomise(kbz.BertTextEmbedder(backbone, preprocessor=kbz.BertPreprocessor(tokenizer, 16)))
    (found,) = kbz.extract_features(task, TEXTS[:1])
    (given,) = kbz.extract_features(task, TEXTS[:1], layers=expected)
    assert found.layers == expected
    np.testing.assert_allclose(found.values, given.values, atol=1e-6)


def test_words(embedder):
    """`long ##est` is one word of two tokens, a control character has no token, 20 times two tokens are cut at 14."""
    pieces = ["[CLS] the long long ##est film [SEP]", "[CLS] [SEP]", "[CLS] [UNK] bad [SEP]"]
    pieces += ["[CLS]" + " slow ##est" * 7 + " [SEP]", "[CLS] good [SEP]"]
    tokens = list(
        kbz.extract_features(embedder, ["the long longest film", "", "q bad", "slowest " * 20, "good"], LAYERS)
    )
    assert [" ".join(row.tokens) for row in tokens] == pieces
    places = [[[1], [2], [3, 4], [5]], [], [[1], [2]], [[i, i + 1] for i in range(1, 15, 2)], [[1]]]
    for words in ("first", "mean"):
        found = list(kbz.extract_features(embedder, WORDS, LAYERS, words))
        for row, whole, given, spans in zip(found, tokens, WORDS, places, strict=True):
            assert row.tokens == given[: len(spans)]
            assert row.values.shape == (2, len(spans), 8)
            for i, span in enumerate(spans):
                expected = whole.values[:, span[:1] if words == "first" else span].mean(1)
                np.testing.assert_allclose(row.values[:, i], expected, atol=1e-5)
    strings = kbz.extract_features(embedder, ["the long longest film"], np.array(LAYERS), words="mean")
    np.testing.assert_allclose(next(strings).values, found[0].values, atol=1e-5)


def test_json_lines_in_the_layout_of_the_original(embedder, tmp_path):
    found = list(kbz.extract_features(embedder, TEXTS[:2], LAYERS))
    kbz.write_features(tmp_path / "features.jsonl", found)
    lines = [json.loads(line) for line in (tmp_path / "features.jsonl").read_text().splitlines()]
    assert [line["linex_index"] for line in lines] == [0, 1]
    for line, (tokens, _, values) in zip(lines, found, strict=True):
        assert set(line) == {"linex_index", "features"}
        assert [feature["token"] for feature in line["features"]] == tokens
        for i, feature in enumerate(line["features"]):
            assert [layer["index"] for layer in feature["layers"]] == [-1, -2]
            for j, layer in enumerate(feature["layers"]):
                assert layer["values"] == [round(float(value), 6) for value in values[j, i]]
    with pytest.raises(ValueError, match="`texts` must hold strings"):  # What fails on the way leaves what was there.
        kbz.write_features(tmp_path / "features.jsonl", kbz.extract_features(embedder, ["a", None], LAYERS))
    broken = [found[0], found[1]._replace(values=found[1].values * np.nan)]
    with pytest.raises(ValueError, match=r"`features` must be finite\. Received: text 1 with NaN or infinity"):
        kbz.write_features(tmp_path / "features.jsonl", broken)
    assert len((tmp_path / "features.jsonl").read_text().splitlines()) == 2


def test_texts_stream_in_their_order(embedder):
    """Eight batches are drawn ahead and sorted together, and no more, whatever their lengths."""
    drawn = []

    def texts():
        for i in range(40):
            drawn.append(i)
            yield " ".join(["film"] * (1 + i * 7 % 13) + ["bad"] * (i % 2))

    features = kbz.extract_features(embedder, texts(), layers=(-1,), batch_size=2)
    assert drawn == []
    for i, row in enumerate(features):
        assert row.tokens[1:-1] == (["film"] * (1 + i * 7 % 13) + ["bad"] * (i % 2))
        assert len(drawn) == min((i // 16 + 1) * 16, 40)
    assert i == 39


BAD = [
    ("a film", {}, "`texts` must be a list or iterator of texts. Received: texts of type str"),
    (
        pandas.DataFrame({"text": TEXTS}),
        {},
        "`texts` must be a list or iterator of texts. Received: texts of type DataFrame",
    ),
    (TEXTS, {"layers": ()}, "`layers` must be integers in [-3, 3). Received: layers=()"),
    (TEXTS, {"layers": (True,)}, "`layers` must be integers in [-3, 3). Received: layers=(True,)"),
    (TEXTS, {"layers": (3,)}, "`layers` must be integers in [-3, 3). Received: layers=(3,)"),
    (TEXTS, {"words": "last"}, '`words` must be "first", "mean" or None. Received: words=\'last\''),
    (TEXTS, {"batch_size": 0}, "`batch_size` must be a positive integer"),
    (["a", ("a", "b")], {}, "`texts` must be all strings or all pairs. Received: both"),
    ([3], {}, "`texts` must be a list of strings"),
    ([("a", "b")], {"words": "first"}, "`texts` must hold strings or lists of words. Received: one of type tuple"),
    (["a"], {"layers": -1}, "`layers` must be integers in ["),
    ([["a", 1]], {"words": "first"}, "`texts` must hold strings. Received: texts[1]=1"),
]


def test_bad_arguments(embedder):
    for texts, options, words in BAD:
        with short_error(words):
            list(kbz.extract_features(embedder, texts, **{"layers": LAYERS, **options}))


def test_pairs_need_two_segments(tokenizer):
    backbone = kbz.BertBackbone(**TINY, num_segments=1)
    task = kbz.BertTextClassifier(backbone, 2, preprocessor=kbz.BertPreprocessor(tokenizer, 16))
    with pytest.raises(ValueError, match=r"Pairs need a backbone with two segment types"):
        list(kbz.extract_features(task, [("a", "film")], layers=[-1]))


def test_a_task_without_preprocessor(backbone):
    with pytest.raises(ValueError, match="`task` must be one with a preprocessor"):
        kbz.extract_features(backbone, TEXTS)


def test_features_while_a_task_is_trained(tokenizer):
    classifier = kbz.BertTextClassifier(
        kbz.BertBackbone(**TINY), num_classes=3, preprocessor=kbz.BertPreprocessor(tokenizer, 16)
    )
    seen = []

    def look(*_, **__):
        seen.extend(kbz.extract_features(classifier, TEXTS[:1], layers=[-1]))

    look()
    classifier.compile(kbz.AdamW(1e-2))
    looking = keras.callbacks.LambdaCallback(on_train_batch_end=look)
    classifier.fit(TEXTS, LABELS, batch_size=3, callbacks=[looking], verbose=0)
    look()
    start, first, second, end = (features.values for features in seen)
    np.testing.assert_allclose(second, end, atol=1e-6)
    assert min(np.abs(first - start).max(), np.abs(second - first).max()) > 1e-3
