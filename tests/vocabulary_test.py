"""Learning a vocabulary."""

import pytest

import keras_bert_zoo as kbz
from keras_bert_zoo.text.vocabulary import _merge

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def test_merges_by_hand():
    # Pairs: a+##b 4 times (ab, ab, abc, abc), ##b+##c 2 times, then ab+##c 2 times.
    assert kbz.learn_vocabulary(["ab ab", "ABC abc!"], 11) == [*SPECIAL, "!", "##b", "##c", "a", "ab", "abc"]
    # A tie goes to the pair that comes first in the alphabet.
    assert kbz.learn_vocabulary(["xy ab"], 10) == [*SPECIAL, "##b", "##y", "a", "x", "ab"]


def test_pairs_within_one_word_are_merged_from_the_left():
    assert _merge(["a", "##a", "##a", "##a"], ("##a", "##a"), "##aa") == ["a", "##aa", "##a"]


def test_a_text_of_learned_words_needs_few_pieces():
    texts = ["the plot was warm", "the cast was cold", "the plot was not cold"]
    tokenizer = kbz.BertTokenizer(kbz.learn_vocabulary(texts, 100))
    assert tokenizer.tokenize("The cast was warm") == ["the", "cast", "was", "warm"]
    assert kbz.learn_vocabulary(reversed(texts), 100) == tokenizer.vocabulary


def test_case_is_kept_on_request():
    vocabulary = kbz.learn_vocabulary(["Á b"], 10, lowercase=False)
    assert vocabulary == [*SPECIAL, "b", "Á"]
    assert kbz.learn_vocabulary(["Á b"], 10) == [*SPECIAL, "a", "b"]


def test_too_small():
    with pytest.raises(ValueError, match=r"must be at least 8, .* Received: vocabulary_size=7"):
        kbz.learn_vocabulary(["a b c"], 7)
    with pytest.raises(ValueError, match=r"must be a list of strings. Received: one string"):
        kbz.learn_vocabulary("a b c", 100)
