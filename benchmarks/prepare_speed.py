"""Time making pre-training examples from text, in turns with google-research/bert's `create_pretraining_data.py`.

    python benchmarks/prepare_speed.py --original ORIGINAL --vocab VOCAB --out OUT NOVELS/*.txt

`ORIGINAL` is a folder with `create_pretraining_data.py` and `tokenization.py` of google-research/bert, as in PyPI's
`bert-tensorflow` 1.0.1; without it only ours is timed. They were written for TensorFlow 1 and for that package, and
need only this change:

    sed -i 's/^import tensorflow as tf/import tensorflow.compat.v1 as tf/; s/^from bert import/import/' *.py

Both sides read the same files, the novels with one sentence per line as split by ours, and make the same examples:
pairs of length 128 with at most 20 predictions and fixed masks. The original is one process and writes TFRecords; ours
uses all cores and writes its data set. Each run is its own process. The original is timed as a whole, minus its
start-up, which is the same command on a few lines of text. For ours the call of `prepare` is timed, including the start
of its own processes. Memory is the most that one process of a run had; ours has a process on each core.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from process import with_code
from reports import about, describe, write

BOOKS, DUPLICATES = 12, (1, 10)
CONTENDERS = ("original", "ours")
OURS = """
import json, os, sys, time
import keras_bert_zoo as kbz
from keras_bert_zoo.pretraining import Masking, prepare
if __name__ == "__main__":
    vocab, out, duplicates, *paths = sys.argv[1:]
    tokenizer = kbz.BertTokenizer(vocab)
    options = {"masking": Masking(), "fix_masks": True, "duplicates": int(duplicates), "verbose": False}
    start, before = time.perf_counter(), sum(os.times()[:4])
    prepare(paths, out, tokenizer, **options)
    print(json.dumps({"seconds": time.perf_counter() - start, "processor": sum(os.times()[:4]) - before}))
"""


def write_sentences(novels: Sequence[Path], folder: Path) -> tuple[list[Path], int]:
    """Write each novel as one document with a sentence per line; return the files and the number of words."""
    from keras_bert_zoo.pretraining.corpus import CorpusReport, read_documents

    paths, words = [], 0
    for novel in novels:
        parts = read_documents([novel], "prose", True, CorpusReport())
        sentences = [sentence for part in parts for sentence in part.sentences]
        words += sum(len(sentence.split()) for sentence in sentences)
        paths.append(folder / novel.name)
        paths[-1].write_text("\n".join(sentences) + "\n\n", encoding="utf-8")
    return paths, words


def run(contender: str, paths: Sequence[Path], duplicates: int, arguments: argparse.Namespace) -> dict[str, float]:
    """Return the seconds, processor seconds, examples and GiB of one run."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        if contender == "original":
            command = [
                "create_pretraining_data.py",
                f"--input_file={','.join(map(str, paths))}",
                f"--output_file={out}",
                f"--vocab_file={arguments.vocab}",
                f"--dupe_factor={duplicates}",
            ]
        else:
            program = Path(folder) / "ours.py"
            program.write_text(OURS)
            command = [str(program), str(arguments.vocab), str(out), str(duplicates), *map(str, paths)]
        environment = {**with_code(True), "TF_CPP_MIN_LOG_LEVEL": "3"}
        with open(Path(folder) / "log", "w+b") as log:
            start = time.perf_counter()
            process = subprocess.Popen(
                [sys.executable, *command], cwd=arguments.original, env=environment, stdout=log, stderr=log
            )
            _, status, usage = os.wait4(process.pid, 0)
            seconds = time.perf_counter() - start
            process.returncode = os.waitstatus_to_exitcode(status)
            log.seek(0)
            text = log.read().decode()
        if process.returncode:
            raise SystemExit(text)
        peak = usage.ru_maxrss / 2**20  # Of the largest process: this one, or one that it waited for.
        if contender == "original":
            examples = int(text.split(" total instances")[0].split()[-1])
            took = {"seconds": seconds, "processor": usage.ru_utime + usage.ru_stime}
        else:
            examples = json.loads((out / "dataset.json").read_text())["examples"]
            took = json.loads(text.splitlines()[-1])
        return {**took, "examples": examples, "GiB": peak}


