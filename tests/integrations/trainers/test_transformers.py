"""Trainer for real: packed and unpacked evaluation, accumulation, workers, and the same batches after a checkpoint."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")

from brimful import PackCollator  # noqa: E402
from brimful.dynamic import Window, WindowBatches  # noqa: E402
from brimful.errors import CollateError, SettingsError  # noqa: E402
from brimful.integrations.trainers import evaluate_samples, one_by_one, pack_metrics  # noqa: E402
from brimful.integrations.trainers.transformers import log_packing  # noqa: E402
from brimful.mixtures.source_losses import SourceLosses  # noqa: E402
from brimful.serve import Pack  # noqa: E402
from brimful.testing.toys import toy_pack, toy_tree  # noqa: E402
from tests.integrations.trainers import tiny  # noqa: E402
from tests.marks import long_but  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


class Recorder:
    """A collator that remembers the first sample of every pack."""

    def __init__(self) -> None:
        self.collate, self.seen = PackCollator(), []

    def __call__(self, features):
        self.seen += [int(pack.sample_ids[0]) for pack in features if isinstance(pack, Pack)]
        return self.collate(features)


def make_trainer(folder, *, steps=6, collator=None, model=None, **options):
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=1,
        per_device_eval_batch_size=1,
        learning_rate=1e-2,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        **{"save_strategy": "no", "logging_steps": 1, **options},
    )
    return transformers.Trainer(
        model=model or tiny.model(),
        args=arguments,
        train_dataset=tiny.packs(10),
        eval_dataset=tiny.packs(4, seed=50),
        data_collator=collator or PackCollator(),
    )


def weights(trainer):
    return [parameter.detach().clone() for parameter in trainer.model.parameters()]


@pytest.mark.long
def test_resumed_in_the_middle_of_an_epoch_it_sees_the_same_batches(tmp_path):
    """10 packs, accumulation 2: five steps an epoch; stopped after 3, and after 7 in the second epoch."""
    whole = Recorder()
    trainer = make_trainer(tmp_path / "whole", steps=8, collator=whole, gradient_accumulation_steps=2)
    trainer.train()
    assert sorted(whole.seen[:10]) == list(range(0, 30, 3)), "every pack once in an epoch"
    for stop in (3, 7):
        first, second = Recorder(), Recorder()
        options = {"gradient_accumulation_steps": 2, "save_strategy": "steps", "save_steps": stop}
        # The schedule of the learning rate is of the whole run; only the run is cut short.
        one = make_trainer(tmp_path / f"{stop}", steps=8, collator=first, **options)
        one.add_callback(StopAt(stop))
        one.train()
        two = make_trainer(tmp_path / f"{stop}", steps=8, collator=second, model=tiny.model(seed=1), **options)
        two.train(resume_from_checkpoint=True)
        assert first.seen[: 2 * stop] == whole.seen[: 2 * stop]
        assert second.seen == whole.seen[2 * stop :], "no pack again, none left out, and none read to be skipped"
        assert all(torch.equal(a, b) for a, b in zip(weights(two), weights(trainer), strict=True))


class StopAt(transformers.TrainerCallback):  # type: ignore[name-defined]
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **objects):
        control.should_training_stop = state.global_step == self.step


@pytest.mark.long
def test_the_number_of_steps_is_known_before(tmp_path):
    """Packs are counted, not guessed: len of the loader, and what is trained, agree."""
    trainer = make_trainer(tmp_path, steps=-1, num_train_epochs=2, gradient_accumulation_steps=2)
    assert len(trainer.get_train_dataloader()) == 10
    trainer.train()
    assert trainer.state.max_steps == trainer.state.global_step == 10


@pytest.mark.long
def test_workers_change_nothing(tmp_path):
    """Packs and batches go through a worker's queue."""
    results = []
    for count in (0, 2):
        trainer = make_trainer(tmp_path, steps=3, dataloader_num_workers=count)
        log_packing(trainer)
        trainer.train()
        results.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert results[0] == results[1]


@pytest.mark.long
def test_evaluation_packed_and_one_by_one(tmp_path):
    """Both run in Trainer; its loss is a mean of means and differs, the samples' loss is one number."""
    trainer = make_trainer(tmp_path, steps=2)
    log_packing(trainer)
    trainer.train()
    packs = tiny.packs(4, seed=50)
    packed = trainer.evaluate()["eval_loss"]
    alone = trainer.evaluate(one_by_one(packs))["eval_loss"]
    model = trainer.model
    losses = [evaluate_samples(model, part, PackCollator()) for part in (packs, one_by_one(packs))]
    assert losses[0].loss == pytest.approx(losses[1].loss, rel=1e-5)
    by_pack = [evaluate_samples(model, [packs[index]], PackCollator()).loss for index in range(4)]
    assert packed == pytest.approx(sum(by_pack) / 4, rel=1e-4)
    assert alone == pytest.approx(sum(losses[1].loss_by_sample.values()) / 12, rel=1e-4)


