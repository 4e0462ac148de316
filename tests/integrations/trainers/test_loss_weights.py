"""Trainers with the weights of batches: trees are trained as flat packs of the same samples."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers", minversion="5.20")

from brimful import PackCollator  # noqa: E402
from brimful.collate.loss_torch import batch_loss_sum, batch_weight  # noqa: E402
from brimful.errors import SettingsError  # noqa: E402
from brimful.integrations.trainers import use_loss_weights, use_tree_attention  # noqa: E402
from brimful.integrations.trainers.transformers import follow_schedule, log_packing  # noqa: E402
from brimful.testing.toys import ToyPacks, toy_media_tokenizer, toy_tree  # noqa: E402
from brimful.verify.models import tiny_model  # noqa: E402
from tests.trees.collate.reading import forest  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

STEPS = 20


def trees():
    """Packs of trees with different numbers of samples, and of targets; one is without targets."""
    packs = [toy_tree(*forest(seed, roots=1, depth=2)) for seed in range(7)]
    return ToyPacks([*packs, packs[0].without_loss()])


def flat():
    return ToyPacks([pack.flat() for pack in trees()])


def arguments(folder, **options):
    return {
        "output_dir": str(folder),
        "max_steps": STEPS,
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 2,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "train_sampling_strategy": "sequential",
        **options,
    }


def trainer_of(folder, packs, *, model=None, collator=None, has_own_attention=False, **options):
    model = model or tiny_model("qwen3")
    dialect = "transformers" if packs[0].sharing is None else "transformers_tree"
    if packs[0].sharing is not None and not has_own_attention:
        use_tree_attention(model)
    return transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(**arguments(folder, **options)),
        train_dataset=packs,
        data_collator=collator or PackCollator(dialect=dialect),
    )


def losses(trainer):
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.fixture(scope="module")
def flat_losses(tmp_path_factory):
    """Transformers' own loss of flat packs."""
    return losses(trainer_of(tmp_path_factory.mktemp("flat"), flat()))


def test_twenty_steps_of_trees_are_those_of_flat_packs(flat_losses, tmp_path):
    """With accumulation, and a micro-batch without targets; the metrics of packing go with it."""
    trainer = trainer_of(tmp_path, trees())
    use_loss_weights(trainer)
    log_packing(trainer)
    ours = losses(trainer)
    assert len(ours) == STEPS
    assert ours == pytest.approx(flat_losses, abs=1e-5)
    assert flat_losses[-1] < flat_losses[0] - 0.1
    steps = [entry["supervised_tokens"] for entry in trainer.state.log_history if "supervised_tokens" in entry]
    targets = [pack.flat().num_loss_tokens for pack in trees()]
    assert steps[:4] == [first + second for first, second in zip(targets[::2], targets[1::2], strict=True)]


