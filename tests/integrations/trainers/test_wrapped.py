"""Data sets that encode their own rows, and windows of samples, in Trainer: the losses of samples one by one."""

import copy

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from brimful import PackedDataset, collator_for  # noqa: E402
from brimful.dynamic import Window, WindowBatches  # noqa: E402
from brimful.integrations.trainers.transformers import log_packing  # noqa: E402
from tests.integrations.trainers import tiny  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


class Encoding(torch.utils.data.Dataset):  # type: ignore[name-defined]
    def __len__(self):
        return 24

    def __getitem__(self, index):
        ids = torch.arange(index + 1, index + 6 + index % 7)
        return {"input_ids": ids, "labels": torch.where(ids % 3 == 0, -100, ids), "name": f"row {index}"}


def make_trainer(folder, model, data, **options):
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=5,
        per_device_train_batch_size=1,
        learning_rate=0.5,
        lr_scheduler_type="constant",
        optim="sgd",
        max_grad_norm=0.0,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        train_sampling_strategy="sequential",
        **{"logging_steps": 1, "save_strategy": "no", **options},
    )
    collator = collator_for(model, device="cpu", quiet=True)
    return transformers.Trainer(model=model, args=arguments, train_dataset=data, data_collator=collator)


def losses_of(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def trained_one_by_one(model, packs):
    """The losses of steps whose samples are run by themselves."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.5), []
    for pack in packs:
        rows = [{key: row[key][None] for key in ("input_ids", "labels")} for row in pack]
        num_targets = sum(int((row["labels"][:, 1:] != -100).sum()) for row in rows)
        loss = sum(model(**row, num_items_in_batch=num_targets).loss for row in rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.long)])
def test_losses_are_those_of_samples_one_by_one(tmp_path, num_workers):
    packs = PackedDataset.wrap(Encoding(), 24)
    model = tiny.model()
    expected = trained_one_by_one(copy.deepcopy(model).train(), packs[:5])
    trainer = make_trainer(tmp_path, model, packs, dataloader_num_workers=num_workers)
    log_packing(trainer, token_acc=True)
    trainer.train()
    assert losses_of(trainer) == pytest.approx(expected, abs=2e-6)
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert [entry["samples_per_step"] for entry in logs] == [len(pack) for pack in packs[:5]]
    assert all("token_acc" in entry and not any("/" in name for name in entry) for entry in logs)


@pytest.mark.long
def test_a_checkpoint_is_taken_up(tmp_path):
    packs = PackedDataset.wrap(Encoding(), 24)
    whole = make_trainer(tmp_path / "whole", tiny.model(), packs)
    whole.train()
    make_trainer(tmp_path / "cut", tiny.model(), packs, save_strategy="steps", save_steps=2).train()
    again = make_trainer(tmp_path / "cut", tiny.model(1), packs, save_strategy="steps", save_steps=2)
    again.train(resume_from_checkpoint=str(tmp_path / "cut" / "checkpoint-2"))
    assert losses_of(again) == losses_of(whole)


def test_a_window_is_a_data_set(tmp_path):
    """A stream has no length: Trainer is told the steps."""
    data = Encoding()
    lengths = [len(data[number]["input_ids"]) for number in range(len(data))]
    plain = [{key: row[key] for key in ("input_ids", "labels")} for row in map(data.__getitem__, range(len(data)))]
    losses = []
    for source, options in ((plain, {"lengths": lengths, "seed": None}), (iter(plain), {})):
        trainer = make_trainer(tmp_path, tiny.model(), WindowBatches(source, Window(24, size=8), **options))  # type: ignore[arg-type]
        trainer.train()
        losses.append(losses_of(trainer))
    assert losses[0] == losses[1]
    assert len(losses[0]) == 5


@pytest.mark.long
def test_pictures_that_a_processor_encoded(small_qwen, tmp_path):
    """Patches, grids and positions of each row reach the model with its tokens: the row of a VLM's own data set."""
    from brimful.media import MediaKind
    from brimful.media.collate import MediaFeatures
    from brimful.verify.models import tiny_media_model
    from tests.verify.media_packs import qwen_folder

    features = MediaFeatures(qwen_folder(tmp_path, "qwen2.5-vl"), "qwen2.5-vl")
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randn(24, 32, 1176, generator=generator)

    class Pictures(Encoding):
        def __getitem__(self, index):
            grid = torch.tensor([[1, 4, 4 + 4 * (index % 2)]])
            num_patches = int(grid.prod())
            ids = torch.tensor([5, *[99] * (num_patches // 4), *range(index + 1, index + 6)])
            labels = torch.where(ids == 99, -100, ids)
            types = (ids == 99).int()
            media = {"pixel_values": pixels[index, :num_patches], "image_grid_thw": grid}
            return {"input_ids": ids, "labels": labels, "mm_token_type_ids": types, **media}

    packs = PackedDataset.wrap(Pictures(), 32)
    model = tiny_media_model(features.family.settings, {MediaKind.IMAGE: 99}, 100).train()
    single, expected = copy.deepcopy(model), []
    optimizer = torch.optim.SGD(single.parameters(), lr=0.5)
    for pack in list(packs)[:5]:
        num_targets = sum(int((row["labels"][1:] != -100).sum()) for row in pack)  # type: ignore[attr-defined]
        losses = []
        for row in pack:  # type: ignore[attr-defined]
            tokens = {name: row[name][None] for name in ("input_ids", "mm_token_type_ids")}
            media = {name: row[name] for name in ("pixel_values", "image_grid_thw")}
            positions, _ = single.model.get_rope_index(**tokens, image_grid_thw=row["image_grid_thw"])
            losses.append(
                single(
                    input_ids=tokens["input_ids"],
                    labels=row["labels"][None],
                    position_ids=positions,
                    num_items_in_batch=num_targets,
                    **media,
                ).loss
            )
        optimizer.zero_grad()
        sum(losses).backward()
        optimizer.step()
        expected.append(float(sum(losses)))
    trainer = make_trainer(tmp_path / "out", model, packs)
    trainer.data_collator = collator_for(model, device="cpu", media=features, quiet=True)
    trainer.train()
    assert losses_of(trainer) == pytest.approx(expected, abs=1e-5)
