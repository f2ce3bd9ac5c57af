"""`[CLS] question [SEP] part of a context [SEP]`, in as many windows as the context needs."""

import re
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from keras_bert_zoo.text.packing import PackedTexts, lay
from keras_bert_zoo.text.tokenizer import BertTokenizer

_ANSWERS = "`y` must hold for each question a list of its answers, each (text, start), empty where it has none"


@dataclass(frozen=True)
class ContextWindows(PackedTexts):
    """Questions and their contexts as tokens, in windows that overlap.

    Attributes:
        contexts: The context of each question.
        questions: int64 `[windows]`, the question that each is of; those of a question follow each other.
        starts: int64 `[windows]`, the context's token that each begins with. It stands at `first_lengths`.
        counts: int64 `[windows]`, tokens of the context in each.
        offsets: int64 `[tokens of all different contexts, 2]`, the characters where each starts and ends.
        context_starts: int64 `[questions]`, where the tokens of each question's context begin among these.
        context_lengths: int64 `[questions]`, tokens of each question's context.
    """

    contexts: list[str]
    questions: np.ndarray
    starts: np.ndarray
    counts: np.ndarray
    offsets: np.ndarray
    context_starts: np.ndarray
    context_lengths: np.ndarray

    def context_offsets(self, question: int) -> np.ndarray:
        """int64 `[tokens, 2]`, the characters of its context where each token starts and ends."""
        start = self.context_starts[question]
        return self.offsets[start : start + self.context_lengths[question]]

    def windows_of(self, question: int) -> range:
        """The numbers of a question's windows."""
        return range(*np.searchsorted(self.questions, [question, question + 1]))

    def token_span(self, question: int, start: int, end: int) -> tuple[int, int] | None:
        """The first and the last token that hold a character of `context[start:end]`; None where there is none."""
        offsets = self.context_offsets(question)
        held = np.flatnonzero((offsets[:, 1] > start) & (offsets[:, 0] < end))
        return (int(held[0]), int(held[-1])) if len(held) else None

    def answer_tokens(self, question: int, text: str, start: int) -> tuple[int, int] | None:
        """The first and the last token of an answer.

        Where its place cuts a word, the first place of the same text, in whatever case, that does not, if there is one:
        of SQuAD's answers some have the place that a search for the text found, such as that of "7" in "1817".
        """
        offsets, context = self.context_offsets(question), self.contexts[question]
        others = (match.start() for match in re.finditer(re.escape(text), context, re.IGNORECASE))
        for place in chain([start], others):
            span = self.token_span(question, place, place + len(text))
            if span and offsets[span[0], 0] >= place and offsets[span[1], 1] <= place + len(text):
                return span
        return self.token_span(question, start, start + len(text))

    def targets(self, answers: Any) -> np.ndarray:
        """Where the first answer of each question begins and ends in each window, int32 `[windows, 2]`.

        Where it has none, or the window does not hold it all, both are 0, the place of `[CLS]`.

        Raises:
            ValueError: `answers` are not what is expected, or do not stand in their contexts.
        """
        if not _is_list(answers) or len(answers) != len(self.contexts):
            received = len(answers) if _is_list(answers) else type(answers).__name__
            raise ValueError(f"{_ANSWERS}, {len(self.contexts)} lists in all. Received: {received}")
        spans = np.array([self._answer_span(i, found) for i, found in enumerate(answers)], "int64").reshape(-1, 2)
        spans = spans[self.questions]
        inside = (spans[:, 0] >= self.starts) & (spans[:, 1] < self.starts + self.counts)
        return np.where(inside[:, None], spans + (self.first_lengths - self.starts)[:, None], 0).astype("int32")

    def _answer_span(self, question: int, answers: Any) -> tuple[int, int]:
        if not _is_list(answers):
            raise ValueError(f"{_ANSWERS}. Received: y[{question}]={reprlib.repr(answers)}")
        if len(answers) == 0:
            return (-1, -1)
        answer = answers[0]
        if not isinstance(answer, (tuple, list)) or list(map(_kind, answer)) != [str, int]:
            raise ValueError(f"{_ANSWERS}. Received: y[{question}][0]={reprlib.repr(answer)}")
        text, start = answer
        if start < 0 or not text or not self.contexts[question].startswith(text, start):
            raise ValueError(
                "`y` must hold answers that stand in their contexts from `start` on. "
                f"Received: y[{question}][0]={reprlib.repr(tuple(answer))}"
            )
        span = self.answer_tokens(question, text, start)
        if span is None:
            raise ValueError(
                "`y` must hold answers of which the tokenizer leaves something. "
                f"Received: y[{question}][0]={reprlib.repr(tuple(answer))}"
            )
        return span


