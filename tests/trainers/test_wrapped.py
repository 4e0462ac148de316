"""Data sets that encode their own rows, and windows of samples, in Trainer: the losses of samples one by one."""

import copy

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from brimful import PackedDataset, collator_for  # noqa: E402
from brimful.serve import Window, WindowBatches  # noqa: E402
from brimful.trainers.transformers import log_packing  # noqa: E402
from tests.trainers import tiny  # noqa: E402

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
