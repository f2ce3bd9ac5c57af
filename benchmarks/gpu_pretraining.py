"""Time pre-training in bfloat16 on one accelerator: ours on JAX and PyTorch beside transformers, with MFU and sweeps.

    KERAS_BACKEND=torch python benchmarks/gpu_pretraining.py
    KERAS_BACKEND=torch python benchmarks/gpu_pretraining.py --table

Measures BERT base and large at 128 tokens with 20 predictions and at 512 with 76, then base over batch sizes and
lengths. At each size every contender has its own process; two start at a time, and they take turns once all have
compiled. Results in results/gpu_pretraining.jsonl are not measured again, so the command can be interrupted, or limited
by `--minutes`: it begins with the table, and starts no size after that time. A size takes about five minutes, so where
a command may take ten, say `--minutes 5`. If the machine is fresh each time, copy the .jsonl into `--out` first, and
back at the end. Rows of another GPU, other versions or other code are measured again and left out of the table. MFU is
the fraction of the data sheet's dense peak that the model's own products use (`training_flops`). The share of peak is
what the contender computes (`computed_flops`), of what the framework reaches in the same process with two large
matrices. transformers runs with SDPA, fused AdamW and, in a second row, torch.compile; ours on PyTorch has
`jit_compile=True`. In a third row transformers has no mask, without which its compiled step takes flash attention, as
if no text ever had padding; the fastest of the three is compared with. transformers computes its head at every
position, which MFU does not count. All contenders apply attention dropout of a tenth: transformers within
`scaled_dot_product_attention`, ours in kernels of our own (Triton, Pallas). cuDNN's kernel supports none on JAX, so it
runs in the rows "no attention dropout".

`--device cpu --quick` tries everything on tiny sizes. Needs jax[cuda12] or jax[cuda13], torch, transformers and the
extra `plot`.
"""

import argparse
import dataclasses
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from machine import cards
from pretraining_contenders import SIDES, Work, architecture, newest, together
from products import computed_flops
from reports import about_rows, describe, read_lines, write

from keras_bert_zoo.training.devices import peak_of
from keras_bert_zoo.training.speed import training_flops

