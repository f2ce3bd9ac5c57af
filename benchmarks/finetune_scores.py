"""Compare dev scores of fine-tuning with those of transformers: same checkpoint, recipe and examples.

    KBZ_DATA=DATA KERAS_BACKEND=torch python benchmarks/finetune_scores.py --preset PRESET --peers-python PEERS_PYTHON
    python benchmarks/finetune_scores.py --table

`PRESET` is a Hugging Face BERT directory. `DATA` holds `glue/MRPC` and so on, `conll2003`, `squad` and
`multiple_choice/dream`. `PEERS_PYTHON` is the interpreter of an environment with torch, transformers, keras and
keras_bert_zoo's other requirements; without it only keras_bert_zoo runs. The recipe: batch size 32, peak learning rate
5e-5 by default, 10 % warm-up, linear decay counted from step 0, AdamW with bias correction, epsilon 1e-8, decay 0.01
except for biases and LayerNorm, and clipping at 1. `scores_tasks.py` has the epochs, the lengths and the share of each
task. CoNLL-2003 is read by sentences, and its F1 is that of entities. SQuAD 2.0 uses the threshold that is best on its
dev share.

Each run is a process and adds a line to the results. Started again, the script skips runs that have one.
"""

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from process import with_code
from reports import read_lines
from scores_tasks import FRESH, LEARNING_RATE, TASKS

HERE = Path(__file__).parent
METRICS = ("accuracy", "f1", "matthews", "pearson", "spearman", "exact_match", "best_exact", "best_f1")
PEER = "transformers"
RANDOM_BATCHES = ", random batches"
NORMAL_HEADS = ", normal heads"
RESULTS = HERE / "results" / "finetune_scores.jsonl"


def digest(preset: Path) -> str:
    """Return what tells a preset's files from those of another folder of the same name."""
    found = hashlib.sha256()
    for path in sorted(each for each in preset.iterdir() if each.is_file()):
        with path.open("rb") as file:
            found.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()[:12]


def start(arguments: argparse.Namespace, task: str, seed: int, contender: str) -> bool:
    """Do one run unless it is among the results; return False if it fails."""
    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    name = PEER if contender == PEER else f"keras_bert_zoo, {backend}"
    if arguments.bfloat16:
        name += ", bfloat16"
    if arguments.random_batches:
        name += RANDOM_BATCHES
    if arguments.normal_heads and contender != PEER:
        name += NORMAL_HEADS
    run = {
        "task": task + FRESH if arguments.random else task,
        "contender": name,
        "preset": arguments.preset.name,
        "files": digest(arguments.preset),
        "seed": seed,
        "learning_rate": arguments.learning_rate,
        "share": str(TASKS[task]),
    }
    if arguments.random:  # Fresh weights also depend on `initializer_range`.
        run["initializer_range"] = json.loads((arguments.preset / "config.json").read_text())["initializer_range"]
    if any(run.items() <= record.items() for record in read_lines(arguments.results)):
        return True
    print(f"{task}, seed {seed}: {name}", flush=True)
    job = {
        "task": task,
        "contender": name,
        "bfloat16": arguments.bfloat16,
        "preset": str(arguments.preset),
        "files": run["files"],
        "seed": seed,
        "random": arguments.random,
        "random_batches": arguments.random_batches,
        "normal_heads": arguments.normal_heads,
        "learning_rate": arguments.learning_rate,
        "limit": arguments.limit,
        "results": str(arguments.results),
    }
    python, script = (
        (arguments.peers_python, "scores_transformers.py") if contender == PEER else (sys.executable, "scores_ours.py")
    )
    threads = {}
    if arguments.threads:
        names = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
        threads = dict.fromkeys(names, str(arguments.threads))
    environment = {
        **with_code(True),
        **threads,
        "KERAS_BACKEND": "torch" if contender == PEER else backend,
        "CUDA_VISIBLE_DEVICES": "-1",
    }
    return not subprocess.run([python, str(HERE / script), json.dumps(job)], env=environment).returncode