def test_packs_that_fill_an_empty_place_have_no_samples():
    """Without it the last step of an epoch would log samples and useful tokens that were not trained."""
    collator = pack_metrics._Counting(PackCollator(dialect="dense_mask", pad_to=16), None)
    pack, tree = toy_pack([3, 2]), toy_tree([[5, 6, 7, 8], [5, 6, 7, 9, 9]])

    def counts(*packs):
        return collator(packs)[pack_metrics._COUNTS]

    assert counts(pack, pack.without_loss()) == (5, 16, 3, 2, 0)
    assert counts(tree, tree.without_loss()) == (7, 16, 7, 2, 0)  # the token before the fork is there twice


def test_the_numbers_are_in_the_log_and_reach_those_who_report(tmp_path):
    """18, 18 and 19 tokens a pack in rows of 24; two packs a step."""
    reported = []

    class Reporter(transformers.TrainerCallback):  # type: ignore[name-defined]
        def on_log(self, args, state, control, logs=None, **objects):
            reported.append(dict(logs))

    trainer = make_trainer(
        tmp_path,
        steps=4,
        collator=PackCollator(pad_to=24),
        gradient_accumulation_steps=2,
        eval_strategy="steps",
        eval_steps=2,
    )
    trainer.add_callback(Reporter())
    trainer.callback_handler.callbacks.insert(0, trainer.callback_handler.callbacks.pop())
    log_packing(trainer)
    trainer.train()
    names = {"useful_tokens_per_s", "fill", "supervised_tokens", "samples_per_step"}
    entries = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(entries) == 4
    for entry in entries:
        assert entry["samples_per_step"] == 6
        assert entry["fill"] in {tokens / 48 for tokens in (36, 37, 38)}
        assert entry["supervised_tokens"] == round(entry["fill"] * 48) - 6
        assert entry["useful_tokens_per_s"] > 0
    with_loss = [logs for logs in reported if "loss" in logs]
    assert len(with_loss) == 4
    assert all(names <= logs.keys() for logs in with_loss)
    evaluations = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    assert len(evaluations) == 2
    assert not names & evaluations[0].keys()


