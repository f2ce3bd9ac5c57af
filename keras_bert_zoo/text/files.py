"""Text files and vocabulary files."""

import codecs
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from keras_bert_zoo.files import TEXT_BYTES, check_size, replacing
from keras_bert_zoo.text.texts import check_tokens, is_list, token_of_line

# Longer lines are read in parts, so that a whole file is never in memory.
_LONGEST_LINE = 2**20


def read_lines(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    empty: bool = False,
    open_file: Callable[[Any, str], Any] = open,
    whole: bool = False,
    skip: Callable[[int, str], None] | None = None,
) -> Iterator[str]:
    """Yield the lines of UTF-8 text files, one after another, without line ends.

    Args:
        paths: One path, or several, read in this order.
        empty: Whether to yield empty lines as well.
        open_file: Opens a path in mode `"rb"`, if it is not a local file.
        whole: Whether to reject lines of 1 MiB or more; otherwise they are yielded in parts.
        skip: Called with the number of each line that is not UTF-8, and the reason; the line, or the rest of one that
            is yielded in parts, is skipped. If None, such a line raises a `ValueError`.

    Raises:
        ValueError: A file is missing or not UTF-8; the message has its name and the line.
    """
    for path in [paths] if isinstance(paths, (str, os.PathLike)) else paths:
        broken = False  # Whether the rest of the line is skipped, too.
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            with open_file(path, "rb") as file:
                for number, raw, begins, ends, is_last in _pieces(file):
                    if whole and not ends and len(raw) == _LONGEST_LINE:
                        raise ValueError(f"{path} must have lines shorter than 1 MiB. Received: a longer line {number}")
                    if begins and number == 1:
                        if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                            raise ValueError(f"{path} must be UTF-8 text. Received: UTF-16")
                        raw = raw.removeprefix(codecs.BOM_UTF8)
                    broken = broken and not begins
                    if broken:
                        continue
                    try:
                        line = raw.decode() if begins and ends else decoder.decode(raw, final=ends or is_last)
                    except UnicodeDecodeError as error:
                        if skip is None:
                            raise ValueError(f"{path} must be UTF-8 text ({error.reason} in line {number})") from None
                        decoder.reset()
                        skip(number, error.reason)
                        broken = True
                        continue
                    # The line end alone, after a line read in parts, is not a line.
                    line = line.rstrip("\r\n")
                    if line.strip() or (empty and begins):
                        yield line
        except OSError as error:
            raise ValueError(f"{path} must be a text file ({error.strerror or error})") from None


class _Piece(NamedTuple):
    """A line, or a part of a long one."""

    number: int
    raw: bytes
    begins: bool
    """Whether its line begins with it."""
    ends: bool
    is_last: bool
    """Whether the file ends with it, without a line end."""


def _pieces(file: Any) -> Iterator[_Piece]:
    number, begins = 1, True
    while (raw := file.readline(_LONGEST_LINE)) or not begins:  # After a part comes another one, empty at the end.
        ends = raw.endswith(b"\n")
        is_last = not ends and len(raw) < _LONGEST_LINE
        yield _Piece(number, raw, begins, ends, is_last)
        number, begins = number + ends, ends or is_last


def read_vocabulary(path: str | os.PathLike[str]) -> list[str]:
    """Read the tokens of a `vocab.txt`, one per line, in the order of their ids."""
    try:
        check_size(Path(path), TEXT_BYTES)
        text = Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"The vocabulary must be UTF-8 text ({error.reason}). Received: path={str(path)!r}") from None
    except OSError as error:
        raise ValueError(
            f"The vocabulary must be a text file ({error.strerror}). Received: path={str(path)!r}"
        ) from None
    # Not `splitlines`: released vocabularies contain U+2028 and similar characters as tokens.
    lines = [token_of_line(line) for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def write_vocabulary(path: str | os.PathLike[str], vocabulary: Sequence[str]) -> None:
    """Write a `vocab.txt`, one token per line in the order of the ids; on failure nothing is written.

    Args:
        path: The file to write.
        vocabulary: The tokens, such as `learn_vocabulary` returns.

    Raises:
        ValueError: The tokens are not what a `vocab.txt` can hold.
    """
    if not is_list(vocabulary):
        raise ValueError(
            "`vocabulary` must be a list of tokens in the order of their ids. "
            f"Received: vocabulary of type {type(vocabulary).__name__}"
        )
    check_tokens(vocabulary)
    if next(iter(vocabulary), "").startswith("\ufeff"):  # It would be read as a mark of the file's encoding.
        raise ValueError("`vocabulary` must not begin with U+FEFF. Received: vocabulary[0] with it")
    with replacing(Path(path)) as beside:
        beside.write_bytes("".join(f"{token}\n" for token in vocabulary).encode("utf-8"))
