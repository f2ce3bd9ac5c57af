"""Search for answers in the logits of windows: the best spans of each question's context."""

import re
from collections.abc import Iterable, Iterator, Sequence
from math import isnan
from typing import NamedTuple

import numpy as np

from keras_bert_zoo.checks import NotANumberError
from keras_bert_zoo.probabilities import softmax
from keras_bert_zoo.text.characters import MARKS, members
from keras_bert_zoo.text.context_windows import ContextWindows, most_context

_MARKS = re.compile(f"[{members(MARKS)}]*").match


class AnswerSpan(NamedTuple):
    """A span of a context, or `""` if the context has no answer.

    Attributes:
        text: Exactly `context[start:end]`.
        start: Index of its first character.
        end: Index after its last character.
        probability: Softmax of its score over the question's spans.
        start_logit: Start logit of its first token.
        end_logit: End logit of its last token.
    """

    text: str
    start: int
    end: int
    probability: float
    start_logit: float
    end_logit: float


class FoundAnswers(NamedTuple):
    """The answers found for a question.

    Attributes:
        n_best: Spans with different texts, best first; with a null threshold `""` is among them.
        null_odds: Score of no answer minus that of the best span: higher means that no answer is more likely.
    """

    n_best: list[AnswerSpan]
    null_odds: float

    def best(self, null_threshold: float | None = None) -> AnswerSpan:
        """Return the best span, or `""` if there is none or `null_odds` exceeds the threshold."""
        nothing = next((span for span in self.n_best if not span.text), _NOTHING)
        if null_threshold is not None and self.null_odds > null_threshold:
            return nothing
        return next((span for span in self.n_best if span.text), nothing)


_NOTHING = AnswerSpan("", 0, 0, 0.0, 0.0, 0.0)


def texts_and_odds(found: Iterable[FoundAnswers]) -> tuple[list[str], list[float]]:
    """Return the inputs of SQuAD's scores: each question's best span and odds of no answer.

    Raises:
        NotANumberError: The logits were no numbers, so that the best span is any.
    """
    texts, odds = [], []
    for number, one in enumerate(found):
        if isnan(one.null_odds):
            raise NotANumberError(f"The answers must have finite logits. Received: NaN for question {number}")
        texts.append(one.best().text)
        odds.append(one.null_odds)
    return texts, odds


def search_answers(
    windows: ContextWindows,
    logits: Sequence[np.ndarray],
    with_null: bool,
    n_best: int = 20,
    max_answer_tokens: int = 30,
) -> Iterator[FoundAnswers]:
    """Find the best spans of each question, as google-research/bert's run_squad.py does.

    In each window the `n_best` starts are combined with the `n_best` ends. A span must start at a token that has the
    most context in this window. Of spans with the same text only the best counts. Texts are exact parts of the context;
    the original widens those that it cannot align, such as words in Chinese or Greek, to whole words between spaces.

    Args:
        windows: The questions.
        logits: For each window the start and end logits, `[2, tokens or more]`.
        with_null: Whether "no answer" is a candidate (SQuAD 2.0).
        n_best: Number of starts and ends per window, and of spans per question.
        max_answer_tokens: Maximum span length in tokens.

    Yields:
        What is found for each question.
    """
    for question in range(len(windows.contexts)):
        rows = windows.windows_of(question)
        held = most_context(windows.starts[rows.start : rows.stop], windows.counts[rows.start : rows.stop])
        spans, values, nulls = [], [], []
        for row, most in zip(rows, held, strict=True):
            own = np.asarray(logits[row], "float64")[:, : windows.lengths[row]]
            begin = windows.first_lengths[row]
            tokens = _window_spans(own, most, begin, n_best, max_answer_tokens)
            spans.append(tokens + windows.starts[row])
            values.append(own[[0, 1], tokens + begin])
            nulls.append(own[:, 0])
        null = min(nulls, key=np.sum)  # Of the window most likely to have an answer.
        if with_null:
            spans.append(np.full((1, 2), -1))
            values.append(null[None])
        yield _ranked_answers(windows, question, np.concatenate(spans), np.concatenate(values), null, with_null, n_best)


def _window_spans(logits: np.ndarray, most: np.ndarray, begin: int, n_best: int, max_answer_tokens: int) -> np.ndarray:
    """Return a window's spans, int64 `[spans, 2]`, in tokens of its context, which starts at position `begin`."""
    starts, ends = np.argsort(-logits, axis=1, kind="stable")[:, :n_best] - begin
    starts, ends = ((tokens[(tokens >= 0) & (tokens < len(most))]) for tokens in (starts, ends))
    starts = starts[most[starts]]
    steps = ends - starts[:, None]
    first, last = np.nonzero((steps >= 0) & (steps < max_answer_tokens))
    return np.stack([starts[first], ends[last]], axis=1)


def _ranked_answers(
    windows: ContextWindows,
    question: int,
    spans: np.ndarray,
    logits: np.ndarray,
    null: np.ndarray,
    with_null: bool,
    n_best: int,
) -> FoundAnswers:
    """Rank spans `[spans, 2]` of context tokens, -1 for no answer, by their logits `[spans, 2]`."""
    context, offsets = windows.contexts[question], windows.context_offsets(question)
    order = np.argsort(-logits.sum(axis=1), kind="stable")
    null_start, null_end = null.tolist()
    kept: dict[str, tuple[int, int, float, float]] = {}
    for (first, last), (start, end) in zip(spans[order].tolist(), logits[order].tolist(), strict=True):
        if len(kept) == n_best:
            break
        a, b = (0, 0) if first < 0 else _characters(context, offsets, first, last)
        kept.setdefault(context[a:b], (a, b, start, end))
    if with_null:
        kept.setdefault("", (0, 0, null_start, null_end))
    scores = np.array([start + end for _, _, start, end in kept.values()])
    odds = softmax(scores) if kept else scores
    n_best_spans = [
        AnswerSpan(text, a, b, probability, start, end)
        for (text, (a, b, start, end)), probability in zip(kept.items(), odds.tolist(), strict=True)
    ]
    # If no start and end make a span, the original uses one with score 0.
    best = next((span.start_logit + span.end_logit for span in n_best_spans if span.text), 0.0)
    return FoundAnswers(n_best_spans, null_start + null_end - best)


def _characters(context: str, offsets: np.ndarray, first: int, last: int) -> tuple[int, int]:
    """Return a token span's first character, and the one after its last.

    In "cafe\u0301" an uncased tokenizer drops the mark, so no token contains it: it belongs to the one before it.
    """
    end = int(offsets[last, 1])
    stop = int(offsets[last + 1, 0]) if last + 1 < len(offsets) else len(context)
    marks = _MARKS(context, end, max(stop, end))  # Letters of one Hangul syllable have the same offsets.
    assert marks is not None
    return int(offsets[first, 0]), marks.end()
