"""Turn a block of documents into its examples."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np

from keras_bert_zoo.pretraining.corpus import Block
from keras_bert_zoo.pretraining.examples import Spans, TokenisedDocuments, draw_packed, draw_pairs, pack
from keras_bert_zoo.pretraining.shards import Shard, make_shard
from keras_bert_zoo.text.masking import MaskedTokens, Masking, mask_tokens
from keras_bert_zoo.text.tokenizer import BertTokenizer


@dataclass(frozen=True)
class ExampleRules:
    """How examples are made; see `prepare`."""

    sequence_length: int
    next_sentence: bool
    short_rate: float
    duplicates: int
    seed: int
    masking: Masking
    fix_masks: bool


def make_examples(block: Block, rules: ExampleRules, tokenizer: BertTokenizer) -> Shard | None:
    """Return the examples of a block, the same wherever and whenever they are made, or None if there are none."""
    rng = np.random.default_rng((rules.seed, block.number))
    documents = _tokenise(block, tokenizer, rules.sequence_length)
    spans = _draw(documents, rules, rules.duplicates * block.passes, rng)
    if not len(spans):
        return None
    spans = spans.take(rng.permutation(len(spans)))
    special = (tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id)
    packed = list(pack(documents.token_ids, spans, rules.sequence_length, special, rng))
    masks = None
    if rules.fix_masks:
        masks = [
            draw_masks(part.token_ids, part.lengths, part.first_lengths, rules.masking, tokenizer, rng)
            for part in packed
        ]
    return make_shard(packed, masks, tokenizer.vocabulary_size)


def count_examples(block: Block, rules: ExampleRules, tokenizer: BertTokenizer) -> int:
    """Count the examples that one pass over a block gives."""
    return len(_draw(_tokenise(block, tokenizer, rules.sequence_length), rules, 1.0, np.random.default_rng(rules.seed)))


def _draw(documents: TokenisedDocuments, rules: ExampleRules, passes: float, rng: np.random.Generator) -> Spans:
    """Return the examples of all passes; a fractional last pass contributes a random subset."""
    draw = draw_pairs if rules.next_sentence else draw_packed
    whole, part = divmod(passes, 1)
    spans = [draw(documents, rules.sequence_length, rules.short_rate, rng) for _ in range(int(whole))]
    if part:
        last = draw(documents, rules.sequence_length, rules.short_rate, rng)
        kept = int(part * len(last) + rng.random())  # Round at random, to be exact on average even for few examples.
        spans.append(last.take(rng.permutation(len(last))[:kept]))
    return Spans(*(np.concatenate([getattr(part, name) for part in spans]) for name in Spans.__annotations__))


def draw_masks(
    token_ids: np.ndarray,
    lengths: np.ndarray,
    first_lengths: np.ndarray,
    masking: Masking,
    tokenizer: BertTokenizer,
    rng: np.random.Generator,
) -> MaskedTokens:
    """Mask packed examples, int `[n, length]`, given their numbers of tokens and of tokens in segment 0."""
    return mask_tokens(
        token_ids,
        maskable(token_ids, lengths, first_lengths),
        lengths,
        masking,
        tokenizer.mask_token_id,
        tokenizer.vocabulary_size,
        rng,
        tokenizer.continues_word[token_ids],
    )


def maskable(token_ids: np.ndarray, lengths: np.ndarray, first_lengths: np.ndarray) -> np.ndarray:
    """Return bool `[n, length]`, False at `[CLS]`, both `[SEP]` and padding."""
    steps = np.arange(token_ids.shape[1])
    return (steps > 0) & (steps < lengths[:, None] - 1) & (steps != first_lengths[:, None] - 1)


def _tokenise(block: Block, tokenizer: BertTokenizer, sequence_length: int) -> TokenisedDocuments:
    """Concatenate the documents of a block, then its partners."""
    documents = [*block.documents, *block.partners]
    token_ids, lengths = tokenizer.encode_batch(chain.from_iterable(document.sentences for document in documents))
    ends = np.concatenate([[0], np.cumsum(lengths)])
    document_ends = ends[np.cumsum([len(document.sentences) for document in documents])]
    parting = np.fromiter(_parting(token_ids, ends, tokenizer, sequence_length), "int64")
    # A line of control characters has no tokens.
    sentence_ends = np.union1d(ends[1:][lengths > 0], parting)
    document_ends = np.searchsorted(sentence_ends, document_ends, side="right")
    filled = np.diff(document_ends, prepend=0) > 0
    return TokenisedDocuments(
        token_ids,
        sentence_ends,
        document_ends[filled],
        np.array([document.origin for document in documents])[filled],
        partners=int(filled[len(block.documents) :].sum()),
    )


def _parting(token_ids: np.ndarray, ends: np.ndarray, tokenizer: BertTokenizer, sequence_length: int) -> Iterator[int]:
    """Yield where to split sentences that fit no example, such as a paragraph on one line, so that no text is lost.

    A part is at most a quarter as long as an example, so that a pair of parts fits into one. It begins at the start of
    a word where possible.
    """
    most = sequence_length // 4
    for i in np.flatnonzero(np.diff(ends) > sequence_length - 3):
        cut = ends[i]
        words = cut + np.flatnonzero(np.r_[True, ~tokenizer.continues_word[token_ids[cut + 1 : ends[i + 1]]]])
        while ends[i + 1] - cut > most:
            begins = words[np.searchsorted(words, cut + most, side="right") - 1]
            cut = begins if begins > cut else cut + most
            yield cut
