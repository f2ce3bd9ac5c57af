"""Reading and writing of JSON files, which may be anybody's."""

import json
import reprlib
from pathlib import Path
from typing import Any

from keras_bert_zoo.files import SETTINGS_BYTES, check_size, replacing


def read_json(path: Path, limit: int = SETTINGS_BYTES) -> dict[str, Any]:
    """Read a JSON object; anything else in the file raises a `ValueError` that names it."""
    return _read(path, dict, "a JSON object", limit)


def read_json_if_there(path: Path) -> dict[str, Any]:
    """Read a JSON object, or return an empty one if there is no such file."""
    return read_json(path) if path.is_file() else {}


def read_json_list(path: Path, expected: str, limit: int = SETTINGS_BYTES) -> list[Any]:
    """Read a JSON list, which errors call `expected`."""
    return _read(path, list, expected, limit)


def _read(path: Path, kind: type, expected: str, limit: int) -> Any:
    check_size(path, limit)
    value = parse_json(path, path.read_bytes(), expected)
    if not isinstance(value, kind):
        raise ValueError(f"{path} must hold {expected}. Received: {type(value).__name__}")
    return value


def parse_json(place: object, text: bytes, expected: str) -> Any:
    """Parse JSON text; invalid text raises a `ValueError` that begins with `place`."""
    try:
        return json.loads(text.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{place} must be UTF-8 text. Received: {error.reason} at byte {error.start}") from None
    except ValueError as error:  # Also raised for integers of thousands of digits.
        raise ValueError(f"{place} must hold {expected} ({error})") from None
    except RecursionError:
        raise ValueError(f"{place} must hold {expected}. Received: one nested too deeply") from None


def typed(path: Path, values: dict[str, Any], name: str, kind: type, default: Any) -> Any:
    """Return a JSON object's field: the default if it is missing or null; another type raises a `ValueError`."""
    value = values.get(name)
    if value is None:
        return default
    if isinstance(value, int) and not isinstance(value, bool):
        # No size needs more than 63 bits. transformers writes 1e30 as an integer where a float is meant.
        if value.bit_length() > (1023 if kind is float else 63):
            raise ValueError(f"{path}: `{name}` must be a number. Received: one of {value.bit_length()} bits")
        value = float(value) if kind is float else value
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{path}: `{name}` must be of type {kind.__name__}. Received: {reprlib.repr(value)}")
    return value


def check_allowed(where: object, fields: dict[str, Any], allowed: dict[str, tuple[Any, ...]]) -> None:
    """Check that each field named in `allowed`, None if it is missing, has one of the values there."""
    for name, choices in allowed.items():
        value = fields.get(name)
        if value not in choices:
            expected = repr(choices[0]) if len(choices) == 1 else f"one of {choices}"
            raise ValueError(f"{where}: `{name}` must be {expected}. Received: {reprlib.repr(value)}")


def write_json(path: Path, value: dict[str, Any] | list[Any]) -> None:
    """Write an indented JSON object or list with a final newline, completely or not at all."""
    with replacing(path) as beside:
        text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
        # What UTF-8 cannot hold, as in some files' names, gets the escape that JSON has for it.
        beside.write_text(text, encoding="utf-8", errors="backslashreplace")
