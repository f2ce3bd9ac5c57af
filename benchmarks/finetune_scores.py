"""Dev scores of fine-tuning a real checkpoint through plain `fit`, several seeds.

    KBZ_DATA=DATA KERAS_BACKEND=tensorflow python benchmarks/finetune_scores.py mrpc --preset PRESET --seeds 0 1 2

`PRESET` is a Hugging Face BERT directory, `DATA` holds `glue/MRPC` and so on, `conll2003` and
`multiple_choice/dream`. The recipe is the one of the reference run in transformers: batch 32, peak 5e-5, 10 % warm-
up, AdamW with bias correction and decay 0.01, clip 1, length 128; 3 epochs, but of SST-2 1 over the first 6,400
sentences. CoNLL-2003 is read by sentences, its F1 that of entities. `--random` keeps the preset's architecture and
vocabulary and starts from fresh weights: what pre-training is worth. Each run adds a line to
`results/finetune_scores.jsonl`; `--table` prints all.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "finetune_scores.jsonl"


# Each with its epochs and how many of its examples are trained and evaluated on.
TASKS = {
    "mrpc": (3, None),
    "sst2": (1, 6400),
    "cola": (3, None),
    "stsb": (3, None),
    "rte": (3, None),
    "conll": (3, None),
    "dream": (3, None),
}


def read_task(task: str, part: str, data: Path) -> tuple[Any, list[Any]]:
    """Raw text or words as `fit` takes them, and labels."""
    from keras_bert_zoo.data import GLUE, read_conll, read_dream, read_glue

    if task == "conll":
        sentences = read_conll(data / "conll2003" / {"train": "eng.train", "dev": "eng.testa"}[part])
        return sentences.words, sentences.tags
    if task == "dream":
        x, y, _ = read_dream(data / "multiple_choice" / "dream" / f"{part}.json")
    else:
        x, y, _ = read_glue(task, data / "glue" / GLUE[task].folder / f"{part}.tsv")
    first = slice(TASKS[task][1])
    return (x[0][first], x[1][first]) if isinstance(x, tuple) else x[first], y[first]


def load(task: str, preset: Path, random: bool) -> Any:
    """The task's model, from the preset's weights or from fresh ones of the same architecture."""
    import keras_bert_zoo as kbz

    model_class: Any
    model_class, head = {
        "conll": (kbz.BertTokenClassifier, {"num_classes": 9}),
        "dream": (kbz.BertMultipleChoice, {}),
        "stsb": (kbz.BertTextRegressor, {}),
    }.get(task, (kbz.BertTextClassifier, {"num_classes": 2}))
    return model_class.from_preset(preset, load_weights=not random, sequence_length=128, **head)


def run(task: str, preset: Path, data: Path, seed: int, random: bool = False) -> dict[str, object]:
    import keras

    import keras_bert_zoo as kbz

    epochs, _ = TASKS[task]
    (x, y), (dev_x, dev_y) = read_task(task, "train", data), read_task(task, "dev", data)
    keras.utils.set_random_seed(seed)
    model = load(task, preset, random)
    model.compile(kbz.AdamW(kbz.WarmupPolynomialDecay(5e-5), bias_correction=True))
    start = time.perf_counter()
    model.fit(x, y, batch_size=32, epochs=epochs, verbose=2)
    seconds = time.perf_counter() - start
    if task == "conll":
        scores = model.evaluate_entities(dev_x, dev_y)
    elif task == "dream":
        scores = {"accuracy": kbz.metrics.accuracy(dev_y, model.predict(dev_x, verbose=0))}
    else:
        scores = kbz.metrics.glue_scores(task, dev_y, model.predict(dev_x, verbose=0))
    return {
        "task": f"{task}, random weights" if random else task,
        "backend": keras.backend.backend(),
        "seed": seed,
        **{name: round(score, 4) for name, score in scores.items()},
        "train_seconds": round(seconds),
        "examples_per_second": round(len(y) * epochs / seconds, 1),
        "threads": os.environ.get("OMP_NUM_THREADS", str(os.cpu_count())),
        "machine": f"{cpu()}, {os.cpu_count()} cores",
        "versions": f"Python {platform.python_version()}, Keras {keras.__version__}",
    }


def cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    flags = next((line for line in lines if line.startswith("flags")), "")
    return f"{name} ({'AVX-512' if 'avx512f' in flags else 'AVX2' if 'avx2' in flags else 'no AVX2'})"


def table() -> str:
    """All runs so far, a line for each task and backend."""
    runs: dict[tuple[str, str], list[dict]] = {}
    for line in RESULTS.read_text().splitlines():
        record = json.loads(line)
        runs.setdefault((record["task"], record["backend"]), []).append(record)
    lines = ["| task | backend | seeds | dev scores | mean |", "|---|---|---|---|---|"]
    for (task, backend), records in sorted(runs.items()):
        for name in ("accuracy", "f1", "matthews", "pearson", "spearman"):
            values = [record[name] for record in records if name in record]
            if values:
                seeds = ", ".join(str(record["seed"]) for record in records if name in record)
                listed = ", ".join(f"{value:.3f}" for value in values)
                lines.append(f"| {task}, {name} | {backend} | {seeds} | {listed} | {statistics.mean(values):.3f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", choices=list(TASKS))
    parser.add_argument("--preset", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--random", action="store_true", help="start from fresh weights of the preset's architecture")
    parser.add_argument("--table", action="store_true", help="print the results so far")
    arguments = parser.parse_args()
    if arguments.table:
        print(table())
        return
    if "KBZ_DATA" not in os.environ or arguments.task is None or arguments.preset is None:
        sys.exit("Needs a task, --preset DIR and the data folder in KBZ_DATA; see --help.")
    for seed in arguments.seeds:
        record = run(arguments.task, arguments.preset, Path(os.environ["KBZ_DATA"]), seed, arguments.random)
        with RESULTS.open("a") as file:
            file.write(json.dumps(record) + "\n")
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
