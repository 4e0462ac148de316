"""Callbacks of Transformers, TRL and Lightning: right runs, a planted fault each, and the divisor of a whole step."""

import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import torch
import transformers

from brimful import PackCollator
from brimful.doctor import ProbeCallback
from brimful.doctor.report import Evidence
from brimful.verify.models import tiny_model
from tests.integrations.trainers import tiny

pytestmark = pytest.mark.filterwarnings("ignore")


class Masked(PackCollator):
    """Fault 8: a mask of ones comes with the packs."""

    def __call__(self, features):
        batch = super().__call__(features)
        return {**batch, "attention_mask": torch.ones_like(batch["input_ids"])}


class Prompted(PackCollator):
    """The first sample of a row begins with a prompt of seven tokens after its first."""

    def __call__(self, features):
        batch = super().__call__(features)
        batch["labels"][:, :8] = -100
        return batch


class Miscounting(transformers.Trainer):
    """Fault 15: first tokens of samples are subtracted from the divisor once more."""

    def _get_num_items_in_batch(self, batch_samples, device):
        boundaries = sum(int((batch["position_ids"] == 0).sum()) for batch in batch_samples)
        return super()._get_num_items_in_batch(batch_samples, device) - boundaries


class Meaning(transformers.Trainer):
    """A trainer whose own loss is the mean of each micro-batch, whatever the step has."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch=None)


class Saving(transformers.Trainer):
    """A trainer that asks for the logits of tokens with a target alone, as ms-swift does, with labels for these."""

    by_number = False

    def _prepare_inputs(self, inputs):
        inputs = dict(super()._prepare_inputs(inputs))
        is_target = (inputs["labels"] != -100).any(dim=0)
        if self.by_number:
            keep = inputs["labels"].shape[1] - int(is_target.int().argmax()) + 1
            labels = inputs["labels"][:, -keep:]
        else:
            keep = torch.nn.functional.pad(is_target[1:], (0, 1), value=True)
            labels = torch.nn.functional.pad(inputs["labels"][:, is_target], (1, 0), value=-100)
        return {**inputs, "labels": labels, "logits_to_keep": keep}


class SavingByNumber(Saving):
    by_number = True


class Listing(transformers.Trainer):
    """A trainer whose batches have a list of targets for labels."""

    def _prepare_inputs(self, inputs):
        inputs = dict(super()._prepare_inputs(inputs))
        labels = inputs["labels"]
        return {**inputs, "labels": labels[labels != -100], "is_target": labels.roll(-1) != -100}

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        logits = model(input_ids=inputs["input_ids"], position_ids=inputs["position_ids"], use_cache=False).logits
        losses = torch.nn.functional.cross_entropy(logits[inputs["is_target"]], inputs["labels"], reduction="sum")
        return losses / num_items_in_batch


def trainer_of(folder, *, kind=transformers.Trainer, collator=None, **options):
    torch.manual_seed(0)
    model = tiny.model()
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.3
    settings = {
        "max_steps": 2,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "learning_rate": 0.1,
    }
    quiet = {"logging_steps": 1, "report_to": "none", "save_strategy": "no", "use_cpu": True, "disable_tqdm": True}
    args = transformers.TrainingArguments(str(folder), **settings, **quiet, **options)
    return kind(model=model, args=args, train_dataset=tiny.packs(16), data_collator=collator or PackCollator())


def train(trainer, *, is_probed=True):
    callback = ProbeCallback(trainer)
    if is_probed:
        trainer.add_callback(callback)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return callback.report, losses, trainer.model.state_dict()


def lines(report):
    return {line.topic: line.text for line in report.lines}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bf16": True},
        {"gradient_checkpointing": True},
        pytest.param({"torch_compile": True, "torch_compile_backend": "eager"}, marks=pytest.mark.long),
    ],
)
def test_a_trainer_of_transformers(options, tmp_path):
    """Nothing is accused, and losses and weights are the same to the bit."""
    report, losses, weights = train(trainer_of(tmp_path, **options))
    _, own_losses, own_weights = train(trainer_of(tmp_path, **options), is_probed=False)
    assert report.ok, str(report)
    assert report.isolation.value == "shown"
    assert lines(report)["divisor"] == "sum of losses ÷ num_items_in_batch (60)"
    assert lines(report)["step"] == "12 samples and 60 targets in 2 micro-batches"
    assert losses == own_losses
    assert all(torch.equal(weights[name], own_weights[name]) for name in weights)


@pytest.mark.parametrize(
    "options", [{"neftune_noise_alpha": 5}, {"label_smoothing_factor": 0.1}, {"is_dropping": True}], ids=str
)
def test_noise_accuses_no_trainer(options, tmp_path):
    is_dropping = options.get("is_dropping")
    trainer = trainer_of(tmp_path, **({} if is_dropping else options))
    if is_dropping:
        for layer in trainer.model.model.layers:
            layer.self_attn.attention_dropout = 0.3
    report, *_ = train(trainer)
    assert report.ok, str(report)
    assert ("divisor of the loss" in report.verdict) is ("label_smoothing_factor" in options), report.verdict


class Failing(transformers.Trainer):
    """Runs out of memory at its first step."""

    def compute_loss(self, *arguments, **options):
        super().compute_loss(*arguments, **options)
        raise RuntimeError("CUDA out of memory")


def test_a_training_that_failed_leaves_nothing(tmp_path):
    hooks = sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks
    trainer = trainer_of(tmp_path, kind=Failing)
    with pytest.raises(RuntimeError, match="CUDA out of memory"):
        train(trainer)
    assert not hooks
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in trainer.model.modules())
    report, *_ = train(trainer_of(tmp_path))
    assert report.isolation.value == "shown"
    assert not hooks


def test_checkpointing_has_a_hook_of_its_own(tmp_path):
    """Transformers lets embeddings have gradients; the probe leaves none."""

    def names(is_probed):
        trainer = trainer_of(tmp_path, gradient_checkpointing=True)
        train(trainer, is_probed=is_probed)
        return [
            hook.__qualname__
            for module in trainer.model.modules()
            for own in (module._forward_hooks, module._forward_pre_hooks)
            for hook in own.values()
        ]

    assert names(True) == names(False)


def test_a_mask_of_ones(tmp_path):
    report, *_ = train(trainer_of(tmp_path, collator=Masked()))
    (finding,) = report.findings
    assert finding.problem == "mask_hides_packs"
    assert "first in model.layers.0 (Qwen2DecoderLayer)" in finding.detail


def test_a_divisor_that_was_counted_wrongly(tmp_path):
    """Samples of all micro-batches of the step are missing in it."""
    report, *_ = train(trainer_of(tmp_path, kind=Miscounting))
    (finding,) = report.findings
    assert finding.problem == "divisor"
    assert finding.detail == "num_items_in_batch is 48, and the step has 60 targets"


def test_a_loss_that_ignores_the_divisor(tmp_path):
    report, *_ = train(trainer_of(tmp_path, kind=Meaning))
    assert [item.problem for item in report.findings] == ["divisor"]
    assert "÷ num_items_in_batch (60)" in report.findings[0].detail


def test_a_callback_without_its_trainer(tmp_path):
    """It sees the loss of the model, with the divisor that the trainer gives it."""
    trainer, callback = trainer_of(tmp_path), ProbeCallback(timeout=5)
    trainer.add_callback(callback)
    trainer.train()
    assert callback.report.ok, str(callback.report)
    assert lines(callback.report)["divisor"] == "sum of losses ÷ num_items_in_batch (60)"


@pytest.mark.parametrize("kind", [Saving, SavingByNumber])
def test_logits_of_some_tokens(kind, tmp_path):
    report, *_ = train(trainer_of(tmp_path, kind=kind, collator=Prompted()))
    assert report.ok, str(report)
    assert lines(report)["divisor"] == "sum of losses ÷ num_items_in_batch (46)"
    assert lines(report)["isolation"].endswith("do not move (2 layers and losses)")


def test_labels_of_an_unknown_form_are_not_counted(tmp_path):
    report, *_ = train(trainer_of(tmp_path, kind=Listing))
    assert report.ok, str(report)
    assert report.isolation.value == "shown"
    assert "divisor" not in lines(report)


@pytest.mark.long
def test_trl(tmp_path):
    """Its loss is computed from the output of a fused head, with a divisor that the model never gets."""
    from tests.integrations.trainers.test_trl import make_trainer

    report, losses, _ = train(make_trainer(tmp_path, gradient_accumulation_steps=2))
    _, own_losses, _ = train(make_trainer(tmp_path, gradient_accumulation_steps=2), is_probed=False)
    assert [item.problem for item in report.findings] == ["lost_eos"], "these samples have none"
    assert lines(report)["divisor"] == "sum of losses ÷ num_items_in_batch (30)"
    assert losses == own_losses


@pytest.mark.long
@pytest.mark.parametrize("options", [{"packing": True, "max_length": 32}, {"padding_free": True, "max_length": None}])
def test_packs_of_trl_itself(options, tmp_path):
    trl = pytest.importorskip("trl")
    from datasets import Dataset
    from tokenizers import Tokenizer, models

    words = models.WordLevel({f"w{number}": number for number in range(64)}, unk_token="w1")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(words), pad_token="w0", eos_token="w2", unk_token="w1"
    )
    data = Dataset.from_list(
        [{"input_ids": [*(3 + (7 * row + step) % 60 for step in range(3 + row % 9)), 2]} for row in range(48)]
    )
    settings = {"max_steps": 2, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "logging_steps": 1}
    quiet = {"report_to": "none", "save_strategy": "no", "use_cpu": True, "disable_tqdm": True, "bf16": False}

    def trainer():
        torch.manual_seed(0)
        args = trl.SFTConfig(str(tmp_path), **settings, **quiet, **options)
        return trl.SFTTrainer(model=tiny_model("qwen2"), args=args, train_dataset=data, processing_class=tokenizer)

    report, losses, _ = train(trainer())
    assert report.ok, str(report)
    assert report.isolation is Evidence.SHOWN, str(report)
    assert lines(report)["divisor"].startswith("sum of losses ÷ num_items_in_batch")
    assert train(trainer(), is_probed=False)[1] == losses


@pytest.mark.long
@pytest.mark.parametrize("is_leaky", [False, True])
def test_lightning(is_leaky, tmp_path):
    pl = pytest.importorskip("lightning.pytorch")
    from brimful.doctor import LightningProbe
    from brimful.integrations.trainers.lightning import PackDataModule
    from tests.integrations.trainers.lightning_run import Module

    callback = LightningProbe()
    switches = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = pl.Trainer(
        default_root_dir=tmp_path,
        max_steps=2,
        accelerator="cpu",
        callbacks=[callback],
        **dict.fromkeys(switches, False),
    )
    collator = Masked() if is_leaky else PackCollator()
    trainer.fit(Module(), PackDataModule(tiny.packs(10), collator))
    assert [item.problem for item in callback.report.findings] == ["mask_hides_packs"] * is_leaky
    assert callback.report.isolation.value == "shown"
