"""Text files to a data set of pre-training examples, on all cores."""

import multiprocessing
import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from keras_bert_zoo.checkpoints.files import write_json
from keras_bert_zoo.layers.checks import check_positive_int, check_rate
from keras_bert_zoo.pretraining.corpus import LAYOUTS, Block, CorpusReport, make_blocks, read_documents
from keras_bert_zoo.pretraining.examples import Spans, TokenisedDocuments, draw_packed, draw_pairs, pack
from keras_bert_zoo.pretraining.shards import join_shards, make_shard, write_shard
from keras_bert_zoo.text.files import write_vocabulary
from keras_bert_zoo.text.masking import MaskedTokens, Masking, mask_tokens
from keras_bert_zoo.text.tokenizer import BertTokenizer

DESCRIPTION, VOCABULARY = "dataset.json", "vocab.txt"
FORMAT = 1


@dataclass(frozen=True)
class Recipe:
    """How examples are made; see `prepare`."""

    sequence_length: int
    next_sentence: bool
    short_rate: float
    duplicates: int
    seed: int
    masking: Masking
    fix_masks: bool


def prepare(
    paths: Sequence[str | os.PathLike[str]],
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
) -> CorpusReport:
    """Make a data set of pre-training examples from text (Devlin et al. 2019, A.1 and A.2).

    The same arguments give the same bytes, whatever the number of workers. Memory holds a few blocks of text at a time.

    Args:
        paths: UTF-8 text files.
        out: Directory to make; see `keras_bert_zoo.pretraining.shards` for what it holds.
        tokenizer: The tokenizer; its vocabulary goes into the data set.
        layout: `"sentences"`, one a line with blank lines between documents, or `"prose"`, ordinary text in which each
            file is one document, hard-wrapped or not, with blank lines between paragraphs.
        sequence_length: Longest example in tokens, special tokens counted.
        masking: How masks are drawn. None takes the paper's 15 %, 80/10/10, with as many predictions at most as 15 % of
            `sequence_length` are.
        fix_masks: Draw them now, as the original does, one mask a duplicate. Otherwise training draws them anew each
            epoch.
        next_sentence: Make pairs for next-sentence prediction; otherwise whole sentences are packed.
        duplicates: Passes over the text, each with other pairs, and other masks where they are fixed.
        short_rate: Share of the examples that have a random target length.
        seed: Where chance comes from.
        strict: Stop at a file that cannot be read or holds no text, instead of naming it in the report.
        workers: Processes; None takes one a core.
        verbose: Show progress.

    Raises:
        ValueError: An argument is out of its range, `out` exists, or there was no text at all.
    """
    check_positive_int(sequence_length=sequence_length, duplicates=duplicates)
    check_rate(short_rate=short_rate)
    if sequence_length < 8:
        raise ValueError(f"`sequence_length` must be at least 8. Received: sequence_length={sequence_length}")
    if layout not in LAYOUTS:
        raise ValueError(f"`layout` must be one of {LAYOUTS}. Received: layout={layout!r}")
    if not paths or isinstance(paths, (str, os.PathLike)):
        raise ValueError(f"`paths` must be a list of files. Received: paths={paths!r}")
    target = Path(out)
    if target.exists():
        raise ValueError(f"`out` must not exist yet. Received: out={str(out)!r}")
    masking = masking or Masking.for_length(sequence_length)
    recipe = Recipe(sequence_length, next_sentence, short_rate, duplicates, seed, masking, fix_masks)
    beside = target.with_name(f".{target.name}.part")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        report, counts = CorpusReport(), []
        size = sum(os.path.getsize(path) for path in paths if os.path.isfile(path))
        progress = _Progress(size if verbose else 0)
        blocks = make_blocks(read_documents([Path(path) for path in paths], layout, strict, report))
        for count in _in_order(blocks, recipe, tokenizer, beside, workers or os.cpu_count() or 1):
            counts.append(count)
            progress.show(report, sum(counts))
        progress.end()
        if not sum(counts):
            what = (
                "; ".join(report.skipped) or "text that gives no example; a pair needs two sentences or two documents"
            )
            raise ValueError(f"`paths` must hold text. Received: {what}")
        shards = [beside / _folder(number) for number, count in enumerate(counts) if count]
        join_shards(shards, beside)
        for shard in shards:
            shutil.rmtree(shard)
        write_vocabulary(beside / VOCABULARY, tokenizer.vocabulary)
        write_json(beside / DESCRIPTION, _describe(recipe, tokenizer, counts, report))
        beside.rename(target)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return report


def _folder(number: int) -> str:
    return f"shard-{number:05d}"


def _describe(recipe: Recipe, tokenizer: BertTokenizer, counts: list[int], report: CorpusReport) -> dict[str, Any]:
    return {
        "format": FORMAT,
        **asdict(recipe),
        "tokenizer": tokenizer.options(),
        "examples": sum(counts),
        "corpus": asdict(report),
    }


