"""Shared by all reports: facts that a reader needs to judge the numbers, a table, and two files of one name."""

import argparse
import datetime
import json
import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from machine import commit, identity, variables, versions


def about(script: str, args: argparse.Namespace, between: str = ",") -> dict[str, Any]:
    """Return the facts of a run that begins now, with the peers' versions if `args` has a `peers_python`."""
    peers = getattr(args, "peers_python", None)
    beside = {"peers": versions(peers)} if peers else {}
    return {"command": describe_command(script, args, between), **now(script), **beside}


def about_rows(script: str, args: argparse.Namespace, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the facts of rows that were measured before, each with its own; what old ones do not tell is unknown."""
    found = {row.get("contender") == "transformers": row.get("versions", {}) for row in rows}
    facts = {name: rows[-1].get(name, "unknown") for name in ("date", "machine", "commit", "code")}
    beside = {"peers": found[True]} if found.get(True) else {}
    measured_with = rows[-1].get("variables", {})
    command = describe_command(script, args, " ", measured_with)
    return {"command": command, **facts, "versions": found.get(False, {}), "variables": measured_with, **beside}


def now(script: str, python: str = sys.executable) -> dict[str, Any]:
    """Return the facts of a measurement that the interpreter `python` makes now for that script."""
    date = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC"
    return {"date": date, "commit": commit(), **identity(script, python)}


def describe_command(
    script: str, args: argparse.Namespace, between: str = ",", measured_with: dict[str, str] | None = None
) -> str:
    """Return the command with every option spelt out, and placeholders in place of this machine's paths.

    `between` is what the script wants between the values of an option, and `measured_with` the variables that change
    speed, by default those of now.
    """
    backend = {"KERAS_BACKEND": os.environ["KERAS_BACKEND"]} if "KERAS_BACKEND" in os.environ else {}
    told = {**backend, **(variables() if measured_with is None else measured_with)}
    words = [f"{name}={shlex.quote(value)}" for name, value in told.items()]
    words += ["KBZ_DATA=DATA"] if "KBZ_DATA" in os.environ else []
    words.append(f"python benchmarks/{script}")
    for name, value in vars(args).items():
        if value is None or value is False or value == [] or name == "serve":
            continue
        option, values = f"--{name.replace('_', '-')}", value if isinstance(value, list) else [value]
        if isinstance(value, list) and isinstance(values[0], Path):
            words.append(f"{name.upper()}/*")  # Files are positional.
        elif isinstance(value, Path) or name in ("peers_python", "preset"):
            words.append(f"{option} {name.upper()}")
        else:
            words.append(option if value is True else f"{option} {between.join(shlex.quote(str(v)) for v in values)}")
    return " ".join(words)


def describe(facts: dict[str, Any]) -> list[str]:
    """Return the facts as lines of Markdown."""

    def spelt(found: dict[str, str]) -> str:
        return ", ".join(f"{package} {version}" for package, version in found.items() if version != "none")

    lines = [f"- Command: `{facts['command']}`", f"- Date: {facts['date']}", f"- Machine: {facts['machine']}"]
    lines.append(f"- keras_bert_zoo with: {spelt(facts['versions'])}")
    lines += [f"- Peers with: {spelt(facts['peers'])}"] if "peers" in facts else []
    at = f", commit {facts['commit']}" if facts["commit"] else ""
    return [*lines, f"- Code: {facts['code']}{at}"]


def table(rows: Iterable[Sequence[str]]) -> str:
    """Return the rows, their head first, as a Markdown table."""
    head, *body = rows
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *body))


def write(out: Path, text: str, raw: dict[str, Any]) -> None:
    """Write `out`, a Markdown file, and its numbers beside it as JSON, each at once or not at all."""
    out.parent.mkdir(parents=True, exist_ok=True)
    numbers = json.dumps(raw, indent=1, ensure_ascii=False) + "\n"
    for path, content in ((out, text), (out.with_suffix(".json"), numbers)):
        unfinished = path.with_name(f"{path.name}.part")
        unfinished.write_text(content, encoding="utf-8")
        unfinished.replace(path)


def is_current(out: Path, script: str, peers_python: str | None) -> bool:
    """Whether the report `out` is of this machine, code, variables and versions, including the peers'."""
    if not (out.is_file() and out.with_suffix(".json").is_file()):
        return False
    facts = read(out).get("about", {})
    alike = peers_python is None or facts.get("peers") in (None, versions(peers_python))
    return alike and identity(script).items() <= facts.items()


def is_whole(out: Path) -> bool:
    """Whether nothing failed that the report `out` was to measure."""
    raw = read(out)
    return not raw.get("left_out") and not any("error" in row for row in raw.get("rows", ()))


def read(out: Path) -> dict[str, Any]:
    """Return the numbers of the report `out`."""
    return json.loads(out.with_suffix(".json").read_text(encoding="utf-8"))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file of JSON lines; none if there is no file yet."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def data_folder() -> Path:
    """Return the folder of real data."""
    if "KBZ_DATA" not in os.environ:
        sys.exit("KBZ_DATA must name the folder that holds the data. Received: KBZ_DATA unset")
    return Path(os.environ["KBZ_DATA"])
