"""Lengths of a training with augmentation come from a file that fits, or by the policy that was chosen."""

import importlib
import json
import re
import shlex
import shutil
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from brimful import ChatEncoder, PackedDataset, PlanSettings, measure_lengths, open_source, plan_packs
from brimful.base.progress import Progress
from brimful.clusters import LengthCache, shared_plan
from brimful.errors import AugmentationError, CacheMismatchError, SettingsError, WrongTypeError
from brimful.media.encode.media_chat import MediaChatEncoder
from brimful.media.families import open_family
from brimful.testing.toys import toy_chat_encoder
from tests.cli.tools import run

TEXTS = [{"text": "abc"}, {"text": "de"}, {"text": "fghi"}]
CROP = {"crop": 224, "flip": True}


class Unused:
    """Stands in for the encoding of a job that needs none."""

    def __call__(self, *arguments, **options):
        raise AssertionError("something was encoded")


@pytest.fixture
def path(tmp_path):
    """The file of the lengths of three texts, measured for ``CROP``."""
    path = tmp_path / "lengths.arrow"
    measure_lengths(TEXTS, toy_chat_encoder(), path=path, augmentation=CROP)
    return path


@pytest.fixture
def idle(monkeypatch):
    """An encoder that may say what it is, and may encode nothing."""
    encoder = toy_chat_encoder()
    for name in ("encode", "encode_batch", "encode_together", "begin_encoding"):
        monkeypatch.setattr(type(encoder), name, Unused())
    return encoder


def test_packs_are_built_without_encoding(path, idle):
    """On a new machine too, whose cache of blocks is empty: the file is all that is needed."""
    table = LengthCache(path, CROP).lengths(TEXTS, idle, cache_dir=path.parent / "another")
    assert table.tokens.tolist() == [3, 2, 4]
    assert table.targets is not None