def table(runs: dict[str, list[dict[str, float]]], words: int) -> str:
    lines = [
        f"{BOOKS} novels, {words:,} words. Median of {len(next(iter(runs.values())))} rounds, of seconds "
        "(slowest..fastest run). GiB: the most that one process of a run had; ours has a process on each core.",
        "",
        "| duplicates | contender | seconds | processor seconds | examples | words/s | x | examples/s | x | GiB |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for duplicates in DUPLICATES:
        rates: dict[str, tuple[float, float]] = {}
        for contender in _contenders(runs):
            all_runs = runs[f"{contender} {duplicates}"]
            start_up = runs["original 0"] if contender == "original" else [{"seconds": 0, "processor": 0}]
            wall, processor = (
                [each[kind] - statistics.median(start[kind] for start in start_up) for each in all_runs]
                for kind in ("seconds", "processor")
            )
            seconds, examples = statistics.median(wall), all_runs[0]["examples"]
            rates[contender] = words * duplicates / seconds, examples / seconds
            peers = rates.get("original")
            times = (
                [f"{rate / peer:.1f}" for rate, peer in zip(rates[contender], peers, strict=True)] if peers else "--"
            )
            lines.append(
                f"| {duplicates} | {contender} | {seconds:.2f} ({max(wall):.2f}..{min(wall):.2f}) "
                f"| {statistics.median(processor):.2f} | {examples:,} | {rates[contender][0]:,.0f} | {times[0]} "
                f"| {rates[contender][1]:,.0f} | {times[1]} | {max(each['GiB'] for each in all_runs):.2f} |"
            )
    if "original 0" in runs:
        taken_off = statistics.median(each["seconds"] for each in runs["original 0"])
        lines += ["", f"Taken off the original's: {taken_off:.2f} s."]
    return "\n".join(lines) + "\n"


def _contenders(runs: dict[str, Any]) -> list[str]:
    return [name for name in CONTENDERS if f"{name} {DUPLICATES[0]}" in runs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("novels", nargs="+", type=Path, help=f"text files; the first {BOOKS} in order of their names")
    parser.add_argument("--original", type=Path)
    parser.add_argument("--vocab", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="the Markdown file to write; the runs go beside it as JSON")
    arguments = parser.parse_args()
    facts = about("prepare_speed.py", arguments)
    arguments.vocab = arguments.vocab.resolve()
    folder = Path(tempfile.mkdtemp())
    try:
        # A process that is started counts the memory of the one that starts it, which therefore stays small.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            paths, words = pool.apply(write_sentences, (sorted(arguments.novels)[:BOOKS], folder))
        some = []
        for number, path in enumerate(paths[:2]):
            some.append(folder / f"some{number}")
            some[-1].write_text("".join(path.read_text("utf-8").splitlines(keepends=True)[:40]) + "\n", "utf-8")
        runs: dict[str, list[dict[str, float]]] = {}
        for _ in range(arguments.rounds):
            for duplicates in (0, *DUPLICATES):
                for contender in CONTENDERS if arguments.original else CONTENDERS[1:]:
                    if contender == "ours" and not duplicates:
                        continue
                    measured = run(contender, paths if duplicates else some, duplicates or 1, arguments)
                    runs.setdefault(f"{contender} {duplicates}", []).append(measured)
                    print(contender, duplicates, measured, file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(folder)
    text = "\n".join(["# Examples from text", "", *describe(facts), "", table(runs, words)])
    print(text)
    if arguments.out:
        write(arguments.out, text, {"about": facts, "runs": runs})


if __name__ == "__main__":
    main()
