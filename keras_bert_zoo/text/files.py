"""Text files and vocabulary files."""

import codecs
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from keras_bert_zoo.files import replacing
from keras_bert_zoo.text.texts import check_tokens, is_list

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
        decoder = codecs.getincrementaldecoder("utf-8")()  # For lines read in parts.
        number = 1
        try:
            with open_file(path, "rb") as file:
                broken = within = False
                while raw := file.readline(_LONGEST_LINE):
                    goes_on = within
                    if whole and len(raw) == _LONGEST_LINE and not raw.endswith(b"\n"):
                        raise ValueError(f"{path} must have lines shorter than 1 MiB. Received: a longer line {number}")
                    ends = raw.endswith(b"\n")
                    if number == 1 and not within:
                        if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                            raise ValueError(f"{path} must be UTF-8 text. Received: UTF-16")
                        raw = raw.removeprefix(codecs.BOM_UTF8)
                    within = within or not ends
                    try:
                        if broken:
                            line = ""
                        elif within:
                            line = decoder.decode(raw, final=not ends and len(raw) < _LONGEST_LINE)
                        else:
                            line = raw.decode("utf-8")
                    except UnicodeDecodeError as error:
                        if skip is None:
                            raise
                        decoder.reset()
                        skip(number, error.reason)
                        broken = True
                    line = line.rstrip("\r\n") if not broken else ""
                    # The line end alone, after a line read in parts, is not a line.
                    if not broken and (line.strip() or (empty and not goes_on)):
                        yield line
                    number += ends
                    broken = broken and not ends  # The rest of the line is also skipped.
                    within = not ends
                try:
                    decoder.decode(b"", final=True)
                except UnicodeDecodeError as error:  # The file ends within a character, at a part's end.
                    if skip is None:
                        raise
                    skip(number, error.reason)
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} must be UTF-8 text ({error.reason} in line {number})") from None
        except OSError as error:
            raise ValueError(f"{path} must be a text file ({error.strerror or error})") from None


def write_vocabulary(path: str | os.PathLike[str], vocabulary: Sequence[str]) -> None:
    """Write a `vocab.txt`, one token per line in the order of the ids; on failure nothing is written."""
    if not is_list(vocabulary):
        raise ValueError(
            "`vocabulary` must be a list of tokens in the order of their ids. "
            f"Received: vocabulary of type {type(vocabulary).__name__}"
        )
    check_tokens(vocabulary)
    with replacing(Path(path)) as beside:
        beside.write_bytes("".join(f"{token}\n" for token in vocabulary).encode("utf-8"))
