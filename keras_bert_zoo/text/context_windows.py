"""`[CLS] question [SEP] part of a context [SEP]`, in as many windows as the context needs."""

import re
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from keras_bert_zoo.text.packing import PackedTexts, lay
from keras_bert_zoo.text.texts import is_list
from keras_bert_zoo.text.tokenizer import BertTokenizer

_ANSWERS = "`y` must hold for each question a list of its answers, each (text, start), empty if it has none"


@dataclass(frozen=True)
class ContextWindows(PackedTexts):
    """Questions and their contexts as tokens, in overlapping windows.

    Attributes:
        contexts: The context of each question.
        questions: int64 `[windows]`, the question of each window; windows of a question are adjacent.
        starts: int64 `[windows]`, the first context token of each window, at position `first_lengths`.
        counts: int64 `[windows]`, context tokens in each window.
        offsets: int64 `[tokens of all distinct contexts, 2]`, start and end of each token in characters.
        continues: bool `[tokens of all distinct contexts]`, whether a token continues a word.
        context_starts: int64 `[questions]`, where each question's context starts in `offsets`.
        context_lengths: int64 `[questions]`, tokens of each question's context.
    """

    contexts: list[str]
    questions: np.ndarray
    starts: np.ndarray
    counts: np.ndarray
    offsets: np.ndarray
    continues: np.ndarray
    context_starts: np.ndarray
    context_lengths: np.ndarray

    def context_offsets(self, question: int) -> np.ndarray:
        """Return int64 `[tokens, 2]`, the start and end of each token in characters of the context."""
        start = self.context_starts[question]
        return self.offsets[start : start + self.context_lengths[question]]

    def windows_of(self, question: int) -> range:
        """Return the indices of a question's windows."""
        return range(*np.searchsorted(self.questions, [question, question + 1]))

    def token_span(self, question: int, start: int, end: int) -> tuple[int, int] | None:
        """Return the first and the last token that overlap `context[start:end]`, or None if there is none."""
        offsets = self.context_offsets(question)  # Both columns ascend.
        first = int(np.searchsorted(offsets[:, 1], start, "right"))
        stop = int(np.searchsorted(offsets[:, 0], end, "left"))
        return (first, stop - 1) if first < stop else None

    def answer_tokens(self, question: int, text: str, start: int) -> tuple[int, int] | None:
        """Return the first and the last token of an answer.

        If its position cuts a token or begins within a word, the first position of the same text, ignoring case, that
        does neither is used, or that only begins within a word, if there is one. Some of SQuAD's answers have the
        position that a search for the text found, such as that of "7" in "1817" or "10" in "DB10". An answer may end
        within a word, as that of run_squad.py may, but not begin there: after an ASCII letter or digit.
        """
        offsets, context = self.context_offsets(question), self.contexts[question]
        continues = self.continues[self.context_starts[question] :]
        others = (match.start() for match in re.finditer(re.escape(text), context, re.IGNORECASE))
        within = None
        for place in chain([start], others):
            span = self.token_span(question, place, place + len(text))
            if span and offsets[span[0], 0] >= place and offsets[span[1], 1] <= place + len(text):
                # Symbols such as "€" begin words, too, and some scripts have no spaces between words.
                before = context[place - 1 : place]
                if not (continues[span[0]] and before.isascii() and before.isalnum()):
                    return span
                within = within or span
        return within or self.token_span(question, start, start + len(text))

    def targets(self, answers: Any) -> np.ndarray:
        """Return the start and end of each question's first answer in each window, int32 `[windows, 2]`.

        Both are 0, the position of `[CLS]`, if there is no answer or the window does not contain all of it.

        Raises:
            ValueError: `answers` have the wrong form, or do not occur in their contexts.
        """
        if not is_list(answers) or len(answers) != len(self.contexts):
            received = len(answers) if is_list(answers) else type(answers).__name__
            raise ValueError(f"{_ANSWERS}, {len(self.contexts)} lists in all. Received: {received}")
        spans = np.array([self._answer_span(i, found) for i, found in enumerate(answers)], "int64").reshape(-1, 2)
        spans = spans[self.questions]
        inside = (spans[:, 0] >= self.starts) & (spans[:, 1] < self.starts + self.counts)
        return np.where(inside[:, None], spans + (self.first_lengths - self.starts)[:, None], 0).astype("int32")

    def _answer_span(self, question: int, answers: Any) -> tuple[int, int]:
        if not is_list(answers):
            raise ValueError(f"{_ANSWERS}. Received: y[{question}]={reprlib.repr(answers)}")
        if len(answers) == 0:
            return (-1, -1)
        answer = next(iter(answers))  # A column's first row need not have index 0.
        if not isinstance(answer, (tuple, list)) or list(map(_kind, answer)) != [str, int]:
            raise ValueError(f"{_ANSWERS}. Received: y[{question}][0]={reprlib.repr(answer)}")
        text, start = answer
        if start < 0 or not text or not self.contexts[question].startswith(text, start):
            raise ValueError(
                "`y` must hold answers that occur in their contexts at `start`. "
                f"Received: y[{question}][0]={reprlib.repr(tuple(answer))}"
            )
        span = self.answer_tokens(question, text, start)
        if span is None:
            raise ValueError(
                "`y` must hold answers with at least one token. "
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
    """Tokenise questions, truncated to `question_length` tokens, and split their contexts into windows.

    Each window starts `stride` tokens after the previous one, until one reaches the context's end
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
    step = np.minimum(min(stride, sequence_length), budget)  # No token is skipped, however long the question.
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
        continues=tokenizer.continues_word[context_ids],
        context_starts=context_starts,
        context_lengths=context_lengths,
    )


def most_context(starts: np.ndarray, counts: np.ndarray) -> list[np.ndarray]:
    """Return, for each window and each token in it, whether no other window gives the token more context.

    Context is the number of tokens to the left or to the right, whichever is smaller, plus a hundredth of the window's
    length. Ties go to the first window (google-research/bert, run_squad.py).

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


def _kind(value: Any) -> type:
    return str if isinstance(value, str) else int if isinstance(value, (int, np.integer)) else type(value)
