"""The column files of the CoNLL shared tasks: one word per line, its tag last, empty lines between sentences."""

import os
import re
import reprlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from keras_bert_zoo.checks import listed
from keras_bert_zoo.data.columns import check_text
from keras_bert_zoo.data.tables import Source, open_table
from keras_bert_zoo.metrics.spans import is_tag, to_bio
from keras_bert_zoo.text.files import read_lines

_COLUMNS = re.compile(r"[ \t]+")
_DOCUMENT = "-DOCSTART-"


class ConllSentences(NamedTuple):
    """A file of tagged sentences, one row each.

    Attributes:
        words: The words of each sentence.
        tags: Their tags in BIO; empty lists if the tags were not read.
        documents: For each sentence the number of its document, from 0.
    """

    words: list[list[str]]
    tags: list[list[str]]
    documents: list[int]

    def by_document(self) -> tuple[list[list[list[str]]], list[list[list[str]]]]:
        """Return the words and tags of the sentences by document, which gives a tagger the document as context."""
        count = self.documents[-1] + 1 if self.documents else 0
        words: list[list[list[str]]] = [[] for _ in range(count)]
        tags: list[list[list[str]]] = [[] for _ in range(count)]
        for document, sentence, labels in zip(self.documents, self.words, self.tags, strict=True):
            words[document].append(sentence)
            tags[document].append(labels)
        return words, tags


def read_conll(source: Source, labels: bool = True, class_names: Collection[str] | None = None) -> ConllSentences:
    """Read a file such as CoNLL-2003's `eng.train` (Tjong Kim Sang and De Meulder 2003).

    The first column is the word and the last its tag; columns in between are ignored. Columns are separated by spaces
    or tabs. `-DOCSTART-` begins a document. Each sentence before the first `-DOCSTART-`, or of a file without it, is a
    document of its own, because nothing says which sentences belong together. Tags in IOB1 (as in the official files),
    BIO and BIOES are read as conlleval reads them, and returned as BIO.

    Args:
        source: A file; or one part of Hugging Face's data set `conll2003`, or a mapping, with the columns `tokens` and
            `ner_tags` and without documents.
        labels: False reads only the words, for a file or data set without tags, or if the tags do not matter.
        class_names: Tags, such as a model's, whose labels are the only ones allowed; None allows any.

    Raises:
        ValueError: The message names the file, the line and what was expected there.

    Example:

    ```python
    train = read_conll("conll2003/eng.train")
    tagger.fit(train.words, train.tags)             # sentences
    tagger.fit(*train.by_document())                # documents, whose sentences see each other
    ```
    """
    known = None if class_names is None else sorted({name[2:] for name in class_names} - {""})
    if isinstance(source, (str, os.PathLike)):
        name, sentences = source, list(_file_sentences(source, labels, known))
    else:
        name, sentences = "The data set", list(_table_sentences(source, labels, known))
    if not any(words for words, *_ in sentences):
        raise ValueError(f"{name} must hold a sentence. Received: none")
    words, tags, starts = (list(column) for column in zip(*sentences, strict=True))
    starts[0] = False  # The first document is number 0.
    return ConllSentences(words, [to_bio(sentence) for sentence in tags], list(accumulate(map(int, starts))))


def begins_conll(lines: Sequence[str]) -> bool:
    """Whether these are the first lines of a file for `read_conll`: `-DOCSTART-`, or rows that all end in a tag.

    Texts may end in "O" or "B-12", too. So most rows must have as many columns; of fewer than three, each must be a
    word and its tag, or have another tag before the last. What is wrong in other rows `read_conll` says.
    """
    rows = [_COLUMNS.split(line.strip(" \t")) for line in lines]
    if not rows or rows[0][0] == _DOCUMENT:
        return bool(rows)
    rows = [cells for cells in rows if cells[0] != _DOCUMENT]
    if not all(len(cells) > 1 and is_tag(cells[-1]) for cells in rows):
        return False
    if len(rows) < 3:
        return all(len(cells) == 2 or is_tag(cells[-2]) for cells in rows)
    return 3 * max(Counter(map(len, rows)).values()) > 2 * len(rows)


def _file_sentences(
    path: str | os.PathLike[str], labels: bool, known: list[str] | None
) -> Iterator[tuple[list[str], list[str], bool]]:
    """Yield words, tags, and whether the sentence begins a document."""
    columns = 0
    words: list[str] = []
    tags: list[str] = []
    marked, starts = False, True
    for number, line in enumerate(read_lines(path, empty=True, whole=True), 1):
        cells = _COLUMNS.split(line.strip(" \t"))
        if cells == [""] or cells[0] == _DOCUMENT:
            if words:
                yield words, tags, starts
                words, tags, starts = [], [], not marked
            if cells[0] == _DOCUMENT:
                marked = starts = True
            continue
        columns = columns or len(cells)
        if len(cells) != columns or columns < 1 + labels:
            expected = f"{columns} columns, as before" if columns > labels else "a word and its tag"
            raise ValueError(f"{path}, line {number} must have {expected}. Received: {line[:80]!r}")
        if labels and not is_tag(cells[-1]):
            raise ValueError(
                f"{path}, line {number} must end in O, or B-, I-, E- or S- with a label. Received: {line[:80]!r}"
            )
        _check_known(f"{path}, line {number}", cells[-1:] * labels, known)
        words.append(cells[0])
        tags += cells[-1:] * labels
    if words:
        yield words, tags, starts


def _table_sentences(source: Any, labels: bool, known: list[str] | None) -> Iterator[tuple[list[str], list[str], bool]]:
    """Yield the same from columns; tags are names, or numbers if the data set has their names."""
    tag_names = getattr(getattr(source, "features", {}).get("ner_tags"), "feature", None)
    names = getattr(tag_names, "names", None)
    for place, (words, *rest) in open_table(source).select("tokens", *["ner_tags"] * labels):
        tags = rest[0] if labels else []
        for name, row in (("tokens", words), ("ner_tags", tags)):
            if not isinstance(row, (list, tuple, np.ndarray)):
                raise ValueError(f"{place}: `{name}` must be a list. Received: {reprlib.repr(row)}")
        if names is not None:  # A number without a name is kept, and refused below.
            tags = [names[tag] if isinstance(tag, int) and 0 <= tag < len(names) else tag for tag in tags]
        for name, row in (("tokens", words), ("ner_tags", tags)):
            for text in row:
                check_text(place, text, f"each of `{name}`")
        if not all(map(is_tag, tags)):
            raise ValueError(
                f"{place}: `ner_tags` must be O, or B-, I-, E- or S- with a label. Received: {reprlib.repr(tags)}"
            )
        if labels and len(words) != len(tags):
            raise ValueError(f"{place} must have a tag for each token. Received: {len(words)} tokens, {len(tags)} tags")
        _check_known(place, tags, known)
        yield list(words), list(tags), True  # Rows without words are kept, so that predictions match the rows.


def _check_known(place: str, tags: Sequence[str], known: list[str] | None) -> None:
    if known is None:
        return
    unknown = next((tag for tag in tags if tag[2:] and tag[2:] not in known), None)
    if unknown is not None:
        raise ValueError(
            f"{place}: a tag must be O, or B-, I-, E- or S- with one of {listed(known)}. "
            f"Received: {reprlib.repr(unknown)}"
        )
