"""Collating one pack against ``DataCollatorWithFlattening`` of ``transformers`` and ``packing_row`` of ms-swift.

The collator of ``transformers`` gets the same samples. Both return the same tensors for a model of ``transformers``:
tokens, labels, positions, boundaries for flash attention, ``seq_idx``. Ours takes a ``Pack``; theirs takes the list of
its samples, as lists of Python integers (which it is made for) or as NumPy arrays (which it turns into lists), prepared
outside the time. Both results are compared before anything is timed. The aim is at least 5 times as fast as the faster
of the two.

``packing_row`` of ms-swift joins the samples as lists of Python integers; its collator makes tensors of them by
``torch.tensor``. The aim, at least 20 times as fast, is for the function as it is; the row with tensors, where ours ends
too, is there to read along. It is the real one where ms-swift is installed; else the row says so, and its peer is the
same sum of lists written down here: ``sum`` builds the list anew for every sample.

The last rows are the NumPy form of ours, which runs where numba is not installed.

The limit is the memory: one row is the mere allocation of the tensors of the batch with ``torch.zeros``.

Data: a pack of 8,192 random tokens in 20 segments, the second half of each a target.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any
from unittest import mock

import numpy as np
import torch
from compare import Row, in_turn, main_of

from brimful import PackCollator
from brimful.collate import layout, row_writer
from brimful.store.shards import Pack, assemble_pack

__all__ = ["measure"]

_TOKENS, _SEGMENTS = 8192, 20


def _pack() -> Pack:
    rng = np.random.default_rng(0)
    cuts = np.sort(rng.choice(np.arange(1, _TOKENS), _SEGMENTS - 1, replace=False))
    lengths = np.diff([0, *cuts, _TOKENS]).tolist()
    ids = [rng.integers(0, 150_000, length, dtype=np.int32) for length in lengths]
    return assemble_pack(
        ids, [np.arange(length) >= length // 2 for length in lengths], range(_SEGMENTS)
    )


def _sum_of_lists(samples: list[dict[str, Any]]) -> dict[str, list[int]]:
    """What ms-swift does to the lists of a pack: one ``sum`` for each key, and positions counted sample by sample."""
    rows = {key: sum((sample[key] for sample in samples), []) for key in ("input_ids", "labels")}  # noqa: RUF017
    return {**rows, "position_ids": sum((list(range(sample["length"])) for sample in samples), [])}  # noqa: RUF017


def _packing_row() -> tuple[str, Callable[[list[dict[str, Any]]], dict[str, list[int]]]]:
    """``packing_row`` of ms-swift and its name; the sum of lists where it is not installed."""
    try:
        from swift.template.base import Template
    except ImportError:
        return "ms-swift not installed: its sum of lists", _sum_of_lists
    template = object.__new__(Template)
    template._data_collator_mm_data = lambda row: {}
    return "packing_row of ms-swift", template.packing_row


def measure(quick: bool) -> list[Row]:
    from transformers import DataCollatorWithFlattening

    pack = _pack()
    labels = pack.labels
    edges = pack.cu_seqlens.tolist()
    arrays = [
        {"input_ids": pack.input_ids[begin:end].astype(np.int64), "labels": labels[begin:end]}
        for begin, end in pairwise(edges)
    ]
    lists = [{key: value.tolist() for key, value in sample.items()} for sample in arrays]
    theirs = DataCollatorWithFlattening(
        return_flash_attn_kwargs=True, return_seq_idx=True, return_position_ids=True
    )
    ours = PackCollator()
    swift_name, packing_row = _packing_row()
    encoded = [{**sample, "length": len(sample["input_ids"])} for sample in lists]
    batch = ours([pack])
    _compare(batch, theirs(lists))
    assert all(batch[key][0].tolist() == row for key, row in packing_row(encoded).items())
    shapes = [
        (value.shape, value.dtype) for value in batch.values() if isinstance(value, torch.Tensor)
    ]
    calls = 20 if quick else 50

    def many(call: Callable[[], object]) -> Callable[[], object]:
        def repeat() -> None:
            for _ in range(calls):
                call()

        return repeat

    def numpy_writer() -> row_writer.Writer:
        return row_writer._write_in_numpy

    def in_numpy() -> None:
        with mock.patch.object(layout, "writer", new=numpy_writer):
            many(lambda: ours([pack]))()

    seconds = in_turn(
        {
            "ours": many(lambda: ours([pack])),
            "numpy": in_numpy,
            "lists": many(lambda: theirs(lists)),
            "arrays": many(lambda: theirs(arrays)),
            "swift": many(lambda: packing_row(encoded)),
            "tensors": many(
                lambda: {key: torch.tensor([row]) for key, row in packing_row(encoded).items()}
            ),
            "zeros": many(lambda: [torch.zeros(shape, dtype=dtype) for shape, dtype in shapes]),
        },
        repetitions=3 if quick else 61,
    )
    micros = {name: 1e6 * time / calls for name, time in seconds.items()}
    title = f"collate {_TOKENS:,} tokens, {_SEGMENTS} segments"
    faster = min(("lists", "arrays"), key=lambda name: micros[name])
    peers = {
        "lists": "DataCollatorWithFlattening, lists",
        "arrays": "DataCollatorWithFlattening, arrays",
    }
    return [
        *(
            Row(
                title,
                "µs",
                micros["ours"],
                peers[name],
                micros[name],
                True,
                5 if name == faster else None,
            )
            for name in peers
        ),
        Row(title, "µs", micros["ours"], f"{swift_name}, to tensors", micros["tensors"], True),
        Row(title, "µs", micros["ours"], f"{swift_name}, lists only", micros["swift"], True, 20),
        Row(title, "µs", micros["ours"], "torch.zeros (memory)", micros["zeros"], True),
        *(
            Row(f"{title}, NumPy", "µs", micros["numpy"], peers[name], micros[name], True)
            for name in peers
        ),
        Row(
            f"{title}, NumPy",
            "µs",
            micros["numpy"],
            f"{swift_name}, to tensors",
            micros["tensors"],
            True,
        ),
        Row(
            f"{title}, NumPy",
            "µs",
            micros["numpy"],
            f"{swift_name}, lists only",
            micros["swift"],
            True,
        ),
    ]


def _compare(ours: dict[str, object], theirs: dict[str, object]) -> None:
    """Everything that theirs holds, ours holds too, equal in value and dtype; ours may hold more."""
    for key, other in theirs.items():
        value = ours[key]
        if isinstance(value, torch.Tensor):
            assert isinstance(other, torch.Tensor)
            assert value.dtype == other.dtype, key
            assert torch.equal(value, other), key
        else:
            assert value == other, key


if __name__ == "__main__":
    main_of(measure, __doc__)
