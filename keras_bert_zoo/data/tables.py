"""Rows of TSV, CSV and JSON-lines files and of data sets in memory; errors name the file and the line."""

import csv
import logging
import os
import reprlib
import threading
from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from keras_bert_zoo.json_files import parse_json

# Nobody fine-tunes on a document of that many bytes in one line.
_LONGEST_LINE = 16 * 2**20
_csv_limit = threading.Lock()

Source = str | os.PathLike[str] | Mapping[str, Sequence[Any]] | Any
"""A file's path, or columns in memory: a mapping, or a `datasets.Dataset` of Hugging Face."""

Row = tuple[str, Sequence[Any]]
"""The place of a row, for error messages, and its values."""

_logger = logging.getLogger("keras_bert_zoo")


class Table(NamedTuple):
    """Rows with named columns; they are read once, on demand."""

    name: str
    header: list[str]
    rows: Iterator[tuple[str, Mapping[str, Any]]]

    def has(self, *columns: str) -> bool:
        """Whether all these columns exist."""
        return set(columns) <= set(self.header)

    def select(self, *columns: str) -> Iterator[Row]:
        """Yield the rows, with the values of these columns only."""
        if not self.has(*columns):
            raise ValueError(
                f"{self.name}: the columns must include {list(columns)}. Received: {reprlib.repr(self.header)}"
            )
        twice = next((column for column in columns if self.header.count(column) > 1), None)
        if twice is not None:
            raise ValueError(f"{self.name}: the columns must differ in name. Received: {twice!r} more than once")
        return self._selected(columns)

    def _selected(self, columns: Sequence[str]) -> Iterator[Row]:
        for place, values in self.rows:
            missing = [column for column in columns if column not in values]
            if missing:
                raise ValueError(f"{place} must have the keys {list(columns)}. Received: one without {missing}")
            yield place, [values[column] for column in columns]


def open_table(source: Source) -> Table:
    """Open a table from a file, by its suffix, or from an object in memory.

    Args:
        source: A path that ends in `.tsv` (tabs between fields, no quoting), `.csv` (as in RFC 4180) or `.jsonl` (one
            object per line), the first two with a header; or columns in memory.
    """
    if not isinstance(source, (str, os.PathLike)):
        return _columns_table(source)
    path = Path(source)
    kinds = {".tsv": tsv_table, ".csv": _csv_table, ".jsonl": _jsonl_table}
    if path.suffix.lower() not in kinds:
        raise ValueError(f"The file must be one of {', '.join(kinds)}. Received: {path}")
    return kinds[path.suffix.lower()](path)


def tsv_table(path: Path, header: Sequence[str] = (), skip_short_with: str | None = None) -> Table:
    """Read tab-separated fields; quotation marks have no special meaning.

    Args:
        path: The file.
        header: Column names, if the file does not begin with them.
        skip_short_with: A column; in a file that has it, lines with too few fields are skipped and logged.
    """
    lines = ((number, _without_end(line).split("\t")) for number, line in _lines(path))
    return _delimited(path, lines, header, skip_short_with)


def _csv_table(path: Path) -> Table:
    """Read CSV as in RFC 4180: a quoted field may contain commas, line ends and doubled quotation marks."""
    return _delimited(path, _csv_records(path))


def _jsonl_table(path: Path) -> Table:
    """Read one JSON object per line; the first one's keys are the columns, and every object needs the selected ones."""
    records = _json_records(path)
    first = _first(path, records)
    return Table(str(path), list(first[1]), chain([first], records))


