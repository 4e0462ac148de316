"""Strategies for batches of every kind, with the samples that are in them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from brimful import PackCollator
from brimful.collate import Padding
from brimful.collate.dialects import DIALECTS, dialect_of
from brimful.store.shards import Pack, assemble_pack

BOS, EOS = 98, 99
LENGTHS = st.lists(st.integers(2, 9), min_size=1, max_size=4)


@dataclass
class Made:
    """A batch of random packs.

    Attributes:
        dialect: its dialect.
        batch: the batch.
        packs: in their order; a dialect with rows has a row for each.
        samples: tokens of each sample.
        targets: of each sample, true at its tokens that are trained.
    """

    dialect: str
    batch: dict[str, Any]
    packs: list[Pack]
    samples: list[list[int]]
    targets: list[list[bool]]


READ = tuple(name for name in DIALECTS if name not in ("trl_tree", "art"))
"""Dialects whose words ``doctor`` knows: the others say nothing but trees."""


@st.composite
def made(
    draw: st.DrawFn,
    dialects: tuple[str, ...] = READ,
    most: int = 3,
    repeats: bool = True,
    ends: bool = False,
) -> Made:
    """Draw packs, and collate them in a dialect with some padding.

    Args:
        draw: of Hypothesis.
        dialects: names of dialects.
        most: packs.
        repeats: samples may have equal tokens next to each other.
        ends: samples begin with BOS and end with a trained EOS.
    """
    dialect = draw(st.sampled_from(dialects))
    token = st.integers(1, 60)
    samples, targets, packs = [], [], []
    for lengths in draw(st.lists(LENGTHS, min_size=1, max_size=most)):
        own = [draw(st.lists(token, min_size=size, max_size=size)) for size in lengths]
        if not repeats:
            own = [(np.cumsum(row) % 61 + 1).tolist() for row in own]
        if ends:
            own = [[BOS, *row[1:-1], EOS] for row in own]
        masks = [[False, *draw(st.lists(st.booleans(), min_size=size - 1, max_size=size - 1))] for size in lengths]
        # One trained token in each sample: a sample without any is no training data.
        for mask in masks:
            mask[-1] = True
        ids = [np.array(row, dtype=np.int32) for row in own]
        packs.append(
            assemble_pack(ids, [np.array(mask) for mask in masks], range(len(samples), len(samples) + len(own)))
        )
        samples += own
        targets += masks
    # In a row of one token alone no reader can tell whether labels are shifted.
    told = [
        row[i] != row[i - 1] and mask[i] for row, mask in zip(samples, targets, strict=True) for i in range(1, len(row))
    ]
    assume(any(told))
    to, unit = draw(st.sampled_from((None, 128))), draw(st.sampled_from((1, 1, 4)))
    options: dict[str, Any] = {"pad_to": 16 if to else None}
    if dialect != "plain":
        # Empty segments fill fixed shapes; Megatron-Bridge has none.
        num_segments = draw(st.sampled_from((None, 20))) if dialect != "megatron_bridge" else None
        options = {"padding": Padding(to=to, segment_multiple_of=unit, num_segments=num_segments)}
    options["mrope"] = draw(st.booleans()) and dialect not in ("megatron_bridge_legacy", "olmo_core")
    options["position_start"] = draw(st.sampled_from((0, 2))) if dialect_of(dialect).any_start else 0
    # OLMo-core reads no weights.
    options["loss_weights"] = draw(st.sampled_from((None, "sample"))) if dialect != "olmo_core" else None
    batch = PackCollator(dialect=dialect, **options)(packs)
    return Made(dialect, batch, packs, samples, targets)
