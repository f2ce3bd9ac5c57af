"""`dataset.json`, which describes a data set of pre-training examples."""

import reprlib
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from keras_bert_zoo.json_files import check_allowed, read_json, typed
from keras_bert_zoo.pretraining.corpus import CorpusReport
from keras_bert_zoo.pretraining.making import ExampleRules
from keras_bert_zoo.text.masking import LONGEST, Masking
from keras_bert_zoo.text.tokenizer import BertTokenizer

DESCRIPTION, VOCABULARY = "dataset.json", "vocab.txt"
_FORMAT = 1


class Description(NamedTuple):
    """What batches need to know of a data set; see `prepare`."""

    tokenizer: BertTokenizer
    sequence_length: int
    masking: Masking
    fixed_masks: bool
    pairs: bool


def describe(
    rules: ExampleRules, tokenizer: BertTokenizer, examples: int, checksum: str, report: CorpusReport
) -> dict[str, Any]:
    """Return the contents of `dataset.json`."""
    return {
        "format": _FORMAT,
        **asdict(rules),
        "tokenizer": tokenizer.options(),
        "examples": examples,
        "arrays": checksum,
        "corpus": asdict(report),
    }


def read_description(folder: Path) -> Description:
    """Read `dataset.json` and the vocabulary beside it."""
    path = folder / DESCRIPTION
    if not path.is_file():
        raise ValueError(f"`path` must be a data set with a {DESCRIPTION}. Received: path={str(folder)!r}")
    about = read_json(path)
    check_allowed(path, about, {"format": (_FORMAT,)})
    own, options = (typed(path, about, name, dict, {}) for name in ("masking", "tokenizer"))
    try:
        masking = Masking(**own)
    except TypeError:
        raise ValueError(f"{path}: `masking` must have the fields of Masking. Received: {reprlib.repr(own)}") from None
    try:
        tokenizer = BertTokenizer(folder / VOCABULARY, **options)
    except TypeError:
        raise ValueError(
            f"{path}: `tokenizer` must have the options of BertTokenizer. Received: {reprlib.repr(options)}"
        ) from None
    length = typed(path, about, "sequence_length", int, 128)
    if not 8 <= length <= LONGEST:
        raise ValueError(f"{path}: `sequence_length` must be at least 8 and at most {LONGEST}. Received: {length}")
    fixed, pairs = typed(path, about, "fix_masks", bool, False), typed(path, about, "next_sentence", bool, True)
    return Description(tokenizer, length, masking, fixed, pairs)
