"""Streams in ms-swift: its flags keep their meaning, contradictions are named, and a training gets the packs in order."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch")

from brimful.collate import Media, PackExtras
from brimful.errors import BadSampleError, SettingsError
from brimful.integrations.trainers import ms_swift_stream
from brimful.integrations.trainers.ms_swift_stream import SwiftStream, take_flags
from brimful.media.collate import MediaFeatures
from brimful.stream import LazyShardedDataset, PackingProducer
from brimful.testing.toys import toy_stream, toy_tree
from tests.integrations.trainers.swift_stream_run import CANNOT
from tests.store.pictures import PictureEncoder, chat, picture
from tests.stream.producer.streams import append

VARIABLE = "BRIMFUL_PYTHON_MS_SWIFT"
FLAGS = ["--sharded_lazy", "true", "--sharded_lazy_pre_packed", "true"]


@pytest.fixture
def swift(monkeypatch):
    """What of ms-swift a training that is given declared steps looks up."""
    callbacks = SimpleNamespace(TrainerCallback=object, callbacks_map={})
    monkeypatch.setitem(sys.modules, "swift", SimpleNamespace(callbacks=callbacks))
    monkeypatch.setitem(sys.modules, "swift.callbacks", callbacks)
    return callbacks


def arguments(stream, **values):
    """Arguments as ms-swift has them where plugins are imported."""
    given = {"packing": False, "streaming": False, "attn_impl": "sdpa", "dataset": [str(stream)], "val_dataset": []}
    given |= {
        "cached_dataset": [],
        "max_steps": 4,
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": None,
    }
    given |= {"training_args": SimpleNamespace(gradient_accumulation_steps=2, callbacks=[])}  # resolved there alone
    given |= {"global_world_size": 2, "train_dataloader_shuffle": False, "ignore_args_error": False}
    return SimpleNamespace(**given | values)


def read(monkeypatch, args, argv):
    """Read a command line as the plugin does."""
    monkeypatch.setattr(sys, "argv", ["sft", *argv])
    monkeypatch.setattr(
        ms_swift_stream, "_unknown_to_swift", lambda _, others: [name for name in others if "typo" in name]
    )
    ms_swift_stream._read_flags(args)
    return args


def test_flags_are_read_as_ms_swift_reads_booleans(capsys):
    flags, others = take_flags(["--sharded_lazy", "--model", "m", "--sharded_lazy_pre_packed", "False"])
    assert flags == {"sharded_lazy": True, "sharded_lazy_pre_packed": False}
    assert others == ["--model", "m"]
    with pytest.raises(SystemExit, match="2"):
        take_flags(["--sharded_lazy", "maybe"])
    assert "argument --sharded_lazy: invalid choice: 'maybe'" in capsys.readouterr().err


def test_without_the_flags_nothing_changes(monkeypatch, tmp_path):
    """What ms-swift does not know is still its own business to refuse."""
    args = read(monkeypatch, arguments(tmp_path), ["--typo", "--sharded_lazy", "false"])
    assert not args.ignore_args_error
    assert not hasattr(args, "_streams_packs")


@pytest.mark.parametrize(
    ("values", "argv", "error"),
    [
        ({}, FLAGS[2:], "goes with --sharded_lazy true"),
        ({"packing": True}, FLAGS, "set --packing false"),
        ({"streaming": True}, FLAGS, "set --streaming false"),
        ({"rlhf_type": "dpo"}, FLAGS, "is for `swift sft`"),
        ({"val_dataset": ["v"]}, FLAGS, "--dataset STREAM, without data sets"),
        ({"attn_impl": "paged"}, FLAGS, "--attn_impl paged does not see packs"),
        ({}, [*FLAGS, "--typo", "3"], "ms-swift does not know --typo"),
    ],
)
def test_contradictions_are_refused_with_the_flag_to_change(monkeypatch, tmp_path, values, argv, error):
    with pytest.raises(SettingsError, match=error):
        read(monkeypatch, arguments(tmp_path, **values), argv)


def test_a_global_batch_is_the_lanes(monkeypatch, tmp_path):
    """Two ranks with two packs each: samplers by number deliver each pack once."""
    stream = toy_stream(tmp_path / "s", [3, 3, 3])
    args = read(monkeypatch, arguments(stream, max_steps=-1), FLAGS)
    rows = ms_swift_stream._stream_of(args)
    assert args.ignore_args_error
    assert (len(rows), rows.packs.lanes) == (12, 4)
    assert [index for index in range(12) if all(label == -100 for label in rows[index]["labels"])] == [9, 10, 11]


def test_trees_are_refused():
    """ms-swift takes every position 0 for the beginning of a sample."""

    class Trees(list):
        media_settings = None

    with pytest.raises(SettingsError, match=r"pack 0 of the stream is a tree of 2 samples, .* share=\"prefixes\""):
        SwiftStream(Trees([toy_tree([[5, 6], [5, 7]])]))[0]  # type: ignore[arg-type]


def test_a_stream_that_grows_needs_steps_and_no_shuffling(tmp_path, swift):
    producer = PackingProducer(
        [{"text": "abc"}] * 40, toy_encoder(), tmp_path, capacity=16, lookahead=4, packs_per_shard=1
    )
    while not list(tmp_path.glob("log/*")):
        producer.step()
    with pytest.raises(SettingsError, match="still grows, so its length is unknown: set --max_steps"):
        ms_swift_stream._stream_of(arguments(tmp_path, max_steps=-1))
    with pytest.raises(SettingsError, match="--train_dataloader_shuffle false"):
        ms_swift_stream._stream_of(arguments(tmp_path, train_dataloader_shuffle=True))
    rows = ms_swift_stream._stream_of(arguments(tmp_path, global_batch_size=2, train_iters=3))
    assert len(rows) == 6
    assert rows[0]["position_ids"][:4] == [0, 1, 2, 0]
    assert rows[0]["length"] == len(rows[0]["labels"])


def test_declared_steps_do_not_begin_again_when_the_stream_has_ended(tmp_path, swift):
    """A training that is resumed then goes on with the numbers that it had: what it has trained may be removed."""
    stream = toy_stream(tmp_path / "s", [3, 3, 3])
    rows = ms_swift_stream._stream_of(arguments(stream, max_steps=5))
    assert (len(rows), rows.packs[12].num_loss_tokens) == (20, 0)
    assert len(ms_swift_stream._stream_of(arguments(stream, max_steps=5, train_dataloader_shuffle=True))) == 12


def test_a_training_ends_at_the_first_step_without_packs(tmp_path, swift):
    """Every rank asks for its own step, also where workers have read the packs and this process has seen no end."""
    training, stream = arguments(tmp_path).training_args, toy_stream(tmp_path / "s", [3, 3, 3])
    training.callbacks.append("mine")
    for others in ({"max_steps": -1}, {"train_dataloader_shuffle": True}):  # epochs read it again
        ms_swift_stream._stream_of(arguments(stream, training_args=training, **others))
    assert training.callbacks == ["mine"]
    ms_swift_stream._stream_of(arguments(stream, training_args=training, max_steps=99))
    callback = swift.callbacks_map[training.callbacks[1]]()
    state = SimpleNamespace(max_steps=99)
    for state.global_step in range(4):
        assert state.max_steps == 99
        callback.on_step_begin(None, state, None)
    assert state.max_steps == 4


def test_a_batch_without_targets_has_no_loss():
    """The mean over none is nan; one over targets stays, also where training has diverged."""
    import torch

    def loss(logits, labels):
        def compute(model, inputs, *, trainer):
            mean = torch.nn.functional.cross_entropy(logits[:-1], inputs["labels"][0, 1:])
            return SimpleNamespace(loss=mean)

        return ms_swift_stream._loss_of_targets(compute, None, {"labels": torch.tensor([labels])}, trainer=None).loss

    logits = torch.randn(3, 5, requires_grad=True)
    empty = loss(logits, [2, -100, -100])
    empty.backward()
    assert (empty.item(), logits.grad.abs().sum().item()) == (0.0, 0.0)
    assert loss(logits, [2, 1, -100]) == torch.nn.functional.cross_entropy(logits[:1], torch.tensor([1]))
    assert loss(logits * float("nan"), [2, 1, -100]).isnan()


def toy_encoder():
    from brimful.testing.toys import toy_chat_encoder

    return toy_chat_encoder()


def stream_with_media(tmp_path):
    class Encoder(PictureEncoder):
        length_settings = {"encoder": "toy", "media": {"family": "toy"}}

    PackingProducer([chat("a", picture(1))], Encoder(), tmp_path, capacity=64).close()
    return LazyShardedDataset(tmp_path)


def test_packs_with_media_get_their_features_where_the_batch_is_made(tmp_path, monkeypatch):
    """The template's own collator would leave them out."""
    packs = stream_with_media(tmp_path)
    seen = []

    def of_packs(*given):
        seen.append(given)
        return lambda pack: PackExtras(
            media=(Media("image", np.zeros(1, np.int32), {"pixel_values": np.ones((2, 3))}),)
        )

    monkeypatch.setattr(MediaFeatures, "of_packs", of_packs)
    template = SimpleNamespace(data_collator=None)
    training = SimpleNamespace(ddp_find_unused_parameters=None)
    ms_swift_stream._take_media(template, packs, SimpleNamespace(model_dir="model", training_args=training))
    assert training.ddp_find_unused_parameters, "one rank without media would let the others wait for ever"
    batch = template.data_collator([SwiftStream(packs)[0]], padding_to=None)
    assert seen == [(packs, "model")]
    assert batch["pixel_values"].tolist() == [[1.0] * 3] * 2
    assert batch["input_ids"].tolist() == [packs[0].input_ids.tolist()]


