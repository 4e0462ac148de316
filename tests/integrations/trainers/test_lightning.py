"""Lightning for real, if installed: stopped anywhere and continued, the batches equal one run's."""

import pytest

torch = pytest.importorskip("torch")

from brimful import PackCollator  # noqa: E402
from brimful.errors import StateError  # noqa: E402
from brimful.integrations.trainers import one_by_one  # noqa: E402
from tests.integrations.trainers import tiny  # noqa: E402
from tests.marks import long_but  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def lightning():
    """A model and its training, imported by the tests that need them: Lightning takes seconds."""
    pytest.importorskip("lightning.pytorch")
    from tests.integrations.trainers import lightning_run

    return lightning_run


@pytest.mark.parametrize("stop", long_but({5}, [3, 5, 7]))
def test_continued_in_the_middle_of_an_epoch_and_at_its_end(lightning, stop, tmp_path):
    """Ten packs, two a step: five steps an epoch. A plain loader would begin the epoch again."""
    whole, first, second = lightning.Module(), lightning.Module(), lightning.Module()
    lightning.fit(whole, lightning.data(), tmp_path, steps=8)
    lightning.fit(first, lightning.data(), tmp_path, steps=stop).save_checkpoint(tmp_path / "last.ckpt")
    lightning.fit(second, lightning.data(), tmp_path, steps=8, checkpoint=tmp_path / "last.ckpt")
    assert len(whole.seen) == 16
    assert first.seen + second.seen == whole.seen
    assert all(torch.equal(a, b) for a, b in zip(second.parameters(), whole.parameters(), strict=True))


def test_other_packs_are_refused_by_name(lightning, tmp_path):
    """A checkpoint of another data set would continue somewhere."""
    lightning.fit(lightning.Module(), lightning.data(), tmp_path, steps=3).save_checkpoint(tmp_path / "last.ckpt")
    with pytest.raises(StateError, match="fingerprint"):
        lightning.fit(
            lightning.Module(), lightning.data(count=12), tmp_path, steps=8, checkpoint=tmp_path / "last.ckpt"
        )


def test_validation_sees_every_pack_each_time_in_order(lightning, tmp_path):
    """The check before training reads one batch; the next validation begins at the first again."""
    module = lightning.Module()
    lightning.fit(module, lightning.data(count=4), tmp_path, steps=4)
    rows = [pack.input_ids.tolist() for pack in (tiny.packs(3, seed=50)[index] for index in range(3))]
    assert module.validated == [rows[0], *rows, *rows]


def test_without_validation_and_with_samples_one_by_one(lightning, tmp_path):
    lightning.fit(lightning.Module(), lightning.PackDataModule(tiny.packs(4), PackCollator()), tmp_path, steps=2)
    module = lightning.Module()
    lightning.fit(
        module,
        lightning.PackDataModule(tiny.packs(2), PackCollator(), val=one_by_one(tiny.packs(2))),
        tmp_path,
        steps=1,
    )
    assert len(module.validated) == 1 + 6
