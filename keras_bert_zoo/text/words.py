"""Words for a tagger, from sentences, documents of sentences, or raw text."""

import re
import reprlib
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np

from keras_bert_zoo.text.characters import CHINESE, PUNCTUATION, SPACES, members
from keras_bert_zoo.text.texts import is_list, split_texts

_EXPECTED = (
    "`x` must be a list of sentences, each a list of words, a list of documents, each a list of sentences, or texts"
)
_PUNCTUATION, _OTHERS = f"[{members(PUNCTUATION)}]", f"[^{members(PUNCTUATION + CHINESE + SPACES)}]"
# Words with the punctuation inside them, and every character that is a word of its own.
_PARTS = re.compile(f"{_OTHERS}+(?:{_PUNCTUATION}+{_OTHERS}+)*|[{members(PUNCTUATION + CHINESE)}]").finditer
_CUT_AT_APOSTROPHES = re.compile("(?s:.)[^'’]*").finditer

Span = tuple[int, int]
_LABELLED: tuple[Any, ...] = ((int, np.integer), (int, np.integer), str)


@dataclass(frozen=True)
class Words:
    """The words of all examples.

    Attributes:
        examples: The words of each; a document's sentences are concatenated.
        sentences: For documents the number of words of each sentence, else None.
        offsets: For raw text the start and end of each word, else None.
        texts: The raw texts, else None.
    """

    examples: list[list[str]]
    sentences: list[list[int]] | None = None
    offsets: list[list[Span]] | None = None
    texts: list[str] | None = None

    def split(self, rows: Any) -> list[Any]:
        """Split rows, one per word, as the words were given: by sentences, or by documents and sentences."""
        parts = _cut(rows, [len(example) for example in self.examples])
        if self.sentences is None:
            return parts
        return [_cut(part, lengths) for part, lengths in zip(parts, self.sentences, strict=True)]

    def by_sentence(self, rows: Any) -> list[Any]:
        """Split rows by sentences only."""
        parts = self.split(rows)
        return parts if self.sentences is None else list(chain.from_iterable(parts))


def is_words(x: Any) -> bool:
    """Whether `x` is meant as in-memory words or raw text: any sequence except a tuple."""
    return isinstance(x, str) or _is_list(x)


def read_words(x: Any) -> Words:
    """Convert sentences, documents or texts to `Words`.

    Raises:
        ValueError: `x` is something else, or mixes them.
    """
    if not _is_list(x):
        raise ValueError(f"{_EXPECTED}. Received: x of type {type(x).__name__}")
    first: Any = next((row for row in x if isinstance(row, (str, bytes)) or not is_list(row) or len(row)), [])
    if isinstance(first, (str, bytes)):
        texts, _ = split_texts(list(x))
        offsets = [split_text(text) for text in texts]
        examples = [[text[a:b] for a, b in spans] for text, spans in zip(texts, offsets, strict=True)]
        return Words(examples, offsets=offsets, texts=texts)
    for i, row in enumerate(x):
        if not is_list(row):
            raise ValueError(f"{_EXPECTED}. Received: x[{i}] of type {type(row).__name__}")
    if len(first) and is_list(next(iter(first))):
        sentences = [[_sentence(words, f"x[{i}][{j}]") for j, words in enumerate(row)] for i, row in enumerate(x)]
        examples = [list(chain.from_iterable(document)) for document in sentences]
        return Words(examples, [[len(words) for words in document] for document in sentences])
    return Words([_sentence(row, f"x[{i}]") for i, row in enumerate(x)])


def split_text(text: str) -> list[Span]:
    """Return the start and end of each word of a text.

    White space separates words. Punctuation at a word's edges and CJK characters are words of their own. An apostrophe
    starts a word (`Clinton's` -> `Clinton`, `'s`). Other punctuation inside a word stays: `U.S.` -> `U.S`, `.`.
    """
    spans = [part.span() for part in _PARTS(text)]
    if "'" in text or "’" in text:
        spans = [word.span() for span in spans for word in _CUT_AT_APOSTROPHES(text, *span)]
    return spans


def flat_tags(words: Words, y: Any) -> list[Any]:
    """Return the tags of all words, one after another, from `y`, which has the form of the words.

    Raises:
        ValueError: `y` does not have the form of the words.
    """
    rows = _tag_rows(y, len(words.examples), "y")
    if words.offsets is not None:
        return list(chain.from_iterable(_tags_of_spans(words, i, row) for i, row in enumerate(rows)))
    flat: list[Any] = []
    for i, row in enumerate(rows):
        if words.sentences is None:
            flat += _tag_rows(row, len(words.examples[i]), f"y[{i}]")
        else:
            for j, tags in enumerate(_tag_rows(row, len(words.sentences[i]), f"y[{i}]")):
                flat += _tag_rows(tags, words.sentences[i][j], f"y[{i}][{j}]")
    return flat


def _tags_of_spans(words: Words, i: int, spans: Any) -> list[str]:
    """Convert `(start, end, label)` in characters to one BIO tag per word."""
    assert words.offsets is not None
    offsets = words.offsets[i]
    starts, ends = ({bounds[side]: k for k, bounds in enumerate(offsets)} for side in (0, 1))
    tags = ["O"] * len(offsets)
    for span in spans if _is_list(spans) else [spans]:
        if not isinstance(span, (list, tuple)) or len(span) != 3 or not all(map(isinstance, span, _LABELLED)):
            raise ValueError(f"`y` must hold (start, end, label) for texts. Received: y[{i}] with {reprlib.repr(span)}")
        first, last = starts.get(span[0]), ends.get(span[1])
        if first is None or last is None or last < first:
            raise ValueError(
                "`y` must hold spans of whole words (keras_bert_zoo.text.words.split_text). "
                f"Received: y[{i}] with {tuple(span)!r}"
            )
        if any(tag != "O" for tag in tags[first : last + 1]):
            raise ValueError(f"`y` must hold spans that do not overlap. Received: y[{i}] with {tuple(span)!r}")
        tags[first : last + 1] = [f"B-{span[2]}", *[f"I-{span[2]}"] * (last - first)]
    return tags


def _sentence(row: Any, name: str) -> list[str]:
    if not is_list(row):
        raise ValueError(f"{_EXPECTED}. Received: {name} of type {type(row).__name__}")
    words = list(row)  # A column's first row need not have index 0.
    if words and is_list(words[0]):
        raise ValueError(f"{_EXPECTED}. Received: {name}[0] of type {type(words[0]).__name__}")
    return split_texts(words, name)[0] if words else []


def _tag_rows(y: Any, count: int, name: str) -> list[Any]:
    if not is_list(y):
        raise ValueError(
            f"`y` must have the form of `x`, one tag per word. Received: {name} of type {type(y).__name__}"
        )
    if len(y) != count:
        raise ValueError(f"`y` must have the form of `x`, one tag per word. Received: {name} with {len(y)} for {count}")
    return list(y)


def _is_list(x: Any) -> bool:
    """Whether `x` is a list but no tuple, which as `x` would be a pair, and as spans a single one."""
    return is_list(x) and not isinstance(x, tuple)


def _cut(rows: Any, lengths: list[int]) -> list[Any]:
    return [rows[start:end] for start, end in pairwise((0, *accumulate(lengths)))]
