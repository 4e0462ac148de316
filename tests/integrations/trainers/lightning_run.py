"""A tiny model trained by Lightning. Apart from its tests, so that collecting them does not import Lightning."""

import lightning.pytorch as pl
import torch

from brimful import PackCollator
from brimful.integrations.trainers.lightning import PackDataModule
from tests.integrations.trainers import tiny


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = tiny.model()
        self.seen, self.validated = [], []

    def training_step(self, batch, index):
        self.seen.append(batch["input_ids"][0].tolist())
        return self.model(**batch).loss

    def validation_step(self, batch, index):
        self.validated.append(batch["input_ids"][0].tolist())
        self.log("val_loss", self.model(**batch).loss)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-2)


def fit(module, data, folder, *, steps, checkpoint=None, accumulate=2):
    trainer = pl.Trainer(
        default_root_dir=folder,
        max_steps=steps,
        accelerator="cpu",
        accumulate_grad_batches=accumulate,
        num_sanity_val_steps=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, data, ckpt_path=checkpoint)
    return trainer


def data(count=10, **options):
    return PackDataModule(tiny.packs(count), PackCollator(), val=tiny.packs(3, seed=50), **options)
