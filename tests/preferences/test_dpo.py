"""Packed pairs have the loss, the gradient and the tokens that TRL's DPOTrainer gives the same rows."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from brimful import ChatEncoder, CompletionEncoder, PackCollator, open_source  # noqa: E402
from brimful.collate.loss_torch import scale_for_ddp  # noqa: E402
from brimful.errors import PlanMismatchError, SettingsError, SourceNotFoundError  # noqa: E402
from brimful.integrations.trainers import evaluate_samples  # noqa: E402
from brimful.preferences.dpo import (  # noqa: E402
    PreferenceCollator,
    packed_preference_loss,
    train_on_preferences,
)
from brimful.preferences.losses import PAIR_LOSSES  # noqa: E402
from brimful.preferences.references import ReferenceLogps, compute_references  # noqa: E402
from tests.preferences import preference_pairs as tiny  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

ROOT = Path(__file__).resolve().parents[2]
NUM_PAIRS = 8


@pytest.fixture(scope="module")
def trl_trainer(tmp_path_factory):
    pytest.importorskip("trl", minversion="1.16")
    return tiny.trl_trainer(tmp_path_factory.mktemp("trl"), NUM_PAIRS, beta=0.3)


def trl_loss(trainer, loss_type):
    """The loss and gradients of all pairs in one batch without packing."""
    trainer.loss_types, trainer.label_smoothing = [loss_type], 0.1 if loss_type == "robust" else 0.0
    trainer.model.train().zero_grad()
    batch = trainer.data_collator([trainer.train_dataset[index] for index in range(NUM_PAIRS)])
    loss = trainer._compute_loss(trainer.model, batch, False)
    loss.backward()
    return float(loss), gradients_of(trainer.model)


def gradients_of(model):
    return {name: weight.grad.clone() for name, weight in model.named_parameters()}


def packed_losses(packs, model, collator, loss_type="sigmoid", reference=None):
    """The sum over the pairs of one micro-batch of packs."""
    smoothing = 0.1 if loss_type == "robust" else 0.0
    batch = collator(packs)
    return packed_preference_loss(
        model, batch, reference_model=reference, beta=0.3, loss_type=loss_type, label_smoothing=smoothing
    ).losses.sum()


def test_every_loss_is_that_of_trl(trl_trainer):
    """All pairs in packs of a few, each a micro-batch, against TRL's one batch without packing."""
    packs, reference = tiny.packs(NUM_PAIRS, capacity=96), tiny.model(1)
    collator = PreferenceCollator(PackCollator())
    sizes = [len(collator([pack])["preference"]["pairs"]) for pack in packs]
    assert sum(sizes) == NUM_PAIRS
    assert len(set(sizes)) > 1, "micro-batches of different numbers of pairs"
    for loss_type in PAIR_LOSSES:
        expected, gradients = trl_loss(trl_trainer, loss_type)
        model = tiny.model(0)
        loss = sum(packed_losses([pack], model, collator, loss_type, reference) for pack in packs) / NUM_PAIRS
        assert float(loss.detach()) == pytest.approx(expected, rel=1e-6, abs=1e-5), loss_type
        if loss_type in ("sigmoid", "ipo"):
            loss.backward()
            for name, gradient in gradients_of(model).items():
                torch.testing.assert_close(gradient, gradients[name], rtol=1e-4, atol=1e-5, msg=f"{loss_type} {name}")


def test_accumulation_and_ranks_change_nothing(trl_trainer):
    """Two ranks with micro-batches of different numbers of pairs: the average of their gradients is the gradient of one batch."""
    expected, gradients = trl_loss(trl_trainer, "sigmoid")
    packs, reference = list(tiny.packs(NUM_PAIRS, capacity=96)), tiny.model(1)
    collator = PreferenceCollator(PackCollator(pad_to=96))
    ranks = [packs[:1], [*packs[1:], packs[0].without_loss()]]
    losses, averages = 0.0, {}
    for micro_batches in ranks:
        model = tiny.model(0)
        for pack in micro_batches:
            loss = packed_losses([pack], model, collator, reference=reference)
            scale_for_ddp(loss, denominator=NUM_PAIRS, dp_world_size=len(ranks)).backward()
            losses += float(loss.detach())
        for name, gradient in gradients_of(model).items():
            averages[name] = averages.get(name, 0) + gradient / len(ranks)
    assert losses / NUM_PAIRS == pytest.approx(expected, abs=1e-5)
    for name, gradient in gradients.items():
        torch.testing.assert_close(averages[name], gradient, rtol=1e-4, atol=1e-5)


