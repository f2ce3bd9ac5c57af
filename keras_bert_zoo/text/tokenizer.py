"""WordPiece tokenisation as in transformers' `BertTokenizer`, using the engine of the `tokenizers` library."""

import logging
import os
import re
import reprlib
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count
from operator import index
from typing import Any

import numpy as np

from keras_bert_zoo.checks import check_flag
from keras_bert_zoo.text.characters import SPACES, members
from keras_bert_zoo.text.files import read_vocabulary
from keras_bert_zoo.text.texts import check_iterable, check_strings, check_tokens, find_capital

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

# The only thing that the engine refuses in a string.
_NOT_UNICODE = "A text must be valid Unicode. Received: one with half a surrogate pair"

LONGEST_TOKEN = 256
"""tensorflow-text's limit, in bytes of UTF-8 without the `##`."""

# Texts whose tokens are joined at a time, so that the indices of all tokens never exist at once.
_JOINED_TOGETHER = 10_000

_logger = logging.getLogger("keras_bert_zoo")

_WORDS = re.compile(f"[^{members(SPACES)}]+").findall
# Splits lines into ASCII punctuation, special tokens, the text between them, and line ends.
_PARTS = re.compile(
    rf"\n|\[(?:{'|'.join(token[1:-1] for token in SPECIAL_TOKENS)})\]|[!-/:-@\[-`{{-~]|[^\n!-/:-@\[-`{{-~]+"
).findall


@dataclass(frozen=True)
class Encoding:
    """One text, or one pair, as tokens.

    Attributes:
        token_ids: Ids, including `[CLS]` and `[SEP]`.
        segment_ids: 0 for the first text and its special tokens, 1 for the second.
        tokens: The tokens as strings.
        offsets: Start and end of each token as character positions in its own text; (0, 0) at special tokens.
    """

    token_ids: list[int]
    segment_ids: list[int]
    tokens: list[str]
    offsets: list[tuple[int, int]]


def check_is_tokenizer(tokenizer: Any) -> None:
    """Check that an argument is a tokenizer, not the path of its vocabulary."""
    if not hasattr(tokenizer, "encode_batch"):
        raise ValueError(f"`tokenizer` must be a BertTokenizer. Received: tokenizer={reprlib.repr(tokenizer)}")


