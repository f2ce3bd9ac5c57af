"""The console script `keras-bert-zoo`."""

import argparse
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras_bert_zoo
from keras_bert_zoo.cli import estimate, finetuning, presets, pretraining


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Errors in its arguments or files print one line on stderr and give the exit status 2.

    Ctrl+C also prints one line, which says whether the same command resumes, and gives the exit status 130. SIGTERM,
    with which batch systems stop a process, does the same with 143.
    """
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # A finished run must not fail on the name of its directory.
    parser = argparse.ArgumentParser(prog="keras-bert-zoo", description="BERT for Keras 3.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {keras_bert_zoo.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for group in (pretraining, estimate, finetuning, presets):
        group.add_commands(commands)
    options = parser.parse_args(arguments)
    try:
        with _terminated_as_interrupted():
            options.run(options)
    except (ValueError, OSError) as error:
        print(f"keras-bert-zoo {options.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        further = "; run the same command again to resume from the last saved state" if options.resumes else ""
        print(f"keras-bert-zoo {options.command}: stopped{further}", file=sys.stderr)
        return 143 if isinstance(error, _Terminated) else 130
    return 0


class _Terminated(KeyboardInterrupt):
    pass


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Make SIGTERM raise as Ctrl+C does, so that what is half-written is removed; a caller's own handler stays."""
    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def stop(*_: Any) -> None:
        raise _Terminated

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
