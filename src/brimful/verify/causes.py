"""The likely cause of a leak, found by experiment: which change of the batch makes it stop?

::

    leak ──► use_cache=False          stops?  then it was the cache
         ──► no attention_mask        stops?  then it was the mask
         ──► right position_ids       stops?  then it was the positions (or the missing text row of mRoPE)
         ──► right boundaries         stops?  then they were missing or wrong; refused? then kernels are missing
         ──► all of them              stops?  then those together; if not, the model itself does not keep samples apart
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from brimful.errors import BrimfulError
from brimful.typing import Int64Array
from brimful.verify.attention import first_sentence
from brimful.verify.checks.isolation import Leak, compare, other_tokens
from brimful.verify.checks.positions import explain_positions, position_rows
from brimful.verify.layout import Collated
from brimful.verify.modes import in_float32
from brimful.verify.subject import Subject

__all__ = ["explain_leak", "explain_refusal", "is_recurrent"]

_ONE_PER_ROW = "one sample per row (no packing) with this model"
Repair = Callable[[dict[str, Any], Collated], dict[str, Any]]


def explain_leak(subject: Subject, leak: Leak) -> tuple[str, str]:
    """Cause and way out of a failed isolation check, in the mode and precision in which it failed."""
    with in_float32(subject.model) if leak.precise else contextlib.nullcontext():
        return _explain(subject, leak)


def _explain(subject: Subject, leak: Leak) -> tuple[str, str]:
    repairs = _repairs(subject)
    refusal = ""
    attempts = [[name] for name in repairs] + [list(repairs)[: stop + 1] for stop in range(1, len(repairs))]
    for names in attempts:
        try:
            stopped = _stops(subject, leak, [repairs[name] for name in names])
        except BrimfulError:
            raise
        except Exception as error:  # a model may refuse a batch in any way it likes
            refusal = first_sentence(error)
            continue
        if stopped:
            texts = [_words(subject, name) for name in names]
            return "; ".join(cause for cause, _ in texts), "; ".join(way_out for _, way_out in texts)
    return _model_does_it(subject, leak, refusal)


def explain_refusal(subject: Subject, message: str) -> str:
    """The nearest setting that works, where the model refuses the batch."""
    if is_recurrent(subject) or "packed sequences" in message:
        return (
            f"install causal-conv1d with flash-linear-attention (gated delta nets) or mamba-ssm (Mamba) and run on a "
            f"GPU, or {_ONE_PER_ROW}"
        )
    return "another attention implementation, or another device"


def is_recurrent(subject: Subject) -> bool:
    """Whether layers carry a state or a convolution along the row."""
    kinds = " ".join(map(str, getattr(subject.config, "layer_types", None) or ()))
    recurrent = ("linear_attention", "conv", "mamba", "recurrent")
    if any(kind in kinds for kind in recurrent):
        return True
    names = {type(module).__name__.lower() for module in subject.model.modules()}
    return any(word in name for name in names for word in ("mamba", "deltanet", "rwkv", "shortconv"))


def _stops(subject: Subject, leak: Leak, repairs: list[Repair]) -> bool:
    ids = other_tokens(subject, leak.changed)
    assert ids is not None
    batches = [subject.batch, subject.collate({leak.changed: ids})]
    logits = []
    for batch in batches:
        kwargs = dict(batch.kwargs)
        for repair in repairs:
            kwargs = repair(kwargs, batch)
        logits.append(subject.logits(kwargs))
    after = compare(logits[0], logits[1], batches[0], batches[1], leak.changed, leak.limit)
    return after.size <= leak.limit < after.own


def _repairs(subject: Subject) -> dict[str, Repair]:
    """Changes that are worth trying with this batch, the most likely first."""
    kwargs = subject.batch.kwargs
    found: dict[str, Repair] = {}
    if kwargs.get("attention_mask") is not None:
        found["mask"] = lambda old, batch: {key: value for key, value in old.items() if key != "attention_mask"}
    if subject.accepts("use_cache") and kwargs.get("use_cache") is not False:
        found["cache"] = lambda old, batch: {**old, "use_cache": False}
    if subject.accepts("position_ids"):
        found["positions"] = lambda old, batch: {**old, "position_ids": _right_positions(subject, batch)}
    if len(subject.batch.ids) == 1:
        found["boundaries"] = lambda old, batch: {**old, **_right_boundaries(subject, batch)}
    return found


def _words(subject: Subject, name: str) -> tuple[str, str]:
    if name == "mask":
        return (
            "mask present: with an attention_mask Transformers ignores positions and boundaries",
            "leave attention_mask out of packed batches",
        )
    if name == "cache":
        return (
            "cache: with use_cache (the default of most configurations) Transformers makes an empty cache and no "
            "longer looks for packed samples",
            "put use_cache=False into the batch, or set model.config.use_cache = False",
        )
    if name == "positions":
        if _has_mrope(subject):
            return (
                "mRoPE: boundaries are read from a row of text positions, and the batch has none",
                "position_ids [4, B, T]: text positions first, then time, height and width, each sample's own",
            )
        return explain_positions(subject) or (
            "position_ids: with those of the samples alone it stops",
            f"number every sample from {subject.position_start}",
        )
    if is_recurrent(subject):
        return (
            "state leak: recurrent layers carry their state into the next sample, as seq_idx and cu_seq_lens are "
            "missing or wrong",
            "emit seq_idx int32[1, T] and cu_seq_lens_q (DataCollatorWithFlattening: return_seq_idx=True, "
            "return_flash_attn_kwargs=True)",
        )
    return (
        "cu_seq_lens are missing or wrong, and this kernel reads nothing else",
        "emit cu_seq_lens_q, cu_seq_lens_k, max_length_q and max_length_k",
    )


def _model_does_it(subject: Subject, leak: Leak, refusal: str) -> tuple[str, str]:
    name = type(subject.model).__name__
    if is_recurrent(subject):
        if refusal:
            return (
                f"state leak: without seq_idx and cu_seq_lens the recurrent layers run on through the row; given "
                f"them, the model refuses here: {refusal}",
                f"emit seq_idx and cu_seq_lens, and {explain_refusal(subject, refusal)}",
            )
        return (
            f"state leak: {name} ignores seq_idx and cu_seq_lens here, so its recurrent layers carry their state into the "
            f"next sample",
            f"{_ONE_PER_ROW}; no batch repairs this here",
        )
    if _stops_with_a_block_mask(subject, leak):
        return (
            f"{name} builds its attention mask without position_ids, so nothing tells it where samples begin",
            f"flash attention with cu_seq_lens on a GPU; a block-diagonal [B, 1, T, T] attention_mask (which replaces "
            f"sliding windows, if there are any); or {_ONE_PER_ROW}",
        )
    return (
        f"{name} does not keep samples apart whatever the batch says" + (f" ({refusal})" if refusal else ""),
        _ONE_PER_ROW,
    )


def _stops_with_a_block_mask(subject: Subject, leak: Leak) -> bool:
    def block(old: dict[str, Any], batch: Collated) -> dict[str, Any]:
        numbers = torch.from_numpy(_segment_numbers(batch)).to(subject.device)
        same = numbers[:, :, None] == numbers[:, None, :]
        allowed = same & torch.ones_like(same).tril()
        dtype = next(subject.model.parameters()).dtype
        mask = torch.zeros(allowed.shape, dtype=dtype, device=subject.device)
        return {**old, "attention_mask": mask.masked_fill(~allowed, torch.finfo(dtype).min)[:, None]}

    try:
        return _stops(subject, leak, [block])
    except Exception:  # an experiment: a model that refuses the mask has answered
        return False


def _segment_numbers(batch: Collated) -> Int64Array:
    """``int64[B, T]``: which sample a token belongs to; each run of padding has a number of its own."""
    numbers = np.full(batch.ids.shape, -1, dtype=np.int64)
    for index, place in enumerate(batch.places):
        if place is not None:
            numbers[place.row, place.start : place.stop] = index
    begins = batch.free.copy()
    begins[:, 1:] &= ~batch.free[:, :-1]
    runs = len(batch.places) + begins.cumsum(axis=None).reshape(begins.shape)
    return np.where(batch.free, runs, numbers)


def _starts(batch: Collated) -> Int64Array:
    """``int64[B, T]``: column at which the token's segment begins."""
    numbers = _segment_numbers(batch)
    begins = np.ones(numbers.shape, dtype=bool)
    begins[:, 1:] = numbers[:, 1:] != numbers[:, :-1]
    columns = np.broadcast_to(np.arange(numbers.shape[1]), numbers.shape)
    return np.maximum.accumulate(np.where(begins, columns, 0), axis=1)


