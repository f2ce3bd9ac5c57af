"""Run `prepare` as an Apache Beam pipeline: the workers read the files and make the blocks.

    prepare(paths, "data", tokenizer, beam=["--runner=FlinkRunner", "--flink_master=host:8081"])

Needs `pip install "keras-bert-zoo[beam]"`, on this machine and on the workers. With any runner the data set has the
same bytes as without Beam: the blocks are planned from the sizes of all documents, and an example depends only on its
block and the seed. Paths are those of Beam's file systems; `gs://` needs the matching Beam extra. Each file is read by
one worker. The workers write the shards below `--temp_location`, which all of them must see, or beside `out` without
that option. The shards are then joined on this machine.
"""

import json
import logging
import os
import uuid
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from shutil import copyfileobj
from typing import Any, NamedTuple, cast

import numpy as np

from keras_bert_zoo.pretraining.corpus import (
    CorpusReport,
    Document,
    group_parts,
    make_block,
    partner_of,
    read_documents,
)
from keras_bert_zoo.pretraining.languages import count_passes
from keras_bert_zoo.pretraining.making import ExampleRules, make_examples
from keras_bert_zoo.pretraining.shards import shard_name
from keras_bert_zoo.text.tokenizer import BertTokenizer

try:
    import apache_beam as beam
    from apache_beam.io.filesystem import BeamIOError, CompressionTypes
    from apache_beam.io.filesystems import FileSystems
    from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions
except ImportError as error:
    raise ValueError(f'`beam` needs Apache Beam: pip install "keras-bert-zoo[beam]". Received: {error}') from None

_logger = logging.getLogger("keras_bert_zoo")

# The location of a part of a document: numbers of its language, of the file, and of the part in the file.
_Place = tuple[int, int, int]


@dataclass(frozen=True)
class _Contents:
    """What was read from a file, and the origin and number of characters of each part."""

    file: tuple[int, int]
    report: CorpusReport
    origins: np.ndarray
    characters: np.ndarray


class _Part(NamedTuple):
    """Stands for a part wherever its text is not needed."""

    place: _Place
    origin: int
    characters: int


@dataclass
class _Plan:
    """Assigns parts to blocks.

    Attributes:
        starts: The first part of each block.
        partners: For a part, the blocks other than its own that draw partners from it.
        shifts: Offset that turns a file's origins into those of its language.
    """

    starts: list[_Place] = field(default_factory=list)
    partners: dict[_Place, list[int]] = field(default_factory=dict)
    shifts: dict[tuple[int, int], int] = field(default_factory=dict)


def make_shards(
    languages: Mapping[str, Sequence[str]],
    layout: str,
    strict: bool,
    rules: ExampleRules,
    tokenizer: BertTokenizer,
    folder: Path,
    reports: dict[str, CorpusReport],
    options: Sequence[str],
) -> tuple[dict[str, float], list[tuple[str, int]]]:
    """Write the shard of each block of text below `folder`.

    Args:
        languages: Files of each language.
        layout: See `prepare`.
        strict: See `prepare`.
        rules: How examples are made.
        tokenizer: The tokenizer.
        folder: Directory for the shards, on this machine.
        reports: Report of each language, filled in here.
        options: Options of the pipeline.

    Returns:
        The passes over each language, and each block's language and number of examples.
    """
    passes = count_passes(languages, layout, strict, rules, tokenizer, _open, _size)
    pipeline_options = PipelineOptions([*options])
    shared = pipeline_options.view_as(GoogleCloudOptions).temp_location
    with _staging(shared) if shared else nullcontext(os.fspath(folder.resolve())) as staging:
        result = _run(pipeline_options, languages, layout, strict, passes, rules, tokenizer, staging)
        if shared:
            _fetch(staging, folder, [number for number, _, examples in result["made"] if examples])
    for number, language in enumerate(languages):
        own = [CorpusReport(**part) for (of, _), part in result["reports"] if of == number]
        reports[language] = CorpusReport.total(own)
    if strict:
        for what in chain.from_iterable(report.skipped for report in reports.values()):
            raise ValueError(what)
    return passes, [(language, examples) for _, language, examples in result["made"]]


@contextmanager
def _staging(shared: str) -> Iterator[str]:
    """Yield a new directory below a shared one, which is deleted at the end, and also after an error."""
    staging = FileSystems.join(shared, f"keras-bert-zoo-{uuid.uuid4().hex}")
    try:
        yield staging
    finally:
        try:  # An object store deletes what is below a name only if the name ends in a slash.
            FileSystems.delete([FileSystems.join(staging, "") if "://" in staging else staging])
        except BeamIOError as error:  # Also if the pipeline failed before it wrote anything.
            _logger.warning("%s could not be deleted: %s", staging, error)


