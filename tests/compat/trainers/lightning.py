"""Lightning: one step of its ``Trainer`` with ``PackDataModule``."""

from tests.compat.steps import Seen, report
from tests.compat.trainer import Trainer

TRAINER = Trainer(
    name="Lightning",
    package="lightning",
    page="lightning.md",
    ours=("tests/integrations/trainers/test_lightning.py",),
)


def main() -> None:
    import lightning.pytorch as pl
    import torch
    from transformers import AutoModelForCausalLM

    from brimful import PackedDataset
    from brimful.integrations.trainers import collator_for
    from brimful.integrations.trainers.lightning import PackDataModule

    losses = []

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = AutoModelForCausalLM.from_pretrained("model")

        def training_step(self, batch, index):
            loss = self.model(**batch).loss
            losses.append(loss.item())
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    module = Module()
    seen = Seen(collator_for(module.model, device="cpu"))
    switches = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    pl.Trainer(max_steps=1, accelerator="cpu", **switches).fit(module, PackDataModule(PackedDataset("packs"), seen))
    report(losses[0], seen.batches[0])


if __name__ == "__main__":
    main()
