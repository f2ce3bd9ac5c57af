"""The paper's ablations (Devlin et al. 2019, sections 5.1, 5.2 and C.2), each within about ten CPU minutes.

    keras-bert-zoo vocab --size 8000 --out vocab.txt NOVELS/*.txt
    export KERAS_BACKEND=torch MALLOC_MMAP_THRESHOLD_=8589934592 MALLOC_TRIM_THRESHOLD_=8589934592
    KBZ_DATA=DATA python benchmarks/ablations.py --novels NOVELS --vocab vocab.txt --work WORK
    python benchmarks/ablations.py --table

`ablations/ROW.json` is the configuration of each row, which `keras-bert-zoo pretrain --config FILE --data DATA` takes
as well. All rows are BERT tiny, 2 x 128, which learns more than word frequencies in ten CPU minutes. A step has 32
examples, because many small steps get further than few large ones on few tokens. The learning rate is ten times the
paper's and the standard deviation of the initial weights four times, because the paper's are for a model six times as
wide. There is no dropout, because nothing is seen twice (Geiping and Goldstein 2022, section 4.3).

`NOVELS` is a folder of text files, one book each; the three shortest are held out. `DATA` holds `glue/MRPC` and
`glue/SST-2`. Every row sees the same number of tokens of the same books. It is then fine-tuned with three seeds on the
first 6,400 sentences of SST-2 and on MRPC. The script can be interrupted: pre-training resumes, and rows in
`results/ablations.jsonl` are skipped. `--rows ltr ltr_bilstm` runs only these; `--trial` runs a few steps of each row
and keeps no result.
"""

import argparse
import json
import math
import os
import platform
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import curves
from reports import read_lines
from scores_tasks import cpu, read_task

RESULTS = Path(__file__).parent / "results" / "ablations.jsonl"
CURVES = Path(__file__).parent / "results" / "curves"

CONFIGS = Path(__file__).parent / "ablations"
LENGTH = 64  # Half of the paper's, for more steps with as many tokens: 8 million, half of the books', each once.
# Values from the small models' grid. Of SST-2, only the first `examples` sentences are used.
FINE_TUNING: dict[str, Any] = {
    "batch_size": 32,
    "peak": 3e-4,
    "epochs": {"sst2": 2, "mrpc": 3},
    "examples": {"sst2": 6400},
}
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Ablation:
    """A row.

    Attributes:
        why: What it shows.
        pairs: Whether it is pre-trained on next-sentence pairs; otherwise on packed sentences.
        pooling: What stands for a text in fine-tuning.
        like: The row whose pre-training it shares.
    """

    why: str
    pairs: bool = True
    pooling: str = "first"
    like: str | None = None


ABLATIONS = {
    "base": Ablation("5.1: masked tokens and next sentence"),
    "no_nsp": Ablation("5.1: masked tokens alone", pairs=False),
    # Left to right, [CLS] has seen nothing else, so the last token stands for the text.
    "ltr": Ablation("5.1: each next token, in fine-tuning left to right, too", pairs=False, pooling="last"),
    "ltr_bilstm": Ablation("5.1: the same + BiLSTM", pairs=False, pooling="bilstm", like="ltr"),
    # The paper's first row, 80/10/10, is the base.
    "mask_100_0_0": Ablation("C.2: 100% [MASK], 0% same, 0% random"),
    "mask_80_0_20": Ablation("C.2: 80% [MASK], 0% same, 20% random"),
    "mask_80_20_0": Ablation("C.2: 80% [MASK], 20% same, 0% random"),
    "mask_0_20_80": Ablation("C.2: 0% [MASK], 20% same, 80% random"),
    "mask_0_0_100": Ablation("C.2: 0% [MASK], 0% same, 100% random"),
    "whole_words": Ablation("all pieces of a word together"),
    "layers_1": Ablation("5.2: 1 layer, 128 wide, 2 heads"),
    "layers_4": Ablation("5.2: 4 layers, 128 wide, 2 heads"),
    "heads_1": Ablation("5.2: 2 layers, 128 wide, 1 head"),
    "width_64": Ablation("5.2: 2 layers, 64 wide, 1 head"),
    "width_256": Ablation("5.2: 2 layers, 256 wide, 4 heads"),
}


# --- One row


