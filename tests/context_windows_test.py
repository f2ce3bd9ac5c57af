"""Windows over contexts and the answers in them: cases worked by hand, and the original's way of finding them."""

import json

import numpy as np
import pandas
import pytest

import keras_bert_zoo as kbz
from benchmarks import squad_windows
from keras_bert_zoo.text.answers import AnswerSpan, FoundAnswers, search_answers
from keras_bert_zoo.text.context_windows import most_context, pack_contexts
from tests import original_squad
from tests.helpers import WORDS, ids_of, left_to_torch, short_error

pytestmark = pytest.mark.skipif(left_to_torch(), reason="knows no backend: once is enough")

CONTEXT = "The plot was dull, and very very long."  # 10 tokens: ten words and signs.
SPANS = [(0, 3), (4, 8), (9, 12), (13, 17), (17, 18), (19, 22), (23, 27), (28, 32), (33, 37), (37, 38)]


def test_tokens_with_offsets(tokenizer):
    texts = [CONTEXT, "", "longest  LONGER!", "so\u00a0it", "unknownword dull", "[MASK] film"]
    token_ids, lengths, offsets = tokenizer.encode_batch_offsets(texts)
    expected_ids, expected_lengths = tokenizer.encode_batch(texts)
    np.testing.assert_array_equal(token_ids, expected_ids)
    np.testing.assert_array_equal(lengths, expected_lengths)
    assert offsets[:10].tolist() == list(map(list, SPANS))
    assert offsets[10:15].tolist() == [[0, 4], [4, 7], [9, 13], [13, 15], [15, 16]]
    assert tokenizer.encode_batch_offsets([])[2].shape == (0, 2)


def test_windows_by_hand(tokenizer):
    """A question of 2 leaves room for 5 of 10 tokens: windows at 0, 2 and 4, and one more for the last token."""
    windows = pack_contexts(tokenizer, ["is it", "is it good"], [CONTEXT, CONTEXT], 10, stride=2, question_length=2)
    assert windows.questions.tolist() == [0] * 4 + [1] * 4  # The second question loses its third token.
    assert windows.starts.tolist() == [0, 2, 4, 6] * 2
    assert windows.counts.tolist() == [5, 5, 5, 4] * 2
    assert windows.lengths.tolist() == [10, 10, 10, 9] * 2
    assert len(windows.offsets) == 10  # One context, tokenised once.
    arrays = windows.take(np.array([1, 3]), 11)
    context = ids_of(tokenizer, [CONTEXT])[0]
    question = ids_of(tokenizer, ["is it"])[0]
    begin, end, pad = tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id
    assert arrays["token_ids"].tolist() == [
        [begin, *question, end, *context[2:7], end, pad],
        [begin, *question, end, *context[6:10], end, pad, pad],
    ]
    assert arrays["segment_ids"].tolist() == [[0] * 4 + [1] * 6 + [0], [0] * 4 + [1] * 5 + [0] * 2]
    assert arrays["padding_mask"].sum(axis=1).tolist() == [10, 9]
    assert windows.windows_of(1) == range(4, 8)


@pytest.mark.parametrize("sequence_length, stride, question_length", [(10, 2, 3), (12, 128, 8), (9, 1, 4), (40, 5, 9)])
def test_windows_as_the_original(sequence_length, stride, question_length, tokenizer):
    rng = np.random.default_rng(sequence_length)
    questions = [" ".join(rng.choice(WORDS[5:], n)) for n in rng.integers(1, 12, 30)]
    contexts = [" ".join(rng.choice(WORDS[5:], n)) for n in rng.integers(1, 30, 30)]
    questions, contexts = ([text.replace("##", "") for text in texts] for texts in (questions, contexts))
    windows = pack_contexts(tokenizer, questions, contexts, sequence_length, stride, question_length)
    for i, (question, context) in enumerate(zip(questions, contexts, strict=True)):
        kept = min(len(tokenizer.tokenize(question)), question_length)
        expected = original_squad.windows(len(tokenizer.tokenize(context)), kept, sequence_length, stride)
        rows = list(windows.windows_of(i))
        assert list(zip(windows.starts[rows], windows.counts[rows], strict=True)) == expected
        held = most_context(windows.starts[rows], windows.counts[rows])
        for number, (start, count) in enumerate(expected):
            original = [original_squad.is_most_context(expected, number, start + k) for k in range(count)]
            assert held[number].tolist() == original


