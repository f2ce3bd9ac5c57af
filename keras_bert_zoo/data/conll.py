"""The column files of the CoNLL shared tasks: a word a line, its tag last, an empty line between sentences."""

import os
import re
from typing import NamedTuple

from keras_bert_zoo.metrics.spans import is_tag, to_bio
from keras_bert_zoo.text.files import read_lines

_COLUMNS = re.compile(r"[ \t]+")
_DOCUMENT = "-DOCSTART-"


class ConllSentences(NamedTuple):
    """A file of tagged sentences, a row each.

    Attributes:
        words: The words of each sentence.
        tags: Their tags in BIO.
        documents: The number of the document that each sentence is of, from 0.
    """

    words: list[list[str]]
    tags: list[list[str]]
    documents: list[int]

    def by_document(self) -> tuple[list[list[list[str]]], list[list[list[str]]]]:
        """Words and tags of each document's sentences: what gives a tagger the document as context."""
        count = self.documents[-1] + 1 if self.documents else 0
        words: list[list[list[str]]] = [[] for _ in range(count)]
        tags: list[list[list[str]]] = [[] for _ in range(count)]
        for document, sentence, labels in zip(self.documents, self.words, self.tags, strict=True):
            words[document].append(sentence)
            tags[document].append(labels)
        return words, tags


def read_conll(path: str | os.PathLike[str]) -> ConllSentences:
    """Read a file such as CoNLL-2003's `eng.train` (Tjong Kim Sang and De Meulder 2003).

    The first column is the word and the last its tag; what stands between is not used. Columns are parted by spaces or
    tabs. `-DOCSTART-` begins a document; without such lines there is one. IOB1, as in the official files, BIO and
    BIOES are read as conlleval reads them, and come as BIO.

    Raises:
        ValueError: The file, the line and what was expected there.

    Example:

    ```python
    train = read_conll("conll2003/eng.train")
    tagger.fit(train.words, train.tags)             # sentences
    tagger.fit(*train.by_document())                # documents, whose sentences see each other
    ```
    """
    words: list[list[str]] = []
    tags: list[list[str]] = []
    documents: list[int] = []
    document, columns, open_sentence = 0, 0, False
    for number, line in enumerate(read_lines(path, empty=True), 1):
        cells = _COLUMNS.split(line.strip(" \t"))
        if cells == [""] or cells[0] == _DOCUMENT:
            open_sentence = False
            if cells[0] == _DOCUMENT and documents and documents[-1] == document:
                document += 1
            continue
        columns = columns or len(cells)
        if len(cells) != columns or columns < 2:
            expected = f"{columns} columns, as before" if columns > 1 else "a word and its tag"
            raise ValueError(f"{path}, line {number} must have {expected}. Received: {line[:80]!r}")
        if not is_tag(cells[-1]):
            raise ValueError(f"{path}, line {number} must end in O, or B- or I- with a label. Received: {line[:80]!r}")
        if not open_sentence:
            words.append([])
            tags.append([])
            documents.append(document)
            open_sentence = True
        words[-1].append(cells[0])
        tags[-1].append(cells[-1])
    if not words:
        raise ValueError(f"{path} must hold a sentence. Received: none")
    return ConllSentences(words, [to_bio(sentence) for sentence in tags], documents)