@pytest.mark.parametrize("pause", ["on_evaluate", "on_save"])
def test_the_clock_stands_in_a_pause_of_training(monkeypatch, pause):
    """Two steps of 2 seconds and 100 tokens: with the minutes of a checkpoint, the speed would seem to fall."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(pack_metrics, "time", SimpleNamespace(monotonic=lambda: clock.now))
    metrics = pack_metrics.PackMetrics(ACCELERATOR)
    compute_loss = metrics.counted(lambda model, inputs, return_outputs: 0.0)
    state, logs = SimpleNamespace(log_history=[]), {"loss": 1.0}
    metrics.on_train_begin(None, state, None)
    for _ in range(2):
        compute_loss(SimpleNamespace(training=True), {pack_metrics._COUNTS: (100, 128, 90, 5, 0)})
        clock.now += 2
        metrics.on_step_end(None, state, None)
        clock.now += 60
        getattr(metrics, pause)(None, state, None)
    metrics.on_log(None, state, None, logs)
    assert logs["useful_tokens_per_s"] == 200 / 4


ACCELERATOR = SimpleNamespace(device="cpu", reduce=lambda totals, reduction: totals)


def test_a_log_gets_the_numbers_of_its_own_step(monkeypatch):
    """Trainer appends an entry before callbacks are asked; the history of another step, or none, stays as it is."""
    monkeypatch.setattr(pack_metrics, "time", SimpleNamespace(monotonic=lambda: 0.0))
    metrics = pack_metrics.PackMetrics(ACCELERATOR)
    compute_loss = metrics.counted(lambda model, inputs, return_outputs: 0.0)
    for history, is_told in (([{"step": 3}], True), ([{"step": 2}], False), ([{"step": 4}], False), ([], False)):
        state, logs = (
            SimpleNamespace(log_history=[{"step": 3}, *history] if history else [], global_step=3),
            {"loss": 1.0},
        )
        for training in (True, False):
            compute_loss(SimpleNamespace(training=training), {pack_metrics._COUNTS: (6, 8, 4, 2, 1)})
        metrics.on_step_end(None, state, None)
        metrics.on_log(None, state, None, {"eval_loss": 1.0})
        metrics.on_log(None, state, None, None)
        metrics.on_log(None, state, None, logs)
        assert {**logs, "samples_without_loss": 0} == {
            "loss": 1.0,
            "useful_tokens_per_s": 0.0,
            "fill": 0.75,
            "supervised_tokens": 4.0,
            "samples_per_step": 2.0,
            "samples_without_loss": 0,
        }, "of a step that took no time"
        assert [("fill" in entry) for entry in state.log_history] == ([False, is_told] if history else [])
    assert logs["samples_without_loss"] == 4, "since the beginning"
    later = {"loss": 1.0}
    metrics.on_log(None, state, None, later)
    assert "fill" not in later, "a log without a step"
    metrics.on_step_end(None, state, None)
    metrics.on_log(None, state, None, later)
    assert (later["fill"], later["supervised_tokens"]) == (0.0, 0.0), "a step of batches that were not counted"


def test_the_losses_that_trl_computes_are_those_of_the_logits():
    """It keeps no logits, but the log probability of every label but the first."""
    logits, labels = torch.randn(1, 6, 9), torch.tensor([[-100, 3, 4, -100, 5, 6]])
    source_ids = torch.tensor([[-1, 0, 0, -1, 1, 1]])
    log_probs = logits.log_softmax(-1)[:, :-1].gather(2, labels[:, 1:, None].clamp(min=0))[..., 0]
    kept = {
        "log_probs": log_probs,
        "label_mask": labels[:, 1:] != -100,
        "is_top1": logits[:, :-1].argmax(-1) == labels[:, 1:],
    }
    means = []
    for outputs in ({"logits": logits}, {"logits": None, **kept}, {"logits": logits[:, :3], **kept}):
        losses = SourceLosses({"chat": 1, "code": 1})
        metrics = pack_metrics.PackMetrics(ACCELERATOR, losses)
        metrics._add_losses(losses, SimpleNamespace(**outputs), labels, source_ids)
        means.append(losses.means_of(losses.take()))
    assert means[1] == means[2] == pytest.approx(means[0])
    for outputs in ({}, {"log_probs": log_probs[:, 1:]}, {"logits": logits[:, :3]}):
        with pytest.raises(SettingsError, match="the model gives no logits for each of its tokens"):
            metrics._add_losses(losses, SimpleNamespace(**outputs), labels, source_ids)


SOURCES = {"chat": 10, "code": 20}
"""Of the 30 samples of ten packs: the fourth has samples of both."""


@pytest.mark.parametrize("dialect", ["transformers", pytest.param("plain", marks=pytest.mark.long)])
def test_losses_by_source_are_those_of_the_samples(tmp_path, dialect):
    """Two logs of four micro-batches, of a model that does not learn: means over targets, and not of micro-batches."""
    collator = PackCollator(dialect=dialect, pad_to=24)
    trainer = make_trainer(
        tmp_path,
        steps=4,
        collator=collator,
        gradient_accumulation_steps=2,
        logging_steps=2,
        eval_strategy="steps",
        eval_steps=3,
        train_sampling_strategy="sequential",
    )
    trainer.args.learning_rate = 0.0
    log_packing(trainer, by_source=SOURCES)
    trainer.train()
    entries = [entry for entry in trainer.state.log_history if "loss" in entry]
    packs = tiny.packs(10)
    for number, entry in enumerate(entries):
        part = [packs[pack] for pack in range(4 * number, 4 * number + 4)]
        alone = evaluate_samples(tiny.model(), part, PackCollator()).by_source(SOURCES)
        losses = {f"loss/{source}": losses.loss for source, losses in alone.items()}
        hits = {f"token_acc/{source}": losses.token_acc for source, losses in alone.items()}
        logged = {name: value for name, value in entry.items() if "/" in name}
        assert logged == pytest.approx({**losses, **hits}, rel=1e-5)
    assert [sum("/" in name for name in entry) for entry in entries] == [4, 2], (
        "the second four packs are of code alone"
    )
    assert not any("/chat" in name for entry in trainer.state.log_history if "eval_loss" in entry for name in entry)


def test_losses_by_source_are_refused_where_there_are_no_logits(tmp_path):
    class NoLogits(transformers.Trainer):  # type: ignore[name-defined]
        def compute_loss(self, model, inputs, return_outputs=False, **options):
            loss, _ = super().compute_loss(model, inputs, True, **options)
            return (loss, {"loss": loss}) if return_outputs else loss

    trainer = make_trainer(tmp_path)
    trainer.args.use_liger_kernel = True
    with pytest.raises(
        SettingsError, match=r"by_source needs the loss of each token, and use_liger_kernel=True makes no"
    ):
        log_packing(trainer, by_source=SOURCES)
    trainer.args.use_liger_kernel = False
    for sizes in ({"cp_size": 2}, {"cp_size": 1, "sp_size": 2}, {"cp_size": None, "sp_size": 0}, {}):
        accelerator = SimpleNamespace(parallelism_config=SimpleNamespace(**sizes))
        refused = pytest.raises(SettingsError, match=r"p_size=2 gives each rank a part of the row")
        with refused if 2 in sizes.values() else nullcontext():
            pack_metrics._check_has_losses(SimpleNamespace(args=trainer.args, accelerator=accelerator))
    trainer.__class__ = NoLogits
    log_packing(trainer, by_source=SOURCES)
    with pytest.raises(
        SettingsError, match=r"no logits for each of its tokens: leave it out, and call evaluate_samples"
    ):
        trainer.train()


def test_another_collator_and_wrong_settings_are_refused(tmp_path):
    with pytest.raises(SettingsError, match="the trainer has Recorder: pass data_collator=PackCollator"):
        log_packing(make_trainer(tmp_path, collator=Recorder()))
    with pytest.raises(SettingsError, match="neftune_noise_alpha does not go with packs"):
        log_packing(make_trainer(tmp_path, neftune_noise_alpha=5.0))


def tiny_tokenizer():
    from tokenizers import Tokenizer, models

    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1}, "[UNK]")), pad_token="[PAD]"
    )


@pytest.mark.parametrize(
    "tokenizer",
    [None, pytest.param(tiny_tokenizer, marks=pytest.mark.long)],
    ids=["without a tokenizer", "with a tokenizer"],
)
@pytest.mark.parametrize(
    "remove", [True, pytest.param(False, marks=pytest.mark.long)], ids=["columns removed", "columns kept"]
)
def test_a_trainer_without_our_collator_says_what_to_give_it(tmp_path, tokenizer, remove):
    """Without it the Trainer's default collators end in ``vars() argument must have __dict__`` and ``keys``."""
    trainer = transformers.Trainer(
        model=tiny.model(),
        args=transformers.TrainingArguments(
            output_dir=str(tmp_path), report_to="none", use_cpu=True, remove_unused_columns=remove, max_steps=1
        ),
        train_dataset=tiny.packs(4),
        processing_class=tokenizer and tokenizer(),
    )
    with pytest.raises(CollateError, match=r"^packs came to a collator .* data_collator=PackCollator\(\)"):
        trainer.train()