def _run(
    options: PipelineOptions,
    languages: Mapping[str, Sequence[str]],
    layout: str,
    strict: bool,
    passes: dict[str, float],
    rules: ExampleRules,
    tokenizer: BertTokenizer,
    staging: str,
) -> dict[str, Any]:
    """Run the pipeline, which writes the shards below `staging`, and return what `_write_result` has written."""
    files = [((n, i), path) for n, paths in enumerate(languages.values()) for i, path in enumerate(paths)]
    with beam.Pipeline(options=options) as pipeline:
        read = (
            pipeline
            | "Files" >> beam.Create(files)
            | beam.Reshuffle()
            | "Read" >> beam.FlatMap(_read, layout).with_outputs("contents", main="parts")
        )
        plan = read.contents | beam.combiners.ToList() | "Plan" >> beam.Map(_make_plan, strict)
        made = (
            read.parts
            | "Place" >> beam.FlatMap(_place, beam.pvalue.AsSingleton(plan))
            | beam.GroupByKey()
            | "Make" >> beam.Map(_make, [*passes.items()], rules, tokenizer, staging)
        )
        read_of_each = read.contents | "Reports" >> beam.Map(lambda contents: (contents.file, asdict(contents.report)))
        _ = (
            pipeline
            | "Once" >> beam.Create([staging])
            | "Result" >> beam.Map(_write_result, beam.pvalue.AsList(made), beam.pvalue.AsList(read_of_each))
        )
    with _open(FileSystems.join(staging, _RESULT)) as file:
        result = json.load(file)
    FileSystems.delete([FileSystems.join(staging, _RESULT)])
    return cast(dict[str, Any], result)


_RESULT = "result.json"


def _open(path: str, mode: str = "rb") -> Any:
    return FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED)


def _size(path: str) -> int:
    return sum(found.size_in_bytes for found in FileSystems.match([path])[0].metadata_list)


def _read(file: tuple[tuple[int, int], str], layout: str) -> Iterator[Any]:
    """Yield the parts of a file's documents with their places, and then the file's contents."""
    place, path = file
    report, origins, characters = CorpusReport(), [], []
    for number, document in enumerate(read_documents([path], layout, False, report, _open)):
        yield (*place, number), document
        origins.append(document.origin)
        characters.append(document.characters)
    contents = _Contents(place, report, np.array(origins, "int64"), np.array(characters, "int64"))
    yield beam.pvalue.TaggedOutput("contents", contents)


def _make_plan(files: Iterable[_Contents], strict: bool) -> _Plan:
    """Group the parts into blocks as `read_blocks` does, or into none if `strict` stops the run."""
    plan = _Plan()
    files = sorted(files, key=lambda contents: contents.file)
    if strict and any(contents.report.skipped for contents in files):
        return plan
    for _, of_language in groupby(files, key=lambda contents: contents.file[0]):
        for parts, partners in group_parts(_parts(of_language, plan)):
            for partner in partners:
                plan.partners.setdefault(partner.place, []).append(len(plan.starts))
            plan.starts.append(parts[0].place)
    return plan


def _parts(files: Iterable[_Contents], plan: _Plan) -> Iterator[_Part]:
    shift = 0
    for contents in files:
        plan.shifts[contents.file] = shift
        for number, (origin, characters) in enumerate(zip(contents.origins, contents.characters, strict=True)):
            yield _Part((*contents.file, number), shift + int(origin), int(characters))
        shift += int(contents.origins.max(initial=-1)) + 1


def _place(part: tuple[_Place, Document], plan: _Plan) -> Iterator[Any]:
    """Send a part to its block, and its end to the blocks that draw partners from it."""
    place, document = part
    if plan.starts:
        document = Document(document.origin + plan.shifts[place[:2]], document.sentences)
        yield bisect_right(plan.starts, place) - 1, (False, place, document)
        for number in plan.partners.get(place, ()):
            yield number, (True, place, partner_of(document))


def _make(
    block: tuple[int, Iterable[tuple[bool, _Place, Document]]],
    passes: list[tuple[str, float]],
    rules: ExampleRules,
    tokenizer: BertTokenizer,
    staging: str,
) -> Any:
    """Write a block's shard. Return its number, its language and the number of its examples."""
    number, found = block
    members = sorted(found, key=lambda member: member[:2])
    documents = [document for partner, _, document in members if not partner]
    partners = [document for partner, _, document in members if partner]
    language, times = passes[members[0][1][0]]
    shard = make_examples(make_block(number, documents, partners, language, times), rules, tokenizer)
    if shard is None:
        return number, language, 0
    for each in fields(shard):
        array = getattr(shard, each.name)
        if array is not None:
            with FileSystems.create(FileSystems.join(staging, shard_name(number), f"{each.name}.npy")) as file:
                np.save(file, array, allow_pickle=False)
    return number, language, len(shard)


def _write_result(staging: str, made: list[Any], reports: list[Any]) -> None:
    with FileSystems.create(FileSystems.join(staging, _RESULT)) as file:
        file.write(json.dumps({"made": sorted(made), "reports": sorted(reports, key=lambda each: each[0])}).encode())


def _fetch(staging: str, folder: Path, numbers: Iterable[int]) -> None:
    """Copy shards from where the workers wrote them, several at a time to hide the wait for each file."""
    with ThreadPoolExecutor() as threads:
        list(threads.map(partial(_fetch_shard, staging, folder), map(shard_name, numbers)))


def _fetch_shard(staging: str, folder: Path, name: str) -> None:
    (folder / name).mkdir()
    for found in FileSystems.match([FileSystems.join(staging, name, "*.npy")])[0].metadata_list:
        with _open(found.path) as source, open(folder / name / Path(found.path).name, "wb") as copy:
            copyfileobj(source, copy)
