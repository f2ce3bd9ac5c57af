"""Draw learning curves of pre-training runs in one picture, and keep them in small files.

    python benchmarks/curves.py --out curves.svg WORK/runs/base "left to right=WORK/runs/ltr" tiny=kept/tiny.csv

Draws loss and accuracy of predicted tokens, on held-out text if the run has some (solid) and in training (dashed). A
run is a directory of `keras-bert-zoo pretrain`, or a file that `--keep FOLDER` made from one. Needs the extra `plot`.
"""

import argparse
import csv
import json
import re
from pathlib import Path

Curve = list[dict[str, float]]

MEASURES = ("loss", "accuracy")


def read(run: Path) -> Curve:
    """Return a point for each time the run saved its state: `step`, and what it logged, by `BertPretrainer`'s names."""
    folder = run if run.is_dir() else run.parent
    with (run / "log.csv" if run.is_dir() else run).open() as file:
        rows = [{name: float(value) for name, value in row.items() if value != "NA"} for row in csv.DictReader(file)]
    if not run.is_dir():
        return rows
    every = json.loads((folder / "run.json").read_text())["save_every"]
    return [{"step": (row.pop("epoch") + 1) * every, **_named(row)} for row in rows]


def _named(row: dict[str, float]) -> dict[str, float]:
    """Return the row with the task in its names, which the log of a run of one task alone leaves out."""
    if any("mlm_" in name for name in row):
        return row
    return {re.sub("(loss|accuracy)$", r"mlm_\1", name): value for name, value in row.items()}


def keep(run: Path, path: Path) -> None:
    """Write a curve with four digits, for `read`."""
    points = read(run)
    names = ["step", *(name for name in points[0] if name.endswith(MEASURES) and name not in ("loss", "val_loss"))]
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([f"{point[name]:.5g}" for name in names] for point in points)


def draw(curves: dict[str, Curve], path: Path) -> None:
    """Draw curves by their titles into an SVG or PNG."""
    from matplotlib import color_sequences
    from matplotlib.figure import Figure

    colours = color_sequences["tab10" if len(curves) <= 10 else "tab20"]
    figure = Figure(figsize=(12, 4), layout="constrained")
    for axes, measure in zip(figure.subplots(1, 2), MEASURES, strict=True):
        for colour, (title, curve) in zip(colours, curves.items(), strict=False):
            for name, style in ((f"val_mlm_{measure}", "-"), (f"mlm_{measure}", "--")):
                points = [(point["step"], point[name]) for point in curve if name in point]
                if points:
                    label = title if style == "-" or f"val_{name}" not in curve[0] else None
                    axes.plot(*zip(*points, strict=True), style, color=colour, linewidth=1, label=label)
        axes.set(xlabel="updates", ylabel=f"{measure} of predicted tokens")
        axes.grid(alpha=0.3)
    figure.legend(*figure.axes[1].get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help="RUN or TITLE=RUN")
    parser.add_argument("--out", type=Path, help="the .svg or .png to draw")
    parser.add_argument("--keep", type=Path, help="a folder for one small .csv per run")
    options = parser.parse_args()
    titled = [run.split("=", 1) if "=" in run else (Path(run).stem, run) for run in options.runs]
    runs = {title: Path(run) for title, run in titled}
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
        for title, run in runs.items():
            keep(run, options.keep / f"{title}.csv")
    if options.out:
        draw({title: read(run) for title, run in runs.items()}, options.out)


if __name__ == "__main__":
    main()
