"""Reading and writing files so that a failure leaves nothing half-done."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; anything else in the file is a `ValueError` that names it."""
    try:
        value = json.loads(path.read_bytes().decode("utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path} must hold a JSON object ({error})") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a JSON object. Received: {type(value).__name__}")
    return value


def write_json(path: Path, value: dict[str, Any]) -> None:
    """A JSON object, indented, with a final newline."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_directory(
    path: str | os.PathLike[str], marker: str, owned: tuple[str, ...], write: Callable[[Path], None]
) -> None:
    """Fill a directory beside `path`, then rename it into place; an error on the way leaves `path` as it was.

    Args:
        path: The directory to make. It may exist if it is empty or holds `marker`; its files are then replaced.
        marker: Name of the file that tells our own directories from others, written last.
        owned: Names of files that `write` makes at times; what is left of them from before is removed.
        write: Called with the directory to fill.
    """
    target = Path(path)
    if target.exists() and not target.is_dir():
        raise ValueError(f"`path` must be a directory. Received: path={str(path)!r}, a file")
    if target.is_dir() and any(target.iterdir()) and not (target / marker).is_file():
        raise ValueError(
            f"`path` must be a new or empty directory, or one with a {marker}. Received: path={str(path)!r}"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        write(beside)
        beside.chmod(0o755)
        if not target.exists():
            beside.rename(target)
            return
        written = set()
        for name in sorted(os.listdir(beside), key=lambda name: name == marker):
            os.replace(beside / name, target / name)
            written.add(name)
        for name in set(owned) - written:
            (target / name).unlink(missing_ok=True)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
