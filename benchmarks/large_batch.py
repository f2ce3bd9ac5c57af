"""Train on the same examples in small and large batches: losses of AdamW and LAMB in one picture.

    keras-bert-zoo prepare --vocab vocab.txt --layout prose --no-pairs --sequence-length 64 --out data books/*.txt
    keras-bert-zoo prepare --vocab vocab.txt --layout prose --no-pairs --sequence-length 64 --out held_out other.txt
    python benchmarks/large_batch.py --data data --validation held_out --out runs

BERT tiny, without dropout, sees 81,920 examples at batch sizes of 64, 256, 1,024 and 4,096, in parts of 64. The
learning rate grows with the square root of the batch size (You et al. 2019, section 4.3), and warms up from zero over
the first tenth of the updates. Needs matplotlib. The script can be interrupted: finished runs are kept, and the
unfinished one resumes.
"""

import argparse
import csv
import json
from pathlib import Path

from keras_bert_zoo.pretraining import Run, pretrain

RESULTS = Path(__file__).parent / "results"
EXAMPLES = 81_920
BATCHES = (64, 256, 1024, 4096)
# As in ablations.py. With BERT's 0.02, so few examples would all be spent on learning the frequencies of words.
ARCHITECTURE = {"initializer_range": 0.08}
PEAKS = {"adamw": 5e-4, "lamb": 2e-3}  # At a batch of 64.


def run(optimizer: str, batch: int, data: str, validation: str, out: Path) -> list[dict[str, float]]:
    steps = EXAMPLES // batch
    pretrain(
        Run(
            data,
            steps=steps,
            batch_size=batch,
            gradient_accumulation_steps=batch // BATCHES[0],
            learning_rate=PEAKS[optimizer] * (batch / BATCHES[0]) ** 0.5,
            warmup=0.1,
            dropout=0.0,
            architecture=ARCHITECTURE,
            dtype="mixed_bfloat16",
            optimizer=optimizer,
            save_every=steps // 10,
            validation=validation,
        ),
        out,
        verbose=2,
    )
    with (out / "log.csv").open() as file:
        return [
            {"examples": EXAMPLES * (i + 1) // 10, **{name: float(row[name]) for name in ("loss", "val_loss")}}
            for i, row in enumerate(csv.DictReader(file))
        ]


def draw(curves: dict[str, dict[int, list[dict[str, float]]]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    for axes, (optimizer, runs) in zip(figure.subplots(1, 2, sharey=True), curves.items(), strict=True):
        for batch, rows in runs.items():
            axes.plot([row["examples"] for row in rows], [row["val_loss"] for row in rows], label=f"{batch:,}")
        axes.set(title={"adamw": "AdamW", "lamb": "LAMB"}[optimizer], xlabel="examples")
    figure.axes[0].set_ylabel("loss on held-out text")
    figure.axes[1].legend(title="batch")
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--validation", required=True)
    parser.add_argument("--out", type=Path, required=True, help="directory of the runs")
    options = parser.parse_args()
    curves = {
        optimizer: {
            batch: run(optimizer, batch, options.data, options.validation, options.out / f"{optimizer}-{batch}")
            for batch in BATCHES
        }
        for optimizer in PEAKS
    }
    (RESULTS / "large_batch.json").write_text(json.dumps(curves, indent=1))
    draw(curves, RESULTS / "large_batch.svg")


if __name__ == "__main__":
    main()
