"""Find the tiles that make our Pallas kernels fastest on a GPU: microseconds per layer, forward and with gradient.

    KERAS_BACKEND=jax python benchmarks/card_kernels.py --out OUT

Each kernel is compiled with each of the tiles below, in bfloat16 at the sizes of pre-training, and run; a tile that
does not compile is reported as failed. Takes a minute or two on an H200. Without a GPU `--interpret` computes small
sizes on the CPU, to check that everything runs.
"""

import argparse
import itertools
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from reports import about, describe, table, write

from keras_bert_zoo.layers import jax_attention, jax_sum_norm

# Texts, tokens and heads of width 64: base at 128 and 512 tokens, and large.
SIZES = [(256, 128, 12), (64, 512, 12), (32, 512, 16)]
SMALL = [(2, 64, 2)]
DROPOUT = 0.1
CALLS, ROUNDS = 20, 3

Tile = dict[str, int]


def _tiles(*names: str) -> Callable[..., list[Tile]]:
    return lambda *rows: [dict(zip(names, row, strict=True)) for row in rows]


_of_attention = _tiles("block_m", "block_n", "num_warps", "num_stages")
_of_rows = _tiles("rows_at_once", "num_warps", "num_stages")
_of_programs = _tiles("rows_at_once", "num_warps", "num_stages", "programs")
# A processor has registers for one program of the gradient at 64 x 128, or for two at 64 x 64.
TILES: dict[str, dict[str, list[Tile]]] = {
    "attention": {
        "_FORWARD": _of_attention((64, 64, 4, 3), (64, 64, 4, 2), (64, 64, 4, 1), (128, 64, 8, 2), (64, 128, 4, 2)),
        "_BACKWARD": _of_attention(
            (64, 128, 8, 1), (64, 64, 4, 1), (64, 64, 4, 2), (32, 64, 4, 1), (32, 64, 4, 2), (32, 128, 8, 1)
        ),
    },
    "sum_norm": {
        "_FORWARD": _of_rows((1, 4, 1), (1, 1, 1), (1, 2, 1), (2, 2, 1), (2, 4, 1), (4, 4, 1), (4, 8, 1)),
        # Wider tiles take more registers, so that a card's 132 processors run fewer programs at once.
        "_BACKWARD": _of_programs(
            (1, 4, 1, 924),
            (1, 4, 1, 660),
            (1, 2, 1, 924),
            (1, 8, 1, 660),
            (1, 8, 1, 396),
            (2, 4, 1, 528),
            (2, 4, 1, 396),
            (2, 8, 1, 396),
            (2, 8, 1, 264),
            (4, 8, 1, 264),
        ),
    },
}
MODULES = {"attention": jax_attention, "sum_norm": jax_sum_norm}


def attention(size: tuple[int, int, int], interpret: bool) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return a function of the arrays that have gradients, and these arrays."""
    batch, length, heads = size
    qkv = jax.random.normal(jax.random.key(0), (batch, length, 3, heads, 64), "bfloat16")
    key, bias = jax.random.key(1), jnp.zeros((3, heads, 64))
    run = partial(jax_attention.attention, mask=None, dropout=DROPOUT, key=key, interpret=interpret)
    return lambda qkv, bias: run(qkv, bias=bias), (qkv, bias)


def sum_norm(size: tuple[int, int, int], interpret: bool) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    batch, length, heads = size
    shape, width = (batch, length, 64 * heads), 64 * heads
    hidden, change = (jax.random.normal(jax.random.key(i), shape, "bfloat16") for i in range(2))
    weights = jnp.zeros(width), jnp.ones(width), jnp.zeros(width)
    options = {"epsilon": 1e-12, "dropout": DROPOUT, "key": jax.random.key(2), "interpret": interpret}
    return partial(jax_sum_norm.sum_norm, **options), (hidden, change, *weights)


KERNELS = {"attention": attention, "sum_norm": sum_norm}


def with_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    def both(*arrays: Any) -> Any:
        outputs, pull = jax.vjp(function, *arrays)
        return outputs, pull(outputs)  # Any gradient of the outputs will do.

    return both


def microseconds(function: Callable[..., Any], arrays: tuple[Any, ...], calls: int) -> float:
    """Return the microseconds per call of the fastest round; a call waits for the one before it only on the card."""
    run = jax.jit(lambda *arrays: function(*arrays))  # A new function, as JAX keeps what it compiled for an old one.
    jax.block_until_ready(run(*arrays))
    rounds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(calls):
            outputs = run(*arrays)
        jax.block_until_ready(outputs)
        rounds.append((time.perf_counter() - start) / calls)
    return 1e6 * min(rounds)


def measure(interpret: bool) -> Iterator[dict[str, Any]]:
    sizes = SMALL if interpret else SIZES
    for (kernel, make), size in itertools.product(KERNELS.items(), sizes):
        function, arrays = make(size, interpret)
        for part, tiles in TILES[kernel].items():
            timed = function if part == "_FORWARD" else with_gradient(function)
            for tile in tiles[:2] if interpret else tiles:
                row = {"kernel": kernel, "part": part.strip("_").lower(), "size": size, "tile": tile}
                with mock.patch.dict(getattr(MODULES[kernel], part), tile):
                    try:
                        row["microseconds"] = microseconds(timed, arrays, 1 if interpret else CALLS)
                    except Exception as error:  # Triton may refuse a tile for want of memory; the others go on.
                        row["error"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
                print(row, flush=True)
                yield row


def lines(rows: list[dict[str, Any]]) -> Iterator[list[str]]:
    yield ["kernel", "texts x tokens x heads", "tile", "us", "of the fastest"]
    for (kernel, part, size), found in itertools.groupby(rows, lambda row: (row["kernel"], row["part"], row["size"])):
        own = list(found)
        best = min((row["microseconds"] for row in own if "error" not in row), default=0.0)
        title = kernel if part == "forward" else f"{kernel}, with its gradient"
        for row in own:
            said = (
                [row["error"], "-"]
                if "error" in row
                else [f"{row['microseconds']:.0f}", f"{row['microseconds'] / best:.2f}"]
            )
            yield [title, " x ".join(map(str, size)), ", ".join(f"{k} {v}" for k, v in row["tile"].items()), *said]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--interpret", action="store_true", help="small sizes on the CPU; no speeds of a card")
    parser.add_argument("--out", type=Path, help="the Markdown file to write; the numbers go beside it as JSON")
    arguments = parser.parse_args()
    if not arguments.interpret and jax.default_backend() != "gpu":
        parser.error("JAX must see a GPU, or pass --interpret. Received: " + jax.default_backend())
    facts = about("card_kernels.py", arguments)
    rows, text = [], ""
    for row in measure(arguments.interpret):
        rows.append(row)
        text = "\n".join(["# Tiles of the kernels for a card", "", *describe(facts), "", table(lines(rows))]) + "\n"
        if arguments.out:  # After each, so that an interruption loses nothing.
            write(arguments.out, text, {"about": facts, "rows": rows})
    print(text)


if __name__ == "__main__":
    main()
