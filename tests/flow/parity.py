"""Two ways to one result: packed and alone in a model, two makers of features, ranks in processes."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from brimful.store.shards import assemble_pack

LIMIT = 1e-4
"""Largest difference in fp32; of gradients relative to the largest of the parameter, at least 1."""


def alone_inputs(pack, segment, features):
    """One sample of a pack as a model takes it, without a collator: with types of tokens, of which it makes positions."""
    begin, end = pack.cu_seqlens[segment : segment + 2].tolist()
    ids, mask = pack.input_ids[begin:end], pack.loss_mask[begin:end]
    media = tuple(item for item in pack.attachments if item.segment == segment)
    single = assemble_pack(
        [ids],
        [np.array(mask)],
        [0],
        attachments=[[replace(item, start=item.start - begin, segment=0) for item in media]],
    )
    tensor = torch.tensor(ids[None].astype(np.int64))
    inputs = {"input_ids": tensor, "attention_mask": torch.ones_like(tensor)}
    if media:
        extras = features(single)
        inputs |= {name: torch.from_numpy(array) for one in extras.attached for name, array in one.arrays.items()}
        if extras.rope_positions is not None:
            types = torch.zeros_like(tensor, dtype=torch.int32)
            for item in single.attachments:
                size = item.num_tokens // len(item.runs)
                for run in item.runs:
                    start = item.start + run
                    types[0, start : start + size] = 1 if item.medium.kind.value == "image" else 2
            inputs["mm_token_type_ids"] = types
    return inputs, torch.from_numpy(single.labels)


def assert_packed_is_alone(model, packs, collator, features, tower, *, alone_inputs=alone_inputs):
    """Compare all packs with all their samples; return the number of samples.

    Args:
        tower: beginning of the names of parameters that must have gradients.
        alone_inputs: makes the inputs and labels of a segment, from ``features`` or without.
    """

    def gradients():
        result = {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}
        model.zero_grad()
        return result

    def summed(logits, labels):
        loss = torch.nn.functional.cross_entropy(logits[:-1], labels[1:], reduction="sum")
        loss.backward()
        return float(loss.detach())

    alone, loss = {}, 0.0
    for number, pack in enumerate(packs):
        for segment in range(pack.num_segments):
            inputs, labels = alone_inputs(pack, segment, features)
            logits = model(**inputs, use_cache=False).logits[0]
            alone[number, segment] = logits.detach()
            loss += summed(logits, labels)
    alone_gradients = gradients()
    packed_loss = 0.0
    for number, pack in enumerate(packs):
        batch = collator([pack])
        labels = batch.pop("labels")[0]
        logits = model(**batch).logits[0]
        for segment in range(pack.num_segments):
            begin, end = pack.cu_seqlens[segment : segment + 2].tolist()
            assert (logits[begin:end] - alone[number, segment]).abs().max() < LIMIT
        packed_loss += summed(logits, labels)
    assert packed_loss == pytest.approx(loss, rel=1e-5)
    packed_gradients = gradients()
    assert packed_gradients.keys() == alone_gradients.keys()
    assert any(name.startswith(tower) for name in packed_gradients), sorted(packed_gradients)
    for name, gradient in packed_gradients.items():
        scale = alone_gradients[name].abs().max().clamp(min=1.0)
        assert (gradient - alone_gradients[name]).abs().max() / scale < LIMIT, name
    return len(alone)


def names_of_equal_extras(ours, theirs):
    """Compare what two sources of features give for a pack, bit for bit; return the names of the arrays."""
    assert (ours.rope_positions is None) == (theirs.rope_positions is None)
    if ours.rope_positions is not None:
        assert np.array_equal(ours.rope_positions, theirs.rope_positions)
    assert [item.kind for item in ours.attached] == [item.kind for item in theirs.attached]
    for one, other in zip(ours.attached, theirs.attached, strict=True):
        assert one.segments.tolist() == other.segments.tolist()
        assert one.arrays.keys() == other.arrays.keys()
        for name, array in other.arrays.items():
            assert (one.arrays[name].dtype, one.arrays[name].shape) == (array.dtype, array.shape)
            assert one.arrays[name].tobytes() == array.tobytes()
    return {name for item in ours.attached for name in item.arrays}


def run_ranks(module, folder, num_ranks):
    """Run a test module as a program in a process for each rank, and say what they printed if one fails."""
    command = [sys.executable, "-W", "ignore", "-m", module, str(folder)]
    options: dict[str, Any] = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
        "text": True,
        "cwd": Path(__file__).parents[2],
    }
    ranks = [subprocess.Popen([*command, str(rank)], **options) for rank in range(num_ranks)]
    try:
        said = [rank.communicate(timeout=300)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * num_ranks, "\n".join(said)
