"""Samplers of Megatron: their index arithmetic, written down for these tests, and the real ones where installed.

The wheel of megatron-core has no samplers; megatron-bridge's has Megatron-LM's, in a file that needs torch
alone. ``PYTHONPATH`` may name a folder with it: ``pip install --no-deps --target FOLDER megatron-bridge``.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import torch


def in_order(total, consumed, micro_batch, rank, world_size):
    """As MegatronPretrainingSampler: every rank takes its run of each global micro-batch; an incomplete one is left out."""
    together = micro_batch * world_size
    for begin in range(consumed, total - together + 1, together):
        yield list(range(begin + rank * micro_batch, begin + (rank + 1) * micro_batch))


def at_random(total, consumed, micro_batch, rank, world_size, is_sharded):
    """As MegatronPretrainingRandomSampler: each rank shuffles its part of the numbers, or takes each n-th of all."""
    together = micro_batch * world_size
    epoch, done = divmod(consumed, total // together * together)
    generator = torch.Generator().manual_seed(epoch)
    if is_sharded:
        size = total // together * micro_batch
        numbers = [rank * size + i for i in torch.randperm(size, generator=generator).tolist()][done // world_size :]
    else:
        size = total // micro_batch * micro_batch
        numbers = torch.randperm(size, generator=generator).tolist()[done:][rank::world_size]
    for begin in range(0, len(numbers) - micro_batch + 1, micro_batch):
        yield numbers[begin : begin + micro_batch]


def real():
    """Return the module with the real samplers; None if not installed."""
    for folder in sys.path:
        file = Path(folder or ".", "megatron", "bridge", "data", "samplers.py")
        if file.is_file():
            spec = importlib.util.spec_from_file_location("real_megatron_samplers", file)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    return None


def real_in_order(total, consumed, micro_batch, rank, world_size):
    return iter(real().MegatronPretrainingSampler(total, consumed, micro_batch, rank, world_size))


def real_at_random(total, consumed, micro_batch, rank, world_size, is_sharded):
    sampler = real().MegatronPretrainingRandomSampler
    return iter(sampler(None, total, consumed, micro_batch, rank, world_size, is_sharded))
