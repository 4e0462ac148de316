"""Plans beside the packers of other projects, and beside the physical limit: counting and sorting the same array.

Peers (``pip install binpacking trl``, and ``--no-deps`` for llamafactory, nemo-automodel and megatron-bridge, whose
packers need nothing else) get the same integer array in the same process and return sample ids; those that are not
installed are named and left out. Ours is the whole call, checks, bound and account included; compiled, and with NumPy
alone. The aims hold against the fastest peer that needs no more packs than best fit decreasing.

At a hundred million lengths the peer is a histogram and a counting sort of the array, both compiled: what no plan that
names samples can do without; all of them find memory that was in use before, and rows "in fresh memory" are those of a
process that gets its memory from the system at each call, which under some hypervisors costs more than planning. Peak
memory is what the call allocates beside the array at any moment.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import tracemalloc
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
from compare import Row, in_turn, main_of
from peers import installed_peers

from brimful import plan_packs
from brimful.base.compiling import compiled_forms
from brimful.plan.counts.counting_sort import decreasing_order
from brimful.plan.counts.histogram import Histogram
from brimful.plan.plan import Plan

__all__ = ["measure"]

Draw = Callable[[np.random.Generator, int], npt.NDArray[np.int32]]


def lognormal(rng: np.random.Generator, count: int) -> npt.NDArray[np.int32]:
    """Chats: median 350 tokens, heavy tail, at most 4,096."""
    return _in_parts(
        count, lambda size: np.clip(np.exp(rng.normal(np.log(350), 1.0, size)), 1, 4096)
    )


def uniform(rng: np.random.Generator, count: int) -> npt.NDArray[np.int32]:
    """1 to 8,192: two samples to a pack."""
    return _in_parts(count, lambda size: rng.integers(1, 8193, size))


def two_humped(rng: np.random.Generator, count: int) -> npt.NDArray[np.int32]:
    """Half captions, half images with a thousand tokens and more, at most 8,192."""

    def draw(size: int) -> npt.NDArray[np.float64]:
        image = rng.normal(1400, 350, size)
        caption = np.exp(rng.normal(np.log(120), 0.6, size))
        return np.clip(np.where(rng.random(size) < 0.5, image, caption), 1, 8192)

    return _in_parts(count, draw)


SHAPES: dict[str, tuple[Draw, int]] = {
    "lognormal": (lognormal, 4096),
    "uniform": (uniform, 8192),
    "two-humped": (two_humped, 8192),
}


def _in_parts(count: int, draw: Callable[[int], npt.NDArray[np.float64]]) -> npt.NDArray[np.int32]:
    """So that drawing takes no more memory than what is drawn."""
    lengths = np.empty(count, dtype=np.int32)
    for begin in range(0, count, 1 << 22):
        stop = min(begin + (1 << 22), count)
        lengths[begin:stop] = draw(stop - begin)
    return lengths


def _plan(lengths: npt.NDArray[np.int32], capacity: int, seed: int | None = None) -> Plan:
    return plan_packs(lengths, capacity=capacity, algorithm="best_fit_decreasing", seed=seed)


def _in_numpy(lengths: npt.NDArray[np.int32], capacity: int) -> Plan:
    with compiled_forms(False):
        return _plan(lengths, capacity)


def beside_peers(shape: str, count: int, *, repetitions: int) -> Iterator[Row]:
    """One row a peer, and the two with the aims."""
    draw, capacity = SHAPES[shape]
    lengths = draw(np.random.default_rng(0), count)
    ours = in_turn(
        {
            "compiled": lambda: _plan(lengths, capacity),
            "numpy": lambda: _in_numpy(lengths, capacity),
        },
        repetitions=repetitions,
    )
    packs = len(_plan(lengths, capacity))
    tight: list[tuple[float, str]] = []
    for peer in installed_peers():
        if count > peer.most_items:
            continue
        found: list[int] = []

        def run(peer: object = peer, found: list[int] = found) -> None:
            made = peer.pack(lengths, capacity)  # type: ignore[attr-defined]
            found.append(len(made))
            assert sum(map(len, made)) == count

        try:
            seconds = _once(run)
        except OverflowError as error:
            print(f"{peer.name}: left out ({error})", file=sys.stderr)
            continue
        assert found[0] >= packs, f"{peer.name} needs {found[0]} packs, we need {packs}"
        if found[0] == packs:
            tight.append((seconds, peer.name))
        name = f"{shape} {count:,}: {peer.name}, {found[0]:,} packs to our {packs:,}"
        yield Row(
            name, "s", ours["compiled"], peer.name.split(" (")[0], seconds, less_is_better=True
        )
    if tight:
        seconds, name = min(tight)
        for form, aim in (("compiled", 100.0), ("numpy", 40.0)):
            title = f"{shape} {count:,}, {form}: fastest peer as tight"
            of_a_million = (
                aim if count >= 1_000_000 else None
            )  # below, checks and loading count more than packing
            yield Row(
                title,
                "s",
                ours[form],
                name.split(" (")[0],
                seconds,
                less_is_better=True,
                aim=of_a_million,
            )


def _once(function: Callable[[], object]) -> float:
    """A peer takes seconds: one run, without a warm-up that would take as long."""
    import time

    gc.collect()
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
"""Options of ``mallopt`` of the GNU C library, and below their defaults."""
_DEFAULTS = {_M_TRIM_THRESHOLD: 128 << 10, _M_MMAP_MAX: 65_536}


@contextlib.contextmanager
def _memory_kept() -> Iterator[None]:
    """Have the C library keep what is freed, so that the next call finds pages that this process used before."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        yield
        return
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
    try:
        yield
    finally:
        for option, value in _DEFAULTS.items():
            mallopt(option, value)


