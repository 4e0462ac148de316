"""Cause of a leak, found by experiment: the change of the batch that makes it stop.

::

    leak ──► use_cache=False          stops?  then it was the cache
         ──► no attention_mask        stops?  then it was the mask
         ──► right position_ids       stops?  then it was the positions (or the missing text row of mRoPE)
         ──► right boundaries         stops?  then they were missing or wrong; refused? then kernels are missing
         ──► all of them              stops?  then the combination; if not, the model does not keep samples apart
"""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import torch

from brimful.base.typing import Int64Array
from brimful.errors import BrimfulError
from brimful.verify.checks.isolation import Leak, measure_leaks
from brimful.verify.checks.positions import check_positions, position_rows
from brimful.verify.modes import experiment, first_sentence, in_float32
from brimful.verify.reference_samples import Change
from brimful.verify.setup import PackingSetup
from brimful.verify.verified_batch import CollatedBatch
from brimful.verify.verify_report import Diagnosis

_ONE_PER_ROW = "one sample per row (no packing) with this model"

_RECURRENT_LAYER_TYPES = ("linear_attention", "conv", "mamba", "recurrent")
_RECURRENT_MODULES = ("mamba", "deltanet", "rwkv", "shortconv")

_Repair: TypeAlias = Callable[[CollatedBatch], dict[str, Any]]
"""From a batch to the keyword arguments of the model that a repair replaces."""


def diagnose_leak(setup: PackingSetup, leak: Leak) -> Diagnosis:
    """Find cause and way out of a failed isolation check, in the mode and precision in which it failed."""
    with in_float32(setup.model) if leak.precise else contextlib.nullcontext():
        repairs = _repairs(setup)
        refusal = ""
        # Each repair alone first. Only if none is enough, the first two, three, … are tried together.
        for attempt in [[repair] for repair in repairs] + [repairs[:count] for count in range(2, len(repairs) + 1)]:
            try:
                stops = _stops(setup, leak, [repair for repair, _ in attempt])
            except BrimfulError:
                raise
            except Exception as error:  # a model may refuse a batch in any way it likes
                refusal = first_sentence(error)
                continue
            if stops:
                causes, ways_out = zip(*[diagnosis for _, diagnosis in attempt], strict=True)
                return Diagnosis("; ".join(causes), "; ".join(ways_out))
        return _diagnosis_of_model(setup, leak, refusal)


def way_out_of_refusal(setup: PackingSetup, message: str) -> str:
    """Name the nearest setting that works, if the model refuses the batch with this message."""
    if is_recurrent(setup) or "packed sequences" in message:
        return (
            f"install causal-conv1d with flash-linear-attention (gated delta nets) or mamba-ssm (Mamba) and run on a "
            f"GPU, or {_ONE_PER_ROW}"
        )
    return "another attention implementation, or another device"


def is_recurrent(setup: PackingSetup) -> bool:
    """Return true if layers carry a state or a convolution along the row."""
    layer_types = " ".join(map(str, getattr(setup.config, "layer_types", None) or ()))
    modules = " ".join({type(module).__name__.lower() for module in setup.model.modules()})
    return any(word in layer_types for word in _RECURRENT_LAYER_TYPES) or any(
        word in modules for word in _RECURRENT_MODULES
    )


def _stops(setup: PackingSetup, leak: Leak, repairs: list[_Repair]) -> bool:
    """Return true if the leak is gone in the repaired batch."""

    def repaired(change: Change) -> CollatedBatch:
        batch = setup.collate(change)
        kwargs = dict(batch.kwargs)
        for repair in repairs:
            kwargs |= repair(batch)
        return replace(batch, kwargs=kwargs)

    (repaired_leak,) = measure_leaks(setup, repaired, [leak.change])
    # The changed sample must still move: a batch in which nothing does would look repaired.
    return repaired_leak.size <= leak.limit < repaired_leak.own


def _repairs(setup: PackingSetup) -> list[tuple[_Repair, Diagnosis]]:
    """Return the repairs that are worth trying, likeliest first, with the cause if one stops the leak."""
    kwargs = setup.batch.kwargs
    repairs: list[tuple[_Repair, Diagnosis]] = []
    if kwargs.get("attention_mask") is not None:
        diagnosis = Diagnosis(
            "mask present: with an attention_mask Transformers ignores positions and boundaries",
            "leave attention_mask out of packed batches",
        )
        repairs.append((lambda batch: {"attention_mask": None}, diagnosis))
    if setup.accepts("use_cache") and kwargs.get("use_cache") is not False:
        diagnosis = Diagnosis(
            "cache: with use_cache (the default of most configurations) Transformers makes an empty cache and no "
            "longer looks for packed samples",
            "put use_cache=False into the batch, or set model.config.use_cache = False",
        )
        repairs.append((lambda batch: {"use_cache": False}, diagnosis))
    if setup.accepts("position_ids"):
        finding = check_positions(setup)
        diagnosis = Diagnosis(
            finding.cause or "position_ids: with the samples' own positions it stops",
            finding.way_out or f"number every sample from {setup.position_start}",
        )
        if _has_mrope(setup):
            diagnosis = Diagnosis(
                "mRoPE: boundaries are read from a row of text positions, and the batch has none",
                "position_ids [4, B, T]: text positions first, then time, height and width, each sample's own",
            )
        repairs.append((lambda batch: {"position_ids": _right_positions(setup, batch)}, diagnosis))
    if len(setup.batch.ids) == 1:
        diagnosis = Diagnosis(
            "cu_seq_lens are missing or wrong, and this kernel reads nothing else",
            "emit cu_seq_lens_q, cu_seq_lens_k, max_length_q and max_length_k",
        )
        if is_recurrent(setup):
            diagnosis = Diagnosis(
                "state leak: recurrent layers carry their state into the next sample, as seq_idx and cu_seq_lens are "
                "missing or wrong",
                "emit seq_idx int32[1, T] and cu_seq_lens_q (DataCollatorWithFlattening: return_seq_idx=True, "
                "return_flash_attn_kwargs=True)",
            )
        repairs.append((lambda batch: _right_boundaries(setup, batch), diagnosis))
    return repairs


