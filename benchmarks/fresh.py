"""Run programs in turns, each time in a new process, to measure start-up.

`worker.py` has processes that are warm before they are timed.
"""

import json
import subprocess
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

from process import environment, with_code

Key = TypeVar("Key", bound=Hashable)


def run(code: str, python: str, backend: str, *arguments: str, is_ours: bool = True) -> dict[str, Any]:
    """Run a program on a CPU and return the JSON of its last line; a program of ours finds this checkout.

    Raises:
        RuntimeError: The program failed; the message is the last line of its stderr.
    """
    variables = {
        **with_code(is_ours),
        **environment("cpu"),
        "KERAS_BACKEND": backend,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONDONTWRITEBYTECODE": "",  # Bytecode is kept: the first run compiles it, as `pip` does when it installs.
    }
    done = subprocess.run([python, "-c", code, *arguments], env=variables, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    return json.loads(done.stdout.splitlines()[-1])


def take_fresh_turns(
    contenders: Mapping[Key, Callable[[], dict[str, Any]]], rounds: int
) -> tuple[dict[Key, list[dict[str, Any]]], dict[Key, str]]:
    """Return what each contender gave in each round but the first, which fills the cache, and why some are left out."""
    runs: dict[Key, list[dict[str, Any]]] = {name: [] for name in contenders}
    left_out: dict[Key, str] = {}
    for turn in range(rounds + 1):
        for name in list(runs):
            try:
                measured = contenders[name]()
            except RuntimeError as error:  # The others are measured without it.
                left_out[name] = str(error)
                del runs[name]
                continue
            if turn:
                runs[name].append(measured)
    return runs, left_out