def _columns_table(source: Any) -> Table:
    if hasattr(source, "with_format"):  # Otherwise numbers and lists may be of another library's types.
        source = source.with_format(None)
    names = getattr(source, "column_names", None)  # An attribute of `datasets`, which may not be installed.
    if names is None and isinstance(source, Mapping):
        names = list(source)
    if not isinstance(names, list):
        raise ValueError(
            "The data must be a path, a mapping of columns or a Hugging Face data set. "
            f"Received: {type(source).__name__}"
        )
    columns = [source[name] for name in names]
    columns = [column.tolist() if hasattr(column, "tolist") else column for column in columns]
    for name, column in zip(names, columns, strict=True):
        if isinstance(column, (str, Mapping, Set)) or not hasattr(column, "__len__"):
            raise ValueError(f"The columns must be lists in memory. Received: {name!r} of type {type(column).__name__}")
    lengths = {name: len(column) for name, column in zip(names, columns, strict=True)}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"The columns must be of one length. Received: {reprlib.repr(lengths)}")
    rows = enumerate(zip(*columns, strict=True))
    return Table("The data set", names, ((f"Row {n}", dict(zip(names, row, strict=True))) for n, row in rows))


def _delimited(
    path: Path,
    records: Iterator[tuple[int, list[str]]],
    header: Sequence[str] = (),
    skip_short_with: str | None = None,
) -> Table:
    first = _first(path, records)
    # Some of a task's files may have a header. These files have no labels, so their number of columns differs.
    if header and len(first[1]) == len(header):
        records = chain([first], records)
    else:
        header = first[1]

    def rows() -> Iterator[tuple[str, dict[str, str]]]:
        skipped = []
        for number, fields in _without_empty_end(records, len(header)):
            if len(fields) == len(header):
                yield f"{path}, line {number}", dict(zip(header, fields, strict=True))
            elif skip_short_with in header and len(fields) < len(header):
                skipped.append(number)
            else:
                raise ValueError(
                    f"{path}, line {number}: a row must have {len(header)} fields. Received: {len(fields)}"
                )
        if skipped:
            _logger.warning("%s: broken lines left out: %s; the first is line %s", path, len(skipped), skipped[0])

    return Table(str(path), list(header), rows())


def _without_empty_end(records: Iterator[tuple[int, list[str]]], columns: int) -> Iterator[tuple[int, list[str]]]:
    """Yield the records but the empty lines after the last; in a TSV file of one column they are texts."""
    first, empty = 0, [""]  # Number of the first of the empty lines since the last row, and its fields.
    for number, fields in records:
        if not any(fields) and len(fields) < min(columns, 2):
            first, empty = first or number, fields
            continue
        if first:
            yield from ((line, empty) for line in range(first, number))
        first = 0
        yield number, fields


def _first(path: Path, records: Iterator[Any]) -> Any:
    first = next(records, None)
    if first is None:
        raise ValueError(f"{path} must hold at least one line. Received: an empty file")
    return first


def _csv_records(path: Path) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader((line for _, line in _lines(path)), strict=True)
    while True:
        number = reader.line_num + 1
        with _csv_limit:
            usual = csv.field_size_limit(_LONGEST_LINE)  # A global setting, so it is restored.
            try:
                fields = next(reader, None)
            except csv.Error as error:
                raise ValueError(f"{path}, line {number} must begin a CSV row ({error})") from None
            finally:
                csv.field_size_limit(usual)
        if fields is None:
            return
        yield number, fields


def _json_records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    empty = ""  # Place of the first empty line; those at the end of the file are no rows.
    for number, line in _lines(path):
        place = f"{path}, line {number}"
        if not line.strip():
            empty = empty or place
            continue
        if empty:
            raise ValueError(f"{empty} must hold a JSON object. Received: an empty line")
        record = parse_json(place, line.encode(), "a JSON object")
        if not isinstance(record, dict):
            raise ValueError(f"{place} must hold a JSON object. Received: {type(record).__name__}")
        yield place, record


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines with their numbers and line ends; only a line feed ends a line."""
    number = 0
    try:
        with path.open("rb") as file:
            while raw := file.readline(_LONGEST_LINE + 1):
                number += 1
                if len(raw) > _LONGEST_LINE:
                    raise ValueError(
                        f"{path}, line {number} must be at most {_LONGEST_LINE // 2**20} MiB. Received: a longer one"
                    )
                yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}, line {number} must be UTF-8 text ({error.reason})") from None
    except OSError as error:
        raise ValueError(f"{path} must be a text file ({error.strerror})") from None


def _without_end(line: str) -> str:
    return line.removesuffix("\n").removesuffix("\r")
