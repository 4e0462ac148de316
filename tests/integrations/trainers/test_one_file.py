"""One call for one file: the trainer's arguments, with the losses of the long way, kept by content, the same on two ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.0")
pytest.importorskip("accelerate")

from brimful import ChatEncoder, PackedDataset, measure_lengths, open_source, plan_packs  # noqa: E402
from brimful.cli.demo.toy_model import train_tokenizer  # noqa: E402
from brimful.errors import NoTargetError, OversizedSampleError, SettingsError  # noqa: E402
from brimful.integrations.trainers import collator_for, one_file, packed_for_transformers, packed_for_trl  # noqa: E402
from brimful.integrations.trainers.one_file import packs_of_file  # noqa: E402
from tests.integrations.trainers import tiny  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

ROOT = Path(__file__).resolve().parents[3]
STEPS = 5


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A file of 41 chats, one far too long and one without an answer, with a tokenizer."""
    here = tmp_path_factory.mktemp("one-file")
    questions = [[f"What is {a} + {a}?", f"{a + a}. " * (1 + a % 5)] for a in range(39)]
    chats = [[{"role": "user", "content": ask}, {"role": "assistant", "content": answer}] for ask, answer in questions]
    chats += [[{"role": "user", "content": "Count."}, {"role": "assistant", "content": "one two three " * 400}]]
    chats += [[{"role": "user", "content": "Nobody answers."}]]
    (here / "chats.jsonl").write_text("".join(json.dumps({"messages": turns}) + "\n" for turns in chats))
    train_tokenizer([turn["content"] for turns in chats for turn in turns], here / "tokenizer", vocab_size=400)
    return here


@pytest.fixture
def tokenizer(home, tmp_path, monkeypatch):
    monkeypatch.setenv("BRIMFUL_CACHE", str(tmp_path / "cache"))
    return transformers.AutoTokenizer.from_pretrained(home / "tokenizer")


def settings(folder, **options):
    return {
        "output_dir": str(folder),
        "max_steps": STEPS,
        "per_device_train_batch_size": 1,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        **options,
    }


def long_way(home, tokenizer):
    source, encoder = open_source(home / "chats.jsonl"), ChatEncoder(tokenizer)
    plan = plan_packs(measure_lengths(source, encoder), capacity=256, overflow="truncate", no_target="drop")
    return PackedDataset.from_plan(source, encoder, plan)


def losses(trainer):
    trainer.train()
    found = [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
    assert len(found) == STEPS
    return found


def test_trainer_has_the_losses_of_the_long_way(home, tokenizer, tmp_path, capfd):
    """And says in one line what was cut and what was left out."""
    args = transformers.TrainingArguments(**settings(tmp_path))
    call = packed_for_transformers(tiny.model(), tokenizer, home / "chats.jsonl", args, max_length=256)
    ours = losses(transformers.Trainer(**call))
    model = tiny.model()
    theirs = transformers.Trainer(
        model, args, train_dataset=long_way(home, tokenizer), data_collator=collator_for(model, device="cpu")
    )
    assert ours == losses(theirs)
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "left out" in line]
    assert "40 samples in " in line
    assert "; 1 cut, which loses " in line
    assert line.endswith("; 1 left out: without a target of the loss")


@pytest.mark.long
def test_sft_trainer_has_the_losses_of_the_long_way(home, tokenizer, tmp_path):
    """``max_length`` and ``dataset_num_proc`` are the SFTConfig's."""
    trl = pytest.importorskip("trl", minversion="1.10")
    from brimful.integrations.trainers.trl import SFTPacks, for_packs

    def args():
        return trl.SFTConfig(**settings(tmp_path, max_length=256, dataset_num_proc=1, bf16=False))

    ours = losses(trl.SFTTrainer(**packed_for_trl(tiny.model(), tokenizer, home / "chats.jsonl", args())))
    model = tiny.model()
    theirs = trl.SFTTrainer(
        model,
        for_packs(args()),
        train_dataset=SFTPacks(long_way(home, tokenizer)),
        data_collator=collator_for(model, device="cpu"),
        processing_class=tokenizer,
    )
    assert ours == losses(theirs)