RESULTS = Path(__file__).parent / "results"
CONTENDERS: dict[str, dict[str, Any]] = {
    "keras_bert_zoo, JAX": {"backend": "jax"},
    "keras_bert_zoo, PyTorch, compiled": {"backend": "torch", "compiled": True},
    "keras_bert_zoo, PyTorch": {"backend": "torch"},
    "transformers": {"contender": "transformers"},
    "transformers, torch.compile": {"contender": "transformers", "compiled": True},
    "transformers, torch.compile, no mask": {"contender": "transformers", "compiled": True, "masked": False},
    "keras_bert_zoo, JAX, no attention dropout": {"backend": "jax", "attention_dropout": 0.0},
    "transformers, torch.compile, no attention dropout": {
        "contender": "transformers", "compiled": True, "attention_dropout": 0.0,
    },
}  # fmt: skip
BASE = {"layers": 12, "width": 768, "heads": 12}
LARGE = {"layers": 24, "width": 1024, "heads": 16}
TABLE = {
    "base, 128/20": {**BASE, "length": 128, "predictions": 20, "batch": 256},
    "base, 512/76": {**BASE, "length": 512, "predictions": 76, "batch": 64},
    "large, 512/76": {**LARGE, "length": 512, "predictions": 76, "batch": 32},
    "large, 128/20": {**LARGE, "length": 128, "predictions": 20, "batch": 128},
}
SWEEPS = {
    "batch": {n: {**BASE, "length": 128, "predictions": 20, "batch": n} for n in (8, 32, 128, 512)},
    "length": {
        n: {**BASE, "length": n, "predictions": round(0.15 * n), "batch": 32768 // n} for n in (64, 128, 256, 512)
    },
}
SWEPT = ("keras_bert_zoo, JAX", "keras_bert_zoo, PyTorch, compiled", "transformers, torch.compile")
TINY = {"layers": 1, "width": 64, "heads": 1, "length": 16, "predictions": 2, "batch": 2, "steps": 1}


def sizes(options: argparse.Namespace) -> list[tuple[dict[str, Any], dict[str, Work]]]:
    """Return what is measured side by side, the most wanted first: the keys of its rows, and the contenders' works."""
    wanted = [({"sweep": "table", "n": title}, size, tuple(CONTENDERS)) for title, size in TABLE.items()]
    for sweep, values in SWEEPS.items():
        wanted += [({"sweep": sweep, "n": n}, size, SWEPT) for n, size in values.items()]
    if options.quick:  # One of the table and of each sweep.
        wanted = [each for each in wanted if each[0]["n"] in ("base, 128/20", 8, 64)]
    # `rows` is the next multiple of 128, which suits tensor cores, for all contenders.
    common = {"dtype": "bfloat16", "device": options.device, "rows": 30592}
    tiny = TINY if options.quick else {}

    def work(title: str, size: dict[str, Any]) -> Work:
        return Work(**{**common, "steps": _steps(size), **size, **CONTENDERS[title], **tiny})

    return [(keys, {title: work(title, size) for title in titles}) for keys, size, titles in wanted]


def _steps(size: dict[str, Any]) -> int:
    """Return how many steps a round has: of small batches more, because a `fit` takes a while to begin."""
    return max(50, 50 * 32768 // (size["batch"] * size["length"]))


def rates_of(row: dict[str, Any]) -> list[float]:
    """Return the sequences per second of each round."""
    return [row["batch"] * row["steps"] / seconds for seconds in row["seconds"]]


def shares(row: dict[str, Any], sequences_per_second: float) -> str:
    """Describe the MFU and the share of the framework's peak that the computed products take, as two cells."""
    sizes = architecture(_work(row)), row["length"]
    ours, predictions = row["contender"] != "transformers", row["predictions"]
    pairs = (
        (training_flops(*sizes, predictions), peak_of(row["device_name"])),
        (computed_flops(*sizes, ours, predictions), row.get("product_peak")),
    )
    return " | ".join(f"{sequences_per_second * flops / peak:.1%}" if peak else "-" for flops, peak in pairs)


def _work(row: dict[str, Any]) -> Work:
    return Work(**{field.name: row[field.name] for field in dataclasses.fields(Work) if field.name in row})


def table(rows: list[dict[str, Any]]) -> str:
    names = sorted({row["device_name"] for row in rows if row.get("device_name")})
    lines = [
        f"Device: {', '.join(names) or 'CPU'}. bfloat16, medians over the rounds. {SIDES}",
        "",
        "| size | contender | batch | sequences/s (slowest..fastest) | real tokens/s | MFU | share of peak "
        "| x transformers | GB | first two, s |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for size in dict.fromkeys(row["n"] for row in rows if row["sweep"] == "table"):
        of_size = [row for row in rows if row["n"] == size]
        rates = {
            name: [rate for row in of_size if row["title"] == name and "error" not in row for rate in rates_of(row)]
            for name in CONTENDERS
        }
        for name, found in rates.items():
            failed = next((row["error"] for row in of_size if row["title"] == name and "error" in row), None)
            if not found:
                lines += [f"| {size} | {name} | | {failed} | | | | | | |"] if failed else []
                continue
            row = next(row for row in of_size if row["title"] == name and "error" not in row)
            median = statistics.median(found)
            peers = [statistics.median(rates[peer]) for peer in _peers_of(name) if rates[peer]]
            against = f"{median / max(peers):.2f}" if peers else "-"
            lines.append(
                f"| {size} | {name} | {row['batch']} | {median:.1f} ({min(found):.1f}..{max(found):.1f}) "
                f"| {median * row['length']:,.0f} | {shares(row, median)} | {against} "
                f"| {row['peak_bytes'] / 1e9:.1f} | {row['first']:.0f} |"
            )
    return "\n".join(lines) + "\n"


def _peers_of(name: str) -> list[str]:
    """Return the names of transformers with the same dropout; the fastest is compared with."""
    same = CONTENDERS[name].get("attention_dropout")
    return [
        peer
        for peer, options in CONTENDERS.items()
        if options.get("contender") == "transformers" and options.get("attention_dropout") == same
    ]


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    for axes, sweep in zip(figure.subplots(1, 2), SWEEPS, strict=True):
        for name in SWEPT:
            found = [row for row in rows if row["sweep"] == sweep and row["title"] == name and "error" not in row]
            axes.plot(
                [row["n"] for row in found],
                [statistics.median(rates_of(row)) * row["length"] for row in found],
                "o-",
                label=name,
            )
        axes.set(xlabel=sweep, ylabel="tokens a second", xscale="log", ylim=(0, None))
    figure.axes[0].legend(fontsize="small")
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument(
        "--peers-python", default=sys.executable, help="where transformers is; else in this environment"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no size after so many")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--table", action="store_true", help="report what is there; measure nothing")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.device == "gpu" and not options.table and not cards():
        parser.error("--device gpu needs a card that nvidia-smi lists. Received: a machine without one")
    options.out.mkdir(parents=True, exist_ok=True)
    name = f"{options.device}_pretraining{'_quick' if options.quick else ''}"
    results = options.out / f"{name}.jsonl"
    start = time.monotonic()
    if not options.table:
        for keys, works in sizes(options):
            if time.monotonic() - start > 60 * options.minutes:
                print("out of time; the same command goes on", file=sys.stderr)
                break
            pythons = {
                title: options.peers_python if work.contender == "transformers" else sys.executable
                for title, work in works.items()
            }
            together(results, works, pythons, options.rounds, **keys)
    rows = newest(read_lines(results))
    if not rows:
        sys.exit(f"Nothing is measured yet that {results} would hold; {results.with_suffix('.log')} may say why")
    facts = about_rows("gpu_pretraining.py", options, rows)
    text = "\n".join(["# Pre-training on a card", "", *describe(facts), "", table(rows)])
    write(options.out / f"{name}.md", text, {"about": facts, "rows": rows})
    if any(row["sweep"] in SWEEPS for row in rows):
        draw(rows, options.out / f"{name}.svg")
    print(text)


if __name__ == "__main__":
    main()
