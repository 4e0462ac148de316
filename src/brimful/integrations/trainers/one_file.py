"""Packs of one file of rows for a training script: one plan, cached by content, the same on all
ranks.
"""

from __future__ import annotations

import sys
from typing import Any

from brimful.base.wording import counted
from brimful.clusters import SharedPackedDataset, shared_plan
from brimful.encode.choose import encoder_for
from brimful.plan import Plan, PlanSettings
from brimful.plan.ledger import drop_reason
from brimful.sources.opening import open_source

__all__ = ["packs_of_file"]


def packs_of_file(
    source: Any,
    tokenizer: Any,
    *,
    max_length: int,
    train_on: str | None = None,
    overflow: str = "truncate",
    no_target: str = "drop",
    num_proc: int | None = None,
) -> SharedPackedDataset:
    """Return the packs of a file, encoded when they are served; lengths and plan are cached.

    Under torchrun every rank calls it: rank 0 measures and plans, and the others wait without an
    open collective. Rank
    0 prints one line on stderr: how many samples were packed, cut and left out.

    Args:
        source: anything that ``open_source`` takes.
        tokenizer: the model's tokenizer, its directory or its hub id.
        max_length: tokens of a pack.
        train_on: targets of the loss, see ``encoder_for``; in chats, the assistant's turns.
        overflow: policy for rows longer than ``max_length``; by default they are cut at their end,
            as in TRL.
        no_target: policy for rows without a target, such as chats without an answer; by default
            they are left out.
        num_proc: number of processes that measure.

    Raises:
        BrimfulError: see ``shared_plan``; a row that cannot be read or encoded stops the job and is
            named.

    >>> packs_of_file([{"input_ids": [5, 6]}, {"input_ids": [7, 8, 9]}], None, max_length=5)[0]
    Pack(5 tokens, 2 segments, 3 loss tokens)
    """
    rows = open_source(source)
    encoder = encoder_for(rows, tokenizer, train_on=train_on)
    settings = PlanSettings(capacity=max_length, overflow=overflow, no_target=no_target)
    # Packs hold the same samples in all epochs, so a trainer need not tell the data set about
    # epochs.
    shared = shared_plan(rows, encoder, settings, replan=False, num_proc=num_proc, name="one file")
    if shared.ranks.is_builder:
        print(f"brimful: {_account(rows.title, shared.plan)}", file=sys.stderr, flush=True)
    return shared.dataset()


def _account(title: str, plan: Plan) -> str:
    """Return one line about the samples of a plan: packed, cut, left out."""
    ledger = plan.ledger
    text = (
        f"{title}: {counted(ledger.samples_packed, 'sample')} in {counted(plan.num_packs, 'pack')} "
        f"of at most {plan.capacity:,} tokens, fill {100 * plan.fill_ratio:.2f} %"
    )
    if ledger.samples_truncated:
        text += (
            f"; {ledger.samples_truncated:,} cut, which loses {ledger.tokens_truncated:,} tokens"
        )
    if ledger.samples_dropped:
        reasons = ", ".join(drop_reason(name) for name in plan.outcome.dropped_by or ("tokens",))
        text += f"; {ledger.samples_dropped:,} left out: {reasons}"
    return text
