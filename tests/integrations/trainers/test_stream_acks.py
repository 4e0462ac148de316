"""Trainers for real on a stream: what a saved checkpoint was trained on is acknowledged, and only that."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")

from brimful import PackCollator  # noqa: E402
from brimful.base.blobs import open_blob_store  # noqa: E402
from brimful.errors import SettingsError  # noqa: E402
from brimful.integrations.trainers.transformers import AckCheckpoints  # noqa: E402
from brimful.stream import (  # noqa: E402
    LazyShardedDataset,
    StreamLoader,
    remove_acknowledged,
)
from brimful.stream.acks import Acks  # noqa: E402
from brimful.testing.toys import toy_stream  # noqa: E402
from tests.integrations.trainers import tiny  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


class Recorder:
    """A collator that remembers the samples with loss, with token ids that the tiny model has."""

    def __init__(self):
        self.collate, self.seen = PackCollator(), []

    def __call__(self, packs):
        self.seen += [int(pack.sample_ids[0]) for pack in packs if pack.num_loss_tokens]
        batch = self.collate(packs)
        batch["input_ids"] %= 64
        if "labels" in batch:
            batch["labels"] = torch.where(batch["labels"] >= 0, batch["labels"] % 64, batch["labels"])
        return batch


def trainer_of(dataset, folder, collator, *, steps, **options):
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=2,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="steps",
        save_steps=2,
        remove_unused_columns=False,
        **{"train_sampling_strategy": "sequential", **options},
    )
    return transformers.Trainer(model=tiny.model(), args=arguments, train_dataset=dataset, data_collator=collator)


@pytest.mark.long
def test_trainer_acknowledges_what_it_saved_and_goes_on_from_it(tmp_path):
    """Killed after a checkpoint and resumed, every sample is trained once, and what is gone is not asked for."""
    stream = toy_stream(tmp_path / "stream", [3, 3, 3, 2], lanes=1)
    first, second = Recorder(), Recorder()
    dataset = LazyShardedDataset(stream, lanes=2)
    trainer = trainer_of(dataset, tmp_path / "run", first, steps=6)
    trainer.add_callback(AckCheckpoints(dataset, "run", completed_files=True))
    trainer.add_callback(StopAt(4))
    trainer.train()
    acks = Acks(open_blob_store(stream), "run")
    assert acks.positions() == [4, 8]
    completed = sorted(path.name[:8] for path in (tmp_path / "stream" / "shards").glob("*.arrow.completed"))
    assert completed == ["00000000", "00000001"]
    assert remove_acknowledged(stream, ["run"], keep=1) == 2
    again = LazyShardedDataset(stream, lanes=2)
    resumed = trainer_of(again, tmp_path / "run", second, steps=6)
    resumed.add_callback(AckCheckpoints(again, "run"))
    resumed.train(resume_from_checkpoint=True)
    # The loader of Trainer reads ahead by one, which is no training.
    assert (first.seen[:8], second.seen) == ([0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 10])
    assert acks.positions() == [4, 8, 12]


class StopAt(transformers.TrainerCallback):  # type: ignore[name-defined]
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **objects):
        control.should_training_stop = state.global_step == self.step


@pytest.mark.long
@pytest.mark.parametrize(
    ("steps", "options"), [(6, {"train_sampling_strategy": "random"}), (8, {})], ids=["shuffled", "two passes"]
)
def test_shards_that_are_asked_for_again_stay(tmp_path, steps, options):
    """A shuffled order, or a second pass, needs the first shard until the end: an ack must not let it go."""
    stream = toy_stream(tmp_path / "stream", [3, 3, 3, 3])
    dataset = LazyShardedDataset(stream, lanes=2)
    trainer = trainer_of(dataset, tmp_path / "run", Recorder(), steps=steps, **options)
    trainer.add_callback(AckCheckpoints(dataset, "run"))
    trainer.train()
    # Of the first pass too, whose position alone would let shards go.
    assert remove_acknowledged(stream, ["run"], keep=3) == 0


@pytest.mark.parametrize(
    ("args", "max_steps", "removed"),
    [
        ({"train_sampling_strategy": "random", "train_dataloader_shuffle": False}, 6, 2),
        ({"train_sampling_strategy": "random", "train_dataloader_shuffle": True}, 6, 0),
        ({"train_sampling_strategy": "sequential"}, 6, 2),
        ({"train_sampling_strategy": "sequential"}, 7, 0),
        *[({"train_sampling_strategy": other}, 6, 0) for other in ("random", "unknown")],
        ({}, 6, 0),
    ],
)
def test_shards_go_only_where_the_order_is_known_to_be_one_pass(tmp_path, args, max_steps, removed):
    """Six steps of two packs are a pass over eleven. ms-swift leaves ``train_sampling_strategy`` at ``random``, and its own
    flag says more; without it every shard would be kept."""
    stream = toy_stream(tmp_path / "stream", [3, 3, 3, 2], lanes=1)
    callback = AckCheckpoints(LazyShardedDataset(stream, lanes=2), "run", completed_files=True)
    state = SimpleNamespace(is_world_process_zero=False, max_steps=max_steps, global_step=4)
    callback.on_save(SimpleNamespace(**args), state, None)
    assert not Acks(open_blob_store(stream), "run").positions(), "one rank acknowledges"
    state.is_world_process_zero = True
    callback.on_save(SimpleNamespace(**args), state, None)
    assert len(list((tmp_path / "stream" / "shards").glob("*.completed"))) == removed
    assert remove_acknowledged(stream, ["run"], keep=1) == removed


def test_packs_of_a_step_are_those_of_all_ranks(tmp_path):
    """As the loader counts them, or without it batch × ranks × accumulation."""
    callback = AckCheckpoints(LazyShardedDataset(toy_stream(tmp_path / "stream", [3]), lanes=24), "run")
    loader = SimpleNamespace(total_batch_size=12)
    for objects, size in (({}, 3), ({"train_dataloader": loader}, 9)):
        args = SimpleNamespace(train_batch_size=size, world_size=4, gradient_accumulation_steps=2)
        callback.on_train_begin(args, None, None, **objects)
    for size in (2, 4):
        args.train_batch_size = size
        with pytest.raises(SettingsError, match=rf"takes {8 * size} packs .*lanes=24 .*lanes={8 * size}\)"):
            callback.on_train_begin(args, None, None)


def test_other_steps_than_the_data_set_counts_are_refused(tmp_path):
    """Acknowledging too far removes shards that a resumed run needs."""
    dataset = LazyShardedDataset(toy_stream(tmp_path / "stream", [4, 4]), lanes=4)
    trainer = trainer_of(dataset, tmp_path / "run", Recorder(), steps=2)
    trainer.add_callback(AckCheckpoints(dataset, "run"))
    with pytest.raises(SettingsError, match=r"takes 2 packs and the data set counts lanes=4 .*lanes=2\)"):
        trainer.train()


def test_lightning_goes_on_behind_the_steps_it_saved(tmp_path):
    """It reads ahead by a batch: the state of the loader would leave one out, and an ack would let it go."""
    pl = pytest.importorskip("lightning.pytorch")
    from brimful.integrations.trainers.lightning import LightningAckCheckpoints, StreamDataModule

    class Module(pl.LightningModule):  # type: ignore[name-defined]
        def __init__(self):
            super().__init__()
            self.layer, self.seen = torch.nn.Linear(1, 1), []

        def training_step(self, samples, index):
            self.seen += samples
            return self.layer(torch.ones(1)).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-2)

    stream = toy_stream(tmp_path / "stream", [3, 3, 3, 2])

    def fit(steps, lanes=2, checkpoint=None, **options):
        def ids(packs):
            return [int(pack.sample_ids[0]) for pack in packs if pack.num_loss_tokens]

        data = StreamDataModule(StreamLoader(stream, ids, lanes=lanes, packs_per_micro_batch=1, timeout=60))
        module = Module()
        trainer = pl.Trainer(
            default_root_dir=tmp_path,
            max_steps=steps,
            accelerator="cpu",
            accumulate_grad_batches=2,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[
                LightningAckCheckpoints(data, "run", completed_files=True),
                pl.callbacks.ModelCheckpoint(tmp_path / "run", every_n_train_steps=2, save_top_k=-1, filename="{step}"),
            ],
            **{"max_epochs": 1, **options},
        )
        trainer.fit(module, data, ckpt_path=checkpoint)
        return module.seen

    class FullDisk(pl.plugins.io.TorchCheckpointIO):  # type: ignore[name-defined]
        def save_checkpoint(self, *arguments, **options):
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        fit(5, plugins=[FullDisk()])
    assert Acks(open_blob_store(stream), "run").positions() == [], "nothing that is not written"
    first = fit(5)
    acks = Acks(open_blob_store(stream), "run")
    assert (first, acks.positions()) == (list(range(10)), [4, 8])
    assert remove_acknowledged(stream, ["run"], keep=1) == 2
    assert len(list((tmp_path / "stream" / "shards").glob("*.completed"))) == 2
    assert fit(-1, checkpoint=tmp_path / "run" / "step=4.ckpt") == [8, 9, 10]
    assert acks.positions() == [4, 8, 12]
    with pytest.raises(SettingsError, match=r"takes 2 packs .*lanes=4"):
        fit(2, lanes=4)
    with pytest.raises(SettingsError, match=r"a stream is served once: Trainer\(max_epochs=1\), not 2"):
        fit(2, max_epochs=2)
    with pytest.raises(SettingsError, match="repeat=False"):
        StreamDataModule(StreamLoader(stream, repeat=True))
    with pytest.raises(SettingsError, match="do not use AsyncCheckpointIO"):
        fit(2, plugins=[pl.plugins.io.AsyncCheckpointIO()])
