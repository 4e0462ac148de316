"""What steps of training have in common: they run in a folder as ``brimful demo`` leaves it."""

from __future__ import annotations

from typing import Any

TOLERANCE = 2e-3
"""Between the loss of a step and of its samples one at a time: trainers log four digits."""


class Seen:
    """A collator that keeps the batches that it makes."""

    def __init__(self, collator: Any) -> None:
        self.collator = collator
        self.batches: list[dict[str, Any]] = []

    def __call__(self, features: Any) -> Any:
        batch = self.collator(features)
        self.batches.append(dict(batch))
        return batch


def loss_alone(batch: dict[str, Any]) -> float:
    """Return the mean loss over the targets of a packed row, of each sample alone, by the model in ``model``."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained("model", dtype=torch.float32).eval()
    ids, labels, positions = (batch[name].cpu().flatten() for name in ("input_ids", "labels", "position_ids"))
    starts = torch.nonzero(positions == 0).flatten().tolist()
    assert len(starts) > 1, "a row of one sample shows nothing"
    total, count = 0.0, 0
    for start, end in zip(starts, [*starts[1:], len(ids)], strict=True):
        with torch.no_grad():
            logits = model(input_ids=ids[None, start:end]).logits[0, :-1]
        targets = labels[start + 1 : end]
        total += float(torch.nn.functional.cross_entropy(logits, targets, ignore_index=-100, reduction="sum"))
        count += int((targets != -100).sum())
    return total / count


def report(loss: float, batch: dict[str, Any]) -> None:
    """Compare the loss of the first step with its samples alone, and print the figure of the page."""
    alone = loss_alone(batch)
    assert abs(loss - alone) < TOLERANCE * alone, f"loss {loss:.4f}, of its samples alone {alone:.4f}"
    print(f"loss {loss:.4f}, alone {alone:.4f}")


def report_log(history: list[dict[str, Any]], batch: dict[str, Any]) -> None:
    """As ``report``, of the log of a ``Trainer`` of Transformers."""
    report(float(next(entry["loss"] for entry in history if "loss" in entry)), batch)
