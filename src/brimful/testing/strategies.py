"""Hypothesis strategies for tests of packing: lengths and conversations.

They shrink to small, readable cases, and include edge cases: lengths of 1, of exactly the capacity,
many equal.
"""

from operator import itemgetter
from typing import Any

from hypothesis import strategies as st

from brimful.plan import ALGORITHMS, Overflow, Plan, plan_packs

__all__ = ["capacities_and_lengths", "conversations", "lengths_and_plans", "plans"]


@st.composite
def capacities_and_lengths(
    draw: st.DrawFn, *, max_capacity: int = 64, max_samples: int = 80, oversized: bool = False
) -> tuple[int, list[int]]:
    """Draw a capacity and lengths of samples, some above the capacity if ``oversized``."""
    capacity = draw(st.integers(1, max_capacity))
    # Faults hide at the edges: a full pack, and two samples that just fill one or just exceed it.
    top = 3 * capacity if oversized else capacity
    corners = st.sampled_from([1, capacity, max(1, capacity // 2), max(1, capacity // 2 + 1), top])
    corners = corners.filter(lambda length: length <= top)
    lengths = draw(st.lists(st.integers(1, top) | corners, min_size=1, max_size=max_samples))
    return capacity, lengths


@st.composite
def conversations(draw: st.DrawFn, *, max_turns: int = 6) -> list[dict[str, Any]]:
    """Draw alternating turns of user and assistant with any text, perhaps after a system
    message.
    """
    text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
    turns: list[dict[str, Any]] = []
    if draw(st.booleans()):
        turns.append({"role": "system", "content": draw(text)})
    for turn in range(draw(st.integers(1, max_turns))):
        turns.append({"role": "user" if turn % 2 == 0 else "assistant", "content": draw(text)})
    return turns


@st.composite
def _plan_options(draw: st.DrawFn, capacity: int) -> dict[str, Any]:
    """Draw compatible options of ``plan_packs`` for any lengths; ``split`` keeps every sample."""
    # ``optimal`` needs a solver and seconds, and proves what ``auto`` finds for so few samples.
    algorithm = draw(st.sampled_from([name for name in ALGORITHMS if name != "optimal"]))
    options: dict[str, Any] = {
        "capacity": capacity,
        "algorithm": algorithm,
        "overflow": draw(
            st.sampled_from([policy for policy in Overflow if policy is not Overflow.ERROR])
        ),
        "seed": draw(st.none() | st.integers(0, 3)),
        "epoch": draw(st.integers(0, 2)),
    }
    contradicts = ALGORITHMS[algorithm].contradicts
    if "min_fill" not in contradicts:
        options["min_fill"] = draw(st.sampled_from([0.0, 0.5, 1.0]))
    if "alignment" not in contradicts:
        options["alignment"] = draw(st.sampled_from([1, 1, 2, 4])) if capacity >= 4 else 1
    if "budgets" not in contradicts:
        budgets = {"samples": draw(st.integers(1, 5)), "squares": capacity**2}
        options["budgets"] = draw(st.sampled_from([None, None, budgets]))
    return options


@st.composite
def lengths_and_plans(
    draw: st.DrawFn, *, max_capacity: int = 64, max_samples: int = 40
) -> tuple[list[int], Plan]:
    """Draw lengths of samples, some above the capacity, with a plan of them under random
    options.
    """
    capacity, lengths = draw(
        capacities_and_lengths(max_capacity=max_capacity, max_samples=max_samples, oversized=True)
    )
    return lengths, plan_packs(lengths, **draw(_plan_options(capacity)))


def plans(*, max_capacity: int = 64, max_samples: int = 40) -> st.SearchStrategy[Plan]:
    """Return a strategy of plans of random lengths, by any algorithm but ``optimal``, under
    compatible options.

    A plan may be empty, if every sample was dropped.
    """
    return lengths_and_plans(max_capacity=max_capacity, max_samples=max_samples).map(itemgetter(1))