@pytest.mark.parametrize(
    ("rows", "augmentation", "part"),
    [
        (TEXTS, {"crop": 336, "flip": True}, "augmentation crop"),
        (TEXTS, {"crop": 224}, "augmentation flip"),
        ([*TEXTS[:2], {"text": "changed"}], CROP, "source content"),
        (TEXTS[:2], CROP, r"source \(3 samples there, 2 here\)"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_with_the_command_that_writes_it(path, rows, augmentation, part):
    before = path.read_bytes()
    with pytest.raises(CacheMismatchError, match=part) as caught:
        LengthCache(path, augmentation).lengths(rows, toy_chat_encoder())
    call = f"measure_lengths(source, encoder, path={str(path)!r}, augmentation="
    assert f"Write it with `from brimful import measure_lengths; {call}" in caught.value.message
    assert "`, with source and encoder as here, or choose" in caught.value.message
    assert 'on_mismatch="rebuild"' in str(caught.value)
    assert path.read_bytes() == before


def test_a_missing_file_goes_by_the_policy(tmp_path):
    path = tmp_path / "lengths.arrow"
    with pytest.raises(CacheMismatchError, match=r"lengths.arrow is not there. Write it with `from brimful import"):
        LengthCache(path, CROP).lengths(TEXTS, toy_chat_encoder())
    with pytest.warns(UserWarning, match="is not there: lengths are measured without it"):
        table = LengthCache(path, CROP, on_mismatch="fallback").lengths(TEXTS, toy_chat_encoder())
    assert table.tokens.tolist() == [3, 2, 4]
    assert not path.exists()
    LengthCache(path, CROP, on_mismatch="rebuild").lengths(TEXTS, toy_chat_encoder())
    assert LengthCache(path, CROP).lengths(TEXTS, toy_chat_encoder()).tokens.tolist() == [3, 2, 4]


def test_fallback_leaves_the_file_of_another_training(path):
    before = path.read_bytes()
    with pytest.warns(UserWarning, match="augmentation crop"):
        LengthCache(path, {"crop": 336}, on_mismatch="fallback").lengths(TEXTS, toy_chat_encoder())
    assert path.read_bytes() == before


def test_rebuild_for_another_augmentation_encodes_nothing(path, idle):
    """Augmentation changes no length: only the record is another."""
    table = LengthCache(path, {"crop": 336}, on_mismatch="rebuild").lengths(TEXTS, idle)
    assert table.provenance["augmentation"] == {"crop": "336"}
    assert table.tokens.tolist() == [3, 2, 4]


def test_appended_rows_are_the_only_ones_measured(path, monkeypatch):
    encoder, texts = toy_chat_encoder(), []
    begin_encoding = type(encoder).begin_encoding

    def note(method):
        return lambda self, samples, **options: (
            texts.extend(one.text for one in samples) or method(self, samples, **options)
        )

    monkeypatch.setattr(type(encoder), "begin_encoding", note(begin_encoding))
    table = LengthCache(path, CROP).lengths([*TEXTS, {"text": "new"}], encoder, cache_dir=path.parent / "another")
    assert table.tokens.tolist() == [3, 2, 4, 3]
    assert texts == ["new"]


def test_a_file_without_targets_is_no_base_of_a_plan_that_asks_for_them(tmp_path):
    path = tmp_path / "lengths.arrow"
    measure_lengths(TEXTS, toy_chat_encoder(), path=path, targets=False)
    with pytest.raises(CacheMismatchError, match="holds no targets of the loss"):
        LengthCache(path).lengths(TEXTS, toy_chat_encoder())
    assert LengthCache(path).lengths(TEXTS, toy_chat_encoder(), targets=False).targets is None


def test_settings_that_cannot_be_recorded_are_refused():
    with pytest.raises(SettingsError, match="augmentation: crop is <function"):
        LengthCache("lengths.arrow", {"crop": test_settings_that_cannot_be_recorded_are_refused})
    with pytest.raises(SettingsError, match='on_mismatch="skip" is unknown'):
        LengthCache("lengths.arrow", on_mismatch="skip")  # type: ignore[arg-type]
    with pytest.raises(WrongTypeError, match="augmentation"):
        LengthCache("lengths.arrow", "crop=224")  # type: ignore[arg-type]


def test_training_augments_at_every_access(path):
    """Lengths come from the file, and each sample is transformed again when its pack is served."""
    encoder, calls = toy_chat_encoder(), []

    def turn(sample):
        calls.append(sample.sample_id)
        return replace(sample, text=sample.text[::-1] if len(calls) % 2 else sample.text.upper())

    plan = plan_packs(LengthCache(path, CROP).lengths(TEXTS, encoder), capacity=4, seed=None)
    packs = PackedDataset.from_plan(TEXTS, encoder, plan, transforms=[turn])
    first, second = packs[0].input_ids, packs[0].input_ids
    assert calls == [2, 2]
    assert len(first) == len(second) == 4
    assert (first[::-1] != second).any()
    plain = PackedDataset.from_plan(TEXTS, encoder, plan)[0].input_ids
    assert np.array_equal(first[::-1], plain)


def test_a_transform_that_changes_a_length_is_named_when_its_pack_is_served(path):
    encoder = toy_chat_encoder()
    plan = plan_packs(LengthCache(path, CROP).lengths(TEXTS, encoder), capacity=8, seed=None)

    def stutter(sample):
        return replace(sample, text=sample.text[0] + sample.text)

    with pytest.raises(
        AugmentationError, match=r"encodes to 5 tokens and was planned with 4: stutter changed its length"
    ):
        PackedDataset.from_plan(TEXTS, encoder, plan, transforms=[stutter])[0]
    with pytest.raises(AugmentationError, match=r"applied to .* returns str"):
        PackedDataset.from_plan(TEXTS, encoder, plan, transforms=[lambda sample: sample.text])[0]  # type: ignore[list-item, return-value]
    with pytest.raises(WrongTypeError, match=r"transforms\[0\]"):
        PackedDataset.from_plan(TEXTS, encoder, plan, transforms=["flip"])  # type: ignore[list-item]


def test_one_plan_for_all_ranks_from_the_file(path, tmp_path, idle):
    with shared_plan(
        TEXTS,
        idle,
        PlanSettings(capacity=4),
        directory=tmp_path / "shared",
        lengths=LengthCache(path, CROP),
        ahead=False,
        progress=Progress(),
    ) as shared:
        assert sorted(shared.plan.sample_ids.tolist()) == [0, 1, 2]


def command_of(cache, source, encoder, **options):
    with pytest.raises(CacheMismatchError) as caught:
        cache.lengths(source, encoder, **options)
    return re.search("`(.*)`", caught.value.message)[1]


def pasted(command, *own, **names):
    """Run what a message told to paste: a command in a shell, or a line in a Python session with these names."""
    if command.startswith("from "):
        exec(command, names)
        return
    program, *arguments = shlex.split(command)
    assert program == "brimful"
    run(*arguments, *own, "--quiet")


SWAP = """
from dataclasses import replace
def swap(sample):
    turns = [{**turn, "content": turn["content"][:2]} if isinstance(turn["content"], str) else turn for turn in sample.messages]
    return replace(sample, messages=turns)
"""


def test_several_files_and_transforms(small_qwen, tmp_path, monkeypatch):
    """A title such as 'several files' is not a path."""
    (tmp_path / "swapping.py").write_text(SWAP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    swapping = importlib.import_module("swapping")

    paths = [tmp_path / f"part {number}.jsonl" for number in range(2)]
    for path in paths:
        turns = [{"role": "user", "content": path.stem}, {"role": "assistant", "content": "a long answer"}]
        path.write_text(json.dumps({"messages": turns}) + "\n")
    encoder = ChatEncoder(str(small_qwen), train_on="all", system="Be brief.")
    source = open_source(list(map(str, paths))).augmented([swapping.swap])
    cache = LengthCache(tmp_path / "lengths.arrow", augmentation={"version": 1})
    options = {"budgets": ("tokens", "loss_tokens"), "on_bad_sample": "skip"}
    command = command_of(cache, source, encoder, **options)
    assert "--transform swapping:swap" in command
    pasted(command)
    table = cache.lengths(source, encoder, **options)
    assert len(table) == 2
    # A file that is there and of something else is replaced by the same command.
    other = LengthCache(cache.path, augmentation={"version": 2})
    sharing = {"share": "prefixes", "least_shared": 3, "share_within": "row"}
    pasted(command_of(other, source, encoder, **sharing))
    assert other.lengths(source, encoder, **sharing).provenance["sharing"] == sharing


def test_pictures(media_home, tmp_path):
    """The tokenizer of a processor lies in its directory, and pictures may lie elsewhere."""
    encoder = MediaChatEncoder(str(media_home / "processor"), open_family("qwen2-vl", media_home / "processor"))
    source = open_source(str(media_home / "chats.jsonl"), media=True, media_outside=True)
    cache = LengthCache(tmp_path / "lengths.arrow")
    command = command_of(cache, source, encoder)
    assert "--encoder qwen2-vl" in command
    assert "--media-outside" in command
    pasted(command)
    assert len(cache.lengths(source, encoder)) == len(source)
    family = open_family("qwen2-vl", media_home / "processor", max_pixels=28 * 28 * 4)
    other = MediaChatEncoder(str(media_home / "processor"), family)
    command = command_of(cache, source, other)
    assert command.startswith("from brimful import measure_lengths; measure_lengths(source, encoder, ")
    pasted(command, source=source, encoder=other)
    assert len(cache.lengths(source, other)) == len(source)


@pytest.mark.parametrize("kind", ["chats", "pictures"])
@pytest.mark.parametrize("place", ["known", "changed", "forgotten", "gone"])
def test_a_tokenizer_that_the_caller_loaded(kind, place, small_qwen, media_home, tmp_path):
    """What a training script has. Its directory gives a command if that has the same tokenizer; else a line of Python."""
    home = media_home / "processor" if kind == "pictures" else small_qwen
    own = AutoTokenizer.from_pretrained(shutil.copytree(home, tmp_path / "own"))
    if place == "changed":
        own.add_tokens(["<|mine|>"])
    elif place == "forgotten":
        own.name_or_path = ""
    elif place == "gone":
        shutil.rmtree(tmp_path / "own")
    if kind == "pictures":
        encoder: Any = MediaChatEncoder(own, open_family("qwen2-vl", media_home / "processor"))
        source = open_source(str(media_home / "chats.jsonl"), media=True, media_outside=True)
    else:
        rows = [{"prompt": "a", "completion": "b"}, {"prompt": "a"}]
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        source, encoder = open_source(str(tmp_path / "rows.jsonl")), ChatEncoder(own)
    options = {"on_bad_sample": "skip", "cache_dir": tmp_path / "cache"}
    cache = LengthCache(tmp_path / "its lengths.arrow", augmentation={"crop": 7, "policy": "it's"})
    command = command_of(cache, source, encoder, **options)
    assert command.startswith("brimful measure") == (place == "known")
    pasted(command, source=source, encoder=encoder)
    assert len(cache.lengths(source, encoder, **options)) == len(source)


def test_transforms_of_the_call_are_those_of_the_source(tmp_path):
    """Without it lengths of the rows as they are would pass for the ones of the augmented rows."""
    stutter = [lambda sample: replace(sample, text=sample.text * 2)]
    table = LengthCache(tmp_path / "a.arrow", on_mismatch="rebuild").lengths(
        TEXTS, toy_chat_encoder(), transforms=stutter
    )
    assert table.tokens.tolist() == [6, 4, 8]


def test_what_no_command_measures_is_a_call(small_qwen, tmp_path):
    """Rows in memory, a function of a script, settings without a flag: a command that measures others would be wrong."""
    cache = LengthCache(tmp_path / "lengths.arrow", augmentation={"crop": 7})
    path = str(tmp_path / "lengths.arrow")
    call = f"from brimful import measure_lengths; measure_lengths(source, encoder, path={path!r}, augmentation={{'crop': '7'}}, "
    rows, toy = [{"text": "abc"}, {"text": "abd"}], toy_chat_encoder()
    assert command_of(cache, rows, toy).startswith(call)
    for within in ("row", [0, 0]):  # numbers of samples are in no command
        options = {"share": "prefixes", "least_shared": 2, "share_within": within, "budgets": ("tokens", "loss_tokens")}
        command = command_of(cache, rows, toy, **options)
        assert command.startswith(call)
        pasted(command, source=rows, encoder=toy, share_within=within)
        assert list(cache.lengths(rows, toy, **options).budgets) == ["tokens", "loss_tokens"]
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"prompt": "a", "completion": "b"}) + "\n")
    encoder = ChatEncoder(str(small_qwen))
    source = open_source(str(path)).augmented([lambda sample: replace(sample)])
    assert command_of(cache, source, encoder).startswith(call)
    encoder = ChatEncoder(str(small_qwen), template_kwargs={"tools_in_user_message": True})
    assert command_of(cache, str(path), encoder).startswith(call)
