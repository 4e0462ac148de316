"""Hypothesis strategies for tests of packing: lengths and conversations.

They shrink to small, readable cases, and mix in the corners: lengths of 1, of exactly the capacity, many equal.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

__all__ = ["capacities_and_lengths", "conversations"]


@st.composite
def capacities_and_lengths(
    draw: st.DrawFn, *, max_capacity: int = 64, max_samples: int = 80, oversized: bool = False
) -> tuple[int, list[int]]:
    """Draw a capacity and lengths of samples, some above the capacity if ``oversized``."""
    capacity = draw(st.integers(1, max_capacity))
    # Faults hide at the corners: a full pack, and two samples that just fill one or just exceed it.
    top = 3 * capacity if oversized else capacity
    corners = st.sampled_from([1, capacity, max(1, capacity // 2), max(1, capacity // 2 + 1), top])
    corners = corners.filter(lambda length: length <= top)
    lengths = draw(st.lists(st.integers(1, top) | corners, min_size=1, max_size=max_samples))
    return capacity, lengths


@st.composite
def conversations(draw: st.DrawFn, *, max_turns: int = 6) -> list[dict[str, Any]]:
    """Draw alternating turns of user and assistant with any text, perhaps after a system message."""
    text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
    turns: list[dict[str, Any]] = []
    if draw(st.booleans()):
        turns.append({"role": "system", "content": draw(text)})
    for number in range(draw(st.integers(1, max_turns))):
        turns.append({"role": "user" if number % 2 == 0 else "assistant", "content": draw(text)})
    return turns
