"""Search for answers in the logits of windows: the best spans of each question's context."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

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
        span = next((span for span in self.n_best if span.text), _NOTHING)
        if null_threshold is not None and self.null_odds > null_threshold:
            return next((span for span in self.n_best if not span.text), _NOTHING)
        return span


_NOTHING = AnswerSpan("", 0, 0, 0.0, 0.0, 0.0)


def texts_and_odds(found: Sequence[FoundAnswers]) -> tuple[list[str], list[float]]:
    """Return the inputs of SQuAD's scores: each question's best span and odds of no answer."""
    return [one.best().text for one in found], [one.null_odds for one in found]


class _Candidate(NamedTuple):
    """A span of context tokens, `start` to `end`; both are -1 for no answer."""

    start: int
    end: int
    start_logit: float
    end_logit: float

    @property
    def score(self) -> float:
        return self.start_logit + self.end_logit


def search_answers(
    windows: ContextWindows,
    logits: Sequence[np.ndarray],
    with_null: bool,
    n_best: int = 20,
    max_answer_tokens: int = 30,
) -> list[FoundAnswers]:
    """Find the best spans of each question, as google-research/bert's run_squad.py does.

    In each window the `n_best` starts are combined with the `n_best` ends. A span must start at a token that has the
    most context in this window. Of spans with the same text only the best counts.

    Args:
        windows: The questions.
        logits: For each window `[2, tokens or more]`, of start and end.
        with_null: Whether no answer is a candidate (SQuAD 2.0).
        n_best: Number of starts and ends per window, and of spans per question.
        max_answer_tokens: Maximum span length in tokens.
    """
    found = []
    for question in range(len(windows.contexts)):
        rows = windows.windows_of(question)
        held = most_context(windows.starts[rows.start : rows.stop], windows.counts[rows.start : rows.stop])
        candidates: list[_Candidate] = []
        nulls: list[_Candidate] = []
        for row, most in zip(rows, held, strict=True):
            own = np.asarray(logits[row], "float64")[:, : windows.lengths[row]]
            nulls.append(_Candidate(-1, -1, float(own[0, 0]), float(own[1, 0])))
            candidates += _window_candidates(
                own, most, int(windows.first_lengths[row]), int(windows.starts[row]), n_best, max_answer_tokens
            )
        null = min(nulls, key=lambda candidate: candidate.score)  # Of the window most likely to have an answer.
        ranked = sorted([*candidates, *[null] * with_null], key=lambda candidate: -candidate.score)
        found.append(_ranked_answers(windows, question, ranked, null, with_null, n_best))
    return found


def _window_candidates(
    logits: np.ndarray, most: np.ndarray, begin: int, shift: int, n_best: int, max_answer_tokens: int
) -> list[_Candidate]:
    """Return a window's spans; its context starts at position `begin`, with the context's token `shift`."""
    starts, ends = np.argsort(-logits, axis=1, kind="stable")[:, :n_best] - begin
    starts, ends = ((tokens[(tokens >= 0) & (tokens < len(most))]) for tokens in (starts, ends))
    starts = starts[most[starts]]
    first, last = (tokens.ravel() for tokens in np.meshgrid(starts, ends, indexing="ij"))
    fits = (last >= first) & (last - first < max_answer_tokens)
    return [
        _Candidate(shift + int(a), shift + int(b), float(logits[0, begin + a]), float(logits[1, begin + b]))
        for a, b in zip(first[fits], last[fits], strict=True)
    ]


def _ranked_answers(
    windows: ContextWindows,
    question: int,
    ranked: list[_Candidate],
    null: _Candidate,
    with_null: bool,
    n_best: int,
) -> FoundAnswers:
    context, offsets = windows.contexts[question], windows.context_offsets(question)
    kept: dict[str, tuple[_Candidate, int, int]] = {}
    for candidate in ranked:
        if len(kept) == n_best:
            break
        a, b = (0, 0) if candidate.start < 0 else _characters(context, offsets, candidate.start, candidate.end)
        kept.setdefault(context[a:b], (candidate, a, b))
    if with_null:
        kept.setdefault("", (null, 0, 0))
    scores = np.array([candidate.score for candidate, _, _ in kept.values()])
    weights = np.exp(scores - scores.max(initial=-np.inf))
    spans = [
        AnswerSpan(text, a, b, float(weight), candidate.start_logit, candidate.end_logit)
        for (text, (candidate, a, b)), weight in zip(kept.items(), weights / weights.sum(), strict=True)
    ]
    # If no start and end make a span, the original uses one with score 0.
    best = next((candidate.score for text, (candidate, _, _) in kept.items() if text), 0.0)
    return FoundAnswers(spans, null.score - best)


def _characters(context: str, offsets: np.ndarray, first: int, last: int) -> tuple[int, int]:
    """Return a token span's first character, and the one after its last.

    In "cafe\u0301" an uncased tokenizer drops the mark, so no token contains it: it belongs to the one before it.
    """
    end = int(offsets[last, 1])
    stop = int(offsets[last + 1, 0]) if last + 1 < len(offsets) else len(context)
    marks = _MARKS(context, end, max(stop, end))  # Letters of one Hangul syllable have the same offsets.
    assert marks is not None
    return int(offsets[first, 0]), marks.end()