@pytest.mark.long
def test_lightning_has_the_losses_of_the_long_way(home, tokenizer, tmp_path):
    pytest.importorskip("lightning.pytorch")
    import lightning.pytorch as pl

    from brimful.integrations.trainers.lightning import PackDataModule, packed_for_lightning

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model, self.losses = tiny.model(), []

        def training_step(self, batch, index):
            loss = self.model(**batch).loss
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    def fit(data_of):
        module = Module()
        options = {"max_steps": STEPS, "accelerator": "cpu", "logger": False, "enable_checkpointing": False}
        options |= {"enable_progress_bar": False, "enable_model_summary": False}
        pl.Trainer(default_root_dir=tmp_path, **options).fit(module, data_of(module.model))
        assert len(module.losses) == STEPS
        return module.losses

    call = {"tokenizer": tokenizer, "source": home / "chats.jsonl", "max_length": 256, "device": "cpu"}
    ours = fit(lambda model: packed_for_lightning(model, **call))
    assert ours == fit(lambda model: PackDataModule(long_way(home, tokenizer), collator_for(model, device="cpu")))


def test_a_second_run_finds_lengths_and_plan(home, tokenizer, tmp_path, monkeypatch):
    """Also of a copy of the file: they are kept by content."""
    first = packs_of_file(home / "chats.jsonl", tokenizer, max_length=256)
    kept = [*(tmp_path / "cache" / "shared" / "plans").iterdir(), *(tmp_path / "cache" / "lengths").rglob("*.arrow")]
    times = {path: path.stat().st_mtime_ns for path in kept}
    assert len(kept) >= 2
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes((home / "chats.jsonl").read_bytes())
    monkeypatch.setattr("brimful.clusters.source_plans.plan_with", None)
    second = packs_of_file(copy, tokenizer, max_length=256)
    assert second.fingerprint == first.fingerprint
    assert {path: path.stat().st_mtime_ns for path in kept} == times


@pytest.mark.parametrize(
    ("lengths", "options", "line"),
    [
        ([3, 4], {}, "2 samples in 1 pack of at most 7 tokens, fill 100.00 %"),
        ([3, 4, 7, 7], {}, "4 samples in 3 packs of at most 7 tokens, fill 100.00 %"),
        ([3, 9, 10], {"overflow": "truncate"}, "3 samples in 3 packs of at most 7 tokens, fill 80.95 %; 2 cut, which loses 5 tokens"),
        ([3, 9], {"overflow": "drop"}, "1 sample in 1 pack of at most 7 tokens, fill 42.86 %; 1 left out: "),
    ],
)  # fmt: skip
def test_what_was_packed_cut_and_left_out_is_one_line(lengths, options, line):
    found = one_file._account("f", plan_packs(lengths, capacity=7, **options))
    assert found.startswith(f"f: {line}")
    assert line.endswith("left out: ") or found == f"f: {line}"


def test_rows_may_be_refused_instead(home, tokenizer):
    with pytest.raises(OversizedSampleError):
        packs_of_file(home / "chats.jsonl", tokenizer, max_length=256, overflow="error")
    with pytest.raises(NoTargetError):
        packs_of_file(home / "chats.jsonl", tokenizer, max_length=256, no_target="error")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"packing": True}, "packing=True does not go with packs"),
        ({"assistant_only_loss": True}, "only answers of packed samples are targets"),
        ({"max_length": None}, "max_length of the SFTConfig is None"),
        ({"train_sampling_strategy": "group_by_length"}, "group_by_length"),
    ],
)
def test_settings_that_clash_are_refused_before_any_work(home, tokenizer, tmp_path, option, message):
    trl = pytest.importorskip("trl", minversion="1.10")
    args = trl.SFTConfig(**settings(tmp_path, bf16=False, **option))
    with pytest.raises(SettingsError, match=message):
        packed_for_trl(tiny.model(), tokenizer, home / "no such file", args)


@pytest.mark.long
def test_two_ranks_of_torchrun_share_one_plan(home, tmp_path):
    """Rank 0 measures; both train five steps on the packs of one plan, and no pack is on both."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [
        sys.executable,
        "-W",
        "ignore",
        *torchrun,
        "-m",
        "tests.integrations.trainers.one_file_run",
        str(home),
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr.count("left out: without a target") == 1, "rank 0 alone says it"
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert ranks[0]["plan"] == ranks[1]["plan"]
    assert [rank["measured"] for rank in ranks] == [True, False]
    assert ranks[0]["losses"] == ranks[1]["losses"], "of all ranks, as Trainer logs it"
    assert not set(ranks[0]["seen"]) & set(ranks[1]["seen"])