def _touch(num_bytes: int) -> None:
    """Have the machine hand out this memory, and give it back.

    Under a hypervisor the first touch of a page that its host has taken back costs ten times what it costs later, so
    that without this the order of the calls decides, and not what they do.
    """
    gc.collect()
    blocks = [np.zeros(1 << 22, dtype=np.uint8) for _ in range(num_bytes >> 22)]
    for block in blocks:
        block.fill(1)


def beside_the_limit(shape: str, count: int, *, repetitions: int) -> Iterator[Row]:
    """Whole plans against a histogram and a counting sort of the same array."""
    draw, capacity = SHAPES[shape]
    lengths = draw(np.random.default_rng(1), count)

    def limit() -> object:
        items = Histogram.of(lengths)
        return decreasing_order(lengths, items)

    functions = {
        "limit": limit,
        "compiled": lambda: _plan(lengths, capacity),
        "numpy": lambda: _in_numpy(lengths, capacity),
        "seeded": lambda: _plan(lengths, capacity, seed=0),
    }
    fresh = in_turn(
        {name: functions[name] for name in ("limit", "seeded")},
        repetitions=repetitions,
        before=gc.collect,
    )
    with _memory_kept():
        _touch(20 * count)
        seconds = in_turn(functions, repetitions=repetitions, before=gc.collect)
    title = f"{shape} {count:,}"
    peer = "histogram + counting sort"
    name = f"{title}: plan, compiled, shuffled by a seed, in fresh memory"
    yield Row(name, "s", fresh["seeded"], peer, fresh["limit"], less_is_better=True)
    for form, aim in (("compiled", 1 / 2), ("numpy", 1 / 8), ("seeded", 1 / 3)):
        words = "compiled, shuffled by a seed" if form == "seeded" else form
        yield Row(
            f"{title}: plan, {words}",
            "s",
            seconds[form],
            peer,
            seconds["limit"],
            less_is_better=True,
            aim=aim,
        )
    calls = {
        "compiled": lambda: _plan(lengths, capacity),
        "numpy": lambda: _in_numpy(lengths, capacity),
        "compiled, shuffled by a seed": lambda: _plan(lengths, capacity, seed=0),
    }
    for form, call in calls.items():
        tracemalloc.start()
        plan = call()
        peak = tracemalloc.get_traced_memory()[1] / count
        tracemalloc.stop()
        del plan
        yield Row(
            f"{title}: peak memory, {form}",
            "bytes a sample",
            peak,
            "limit",
            16.0,
            less_is_better=True,
            aim=1.0,
        )


def measure(quick: bool) -> list[Row]:
    """Rows for the shared table."""
    few, many, repetitions = (20_000, 1_000_000, 1) if quick else (1_000_000, 100_000_000, 3)
    for draw, capacity in SHAPES.values():  # compiles
        _plan(draw(np.random.default_rng(0), 300_000), capacity, seed=0)
    rows: list[Row] = []
    for shape in SHAPES:
        print(f"  {shape} beside peers", file=sys.stderr, flush=True)
        rows += beside_peers(shape, few, repetitions=3 * repetitions)
    rows += beside_peers("lognormal", 20_000, repetitions=9)
    for shape in SHAPES:
        print(f"  {shape} beside the limit", file=sys.stderr, flush=True)
        rows += beside_the_limit(shape, many, repetitions=repetitions)
    return rows


if __name__ == "__main__":
    main_of(measure, __doc__)
