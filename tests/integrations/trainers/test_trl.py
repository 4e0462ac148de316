"""``SFTTrainer`` for real, if TRL is installed: packs go through whole, and its loss is the samples'."""

import pytest

torch = pytest.importorskip("torch")
datasets = pytest.importorskip("datasets")

from brimful import PackCollator  # noqa: E402
from brimful.errors import CollateError, SettingsError  # noqa: E402
from brimful.integrations.trainers import collator_for, evaluate_samples, one_by_one, use_tree_attention  # noqa: E402
from brimful.integrations.trainers.transformers import log_packing  # noqa: E402
from brimful.integrations.trainers.trl import SFTPacks, for_packs  # noqa: E402
from brimful.serve import Pack  # noqa: E402
from brimful.testing.toys import ToyPacks, toy_tree  # noqa: E402
from tests.integrations.trainers import tiny  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


def test_packs_are_shown_as_trl_wants_them():
    """TRL asks for a datasets.Dataset, and for the keys of its first sample."""
    packs = SFTPacks(tiny.packs(3))
    assert isinstance(packs, datasets.Dataset)
    assert len(packs) == 3
    row = next(iter(packs))
    assert set(row) == {"input_ids", "labels", "seq_lengths"}
    ours, theirs = PackCollator()([row]), PackCollator()([packs[0]])
    assert ours["cu_seq_lens_q"].tolist() == theirs["cu_seq_lens_q"].tolist(), "samples of the row see each other"
    assert ours["labels"].tolist() == theirs["labels"].tolist()
    assert all(isinstance(pack, Pack) for pack in [packs[1], *packs.__getitems__([0, 2])])
    (row,) = SFTPacks([toy_tree([[5, 6, 7], [5, 6, 8, 9]])])
    assert (row["input_ids"], row["seq_lengths"]) == ([5, 6, 7, 5, 6, 8, 9], [3, 4])
    with pytest.raises(SettingsError, match="at least one pack"):
        SFTPacks(tiny.packs(0))
    with pytest.raises(CollateError, match="no 'input_ids'"):
        PackCollator()([packs.select([0]).with_format(None)._getitem(0)])


def make_trainer(folder, *, steps=3, data=None, prepared=for_packs, collator=True, **options):
    trl = pytest.importorskip("trl", minversion="1.10")
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<pad>": 0, "<eos>": 1, **{f"t{number}": number for number in range(2, 1000)}}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>")),
        pad_token="<pad>",
        eos_token="<eos>",
    )
    arguments = trl.SFTConfig(
        str(folder),
        max_steps=steps,
        per_device_train_batch_size=1,
        per_device_eval_batch_size=1,
        learning_rate=1e-2,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        **options,
    )
    return trl.SFTTrainer(
        tiny.model(),
        prepared(arguments),
        train_dataset=SFTPacks(data or tiny.packs(6)),
        eval_dataset=SFTPacks(tiny.packs(4, seed=50)),
        data_collator=PackCollator() if collator else None,
        processing_class=tokenizer,
    )


def test_trees_are_refused_without_their_weights(tmp_path):
    """TRL's fused loss never asks the model for its own: a target of two samples would count once."""
    pack = toy_tree([[5, 6, 7], [5, 6, 8]])
    trainer = make_trainer(tmp_path, data=ToyPacks([pack, pack]))
    use_tree_attention(trainer.model)
    trainer.data_collator = collator_for(trainer.model, quiet=True)
    with pytest.raises(SettingsError, match=r"the loss of the trainer ignores them: .*use_loss_weights\(trainer\)"):
        trainer.train()


@pytest.mark.long
def test_a_step_is_the_mean_over_the_targets_of_its_packs(tmp_path):
    """Two packs a step; TRL's fused loss equals the loss of the samples one by one."""
    packs = tiny.packs(2)
    expected = evaluate_samples(tiny.model(), one_by_one(packs), PackCollator()).loss
    trainer = make_trainer(tmp_path, steps=1, data=packs, gradient_accumulation_steps=2, dataloader_num_workers=1)
    sources = {"chat": 2, "code": 4}
    log_packing(trainer, by_source=sources)
    trainer.train()
    entry = trainer.state.log_history[0]
    alone = evaluate_samples(tiny.model(), packs, PackCollator()).by_source(sources)
    assert {name: entry[f"loss/{name}"] for name in sources} == pytest.approx(
        {name: losses.loss for name, losses in alone.items()}, rel=1e-4
    ), "TRL keeps no logits, but the log probability of each token"
    assert [entry[f"token_acc/{name}"] for name in sources] == [alone[name].token_acc for name in sources]
    assert float(entry["loss"]) == pytest.approx(expected, abs=2e-3)
    assert (entry["samples_per_step"], entry["supervised_tokens"]) == (6, 30)


@pytest.mark.long
def test_evaluation_packed_and_one_by_one(tmp_path):
    trainer = make_trainer(tmp_path, steps=2)
    trainer.train()
    packs = tiny.packs(4, seed=50)
    assert trainer.evaluate()["eval_loss"] > 0
    alone = trainer.evaluate(SFTPacks(one_by_one(packs)))["eval_loss"]
    losses = evaluate_samples(trainer.model, packs, PackCollator()).loss_by_sample
    assert alone == pytest.approx(sum(losses.values()) / 12, rel=1e-3)


@pytest.mark.parametrize("setting", ["packing", "padding_free"])
def test_packing_twice_is_refused(tmp_path, setting):
    with pytest.raises(SettingsError, match=f"{setting}=True does not go with packs"):
        make_trainer(tmp_path, **{setting: True})


@pytest.mark.parametrize("packing", [True, False])
def test_a_config_that_for_packs_did_not_see_is_refused_where_trl_prepares_the_packs(tmp_path, packing):
    """TRL takes the data set for rows, and would end in an ``AttributeError`` of ``datasets``."""
    with pytest.raises(SettingsError, match=r"pass the SFTConfig through for_packs\(args\)"):
        make_trainer(tmp_path, prepared=lambda args: args, collator=not packing, packing=packing)


@pytest.mark.long
def test_a_pack_without_a_target_trains_on(tmp_path):
    """One of two packs has no target: TRL's fused forward takes its batch too, and the loss is a number."""
    some = tiny.packs(2)
    packs = tiny.ToyPacks([some[0], some[1].without_loss()])  # type: ignore[attr-defined]
    trainer = make_trainer(tmp_path, steps=2, data=packs)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert sorted(losses)[0] == 0
    assert all(loss == loss for loss in losses)
