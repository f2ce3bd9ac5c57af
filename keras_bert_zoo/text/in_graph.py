"""The tokenizer as TensorFlow operations: for `tf.data`, and for exported graphs that take raw strings.

Import this module only where TensorFlow is needed.
"""

import unicodedata
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tensorflow_text

from keras_bert_zoo.text.characters import (
    CHINESE,
    DROPPED,
    LONGEST_WORD,
    MARKS,
    PUNCTUATION,
    SPACES,
    code_points,
    pattern,
)

# Texts for the fast path: printable ASCII and its white space, without the bracket that starts a special token.
_PLAIN = r"[\t\n\r -Z\\-~]*"

# Capitals whose `tf.strings.lower` depends on their context (a sigma that ends a word) or on the process' locale
# (Turkish or Lithuanian), with what `tokenizers` always converts them to.
_SMALL = {
    "\u03a3": "\u03c3", "I": "i", "\u0130": "i\u0307",
    "J": "j", "\u012e": "\u012f", "\u00cc": "\u00ec", "\u00cd": "\u00ed", "\u0128": "\u0129",
}  # fmt: skip

# TensorFlow's NFD sorts the marks of a letter, in a time that grows with the square of their number. Those that are
# dropped afterwards can go before, as the others keep their order; not so those of class 0, past which no mark moves.
# Three of class 0 decompose to marks of others.
_SORTED_MARKS = " ".join(
    f"{point:X}"
    for point in sorted(code_points(MARKS))
    if unicodedata.combining(unicodedata.normalize("NFD", chr(point))[0])
)
# Those that stay are part of a word, which is `[UNK]` if they are more than 100. Of such a run, 101 are enough.
_STAYING = {point for point in range(0x300, 0x20000) if unicodedata.combining(chr(point))}  # There are none beyond.
_STAYING -= code_points(f"{MARKS} {DROPPED}")
_STAYS = pattern(" ".join(f"{point:X}" for point in sorted(_STAYING)))
_LONG_RUN = f"({_STAYS}{{{LONGEST_WORD + 1}}}){_STAYS}+"