def _has_mrope(subject: Subject) -> bool:
    rows = position_rows(subject)
    if rows is not None and len(rows) >= 3:
        return True
    for config in (subject.config, getattr(subject.config, "text_config", None)):
        rope = getattr(config, "rope_parameters", None) or {}
        if isinstance(rope, dict) and "mrope_section" in rope:
            return True
    return False


def _right_positions(subject: Subject, batch: Collated) -> torch.Tensor:
    columns = np.broadcast_to(np.arange(batch.ids.shape[1]), batch.ids.shape)
    text = columns - _starts(batch) + subject.position_start
    rows = [text]
    if _has_mrope(subject):
        media = np.stack([text] * 3)
        for segment, place in zip(subject.case.segments, batch.places, strict=True):
            if place is not None and segment.positions is not None:
                media[:, place.row, place.start : place.stop] = segment.positions[-3:]
        rows = [text, *media]
    found = torch.from_numpy(np.stack(rows)).to(subject.device)
    return found if len(found) > 1 else found[0]


def _right_boundaries(subject: Subject, batch: Collated) -> dict[str, Any]:
    starts = np.unique(_starts(batch)[0])
    ends = torch.from_numpy(np.append(starts, batch.ids.shape[1]).astype(np.int32)).to(subject.device)
    longest = int((ends[1:] - ends[:-1]).max())
    numbers = np.searchsorted(starts, _starts(batch)).astype(np.int32)
    given = {
        "cu_seq_lens_q": ends,
        "cu_seq_lens_k": ends,
        "max_length_q": longest,
        "max_length_k": longest,
        "seq_idx": torch.from_numpy(numbers).to(subject.device),
    }
    return {key: value for key, value in given.items() if subject.accepts(key)}
