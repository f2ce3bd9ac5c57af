"""An oracle: the tokenizer of google-research/bert (tokenization.py), reimplemented from its description.

It shares no code and no tables with the product: Python's own `unicodedata` classifies characters.
"""

import functools
import unicodedata

CHINESE = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip


@functools.cache
def _cleaned(character):
    category = unicodedata.category(character)
    if character in "\t\n\r" or category == "Zs":
        return " "
    if character in "\0\ufffd" or category in ("Cc", "Cf"):
        return ""
    return f" {character} " if any(first <= ord(character) <= last for first, last in CHINESE) else character


def _is_punctuation(character):
    symbol = character.isascii() and not character.isalnum()  # Symbols such as $ and ^ count too.
    return symbol or unicodedata.category(character).startswith("P")


class OriginalTokenizer:
    """Basic tokenisation, then WordPiece by greedy longest match.

    Args:
        vocabulary: The tokens in the order of their ids.
        lowercase: Lower-case and strip accents.
        longest_word: Words of more characters are unknown; transformers lowered the original's 200 to 100.
    """

    def __init__(self, vocabulary, lowercase, longest_word=200):
        self.ids = {token: i for i, token in enumerate(vocabulary)}
        self.lowercase = lowercase
        self.longest_word = longest_word
        self.pieces = functools.lru_cache(None)(self._pieces)
        self.parts = functools.lru_cache(None)(self._parts)

    def encode(self, text):
        words = "".join(map(_cleaned, text)).split()
        return [i for word in words for part in self.parts(word) for i in self.pieces(part)]

    def _parts(self, word):
        if self.lowercase:
            word = unicodedata.normalize("NFD", word.lower())
            word = "".join(character for character in word if unicodedata.category(character) != "Mn")
        return tuple("".join(f" {c} " if _is_punctuation(c) else c for c in word).split())

    def _pieces(self, word):
        unknown = (self.ids["[UNK]"],)
        if len(word) > self.longest_word:
            return unknown
        found, start = [], 0
        while start < len(word):
            for end in range(len(word), start, -1):
                piece = ("##" if start else "") + word[start:end]
                if piece in self.ids:
                    found.append(self.ids[piece])
                    start = end
                    break
            else:
                return unknown
        return tuple(found)