def test_a_context_without_a_token_is_a_window(tokenizer):
    windows = pack_contexts(tokenizer, ["is it", "so"], ["", " \u200b"], 10, 2, 4)
    assert windows.lengths.tolist() == [5, 4]
    assert windows.targets([[], []]).tolist() == [[0, 0], [0, 0]]
    found = list(search_answers(windows, [np.zeros((2, 5)), np.ones((2, 4))], with_null=True))
    assert [one.best(9.0).text for one in found] == ["", ""]
    assert found[1].null_odds == 2.0
    assert next(search_answers(windows, [np.zeros((2, 5)), np.zeros((2, 4))], with_null=False)).n_best == []


def test_most_context_by_hand():
    """The example in run_squad.py: windows of five words, three apart; "bought" is the last of B and the second of C.

    the man went to the | to the store and bought | and bought a gallon of
    """
    held = most_context(np.array([0, 3, 6]), np.array([5, 5, 5]))
    assert held[0].tolist() == [True, True, True, True, False]  # "to": 1 right of it in A, 0 left in B.
    assert held[1].tolist() == [False, True, True, True, False]  # "the": 0 right of it in A, 1 left in B.
    assert held[2].tolist() == [False, True, True, True, True]  # "and": 1 right of it in B, 0 left in C.
    # Among equals, the longer window wins, then the first.
    longer = most_context(np.array([0, 1]), np.array([2, 3]))
    assert [most.tolist() for most in longer] == [[True, False], [True, True, True]]
    first = most_context(np.array([0, 2]), np.array([3, 3]))
    assert [most.tolist() for most in first] == [[True, True, True], [False, True, True]]


def test_places_of_answers(tokenizer):
    """`dull` is token 3 and `dull, and` 3 to 5; the windows at 0 and 2 go up to 4 and 6."""
    questions, contexts = ["is it"] * 3, [CONTEXT] * 3
    windows = pack_contexts(tokenizer, questions, contexts, 10, stride=2, question_length=2)
    answers = [[("dull", 13), ("plot", 4)], [kbz.data.Answer("dull, and", 13)], []]
    begin = 4  # [CLS] is it [SEP]
    assert windows.targets(answers).tolist() == [
        [begin + 3, begin + 3], [begin + 1, begin + 1], [0, 0], [0, 0],
        [0, 0], [begin + 1, begin + 3], [0, 0], [0, 0],
        [0, 0], [0, 0], [0, 0], [0, 0],
    ]  # fmt: skip
    column = pandas.Series(answers, index=[7, 2, 9])  # From a frame whose rows were shuffled.
    np.testing.assert_array_equal(windows.targets(column), windows.targets(answers))
    # "so" in "also" is not meant if "so" stands elsewhere; if it does not, the answer is the word that holds it.
    cut = pack_contexts(tokenizer, ["it", "it"], ["also So slow", "also a"], 16, 4, 2)
    assert cut.targets([[("so", 2)]] * 2).tolist() == [[4, 4], [3, 3]]
    # Nor is "er" in "longer", where it is a piece; run_squad.py's spans begin with words, but may end within one.
    tokenizer = kbz.BertTokenizer([*WORDS, "€", "##so"])
    cases = [
        ("longer er", "er", 4, 5), ("longer", "er", 4, 4), ("longer long", "long", 0, 3),
        ("€er er", "er", 1, 4), ("also longso", "so", 2, 5),
    ]  # fmt: skip
    contexts, texts, starts, expected = zip(*cases, strict=True)
    pieces = pack_contexts(tokenizer, ["it"] * len(cases), contexts, 16, 4, 2)
    answers = [[answer] for answer in zip(texts, starts, strict=True)]
    assert pieces.targets(answers).tolist() == [[place] * 2 for place in expected]
    # Characters of a word mean the whole word, and those between words belong to none.
    assert windows.token_span(0, 14, 15) == (3, 3)
    assert windows.token_span(0, 8, 9) is None
    assert windows.token_span(0, 0, len(CONTEXT)) == (0, 9)
    offsets = windows.context_offsets(0)
    for start in range(len(CONTEXT)):
        for end in range(start + 1, len(CONTEXT) + 1):
            held = [i for i, (a, b) in enumerate(offsets) if b > start and a < end]
            assert windows.token_span(0, start, end) == ((held[0], held[-1]) if held else None)


