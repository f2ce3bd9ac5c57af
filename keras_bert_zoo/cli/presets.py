"""The commands for presets: `convert`, `upload`."""

import argparse
from typing import Any

from keras_bert_zoo.checks import listed
from keras_bert_zoo.cli.commands import add_command
from keras_bert_zoo.presets import LAYOUTS, convert_preset, upload_preset

_CONVERT = """\
A checkpoint of google-research/bert, or a preset of keras-hub, for transformers:

  keras-bert-zoo convert uncased_L-12_H-768_A-12 bert_base
  keras-bert-zoo convert keras_hub_preset bert --license apache-2.0

And one of the hub for google-research/bert's scripts:

  keras-bert-zoo convert hf://org/name bert_tf1 --to tensorflow1
"""
_UPLOAD = """\
A preset to a new private repository, with the token of `hf auth login`:

  keras-bert-zoo upload run/preset hf://org/name --private
"""


def add_commands(commands: Any) -> None:
    for add in (_add_convert, _add_upload):
        add(commands)


# --- convert


def _add_convert(commands: Any) -> None:
    parser = add_command(commands, "convert", "Write a preset in another layout.", _CONVERT, _convert)
    parser.add_argument("source", metavar="SOURCE", help="what to read: a name, a directory, hf://org/name")
    parser.add_argument("out", metavar="OUT", help="new or empty directory")
    parser.add_argument("--to", choices=LAYOUTS, default=LAYOUTS[0], help="the layout to write (%(default)s)")
    parser.add_argument("--license", help="what the model card names, such as apache-2.0 (unknown)")


def _convert(options: argparse.Namespace) -> None:
    report = convert_preset(options.source, options.out, to=options.to, license=options.license)
    print(f"{options.out}: {report.class_name}, {len(report.loaded)} weights")
    if report.unused:
        print(f"left out: {listed(report.unused)}")


# --- upload


def _add_upload(commands: Any) -> None:
    parser = add_command(commands, "upload", "Upload a preset to the Hugging Face hub.", _UPLOAD, _upload)
    parser.add_argument("preset", metavar="PRESET", help="a preset's directory")
    parser.add_argument("uri", metavar="URI", help="hf://org/name")
    parser.add_argument("--private", action="store_true", help="make the repository private")


def _upload(options: argparse.Namespace) -> None:
    print(upload_preset(options.uri, options.preset, private=options.private))