def test_references_are_computed_once_and_found_by_content(tmp_path):
    """In any plan of the same samples; a sample that was tokenized or cut otherwise is named."""
    packs, model, reference = tiny.packs(), tiny.model(0), tiny.model(1)
    identity = compute_references(reference, packs, PackCollator(), tmp_path)
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.arrow")}
    assert compute_references(reference, packs, PackCollator(), tmp_path) == identity
    assert written == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.arrow")}, (
        "nothing was computed again"
    )
    references = ReferenceLogps.open(tmp_path, identity)
    assert len(references) == 2 * NUM_PAIRS
    collator = PreferenceCollator(PackCollator(), references)
    others = tiny.packs(capacity=96, epoch=1)
    online = sum(
        packed_losses([pack], model, PreferenceCollator(PackCollator()), reference=reference) for pack in others
    )
    stored = sum(packed_losses([pack], model, collator) for pack in others)
    assert float(stored) == pytest.approx(float(online), rel=1e-6)
    assert packed_losses([others[0].without_loss()], model, collator) == 0
    cut = tiny.packs(capacity=20, overflow="truncate", no_target="drop")
    assert len(cut)
    with pytest.raises(
        PlanMismatchError, match=r"had other tokens or targets in .*: run compute_references on these packs"
    ):
        collator(list(cut))
    with pytest.raises(SourceNotFoundError, match="no reference log probabilities of that model"):
        ReferenceLogps.open(tmp_path, "another")


def test_a_rank_computes_its_files_and_waits_for_nobody(tmp_path, monkeypatch):
    monkeypatch.setattr("brimful.preferences.references._PACKS_PER_FILE", 1)
    packs, reference = tiny.packs(), tiny.model(1)
    compute_references(reference, packs, PackCollator(), tmp_path, model_id="r1", dp_rank=0, dp_world_size=2)
    with pytest.raises(Exception, match="files: run compute_references to its end on every rank"):
        ReferenceLogps.open(tmp_path)
    compute_references(reference, packs, PackCollator(), tmp_path, model_id="r1", dp_rank=1, dp_world_size=2)
    assert len(ReferenceLogps.open(tmp_path)) == 2 * NUM_PAIRS
    compute_references(reference, packs, PackCollator(), tmp_path, model_id="r2")
    with pytest.raises(SettingsError, match="models: name one"):
        ReferenceLogps.open(tmp_path)


def test_the_reference_is_asked_for_once(tmp_path):
    packs, model = tiny.packs(), tiny.model(0)
    batch = PreferenceCollator(PackCollator())([packs[0]])
    with pytest.raises(SettingsError, match="needs the reference once"):
        packed_preference_loss(model, batch)
    with pytest.raises(SettingsError, match="dialect 'llama_factory' does not fit"):
        PreferenceCollator(PackCollator(dialect="llama_factory"))


def conversations(data_dir, count):
    """Real preferences as LLaMA-Factory has them, and the same in TRL's form."""
    rows = json.loads((data_dir / "text/llama_factory_demo/dpo_en_demo.json").read_text())[:count]
    roles = {"human": "user", "gpt": "assistant", "system": "system"}

    def turn(value):
        return {"role": roles[value["from"]], "content": value["value"]}

    trl_rows = [
        {
            "prompt": [turn(value) for value in row["conversations"]],
            "chosen": [turn(row["chosen"])],
            "rejected": [turn(row["rejected"])],
        }
        for row in rows
    ]
    return rows, trl_rows


def tokens_by_trl(rows, tokenizer):
    """What DPOTrainer makes of rows: tokens of the prompt, then of both completions."""
    trl = pytest.importorskip("trl", minversion="1.16")
    import datasets

    class Trainer:
        _tokenizer = tokenizer

    arguments = type("Arguments", (), {"dataset_num_proc": None, "max_length": None, "truncation_mode": "keep_start"})
    data = datasets.Dataset.from_list(rows)
    return trl.DPOTrainer._prepare_dataset(Trainer(), data, tokenizer, arguments, "train")


def check_tokens(rows, encoder, expected):
    samples = open_source(rows)
    encoded = encoder.encode_batch([samples[index] for index in range(len(samples))])
    assert len(encoded) == 2 * len(expected)
    for index, row in enumerate(expected):
        for side, key in enumerate(("chosen_ids", "rejected_ids")):
            sample = encoded[2 * index + side]
            num_prompt = len(row["prompt_ids"])
            assert sample.input_ids.tolist() == row["prompt_ids"] + row[key], (index, key)
            assert sample.loss_mask.tolist() == [False] * num_prompt + [True] * len(row[key]), (index, key)


