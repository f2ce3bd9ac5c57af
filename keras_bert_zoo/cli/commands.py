"""What the commands share: their help, and a configuration from a file, overridden by options."""

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from keras_bert_zoo.json_files import read_json, read_json_if_there
from keras_bert_zoo.presets.presets import names_directory

Option = tuple[str, Callable[[str], Any], str]
"""Name, function from text to value, help."""

FINISHED = " (already finished; nothing was trained)"


def add_command(
    commands: Any,
    name: str,
    summary: str,
    example: str,
    run: Callable[[argparse.Namespace], None],
    resumes: bool = False,
) -> argparse.ArgumentParser:
    """Add a command that calls `run`. `example` ends its help; `resumes` says that running it again resumes it."""
    parser = commands.add_parser(
        name,
        help=summary,
        description=summary,
        epilog=example,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run, resumes=resumes)
    return parser


def add_options(parser: argparse.ArgumentParser, *options: Option) -> None:
    """Add options for the fields of a configuration, None by default."""
    for name, kind, words in options:
        parser.add_argument(f"--{name}", type=kind, help=words)


def json_object(text: str) -> dict[str, Any]:
    """Parse an option's value; argparse names this function if the value is no object."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(text)
    return value


def configured(kind: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of a dataclass from the file `--config`, if any, overridden by the options."""
    names = {field.name for field in fields(kind)}
    config = _read_config(Path(options.config), names) if getattr(options, "config", None) else {}
    given = {name: getattr(options, name, None) for name in names}
    return config | {name: value for name, value in given.items() if value is not None}


def _read_config(path: Path, names: set[str]) -> dict[str, Any]:
    """Read the configuration that a run has written."""
    if not path.is_file():
        raise ValueError(f"--config must be a file. Received: {path}")
    config = read_json(path)
    unknown = sorted(set(config) - names)
    if unknown:
        raise ValueError(f"{path} must be the configuration of a run. Received: one with {unknown}")
    return config


def place(config: dict[str, Any], names: tuple[str, ...], begun: Path | None = None) -> dict[str, Any]:
    """Make the paths of a configuration absolute, so that the file of a run is valid in every directory.

    Args:
        config: The configuration.
        names: Fields that may be paths. A preset's name and an address such as `gs://` are kept. Links are not
            resolved, because the target may have another suffix.
        begun: The file of a run that may have been started from Python; paths equal to its own are kept.
    """
    before = {} if begun is None else read_json_if_there(begun)
    placed = dict(config)
    for name in names:
        path = config.get(name)
        if not isinstance(path, str) or "://" in path or path == before.get(name):
            continue
        if name != "preset" or names_directory(path):
            placed[name] = os.path.abspath(path)
    return placed
