"""Streams in ms-swift: its flags keep their meaning, contradictions are named, and a training gets the packs in order."""

import importlib.util
import json
import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from brimful.collate import AttachedInputs, PackExtras
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
    given |= {"sequence_parallel_size": 1, "padding_free": False}
    given |= {"global_world_size": 2, "train_dataloader_shuffle": False, "ignore_args_error": False}
    return SimpleNamespace(**given | values)


def read(monkeypatch, args, argv):
    """Read a command line as the plugin does."""
    monkeypatch.setattr(sys, "argv", ["typo.py", *argv])
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
        *[({name: ["v"]}, FLAGS, "--dataset STREAM, without data sets") for name in ("val_dataset", "cached_dataset")],
        *[({"dataset": data}, FLAGS, "--dataset STREAM, without data sets") for data in ([], ["a", "b"])],
        ({"attn_impl": "paged"}, FLAGS, "--attn_impl paged does not see packs"),
        ({}, [*FLAGS, "--typo", "3"], "ms-swift does not know --typo"),
        ({"train_iters": 3}, FLAGS, "set --padding_free true"),
    ],
)
def test_contradictions_are_refused_with_the_flag_to_change(monkeypatch, tmp_path, values, argv, error):
    with pytest.raises(SettingsError, match=error):
        read(monkeypatch, arguments(tmp_path, **values), argv)


def test_flags_of_ray_and_what_the_parser_of_ms_swift_leaves(monkeypatch, tmp_path):
    """Ray's workers have the command line in a variable; an argument that no class of ms-swift has is named."""

    @dataclass
    class Arguments:
        model: str = ""

    modules = {"swift": {}, "swift.utils": {}, "swift.utils.utils": {"_patch_get_type_hints": nullcontext}}
    for name, values in modules.items():
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        vars(sys.modules[name]).update(values)
    monkeypatch.setattr(sys, "argv", ["worker"])
    for others, unknown in ((["--model", "m"], None), (["--model", "m", "--modle", "m"], "--modle m")):
        args: Any = Arguments()
        vars(args).update(vars(arguments(tmp_path)))
        monkeypatch.setenv("RAY_SWIFT_ARGS", json.dumps([*FLAGS, *others]))
        with pytest.raises(SettingsError, match=f"does not know {unknown}$") if unknown else nullcontext():
            ms_swift_stream._read_flags(args)
        assert args.ignore_args_error is (unknown is None)


@pytest.mark.parametrize("attention", [None, *ms_swift_stream.SEE_PACKS])
def test_every_attention_that_sees_packs_is_accepted(monkeypatch, tmp_path, attention):
    args = read(monkeypatch, arguments(tmp_path, attn_impl=attention), FLAGS)
    assert args._streams_packs
    del args.attn_impl, args._streams_packs
    assert read(monkeypatch, args, FLAGS)._streams_packs


@pytest.mark.parametrize("flags", [FLAGS, FLAGS[:2]], ids=["packs", "rows"])
def test_the_pipeline_is_given_the_stream(monkeypatch, tmp_path, flags):
    """Flags are read where plugins are imported, before ms-swift's own step; then the data set is the stream, without a
    second one to evaluate on, and of packs the template flattens the rows."""
    calls = []
    base = type("BaseArguments", (), {"_init_model_kwargs": lambda self: calls.append(self._streams_packs)})
    sft = type("SwiftSft", (), {"_prepare_dataset": lambda self: "theirs"})
    for name, values in (
        ("arguments.base_args.base_args", {"BaseArguments": base}),
        ("pipelines.train.sft", {"SwiftSft": sft}),
    ):
        monkeypatch.setitem(sys.modules, f"swift.{name}", SimpleNamespace(**values))
    ms_swift_stream.install_stream_flags()
    is_packs = flags is FLAGS
    stream = toy_stream(tmp_path / "s", [3, 3]) if is_packs else str(tmp_path)
    append(tmp_path / "chunk_00000.jsonl", [{"text": str(row)} for row in range(16)])
    args = base()
    vars(args).update(vars(arguments(stream, max_steps=-1 if is_packs else 4)))
    pipeline = sft()
    pipeline.args, pipeline.template = (
        args,
        SimpleNamespace(
            packing=False,
            padding_free=False,
            encode=lambda row, return_length: row["text"],
            compute_sft_loss=lambda *_: None,
        ),
    )
    read_flags = ms_swift_stream._read_flags
    monkeypatch.setattr(ms_swift_stream, "_read_flags", lambda args: read(monkeypatch, args, flags))
    with monkeypatch.context() as inner:
        inner.setattr(ms_swift_stream, "_read_flags", lambda _: None)
        assert pipeline._prepare_dataset() == "theirs"
    monkeypatch.setattr(sys, "argv", ["sft", *flags])
    monkeypatch.setattr(ms_swift_stream, "_unknown_to_swift", lambda *_: [])
    monkeypatch.setattr(ms_swift_stream, "_read_flags", read_flags)
    args._init_model_kwargs()
    assert calls == [is_packs]
    rows, evaluation = pipeline._prepare_dataset()
    assert evaluation is None
    assert len(rows) == (8 if is_packs else 16)
    assert (pipeline.template.packing, pipeline.template.padding_free) == (is_packs, is_packs)