@pytest.mark.long
def test_fill_where_samples_are_rows(tmp_path):
    """Three samples of a pack in rows of 24: the padding of each row counts, though the record before it has none."""
    trainer = make_trainer(tmp_path, steps=1, collator=PackCollator(dialect="plain", pad_to=24))
    log_packing(trainer)
    trainer.train()
    (fill,) = [entry["fill"] for entry in trainer.state.log_history if "loss" in entry]
    assert fill in {tokens / 72 for tokens in (18, 19)}


class SeesTokens(torch.nn.Module):  # type: ignore[name-defined]
    """A model without a model: what it is given."""

    def __init__(self):
        super().__init__()
        self.weight, self.seen = torch.nn.Parameter(torch.zeros(1)), []

    def forward(self, input_ids, **others):
        self.seen.append(tuple(dict.fromkeys(input_ids.flatten().tolist())))
        return {"loss": self.weight.sum()}


@pytest.mark.parametrize("method", long_but({"fork"}, ["fork", "spawn"]))
def test_workers_that_stay_serve_each_epoch_of_a_window(tmp_path, method):
    """Trainer sets the epoch of its data set; its workers hold a copy from before."""
    lengths = [7, 6, 4, 2, 5, 3, 9, 1, 8, 4, 6, 2]
    rows = [{"input_ids": [number + 1] * length} for number, length in enumerate(lengths)]
    loader = WindowBatches(rows, Window(10, size=6), lengths=lengths)
    expected = [tuple((pack.sample_ids + 1).tolist()) for _ in range(3) for (pack,) in loader]
    workers = {"dataloader_num_workers": 2, "dataloader_persistent_workers": True}
    trainer = make_trainer(
        tmp_path,
        steps=len(expected),
        model=SeesTokens(),
        dataloader_multiprocessing_context=method,
        **workers,
    )
    trainer.train_dataset = WindowBatches(rows, Window(10, size=6), lengths=lengths)
    trainer.train()
    assert trainer.model.seen == expected