def prepare_data(novels: Path, vocabulary: Path, work: Path) -> None:
    """Prepare the two data sets that all rows share, and the same two from the held-out books."""
    import keras_bert_zoo as kbz

    files = sorted(novels.glob("*.txt"), key=lambda path: (path.stat().st_size, path.name))
    books = {False: sorted(files[3:]), True: sorted(files[:3])}
    tokenizer = kbz.BertTokenizer(vocabulary)
    for pairs in (True, False):
        for held_out in (False, True):
            folder = work / data_name(pairs, held_out)
            if not folder.exists():
                options: dict[str, Any] = {"layout": "prose", "sequence_length": LENGTH, "next_sentence": pairs}
                kbz.pretraining.prepare(books[held_out], folder, tokenizer, **options)


def data_name(pairs: bool, held_out: bool) -> str:
    return ("pairs" if pairs else "packed") + ("_held_out" if held_out else "")


def configuration(name: str, work: Path, trial: bool) -> Any:
    from keras_bert_zoo.pretraining import Run

    row = ABLATIONS[name]
    config = json.loads((CONFIGS / f"{row.like or name}.json").read_text())
    if trial:
        config |= {"steps": 4, "save_every": 4}
    data, held_out = (str(work / data_name(row.pairs, part)) for part in (False, True))
    return Run(data, validation=held_out, **config)


def run_row(name: str, work: Path, data: Path, trial: bool) -> dict[str, Any]:
    import keras

    from keras_bert_zoo.pretraining import PretrainingBatches, pretrain

    row, run = ABLATIONS[name], configuration(name, work, trial)
    folder = work / ("trial" if trial else "runs") / (row.like or name)
    pretrain(run, folder, verbose=2)
    curve = curves.read(folder)
    tokens = run.steps * run.batch_size * PretrainingBatches(run.data, run.batch_size).mean_length
    record: dict[str, Any] = {
        "row": name,
        "why": row.why,
        "run": {key: value for key, value in asdict(run).items() if key not in ("data", "validation")},
        "pairs": row.pairs,
        "pooling": row.pooling,
        "tokens": round(tokens),
        "pretraining_minutes": round(
            tokens * statistics.mean(1 / point["tokens_per_second"] for point in curve) / 60, 2
        ),
        "perplexity": round(math.exp(curve[-1]["val_mlm_loss"]), 2),
        "accuracy": round(curve[-1]["val_mlm_accuracy"], 4),
    }
    start = time.perf_counter()
    for task in FINE_TUNING["epochs"]:
        seeds, examples = (SEEDS[:1], 64) if trial else (SEEDS, FINE_TUNING["examples"].get(task))
        record[task] = [
            fine_tune(folder / "preset", task, row.pooling, run.dtype, data, seed, examples) for seed in seeds
        ]
    record["fine_tuning_minutes"] = round((time.perf_counter() - start) / 60, 2)
    record["backend"] = keras.backend.backend()
    record["machine"] = f"{cpu()}, {os.cpu_count()} cores"
    record["versions"] = f"Python {platform.python_version()}, Keras {keras.__version__}"
    return record


def fine_tune(preset: Path, task: str, pooling: str, dtype: str, data: Path, seed: int, examples: int | None) -> float:
    """Return the accuracy on the development set after training on the first `examples`, or on all if None."""
    import keras
    import numpy as np

    import keras_bert_zoo as kbz

    keras.utils.set_random_seed(seed)
    classifier = kbz.BertTextClassifier.from_preset(
        preset, num_classes=2, pooling=pooling, sequence_length=LENGTH, dtype=dtype
    )
    classifier.compile(kbz.AdamW(kbz.WarmupPolynomialDecay(FINE_TUNING["peak"])))
    x, y = read_task(task, "train", data)
    x, y = tuple(column[:examples] for column in x) if task == "mrpc" else x[:examples], y[:examples]
    classifier.fit(x, y, batch_size=FINE_TUNING["batch_size"], epochs=FINE_TUNING["epochs"][task], verbose=2)
    x, y = read_task(task, "dev", data)
    return round(float((classifier.predict(x, verbose=0).argmax(-1) == np.array(y)).mean()), 4)


# --- The paper beside it

