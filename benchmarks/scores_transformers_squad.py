"""SQuAD with transformers' tokenizer, after its run_qa.py: windows with targets, and answers from logits."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from scores_tasks import STRIDE

N_BEST = 20
MAX_ANSWER_TOKENS = 30


def windows(tokenizer: Any, x: tuple[list[str], list[str]], length: int) -> Iterator[tuple[int, Any, list[Any]]]:
    """Yield the question, encoding and offsets of each window; the offsets are None outside the context."""
    for number, (question, context) in enumerate(zip(*x, strict=True)):
        # A tokenizer's `stride` is what windows share; BERT's is how far apart they begin.
        budget = length - 3 - len(tokenizer.tokenize(question))
        encoded = tokenizer(
            question,
            context,
            truncation="only_second",
            max_length=length,
            stride=max(budget - STRIDE, 0),
            return_overflowing_tokens=True,
        )
        for encoding in encoded.encodings:
            offsets = zip(encoding.offsets, encoding.sequence_ids, strict=True)
            yield number, encoding, [offset if part == 1 else None for offset, part in offsets]


def encode_questions(tokenizer: Any, x: Any, y: Any, length: int) -> list[dict[str, Any]]:
    """Return windows with the places of the first answer's first and last token, or `[CLS]`'s if it is not all in."""
    features = []
    for number, encoding, offsets in windows(tokenizer, x, length):
        start, end = 0, 0
        if y[number]:
            begins = y[number][0].start
            ends = begins + len(y[number][0].text)
            context = [token for token, offset in enumerate(offsets) if offset]
            if context and offsets[context[0]][0] <= begins and offsets[context[-1]][1] >= ends:
                start = max(token for token in context if offsets[token][0] <= begins)
                end = min(token for token in context if offsets[token][1] >= ends)
        features.append({
            "input_ids": encoding.ids,
            "token_type_ids": encoding.type_ids,
            "attention_mask": encoding.attention_mask,
            "start_positions": start,
            "end_positions": end,
        })  # fmt: skip
    return features


def decode_answers(
    tokenizer: Any, x: tuple[list[str], list[str]], logits: list[np.ndarray], length: int
) -> tuple[list[str], list[float]]:
    """Return each question's best span, and by how much the score of no answer is above the span's."""
    spans: list[list[tuple[float, int, int]]] = [[] for _ in x[0]]
    nulls = [np.inf] * len(x[0])
    for (number, _, offsets), own in zip(windows(tokenizer, x, length), logits, strict=True):
        nulls[number] = min(nulls[number], float(own[0].sum()))
        starts, ends = (np.argsort(-own[: len(offsets), side])[:N_BEST].tolist() for side in (0, 1))
        spans[number] += [
            (float(own[start, 0] + own[end, 1]), offsets[start][0], offsets[end][1])
            for start in starts
            for end in ends
            if offsets[start] and offsets[end] and start <= end < start + MAX_ANSWER_TOKENS
        ]
    best = [max(own, key=lambda span: span[0], default=(0.0, 0, 0)) for own in spans]
    texts = [context[start:end] for context, (_, start, end) in zip(x[1], best, strict=True)]
    return texts, [null - score for null, (score, _, _) in zip(nulls, best, strict=True)]
