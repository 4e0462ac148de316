"""The command that is printed where lengths are missing writes the lengths that were missing."""

import importlib
import json
import re
import shlex
from dataclasses import replace

import pytest

from brimful import ChatEncoder, open_source
from brimful.errors import CacheMismatchError
from brimful.measure import LengthCache
from brimful.media.encode.media_chat import MediaChatEncoder
from brimful.media.families import open_family
from brimful.testing.toys import toy_chat_encoder
from tests.cli.tools import run

SWAP = """
from dataclasses import replace
def swap(sample):
    turns = [{**turn, "content": turn["content"][:2]} if isinstance(turn["content"], str) else turn for turn in sample.messages]
    return replace(sample, messages=turns)
"""


def command_of(cache, source, encoder, **options):
    with pytest.raises(CacheMismatchError) as caught:
        cache.lengths(source, encoder, **options)
    return re.search("`(.*)`", caught.value.message)[1]


def pasted(command):
    program, *arguments = shlex.split(command)
    assert program == "brimful"
    run(*arguments, "--quiet")


def test_several_files_and_transforms(small_qwen, tmp_path, monkeypatch):
    """A title such as 'several files' is no path."""
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
    command = command_of(cache, source, encoder, budgets=("tokens", "loss_tokens"))
    assert "--transform swapping:swap" in command
    pasted(command)
    table = cache.lengths(source, encoder, budgets=("tokens", "loss_tokens"))
    assert len(table) == 2
    # A file that is there and of something else is replaced by the same command.
    other = LengthCache(cache.path, augmentation={"version": 2})
    pasted(command_of(other, source, encoder))
    other.lengths(source, encoder)


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


def test_what_no_command_measures_is_a_call(small_qwen, tmp_path):
    """Rows in memory, a function of a script, settings without a flag: a command that measures others would be wrong."""
    cache = LengthCache(tmp_path / "lengths.arrow", augmentation={"crop": 7})
    call = f"measure_lengths(source, encoder, path={str(tmp_path / 'lengths.arrow')!r}, augmentation={{'crop': '7'}}, "
    assert command_of(cache, [{"text": "abc"}], toy_chat_encoder()).startswith(call)
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"prompt": "a", "completion": "b"}) + "\n")
    encoder = ChatEncoder(str(small_qwen))
    source = open_source(str(path)).augmented([lambda sample: replace(sample)])
    assert command_of(cache, source, encoder).startswith(call)
    encoder = ChatEncoder(str(small_qwen), template_kwargs={"tools_in_user_message": True})
    assert command_of(cache, str(path), encoder).startswith(call)