TABLES: dict[str, tuple[tuple[str, ...], dict[str, tuple[float | None, ...]]]] = {
    "Pre-training tasks (section 5.1, table 5)": (
        ("MNLI-m", "QNLI", "MRPC", "SST-2", "SQuAD F1"),
        {
            "base": (84.4, 88.4, 86.7, 92.7, 88.5),
            "no_nsp": (83.9, 84.9, 86.5, 92.6, 87.9),
            "ltr": (82.1, 84.3, 77.5, 92.1, 77.8),
            "ltr_bilstm": (82.1, 84.1, 75.7, 91.6, 84.9),
        },
    ),
    "Masking (section C.2, table 8)": (
        ("MNLI", "NER, fine-tuned", "NER, features"),
        {
            "base": (84.2, 95.4, 94.9),
            "mask_100_0_0": (84.3, 94.9, 94.0),
            "mask_80_0_20": (84.1, 95.2, 94.6),
            "mask_80_20_0": (84.4, 95.2, 94.7),
            "mask_0_20_80": (83.7, 94.8, 94.6),
            "mask_0_0_100": (83.6, 94.9, 94.6),
        },
    ),
    # BERT-large, uncased, from google-research/bert's README.
    "Whole words": (("SQuAD 1.1 F1", "MultiNLI"), {"base": (91.0, 86.05), "whole_words": (92.8, 87.07)}),
    "Sizes (section 5.2, table 6)": (
        (),
        dict.fromkeys(("layers_1", "base", "layers_4", "heads_1", "width_64", "width_256"), ()),
    ),
}
# Layers, width, heads: perplexity of masked tokens, MNLI-m, MRPC, SST-2.
PAPER_SIZES = {
    (3, 768, 12): (5.84, 77.9, 79.8, 88.4),
    (6, 768, 3): (5.24, 80.6, 82.2, 90.7),
    (6, 768, 12): (4.68, 81.9, 84.8, 91.3),
    (12, 768, 12): (3.99, 84.4, 86.7, 92.9),
    (12, 1024, 16): (3.54, 85.7, 86.9, 93.3),
    (24, 1024, 16): (3.23, 86.6, 87.8, 93.7),
}


def table() -> str:
    """Return Markdown tables: scores are means over the seeds, with the lowest and the highest in brackets."""
    records = {record["row"]: record for record in read_lines(RESULTS)}
    lines = []
    for title, (columns, rows) in TABLES.items():
        heads = ["row", "held-out perplexity", "accuracy", "SST-2", "MRPC", *(f"paper: {name}" for name in columns)]
        lines += [f"### {title}", "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
        for name, paper in rows.items():
            cells = ours(records[name]) if name in records else ["-"] * 4
            what = ABLATIONS[name].why.split(": ")[-1]
            lines.append(f"| {' | '.join([what, *cells, *map(str, paper)])} |")
        lines.append("")
    lines += ["| paper: layers x width, heads | perplexity | MNLI-m | MRPC | SST-2 |", "|---|---|---|---|---|"]
    for (layers, width, heads), scores in PAPER_SIZES.items():
        lines.append(f"| {layers} x {width}, {heads} | {' | '.join(map(str, scores))} |")
    return "\n".join(lines)


def ours(record: dict[str, Any]) -> list[str]:
    scores = [[100 * score for score in record[task]] for task in ("sst2", "mrpc")]
    return [
        f"{record['perplexity']:.1f}",
        f"{record['accuracy']:.3f}",
        *(f"{statistics.mean(score):.1f} ({min(score):.1f} to {max(score):.1f})" for score in scores),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--novels", type=Path, help="folder of text files, a book each")
    parser.add_argument("--vocab", type=Path, help="the vocab.txt")
    parser.add_argument("--work", type=Path, help="folder of data sets and runs, kept between calls")
    parser.add_argument("--rows", nargs="+", choices=ABLATIONS, default=list(ABLATIONS), metavar="ROW")
    parser.add_argument("--trial", action="store_true", help="a few steps of each row, to see that all of it works")
    parser.add_argument("--table", action="store_true", help="print the results so far")
    options = parser.parse_args()
    if options.table:
        print(table())
        return
    if "KBZ_DATA" not in os.environ or None in (options.novels, options.vocab, options.work):
        sys.exit("Needs --novels, --vocab, --work and the data folder in KBZ_DATA; see --help.")
    prepare_data(options.novels, options.vocab, options.work)
    for name in options.rows:
        if not options.trial and any(record["row"] == name for record in read_lines(RESULTS)):
            print(f"== {name}: {RESULTS.name} has it; delete its line to run it again", flush=True)
            continue
        print(f"== {name}: {ABLATIONS[name].why}", flush=True)
        record = run_row(name, options.work, Path(os.environ["KBZ_DATA"]), options.trial)
        print(json.dumps(record), flush=True)
        if not options.trial:
            with RESULTS.open("a") as file:
                file.write(json.dumps(record) + "\n")
            CURVES.mkdir(exist_ok=True)
            curves.keep(options.work / "runs" / (ABLATIONS[name].like or name), CURVES / f"{name}.csv")


if __name__ == "__main__":
    main()