class BertTokenizer:
    """Convert text to WordPiece tokens and back.

    Args:
        vocabulary: Path of a `vocab.txt`, or its tokens in the order of their ids, including `[PAD]`, `[UNK]`, `[CLS]`,
            `[SEP]` and `[MASK]`.
        lowercase: Whether to lower-case the text, as uncased models require.
        strip_accents: Whether to remove accents; None means the same as `lowercase`, as in the original.
        split_chinese: Whether to make each CJK character a word of its own.

    Example:

    ```python
    tokenizer = BertTokenizer("vocab.txt")
    tokenizer.tokenize("unaffable")           # ['una', '##ffa', '##ble']
    tokenizer.encode("a text", "another").token_ids
    ```
    """

    def __init__(
        self,
        vocabulary: str | os.PathLike[str] | Sequence[str],
        lowercase: bool = True,
        strip_accents: bool | None = None,
        split_chinese: bool = True,
    ) -> None:
        if isinstance(vocabulary, (str, os.PathLike)):
            vocabulary = read_vocabulary(vocabulary)
        if isinstance(vocabulary, (Mapping, Set)) or not isinstance(vocabulary, Iterable):
            raise ValueError(
                "`vocabulary` must be a file or a list of tokens in the order of their ids. "
                f"Received: vocabulary of type {type(vocabulary).__name__}"
            )
        check_flag(lowercase=lowercase, split_chinese=split_chinese)
        if not (strip_accents is None or isinstance(strip_accents, bool)):
            raise ValueError(f"`strip_accents` must be True, False or None. Received: strip_accents={strip_accents!r}")
        self.vocabulary = list(vocabulary)
        self.lowercase = lowercase
        self.strip_accents = strip_accents
        self.split_chinese = split_chinese
        check_tokens(self.vocabulary)
        ids = {token: i for i, token in enumerate(self.vocabulary)}
        if len(ids) != len(self.vocabulary):
            twice = next(token for i, token in enumerate(self.vocabulary) if ids[token] != i)
            raise ValueError(f"`vocabulary` must not hold a token twice. Received: {twice!r} twice")
        missing = [token for token in SPECIAL_TOKENS if token not in ids]
        if missing:
            raise ValueError(f"`vocabulary` must hold {', '.join(SPECIAL_TOKENS)}. Received: one without {missing}")
        if lowercase and (capital := find_capital(self.vocabulary)):
            _logger.warning("the vocabulary is cased, as it has %r: does it need lowercase=False (--cased)?", capital)
        self._ids = ids
        self.pad_token_id, self.unk_token_id, self.cls_token_id, self.sep_token_id, self.mask_token_id = (
            ids[token] for token in SPECIAL_TOKENS
        )
        self._engine = self._build_engine()

    def _build_engine(self) -> Any:
        from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

        engine = Tokenizer(models.WordPiece(self._ids, unk_token="[UNK]"))
        engine.normalizer = normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=self.split_chinese,
            strip_accents=self.strip_accents,
            lowercase=self.lowercase,
        )
        engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        engine.decoder = decoders.WordPiece(prefix="##")
        engine.post_processor = processors.TemplateProcessing(
            single="[CLS]:0 $A:0 [SEP]:0",
            pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
            special_tokens=[("[CLS]", self.cls_token_id), ("[SEP]", self.sep_token_id)],
        )
        engine.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
        return engine

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens."""
        return len(self.vocabulary)

    @cached_property
    def continues_word(self) -> np.ndarray:
        """bool `[vocabulary_size]`, True for pieces (`##…`) that continue a word."""
        return np.array([token.startswith("##") for token in self.vocabulary])

    def token_to_id(self, token: str) -> int:
        """Return the id of a token; raise a `ValueError` if it is not in the vocabulary."""
        if not isinstance(token, str) or token not in self._ids:
            raise ValueError(f"`token` must be in the vocabulary. Received: token={token!r}")
        return self._ids[token]

    def id_to_token(self, token_id: int) -> str:
        """Return the token of an id; raise a `ValueError` if it is not in the vocabulary."""
        try:
            place = index(token_id)
        except TypeError:
            place = -1
        if not 0 <= place < len(self.vocabulary):
            expected = f"`token_id` must be an integer in [0, {len(self.vocabulary)})"
            raise ValueError(f"{expected}. Received: token_id={reprlib.repr(token_id)}")
        return self.vocabulary[place]

    def tokenize(self, text: str) -> list[str]:
        """Return the tokens of a text, without special tokens."""
        return self._encode(_checked(text, "text"), add_special_tokens=False).tokens

    def encode(self, text: str, pair: str | None = None) -> Encoding:
        """Encode `[CLS] text [SEP]`, or `[CLS] text [SEP] pair [SEP]`, untruncated.

        Returns:
            An `Encoding` of lists: `token_ids`, `segment_ids`, `tokens` and `offsets`.
        """
        second = None if pair is None else _checked(pair, "pair")
        encoding = self._encode(_checked(text, "text"), second)
        return Encoding(encoding.ids, encoding.type_ids, encoding.tokens, encoding.offsets)

    def _encode(self, text: str, pair: str | None = None, **options: Any) -> Any:
        try:
            return self._engine.encode(text, pair, **options)
        except TypeError:
            raise ValueError(_NOT_UNICODE) from None

    def encode_batch(self, texts: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encode texts without special tokens: int32 `[tokens]`, concatenated, and int64 `[texts]`, tokens of each.

        In any context, white space separates words, and ASCII punctuation separates their parts. So each distinct part
        is tokenised only once.
        """
        check_iterable(texts)
        words = _numbers()
        word_rows, counts = array("i"), array("i")
        for text in texts:
            try:
                found = text.split(" ") if text.isascii() and text.isprintable() else _WORDS(text)
            except (AttributeError, TypeError):
                check_strings([text], "texts", len(counts))
                raise
            word_rows.extend(map(words.__getitem__, found))
            counts.append(len(found))
        parts = _PARTS("\n".join([*words, ""]))
        different = _numbers()
        part_rows = array("i", map(different.__getitem__, parts))
        try:
            encodings = self._engine.encode_batch_fast(list(different), add_special_tokens=False)
        except TypeError:
            raise ValueError(_NOT_UNICODE) from None
        flat = np.fromiter(chain.from_iterable(encoding.ids for encoding in encodings), "int32")
        lengths = np.fromiter(map(len, encodings), "int64", len(encodings))
        line_ends = np.flatnonzero(np.fromiter(map("\n".__eq__, parts), bool, len(parts)))
        flat, lengths = _joined(flat, lengths, np.asarray(part_rows), np.diff(line_ends, prepend=-1))
        return _joined(flat, lengths, np.asarray(word_rows), np.asarray(counts))

    def encode_words(self, words: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
        """As `encode_batch`, but a word without tokens, such as a control character, becomes `[UNK]`."""
        token_ids, lengths = self.encode_batch(words)
        token_ids = np.insert(token_ids, (np.cumsum(lengths) - lengths)[lengths == 0], self.unk_token_id)
        return token_ids, np.maximum(lengths, 1)

    def encode_batch_offsets(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """As `encode_batch`, plus int64 `[tokens, 2]`, the start and end of each token in characters of its text."""
        check_iterable(texts)
        texts = list(texts)
        try:
            encodings = self._engine.encode_batch(texts, add_special_tokens=False)
        except TypeError:
            check_strings(texts, "texts")
            raise
        token_ids = np.fromiter(chain.from_iterable(encoding.ids for encoding in encodings), "int32")
        lengths = np.fromiter(map(len, encodings), "int64", len(encodings))
        bounds = chain.from_iterable(chain.from_iterable(encoding.offsets for encoding in encodings))
        return token_ids, lengths, np.fromiter(bounds, "int64").reshape(-1, 2)

    def in_graph(self) -> Any:
        """Return this tokenizer as TensorFlow operations, an `InGraphTokenizer`, for `tf.data` and exported graphs.

        Raises:
            ValueError: tensorflow-text is not installed.
        """
        try:
            return self._in_graph
        except ImportError as error:
            raise ValueError(
                'Strings in a TensorFlow graph need tensorflow-text: pip install "keras-bert-zoo[tensorflow]". '
                f"Received: {error}"
            ) from None

    @cached_property
    def _in_graph(self) -> Any:
        import tensorflow as tf

        for i, token in enumerate(self.vocabulary):
            size = len(token.removeprefix("##").encode())
            if size > LONGEST_TOKEN:
                raise ValueError(
                    f"`vocabulary` must hold tokens of at most {LONGEST_TOKEN} bytes in a TensorFlow graph. "
                    f"Received: vocabulary[{i}]={reprlib.repr(token)} of {size}"
                )
        from keras_bert_zoo.text.in_graph import InGraphTokenizer

        strip_accents = self.lowercase if self.strip_accents is None else self.strip_accents
        with tf.init_scope():  # Else it would be part of the graph that is being traced, and of no other.
            return InGraphTokenizer(self.vocabulary, SPECIAL_TOKENS, self.lowercase, strip_accents, self.split_chinese)

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Convert ids to text, with pieces joined and the space before punctuation removed."""
        # Bytes would be integers one by one.
        each: Iterable[Any] = [token_ids] if isinstance(token_ids, (str, bytes)) else token_ids
        try:
            ids = list(map(index, each))
        except TypeError:
            raise ValueError(
                "`token_ids` must be a list of integers, such as encode(text).token_ids. "
                f"Received: token_ids={reprlib.repr(token_ids)}"
            ) from None
        for token_id in ids:
            self.id_to_token(token_id)
        return self._engine.decode(ids, skip_special_tokens=skip_special_tokens)

    def get_config(self) -> dict[str, Any]:
        return {"vocabulary": self.vocabulary, **self.options()}

    def options(self) -> dict[str, Any]:
        """Return all arguments except the vocabulary."""
        return {
            "lowercase": self.lowercase,
            "strip_accents": self.strip_accents,
            "split_chinese": self.split_chinese,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "BertTokenizer":
        return cls(**config)

    def __reduce__(self) -> Any:
        return type(self).from_config, (self.get_config(),)


def _numbers() -> defaultdict[str, int]:
    """Return a dict that numbers words as they are looked up, so that only one copy of each has to be kept."""
    return defaultdict(count().__next__)


def _joined(
    values: np.ndarray, lengths: np.ndarray, rows: np.ndarray, counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Select `rows` of the concatenated `values`, and join `counts` of them at a time: values and int64 lengths."""
    starts = np.cumsum(lengths) - lengths
    bounds = np.concatenate([[0], np.cumsum(counts)])
    joined, sums = [values[:0]], [lengths[:0]]
    for first in range(0, len(counts), _JOINED_TOGETHER):
        cuts = bounds[first : first + _JOINED_TOGETHER + 1]
        own = rows[cuts[0] : cuts[-1]]
        taken = lengths[own]
        ends = np.concatenate([[0], np.cumsum(taken)])
        joined.append(values[np.arange(ends[-1]) + np.repeat(starts[own] - ends[:-1], taken)])
        sums.append(np.diff(ends[cuts - cuts[0]]))
    return np.concatenate(joined), np.concatenate(sums)


def _checked(text: Any, name: str) -> str:
    if not isinstance(text, str):
        raise ValueError(f"`{name}` must be a string. Received: {name}={text!r} of type {type(text).__name__}")
    return text
