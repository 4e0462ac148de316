"""LLaMA-Factory v1: micro-batches that are planned, in place of its ``dynamic_padding_free``."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import torch

from brimful.collate.torch import PackCollator
from brimful.plan import plan_packs

__all__ = ["WindowBatcher", "install"]

_WINDOW_PACKS = 32
"""Fewest micro-batches of tokens that are planned together: best fit then leaves less than 1 % of a
row empty.
"""

_COUNTED_ROWS = 2000
"""Rows that are encoded to estimate the steps of an epoch."""

_METHODS = ("get_data_provider_batch_size", "compute_length", "fill_buffer", "generate_batch")


def install() -> None:
    """Let ``batching_strategy: dynamic_padding_free`` plan its micro-batches; call it before the
    trainer is made.

    LLaMA-Factory's configuration takes no other name of a strategy. A second call has no effect.
    """
    batching = import_module("llamafactory.v1.plugins.trainer_plugins.batching")
    plugin = batching.BatchingPlugin("dynamic_padding_free")
    if hasattr(batching, "BaseBatcher"):
        plugin.register()(WindowBatcher)
    else:  # up to 0.9.5 each method has a name of its own
        for name in _METHODS:
            plugin.register(name)(getattr(WindowBatcher, name))


class WindowBatcher:
    """Steps of full micro-batches, with the methods of LLaMA-Factory's ``BaseBatcher``.

    ::

        cutoff_len 8, micro_batch_size 1, one micro-batch a step
        waiting   5 6 3 2 8        5 3 leave: the oldest sample is in this pack
        waiting   6 2 8            6 2
        waiting   8                8

    A row has at most ``cutoff_len × micro_batch_size`` tokens; samples are cut to ``cutoff_len``,
    as by LLaMA-Factory. Of the packs of all waiting samples, the pack with the oldest one leaves,
    and the fullest others. Everything that waits is in LLaMA-Factory's buffer, which its
    checkpoints hold.
    """

    _collate = PackCollator()

    @staticmethod
    def get_data_provider_batch_size(batch_info: dict[str, Any]) -> int:
        """Return the rows that the buffer asks for at a time."""
        return 1

    @staticmethod
    def compute_length(data_provider: Any, batch_info: dict[str, Any]) -> int:
        """Return about how many steps an epoch has, the same on every rank.

        At most 2,000 rows, at equal distances, are encoded for it.
        """
        dataset = data_provider.dataset
        count = min(len(dataset), _COUNTED_ROWS)
        rows = [dataset[index * len(dataset) // count] for index in range(count)]
        tokens = sum(_lengths(data_provider.collate_fn(rows), batch_info))
        step: int = _capacity(batch_info) * int(batch_info["num_micro_batch"])
        return max(1, round(len(data_provider) * tokens / count / step))

    @staticmethod
    def fill_buffer(
        buffer: Any, batch_info: dict[str, Any], next_samples: Callable[[bool], Any]
    ) -> None:
        """Read samples until a window of them waits; at the end of the data from its beginning, so
        that no rank ends before the others.
        """
        packs = max(_WINDOW_PACKS, 4 * batch_info["num_micro_batch"])
        waiting = sum(_lengths(buffer.samples, batch_info))
        while waiting < packs * _capacity(batch_info):
            samples = next_samples(True)
            if samples is None:
                return
            buffer.put(samples)
            waiting += sum(_lengths(samples, batch_info))

    @staticmethod
    def generate_batch(buffer: Any, batch_info: dict[str, Any]) -> list[dict[str, Any]] | None:
        """Return the micro-batches of one step; None if too few samples wait.

        ``input_ids``, ``labels``, ``position_ids``: ``int64[1, T]``; ``loss_weights``:
        ``float32[1, T]``; and the boundaries of dialect ``transformers``.
        """
        count = batch_info["num_micro_batch"]
        if len(buffer) < count:
            return None
        samples = buffer.get(len(buffer))
        plan = plan_packs(_lengths(samples, batch_info), capacity=_capacity(batch_info), seed=None)
        packs = [[segment.sample_id for segment in pack] for pack in plan]
        if len(packs) < count:
            buffer.put(samples)
            return None
        has_newer = np.array([0 not in pack for pack in packs])
        order = np.lexsort((-plan.pack_tokens, has_newer))
        leaving = [sorted(packs[index]) for index in order[:count].tolist()]
        gone = set().union(*leaving)
        buffer.put([sample for position, sample in enumerate(samples) if position not in gone])
        return [
            _row([samples[position] for position in pack], batch_info["cutoff_len"])
            for pack in leaving
        ]


def _row(samples: list[dict[str, Any]], cutoff: int) -> dict[str, Any]:
    keys = ("input_ids", "labels", "loss_weights")
    batch = WindowBatcher._collate(
        [{key: list(sample[key][:cutoff]) for key in keys} for sample in samples]
    )
    # LLaMA-Factory passes only tensors to the model. With a cache, which is the model's default,
    # SDPA would not look for the samples of a row.
    batch["use_cache"] = torch.tensor(False)
    return batch


def _lengths(samples: Any, batch_info: dict[str, Any]) -> list[int]:
    return [min(len(sample["input_ids"]), batch_info["cutoff_len"]) for sample in samples]


def _capacity(batch_info: dict[str, Any]) -> int:
    return int(batch_info["cutoff_len"] * batch_info["micro_batch_size"])
