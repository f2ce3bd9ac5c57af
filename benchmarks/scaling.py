"""Measure cost against length, batch, depth, width, corpus, replicas and steps per execution, and memory.

    python benchmarks/scaling.py --backend tensorflow --vocab VOCAB NOVELS/*.txt
    python benchmarks/scaling.py --backend tensorflow --table

Each measurement is its own process. Results in `results/scaling_<backend>.jsonl` of this machine, these versions and
this code are not measured again, so the command can be interrupted. The first command measures. Both fit a law to each
sweep by least squares, draw `results/scaling_<backend>.svg` and print the laws. Without novels the corpus sweep is left
out. `--only length batch` runs some sweeps; `--quick` uses tiny sizes to check that everything runs. Memory, with
rematerialisation and accumulation, is measured on PyTorch for any backend: XLA on a CPU saves none by
rematerialisation. Needs the extra `plot`, and TensorFlow for replicas. Measure on an idle machine.
"""

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from machine import identity
from pretraining_contenders import Work, newest, once
from process import with_code
from reports import about_rows, describe, now, read_lines, write

RESULTS = Path(__file__).parent / "results"
SCRIPT = "scaling.py"
PREPARE = """
import json, sys, time
import keras_bert_zoo as kbz
from keras_bert_zoo.pretraining import PretrainingBatches, prepare
if __name__ == "__main__":
    vocab, out, *paths = sys.argv[1:]
    start = time.perf_counter()
    prepare(paths, out, kbz.BertTokenizer(vocab), layout="prose", verbose=False)
    seconds = time.perf_counter() - start
    batches = PretrainingBatches(out, 64)
    count = min(len(batches), 200)
    start = time.process_time()
    for index in range(count):
        batches[index]
    rate = count * 64 * 128 / (time.process_time() - start)
    print(json.dumps({"seconds": [seconds], "host_tokens_per_second": rate}))
"""

# --- What is swept: a name, the values, and what a value changes

BASE = Work(layers=4, width=256, heads=4, batch=16, steps=4)
QUICK = Work(layers=1, width=64, heads=1, length=32, predictions=4, batch=4, steps=1, repeats=1)


