"""Run every tokenizer over the real data: transformers', both of our engines, and the original algorithm."""

from collections import Counter

import transformers

import keras_bert_zoo as kbz
from tests.corpora import VOCABULARIES, corpora, vocabulary
from tests.helpers import ids_of
from tests.original_tokenizer import OriginalTokenizer

ENGINES = ("tokenizers", "in graph", "original")


def engines(data, name):
    """Return transformers' tokenizer and those to compare with it, each a function from texts to lists of ids."""
    uncased = VOCABULARIES[name]
    ours = kbz.BertTokenizer(vocabulary(data, name), lowercase=uncased)
    graph = ours.in_graph()
    original = OriginalTokenizer(ours.vocabulary, uncased)
    theirs = transformers.BertTokenizer(
        vocab={token: i for i, token in enumerate(ours.vocabulary)}, do_lower_case=uncased
    )
    return (
        lambda texts: theirs(texts, add_special_tokens=False)["input_ids"],
        {
            "tokenizers": lambda texts: ids_of(ours, texts),
            "in graph": lambda texts: in_batches(graph, texts),
            "original": lambda texts: [original.encode(text) for text in texts],
        },
    )


def in_batches(graph, texts, size=10_000):
    return [ids for i in range(0, len(texts), size) for ids in graph.encode_batch(texts[i : i + size]).to_list()]


def mismatches(data, name):
    """Return the number of texts by corpus and, by corpus and engine, the texts that differ from transformers."""
    transformers_ids, compared = engines(data, name)
    counts, different = Counter(), {}
    for corpus, texts in corpora(data):
        corpus = "80 novels" if corpus.endswith(".txt") else corpus
        counts[corpus] += len(texts)
        expected = transformers_ids(texts)
        for engine, encode in compared.items():
            found = [text for text, x, y in zip(texts, expected, encode(texts), strict=True) if x != list(y)]
            different.setdefault((corpus, engine), []).extend(found)
    return counts, different