def _diagnosis_of_model(setup: PackingSetup, leak: Leak, refusal: str) -> Diagnosis:
    """Return the fault of the model if no repair of the batch stopped the leak."""
    name = type(setup.model).__name__
    if is_recurrent(setup):
        if refusal:
            return Diagnosis(
                f"state leak: without seq_idx and cu_seq_lens the recurrent layers run on through the row; given "
                f"them, the model refuses here: {refusal}",
                f"emit seq_idx and cu_seq_lens, and {way_out_of_refusal(setup, refusal)}",
            )
        return Diagnosis(
            f"state leak: {name} ignores seq_idx and cu_seq_lens here, so its recurrent layers carry their state into the "
            f"next sample",
            f"{_ONE_PER_ROW}; no batch repairs this here",
        )
    # A mask of all pairs leaves the model nothing to compute: if it stops the leak, the model's own mask is wrong.
    if experiment(lambda: _stops(setup, leak, [lambda batch: {"attention_mask": _block_mask(setup, batch)}])):
        return Diagnosis(
            f"{name} builds its attention mask without position_ids, so nothing tells it where samples begin",
            f"flash attention with cu_seq_lens on a GPU; a block-diagonal [B, 1, T, T] attention_mask (which replaces "
            f"sliding windows, if any); or {_ONE_PER_ROW}",
        )
    return Diagnosis(
        f"{name} does not keep samples apart with any batch" + (f" ({refusal})" if refusal else ""),
        _ONE_PER_ROW,
    )


def _block_mask(setup: PackingSetup, batch: CollatedBatch) -> torch.Tensor:
    """Return a mask by which each token sees only its own sample's earlier tokens: ``[B, 1, T, T]``."""
    starts = torch.from_numpy(_segment_starts(batch)).to(setup.device)
    is_visible = (starts[:, :, None] == starts[:, None]).tril()
    mask = torch.zeros(is_visible.shape, dtype=setup.dtype, device=setup.device)
    return mask.masked_fill(~is_visible, torch.finfo(setup.dtype).min)[:, None]


def _segment_starts(batch: CollatedBatch) -> Int64Array:
    """Return ``int64[B, T]``: column at which the token's sample begins, or its run of padding."""
    is_start = batch.free.copy()
    is_start[:, 1:] &= ~batch.free[:, :-1]
    for _, place in batch.located:
        is_start[place.row, place.start] = True
    # Starts rise along a row, so the largest start up to a token is its own segment's.
    return np.maximum.accumulate(np.where(is_start, np.arange(is_start.shape[1]), 0), axis=1)


def _has_mrope(setup: PackingSetup) -> bool:
    """Return true if the batch has several rows of positions, or the model is configured for them."""
    rows = position_rows(setup)
    if rows is not None and len(rows) >= 3:
        return True
    configs = (setup.config, getattr(setup.config, "text_config", None))
    ropes = [getattr(config, "rope_parameters", None) for config in configs]
    return any(isinstance(rope, dict) and "mrope_section" in rope for rope in ropes)


def _right_positions(setup: PackingSetup, batch: CollatedBatch) -> torch.Tensor:
    """Return ``position_ids`` that number every sample as if alone: ``[B, T]``, or ``[4, B, T]`` for mRoPE."""
    text = np.arange(batch.ids.shape[1]) - _segment_starts(batch) + setup.position_start
    if not _has_mrope(setup):
        return torch.from_numpy(text).to(setup.device)
    # Text is numbered alike in all rows; samples with media bring their own time, height and width.
    media = np.stack([text] * 3)
    for index, place in batch.located:
        positions = setup.samples.segments[index].positions
        if positions is not None:
            media[:, place.row, place.start : place.stop] = positions[-3:]
    return torch.from_numpy(np.stack([text, *media])).to(setup.device)


def _right_boundaries(setup: PackingSetup, batch: CollatedBatch) -> dict[str, Any]:
    """Return the boundaries of a batch of one row, in every form that the model takes."""
    segment_starts = _segment_starts(batch)
    starts = np.unique(segment_starts[0])
    offsets = torch.from_numpy(np.append(starts, batch.ids.shape[1]).astype(np.int32)).to(setup.device)
    longest = int(offsets.diff().max())
    numbers = np.searchsorted(starts, segment_starts).astype(np.int32)
    boundaries = {
        "cu_seq_lens_q": offsets,
        "cu_seq_lens_k": offsets,
        "max_length_q": longest,
        "max_length_k": longest,
        "seq_idx": torch.from_numpy(numbers).to(setup.device),
    }
    return {key: value for key, value in boundaries.items() if setup.accepts(key)}