def test_a_plain_loop_with_gathered_logits_is_the_same(flat_losses):
    """``branch="index"``: hidden states are gathered before the head, once for each target."""
    model = tiny_model("qwen3")
    use_tree_attention(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / STEPS)
    collate, packs, ours = PackCollator(dialect="transformers_tree", branch="index"), trees(), []
    for step in range(STEPS):
        batches = [collate([packs[(2 * step + part) % len(packs)]]) for part in range(2)]
        weight, total = sum(map(batch_weight, batches)), 0.0
        for batch in batches:
            inputs = {key: value for key, value in batch.items() if not key.startswith("loss_")}
            hidden = model.model(**inputs).last_hidden_state
            loss = batch_loss_sum(model.lm_head(hidden[0, batch["loss_index"]]), batch) / weight
            loss.backward()
            total += float(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        ours.append(total)
    assert ours == pytest.approx(flat_losses, abs=1e-5)


@pytest.mark.long
def test_sft_trainer_of_trl(flat_losses, tmp_path):
    trl = pytest.importorskip("trl")
    from brimful.integrations.trainers.trl import SFTPacks, for_packs

    model = tiny_model("qwen3")
    use_tree_attention(model)
    options = {"bf16": False, "gradient_checkpointing": False, "max_length": None}
    trainer = trl.SFTTrainer(
        model=model,
        args=for_packs(trl.SFTConfig(**arguments(tmp_path, **options))),
        train_dataset=SFTPacks(trees()),
        data_collator=PackCollator(dialect="transformers_tree"),
        processing_class=toy_media_tokenizer(),
    )
    use_loss_weights(trainer)
    assert losses(trainer) == pytest.approx(flat_losses, abs=1e-5)


def test_weights_of_samples_in_flat_packs(tmp_path):
    """Transformers' own loss would ignore them."""
    collator = PackCollator(loss_weights="sample")
    trainer = trainer_of(tmp_path / "ours", flat(), collator=collator, max_steps=1)
    use_loss_weights(trainer)
    packs, model = flat(), tiny_model("qwen3")
    batches = [collator([pack]) for pack in packs[:2]]
    total = sum(float(batch_loss_sum(model(**batch).logits, batch)) for batch in batches)
    expected = total / float(sum(map(batch_weight, batches)))
    assert losses(trainer) == pytest.approx([expected], abs=1e-5)
    with pytest.raises(SettingsError, match="the loss of the trainer ignores them"):
        trainer_of(tmp_path / "theirs", flat(), collator=collator, max_steps=1).train()


def test_balance_losses_of_experts_stay(tmp_path):
    """As the model adds them, in a step of one micro-batch."""

    def with_router():
        model = tiny_model("qwen3_moe")
        model.config.output_router_logits = True
        return model

    options = {"max_steps": 2, "gradient_accumulation_steps": 1}
    theirs = losses(trainer_of(tmp_path / "theirs", flat(), model=with_router(), **options))
    trainer = trainer_of(tmp_path / "ours", flat(), model=with_router(), **options)
    use_loss_weights(trainer)
    assert losses(trainer) == pytest.approx(theirs, abs=1e-5)


def test_a_trainer_that_counts_labels_is_told(tmp_path):
    """Otherwise each shared target would count once, and the divisor would be another."""
    with pytest.raises(SettingsError, match=r"use_loss_weights\(trainer\)"):
        trainer_of(tmp_path, trees()).train()


def log(trainer):
    log_packing(trainer)


@pytest.mark.parametrize("door", [log, follow_schedule])
@pytest.mark.parametrize("options", [{"dialect": "dense_mask"}, {"loss_weights": "sample"}], ids=["trees", "samples"])
def test_weights_that_the_loss_of_the_library_ignores_are_refused(tmp_path, door, options):
    """Their masks are right, so only this would tell; each door that sees trainer and batch says so."""
    packs = trees() if "dialect" in options else flat()

    def trainer():
        return trainer_of(tmp_path, packs, collator=PackCollator(**options), has_own_attention=True, max_steps=1)

    silent = trainer()
    door(silent)
    with pytest.raises(SettingsError, match=r"the loss of the trainer ignores them: .*use_loss_weights\(trainer\)"):
        silent.train()
    weighed = trainer()
    use_loss_weights(weighed)
    door(weighed)
    assert len(losses(weighed)) == 1


@pytest.mark.parametrize("family", ["mistral", "gemma3_text"])
def test_dense_masks_get_the_windows_of_the_model(family, tmp_path):
    """A mask of the batch replaces the windows of all layers, also where only some have one."""
    theirs = losses(trainer_of(tmp_path / "flat", flat(), model=tiny_model(family), max_steps=2))
    dense = {"collator": PackCollator(dialect="dense_mask"), "has_own_attention": True}
    trainer = trainer_of(tmp_path / "trees", trees(), model=tiny_model(family), max_steps=2, **dense)
    use_loss_weights(trainer)
    assert losses(trainer) == pytest.approx(theirs, abs=1e-5)


def test_runs_are_for_the_attention_of_trees(tmp_path):
    """Any other takes each segment for a sample."""
    trainer = trainer_of(tmp_path, trees(), has_own_attention=True, max_steps=1)
    use_loss_weights(trainer)
    with pytest.raises(SettingsError, match=r"call use_tree_attention\(model\)"):
        trainer.train()


def test_evaluation_divides_by_its_own_weights(tmp_path):
    """Σ w·nll ÷ Σ w of each batch, as the loss of the model."""
    trainer = trainer_of(tmp_path, trees())
    use_loss_weights(trainer)
    pack = trees()[0]
    trainer.eval_dataset = ToyPacks([pack])
    batch = PackCollator(dialect="transformers_tree")([pack])
    with torch.no_grad():
        expected = float(trainer.model.eval()(**batch).loss)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, abs=1e-5)
