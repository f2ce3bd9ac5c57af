"""Dev scores of fine-tuning a real checkpoint through plain `fit`, several seeds.

    KBZ_DATA=DATA KERAS_BACKEND=tensorflow python benchmarks/finetune_scores.py mrpc --preset PRESET --seeds 0 1 2

`PRESET` is a Hugging Face BERT directory, `DATA` holds `glue/MRPC`, `glue/SST-2` and `conll2003`. The recipe is the one
of the reference run in transformers: batch 32, peak 5e-5, 10 % warm-up, AdamW with bias correction and decay 0.01, clip
1, length 128; MRPC 3 epochs, SST-2 1 epoch over the first 6,400 sentences, CoNLL-2003 3 epochs over sentences, its F1
that of entities and its accuracy that of words. `--random` keeps the preset's architecture and vocabulary and starts
from fresh weights: what pre-training is worth. Each run adds a line to `results/finetune_scores.jsonl`; `--table`
prints all of them.
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


def read_rows(path: Path) -> list[list[str]]:
    """A GLUE file without its header; GLUE knows no quoting."""
    return [line.rstrip("\n").split("\t") for line in path.open(encoding="utf-8")][1:]


def read_task(task: str, part: str, data: Path) -> tuple[Any, list[Any]]:
    """Raw text or words as `fit` takes them, and labels."""
    if task == "conll":
        import keras_bert_zoo as kbz

        sentences = kbz.data.read_conll(data / "conll2003" / {"train": "eng.train", "dev": "eng.testa"}[part])
        return sentences.words, sentences.tags
    if task == "mrpc":
        rows = read_rows(data / "glue" / "MRPC" / f"{part}.tsv")
        return ([row[3] for row in rows], [row[4] for row in rows]), [int(row[0]) for row in rows]
    rows = read_rows(data / "glue" / "SST-2" / f"{part}.tsv")[:6400]
    return [row[0] for row in rows], [int(row[1]) for row in rows]


def load(task: str, preset: Path, random: bool) -> Any:
    """The task's model, from the preset's weights or from fresh ones of the same architecture."""
    import keras_bert_zoo as kbz

    if task == "conll":
        model_class, head = kbz.BertTokenClassifier, {"num_classes": 9}
    else:
        model_class, head = kbz.BertTextClassifier, {"num_classes": 2}
    return model_class.from_preset(preset, load_weights=not random, sequence_length=128, **head)


def scores(model: Any, x: Any, y: list[Any]) -> dict[str, float]:
    """Accuracy, and the F1 of class 1 or of entities."""
    import numpy as np

    import keras_bert_zoo as kbz

    predicted = model.predict(x, verbose=0)
    if isinstance(model, kbz.BertTokenClassifier):
        tags = [[model.class_names[i] for i in words.argmax(-1)] for words in predicted]
        hits = [a == b for pair in zip(tags, y, strict=True) for a, b in zip(*pair, strict=True)]
        return {"accuracy": float(np.mean(hits)), "f1": kbz.metrics.entity_scores(y, tags)["f1"]}
    best, labels = predicted.argmax(-1), np.array(y)
    right = int((best & labels).sum())
    return {"accuracy": float((best == labels).mean()), "f1": 2 * right / int(best.sum() + labels.sum())}


def run(task: str, preset: Path, data: Path, seed: int, random: bool = False) -> dict[str, object]:
    import keras

    import keras_bert_zoo as kbz

    epochs = {"mrpc": 3, "sst2": 1, "conll": 3}[task]
    (x, y), (dev_x, dev_y) = read_task(task, "train", data), read_task(task, "dev", data)
    keras.utils.set_random_seed(seed)
    model = load(task, preset, random)
    model.compile(kbz.AdamW(kbz.WarmupPolynomialDecay(5e-5), bias_correction=True))
    start = time.perf_counter()
    model.fit(x, y, batch_size=32, epochs=epochs, verbose=2)
    seconds = time.perf_counter() - start
    return {
        "task": f"{task}, random weights" if random else task,
        "backend": keras.backend.backend(),
        "seed": seed,
        **{name: round(score, 4) for name, score in scores(model, dev_x, dev_y).items()},
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
    lines = ["| task | backend | seeds | dev accuracy | mean | dev F1 | mean |", "|---|---|---|---|---|---|---|"]
    for (task, backend), records in sorted(runs.items()):
        cells = [task, backend, ", ".join(str(record["seed"]) for record in records)]
        for name in ("accuracy", "f1"):
            values = [record[name] for record in records]
            cells += [", ".join(f"{value:.3f}" for value in values), f"{statistics.mean(values):.3f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", choices=["mrpc", "sst2", "conll"])
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
