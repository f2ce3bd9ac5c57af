"""What the commands share: their help, and a configuration from a file and the options given beside it."""

import argparse
import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from keras_bert_zoo.files import read_json

Option = tuple[str, Callable[[str], Any], str]
"""Name, what makes a value of its text, what it is."""


def add_command(
    commands: Any, name: str, summary: str, example: str, run: Callable[[argparse.Namespace], None]
) -> argparse.ArgumentParser:
    """A command that `run` carries out; `example` ends its help."""
    parser = commands.add_parser(
        name,
        help=summary,
        description=summary,
        epilog=example,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def add_options(parser: argparse.ArgumentParser, *options: Option) -> None:
    """Options for the fields of a configuration, None where they are not given."""
    for name, kind, words in options:
        parser.add_argument(f"--{name}", type=kind, help=words)


def json_object(text: str) -> dict[str, Any]:
    """An option's value; argparse names this function where it is none."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(text)
    return value


def configured(kind: Any, options: argparse.Namespace) -> dict[str, Any]:
    """The fields of a dataclass: those of the file `--config`, if any, and over them what the options say."""
    names = {field.name for field in fields(kind)}
    config = read_config(Path(options.config), names) if options.config else {}
    given = {name: getattr(options, name, None) for name in names}
    return config | {name: value for name, value in given.items() if value is not None}


def read_config(path: Path, names: set[str]) -> dict[str, Any]:
    """The configuration that a run has written."""
    if not path.is_file():
        raise ValueError(f"--config must be a file. Received: {path}")
    config = read_json(path)
    unknown = sorted(set(config) - names)
    if unknown:
        raise ValueError(f"{path} must be the configuration of a run. Received: one with {unknown}")
    return config
