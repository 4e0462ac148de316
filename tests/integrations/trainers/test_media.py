"""Packs with pictures in real trainers: three lines, and a picture that cannot be decoded is in the log."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from brimful.integrations.trainers import collator_for, evaluate_samples, one_by_one  # noqa: E402
from brimful.integrations.trainers.transformers import log_packing  # noqa: E402
from brimful.media.collate import MediaFeatures  # noqa: E402
from brimful.media.families import FAMILIES, open_family  # noqa: E402
from brimful.testing.toys import toy_pack  # noqa: E402
from brimful.verify.drawn_samples import renumbered  # noqa: E402
from brimful.verify.models import tiny_media_model  # noqa: E402
from tests.verify import media_packs  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def case(small_qwen, tmp_path):
    folder = media_packs.qwen_folder(tmp_path, "qwen2.5-vl")
    store, features = media_packs.packs_of(media_packs.rows_of_pictures(), "qwen2.5-vl", small_qwen, folder)
    small = renumbered(list(store))
    return small.packs, tiny_media_model(store.attachment_settings, small.token_ids, small.vocab), features


def test_one_by_one_keeps_media_and_so_every_loss(case):
    """Samples without their pictures still have placeholders: they train on the embeddings of those, without an error."""
    packs, model, features = case
    collator = collator_for(model, device="cpu", media=features, quiet=True)
    alone = one_by_one(packs)
    assert [len(pack.attachments) for pack in alone] == [
        sum(item.segment == segment for item in pack.attachments)
        for pack in packs
        for segment in range(pack.num_segments)
    ]
    packed, single = evaluate_samples(model, packs, collator), evaluate_samples(model, alone, collator)
    assert packed.sample_ids.tolist() == single.sample_ids.tolist()
    np.testing.assert_allclose(packed.nll_sum, single.nll_sum, rtol=1e-5)


def test_rows_of_features_are_the_pack(case):
    """Samples as their processor makes them, and the pack of their media: one batch, positions and all."""
    packs, model, features = case
    collator = collator_for(model, device="cpu", media=features, quiet=True)
    pack = next(pack for pack in packs if len(pack.attachments) > 1)
    rows = []
    for alone in one_by_one([pack]):
        row = {"input_ids": alone.input_ids, "labels": alone.labels}
        row |= {
            name: torch.from_numpy(array) for item in features(alone).attached for name, array in item.arrays.items()
        }
        if alone.attachments:
            row["mm_token_type_ids"] = (alone.input_ids == model.config.image_token_id).astype(np.int64)
        rows.append(row)
    ours, expected = collator(rows), collator([pack])
    assert ours.pop("mm_token_type_ids").sum() == sum(item.num_tokens for item in pack.attachments)
    assert ours.keys() == expected.keys()
    assert all(torch.equal(ours[key], value) for key, value in expected.items() if isinstance(value, torch.Tensor))


@pytest.mark.parametrize("family", FAMILIES)
def test_an_empty_place_has_loss_0_with_every_family(family):
    """By ``model(**batch).loss``, and where a ``Trainer`` says the targets of all ranks; its gradient is 0 too."""
    model = tiny_media_model(open_family(family).settings, {}, 1_100).train()
    collate = collator_for(model, device="cpu", quiet=True)
    pack = toy_pack([5, 3])
    for asked in ({}, {"num_items_in_batch": torch.tensor(7)}):
        loss = model(**{**collate([pack.without_loss()]), **asked}).loss
        loss.backward()
        assert float(loss) == 0
        assert all(not weights.grad.any() for weights in model.parameters() if weights.grad is not None)
    packed, single = (evaluate_samples(model, packs, collate).nll_sum for packs in ([pack], one_by_one([pack])))
    np.testing.assert_allclose(packed, single, rtol=1e-4)  # the attention that was chosen isolates
    batch = collate([pack])
    mean = model(**batch).loss
    torch.testing.assert_close(model(**batch, num_items_in_batch=torch.tensor(12)).loss, mean * 6 / 12)


def test_a_model_that_gets_two_collators_has_one_loss():
    """The hook of Qwen2-Audio's loss is not added twice, and a model that obeys without it has none."""
    hearing, seeing = (tiny_media_model(open_family(name).settings, {}, 1_100) for name in ("qwen2-audio", "llava"))
    for model in (hearing, hearing, seeing):
        collator_for(model, device="cpu", quiet=True)
    assert [len(model._forward_hooks) for model in (hearing, seeing)] == [1, 0]


@pytest.mark.long
def test_trainer_of_transformers(case, tmp_path):
    """Its loss of an epoch is the batches', and one broken picture costs one sample's loss and no step."""
    packs, model, features = case
    collator = collator_for(model, device="cpu", media=features, quiet=True)
    losses = []
    with torch.no_grad():
        losses = [float(model.train()(**collator([pack])).loss) for pack in packs]
    broken = []
    for pack in packs:
        media = [replace(item, fingerprint="1") if item.segment == 0 else item for item in pack.attachments]
        broken.append(replace(pack, attachments=tuple(media)))
    num_bad = len(
        {(number, item.segment) for number, pack in enumerate(broken) for item in pack.attachments if item.segment == 0}
    )
    for data, bad in ((packs, 0), (broken, num_bad)):
        lenient = MediaFeatures(features._directory, features.family, on_bad_medium="no_loss")
        arguments = transformers.TrainingArguments(
            str(tmp_path / "out"),
            per_device_train_batch_size=1,
            num_train_epochs=1,
            learning_rate=0.0,
            use_cpu=True,
            report_to="none",
            logging_strategy="epoch",
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = transformers.Trainer(
            model,
            arguments,
            train_dataset=data,
            data_collator=collator_for(model, device="cpu", media=lenient, quiet=True),
        )
        log_packing(trainer)
        trainer.train()
        (log,) = [entry for entry in trainer.state.log_history if "samples_per_step" in entry]
        assert trainer.state.global_step == len(packs)
        assert log.get("samples_without_loss", 0) == bad
        if not bad:
            assert log["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-4)


def test_lightning(case):
    """The module takes the batch as it is."""
    pl = pytest.importorskip("lightning.pytorch")
    from brimful.integrations.trainers.lightning import PackDataModule

    packs, model, features = case

    class Module(pl.LightningModule):  # type: ignore[name-defined]
        def __init__(self):
            super().__init__()
            self.model, self.seen = model, 0

        def training_step(self, batch, index):
            self.seen += int("pixel_values" in batch)
            return self.model(**batch).loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 1e-3)

    class Packs(list):
        fingerprint = "packs"

    module = Module()
    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(module, PackDataModule(Packs(packs), collator_for(model, device="cpu", media=features, quiet=True)))
    assert module.seen == sum(bool(pack.attachments) for pack in packs)
