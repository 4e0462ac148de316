"""Training of a tiny model twice on the same samples, one for each answer: in flat packs, and in trees that hold what they share once.

    python examples/15_trees_against_flat.py [DIRECTORY] [--steps N] [--json]

DIRECTORY is what ``brimful demo -o DIRECTORY`` made; a small one is made if none is given. Both runs start with the same weights;
the loss of a step is the mean over the targets of its samples, so the losses must agree.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from brimful import PackCollator, open_source, pack_dataset, plan_packs
from brimful.cli.demo import run_demo
from brimful.collate.loss_torch import packed_loss_sum
from brimful.serve import Pack, open_packs

CAPACITY = 2048


def pack_trees(home: Path) -> Sequence[Pack]:
    """Make a sample of each answer in the chats of the demo, and pack them as trees."""
    cache = home / "cache"
    source = open_source(home / "chats.jsonl", per_turn=True, cache_dir=cache)
    options: dict[str, Any] = {
        "capacity": CAPACITY,
        "overflow": "drop",
        "share": "prefixes",
        "cache_dir": cache,
    }
    pack_dataset(source, home / "tokenizer", home / "trees", **options)
    return open_packs(home / "trees")


def flat_packs(tree: Pack) -> list[Pack]:
    """Pack the samples of a tree again, each with all of its tokens."""
    samples = tree.flat()
    plan = plan_packs(np.diff(samples.cu_seqlens), capacity=CAPACITY)
    return [samples.take([segment.sample_id for segment in segments]) for segments in plan]


def step(
    model: Any, optimizer: Any, collate: PackCollator, packs: Sequence[Pack]
) -> tuple[float, float]:
    """Make one step on some packs; return its loss, nats per target, and its seconds."""
    batches = [collate.rows([pack])[0] for pack in packs]
    num_targets = sum(batch.num_loss_tokens for batch in batches)
    total = 0.0
    started = time.perf_counter()
    for batch in batches:
        inputs = collate.convert([batch])
        labels, weights = inputs.pop("labels"), inputs.pop("loss_weights", None)
        logits = model(
            **{name: inputs[name] for name in ("input_ids", "position_ids", "attention_mask")}
        ).logits
        loss = packed_loss_sum(logits, labels, loss_weights=weights) / num_targets
        loss.backward()
        total += loss.item()
    optimizer.step()
    optimizer.zero_grad()
    return total, time.perf_counter() - started


def compare(home: Path, *, steps: int) -> list[dict[str, Any]]:
    """Train on the same samples in both layouts; return what each step had."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(home / "model", dtype=torch.float32).train()
    runs = [(one, torch.optim.AdamW(one.parameters(), lr=1e-3)) for one in (model, deepcopy(model))]
    collate = PackCollator(dialect="dense_mask")  # a mask of all pairs, which any model takes
    trees = pack_trees(home)
    rows = []
    for index in range(min(steps, len(trees))):
        layouts = flat_packs(trees[index]), [trees[index]]
        found = [step(*run, collate, packs) for run, packs in zip(runs, layouts, strict=True)]
        (flat_loss, flat_seconds), (tree_loss, tree_seconds) = found
        rows.append(
            {
                "samples": sum(pack.num_segments for pack in layouts[0]),
                "flat_packs": len(layouts[0]),
                "flat_loss": flat_loss,
                "tree_loss": tree_loss,
                "flat_seconds": flat_seconds,
                "tree_seconds": tree_seconds,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path, nargs="?")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        if options.directory is None:
            run_demo(temporary, lambda line: None, limit=300)
        rows = compare(options.directory or Path(temporary), steps=options.steps)
    if options.json:
        print(json.dumps(rows))
        return
    print("samples   flat packs   loss       one tree, loss")
    for row in rows:
        print(
            f"{row['samples']:7}   {row['flat_packs']:10}   {row['flat_loss']:.6f}   {row['tree_loss']:.6f}"
        )
    # The first step also loads libraries.
    flat, trees = (sum(row[name] for row in rows[1:]) for name in ("flat_seconds", "tree_seconds"))
    print(f"trees take {trees:.1f} s where flat packs take {flat:.1f} s")


if __name__ == "__main__":
    main()
