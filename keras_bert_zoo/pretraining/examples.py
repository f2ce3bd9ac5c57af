"""Make pre-training examples from sentences: next-sentence pairs or packed sentences.

Follows google-research/bert, create_pretraining_data.py.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from keras_bert_zoo.text.packing import truncated_lengths

# Rows converted to arrays at a time: enough for NumPy to be fast, few enough to stay in the processor's cache.
_ROWS = 4096


@dataclass(frozen=True)
class TokenisedDocuments:
    """Documents concatenated into one array.

    Attributes:
        token_ids: int32 `[tokens]`.
        sentence_ends: int64 `[sentences]`, the end of each sentence in `token_ids`.
        document_ends: int64 `[documents]`, the end of each document in `sentence_ends`; no document is empty.
        origins: int64 `[documents]`; parts of one long document share an origin.
        partners: Number of documents at the end that only provide second segments.
    """

    token_ids: np.ndarray
    sentence_ends: np.ndarray
    document_ends: np.ndarray
    origins: np.ndarray
    partners: int = 0

    def to_pair(self) -> list[tuple[int, int]]:
        """Return the origin, and the end among the sentences, of each document that examples are made of."""
        count = len(self.origins) - self.partners
        return list(zip(self.origins[:count].tolist(), self.document_ends[:count].tolist(), strict=True))


@dataclass(frozen=True)
class Spans:
    """`n` examples as ranges of tokens. Without pairs the second range is empty.

    Attributes:
        first: int64 `[n, 2]`, start and end of segment A.
        second: int64 `[n, 2]`, start and end of segment B.
        next_sentence_labels: int64 `[n]`, 1 where B is from another document.
    """

    first: np.ndarray
    second: np.ndarray
    next_sentence_labels: np.ndarray

    def __len__(self) -> int:
        return len(self.first)

    def take(self, rows: np.ndarray) -> "Spans":
        return Spans(self.first[rows], self.second[rows], self.next_sentence_labels[rows])


@dataclass(frozen=True)
class PackedExamples:
    """`[CLS] A [SEP] B [SEP]`, or `[CLS] A [SEP]`, padded.

    Attributes:
        token_ids: int32 `[n, length]`.
        lengths: int64 `[n]`, number of tokens, including special tokens.
        first_lengths: int64 `[n]`, number of tokens in segment 0.
        next_sentence_labels: int64 `[n]`.
    """

    token_ids: np.ndarray
    lengths: np.ndarray
    first_lengths: np.ndarray
    next_sentence_labels: np.ndarray


def _draws(rng: np.random.Generator) -> Iterator[float]:
    """Yield random numbers in [0, 1), drawn in bulk: drawing them one by one would take longer than all the rest."""
    while True:
        yield from rng.random(8192).tolist()


def draw_pairs(
    documents: TokenisedDocuments, sequence_length: int, short_rate: float, rng: np.random.Generator
) -> Spans:
    """Make next-sentence pairs from one pass over the documents.

    Sentences are collected up to the target length: `sequence_length` minus three special tokens, or with probability
    `short_rate` a random length of at least 2. The original draws the target once per document; here it is drawn for
    each example, because one draw would decide for a whole book. A is a random number of the collected sentences. B is
    the rest or, with probability 0.5 and whenever there is only one sentence, sentences from a random place in another
    document. The unused sentences are then collected again.

    The original draws from all documents. Here the other document is one of those in memory, so that NSP is somewhat
    easier to learn if these are few. If all documents have one origin, they give only true pairs, and a sentence that
    is collected alone is lost.
    """
    draw = _draws(rng).__next__
    longest = sequence_length - 3
    ends = [0, *documents.sentence_ends.tolist()]  # Number of tokens before each sentence, and in total.
    document_ends = documents.document_ends.tolist()
    origins = documents.origins.tolist()
    several = len(set(origins)) > 1
    rows: list[tuple[int, int, int, int, int]] = []
    i = 0
    for origin, stop in documents.to_pair():
        while i < stop:
            target = 2 + int(draw() * (longest - 1)) if draw() < short_rate else longest
            end = min(bisect_left(ends, ends[i] + target, i + 1), stop)
            cut = i + 1 + (int(draw() * (end - i - 1)) if end - i >= 2 else 0)
            if several and (end - i == 1 or draw() < 0.5):
                other = int(draw() * len(origins))
                while origins[other] == origin:
                    other = int(draw() * len(origins))
                first, last = document_ends[other - 1] if other else 0, document_ends[other]
                b = first + int(draw() * (last - first))
                wanted = max(target - (ends[cut] - ends[i]), 1)
                b_end = min(bisect_left(ends, ends[b] + wanted, b + 1), last)
                rows.append((ends[i], ends[cut], ends[b], ends[b_end], 1))
                i = cut
            else:
                if end > cut:
                    rows.append((ends[i], ends[cut], ends[cut], ends[end], 0))
                i = end
    return _spans(rows)


def draw_packed(
    documents: TokenisedDocuments, sequence_length: int, short_rate: float, rng: np.random.Generator
) -> Spans:
    """Pack as many whole sentences as fit into each example, never across documents, in one pass without pairs."""
    draw = _draws(rng).__next__
    longest = sequence_length - 2
    ends = [0, *documents.sentence_ends.tolist()]
    rows = []
    i = 0
    for _, stop in documents.to_pair():
        while i < stop:
            target = 2 + int(draw() * (longest - 1)) if draw() < short_rate else longest
            end = min(bisect_left(ends, ends[i] + target + 1, i + 1), stop + 1) - 1
            end = max(end, i + 1)
            rows.append((ends[i], ends[end], 0, 0, 0))
            i = end
    return _spans(rows)


def _spans(rows: list[tuple[int, int, int, int, int]]) -> Spans:
    table = np.array(rows, dtype="int64").reshape(-1, 5)
    return Spans(table[:, 0:2], table[:, 2:4], table[:, 4])


def pack(
    token_ids: np.ndarray,
    spans: Spans,
    sequence_length: int,
    special: tuple[int, int, int],
    rng: np.random.Generator,
) -> Iterator[PackedExamples]:
    """Truncate each pair to `sequence_length` and add special tokens and padding.

    The longer side is truncated first, at random ends.

    Args:
        token_ids: int `[tokens]` that the spans point into.
        spans: The examples.
        sequence_length: Length in tokens, including special tokens.
        special: The ids of `[CLS]`, `[SEP]` and `[PAD]`.
        rng: Random generator.
    """
    cls, sep, pad = special
    steps = np.arange(sequence_length)
    for begin in range(0, len(spans), _ROWS):
        part = spans.take(np.arange(begin, min(begin + _ROWS, len(spans))))
        first, second = (np.diff(span, axis=1)[:, 0] for span in (part.first, part.second))
        pairs = second > 0
        kept_first, kept_second = truncated_lengths(first, second, sequence_length - 3)
        kept_first = np.where(pairs, kept_first, np.minimum(first, sequence_length - 2))
        # Each removed token is taken from the front or the back at random.
        starts = [
            span[:, 0] + rng.binomial(length - kept, 0.5)
            for span, length, kept in ((part.first, first, kept_first), (part.second, second, kept_second))
        ]
        lengths = kept_first + 2 + np.where(pairs, kept_second + 1, 0)
        in_first = steps <= kept_first[:, None]
        source = steps + np.where(in_first, starts[0][:, None] - 1, (starts[1] - kept_first - 2)[:, None])
        packed = np.where(steps < lengths[:, None], token_ids.take(source, mode="clip"), pad)
        packed[:, 0] = cls
        rows = np.arange(len(part))
        packed[rows, kept_first + 1] = packed[rows, lengths - 1] = sep
        yield PackedExamples(packed.astype("int32"), lengths, kept_first + 2, part.next_sentence_labels)
