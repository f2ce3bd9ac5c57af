"""Processes that take turns: each contender has its own, warm before any is timed, and works only on order.

Other load on the machine thus affects all alike. A process answers each order on stdin with a line of JSON on stdout.
"""

import contextlib
import json
import os
import select
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any

Answer = dict[str, Any]
# More would try their kernels on the card beside others that compute, and might not fit into its memory; one at a time
# takes twice as long, and the time on a card is often short.
STARTED_AT_ONCE_ON_A_CARD = 2
_FAREWELL = 60.0  # Seconds to end.
_DEADLINE = 20 * 60.0  # Seconds to get ready, or for an order; the slowest contender takes a few minutes.


class Worker:
    """A process that calls `serve`, ready for orders.

    Args:
        name: The contender's, for messages.
        command: What starts the process.
        environment: Its environment variables.
        log: Where its stderr goes, and what the frameworks in it print.
    """

    def __init__(
        self, name: str, command: Sequence[str], environment: dict[str, str], log: IO[bytes] | int = subprocess.DEVNULL
    ) -> None:
        self.name = name
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            text=True,
            encoding="utf-8",
        )
        self.about = self._answer()

    def ask(self, order: str = "go") -> Answer:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # If it has ended, the answer says how.
            self._process.stdin.write(f"{order}\n")
            self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Answer:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], _DEADLINE)[0]:
            self._process.kill()
            answer = {"error": f"no answer in {_DEADLINE:.0f} s"}
        else:
            line = self._process.stdout.readline()
            answer = json.loads(line) if line else {"error": f"the process ended with status {self._process.wait()}"}
        if "error" in answer:
            self.close()
            raise RuntimeError(answer["error"])
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process:
            self._process.stdin.close()  # With which it ends, unless it hangs.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_FAREWELL)
            self._process.kill()


def take_turns(
    starts: dict[str, Callable[[], Worker]], rounds: int, turn: Callable[[Worker], Any], started_at_once: int = 1
) -> tuple[dict[str, Answer], dict[str, list[Any]], dict[str, str]]:
    """Return what each contender says of itself, what `turn` gives for it in each round, and why some are left out.

    `started_at_once` contenders start side by side; no turn is taken before all are ready.
    """
    workers: dict[str, Worker] = {}
    turns: dict[str, list[Any]] = {}
    left_out: dict[str, str] = {}
    with contextlib.ExitStack() as stack:

        def leave_out(name: str, error: Exception) -> None:
            left_out[name] = str(error)
            workers.pop(name, None)
            print(f"{name} is left out: {error}", file=sys.stderr, flush=True)

        pool = stack.enter_context(ThreadPoolExecutor(started_at_once))
        for name, starting in {name: pool.submit(start) for name, start in starts.items()}.items():
            try:
                workers[name] = starting.result()
            except RuntimeError as error:  # The others are measured without it.
                leave_out(name, error)
                continue
            stack.callback(workers[name].close)
            turns[name] = []
        for _ in range(rounds):
            for name, worker in list(workers.items()):
                try:
                    turns[name].append(turn(worker))
                except RuntimeError as error:
                    leave_out(name, error)
    return {name: own.about for name, own in workers.items()}, {name: turns[name] for name in workers}, left_out


def take_turns_apart(
    starts: dict[str, Callable[[], Worker]], rounds: int, turn: Callable[[Worker], Any]
) -> tuple[dict[str, Answer], dict[str, list[Any]], dict[str, str]]:
    """Like `take_turns`, but each contender's process starts before each of its turns and ends after it.

    This takes longer, but the memory need hold only one contender at a time.
    """
    said: dict[str, Answer] = {}
    turns: dict[str, list[Any]] = {name: [] for name in starts}
    left_out: dict[str, str] = {}
    for _ in range(rounds):
        for name in [name for name in starts if name not in left_out]:
            about, taken, failed = take_turns({name: starts[name]}, 1, turn)
            said = about | said
            turns[name] += taken.get(name, [])
            left_out |= failed
    there = [name for name in starts if name not in left_out]
    return {name: said[name] for name in there}, {name: turns[name] for name in there}, left_out


def serve(prepare: Callable[[], tuple[Answer, Callable[[str], Answer]]]) -> None:
    """Serve orders in a contender's process; `prepare` returns what it says of itself, and what answers an order."""
    # Frameworks print as they like, but to stderr; the answers have the old stdout to themselves.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(message: Answer) -> None:
        print(json.dumps(message), file=answers, flush=True)

    try:
        about, answer = prepare()
        say(about)
        for line in sys.stdin:
            say(answer(line.strip()))
    except Exception as error:
        traceback.print_exc()
        say({"error": f"{type(error).__name__}: {error}"})
