"""Several budgets at once: packs over the bound and seconds, on real text and image tokens and on drawn shapes.

There is no peer to take in turn: none holds two budgets in an offline plan. What is held against is the bound, the most
packs that any one budget asks for by itself, and the packs that best fit decreasing makes by that budget alone. Where
both budgets bind alike no packing may reach the bound; "second" is the second capacity as a multiple of the one at
which both ask for equally many packs. Longer samples are dropped. Seconds are processor time of one thread.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
from compare import SHARED_DATA, describe_machine

from brimful.base.compiling import compiled_forms
from brimful.plan.counts.histogram import Histogram
from brimful.plan.fit.best_fit_decreasing import best_fit_decreasing
from brimful.plan.packing import loads_of
from brimful.planners.vector.pack_vectors import pack_vectors

_CAPACITIES = (4096, 8192, 16384, 32768)
_SECOND = (0.9, 1.0, 1.1)


def real(directory: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Name, and int64[samples, 2]: text tokens, image tokens."""
    for path in sorted(directory.glob("*_text_and_image_tokens__*.npy")):
        yield path.stem.split("_text_and")[0], np.load(path).astype(np.int64)


def drawn(number: int) -> Iterator[tuple[str, np.ndarray]]:
    """The same from lognormal text and images of a few sizes: independent, long beside small, long beside large."""
    draw = np.random.default_rng(0)
    text = np.clip(np.rint(draw.lognormal(np.log(350), 1.0, number)), 1, 4096).astype(np.int64)
    image = np.rint(
        draw.choice([0, 256, 576, 1024, 2304], number) * draw.uniform(0.8, 1.2, number)
    ).astype(np.int64)
    rank = np.argsort(np.argsort(text, kind="stable"), kind="stable")
    yield f"{number:,} drawn, independent", np.stack([text, image], axis=1)
    yield f"{number:,} drawn, opposed", np.stack([text, np.sort(image)[::-1][rank]], axis=1)
    yield f"{number:,} drawn, alike", np.stack([text, np.sort(image)[rank]], axis=1)


def cases(columns: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """What the two budgets are."""
    text, image = columns.T
    yield "tokens, patches", np.stack([text + image, 4 * image], axis=1)
    yield "text, image tokens", columns
    yield "tokens, samples", np.stack([text + image, np.ones_like(text)], axis=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="little data: does it run at all?")
    parser.add_argument(
        "--lengths", type=Path, default=SHARED_DATA / "lengths", help="where the real arrays are"
    )
    parser.add_argument(
        "--draw", type=int, nargs="*", default=[100_000], help="items of the drawn shapes"
    )
    parser.add_argument("--numpy", action="store_true", help="as without numba")
    options = parser.parse_args()
    with compiled_forms(False) if options.numpy else nullcontext():
        _print_table(options)


def _print_table(options: argparse.Namespace) -> None:
    print("\n".join(describe_machine()), end="\n\n")
    print(
        "| data | budgets | capacities | second | samples | one budget | bound | packs | over | fill | of | seconds |"
    )
    print("|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    pack_vectors(
        np.tile([[3, 2], [2, 3]], (2000, 1)), capacities=np.array([7, 7])
    )  # loads what is compiled
    numbers = [2000] if options.quick else options.draw
    sources = [*real(options.lengths), *(case for number in numbers for case in drawn(number))]
    for name, columns in sources:
        own = _CAPACITIES if "drawn" not in name else (8192,)
        for capacity in own[:1] if options.quick else own:
            for budgets, sizes in cases(columns):
                measure(name, budgets, sizes, capacity)


def measure(name: str, budgets: str, sizes: np.ndarray, capacity: int) -> None:
    """Rows for the second capacity below, at and above the balance."""
    sizes = sizes[sizes[:, 0] <= capacity]
    balance = sizes[:, 1].sum() / sizes[:, 0].sum()
    for second in _SECOND:
        capacities = np.array([capacity, int(np.ceil(capacity * balance * second))])
        fitting = sizes[(sizes <= capacities).all(axis=1)]
        start = time.process_time()
        result = pack_vectors(fitting, capacities=capacities)
        seconds = time.process_time() - start
        assert (loads_of(result.packs, fitting) <= capacities).all()
        demand = fitting.sum(axis=0) / capacities
        binding = int(np.argmax(demand))
        column = fitting[:, binding]
        alone = best_fit_decreasing(
            Histogram.of(column[column > 0]), capacity=int(capacities[binding])
        ).num_packs
        packs = len(result.packs)
        print(
            f"| {name} | {budgets} | {capacities[0]:,}, {capacities[1]:,} | {second} | {len(fitting):,} | {alone:,} "
            f"| {result.bound:,} | {packs:,} | {packs / result.bound - 1:.2%} | {demand[binding] / packs:.2%} "
            f"| {demand[binding] / result.bound:.2%} | {seconds:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