def test_a_global_batch_is_the_lanes(monkeypatch, tmp_path):
    """Two ranks with two packs each: samplers by number deliver each pack once."""
    stream = toy_stream(tmp_path / "s", [3, 3, 3])
    args = read(monkeypatch, arguments(stream, max_steps=-1), FLAGS)
    rows = ms_swift_stream._stream_of(args)
    assert args.ignore_args_error
    assert (len(rows), rows.packs.lanes) == (12, 4)
    assert [index for index in range(12) if all(label == -100 for row in rows[index] for label in row["labels"])] == [
        9,
        10,
        11,
    ]


def test_ranks_that_share_a_sequence_share_its_packs(monkeypatch, tmp_path):
    """Four ranks in pairs read as two: with twice the lanes the training ended in the middle of its stream."""
    parallel = {"global_world_size": 4, "sequence_parallel_size": 2}
    args = read(monkeypatch, arguments(toy_stream(tmp_path / "s", [3, 3, 3]), max_steps=-1, **parallel), FLAGS)
    assert args.padding_free, "parts are cut by samples"
    assert ms_swift_stream._stream_of(args).packs.lanes == 4
    for processes, batch in ((0, 2), (1, 2), (2, 4)):  # 0 where torchrun did not start it
        alone = arguments(tmp_path, global_world_size=processes)
        assert ms_swift_stream._global_batch(alone) == batch
    for chunk in range(2):
        append(tmp_path / f"chunk_{chunk:05d}.jsonl", [{"text": f"{chunk}-{row}"} for row in range(4)])
    args = read(monkeypatch, arguments(tmp_path, per_device_train_batch_size=2, max_steps=2, **parallel), FLAGS[:2])
    args.training_args.gradient_accumulation_steps = 1
    rows = ms_swift_stream._rows_of(args, lambda row, return_length: row["text"])
    assert [rows[number] for number in range(8)] == [f"{chunk}-{row}" for chunk in range(2) for row in range(4)]
    assert not args.padding_free


def test_rows_are_the_samples_of_a_pack(tmp_path):
    """In ms-swift's own packing a row is a list of samples, whose number and lengths Megatron's models ask for, and which
    context parallelism pads one by one. Rows of whole packs were one sample to both."""
    packs = LazyShardedDataset(toy_stream(tmp_path, [2, 1]))
    for index in range(3):
        pack, rows = packs[index], SwiftStream(packs)[index]
        assert (
            [len(row["labels"]) for row in rows] == [row["length"] for row in rows] == np.diff(pack.cu_seqlens).tolist()
        )
        for name, due in (("input_ids", pack.input_ids), ("labels", pack.labels)):
            assert [value for row in rows for value in row[name]] == due.tolist()
        assert set(rows[0]) == {"input_ids", "labels", "length"}


def test_trees_are_refused():
    """ms-swift takes every position 0 for the beginning of a sample."""

    class Trees(list):
        attachment_settings = None

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
    with pytest.raises(SettingsError, match="set --train_iters"):
        ms_swift_stream._stream_of(arguments(tmp_path, global_batch_size=2, train_iters=None))
    with pytest.raises(SettingsError, match="--train_dataloader_shuffle false"):
        ms_swift_stream._stream_of(arguments(tmp_path, train_dataloader_shuffle=True))
    rows = ms_swift_stream._stream_of(arguments(tmp_path, global_batch_size=2, train_iters=3))
    assert len(rows) == 6
    assert [row["length"] for row in rows[0][:2]] == [3, 3]


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


def features_of(arrays_of):
    """Stand in for ``MediaFeatures``: arrays by the sample."""

    def make(pack):
        ids = pack.input_ids.tolist()
        return PackExtras(attached=(AttachedInputs("image", np.zeros(1, np.int32), arrays_of(ids)),))

    return make


