"""Training on the same samples in flat packs and in trees, step by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
import torch

from brimful.collate.loss_torch import packed_loss_sum
from brimful.collate.torch import PackCollator
from brimful.plan import plan_packs
from brimful.store.shards import Pack


class TrainingStep(NamedTuple):
    """One step on the samples of one pack of trees.

    Attributes:
        num_samples: of the pack.
        num_packs: flat packs of the same samples.
        flat_loss, tree_loss: mean over the targets of the samples.
        flat_seconds, tree_seconds: of forward, backward and optimizer.
    """

    num_samples: int
    num_packs: int
    flat_loss: float
    tree_loss: float
    flat_seconds: float
    tree_seconds: float


def train_both(
    model: Any, packs: Sequence[Pack], capacity: int, say: Callable[[TrainingStep], object]
) -> list[TrainingStep]:
    """Train two copies of a model, one on packs of trees and one on flat packs of the same samples.

    Args:
        model: a model of Transformers that takes a mask of all pairs.
        packs: of trees, one for each step.
        capacity: tokens of a flat pack.
        say: receives each step.
    """
    models = [deepcopy(model), deepcopy(model)]
    optimizers = [torch.optim.AdamW(one.parameters(), lr=1e-3) for one in models]
    collate = PackCollator(dialect="dense_mask")
    steps = []
    for pack in packs:
        flat_packs = _flat_packs(pack, capacity)
        flat, trees = (
            _step(one, optimizer, collate, micro_batches)
            for one, optimizer, micro_batches in zip(
                models, optimizers, (flat_packs, [pack]), strict=True
            )
        )
        num_samples = sum(one.num_segments for one in flat_packs)
        steps.append(
            TrainingStep(num_samples, len(flat_packs), flat[0], trees[0], flat[1], trees[1])
        )
        say(steps[-1])
    return steps


def _flat_packs(pack: Pack, capacity: int) -> list[Pack]:
    samples = pack.flat()
    plan = plan_packs(np.diff(samples.cu_seqlens), capacity=capacity)
    return [samples.take([segment.sample_id for segment in segments]) for segments in plan]


def _step(
    model: Any, optimizer: Any, collate: PackCollator, packs: Sequence[Pack]
) -> tuple[float, float]:
    """Make one step on some packs; return its loss and its seconds."""
    batches = [collate.rows([pack])[0] for pack in packs]
    num_targets = sum(batch.num_loss_tokens for batch in batches)
    total = 0.0
    started = time.perf_counter()
    for batch in batches:
        inputs = collate.speak([batch])
        labels, weights = inputs.pop("labels"), inputs.pop("loss_weights", None)
        for name in ("parents", "tree_in", "tree_out"):
            inputs.pop(name, None)
        logits = model(**inputs).logits
        loss = packed_loss_sum(logits, labels, loss_weights=weights) / num_targets
        loss.backward()
        total += loss.item()
    optimizer.step()
    optimizer.zero_grad()
    return total, time.perf_counter() - started
