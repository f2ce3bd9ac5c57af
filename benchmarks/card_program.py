"""Compile JAX's pre-training step for a GPU that is not present, and list XLA's kernels and the bytes each moves.

    KERAS_BACKEND=jax python benchmarks/card_program.py --target h200.txtpb

`--target` is XLA's description of the GPU, `xla/backends/gpu/target_config/specs/h200.txtpb` of openxla/xla; remove
fields that an older XLA does not know. The whole step is compiled, not run, in bfloat16, at `--size`, with our own
kernels. Bytes are those of each kernel's inputs and outputs: divided by the GPU's bandwidth they give a lower bound on
the step's time, and they show what is read twice. XLA chooses matrix-product kernels without trying any. Takes two
minutes. Needs jax[cuda12] or jax[cuda13], but no GPU.
"""

import argparse
import math
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # Weights are drawn there.
os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")  # The check would ask the driver.

import jax
from gpu_pretraining import CONTENDERS, TABLE
from jax.experimental import topologies
from pretraining_contenders import Work, backbone_of, data_of
from reports import about, describe, table, write

import keras_bert_zoo as kbz
from keras_bert_zoo.layers import jax_kernels

BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "f32": 4, "s32": 4, "u32": 4, "s64": 8, "u64": 8}
_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%(\S+) = (\(.*?\)|\S+) ([\w-]+)\((.*?)\)[,\n](.*)")
_TO_NOBODY = {"parameter", "get-tuple-element", "tuple", "bitcast", "constant"}


def compile_step(work: Work, target: Path) -> str:
    """Return the step's compiled program as XLA's text."""
    card = topologies.get_topology_desc("card", "cuda", target_config=target.read_text(), topology="1x1x1").devices[0]
    placed = jax.sharding.SingleDeviceSharding(card)
    model = kbz.BertPretrainer(backbone_of(work))
    model.compile(kbz.AdamW(1e-4))
    data = data_of(work)
    model._symbolic_build(data_batch=data)
    state = model._get_jax_state(
        trainable_variables=True, non_trainable_variables=True, optimizer_variables=True, metrics_variables=True
    )
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=placed), (state, data))
    # When our code asks where it runs, it gets the card's answers.
    answers = {"default_backend": mock.Mock(return_value="gpu"), "devices": mock.Mock(return_value=[_Hopper])}
    with mock.patch.multiple(jax, **answers):
        assert jax_kernels.is_for_gpu("bfloat16", 1)
        lowered = jax.jit(model.train_step, donate_argnums=0).trace(*shapes).lower(lowering_platforms=("cuda",))
    return lowered.compile().as_text()


class _Hopper:
    platform, compute_capability = "gpu", "9.0"


def kernels(program: str) -> list[dict[str, Any]]:
    """Return the kernels of a step in order: what each is for, and the bytes that it reads and writes."""
    entry = program[program.index("\nENTRY") :]
    types: dict[str, str] = {}
    found = []
    for name, kind, operation, inputs, rest in _INSTRUCTION.findall(entry[: entry.index("\n}")] + "\n"):
        types[name] = kind
        if operation in _TO_NOBODY:
            continue
        what = re.search(r'op_name="jit\(train_step\)/([^"]*)"', rest)
        read = sum(_size(types.get(each, "")) for each in re.findall(r"%([\w.-]+)", inputs))
        found.append(
            {
                "kind": _kind(name, operation, rest),
                "of": re.sub(r"encoder_layer_\d+", "encoder_layer", what.group(1)) if what else "",
                "read": read,
                "written": _size(kind),
            }
        )
    return found


def _size(kind: str) -> int:
    """Return the bytes of an array's type, or of a tuple's."""
    arrays = re.findall(r"(\w+)\[([\d,]*)\]", kind)
    return sum(BYTES.get(dtype, 4) * math.prod(map(int, re.findall(r"\d+", lengths))) for dtype, lengths in arrays)


def _kind(name: str, operation: str, rest: str) -> str:
    if "xla.gpu.triton" in rest:
        return "our own kernel"
    is_product = "gemm" in name or "cublas" in rest or "__cudnn" in rest
    return "product" if is_product else operation


def add_up(rows: list[dict[str, Any]], by: str) -> list[dict[str, Any]]:
    """Return the number of kernels and their bytes for each value of `by`, the most bytes first."""
    counts, moved = Counter(), Counter()
    for row in rows:
        counts[row[by]] += 1
        moved[row[by]] += row["read"] + row["written"]
    return [{"kernels": name, "count": counts[name], "bytes": size} for name, size in moved.most_common()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--size", choices=TABLE, default=next(iter(TABLE)))
    parser.add_argument("--layers", type=int, help="fewer, to be quicker")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "card_program.md")
    args = parser.parse_args()
    facts = about(Path(__file__).name, args)
    contender = CONTENDERS["keras_bert_zoo, JAX"]
    layers = {"layers": args.layers} if args.layers else {}
    work = Work(**{"dtype": "bfloat16", "rows": 30592, **TABLE[args.size], **layers}, **contender)
    rows = kernels(compile_step(work, args.target))
    bandwidth = float(re.search(r"memory_bandwidth: *(\d+)", args.target.read_text()).group(1))

    def lines(sums: list[dict[str, Any]]) -> str:
        head = ("kernels", "count", "GB", "ms at the card's bandwidth")
        cells = (
            (s["kernels"], str(s["count"]), f"{s['bytes'] / 1e9:.2f}", f"{1000 * s['bytes'] / bandwidth:.2f}")
            for s in sums
        )
        return table([head, *cells])

    by_kind = add_up(rows, "kind")
    everything = {"kernels": "all", "count": len(rows), "bytes": sum(each["bytes"] for each in by_kind)}
    largest = add_up([row for row in rows if row["kind"] not in ("product", "our own kernel")], "of")[:15]
    text = (
        f"# {args.size} on JAX, compiled for a card\n\n{chr(10).join(describe(facts))}\n\n"
        f"{lines([*by_kind, everything])}\n\nThe largest that are neither products nor our own:\n\n{lines(largest)}\n"
    )
    write(args.out, text, {"about": facts, "work": vars(work), "by_kind": by_kind, "largest": largest})
    print(text)


if __name__ == "__main__":
    main()
