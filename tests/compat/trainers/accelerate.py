"""Plain PyTorch with Accelerate: one step of a loop whose loader ``prepare`` wraps."""

from typing import Any

from tests.compat.steps import report
from tests.compat.trainer import Trainer

TRAINER = Trainer(
    name="PyTorch with Accelerate",
    package="accelerate",
    page="pytorch.md",
    own=("tests/test_data_loader.py",),
    needs=("parameterized",),
)


def main() -> None:
    import torch
    from accelerate import Accelerator  # type: ignore[import-untyped]
    from torch.utils.data import DataLoader
    from transformers import AutoModelForCausalLM

    from brimful import PackedDataset
    from brimful.integrations.trainers import collator_for

    model = AutoModelForCausalLM.from_pretrained("model")
    packs: Any = PackedDataset("packs")
    loader = DataLoader(packs, batch_size=1, collate_fn=collator_for(model, device="cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    batch = next(iter(loader))
    loss = model(**batch).loss
    accelerator.backward(loss)
    optimizer.step()
    report(loss.item(), batch)


if __name__ == "__main__":
    main()
