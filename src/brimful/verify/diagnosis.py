"""Cause of a failure, found by experiment: the change of the batch that makes a leak stop, or a
difference vanish.

::

    leak ──► use_cache=False          stops?  then it was the cache
         ──► no attention_mask        stops?  then it was the mask
         ──► right position_ids       stops?  then it was the positions (or the missing text row of mRoPE)
         ──► right boundaries         stops?  then they were missing or wrong; refused? then kernels are missing
         ──► all of them              stops?  then the combination; if not, the model does not keep samples apart

    numbers that differ, though no sample sees another
         ──► the same batch, another seed        moves?    then the model is random
         ──► everything in float32               right?    then it is rounding, if a row for each sample rounds too,
                                                           otherwise a kernel of low precision
         ──► a row for each sample               differs?  then it is the model, and not the packing
"""

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import torch

from brimful.base.typing import Int64Array
from brimful.doctor.probing.modes import LOW_PRECISIONS, experiment, first_sentence, in_float32
from brimful.errors import BrimfulError
from brimful.verify.checks.boundaries import check_boundaries
from brimful.verify.checks.isolation import Leak, measure_leaks, movement_in_rows
from brimful.verify.checks.parity import check_parity, check_weights
from brimful.verify.checks.positions import check_positions, position_rows
from brimful.verify.collated_batch import CollatedBatch
from brimful.verify.setup import PackingSetup
from brimful.verify.verify_report import CheckResult, Diagnosis, joined

_ONE_PER_ROW = "one sample per row (no packing) with this model"

_RECURRENT_WORDS = ("linear_attention", "mamba", "recurrent", "deltanet", "rwkv", "shortconv")
"""Words in types of layers and in lower-case names of modules that carry a state or a convolution.
"""

_Repair: TypeAlias = Callable[[CollatedBatch], dict[str, Any]]
"""From a batch to the keyword arguments of the model that a repair replaces."""

_IN_ROWS_TOO = Diagnosis(
    "not the packing: with a row for each sample the numbers also differ from a sample alone "
    "(padding, or what the model shares in a batch)",
    "make the model independent of what else is in the batch",
)

_IN_PACKS_ONLY = Diagnosis(
    "unknown: samples are apart, a row for each is right, and in packed rows the numbers differ "
    "(another kernel)",
    "another attention implementation",
)

_RANDOM = Diagnosis(
    "randomness: the same batch gives other logits with another seed (dropout that stays on, or "
    "noise), so two runs differ with and without packing",
    "switch the randomness off where the model is not in training mode (training=self.training)",
)

_NO_ROWS = Diagnosis(
    "unknown: samples are apart, and a row for each, which would tell packing from the model, is "
    "refused",
    "another attention implementation",
)

_NO_FLOAT32 = Diagnosis(
    "unknown: samples are apart, and float32, which would tell rounding from a fault, cannot run "
    "here",
    "verify the same collator with sdpa in float32",
)

_ROUNDING_FACTOR = 4
"""Rounding in packed rows that passes ÷ rounding with a row for each sample."""


def diagnose_leak(setup: PackingSetup, leak: Leak) -> Diagnosis:
    """Find cause and way out of a failed isolation check, in the mode and precision in which it
    failed. What a batch of trees says is compared with the samples, pair by pair.
    """
    if setup.samples.has_trees:
        return _diagnosis_in_trees(setup) or Diagnosis(
            f"the attention: {type(setup.model).__name__} does not see what tree_in and tree_out say",
            "PackCollator with use_tree_attention(model), or masks_of(batch, model.config)",
        )
    with in_float32(setup.model) if leak.precise else contextlib.nullcontext():
        repairs = _repairs(setup)
        refusal = ""
        # Each repair alone first. Only if none is enough, the first two, three, … are tried
        # together.
        for attempt in [[repair] for repair in repairs] + [
            repairs[:count] for count in range(2, len(repairs) + 1)
        ]:
            try:
                stops = _stops(setup, leak, [repair for repair, _ in attempt])
            except BrimfulError:
                raise
            except Exception as error:  # a model may refuse a batch in any way it likes
                refusal = first_sentence(error)
                continue
            if stops:
                return _joined([diagnosis for _, diagnosis in attempt])
        return _diagnosis_of_model(setup, leak, refusal)


def way_out_of_refusal(setup: PackingSetup, message: str) -> str:
    """Name the nearest setting that works, if the model refuses the batch with this message."""
    if is_recurrent(setup) or "packed sequences" in message:
        return (
            "install causal-conv1d with flash-linear-attention (gated delta nets) or mamba-ssm "
            f"(Mamba) and run on a GPU, or {_ONE_PER_ROW}"
        )
    return "another attention implementation, or another device"


def is_recurrent(setup: PackingSetup) -> bool:
    """Return true if layers carry a state or a convolution along the row."""
    layer_types = " ".join(map(str, getattr(setup.config, "layer_types", None) or ()))
    modules = " ".join({type(module).__name__.lower() for module in setup.model.modules()})
    return any(word in f"{layer_types} {modules}" for word in _RECURRENT_WORDS)


