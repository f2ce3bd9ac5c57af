"""Making the shards of a data set in the processes of one machine."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from keras_bert_zoo.pretraining.corpus import Block, CorpusReport, read_blocks
from keras_bert_zoo.pretraining.languages import count_passes, file_size
from keras_bert_zoo.pretraining.making import ExampleRules, make_examples
from keras_bert_zoo.pretraining.shards import shard_name, write_shard
from keras_bert_zoo.pretraining.workers import in_order
from keras_bert_zoo.text.tokenizer import BertTokenizer

# With less text, starting processes takes about as long as the work. Each further pass costs an eighth of the first.
_WORTH_PROCESSES = 2**22


def make_shards(
    languages: Mapping[str, Sequence[str]],
    layout: str,
    strict: bool,
    rules: ExampleRules,
    tokenizer: BertTokenizer,
    folder: Path,
    reports: dict[str, CorpusReport],
    workers: int | None,
    verbose: bool,
) -> tuple[dict[str, float], list[tuple[str, int]]]:
    """Write the shard of each block of text below `folder`; see `beam.make_shards`, which does so on a cluster.

    Args:
        languages: Files of each language.
        layout: See `prepare`.
        strict: See `prepare`.
        rules: How examples are made.
        tokenizer: The tokenizer.
        folder: Directory for the shards.
        reports: Report of each language, filled in here.
        workers: See `prepare`.
        verbose: See `prepare`.

    Returns:
        The passes over each language, and each block's language and number of examples.
    """
    passes = count_passes(languages, layout, strict, rules, tokenizer)
    size = sum(file_size(path) for files in languages.values() for path in files)
    much = size * (7 + rules.duplicates) / 8 >= _WORTH_PROCESSES
    workers = workers or (os.cpu_count() or 1 if much else 1)
    blocks = read_blocks(languages, passes, layout, strict, reports)
    progress = _Progress(size if verbose else 0)
    light = type(tokenizer) is BertTokenizer  # Another class may need other modules.
    counts, made = [], 0
    for language, examples in in_order(blocks, partial(_write_block, rules, tokenizer, folder), workers, light):
        counts.append((language, examples))
        made += examples
        progress.show(sum(report.bytes for report in reports.values()), made)
    progress.end(made)
    return passes, counts


def _write_block(rules: ExampleRules, tokenizer: BertTokenizer, folder: Path, block: Block) -> tuple[str, int]:
    """Write a block's shard. Return its language and the number of its examples."""
    shard = make_examples(block, rules, tokenizer)
    if shard is not None:
        write_shard(folder / shard_name(block.number), shard)
    return block.language, 0 if shard is None else len(shard)


class _Progress:
    """A progress line on stderr: fraction done, rate, time left."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._start = time.monotonic()

    def show(self, read: int, examples: int) -> None:
        if not self._size:
            return
        seconds = time.monotonic() - self._start
        share = min(read / self._size, 1.0)
        left = seconds * (1 - share) / max(share, 1e-9)
        print(
            f"\r{share:4.0%}  {examples:,} examples  {examples / max(seconds, 1e-9):,.0f}/s  {left:.0f} s left ",
            end="",
            file=sys.stderr,
            flush=True,
        )

    def end(self, examples: int) -> None:
        if self._size:
            self.show(self._size, examples)  # The bytes read never reach the size of the files.
            print(file=sys.stderr)