def table(records: list[dict]) -> Iterator[str]:
    """Yield a Markdown table with a line for each score of each task on each backend."""
    yield "| preset | task, score | backend | seeds | keras_bert_zoo | transformers | within its standard deviation |"
    yield "|---|---|---|---|---|---|---|"
    runs: dict[tuple[str, str, float, str, str, str], dict[int, dict]] = {}
    for record in records:
        peak, preset = record.get("learning_rate", LEARNING_RATE), record.get("preset", "")
        key = record["task"], record["contender"], peak, record.get("share", ""), record.get("files", ""), preset
        runs.setdefault(key, {})[record["seed"]] = record
    for (task, contender, *rest), ours in sorted(runs.items()):
        if contender.startswith(PEER):
            continue
        backend, *options = contender.removeprefix("keras_bert_zoo, ").split(", ")
        alike = (option for option in options if f", {option}" != NORMAL_HEADS)  # Theirs are always normal.
        theirs = runs.get((task, ", ".join([PEER, *alike]), *rest), {})
        for metric in (name for name in METRICS if any(name in record for record in ours.values())):
            values, peers = ([record[metric] for _, record in sorted(own.items())] for own in (ours, theirs))
            seeds = ", ".join(map(str, sorted(ours)))
            cells = [
                rest[-1],
                f"{task}, {metric}",
                ", ".join([backend, *options]),
                seeds,
                summary(values),
                summary(peers),
                verdict(values, peers),
            ]
            yield f"| {' | '.join(cells)} |"


def gains(records: list[dict]) -> Iterator[str]:
    """Yield a line for each task, start (the preset's weights or fresh ones), contender and peak: its first score."""
    yield "| task, score | from | trained by | peak | seeds | dev scores, mean ± standard deviation |"
    yield "|---|---|---|---|---|---|"
    runs: dict[tuple[str, float, str, float, str, str], list[dict]] = {}
    for record in records:
        task, deviation = record["task"].removesuffix(FRESH), record.get("initializer_range", 0.0)
        files = record.get("preset", ""), record.get("files", "")
        runs.setdefault((task, deviation, record["contender"], record["learning_rate"], *files), []).append(record)
    for (task, deviation, contender, peak, *_), own in sorted(runs.items()):
        metric = next(name for name in METRICS if name in own[0])
        own.sort(key=lambda record: record["seed"])
        seeds = ", ".join(str(record["seed"]) for record in own)
        scores = summary([record[metric] for record in own])
        start = f"fresh weights of {deviation}" if deviation else "the preset"
        yield f"| {task}, {metric} | {start} | {contender} | {peak:g} | {seeds} | {scores} |"


def summary(values: list[float]) -> str:
    digits = 1 if max(values, default=0) > 1 else 3  # SQuAD's scores are percentages.
    listed = ", ".join(f"{value:.{digits}f}" for value in values)
    if len(values) < 2:
        return listed or "-"
    return f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f} ({listed})"


def verdict(ours: list[float], theirs: list[float]) -> str:
    if len(ours) < 2 or len(theirs) < 2:
        return "-"
    behind = statistics.mean(theirs) - statistics.mean(ours)
    return "better" if behind <= 0 else "yes" if behind <= statistics.stdev(theirs) else "no"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", help=f"of {', '.join(TASKS)}, which by default all run in this order")
    parser.add_argument("--preset", type=Path)
    parser.add_argument("--peers-python", help="the interpreter of the peers' environment")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--threads", type=int, help="of a run")
    parser.add_argument("--random", action="store_true", help="start from fresh weights of the preset's architecture")
    parser.add_argument("--bfloat16", action="store_true", help="train in mixed precision; PyTorch is fast in it")
    parser.add_argument("--random-batches", action="store_true", help="draw them whatever the lengths")
    parser.add_argument("--normal-heads", action="store_true", help="fill our fresh heads as transformers does")
    parser.add_argument("--learning-rate", type=float, default=LEARNING_RATE, help="the peak (%(default)s)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--limit", type=int, help=argparse.SUPPRESS)  # Examples, to see that a task works.
    parser.add_argument("--table", action="store_true", help="print the results so far")
    arguments = parser.parse_args()
    if arguments.table:
        records = read_lines(arguments.results)
        fresh = any(record["task"].endswith(FRESH) for record in records)
        print("\n".join(gains(records) if fresh else table(records)))
        return
    if arguments.limit and arguments.results == RESULTS:
        sys.exit("--limit needs its own --results file.")
    if "KBZ_DATA" not in os.environ or arguments.preset is None or not set(arguments.tasks) <= set(TASKS):
        sys.exit("Needs --preset DIR, the data folder in KBZ_DATA, and tasks if not all; see --help.")
    contenders = ["keras_bert_zoo", *[PEER] * bool(arguments.peers_python)]
    done = [
        start(arguments, task, seed, contender)
        for task in arguments.tasks or TASKS
        for seed in arguments.seeds
        for contender in contenders
    ]
    sys.exit(f"{done.count(False)} of {len(done)} runs failed." if not all(done) else 0)


if __name__ == "__main__":
    main()
