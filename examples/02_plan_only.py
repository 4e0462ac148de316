"""Planning needs lengths and nothing else: no text, no tokenizer, no files.

    python examples/02_plan_only.py

For data that is tokenized already, or for trying capacities before anything is written.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from brimful import Plan, plan_packs


def main() -> None:
    # A list of whole numbers: tokens of each sample.
    plan = plan_packs([3, 3, 5, 6, 1, 1], capacity=7, seed=None)
    print(plan)
    for number, pack in enumerate(plan):
        print(
            f"  pack {number}:",
            ", ".join(f"sample {s.sample_id} ({s.length} tokens)" for s in pack),
        )

    # A NumPy array, with a heavy tail as real data has it.
    lengths = np.random.default_rng(0).lognormal(5.5, 1.2, 200_000).astype(np.int64) + 1
    for capacity in (2048, 4096, 8192):
        plan = plan_packs(lengths, capacity=capacity, overflow="drop")
        print(
            f"{capacity:>6}: fill {100 * plan.fill_ratio:.2f} %, dropped {plan.ledger.samples_dropped:,} samples"
        )

    # What is lost depends on the policy; the ledger accounts for every token.
    for overflow in ("drop", "truncate", "truncate_left", "split"):
        ledger = plan_packs(lengths, capacity=4096, overflow=overflow).ledger
        assert (
            ledger.tokens_in
            == ledger.tokens_packed + ledger.tokens_dropped + ledger.tokens_truncated
        )
        print(
            f"{overflow:>14}: {ledger.tokens_in - ledger.tokens_packed:,} of {ledger.tokens_in:,} tokens are lost"
        )

    # A plan is one file; it is mapped into memory when it is opened, and proves itself against the lengths.
    with tempfile.TemporaryDirectory() as folder:
        plan.save(Path(folder, "plan.arrow"))
        opened = Plan.open(Path(folder, "plan.arrow"))
        opened.validate(lengths)
        print(opened, "again" if opened.fingerprint == plan.fingerprint else "another one")


if __name__ == "__main__":
    main()
