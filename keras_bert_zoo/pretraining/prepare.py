"""Make a data set of pre-training examples from text files, on all cores."""

import os
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_bert_zoo.checks import check_flag, check_positive_int, check_rate, check_seed, listed
from keras_bert_zoo.files import check_local, clear_leftovers, directory_beside, to_disk
from keras_bert_zoo.json_files import write_json
from keras_bert_zoo.pretraining.corpus import LAYOUTS, CorpusReport
from keras_bert_zoo.pretraining.description import DESCRIPTION, VOCABULARY, describe
from keras_bert_zoo.pretraining.local import make_shards
from keras_bert_zoo.pretraining.making import ExampleRules
from keras_bert_zoo.pretraining.shards import join_shards, shard_name
from keras_bert_zoo.text.files import write_vocabulary
from keras_bert_zoo.text.masking import LONGEST, Masking
from keras_bert_zoo.text.texts import is_list
from keras_bert_zoo.text.tokenizer import BertTokenizer, check_is_tokenizer

Paths = Sequence[str | os.PathLike[str]]


def prepare(
    paths: Paths | Mapping[str, Paths],
    out: str | os.PathLike[str],
    tokenizer: BertTokenizer,
    layout: str = "sentences",
    sequence_length: int = 128,
    masking: Masking | None = None,
    fix_masks: bool = False,
    next_sentence: bool = True,
    duplicates: int = 1,
    short_rate: float = 0.1,
    seed: int = 12345,
    strict: bool = False,
    workers: int | None = None,
    verbose: bool = True,
    beam: Sequence[str] | None = None,
) -> CorpusReport:
    """Make a data set of pre-training examples from text (Devlin et al. 2019, A.1 and A.2).

    The same arguments give the same bytes with any number of workers. Memory holds a few blocks of text at a time. A
    sentence longer than an example is split into parts of at most a quarter of an example; the original truncates it.

    Args:
        paths: UTF-8 text files, or for several languages a dict from each language to its files. Each language is then
            used as often as its smoothed share requires (google-research/bert, multilingual.md): shares are raised to
            the power of 0.7 and renormalised.
        out: Directory to create; see `keras_bert_zoo.pretraining.shards` for its contents.
        tokenizer: The tokenizer; its vocabulary is stored in the data set.
        layout: `"sentences"`, one per line with blank lines between documents, or `"prose"`, where each file is one
            document, hard-wrapped or not, with blank lines between paragraphs.
        sequence_length: Longest example in tokens, including special tokens.
        masking: How masks are drawn. None takes the paper's 15 %, 80/10/10, with at most 15 % of `sequence_length`
            predictions, rounded up.
        fix_masks: Draw the masks now, as the original does, once per duplicate. If False, training draws new masks each
            epoch.
        next_sentence: Make pairs for next-sentence prediction; if False, pack whole sentences.
        duplicates: Number of passes over the text, each with different pairs, and different masks if they are fixed.
            With several languages it is the average.
        short_rate: Fraction of the examples that have a random target length.
        seed: Random seed.
        strict: Stop at a file that cannot be read, a line that is not UTF-8 or a document without text, instead of
            skipping it and naming it in the report.
        workers: Number of processes. None takes one per core, or none if there is too little text to be worth starting
            them.
        verbose: Show progress.
        beam: Options of an Apache Beam pipeline, such as `["--runner=FlinkRunner"]`, to run on a cluster; see
            `keras_bert_zoo.pretraining.beam`. The runner then controls workers and progress.

    Example:

    ```python
    prepare(["books/one.txt", "books/two.txt"], "data", BertTokenizer("vocab.txt"), layout="prose", duplicates=5)
    prepare({"en": ["en.txt"], "is": ["is.txt"]}, "both", BertTokenizer("shared.txt", lowercase=False))
    ```

    Raises:
        ValueError: An argument is out of range, `out` exists, or there is no text at all.
    """
    check_positive_int(sequence_length=sequence_length, duplicates=duplicates)
    check_rate(short_rate=short_rate)
    check_flag(next_sentence=next_sentence, fix_masks=fix_masks, strict=strict)
    check_seed(seed=seed)
    if not 8 <= sequence_length <= LONGEST:
        raise ValueError(
            f"`sequence_length` must be at least 8 and at most {LONGEST}. Received: sequence_length={sequence_length}"
        )
    if layout not in LAYOUTS:
        raise ValueError(f"`layout` must be one of {LAYOUTS}. Received: layout={layout!r}")
    if beam is not None and not (is_list(beam) and all(isinstance(option, str) for option in beam)):
        raise ValueError(f"`beam` must be a list of options. Received: beam={reprlib.repr(beam)}")
    languages = _by_language(paths)
    check_is_tokenizer(tokenizer)
    check_local(out=out)
    target = Path(out)
    if target.exists():
        raise ValueError(f"`out` must not exist yet. Received: out={str(out)!r}")
    clear_leftovers(target)
    if workers is not None:
        check_positive_int(workers=workers)
    masking = Masking.for_length(sequence_length) if masking is None else masking
    Masking.check(masking)
    if next_sentence and layout == "prose":
        for language, files in languages.items():
            _check_documents(language, len(files))  # Fail before anything is read.
    rules = ExampleRules(sequence_length, next_sentence, short_rate, duplicates, seed, masking, fix_masks)
    with directory_beside(target) as beside:
        reports = {language: CorpusReport() for language in languages}
        if beam is not None:
            from keras_bert_zoo.pretraining import beam as cluster

            passes, counts = cluster.make_shards(languages, layout, strict, rules, tokenizer, beside, reports, beam)
        else:
            passes, counts = make_shards(languages, layout, strict, rules, tokenizer, beside, reports, workers, verbose)
        report = CorpusReport.total(reports.values())
        shards = [beside / shard_name(number) for number, (_, examples) in enumerate(counts) if examples]
        if not shards:
            what = listed(report.skipped) or "none that gives examples; a pair needs two sentences or two documents"
            raise ValueError(f"`paths` must hold text. Received: {what}")
        if next_sentence:
            for language, own in reports.items():
                _check_documents(language, own.documents, own.skipped)
        checksum = join_shards(shards, beside)
        write_vocabulary(beside / VOCABULARY, tokenizer.vocabulary)
        about = describe(rules, tokenizer, sum(examples for _, examples in counts), checksum, report)
        if isinstance(paths, Mapping):
            about["languages"] = {
                language: {
                    "passes": passes[language],
                    "examples": sum(count for name, count in counts if name == language),
                }
                for language in languages
            }
        write_json(beside / DESCRIPTION, about)
        if target.exists():
            raise ValueError(f"`out` must not exist yet. Received: out={str(out)!r}, which exists already")
        to_disk(beside)
        beside.rename(target)
    return report


def _by_language(paths: Any) -> dict[str, list[str]]:
    languages = paths if isinstance(paths, Mapping) else {"": paths}
    by_language = {name: _as_strings(files) for name, files in languages.items()}
    if not by_language or not all(by_language.values()):
        raise ValueError(
            f"`paths` must be a list of files, or one for each language. Received: paths={reprlib.repr(paths)}"
        )
    return by_language


def _as_strings(files: Any) -> list[str]:
    """Return the paths as strings; an empty list if this is not a list of paths."""
    if isinstance(files, (str, os.PathLike)) or not isinstance(files, Iterable):
        return []
    paths = list(files)
    return [os.fspath(path) for path in paths] if all(isinstance(path, (str, os.PathLike)) for path in paths) else []


def _check_documents(language: str, count: int, skipped: Sequence[str] = ()) -> None:
    """Check for two documents, because a random next sentence comes from another document."""
    if count < 2:
        of = f" of {language!r}" if language else ""
        raise ValueError(
            "`paths` must hold at least two documents of each language for next-sentence pairs, in prose two files; "
            f"next_sentence=False packs one. Received: {listed([f'{count}{of}', *skipped])}"
        )