@pytest.mark.long
def test_chats_have_the_tokens_of_trl(data_dir, qwen):
    rows, trl_rows = conversations(data_dir, 12)
    expected, encoder = tokens_by_trl(trl_rows, qwen.hf), ChatEncoder(qwen)
    implicit = [{side: row["prompt"] + row[side] for side in ("chosen", "rejected")} for row in trl_rows]
    check_tokens(rows, encoder, expected)
    check_tokens(trl_rows, encoder, expected)
    check_tokens(implicit, encoder, tokens_by_trl(implicit, qwen.hf))


@pytest.mark.long
def test_texts_have_the_tokens_of_trl(data_dir, qwen):
    """Blanks and newlines merge with the prompt on one side only, and some answers end with EOS already."""
    _, trl_rows = conversations(data_dir, 12)
    eos = qwen.hf.eos_token
    rows = [
        {
            "prompt": f"Question: {row['prompt'][-1]['content']}\nAnswer:\n",
            "chosen": ("\n" if index % 2 else " ") + row["chosen"][0]["content"],
            "rejected": row["rejected"][0]["content"] + (eos if index % 3 else ""),
        }
        for index, row in enumerate(trl_rows)
    ]
    expected = tokens_by_trl(rows, qwen.hf)
    alone = [len(qwen.hf(row["prompt"])["input_ids"]) for row in rows]
    assert [len(row["prompt_ids"]) for row in expected] != alone, "no token merges over the end of a prompt"
    check_tokens(rows, CompletionEncoder(qwen), expected)
    implicit = [{side: row["prompt"] + row[side] for side in ("chosen", "rejected")} for row in rows]
    check_tokens(implicit, CompletionEncoder(qwen), tokens_by_trl(implicit, qwen.hf))


def trained(folder, ranks=1):
    """Train two steps on four packs each, one pack a micro-batch, and return the weights."""
    import transformers

    model = tiny.model(0)
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "out"),
        max_steps=2,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=4 // ranks,
        learning_rate=0.1,
        lr_scheduler_type="constant",
        optim="sgd",
        max_grad_norm=0,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
        train_sampling_strategy="sequential",
    )
    trainer = transformers.Trainer(
        model=model,
        args=arguments,
        train_dataset=list(tiny.packs(16, capacity=80))[:8],
        data_collator=PreferenceCollator(PackCollator()),
    )
    train_on_preferences(trainer, reference_model=tiny.model(1), beta=0.3)
    trainer.train()
    before = dict(trainer.preference_metrics)
    empty = PreferenceCollator(PackCollator())([next(iter(tiny.packs(16, capacity=80))).without_loss()])
    trainer.compute_loss(model, empty, num_items_in_batch=torch.tensor(1))
    assert trainer.preference_metrics == before
    assert set(trainer.preference_metrics) == {"rewards/chosen", "rewards/rejected", "rewards/accuracies"}
    return {name: weight.detach().numpy() for name, weight in model.named_parameters()}


def by_hand():
    """Return the weights after two steps of plain gradient descent on the mean over all pairs of each step."""
    model, reference = tiny.model(0), tiny.model(1)
    packs, collator = list(tiny.packs(16, capacity=80))[:8], PreferenceCollator(PackCollator())
    for step in (packs[:4], packs[4:]):
        num_pairs = sum(len(pack.sample_ids) // 2 for pack in step)
        model.zero_grad()
        (packed_losses(step, model, collator, reference=reference) / num_pairs).backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight -= 0.1 * weight.grad
    return {name: weight.detach().numpy() for name, weight in model.named_parameters()}


def difference(one, other):
    return max(float(np.abs(one[name] - other[name]).max()) for name in other)


@pytest.mark.long
def test_trainer_weighs_every_pair_of_a_step_alike(tmp_path):
    """Four micro-batches of different numbers of pairs, as one batch of all."""
    assert difference(trained(tmp_path), by_hand()) < 1e-5
    import transformers

    with pytest.raises(SettingsError, match="its batches need what a PreferenceCollator adds"):
        train_on_preferences(
            transformers.Trainer(model=tiny.model(0), args=transformers.TrainingArguments(str(tmp_path), use_cpu=True))
        )


@pytest.mark.long
def test_two_ranks_of_trainer_are_one(tmp_path):
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, "-W", "ignore", *torchrun, "-m", "tests.preferences.preference_run", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    expected = by_hand()
    losses = evaluate_samples(tiny.model(1), tiny.packs()[:1], PackCollator())
    for rank in (0, 1):
        written = dict(np.load(tmp_path / f"{rank}.npz"))
        assert difference(written, expected) < 1e-5
        assert written["sample_ids"].tolist() == losses.sample_ids.tolist(), "each sample once, on every rank"
        np.testing.assert_allclose(written["nll_sum"], losses.nll_sum, rtol=1e-6)
