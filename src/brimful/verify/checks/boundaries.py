"""Do the boundaries that kernels are given lie exactly between the samples?"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from brimful.messages import counted
from brimful.typing import Int64Array
from brimful.verify.report import Finding, Status
from brimful.verify.subject import Subject

__all__ = ["BOUNDARY_KEYS", "check_boundaries"]

BOUNDARY_KEYS = ("cu_seq_lens_q", "cu_seq_lens_k", "cu_seqlens", "cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_k")
_LONGEST_KEYS = ("max_length_q", "max_length_k", "max_seqlen", "max_seqlen_q", "max_seqlen_kv", "max_seqlen_k")


def check_boundaries(subject: Subject) -> Finding:
    """Each sample begins at a boundary, none lies inside a sample, and ``seq_idx`` changes exactly there.

    This sees what a CPU run cannot: SDPA and eager attention go by positions, and only varlen kernels read these.
    """
    kwargs, batch = subject.batch.kwargs, subject.batch
    found = [key for key in BOUNDARY_KEYS if kwargs.get(key) is not None]
    seq_idx = kwargs.get("seq_idx")
    if not found and seq_idx is None:
        return Finding("boundaries", Status.PASS, detail="the batch has none; positions alone mark the samples")
    width = batch.ids.shape[1]
    places = sorted(
        (place.row * width + place.start, place.row * width + place.stop) for place in batch.places if place
    )
    for key in found:
        values = np.asarray(kwargs[key].cpu() if hasattr(kwargs[key], "cpu") else kwargs[key]).reshape(-1)
        if problem := _problem(values.astype(np.int64), places, batch.ids.size):
            return Finding(
                "boundaries",
                Status.FAIL,
                detail=f"{key} = {_short(values)}; {problem[0]}",
                cause=problem[1],
                way_out="align before packing, so that the aligned length is the planned one; pass the padded "
                "boundaries under their own key",
            )
        if values.dtype != np.int32:
            return Finding(
                "boundaries",
                Status.FAIL,
                detail=f"{key} is {values.dtype}",
                cause="flash attention reads 32-bit boundaries",
                way_out=f"make {key} torch.int32",
            )
    longest = max((stop - start for start, stop in places), default=0)
    for key in _LONGEST_KEYS:
        if kwargs.get(key) is not None and int(kwargs[key]) < longest:
            return Finding(
                "boundaries",
                Status.FAIL,
                detail=f"{key} is {int(kwargs[key])}, the longest sample has {longest} tokens",
                cause="the kernel never computes the end of the longest sample",
                way_out=f"{key} is the longest difference of the boundaries",
            )
    if seq_idx is not None:
        flat = np.broadcast_to(seq_idx.cpu().numpy(), batch.ids.shape).reshape(-1)
        inside = all(len(set(flat[start:stop].tolist())) == 1 for start, stop in places)
        apart = all(flat[one[1] - 1] != flat[other[0]] for one, other in pairwise(places))
        if not (inside and apart):
            return Finding(
                "boundaries",
                Status.FAIL,
                detail="seq_idx does not change exactly where samples begin",
                cause=_seq_idx_cause(flat, places),
                way_out="seq_idx is the number of the sample that each token belongs to, int32[1, T]",
            )
    return Finding("boundaries", Status.PASS, detail=", ".join([*found, *(["seq_idx"] if seq_idx is not None else [])]))


def _seq_idx_cause(flat: Int64Array, places: list[tuple[int, int]]) -> str:
    carried = "recurrent layers carry their state from one sample into the next, or lose it inside one"
    changes = 1 + np.flatnonzero(np.diff(flat))
    away = changes[: len(places) - 1] - np.array([start for start, _ in places[1:]][: len(changes)])
    if len(changes) >= len(places) - 1 > 0 and len(np.unique(away)) == 1 and away[0] != 0:
        side = "behind" if away[0] > 0 else "before"
        return f"seq_idx off by {_number(away[0])}: it changes {_tokens(away[0])} {side} every beginning; {carried}"
    return carried


def _problem(values: Int64Array, places: list[tuple[int, int]], total: int) -> tuple[str, str] | None:
    inner = set(values.tolist())
    if (np.diff(values) < 0).any() or values[0] != 0:
        return "they must rise from 0", "the boundaries are no running sum of lengths"
    for start, stop in places:
        cut = sorted(value for value in inner if start < value < stop)
        if not cut and start in inner:
            continue
        found = (
            f"a boundary at {cut[0]} cuts the sample in [{start}, {stop}) of {stop - start} tokens"
            if cut
            else f"the sample in [{start}, {stop}) does not begin at a boundary"
        )
        return found, _pattern(values, places)
    if values[-1] != total:
        return (
            f"they end at {values[-1]} and the row has {total} tokens",
            "padding at the end is in no segment: kernels leave it undefined",
        )
    return None


def _pattern(values: Int64Array, places: list[tuple[int, int]]) -> str:
    """Why boundaries lie elsewhere, by how far each one lies from the beginning of its sample."""
    begins = np.array([start for start, _ in places])
    lengths = np.array([stop - start for start, stop in places])
    given = np.diff(values)[: len(places)]
    if len(values) >= len(places) and len(places) > 1:
        away = values[1 : len(places)] - begins[1:]
        if len(np.unique(away)) == 1 and away[0] != 0:
            side = "behind" if away[0] > 0 else "before"
            return (
                f"boundaries off by {_number(away[0])}: every one lies {_tokens(away[0])} {side} the beginning of its "
                f"sample"
            )
    if len(given) == len(places):
        stretched = len(values) - 1 == len(places)  # the last one then also holds what is left of the row
        short = (lengths - given)[: -1 if stretched else None]
        if len(short) and len(np.unique(short)) == 1 and short[0] != 0:
            return (
                f"lengths off by {_number(short[0])}: every sample is given to the kernel with {_tokens(short[0])} too "
                f"{'few' if short[0] > 0 else 'many'} (lengths of shifted labels, or without the token at the end)"
            )
        for multiple in (128, 64, 32, 16, 8, 4, 2):
            if any(
                np.array_equal(given, rounded * multiple) for rounded in (lengths // multiple, -(-lengths // multiple))
            ):
                first = int(np.flatnonzero(given != lengths)[0])
                return (
                    f"context-parallel rounding: {lengths[first]} tokens are given to the kernel as {given[first]}, a "
                    f"multiple of {multiple}"
                )
    return "the lengths behind the boundaries are not those of the samples (another batch, the whole row, or an order)"


def _number(by: int) -> str:
    return "one" if abs(by) == 1 else str(abs(int(by)))


def _tokens(by: int) -> str:
    return counted(abs(int(by)), "token")


def _short(values: np.ndarray) -> str:
    shown = values[:8].tolist()
    return f"{shown[:-1]}…{values[-1]}" if len(values) > 8 else str(shown)