def sweeps(quick: bool, backend: str) -> dict[str, list[tuple[float, Work]]]:
    base = dataclasses.replace(QUICK if quick else BASE, backend=backend)

    def over(
        values: list[int], change: Callable[[int], dict[str, Any]], start: Work = base
    ) -> list[tuple[float, Work]]:
        return [(value, dataclasses.replace(start, **change(value))) for value in (values[:2] if quick else values)]

    def sized(length: int) -> dict[str, Any]:
        return {"length": length, "predictions": max(1, round(0.15 * length))}

    # So much work that activations are most of the memory.
    heavy = dataclasses.replace(base, backend="torch", batch=4 if quick else 32, steps=1, repeats=1)
    heavy = dataclasses.replace(heavy, **({} if quick else sized(256)))
    # So little work, even in the update of the vocabulary's rows, that the host's part shows.
    light = dataclasses.replace(QUICK, backend="jax" if backend == "jax" else "tensorflow", width=8)
    light = dataclasses.replace(light, steps=16 if quick else 256, repeats=1 if quick else 5)
    return {
        "length": over([64, 128, 192, 256, 384, 512], sized),
        "batch": over([4, 8, 16, 32, 64], lambda batch: {"batch": batch}),
        "layers": over([1, 2, 4, 8, 12], lambda layers: {"layers": layers}),
        "width": over([128, 256, 384, 512, 768], lambda width: {"width": width, "heads": width // 64}),
        "memory": over([1, 2, 4, 8], lambda layers: {"layers": layers}, heavy),
        "memory, rematerialised": over([1, 2, 4, 8], lambda n: {"layers": n, "rematerialise": True}, heavy),
        "memory, accumulated": over([1, 2, 4, 8], lambda parts: {"accumulation": parts}, heavy),
        "steps per execution": over([1, 2, 4, 8, 16], lambda n: {"steps_per_execution": n}, light),
        "replicas": over([0, 1, 2, 4], lambda n: {"replicas": n}, dataclasses.replace(base, backend="tensorflow")),
    }


# --- Laws


def law(name: str, x: np.ndarray, y: np.ndarray) -> tuple[str, Callable[[np.ndarray], np.ndarray]]:
    """Return the fitted law, in words and as a function; errors are relative."""
    if name == "width":
        power, scale = np.polyfit(np.log(x), np.log(y), 1)
        words, predict = f"{np.exp(scale):.3g} n^{power:.2f}", lambda n: np.exp(scale) * n**power
    else:
        powers = {"length": (0, 1, 2), "memory, accumulated": (0, -1), "steps per execution": (0, -1)}.get(name, (0, 1))
        terms = np.stack([x**power for power in powers], axis=1)
        factors = np.linalg.lstsq(terms / y[:, None], np.ones_like(y), rcond=None)[0]
        spelled = {0: "", 1: " n", 2: " n²", -1: " / n"}
        words = " ".join(f"{factor:+.3g}{spelled[power]}" for factor, power in zip(factors, powers, strict=True))

        def predict(n: np.ndarray) -> np.ndarray:
            return sum(factor * n ** float(power) for factor, power in zip(factors, powers, strict=True))

    worst = np.abs(predict(x) / y - 1).max()
    return f"{words}, off by {worst:.0%} at most", predict


def points(name: str, rows: list[tuple[float, dict[str, Any]]]) -> tuple[np.ndarray, np.ndarray]:
    """Return x, and the seconds per update or the megabytes that training took beyond the model."""
    pairs = []
    for value, row in rows:
        if "error" in row:
            continue
        if name.startswith("memory"):
            pairs.append((value, (row["peak_bytes"] - row["built_bytes"]) / 1e6))
        else:
            pairs.append((value, statistics.median(row["seconds"]) / row.get("steps", 1)))
    x, y = np.array(pairs, "float64").reshape(-1, 2).T
    return x, y


def report(measured: dict[str, list[tuple[float, dict[str, Any]]]], out: Path) -> str:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(17, 9), layout="constrained")
    names = [name for name in measured if measured[name]]
    grid = figure.subplots(3, 4).flat
    lines = ["| n | measured at n | law |", "|---|---|---|"]
    for name, axes in zip(names, grid, strict=False):
        x, y = points(name, measured[name])
        unit = "MB" if name.startswith("memory") else "s"
        values = ", ".join(f"{n:g}: {value:.3g}" for n, value in zip(x, y, strict=True))
        axes.plot(x, y, "o")
        words = "-"
        if name == "replicas" and 1 in x:
            words = "beyond one replica: " + ", ".join(
                f"{n:g}: {v - y[x == 1][0]:+.3g} s" for n, v in zip(x, y, strict=True) if n > 1
            )
        elif len(x) > 1:
            words, predict = law(name, x, y)
            dense = np.linspace(x.min(), x.max(), 100)
            axes.plot(dense, predict(dense), "-")
        axes.set(xlabel=name, ylabel=unit, ylim=(0, None))
        axes.set_title(words, fontsize="small")
        failed = "".join(f"; {n:g} failed: {row['error']}" for n, row in measured[name] if "error" in row)
        lines.append(f"| {name} | {values} ({unit}){failed} | {words} |")
    figure.savefig(out)
    return "\n".join(lines) + "\n"


# --- Measuring


def corpus(paths: list[Path], vocab: Path, results: Path, quick: bool) -> Iterator[tuple[float, dict[str, Any]]]:
    """Run `prepare` on 2, 4, 8, … of the files, by their megabytes; a next sentence from elsewhere needs two."""
    counts = [count for count in (2, 4, 8, 16, 32, 64) if count <= len(paths)][: 2 if quick else None]
    known = read_lines(results)
    for count in counts:
        taken = paths[:count]
        size = sum(path.stat().st_size for path in taken) / 1e6
        wanted = {"sweep": "corpus", "n": size, **identity(SCRIPT)}
        row = next((row for row in known if {name: row.get(name) for name in wanted} == wanted), None)
        if row is None:
            with tempfile.TemporaryDirectory() as folder:
                program = Path(folder) / "prepare.py"
                program.write_text(PREPARE)
                command = [sys.executable, str(program), str(vocab), f"{folder}/data", *map(str, taken)]
                done = subprocess.run(command, env=with_code(True), stdout=subprocess.PIPE, text=True, check=True)
            row = {**wanted, **now(SCRIPT), **json.loads(done.stdout.splitlines()[-1])}
            with results.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(f"corpus of {size:.1f} MB: {row['seconds'][0]:.2f} s", file=sys.stderr, flush=True)
        yield size, row


def main() -> None:
    known = [*sweeps(False, ""), "corpus"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="texts for the corpus, as prose")
    parser.add_argument("--vocab", type=Path)
    parser.add_argument("--backend", default="tensorflow")
    parser.add_argument("--only", nargs="+", choices=known, default=known, help="sweeps, after the files")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--table", action="store_true", help="draw what is there; measure nothing")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if bool(options.files) != bool(options.vocab):
        parser.error("files and --vocab go together. Received: only one of them")
    options.out.mkdir(parents=True, exist_ok=True)
    name = f"scaling_{options.backend}{'_quick' if options.quick else ''}"
    results = options.out / f"{name}.jsonl"
    measured: dict[str, list[tuple[float, dict[str, Any]]]] = {}
    if options.table:
        rows = newest(read_lines(results))
        if not rows:
            sys.exit(f"Nothing is measured yet that {results} would hold")
        for row in rows:
            measured.setdefault(row["sweep"], []).append((row["n"], row))
    else:
        for sweep, works in sweeps(options.quick, options.backend).items():
            if sweep in options.only:
                measured[sweep] = [(n, once(results, work, SCRIPT, sweep=sweep, n=n)) for n, work in works]
        if options.files and "corpus" in options.only:
            measured["corpus"] = list(corpus(options.files, options.vocab, results, options.quick))
    rows = [row for found in measured.values() for _, row in found]
    if all("error" in row for row in rows):
        sys.exit(f"Nothing could be measured: {rows[0]['error'] if rows else 'the corpus needs files'}")
    facts = about_rows(SCRIPT, options, rows)
    laws = report(measured, options.out / f"{name}.svg")
    text = "\n".join(["# Cost, and the laws that fit it", "", *describe(facts), "", laws])
    hosts = [row["host_tokens_per_second"] for _, row in measured.get("corpus", ())]
    if hosts:
        text += f"\nA host's process makes {statistics.median(hosts):,.0f} tokens a second of batches, masks drawn.\n"
    write(options.out / f"{name}.md", text, {"about": facts, "rows": rows})
    print(text)


if __name__ == "__main__":
    main()
