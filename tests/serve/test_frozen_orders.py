"""Orders stay as they are: a training that goes on with a newer version sees the packs that it would have seen.

Other tests say that an order is whole and equal on all ranks, which another order is, too. A change that is meant changes
``tests/golden/orders.json`` with it (``python -m tests.serve.test_frozen_orders`` prints it), and says so in the changes,
under "Order".
"""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brimful import PackLoader
from brimful.testing.toys import toy_packs

GOLDEN = Path(__file__).parents[1] / "golden" / "orders.json"

CASES: dict[str, dict[str, Any]] = {
    "the order of the plan": {"seed": None},
    "a seed": {"seed": 0},
    "another seed": {"seed": 7},
    "micro-batches": {"seed": 0, "micro_batches": 2, "packs_per_micro_batch": 2},
    "costs": {"seed": 0, "micro_batches": 2, "costs": np.arange(1.0, 24.0) ** 2},
    "costs within windows": {"seed": 3, "costs": np.arange(1.0, 24.0) ** 2, "window_steps": 3},
    "a dropped tail": {"seed": 0, "micro_batches": 4, "tail": "drop"},
    "a repeated tail": {"seed": 0, "micro_batches": 4, "tail": "repeat"},
}


def _loader(rank: int, options: dict[str, Any]) -> PackLoader:
    return PackLoader(toy_packs(23), dp_rank=rank, dp_world_size=2, **options)


def _served(batches: Any) -> list[int]:
    """The sample of each pack: pack ``i`` of these toys has sample ``i``; -1 for a pack without loss."""
    return [int(pack.sample_ids[0]) for packs in batches for pack in packs]


def _order_of(options: dict[str, Any]) -> Any:
    """Packs by rank and epoch, and the state in the middle of the first epoch."""
    loaders = [_loader(rank, options) for rank in range(2)]
    epochs = [[_served(loader) for _ in range(2)] for loader in loaders]
    loader = _loader(0, options)
    for _ in islice(loader, loader.steps_per_epoch // 2 * options.get("micro_batches", 1)):
        pass
    return {"ranks": epochs, "state": loader.state_dict()}


@pytest.mark.parametrize("name", CASES)
def test_an_order_is_the_one_that_it_was(name: str) -> None:
    """Both ranks, two epochs."""
    assert _order_of(CASES[name])["ranks"] == _golden()[name]["ranks"]


@pytest.mark.parametrize("name", CASES)
def test_a_state_that_was_saved_before_goes_on(name: str) -> None:
    """The state is the one in the file, not one that this version makes."""
    golden = _golden()[name]
    for rank in range(2):
        loader = _loader(rank, CASES[name])
        loader.load_state_dict(golden["state"])
        rest = _served(loader)
        assert 0 < len(rest) < len(golden["ranks"][rank][0])
        assert rest == golden["ranks"][rank][0][-len(rest) :]
        assert _served(loader) == golden["ranks"][rank][1]


def _golden() -> Any:
    return json.loads(GOLDEN.read_text(encoding="utf-8"))


if __name__ == "__main__":
    lines = [f" {json.dumps(name)}: {json.dumps(_order_of(options))}" for name, options in CASES.items()]
    print("{\n" + ",\n".join(lines) + "\n}")