@pytest.mark.parametrize(("megatron", "sequence_parallel_size"), [(True, 1), (False, 2)])
def test_trainers_that_divide_a_batch_take_no_media(tmp_path, megatron, sequence_parallel_size):
    """Nothing says that their parts hold the features that belong to their tokens."""
    args = SimpleNamespace(model_dir="model", sequence_parallel_size=sequence_parallel_size)
    with pytest.raises(SettingsError, match="holds media, which `swift sft` and `swift pt` take"):
        ms_swift_stream._take_media(SimpleNamespace(use_megatron=megatron), stream_with_media(tmp_path), args)


def test_raw_rows_are_encoded_by_the_data_set_and_each_rank_opens_its_own_chunks(tmp_path, monkeypatch):
    """Two ranks with two rows each at a time; chunks of unequal sizes, each row once."""
    for chunk, count in enumerate([4, 4, 2, 2]):
        append(tmp_path / f"chunk_{chunk:05d}.jsonl", [{"text": f"{chunk}-{row}"} for row in range(count)])
    args = read(monkeypatch, arguments(tmp_path, per_device_train_batch_size=2, max_steps=1), FLAGS[:2])
    args.training_args.gradient_accumulation_steps = 3
    rows = ms_swift_stream._rows_of(args, lambda row, return_length: row["text"])
    assert args._streams_packs is False
    texts = [rows[number] for number in range(len(rows))]
    first, second = (texts[place : place + 2] for place in (0, 2))
    assert (first, second) == (["0-0", "0-1"], ["1-0", "1-1"])
    assert sorted(texts) == [f"{chunk}-{row}" for chunk, count in enumerate([4, 4, 2, 2]) for row in range(count)]
    assert {text[0] for number, text in enumerate(texts) if number % 4 < 2} == {"0", "2"}
    unread = ms_swift_stream._rows_of(args, lambda row, return_length: row["messages"])
    with pytest.raises(BadSampleError, match=r"chunk_00002\.jsonl:1.*cannot encode it: KeyError\('messages'\)"):
        unread[8]
    with pytest.raises(SettingsError, match="set --max_steps"):
        ms_swift_stream._rows_of(arguments(tmp_path, max_steps=-1), print)


@pytest.mark.long
@pytest.mark.parametrize("run", ["swift_stream_run", "swift_audio_run"])
def test_swift_sft_trains_on_a_stream_that_grows(tmp_path, run):
    """The command of ms-swift's own Python with the four flags; each pack in order, and its samples isolated."""
    interpreter = os.environ.get(VARIABLE)
    if interpreter is None and importlib.util.find_spec("swift") is None:
        pytest.skip(f"ms-swift is not installed ({VARIABLE} may name its interpreter)")
    flags = [*FLAGS, "--packing", "false", "--train_dataloader_shuffle", "false"]
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [
            interpreter or sys.executable,
            "-W",
            "ignore",
            "-m",
            f"tests.integrations.trainers.{run}",
            str(tmp_path),
            *flags,
        ],
        cwd=root,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    if done.returncode == CANNOT:
        pytest.skip(f"ms-swift cannot be imported: {done.stderr.strip().splitlines()[-1]} ({VARIABLE})")
    assert done.returncode == 0, done.stderr[-3000:]
    outcome = json.loads(done.stdout.strip().splitlines()[-1])
    assert outcome["packs"] == 6
    assert outcome["segments"] > 1
