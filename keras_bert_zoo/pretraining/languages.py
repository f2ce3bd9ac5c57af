"""Compute how many times each language's text is used."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_bert_zoo.checks import listed
from keras_bert_zoo.pretraining.corpus import CorpusReport, group_parts, make_block, read_documents
from keras_bert_zoo.pretraining.making import ExampleRules, count_examples
from keras_bert_zoo.text.files import read_lines
from keras_bert_zoo.text.languages import smoothed_passes
from keras_bert_zoo.text.tokenizer import BertTokenizer


def file_size(path: str) -> int:
    """Return the size in bytes, or 0 if there is no such file."""
    return os.path.getsize(path) if os.path.isfile(path) else 0


def count_passes(
    languages: Mapping[str, Sequence[str]],
    layout: str,
    strict: bool,
    rules: ExampleRules,
    tokenizer: BertTokenizer,
    open_file: Callable[[Any, str], Any] = open,
    size_of: Callable[[str], int] = file_size,
) -> dict[str, float]:
    """Return the passes over each language's files that give it its smoothed share of the examples; they average one.

    Examples are counted in the first block of each language, some two million characters. If there is more, all of its
    files that are text are assumed to give as many examples per byte.
    """
    if len(languages) == 1:
        return dict.fromkeys(languages, 1.0)
    pipes = [path for paths in languages.values() for path in paths if Path(path).is_fifo()]
    if pipes:
        raise ValueError(
            f"`paths` of several languages must be files, which are read twice. Received: {pipes[0]}, a pipe"
        )
    examples: dict[str, float] = {}
    for language, paths in languages.items():
        report = CorpusReport()
        blocks = group_parts(read_documents(paths, layout, strict, report, open_file))
        parts, _ = next(blocks, ([], []))
        read = sum(document.bytes for document in parts)
        counted = count_examples(make_block(0, parts, []), rules, tokenizer) if parts else 0
        if not counted:
            what = listed([f"none in {language!r}", *report.skipped])
            raise ValueError(f"`paths` must give examples in each language. Received: {what}")
        examples[language] = counted
        if next(blocks, None) is not None:
            examples[language] *= sum(size_of(path) for path in paths if _is_text(path, open_file)) / read
    return smoothed_passes(examples)


def _is_text(path: str, open_file: Callable[[Any, str], Any]) -> bool:
    """Whether a file has any line that is read: others, such as one in UTF-16, are skipped."""
    try:
        return next(read_lines(path, open_file=open_file, skip=lambda *_: None), None) is not None
    except ValueError:
        return False