def _stops(setup: PackingSetup, leak: Leak, repairs: list[_Repair]) -> bool:
    """Return true if the leak is gone in the repaired batch."""

    (repaired_leak,) = measure_leaks(
        setup, lambda change: _repaired(setup.collate(change), repairs), [leak.change]
    )
    repaired_leak = repaired_leak._replace(limit=leak.limit)
    # The changed sample must still move: a batch in which nothing does would look repaired.
    return repaired_leak.size <= leak.limit < repaired_leak.own and not repaired_leak.is_cut


def _repaired(batch: CollatedBatch, repairs: Iterable[_Repair]) -> CollatedBatch:
    """Return a batch with all of these repairs."""
    kwargs = dict(batch.kwargs)
    for repair in repairs:
        kwargs |= repair(batch)
    return replace(batch, kwargs=kwargs)


def _repairs(setup: PackingSetup) -> list[tuple[_Repair, Diagnosis]]:
    """Return the repairs that are worth trying, likeliest first, with the cause if one stops the
    leak.
    """
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
            "cache: with use_cache (the default of most configurations) Transformers makes an "
            "empty cache and no longer looks for packed samples",
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
                "position_ids [4, B, T]: text positions first, then time, height and width, each "
                "sample's own",
            )
        repairs.append((lambda batch: {"position_ids": _right_positions(setup, batch)}, diagnosis))
    if len(setup.batch.ids) == 1:
        diagnosis = Diagnosis(
            "cu_seq_lens are missing or wrong, and this kernel reads nothing else",
            "emit cu_seq_lens_q, cu_seq_lens_k, max_length_q and max_length_k",
        )
        if is_recurrent(setup):
            diagnosis = Diagnosis(
                "state leak: recurrent layers carry their state into the next sample, as seq_idx "
                "and cu_seq_lens are missing or wrong",
                "emit seq_idx int32[1, T] and cu_seq_lens_q (DataCollatorWithFlattening: "
                "return_seq_idx=True, return_flash_attn_kwargs=True)",
            )
        repairs.append((lambda batch: _right_boundaries(setup, batch), diagnosis))
    return repairs


def _joined(diagnoses: list[Diagnosis]) -> Diagnosis:
    """Return several causes and ways out as one."""
    causes, ways_out = zip(*diagnoses, strict=True)
    return Diagnosis("; ".join(causes), "; ".join(ways_out))


def _diagnosis_in_trees(setup: PackingSetup) -> Diagnosis | None:
    """Return what a batch of trees says wrongly about visible tokens and depths; None if it is
    right.
    """
    findings = [check_boundaries(setup), check_positions(setup)]
    diagnoses = [Diagnosis(item.cause, item.way_out) for item in findings if item.failed]
    return _joined(diagnoses) if diagnoses else None


def _diagnosis_of_model(setup: PackingSetup, leak: Leak, refusal: str) -> Diagnosis:
    """Return the fault of the model if no repair of the batch stopped the leak."""
    name = type(setup.model).__name__
    if is_recurrent(setup):
        if refusal:
            return Diagnosis(
                "state leak: without seq_idx and cu_seq_lens the recurrent layers run on through "
                f"the row; given them, the model refuses here: {refusal}",
                f"emit seq_idx and cu_seq_lens, and {way_out_of_refusal(setup, refusal)}",
            )
        return Diagnosis(
            f"state leak: {name} ignores seq_idx and cu_seq_lens here, so its recurrent layers "
            "carry their state into the next sample",
            f"{_ONE_PER_ROW}; no batch repairs this here",
        )
    # A mask of all pairs leaves the model nothing to compute: if it stops the leak, the model's own
    # mask is wrong.
    if experiment(
        lambda: _stops(setup, leak, [lambda batch: {"attention_mask": _block_mask(setup, batch)}])
    ):
        return Diagnosis(
            f"{name} builds its attention mask without position_ids, so nothing tells it where "
            "samples begin",
            "flash attention with cu_seq_lens on a GPU; a block-diagonal [B, 1, T, T] "
            f"attention_mask (which replaces sliding windows, if any); or {_ONE_PER_ROW}",
        )
    return Diagnosis(
        f"{name} does not keep samples apart with any batch" + (f" ({refusal})" if refusal else ""),
        _ONE_PER_ROW,
    )


def _block_mask(setup: PackingSetup, batch: CollatedBatch) -> torch.Tensor:
    """Return a mask by which each token sees only its own sample's earlier tokens:
    ``[B, 1, T, T]``.
    """
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
    """Return true if the batch has several rows of positions, or the model is configured for
    them.
    """
    rows = position_rows(setup)
    if rows is not None and len(rows) >= 3:
        return True
    configs = (setup.config, getattr(setup.config, "text_config", None))
    ropes = [getattr(config, "rope_parameters", None) for config in configs]
    return any(isinstance(rope, dict) and "mrope_section" in rope for rope in ropes)