@pytest.mark.parametrize("megatron", [False, True])
@pytest.mark.parametrize("needs_types", [False, True])
def test_packs_with_media_get_their_features_where_the_batch_is_made(tmp_path, monkeypatch, megatron, needs_types):
    """Each sample has its own, as in ms-swift; the template's collator joins them, and gets what Megatron pads to."""
    packs, seen = stream_with_media(tmp_path), []
    arrays = {"pixel_values": np.ones((2, 3)), "second_per_grid_ts": np.array([0.5])}
    monkeypatch.setattr(MediaFeatures, "of_packs", lambda *given: seen.append(given) or features_of(lambda ids: arrays))
    template = SimpleNamespace(
        data_collator=lambda rows, padding_to: {"rows": rows, "padding_to": padding_to},
        requires_mm_token_type_ids=needs_types,
        create_mm_token_type_ids=lambda ids: [1] * len(ids),
    )
    training = SimpleNamespace(ddp_find_unused_parameters=None)
    args = SimpleNamespace(model_dir="model", **({} if megatron else {"training_args": training}))
    stream = ms_swift_stream._with_media(packs, template, args)
    assert bool(training.ddp_find_unused_parameters) is not megatron, (
        "one rank without media would let the others wait for ever"
    )
    assert seen == [(packs, "model")]
    batch = template.data_collator([stream[0]], padding_to=8)
    (row,) = batch["rows"]
    assert (batch["padding_to"], row["length"]) == (8, len(packs[0]))
    assert row["input_ids"] == packs[0].input_ids.tolist()
    assert row["pixel_values"].tolist() == [[1.0] * 3] * 2
    assert row["second_per_grid_ts"] == [0.5], "a list there, which the template joins"
    assert row.get("mm_token_type_ids") == ([1] * len(packs[0]) if needs_types else None)


def test_spectrograms_that_a_template_leaves_out_are_in_the_batch():
    """The template of Qwen2-Audio joins samples without them; the one of Qwen2.5-Omni needs them in one width."""
    import torch

    def row(columns):
        mask = torch.ones((1, columns), dtype=torch.int32)
        return {"input_features": torch.full((1, 2, columns), columns), "feature_attention_mask": mask}

    for theirs in ({}, {"input_features": "joined"}):
        template = SimpleNamespace(data_collator=lambda rows, padding_to, theirs=theirs: {"rows": rows, **theirs})
        batch = ms_swift_stream.MediaCollator(template)([[row(3), {}], [row(5)]])
        assert [len(one["input_features"][0, 0]) for one in batch["rows"] if one] == [5, 5]
        assert batch["feature_attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1] * 5]
        if theirs:
            assert batch["input_features"] == "joined"
        else:
            assert batch["input_features"][:, 0].tolist() == [[3, 3, 3, 0, 0], [5] * 5]
    template = SimpleNamespace(data_collator=lambda rows, padding_to: {})
    assert ms_swift_stream.MediaCollator(template)([[{}]]) == {}


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


def run_of_swift(module, *arguments):
    """Run a module in ms-swift's own Python; return the JSON of its last line."""
    interpreter = os.environ.get(VARIABLE)
    if interpreter is None and importlib.util.find_spec("swift") is None:
        pytest.skip(f"ms-swift is not installed ({VARIABLE} may name its interpreter)")
    root = Path(__file__).parents[3]
    words = ["-W", "ignore", "-m", f"tests.integrations.trainers.{module}", *map(str, arguments)]
    paths = [str(root / "src"), str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [interpreter or sys.executable, *words],
        cwd=root,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    if done.returncode == CANNOT:
        pytest.skip(f"ms-swift cannot be imported: {done.stderr.strip().splitlines()[-1]} ({VARIABLE})")
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.long
@pytest.mark.parametrize("run", ["swift_stream_run", "swift_audio_run"])
def test_swift_sft_trains_on_a_stream_that_grows(tmp_path, run):
    """The command of ms-swift's own Python with the four flags; each pack in order, and its samples isolated."""
    flags = [*FLAGS, "--packing", "false", "--train_dataloader_shuffle", "false"]
    outcome = run_of_swift(run, tmp_path, *flags)
    assert outcome["packs"] == 6
    assert outcome["segments"] > 1


@pytest.mark.long
@pytest.mark.parametrize("family", ["qwen2.5-vl", "qwen2.5-omni"])
def test_batches_of_megatron_equal_the_ones_of_ms_swift(tmp_path, qwen_tokenizer, family):
    """Every key and value, with and without context and tensor parallelism; a boundary at each sample, each target once."""
    outcome = run_of_swift("swift_megatron_run", tmp_path, qwen_tokenizer, family)
    assert outcome["segments"] == 12 * 6
