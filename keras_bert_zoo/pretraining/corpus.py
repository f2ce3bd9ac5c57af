"""Text files to blocks of documents, one block in memory at a time."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from keras_bert_zoo.pretraining.sentences import read_prose
from keras_bert_zoo.text.files import read_lines

# A block is what is tokenised, paired and written as one shard. Longer documents go on in the next block.
_BLOCK_CHARACTERS = 2**21
_PART_CHARACTERS = 2**19
# What a block of one document only is given to draw random second segments from: as much of as many before it.
_PARTNERS, _PARTNER_SENTENCES = 8, 1024

LAYOUTS = ("sentences", "prose")


@dataclass(frozen=True)
class Document:
    """Sentences of one document, or of a part of a long one. Parts have the same `origin`."""

    origin: int
    sentences: list[str]


@dataclass(frozen=True)
class Block:
    """Documents that are worked on together.

    Attributes:
        number: Counts the blocks of a corpus.
        documents: What examples are made of.
        partners: Documents to draw random second segments from, and nothing else.
    """

    number: int
    documents: list[Document]
    partners: list[Document]


@dataclass
class CorpusReport:
    """What was read, and what was not."""

    files: int = 0
    documents: int = 0
    sentences: int = 0
    characters: int = 0
    skipped: list[str] = field(default_factory=list)


def read_documents(paths: Sequence[str | Path], layout: str, strict: bool, report: CorpusReport) -> Iterator[Document]:
    """The documents of text files.

    Args:
        paths: UTF-8 text files.
        layout: `"sentences"`, one a line with blank lines between documents, or `"prose"`, ordinary text in which each
            file is one document, hard-wrapped or not, with blank lines between paragraphs.
        strict: Whether a file that cannot be read, or that holds no text, is a `ValueError`; otherwise it is named in
            the report, and what was read of it before stays.
        report: Filled on the way.
    """
    origin = 0
    for path in paths:
        before = report.sentences
        try:
            for sentences in _SPLITTERS[layout](read_lines(path, empty=True)):
                held = report.sentences
                for part in _parts(sentences):
                    report.sentences += len(part)
                    report.characters += sum(map(len, part))
                    yield Document(origin, part)
                report.documents += report.sentences > held
                origin += 1
            if report.sentences == before:
                raise ValueError(f"{path} must hold text. Received: an empty document")
            report.files += 1
        except ValueError as error:
            if strict:
                raise
            report.skipped.append(str(error))
            origin += 1


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


def make_blocks(documents: Iterator[Document]) -> Iterator[Block]:
    """Documents in blocks of some millions of characters."""
    gathered: list[Document] = []
    number = characters = 0
    before: deque[Document] = deque(maxlen=_PARTNERS)  # The ends of the last documents.
    last: Document | None = None
    for document in documents:
        if last is not None and last.origin != document.origin:
            before.append(Document(last.origin, last.sentences[-_PARTNER_SENTENCES:]))
        last = document
        if gathered and characters >= _BLOCK_CHARACTERS:
            yield _block(number, gathered, before)
            number, gathered, characters = number + 1, [], 0
        gathered.append(document)
        characters += sum(map(len, document.sentences))
    if gathered:
        yield _block(number, gathered, before)


def _block(number: int, documents: list[Document], before: Iterable[Document]) -> Block:
    origins = {document.origin for document in documents}
    return Block(number, documents, [] if len(origins) > 1 else [d for d in before if d.origin not in origins])
