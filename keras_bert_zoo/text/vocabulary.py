"""Deterministic learning of a WordPiece vocabulary, which the trainer of `tokenizers` does not offer."""

import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache

from keras_bert_zoo.checks import check_positive_int
from keras_bert_zoo.text.characters import CHINESE, LONGEST_WORD, character_set
from keras_bert_zoo.text.languages import smoothed_passes
from keras_bert_zoo.text.texts import check_iterable, check_strings
from keras_bert_zoo.text.tokenizer import LONGEST_TOKEN, SPECIAL_TOKENS

# As in tensorflow-text's learner and `tokenizers`' trainer, so that text in many scripts leaves room for words.
_MOST_CHARACTERS = 1000
# Words of several languages are counted in units of 1/1000: integers add up to the same sum in any order.
_FRACTION = 1000
# This limits memory, as text without spaces hardly recurs.
_BYTES_COUNTED_TOGETHER = 2**26


def learn_vocabulary(
    texts: Iterable[str] | Mapping[str, Iterable[str]], vocabulary_size: int, lowercase: bool = True
) -> list[str]:
    """Learn the tokens of a `BertTokenizer`.

    Words start as characters. The most frequent pair of adjacent pieces is repeatedly merged into a new piece (Sennrich
    et al. 2016, section 3.2, with WordPiece's `##`), of at most 256 bytes as tensorflow-text requires; ties are
    resolved alphabetically. The 1,000 most frequent characters are kept. So are the `(vocabulary_size - 2000) // 2`
    most frequent Chinese characters, which are words by themselves. Words with other characters are ignored, as are
    those of more than 100 characters, which the tokenizer does not split.

    Args:
        texts: The texts, read one by one; `read_lines` reads them from files. For several languages, a dict from
            language to texts: word counts are then weighted by the smoothed share of their language, as in `prepare`
            (google-research/bert, multilingual.md).
        vocabulary_size: Maximum number of tokens. Special tokens come first, then characters, then merged pieces.
        lowercase: As in `BertTokenizer`.

    Raises:
        ValueError: `vocabulary_size` is too small for the special tokens and the characters, or there are no words.
    """
    check_positive_int(vocabulary_size=vocabulary_size)
    if isinstance(texts, Mapping):
        names = {language: f"texts[{language!r}]" for language in texts}
        for language, name in names.items():
            check_iterable(texts[language], name)
        counted = _mixed({language: _count_words(texts[language], lowercase, names[language]) for language in names})
    else:
        check_iterable(texts)
        counted = _count_words(texts, lowercase)
    counted = _with_frequent_characters(counted, (vocabulary_size - 2 * _MOST_CHARACTERS) // 2)
    if not counted:
        raise ValueError("`texts` must hold words. Received: none")
    words = [(_characters(word), count) for word, count in sorted(counted.items())]
    characters = sorted({piece for pieces, _ in words for piece in pieces})
    vocabulary = [*SPECIAL_TOKENS, *characters]
    if len(vocabulary) > vocabulary_size:
        raise ValueError(
            f"`vocabulary_size` must be at least {len(vocabulary)}, the special tokens and all characters. "
            f"Received: vocabulary_size={vocabulary_size}"
        )
    return [*vocabulary, *itertools.islice(_merges(words, set(vocabulary)), vocabulary_size - len(vocabulary))]


def _merges(words: list[tuple[list[str], int]], known: set[str]) -> Iterator[str]:
    """Yield the pieces that come from merging the most frequent pair of neighbours, again and again, and are not known.

    Args:
        words: The pieces and the count of each word; they are merged in place.
        known: The pieces that are known; the new ones are added.
    """
    counts: Counter[tuple[str, str]] = Counter()
    where: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for number, (pieces, count) in enumerate(words):
        for pair in itertools.pairwise(pieces):
            counts[pair] += count
            where[pair].add(number)
    heap = [(-count, pair) for pair, count in counts.items()]
    heapq.heapify(heap)
    while heap:
        count, pair = heapq.heappop(heap)
        if -count != counts[pair] or not count:  # Outdated: the pair is in the heap with its new count.
            continue
        merged = pair[0] + pair[1].removeprefix("##")
        if len(merged.removeprefix("##").encode()) > LONGEST_TOKEN:
            continue
        if merged not in known:
            known.add(merged)
            yield merged
        changes: Counter[tuple[str, str]] = Counter()
        for number in where.pop(pair):
            pieces, times = words[number]
            new = _merge(pieces, pair, merged)
            for old_pair in itertools.pairwise(pieces):
                changes[old_pair] -= times
            for new_pair in itertools.pairwise(new):
                changes[new_pair] += times
                where[new_pair].add(number)
            words[number] = new, times
        for changed, change in changes.items():
            counts[changed] += change
            if change and counts[changed]:  # An unchanged pair is in the heap with this count.
                heapq.heappush(heap, (-counts[changed], changed))


def _count_words(texts: Iterable[str], lowercase: bool, name: str = "texts") -> Counter[str]:
    """Count the words, split as the tokenizer splits them."""
    from tokenizers import normalizers, pre_tokenizers

    normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    splitter = pre_tokenizers.BertPreTokenizer()
    words: Counter[str] = Counter()
    for strings in _count_strings(texts, name):
        for string, count in strings.items():
            for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(string)):
                if len(word) <= LONGEST_WORD:
                    words[word] += count
    return words


def _count_strings(texts: Iterable[str], name: str) -> Iterator[Counter[str]]:
    """Count the strings between spaces, some texts at a time: most strings recur, and the tokenizer is slow.

    Other white space is left to the tokenizer, which drops some of it within a word, as control characters.
    """
    strings: Counter[str] = Counter()
    read = 0
    for number, text in enumerate(texts):
        try:
            read += len(str.encode(text))
        except (TypeError, UnicodeEncodeError):
            check_strings([text], name, number)
            raise
        strings.update(text.split(" "))
        if read >= _BYTES_COUNTED_TOGETHER:
            yield strings
            strings, read = Counter(), 0
    yield strings


def _mixed(languages: dict[str, Counter[str]]) -> Counter[str]:
    """Add up the words of all languages, weighted by smoothed shares, in units of 1/1000."""
    sizes = {language: words.total() for language, words in languages.items()}
    empty = [language for language, size in sizes.items() if not size]
    if empty:
        raise ValueError(f"`texts` must hold words of each language. Received: none of {empty}")
    passes = smoothed_passes(sizes)
    mixed: Counter[str] = Counter()
    for language, words in languages.items():
        weight = passes[language] * _FRACTION
        mixed.update({word: round(count * weight) for word, count in words.items()})
    return mixed


def _with_frequent_characters(words: Counter[str], most_chinese: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            counts[character] += count
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    own = [character for character in ranked if character in character_set(CHINESE)]
    frequent = {*ranked[:_MOST_CHARACTERS], *own[: max(most_chinese, 0)]}
    return Counter({word: count for word, count in words.items() if frequent.issuperset(word)})


def _characters(word: str) -> list[str]:
    return [word[0], *map(_continuing, word[1:])]


@cache
def _continuing(character: str) -> str:
    """Return the same string each time: words have far more characters than there are distinct ones."""
    return f"##{character}"


def _merge(pieces: list[str], pair: tuple[str, str], merged: str) -> list[str]:
    new: list[str] = []
    for piece in pieces:
        if new and new[-1] == pair[0] and piece == pair[1]:
            new[-1] = merged
        else:
            new.append(piece)
    return new
