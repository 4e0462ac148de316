"""``Trainer`` and a plan for each epoch: the packs that it trains on are the epoch's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from brimful import PlanSettings
from brimful.base.progress import Progress
from brimful.clusters import shared_plan
from brimful.errors import SettingsError
from brimful.testing.toys import toy_chat_encoder

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

CHATS = [{"prompt": f"{number}+{number}?", "completion": str(2 * number)} for number in range(6)]


class Counter(torch.nn.Module):  # type: ignore[name-defined]
    """A model that keeps what it was given and learns one number."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen = []

    def forward(self, ids, labels=None):
        self.seen.append(ids.tolist())
        return {"loss": self.weight**2}


def test_trainer_serves_the_packs_of_each_epoch_and_goes_on_in_the_right_one(tmp_path):
    """Its own call reaches samplers alone under accelerate: the packs of epoch 0 would come again."""
    from brimful.integrations.trainers.transformers import follow_epochs

    def trained(resume):
        with shared_plan(
            CHATS, toy_chat_encoder(), PlanSettings(capacity=48), directory=tmp_path / "shared", progress=Progress()
        ) as shared:
            model = Counter()
            arguments = transformers.TrainingArguments(
                str(tmp_path / "out"), num_train_epochs=3, per_device_train_batch_size=1, use_cpu=True, report_to="none",
                save_strategy="epoch", disable_tqdm=True, remove_unused_columns=False,
            )  # fmt: skip
            trainer = transformers.Trainer(
                model, arguments, train_dataset=shared.dataset(),
                data_collator=lambda packs: {"ids": torch.tensor(packs[0].sample_ids), "labels": torch.zeros(1)},
            )  # fmt: skip
            follow_epochs(trainer)
            trainer.train(resume_from_checkpoint=resume)
            plans = []
            for epoch in range(3):
                shared.set_epoch(epoch)
                plans.append([[segment.sample_id for segment in pack] for pack in shared.plan])
        return model.seen, plans

    seen, plans = trained(None)
    num_packs = len(plans[0])
    assert plans[0] != plans[1]
    for epoch, plan in enumerate(plans):
        assert sorted(seen[epoch * num_packs : (epoch + 1) * num_packs]) == sorted(plan)
    resumed, _ = trained(str(tmp_path / "out" / f"checkpoint-{num_packs}"))
    assert resumed == seen[num_packs:]


def test_a_data_set_of_one_plan_is_refused():
    from brimful.integrations.trainers.transformers import follow_epochs

    with pytest.raises(SettingsError, match="follow_epochs needs a data set that changes with the epoch"):
        follow_epochs(SimpleNamespace(train_dataset=[]))
