"""Benchmarks' contenders take turns, all alive or one at a time."""

import importlib
import os
import sys
from functools import partial
from pathlib import Path

import pytest

BENCHMARKS = str(Path(__file__).parents[1] / "benchmarks")
CONTENDER = """
import os, sys
sys.path.insert(0, sys.argv[1])
from worker import serve
turns = []
def answer(order):
    turns.append(order)
    if order == "hang":
        import time
        time.sleep(60)
    if order == "break":
        raise ValueError("no more")
    return {"turn": len(turns), "process": os.getpid()}
serve(lambda: ({"of": sys.argv[2]}, answer))
"""


@pytest.fixture
def workers(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("worker")


def start(workers, alive, name):
    worker = workers.Worker(name, [sys.executable, "-c", CONTENDER, BENCHMARKS, name], dict(os.environ))
    alive[name] = worker
    return worker


def test_turns(workers):
    """Alive together, a contender has one process for all turns; apart, one for each. What fails leaves the others."""
    for take, apart in ((workers.take_turns, False), (workers.take_turns_apart, True)):
        alive, running = {}, []

        def turn(worker, alive=alive, running=running):
            running.append(sum(each._process.poll() is None for each in alive.values()))
            return worker.ask("break" if worker.name == "bad" and len(running) > 3 else "go")

        starts = {name: partial(start, workers, alive, name) for name in ("a", "bad", "b")}
        said, turns, left_out = take(starts, 3, turn)
        assert (said, left_out) == ({"a": {"of": "a"}, "b": {"of": "b"}}, {"bad": "ValueError: no more"})
        for own in turns.values():
            assert [each["turn"] for each in own] == ([1, 1, 1] if apart else [1, 2, 3])
            assert len({each["process"] for each in own}) == (3 if apart else 1)
        assert max(running) == (1 if apart else 3)
        assert all(each._process.poll() is not None for each in alive.values())


def test_a_contender_that_hangs_is_ended(workers, monkeypatch):
    worker = start(workers, {}, "a")
    monkeypatch.setattr(workers, "_DEADLINE", 0.25)
    with pytest.raises(RuntimeError, match="no answer in 0 s"):
        worker.ask("hang")
    assert worker._process.poll() is not None