@pytest.mark.parametrize(
    "answers, words",
    [
        ("dull", "2 lists in all. Received: str"),
        ([[]], "2 lists in all. Received: 1"),
        ([[], "dull"], "Received: y[1]='dull'"),
        ([[], ["dull"]], "Received: y[1][0]='dull'"),
        ([[], [("dull", 13, 17)]], "Received: y[1][0]=('dull', 13, 17)"),
        ([[], [("dull", 12)]], "occur in their contexts at `start`. Received: y[1][0]=('dull', 12)"),
        ([[], [("dull", -25)]], "Received: y[1][0]=('dull', -25)"),
        ([[], [("", 0)]], "Received: y[1][0]=('', 0)"),
        ([[], [(" ", 3)]], "answers with at least one token. Received: y[1][0]=(' ', 3)"),
    ],
)
def test_bad_answers(answers, words, tokenizer):
    windows = pack_contexts(tokenizer, ["is it"] * 2, [CONTEXT] * 2, 10, 2, 2)
    with short_error(words):
        windows.targets(answers)


# --- From logits to answers


@pytest.mark.parametrize("version_2", [False, True])
@pytest.mark.parametrize("n_best, longest", [(20, 30), (3, 2), (6, 4)])
def test_answers_as_the_original(version_2, n_best, longest, tokenizer):
    rng = np.random.default_rng(0)
    contexts = [" ".join(rng.choice(WORDS[12:26], n)).replace("##", "") for n in rng.integers(1, 40, 40)]
    windows = pack_contexts(tokenizer, ["is it", "so"] * 20, contexts, 14, stride=4, question_length=2)
    logits = [rng.normal(size=(2, length + 3)).round(1).astype("float32") for length in windows.lengths]
    found = list(search_answers(windows, logits, version_2, n_best, longest))
    assert len(found) == 40
    shorter = 0
    for i, context in enumerate(contexts):
        offsets = windows.context_offsets(i)
        rows = list(windows.windows_of(i))
        expected, null_odds = original_squad.answers(
            list(zip(windows.starts[rows], windows.counts[rows], strict=True)),
            [2, 1][i % 2],
            [logits[row][:, : windows.lengths[row]].astype("float64").tolist() for row in rows],
            lambda a, b, context=context, offsets=offsets: context[offsets[a, 0] : offsets[b, 1]],
            version_2, n_best, longest,
        )  # fmt: skip
        shorter += len(expected) < n_best
        assert [span.text for span in found[i].n_best] == [one["text"] for one in expected]
        assert found[i].null_odds == pytest.approx(null_odds)
        for span, one in zip(found[i].n_best, expected, strict=True):
            assert context[span.start : span.end] == span.text
            for field in ("start_logit", "end_logit", "probability"):
                assert getattr(span, field) == pytest.approx(one[field])
    assert shorter > 0


def test_answers_by_hand(tokenizer):
    """`very very` at tokens 6 and 7: the same word twice counts once; the end may not come before the start."""
    windows = pack_contexts(tokenizer, ["it"], [CONTEXT], 16, 4, 2)
    logits = np.full((2, 14), -9.0)  # [CLS] it [SEP], ten tokens, [SEP]
    logits[0, [3 + 6, 3 + 7]] = 5.0, 4.0
    logits[1, [3 + 6, 3 + 7, 3 + 2]] = 3.0, 2.5, 8.0
    logits[:, 0] = 1.0, 2.0
    # The six best starts are "very", "very", [CLS] and, among equals, "it", [SEP] and "The".
    (found,) = search_answers(windows, [logits], with_null=True, n_best=6)
    assert [(span.text, span.start, span.end) for span in found.n_best[:4]] == [
        ("very", 23, 27),  # 5 + 3, and again 4 + 2.5
        ("very very", 23, 32),  # 5 + 2.5
        ("", 0, 0),  # 1 + 2
        ("The plot was", 0, 12),  # -9 + 8
    ]
    assert found.null_odds == 3 - 8
    assert found.n_best[0].probability == pytest.approx(np.exp(8) / np.exp([8, 7.5, 3, -1, -6, -6.5]).sum())
    assert found.best().text == found.best(-5.0).text == "very"
    assert found.best(-5.1) == found.n_best[2]
    (empty,) = search_answers(windows, [np.where(np.arange(14) == 0, 1.0, logits)], True, n_best=1)
    assert empty.n_best == [("", 0, 0, 1.0, 1.0, 1.0)]
    assert empty.best() == empty.best(9.0) == empty.n_best[0]  # The only candidate is certain.
    (short,) = search_answers(windows, [logits], with_null=False, n_best=6, max_answer_tokens=1)
    assert [span.text for span in short.n_best] == ["very"]


