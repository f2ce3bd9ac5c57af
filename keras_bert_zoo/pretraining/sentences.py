"""Split text files into sentences, one document at a time."""

import re
from collections.abc import Iterable, Iterator
from itertools import groupby

# A sentence may end after these and the quotes or brackets that close it, before white space. English opens with “,
# but never between a mark and white space, where German closes with it, as it does with «. French has a space before »,
# which may precede another mark. Matching starts only at the first mark of a run: starting at each would take time
# quadratic in its length.
_ENDS = re.compile(r"(?<![.!?…।॥۔؟])[.!?…।॥۔؟]++[\"'”’“‘»«›‹)\]]*+(?:\s[»›](?=\s|$))*+(?!\s[»›][.,;:!?…])\s++")
# Chinese and Japanese need no space.
_WIDE_ENDS = re.compile(r"[。！？]+[”’」』）]*")
_SPACE = re.compile(r"\s")
# A paragraph is split after this many characters, because it may be a whole file.
_GATHERED = 2**16
# Of an abbreviation, with what opens it.
_LONGEST_WORD = 64
_OPENING = "\"'“‘„‚«»‹›([-–—\u00a0\u202f"  # French has such a space after «.
# A full stop after one of these does not end a sentence.
_ABBREVIATIONS = frozenset(
    """
    mr mrs ms messrs mm mme mlle dr st ste prof rev hon sr jr capt col gen lieut lt sergt sgt maj gov sen rep esq vs etc
    viz cf no nos vol vols p pp ch fig e.g i.e a.m p.m inc co corp ltd jan feb mar apr jun jul aug sept oct nov dec
    """.split()
)


def split_sentences(text: str) -> list[str]:
    """Split one paragraph into sentences.

    A sentence ends at `.`, `!`, `?`, `…` or their Devanagari and Arabic counterparts, with any closing quotes and
    brackets, if white space and no lower-case letter follow, except Georgian's; in an all-lower-case text any letter
    may follow. It does not end after an abbreviation such as `Mr.` or a single initial. It always ends at `。`, `！`
    and `？`.
    """
    sentences, start = [], 0
    lowercase = text.islower()
    for match in _ENDS.finditer(text):
        end = match.end()
        if end == len(text) or (not lowercase and _is_small(text[end : end + 8].lstrip(_OPENING)[:1])):
            continue
        word = _SPACE.split(text[max(start, match.start() - _LONGEST_WORD) : match.start()])[-1]
        word = word.lstrip(_OPENING) if len(word) < _LONGEST_WORD else ""
        if match[0].startswith(".") and (word.lower() in _ABBREVIATIONS or (len(word) == 1 and word.isupper())):
            continue
        sentences += _split_wide(text[start : match.end()])
        start = end
    return sentences + _split_wide(text[start:])


def _is_small(letter: str) -> bool:
    """Whether a letter stands where no sentence begins: Georgian's are lower-case, but begin sentences as well."""
    return letter.islower() and not "\u10d0" <= letter <= "\u10ff"


def _split_wide(text: str) -> list[str]:
    parts, start = [], 0
    for match in _WIDE_ENDS.finditer(text):
        parts.append(text[start : match.end()].strip())
        start = match.end()
    return [part for part in (*parts, text[start:].strip()) if part]


def read_prose(lines: Iterable[str]) -> Iterator[str]:
    """Yield the sentences of prose, hard-wrapped or not; blank lines separate paragraphs."""
    for blank, paragraph in groupby(lines, key=lambda line: not line.strip()):
        if not blank:
            yield from _split_paragraph(line.strip() for line in paragraph)


def _split_paragraph(lines: Iterable[str]) -> Iterator[str]:
    gathered, characters = [], 0
    for line in lines:
        gathered.append(line)
        characters += len(line)
        if characters > _GATHERED:
            sentences = split_sentences(" ".join(gathered))
            gathered = sentences[-2:]  # How the last two are split may depend on what follows.
            characters = sum(map(len, gathered))
            if characters > _GATHERED:  # No sentence ends within reach.
                gathered, characters = [], 0
            yield from sentences[: len(sentences) - len(gathered)]
    yield from split_sentences(" ".join(gathered))
