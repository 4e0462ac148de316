"""Checks without a real model: arrays alone, and a model of one embedding, which takes milliseconds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from brimful.verify import verify_packing
from brimful.verify.checks import check_batch
from brimful.verify.reference_samples import ReferenceSamples
from brimful.verify.setup import PackingSetup
from tests.verify import faults

IDS = [[5, 9, 3, 7, 5, 8, 4], [11, 12, 5, 13, 14, 15, 16, 17, 18], [21], [31, 5, 32, 33]]
"""Seven, nine, one and four tokens."""


def samples(*rows: list[int], prompts: int = 0) -> list[dict[str, Any]]:
    """Samples of these tokens, or of ``IDS``; the first tokens of each are not targets."""
    return [{"input_ids": list(ids), "labels": [-100] * prompts + ids[prompts:]} for ids in rows or IDS]


class NeverRun(torch.nn.Linear):
    """A model that is not to be run, and takes positions."""

    def __init__(self, **config: Any) -> None:
        super().__init__(2, 2)
        self.config = SimpleNamespace(**config)

    def forward(self, input_ids=None, position_ids=None, labels=None):
        raise AssertionError("the model was run")


def arrays(collator: Any, rows: Any = None, model: Any = None, **options: Any) -> dict[str, Any]:
    """The finding of each check that looks at arrays alone."""
    reference = ReferenceSamples(samples() if rows is None else rows, **options)
    return {item.check: item for item in check_batch(PackingSetup(model or NeverRun(), collator, reference))}


class Toy(torch.nn.Module):
    """A causal model: the logits of a token are of the mean of all that it sees, and of its position.

    Args:
        reads: what says where a sample begins: ``position_ids``, ``cu_seq_lens_q`` or ``seq_idx``.
    """

    def __init__(self, reads: str = "position_ids", dtype: Any = torch.float32, **config: Any) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        weights = torch.randn(2, 64, 8, generator=generator).to(dtype)
        self.embedding = torch.nn.Embedding(64, 8, _weight=weights[0].clone())
        self.head = torch.nn.Parameter(weights[1].T.clone())
        self.reads, self.config = reads, SimpleNamespace(**config)

    def get_input_embeddings(self) -> Any:
        return self.embedding

    def visible(self, batch: dict[str, Any], shape: Any) -> Any:
        """``bool[B, T, T]``: what each token sees."""
        rows, width = shape
        causal = torch.ones(width, width, dtype=torch.bool).tril().expand(rows, -1, -1)
        mask = batch.get("attention_mask")
        if mask is not None and mask.ndim == 4:
            return mask[:, 0] if mask.dtype is torch.bool else causal & (mask[:, 0] == 0)
        if mask is not None or batch.get("use_cache") is not False:
            return causal
        start = torch.zeros(rows, width, dtype=torch.long)
        if (value := batch.get(self.reads)) is None:
            return causal
        if self.reads == "cu_seq_lens_q":
            start[0, value[1:-1].long()] = 1
        elif self.reads == "seq_idx":
            start[:, 1:] = value.diff() != 0
        else:
            start = (value.reshape(-1, *shape)[0] == 0).long()
        number = start.cumsum(-1)
        return causal & (number[:, :, None] == number[:, None])

    def forward(
        self, input_ids=None, position_ids=None, attention_mask=None, cu_seq_lens_q=None, cu_seq_lens_k=None,
        max_length_q=None, max_length_k=None, seq_idx=None, use_cache=None, labels=None, num_items_in_batch=None,
        loss_weights=None, loss_index=None, loss_targets=None, loss_samples=None,
    ):  # fmt: skip
        batch = dict(locals())
        sees = self.visible(batch, input_ids.shape).to(self.head.dtype)
        values = self.embedding(input_ids)
        mean = sees @ values / sees.sum(-1, keepdim=True)
        places = torch.arange(input_ids.shape[1])[None] if position_ids is None else position_ids
        places = places.reshape(-1, *places.shape[-2:])[0, ..., None].to(self.head.dtype)
        logits = torch.tanh(mean + values * torch.cos(places)) @ self.head
        out = SimpleNamespace(logits=logits, loss=None)
        if labels is not None:
            flat, targets = logits[:, :-1].reshape(-1, 64).float(), labels[:, 1:].reshape(-1)
            losses = torch.nn.functional.cross_entropy(flat, targets, reduction="none")
            weights = (targets >= 0).float() if loss_weights is None else loss_weights[:, 1:].reshape(-1)
            out.loss = (losses * weights).sum() / (num_items_in_batch or weights.sum())
        return out


def setup_of(collator: Any = faults.right, model: Any = None, rows: Any = None, **options: Any) -> PackingSetup:
    """A setup for one check: a whole report also looks at samples of 16,400 tokens."""
    return PackingSetup(
        model or Toy().eval(), collator, ReferenceSamples(samples() if rows is None else rows), **options
    )


def report(collator: Any = faults.right, model: Any = None, rows: Any = None, **options: Any) -> Any:
    """The whole report of a toy model."""
    options = {"attention": "as it is", "gradients": False, **options}
    return verify_packing(model or Toy(), collator, samples() if rows is None else rows, **options)


def causes(found: Any) -> dict[str, str]:
    return {finding.check: finding.cause for finding in found.failures}