class InGraphTokenizer(tf.Module):
    """`BertTokenizer` as part of a graph. `BertTokenizer.in_graph` creates one.

    Plain ASCII is tokenised by tensorflow-text's FastBertTokenizer. It folds other characters by NFKC, which BERT does
    not, so texts with such characters are normalised here, step by step.

    Args:
        vocabulary: The tokens in the order of their ids.
        special_tokens: Tokens that a text may contain literally, including `[UNK]`.
        lowercase: As in `BertTokenizer`.
        strip_accents: As in `BertTokenizer`, but not None.
        split_chinese: As in `BertTokenizer`.
    """

    def __init__(
        self,
        vocabulary: Sequence[str],
        special_tokens: Sequence[str],
        lowercase: bool,
        strip_accents: bool,
        split_chinese: bool,
    ) -> None:
        super().__init__(name="bert_tokenizer")
        # A special token is coded as a private-use character, which no cleaned text can contain.
        self._codes = {token: chr(0x10FF00 + i) for i, token in enumerate(special_tokens)}
        coded = [self._codes.get(token, token) for token in vocabulary]
        unknown = self._codes["[UNK]"]
        self._ids = {token: i for i, token in enumerate(vocabulary) if token in self._codes}
        self._lowercase, self._strip_accents, self._split_chinese = lowercase, strip_accents, split_chinese
        self._plain = tensorflow_text.FastBertTokenizer(
            coded,
            max_bytes_per_word=LONGEST_WORD,
            token_out_type=tf.int32,
            unknown_token=unknown,
            lower_case_nfd_strip_accents=lowercase,
        )
        self._pieces = tensorflow_text.FastWordpieceTokenizer(
            coded,
            max_bytes_per_word=4 * LONGEST_WORD,
            token_out_type=tf.int32,
            unknown_token=unknown,
            no_pretokenization=True,
        )

    def encode_batch(self, texts: Any) -> Any:
        """Encode as `BertTokenizer.encode_batch` does: string `[batch]` to ragged int32 `[batch, (tokens)]`."""
        texts = tf.convert_to_tensor(texts)
        plain = tf.strings.regex_full_match(texts, _PLAIN)
        return tf.cond(tf.reduce_all(plain), lambda: self._plain.tokenize(texts), lambda: self._mixed(texts, plain))

    def _mixed(self, texts: Any, plain: Any) -> Any:
        here, there = tf.where(plain)[:, 0], tf.where(~plain)[:, 0]
        words = self.words(tf.gather(texts, there))
        parts = self._plain.tokenize(tf.gather(texts, here)), self._pieces.tokenize(words).merge_dims(-2, -1)
        return tf.gather(tf.concat(parts, axis=0), tf.argsort(tf.concat([here, there], axis=0)))

    def words(self, texts: Any) -> Any:
        """Split string `[batch]` into ragged words; special tokens and words that are too long become codes."""
        replace = tf.strings.regex_replace
        # Bytes that are not UTF-8 become U+FFFD, which is dropped. So do the special tokens' code characters.
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8")
        codes = "".join(self._codes.values())
        texts = replace(texts, f"[{codes}]", "\ufffd")
        for token, code in self._codes.items():
            texts = replace(texts, f"\\Q{token}\\E", f" {code} ")
        first, last = min(codes), max(codes)
        below, above = f"{ord(first) - 1:X}", f"{ord(last) + 1:X}"
        dropped = DROPPED.replace("100000-10FFFD", f"100000-{below} {above}-10FFFD")
        texts = replace(texts, pattern(f"{dropped} {_SORTED_MARKS}" if self._strip_accents else dropped), "")
        texts = replace(texts, pattern(SPACES), " ")
        if self._split_chinese:
            texts = replace(texts, f"({pattern(CHINESE)})", r" \1 ")
        if self._strip_accents:
            texts = replace(texts, _LONG_RUN, r"\1")
            texts = replace(tensorflow_text.normalize_utf8(texts, "NFD"), pattern(MARKS), "")
        if self._lowercase:
            for capital, small in _SMALL.items():
                texts = replace(texts, capital, small)
            texts = tf.strings.lower(texts, "utf-8")
        words = tf.strings.split(replace(texts, f"({pattern(PUNCTUATION)})", r" \1 "))
        long = tf.strings.length(words.flat_values, "UTF8_CHAR") > LONGEST_WORD
        return words.with_flat_values(tf.where(long, self._codes["[UNK]"], words.flat_values))

    def pack(
        self, first: Any, second: Any = None, sequence_length: int = 512, static_lengths: Sequence[int] = ()
    ) -> Any:
        """Encode `[CLS] first [SEP]`, or pairs, truncated to `sequence_length` tokens and padded.

        Args:
            first: String `[batch]`.
            second: String `[batch]`, or None.
            sequence_length: Maximum length in tokens, including special tokens. In longer pairs the longer text is cut.
            static_lengths: Pad to the next of these lengths instead of the longest of the batch.

        Returns:
            A dict of `token_ids`, `segment_ids` and `padding_mask`, int32 `[batch, length]`.
        """
        first = self.encode_batch(first)
        if second is None:
            first = first[:, : sequence_length - 2]
            parts = [first]
        else:
            second = self.encode_batch(second)
            parts = _cut_pairs(first, second, sequence_length - 3)
        rows = parts[0].nrows()
        cls, sep = (tf.fill([rows, 1], self._ids[token]) for token in ("[CLS]", "[SEP]"))
        ids = tf.concat([cls, *(x for part in parts for x in (part, sep))], axis=1)
        segments = tf.concat([tf.zeros_like(parts[0]), tf.zeros([rows, 2], "int32")], axis=1)
        if second is not None:
            segments = tf.concat([segments, tf.ones_like(parts[1]), tf.ones([rows, 1], "int32")], axis=1)
        length = tf.maximum(tf.reduce_max(ids.row_lengths()), 2)  # Without texts TensorFlow's maximum is negative.
        if static_lengths:
            lengths = tf.constant(static_lengths, "int64")
            length = tf.gather(lengths, tf.searchsorted(lengths, [length]))[0]
        shape = tf.stack([ids.nrows(), length])
        return {
            "token_ids": ids.to_tensor(self._ids["[PAD]"], shape=shape),
            "segment_ids": segments.to_tensor(0, shape=shape),
            "padding_mask": tf.ones_like(ids).to_tensor(0, shape=shape),
        }


def _cut_pairs(first: Any, second: Any, budget: int) -> list[Any]:
    """Truncate pairs as `packing.truncated_lengths` does in NumPy."""
    lengths, half = (first.row_lengths(), second.row_lengths()), budget // 2
    kept = (
        tf.minimum(lengths[0], tf.maximum(budget - lengths[1], budget - half)),
        tf.minimum(lengths[1], tf.maximum(budget - lengths[0], half)),
    )
    return [
        tf.ragged.boolean_mask(rows, tf.ragged.range(rows.row_lengths()) < tf.expand_dims(length, 1))
        for rows, length in zip((first, second), kept, strict=True)
    ]