@pytest.mark.parametrize(
    "lowercase, context, tokens, text",
    [
        (True, "the cafe\u0301 is", (1, 1), "cafe\u0301"),
        (True, "the cafe\u0301\u0323", (0, 1), "the cafe\u0301\u0323"),  # To the last character of the context.
        (True, "the cafe \u0301 is", (1, 1), "cafe"),
        (True, "cafe\u0301s is", (0, 0), "cafe\u0301"),
        (True, "cafe\u0301s is", (0, 1), "cafe\u0301s"),
        (True, "\ud55c is", (0, 0), "\ud55c"),  # Three letters in one character.
        (False, "the cafe\u0301 is", (1, 1), "cafe"),
        (False, "the cafe\u0301 is", (1, 2), "cafe\u0301"),
        (False, "cafe\u200b is", (0, 0), "cafe"),
    ],
)
def test_marks_that_the_tokenizer_drops_are_part_of_the_answer(lowercase, context, tokens, text):
    words = [*WORDS[:5], "the", "cafe", "is", "##s", "##\u0301", "\u1112", "##\u1161", "##\u11ab"]
    windows = pack_contexts(kbz.BertTokenizer(words, lowercase), ["is"], [context], 16, 4, 2)
    logits = np.zeros((2, windows.lengths[0]))
    logits[[0, 1], np.add(tokens, 3)] = 9.0  # After [CLS] is [SEP]
    span = next(search_answers(windows, [logits], with_null=False)).best()
    assert (span.text, context[span.start : span.end]) == (text, text)


@pytest.mark.slow
@pytest.mark.parametrize("file", squad_windows.FILES)
@pytest.mark.parametrize("vocabulary", squad_windows.VOCABULARIES)
def test_answers_of_squad_come_back(vocabulary, file, data):
    """As in `benchmarks/squad_windows.py`, only answers that the file cuts out of a word do not come back."""
    lowercase = squad_windows.VOCABULARIES[vocabulary]
    tokenizer = kbz.BertTokenizer(data / "vocab" / f"{vocabulary}.vocab.txt", lowercase)
    numbers, wrong = squad_windows.check(kbz.data.read_squad(data / "squad" / f"{file}.json"), tokenizer)
    assert numbers.right >= 0.995 * numbers.answerable > 0
    assert numbers.right_short == numbers.right - numbers.long
    assert {why for why, *_ in wrong} <= {"the file's answer cuts a word"}


FOUND = [
    FoundAnswers([AnswerSpan("dull", 13, 17, 0.75, 2.0, 3.0), AnswerSpan("", 0, 0, 0.25, 1.0, 1.0)], -3.0),
    FoundAnswers([AnswerSpan("", 0, 0, 0.9, 4.0, 3.0), AnswerSpan("é", 0, 1, 0.1, 0.0, 1.0)], 6.0),
]


def test_official_files(tmp_path):
    kbz.data.write_squad_predictions(tmp_path / "new", ["p", "q"], FOUND, null_threshold=0.0)
    read = {path.name: json.loads(path.read_text("utf-8")) for path in (tmp_path / "new").iterdir()}
    assert read == {
        "predictions.json": {"p": "dull", "q": ""},
        "null_odds.json": {"p": -3.0, "q": 6.0},
        "nbest_predictions.json": {
            "p": [
                {"text": "dull", "probability": 0.75, "start_logit": 2.0, "end_logit": 3.0},
                {"text": "", "probability": 0.25, "start_logit": 1.0, "end_logit": 1.0},
            ],
            "q": [
                {"text": "", "probability": 0.9, "start_logit": 4.0, "end_logit": 3.0},
                {"text": "é", "probability": 0.1, "start_logit": 0.0, "end_logit": 1.0},
            ],
        },
    }
    kbz.data.write_squad_predictions(tmp_path / "first", ["p", "q"], FOUND)
    written = (tmp_path / "first" / "predictions.json").read_text("utf-8")
    assert json.loads(written) == {"p": "dull", "q": "é"}
    assert '"é"' in written
    lines = (tmp_path / "first" / "nbest_predictions.json").read_text("utf-8").splitlines()
    assert lines[-4:-2] == [
        '    {"text": "", "probability": 0.9, "start_logit": 4.0, "end_logit": 3.0},',
        '    {"text": "é", "probability": 0.1, "start_logit": 0.0, "end_logit": 1.0}',
    ]
    assert not (tmp_path / "first" / "null_odds.json").exists()
    kbz.data.write_squad_predictions(tmp_path / "new", ["p", "q"], FOUND)
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"predictions.json", "nbest_predictions.json"}
    for ids in (["p"], ["p", "p"]):
        with pytest.raises(ValueError, match="`ids` must be different, one for each question"):
            kbz.data.write_squad_predictions(tmp_path, ids, FOUND)
