"""Lightning for real, where it is installed: stopped anywhere and continued, the batches are those of one run."""

import pytest

torch = pytest.importorskip("torch")
pl = pytest.importorskip("lightning.pytorch")

from brimful import PackCollator  # noqa: E402
from brimful.errors import StateError  # noqa: E402
from brimful.trainers import one_by_one  # noqa: E402
from brimful.trainers.lightning import PackDataModule  # noqa: E402
from tests.trainers import tiny  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


class Module(pl.LightningModule):  # type: ignore[name-defined]
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


@pytest.mark.parametrize("stop", [3, 5, 7])
def test_continued_in_the_middle_of_an_epoch_and_at_its_end(stop, tmp_path):
    """Ten packs, two a step: five steps an epoch. A plain loader would begin the epoch again."""
    whole, first, second = Module(), Module(), Module()
    fit(whole, data(), tmp_path, steps=8)
    fit(first, data(), tmp_path, steps=stop).save_checkpoint(tmp_path / "last.ckpt")
    fit(second, data(), tmp_path, steps=8, checkpoint=tmp_path / "last.ckpt")
    assert len(whole.seen) == 16
    assert first.seen + second.seen == whole.seen
    assert all(torch.equal(a, b) for a, b in zip(second.parameters(), whole.parameters(), strict=True))


def test_other_packs_are_refused_by_name(tmp_path):
    """A checkpoint of another data set would continue somewhere."""
    fit(Module(), data(), tmp_path, steps=3).save_checkpoint(tmp_path / "last.ckpt")
    with pytest.raises(StateError, match="fingerprint"):
        fit(Module(), data(count=12), tmp_path, steps=8, checkpoint=tmp_path / "last.ckpt")


def test_validation_sees_every_pack_each_time_in_order(tmp_path):
    """The check before training reads one batch; the next validation begins at the first again."""
    module = Module()
    fit(module, data(count=4), tmp_path, steps=4)
    rows = [pack.input_ids.tolist() for pack in (tiny.packs(3, seed=50)[index] for index in range(3))]
    assert module.validated == [rows[0], *rows, *rows]


def test_without_validation_and_with_samples_one_by_one(tmp_path):
    fit(Module(), PackDataModule(tiny.packs(4), PackCollator()), tmp_path, steps=2)
    module = Module()
    fit(module, PackDataModule(tiny.packs(2), PackCollator(), val=one_by_one(tiny.packs(2))), tmp_path, steps=1)
    assert len(module.validated) == 1 + 6
