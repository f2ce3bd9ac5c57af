"""Read text files as blocks of documents, with one block in memory at a time."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol, TypeVar

from keras_bert_zoo.pretraining.sentences import read_prose
from keras_bert_zoo.text.characters import has_text
from keras_bert_zoo.text.files import read_lines

# A block is tokenised, paired and written as one shard. A longer document continues in the next block.
_BLOCK_CHARACTERS = 2**21
_PART_CHARACTERS = 2**19
# A block that is mostly one document may draw random second segments from the documents before it: from at most this
# many documents, and from at most this many of the last sentences of each.
_PARTNERS, _PARTNER_SENTENCES = 8, 1024
_FEW_CHARACTERS = _BLOCK_CHARACTERS // 4
# Limit on how many skipped items are listed.
_NAMED = 1000

LAYOUTS = ("sentences", "prose")


@dataclass(frozen=True)
class Document:
    """Sentences of one document, or of a part of a long one. Its parts have the same `origin`."""

    origin: int
    sentences: list[str]

    @property
    def characters(self) -> int:
        return sum(map(len, self.sentences))

    @property
    def bytes(self) -> int:
        """Size of its sentences in a file, with one sentence per line."""
        return sum(len(sentence.encode("utf-8")) + 1 for sentence in self.sentences)


@dataclass(frozen=True)
class Block:
    """Documents that are processed together.

    Attributes:
        number: Index of the block in the corpus.
        documents: Documents that examples are made of.
        partners: Documents used only to draw random second segments from.
        language: Language of all documents, if there are several languages.
        passes: Number of times the text is used, for each pass requested.
    """

    number: int
    documents: list[Document]
    partners: list[Document]
    language: str = ""
    passes: float = 1.0


@dataclass
class CorpusReport:
    """What was read and what was skipped.

    Attributes:
        files: Number of files that gave text.
        documents: Number of documents that gave text.
        sentences: Number of their sentences.
        bytes: Size of the sentences, with one sentence per line.
        skipped: Descriptions of the first 1,000 skipped items.
        skips: Total number of skipped items.
    """

    files: int = 0
    documents: int = 0
    sentences: int = 0
    bytes: int = 0
    skipped: list[str] = field(default_factory=list)
    skips: int = 0

    def skip(self, what: str) -> None:
        what = what.encode("utf-8", "backslashreplace").decode()  # A file's name need not be UTF-8.
        if len(self.skipped) < _NAMED:
            self.skipped.append(what)
        self.skips += 1

    @classmethod
    def total(cls, reports: Iterable["CorpusReport"]) -> "CorpusReport":
        """Add up several reports."""
        found = cls()
        for report in reports:
            for each in fields(cls):
                setattr(found, each.name, getattr(found, each.name) + getattr(report, each.name))
            found.skipped = found.skipped[:_NAMED]
        return found


def read_blocks(
    languages: Mapping[str, Sequence[str]],
    passes: Mapping[str, float],
    layout: str,
    strict: bool,
    reports: Mapping[str, CorpusReport],
) -> Iterator[Block]:
    """Yield the blocks of text files, one language after another, filling a report for each; see `read_documents`."""
    number = 0
    for language, paths in languages.items():
        for documents, partners in group_parts(read_documents(paths, layout, strict, reports[language])):
            yield make_block(number, documents, partners, language, passes[language])
            number += 1


def read_documents(
    paths: Sequence[str | Path],
    layout: str,
    strict: bool,
    report: CorpusReport,
    open_file: Callable[[Any, str], Any] = open,
) -> Iterator[Document]:
    """Yield the documents of text files.

    Args:
        paths: UTF-8 text files.
        layout: `"sentences"`, one per line with blank lines between documents, or `"prose"`, where each file is one
            document, hard-wrapped or not, with blank lines between paragraphs.
        strict: Raise `ValueError` for a file that cannot be read, a line that is not UTF-8, or a document without text.
            If False, skip it and name it in the report.
        report: Report to fill in.
        open_file: See `read_lines`.
    """
    origin = 0
    for path in paths:
        before, skips = report.sentences, report.skips
        broken = _BrokenLines()
        try:
            for sentences in _SPLITTERS[layout](read_lines(path, True, open_file, skip=None if strict else broken.add)):
                held = report.sentences
                for part in _parts(sentences):
                    if not any(map(has_text, part)):
                        what = f"{path} must hold text. Received: control characters"
                        if strict:
                            raise ValueError(what)
                        report.skip(what)
                        continue
                    document = Document(origin, part)
                    report.documents += report.sentences == held
                    report.sentences += len(part)
                    report.bytes += document.bytes
                    yield document
                origin += 1
            if report.sentences == before and report.skips == skips and not broken.count:
                raise ValueError(f"{path} must hold text. Received: an empty document")
        except ValueError as error:
            if strict:
                raise
            report.skip(str(error))
            origin += 1
        if broken.count:
            report.skip(f"{path} must be UTF-8 text ({broken.first}); lines left out: {broken.count}")
        report.files += report.sentences > before


class _BrokenLines:
    """Counts the lines of a file that are not UTF-8."""

    def __init__(self) -> None:
        self.count = 0
        self.first = ""

    def add(self, number: int, reason: str) -> None:
        self.first = self.first or f"{reason} in line {number}"
        self.count += 1


def _split_lines(lines: Iterator[str]) -> Iterator[Iterator[str]]:
    for blank, group in groupby(lines, key=lambda line: not line.strip()):
        if not blank:
            yield (line.strip() for line in group)


def _split_prose(lines: Iterator[str]) -> Iterator[Iterator[str]]:
    yield read_prose(lines)


_SPLITTERS: dict[str, Callable[[Iterator[str]], Iterator[Iterator[str]]]] = {
    "sentences": _split_lines,
    "prose": _split_prose,
}


def _parts(sentences: Iterator[str]) -> Iterator[list[str]]:
    part: list[str] = []
    characters = 0
    for sentence in sentences:
        part.append(sentence)
        characters += len(sentence)
        if characters >= _PART_CHARACTERS:
            yield part
            part, characters = [], 0
    if part:
        yield part


class Part(Protocol):
    """A member of a block: a `Document`, or an object that stands for one."""

    @property
    def origin(self) -> int: ...

    @property
    def characters(self) -> int: ...


AnyPart = TypeVar("AnyPart", bound=Part)


def group_parts(parts: Iterable[AnyPart]) -> Iterator[tuple[list[AnyPart], list[AnyPart]]]:
    """Yield groups of one language's parts, some two million characters each, with parts to draw partners from."""
    gathered: list[AnyPart] = []
    characters = 0
    before: deque[AnyPart] = deque(maxlen=_PARTNERS)  # The last parts of the last documents.
    last: AnyPart | None = None
    for part in parts:
        if last is not None and last.origin != part.origin:
            before.append(last)
        last = part
        if gathered and characters >= _BLOCK_CHARACTERS:
            yield gathered, _strangers(gathered, before)
            gathered, characters = [], 0
        gathered.append(part)
        characters += part.characters
    if gathered:
        yield gathered, _strangers(gathered, before)


def _strangers(gathered: list[AnyPart], before: Iterable[AnyPart]) -> list[AnyPart]:
    """Return parts of other documents if the group has little text besides its longest document."""
    characters = Counter[int]()
    for part in gathered:
        characters[part.origin] += part.characters
    if characters.total() - max(characters.values()) >= _FEW_CHARACTERS:
        return []
    return [part for part in before if part.origin not in characters]


def make_block(
    number: int, documents: list[Document], partners: list[Document], language: str = "", passes: float = 1.0
) -> Block:
    """Make a block of documents and of the ends of their partners."""
    return Block(number, documents, [partner_of(document) for document in partners], language, passes)


def partner_of(document: Document) -> Document:
    """Return the end of a document, from which the block of another document draws random second segments."""
    return Document(document.origin, document.sentences[-_PARTNER_SENTENCES:])
