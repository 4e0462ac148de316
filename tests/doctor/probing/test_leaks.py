"""Movement is a leak or rounding: planted movements of tokens, layer by layer."""

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from brimful.doctor.batch.view import RowSegment
from brimful.doctor.probing.exchange import Trial
from brimful.doctor.probing.leaks import LayerMovement, find_leak, moves_everywhere

SEGMENTS = (RowSegment(0, 0, 40), RowSegment(0, 40, 60), RowSegment(0, 60, 100), RowSegment(1, 0, 100))
BF16, FP32 = torch.bfloat16, torch.float32


def reach(rows=2, *, is_coupled=False):
    segments = SEGMENTS if rows == 2 else SEGMENTS[:3]
    return Trial((rows, 100), segments, exchanged=SEGMENTS[1]).reach(is_coupled=is_coupled)


def layers(*movements, rows=2):
    """Layers, each with sizes at some places: ``(row, columns, size)``."""
    result = []
    for number, places in enumerate(movements):
        sizes = np.zeros((rows, 100), dtype=np.float32)
        sizes[0, 40:60] = 1.0
        for row, columns, size in places:
            sizes[row, columns] = size
        result.append(LayerMovement(f"layers.{number}", sizes))
    return result


AFTER, BEFORE = slice(60, 100), slice(0, 40)
FLIPS = [(0, slice(60, 100, 20), 0.3), (1, slice(3, 100, 20), 0.3), (0, slice(1, 40, 20), 0.3)]
"""Routers of experts choose others for a token here and there, in all rows."""


@pytest.mark.parametrize(
    ("movements", "dtype", "is_coupled", "layer"),
    [
        ([[], []], FP32, False, None),
        ([[], [(0, AFTER, 1e-2)]], FP32, False, 1),
        ([[(0, AFTER, 1e-6)], [(0, AFTER, 1e-6)]], FP32, False, None),
        ([[(0, BEFORE, 1e-2)]], FP32, False, 0),
        ([[(0, slice(60, 62), 0.5)]], FP32, False, 0),
        ([[(0, AFTER, 1e-3)]], BF16, False, 0),
        ([[(0, slice(60, 100, 20), 4e-3)], [(0, AFTER, 4e-3)]], BF16, False, None),
        ([[(0, slice(60, 62), 0.5)]], BF16, False, 0),
        ([[], FLIPS, FLIPS], BF16, True, None),
        ([[(0, AFTER, 0.2)], FLIPS], BF16, True, 0),
        ([FLIPS, [*FLIPS, (0, AFTER, 0.3)]], BF16, True, 1),
        ([[(0, AFTER, 2e-4), (1, slice(0, 100), 1e-4)]], FP32, True, None),
        ([[(0, AFTER, 2e-3), (1, slice(0, 100), 1e-4)]], FP32, True, 0),
        ([[(0, slice(60, 80), 1e-3)]], BF16, False, 0),
        ([[(0, AFTER, float("inf"))]], FP32, False, 0),
        ([[(0, AFTER, float("nan"))]], FP32, False, None),
    ],
)
def test_leak_or_rounding(movements, dtype, is_coupled, layer):
    """Nothing; a leak; rounding; backward; a window; low precision; rounding that spreads; experts; scales."""
    leak = find_leak(layers(*movements), reach(is_coupled=is_coupled), dtype, is_coupled=is_coupled)
    assert (None if leak is None else leak.layer) == layer


def test_the_neighbor_that_moved_most_is_named():
    leak = find_leak(layers([(0, slice(10, 20), 0.1), (0, AFTER, 0.4)]), reach(), FP32, is_coupled=False)
    assert leak == (0, "layers.0", SEGMENTS[2], 40, pytest.approx(0.4))


def test_without_a_second_row_tokens_before_show_the_rounding_of_experts():
    moved = layers([*FLIPS[:1], FLIPS[2]], rows=1)
    assert find_leak(moved, reach(1, is_coupled=True), BF16, is_coupled=True) is None
    both_ways = layers([(0, AFTER, 0.2), (0, BEFORE, 0.2)], rows=1)
    assert find_leak(both_ways, reach(1), FP32, is_coupled=False).layer == 0


def test_movement_of_all_rows_is_no_leak_of_packing():
    """Statistics over the batch: a row apart moves as the neighbors do."""
    moved = layers([(0, AFTER, 0.2), (0, BEFORE, 0.2), (1, slice(0, 100), 0.2)])
    assert find_leak(moved, reach(), FP32, is_coupled=False) is None
    assert moves_everywhere(moved, reach(), FP32, is_coupled=False).name == "layers.0"
    assert moves_everywhere(layers([(0, AFTER, 0.2)]), reach(), FP32, is_coupled=False) is None


@pytest.mark.parametrize(
    ("dtype", "is_coupled", "is_seen"),
    [(FP32, False, True), (FP32, True, False), (BF16, False, False)],
)
def test_a_few_tokens_of_another_row_move_by_rounding_or_not_at_all(dtype, is_coupled, is_seen):
    """Attention over rows in place of tokens moves the same columns of the next row."""
    moved = layers([(1, slice(0, 10), 0.2)])
    assert bool(moves_everywhere(moved, reach(), dtype, is_coupled=is_coupled)) is is_seen
