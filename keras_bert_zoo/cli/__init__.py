"""The console script `keras-bert-zoo`."""

import argparse
import sys
from collections.abc import Sequence

import keras_bert_zoo
from keras_bert_zoo.cli import estimate, finetuning, presets, pretraining
from keras_bert_zoo.cli.memory import keep_memory


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Errors in its arguments or files print one line on stderr and give the exit status 2.

    Ctrl+C also prints one line, which says whether the same command resumes, and gives the exit status 130.
    """
    parser = argparse.ArgumentParser(prog="keras-bert-zoo", description="BERT for Keras 3.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {keras_bert_zoo.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for group in (pretraining, estimate, finetuning, presets):
        group.add_commands(commands)
    options = parser.parse_args(arguments)
    keep_memory()
    try:
        options.run(options)
    except (ValueError, OSError) as error:
        print(f"keras-bert-zoo {options.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        further = "; the same command goes on from the last state that was kept" if options.resumes else ""
        print(f"keras-bert-zoo {options.command}: stopped{further}", file=sys.stderr)
        return 130
    return 0