# --- One block


def _in_order(
    blocks: Iterator[Block], recipe: Recipe, tokenizer: BertTokenizer, folder: Path, workers: int
) -> Iterator[int]:
    """Make the blocks' shards in processes, few at a time, and count their examples in the order of the blocks."""
    first = next(blocks, None)
    if first is None:
        return
    second = next(blocks, None)
    if workers == 1 or second is None:  # Processes would take longer to start than the work takes.
        for block in chain([first] if second is None else [first, second], blocks):
            yield make_block(block, recipe, tokenizer, folder)
        return
    waiting: deque[Future[int]] = deque()
    with _light_processes(workers) as executor:
        for block in chain([first, second], blocks):
            waiting.append(executor.submit(make_block, block, recipe, tokenizer, folder))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@contextmanager
def _light_processes(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that start neither TensorFlow, JAX or PyTorch nor the caller's script to turn text into arrays."""
    environment, main = {**os.environ}, sys.modules["__main__"]
    os.environ["KERAS_BACKEND"] = "numpy"
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as executor:
            yield executor
    finally:
        sys.modules["__main__"] = main
        os.environ.clear()
        os.environ.update(environment)


def make_block(block: Block, recipe: Recipe, tokenizer: BertTokenizer, folder: Path) -> int:
    """Write a block's shard and return the number of its examples."""
    rng = np.random.default_rng((recipe.seed, block.number))
    documents = _tokenise(block, tokenizer)
    draw = draw_pairs if recipe.next_sentence else draw_packed
    spans = [draw(documents, recipe.sequence_length, recipe.short_rate, rng) for _ in range(recipe.duplicates)]
    drawn = Spans(*(np.concatenate([getattr(part, name) for part in spans]) for name in Spans.__annotations__))
    if not len(drawn):
        return 0
    drawn = drawn.take(rng.permutation(len(drawn)))
    special = (tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id)
    packed = list(pack(documents.token_ids, drawn, recipe.sequence_length, special, rng))
    masks = None
    if recipe.fix_masks:
        masks = [
            draw_masks(part.token_ids, part.lengths, part.first_lengths, recipe.masking, tokenizer, rng)
            for part in packed
        ]
    shard = make_shard(packed, masks, tokenizer.vocabulary_size)
    write_shard(folder / _folder(block.number), shard)
    return len(shard)


def draw_masks(
    token_ids: np.ndarray,
    lengths: np.ndarray,
    first_lengths: np.ndarray,
    masking: Masking,
    tokenizer: BertTokenizer,
    rng: np.random.Generator,
) -> MaskedTokens:
    """Mask packed examples: int `[n, length]`, tokens each, and tokens of segment 0."""
    return mask_tokens(
        token_ids,
        maskable(token_ids, lengths, first_lengths),
        lengths,
        masking,
        tokenizer.mask_token_id,
        tokenizer.vocabulary_size,
        rng,
        tokenizer.continues_word[token_ids],
    )


def maskable(token_ids: np.ndarray, lengths: np.ndarray, first_lengths: np.ndarray) -> np.ndarray:
    """bool `[n, length]`, False at `[CLS]`, both `[SEP]` and padding."""
    steps = np.arange(token_ids.shape[1])
    return (steps > 0) & (steps < lengths[:, None] - 1) & (steps != first_lengths[:, None] - 1)


def _tokenise(block: Block, tokenizer: BertTokenizer) -> TokenisedDocuments:
    documents = [*block.documents, *block.partners]
    token_ids, lengths = tokenizer.encode_batch(chain.from_iterable(document.sentences for document in documents))
    kept = lengths > 0  # A line of control characters has no tokens.
    ends = np.cumsum([len(document.sentences) for document in documents])
    document_ends = np.concatenate([[0], np.cumsum(kept)])[ends]
    filled = np.diff(document_ends, prepend=0) > 0
    return TokenisedDocuments(
        token_ids,
        np.cumsum(lengths)[kept],
        document_ends[filled],
        np.array([document.origin for document in documents])[filled],
        partners=int(filled[len(block.documents) :].sum()),
    )


class _Progress:
    """One line on stderr: share, rate, time left."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._start = time.monotonic()

    def show(self, report: CorpusReport, examples: int) -> None:
        if not self._size:
            return
        seconds = time.monotonic() - self._start
        share = min(report.characters / self._size, 1.0)
        left = seconds * (1 - share) / max(share, 1e-9)
        print(
            f"\r{share:4.0%}  {examples:,} examples  {examples / max(seconds, 1e-9):,.0f}/s  {left:.0f} s left ",
            end="",
            file=sys.stderr,
            flush=True,
        )

    def end(self) -> None:
        if self._size:
            print(file=sys.stderr)