def pack_contexts(
    tokenizer: BertTokenizer,
    questions: Sequence[str],
    contexts: Sequence[str],
    sequence_length: int,
    stride: int,
    question_length: int,
) -> ContextWindows:
    """Tokenise questions, cut to `question_length` tokens, and lay windows over their contexts.

    A window begins `stride` tokens after the one before it, until one reaches the context's end
    (google-research/bert, run_squad.py).
    """
    question_ids, question_lengths = tokenizer.encode_batch(questions)
    kept = np.minimum(question_lengths, question_length)
    numbers = {
        text: number for number, text in enumerate(dict.fromkeys(contexts))
    }  # Paragraphs have several questions.
    context_ids, context_lengths, offsets = tokenizer.encode_batch_offsets(list(numbers))
    rows = np.fromiter(map(numbers.__getitem__, contexts), "int64", len(contexts))
    context_starts, context_lengths = (np.cumsum(context_lengths) - context_lengths)[rows], context_lengths[rows]

    budget = sequence_length - 3 - kept
    step = np.minimum(min(stride, sequence_length), budget)  # No token is left out, however long the question.
    windows = 1 + np.maximum(-((budget - context_lengths) // step), 0)
    of = np.repeat(np.arange(len(windows)), windows)
    starts = (np.arange(len(of)) - (np.cumsum(windows) - windows)[of]) * step[of]
    counts = np.minimum(budget[of], context_lengths[of] - starts)

    lengths = kept[of] + counts + 3
    begins = np.cumsum(lengths) - lengths
    token_ids = np.full(lengths.sum(), tokenizer.sep_token_id, dtype="int32")
    token_ids[begins] = tokenizer.cls_token_id
    lay(token_ids, begins + 1, question_ids, (np.cumsum(question_lengths) - question_lengths)[of], kept[of])
    lay(token_ids, begins + 2 + kept[of], context_ids, context_starts[of] + starts, counts)
    return ContextWindows(
        token_ids=token_ids,
        lengths=lengths,
        first_lengths=kept[of] + 2,
        pad_token_id=tokenizer.pad_token_id,
        contexts=list(contexts),
        questions=of,
        starts=starts,
        counts=counts,
        offsets=offsets,
        context_starts=context_starts,
        context_lengths=context_lengths,
    )


def most_context(starts: np.ndarray, counts: np.ndarray) -> list[np.ndarray]:
    """For each window of a context and each token in it, whether no other window gives the token more context.

    Context is the smaller of what stands left and right of the token, and of equals that in the longer window; then
    the first (google-research/bert, run_squad.py).

    Args:
        starts: int64 `[windows]`, the first token of each.
        counts: int64 `[windows]`, tokens in each.
    """
    best = np.full(int((starts + counts).max(initial=0)), -1.0)
    chosen = np.zeros(len(best), "int64")
    for number, (start, count) in enumerate(zip(starts, counts, strict=True)):
        steps = np.arange(count)
        score = np.minimum(steps, count - 1 - steps) + 0.01 * count
        window = slice(start, start + count)
        better = score > best[window]
        best[window][better] = score[better]
        chosen[window][better] = number
    return [chosen[s : s + c] == number for number, (s, c) in enumerate(zip(starts, counts, strict=True))]


def _is_list(value: Any) -> bool:
    return isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, (str, bytes))


def _kind(value: Any) -> type:
    return str if isinstance(value, str) else int if isinstance(value, (int, np.integer)) else type(value)