def _right_positions(setup: PackingSetup, batch: CollatedBatch) -> torch.Tensor:
    """Return ``position_ids`` that number every sample as if alone: ``[B, T]``, or ``[4, B, T]``
    for mRoPE.
    """
    text = np.arange(batch.ids.shape[1]) - _segment_starts(batch) + setup.position_start
    if not _has_mrope(setup):
        return torch.from_numpy(text).to(setup.device)
    # Text is numbered alike in all rows; samples with media bring their own time, height and width.
    rows = np.stack([text] * 4)
    for sample, place in batch.located:
        positions = sample.positions
        if positions is not None:
            rows[(slice(1, None), *place.index)] = positions[-3:]
    return torch.from_numpy(rows).to(setup.device)


def _right_boundaries(setup: PackingSetup, batch: CollatedBatch) -> dict[str, Any]:
    """Return the boundaries of a batch of one row, in every form that the model takes."""
    segment_starts = _segment_starts(batch)
    starts, numbers = np.unique(segment_starts, return_inverse=True)
    offsets = torch.tensor([*starts, batch.ids.shape[1]], dtype=torch.int32, device=setup.device)
    seq_idx = torch.tensor(numbers.reshape(segment_starts.shape), dtype=torch.int32)
    boundaries = {
        **dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), offsets),
        **dict.fromkeys(("max_length_q", "max_length_k"), int(offsets.diff().max())),
        "seq_idx": seq_idx.to(setup.device),
    }
    return {key: value for key, value in boundaries.items() if setup.accepts(key)}


def is_random(setup: PackingSetup) -> bool:
    """Return true if the same batch gives other logits with another seed."""
    with torch.no_grad():
        first, second = (setup.forward(setup.batch.kwargs, seed) for seed in (0, 1))
    return not torch.equal(first, second)


def explain_parity(setup: PackingSetup, findings: list[CheckResult]) -> list[CheckResult]:
    """Return logits, loss, gradients and weights with a cause for each failure; passed if only
    rounding caused it.
    """
    may_round = setup.tolerance is None and setup.dtype in LOW_PRECISIONS

    def unexplained(candidates: Iterable[CheckResult]) -> list[CheckResult]:
        # The cause of a failure of weights may still be rounding.
        return [
            item
            for item in candidates
            if item.failed and (not item.cause or (may_round and item.check == "weights"))
        ]

    failures = unexplained(findings)
    if not failures:
        return findings
    if is_random(setup):
        return _with_diagnosis(findings, _RANDOM)
    if setup.samples.has_trees and any(item.check == "logits" for item in failures):
        tree_diagnosis = _diagnosis_in_trees(setup)
        if tree_diagnosis is not None:
            return _with_diagnosis(findings, tree_diagnosis)
    in_rows = experiment(
        lambda: check_parity(setup, setup.per_sample_reference(), setup.in_rows())[0]
    )
    if in_rows is None:  # a model of packed rows may take one row only
        return _with_diagnosis(findings, _NO_ROWS)
    # Packing is the place of the fault, or the model, if a row for each sample differs as well.
    diagnosis = _IN_ROWS_TOO if any(finding.failed for finding in in_rows) else _IN_PACKS_ONLY
    if not may_round:
        return _with_diagnosis(findings, diagnosis)

    def check_precisely() -> dict[str, CheckResult]:
        with in_float32(setup.model):
            reference = setup.per_sample_reference()
            precise, auxiliary = check_parity(setup, reference, setup.batch)
            if any(finding.check == "weights" for finding in findings):
                precise.append(check_weights(setup, reference, auxiliary))
        return {finding.check: finding for finding in precise}

    precise = experiment(check_precisely)
    if precise is None:  # kernels of low precision only, or no room for the weights
        return _with_diagnosis(findings, _NO_FLOAT32)
    if unexplained(precise.values()):
        return _with_diagnosis(findings, diagnosis)
    # Float32 is right, so only the size remains to be explained: rows of their own show the size of
    # rounding.
    rounding_by_check = {finding.check: finding.measured or 0.0 for finding in in_rows}
    rounds_by_groups = movement_in_rows(setup) > 0
    results = []
    for finding in findings:
        rounding = rounding_by_check.get(finding.check, rounding_by_check["logits"])
        size = finding.measured or 0.0
        if finding in failures and (rounds_by_groups or size <= _ROUNDING_FACTOR * rounding):
            finding = precise[finding.check]
            remark = (
                f"told in float32; rounding in {setup.dtype_name} makes {size:.1e}, and "
                f"{rounding:.1e} with a row for each"
            )
            finding = replace(finding, detail=joined(finding.detail, remark))
        elif finding in failures:
            cause = (
                f"a kernel in {setup.dtype_name}: float32 is right, and a row for each "
                f"sample differs by {rounding:.1e} only"
            )
            way_out = "another attention implementation, or float32"
            finding = replace(finding, cause=cause, way_out=way_out)
        results.append(finding)
    return results


def _with_diagnosis(findings: list[CheckResult], diagnosis: Diagnosis) -> list[CheckResult]:
    """Give the first unexplained failure its cause; the others follow from it."""
    first = next((finding for finding in findings if finding.failed and not finding.cause), None)
    return [
        replace(finding, **diagnosis._asdict()) if finding is first else finding
        for finding in findings
    ]
