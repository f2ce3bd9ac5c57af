"""Checks of what is a text, a list of texts, a pair or a token, with the same errors everywhere."""

import re
import reprlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

_EXPECTED = "`{name}` must be a list of strings, or for pairs a tuple of two such lists, (first, second)"

_NO_WORD = re.compile(r"\[.*\]|<.*>")


def is_texts(x: Any) -> bool:
    """Whether `x` is meant as raw text: strings in a list or array, or a tuple of two of those."""
    return isinstance(x, (tuple, str)) or _is_column(x)


def split_texts(x: Any, name: str = "x") -> tuple[list[str], list[str] | None]:
    """Return the first and the second texts of `x`; the second is None if `x` is not pairs.

    Raises:
        ValueError: `x` is not texts or pairs, contains something that is not a string, or its lists differ in length.
    """
    if not isinstance(x, tuple):
        return _column(x, name), None
    if len(x) != 2 or not all(_is_column(column) for column in x):
        kinds = ", ".join(type(column).__name__ for column in x)
        raise ValueError(f"{_EXPECTED.format(name=name)}. Received: a tuple of {kinds}")
    first, second = _column(x[0], f"{name}[0]"), _column(x[1], f"{name}[1]")
    if len(first) != len(second):
        raise ValueError(f"`{name}` must hold as many first as second texts. Received: {len(first)} and {len(second)}")
    return first, second


def is_series(x: Any) -> bool:
    """Whether `x` is a column of pandas or similar; a frame would yield its column names as rows."""
    return hasattr(x, "to_numpy") and len(getattr(x, "shape", (len(x),))) == 1


def is_list(x: Any) -> bool:
    """Whether `x` has rows: a list, tuple, array or column of pandas or similar, but not a text, dict or frame."""
    if isinstance(x, np.ndarray):
        return x.ndim > 0
    return is_series(x) or (isinstance(x, Sequence) and not isinstance(x, (str, bytes)))


def check_iterable(texts: Any, name: str = "texts") -> None:
    """Check that `texts` can be read one by one, and is not itself a text."""
    if isinstance(texts, (str, bytes)) or not isinstance(texts, Iterable):
        raise ValueError(f"`{name}` must be a list of strings. Received: {name}={reprlib.repr(texts)}")


def check_strings(texts: Iterable[Any], name: str, start: int = 0) -> None:
    """Check that each text is a string that UTF-8 can encode; the first of them is `name[start]`."""
    for i, text in enumerate(texts, start):
        if not isinstance(text, str):
            received = f"{name}[{i}]={reprlib.repr(text)} of type {type(text).__name__}"
            raise ValueError(f"`{name}` must hold strings. Received: {received}")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"`{name}` must hold valid Unicode. Received: {name}[{i}] with half a surrogate pair"
            ) from None


def token_of_line(line: str) -> str:
    """Return the token of a line of a `vocab.txt`: without white space after it, as in transformers and the original.

    A token may be white space itself, as U+2028 is in released vocabularies.
    """
    return line.rstrip(" \t\r") or line.rstrip("\r")


def check_tokens(vocabulary: Iterable[Any]) -> None:
    """Check that each token of a vocabulary is a line of a `vocab.txt`."""
    check_strings(vocabulary, "vocabulary")
    for i, token in enumerate(vocabulary):
        if not token or "\n" in token or token != token_of_line(token):
            raise ValueError(
                f"`vocabulary` must hold right-stripped strings of one line. Received: vocabulary[{i}]={token!r}"
            )


def find_capital(tokens: Iterable[str]) -> str | None:
    """Return the first token with a capital letter, which only cased text gives, or None."""
    # The uncased releases hold capitals that have no small letter, such as U+211D, and the Chinese one `<S>`.
    return next((token for token in tokens if token.lower() != token and not _NO_WORD.fullmatch(token)), None)


def _is_column(x: Any) -> bool:
    if isinstance(x, (str, bytes, dict, tuple)):
        return False
    if isinstance(x, np.ndarray) or hasattr(x, "to_numpy"):
        return np.asarray(x).dtype.kind in "OUST"
    return isinstance(x, Sequence) and (not x or isinstance(x[0], (str, bytes)) or x[0] is None)


def _column(x: Any, name: str) -> list[str]:
    if not _is_column(x):
        one = f"; pass one text as [{name}]" if isinstance(x, str) else ""
        raise ValueError(f"{_EXPECTED.format(name=name)}. Received: {name} of type {type(x).__name__}{one}")
    if getattr(x, "ndim", 1) != 1:
        raise ValueError(f"`{name}` must have one dimension. Received: {name}.shape={x.shape}")
    try:
        column = np.asarray(x) if hasattr(x, "to_numpy") else x  # Rows of PyArrow are no strings.
        texts = [text.decode("utf-8") if isinstance(text, bytes) else text for text in column]
    except UnicodeDecodeError as error:
        raise ValueError(f"`{name}` must hold UTF-8 texts. Received: {error.object[:20]!r}") from None
    check_strings(texts, name)
    return texts
