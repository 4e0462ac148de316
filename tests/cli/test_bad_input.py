"""Whatever is wrong with what a user gives: one line that names the culprit, exit code 2, nothing committed lost.

Everything runs in this process through ``brimful.cli.main``, on a tokenizer of bytes made here, so that no test needs
the shared data. A turn costs its role, its content in bytes, and four tokens of markup::

    <|im_start|> r o l e \\n c o n t e n t <|im_end|> \\n
"""

import bz2
import contextlib
import gzip
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from brimful.cli import main
from brimful.encode import ChatEncoder
from brimful.materialize import pack_dataset
from brimful.plan import Plan
from brimful.sources import open_source
from brimful.testing.faults import full_disk

POLICIES = ("error", "drop", "truncate", "truncate_left", "split")
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


# ── tools ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Outcome(NamedTuple):
    code: Any
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The result of a command with --json: its last line."""
        return json.loads(self.out.splitlines()[-1])


def run(*arguments: Any) -> Outcome:
    """One command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as exit_info:
        main([str(argument) for argument in arguments])
    return Outcome(exit_info.value.code, out.getvalue(), err.getvalue())


def done(*arguments: Any) -> Outcome:
    """A command that must succeed."""
    outcome = run(*arguments)
    assert outcome.code == 0, outcome.err
    return outcome


def refused(*arguments: Any) -> str:
    """A command that must fail as promised: its one line."""
    outcome = run(*arguments)
    return one_line(outcome.code, outcome.err)


def one_line(code: Any, err: str) -> str:
    lines = err.splitlines()
    assert code == 2, (code, err)
    assert "Traceback" not in err
    assert len(lines) == 1, err
    assert lines[0].startswith("error: "), err
    return lines[0]


def chat(question: str, answer: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def length_of(row: dict[str, Any]) -> int:
    return sum(len(turn["role"]) + len(turn["content"].encode()) + 4 for turn in row["messages"])


CHATS = [chat(f"question {number}", "a" * number) for number in range(20)]


def write_rows(path: Path, rows: list[Any]) -> Path:
    """JSON lines; bytes are put in as they are."""
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def snapshot(directory: Path) -> dict[str, Any]:
    """What a store holds, without what differs between two runs on purpose: who wrote it, and how long it took."""
    found: dict[str, Any] = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if not path.is_file() or name.startswith("tmp/encoded/"):
            continue
        data: Any = path.read_bytes()
        if name.startswith("log/") or name == "summary.json":
            data = {k: v for k, v in json.loads(data).items() if k not in ("producer_id", "seconds", "directory")}
        found[name] = data
    return found


def temporary_files(directory: Path) -> list[str]:
    """Half-written files; the tokens that measuring leaves for writing are whole and stay for the next run."""
    found = [path for path in directory.rglob("*") if path.is_file()]
    return [str(path) for path in found if path.name.endswith(".tmp") or path.parent.name == "tmp"]


# ── fixtures ──────────────────────────────────────────────────────────────────────────────────────────────────────


def save_tokenizer(directory: Path, template: str | None) -> Path:
    """One token a byte, ChatML's special tokens, as ``transformers`` saves it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=template,
    ).save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer"), TEMPLATE)


@pytest.fixture(scope="session")
def plain_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tokenizer(tmp_path_factory.mktemp("plain_tokenizer"), None)


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "chats.jsonl", CHATS)


@pytest.fixture(scope="session")
def finished_store(tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 20 chats in packs of 64, in several shards."""
    home = tmp_path_factory.mktemp("finished")
    pack_dataset(
        open_source(str(write_rows(home / "chats.jsonl", CHATS)), cache_dir=home / "cache"),
        ChatEncoder(str(tokenizer)),
        home / "packs",
        capacity=64,
        shard_bytes=4 * 64 * 5,
        cache_dir=home / "cache",
        notes={"tokenizer": str(tokenizer)},
    )
    return home / "packs"


@pytest.fixture
def store(finished_store: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(finished_store, tmp_path / "packs"))


# ── data sets ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_empty_file_is_refused_by_name(tmp_path: Path, tokenizer: Path) -> None:
    """Without it an export that failed upstream would train on nothing, or end in a division by zero."""
    for name, content in [("empty.jsonl", b""), ("blank.jsonl", b"\n\n\r\n"), ("empty.txt", b""), ("none.json", b"[]")]:
        path = tmp_path / name
        path.write_bytes(content)
        line = refused("measure", path, "--tokenizer", tokenizer, "--quiet")
        assert str(path) in line
        assert "empty" in line


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"messages": []}, "'messages' is empty: a conversation needs at least one turn"),
        (b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}', "invalid UTF-8 at byte 43"),
        (b"{not json", "no JSON"),
        (b"", None),
        (b"[1, 2]", "a row must be an object and is list"),
        (b"17", "a row must be an object and is int"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"messages": ' + b"1" * 5000 + b"}", ""),
        ({"dialogue": []}, "field 'messages' is missing (found ['dialogue'])"),
        ({"messages": "hi"}, "'messages' must be a list of turns and is str"),
        ({"messages": ["hi"]}, "messages[0] must be an object"),
        ({"messages": [{"content": "hi"}]}, "messages[0] has no role (found ['content'])"),
        ({"messages": [{"role": "user"}]}, "messages[0] (role user) has no content"),
        ({"messages": [{"role": "user", "content": 5}]}, "the content of messages[0] must be text and is int 5"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, ""),
    ],
    ids=[
        "empty-conversation",
        "invalid-utf8",
        "no-json",
        "blank-line-is-passed-over",
        "a-list",
        "a-number",
        "too-deep",
        "a-number-of-5000-digits",
        "missing-field",
        "text-for-a-list",
        "text-for-a-turn",
        "no-role",
        "no-content",
        "number-for-text",
        "half-a-surrogate-pair",
    ],
)
def test_a_malformed_row_is_named_by_file_line_and_sample(
    row: Any, reason: str | None, tmp_path: Path, tokenizer: Path
) -> None:
    """Without it one bad row in a million is a traceback without a line number, or silently lost."""
    path = write_rows(tmp_path / "chats.jsonl", [*CHATS[:3], row, *CHATS[3:]])
    command = ("pack", path, "-o", tmp_path / "packs", "--tokenizer", tokenizer, "--max-length", 64)
    if reason is None:
        assert done(*command, "--json").json["samples_in"] == 20
        return
    line = refused(*command, "--quiet")
    assert f"{path}:4 (sample 3): " in line
    assert reason in line
    assert not (tmp_path / "packs" / "stream.json").exists()
    summary = done(*command, "--json", "--on-bad-sample", "skip").json
    assert (summary["samples_in"], summary["samples_packed"], summary["samples_rejected"]) == (21, 20, 1)


def test_rows_that_are_all_refused_name_the_flag(tokenizer: Path, tmp_path: Path) -> None:
    """Without it a data set of pictures that is skipped row by row ends in Python's words, or in an empty store."""
    path = write_rows(tmp_path / "rows.jsonl", [{"question": "q", "answer": "a", "image": "a.jpg"}] * 3)
    command = ("pack", path, "-o", tmp_path / "p", "--tokenizer", tokenizer, "--max-length", 64, "--quiet")
    line = refused(*command, "--on-bad-sample", "skip")
    assert f"no row of {path} can be packed; the first is {path}:1 (sample 0): column 'image' holds pictures" in line
    assert line.endswith("leave it out with --ignore image")
    assert not (tmp_path / "p" / "stream.json").exists()
    shown = done(*command, "--ignore", "image").out
    assert "not read" not in shown


def test_a_refused_row_beside_good_ones_is_told_with_its_flag(tokenizer: Path, tmp_path: Path) -> None:
    """Without it the summary of the command line speaks of arguments."""
    path = write_rows(
        tmp_path / "rows.jsonl", [{"question": "q", "answer": "a"}, {"question": "<image>", "answer": "a"}]
    )
    command = ("pack", path, "-o", tmp_path / "p", "--tokenizer", tokenizer, "--max-length", 64, "--quiet")
    shown = done(*command, "--on-bad-sample", "skip").out
    assert "say so with --ignore '<image>'" in " ".join(shown.split())
    assert json.loads((tmp_path / "p" / "rejects.jsonl").read_text())["reason"].endswith('ignore=["<image>"]')


def test_skipped_rows_are_counted_shown_and_listed(tmp_path: Path, tokenizer: Path) -> None:
    """Without it --on-bad-sample skip loses data in silence."""
    path = write_rows(tmp_path / "chats.jsonl", [CHATS[0], b"{", *CHATS[1:], {"messages": []}])
    packs = tmp_path / "packs"
    command = ("pack", path, "-o", packs, "--tokenizer", tokenizer, "--max-length", 64, "--on-bad-sample", "skip")
    shown = done(*command, "--quiet").out
    rejected = next(line for line in shown.splitlines() if line.startswith("rejected"))
    assert "2 rows, listed in" in rejected
    assert f"{packs}/rejects.jsonl" in rejected
    assert f"{path}:2 (sample 1): no JSON" in rejected
    listed = [json.loads(line) for line in (packs / "rejects.jsonl").read_text().splitlines()]
    assert [(row["sample_id"], row["where"]) for row in listed] == [(1, f"{path}:2"), (21, f"{path}:22")]
    assert listed[0]["reason"].startswith("no JSON")
    assert listed[1]["row"] == {"messages": []}
    summary = json.loads((packs / "summary.json").read_text())
    assert summary["samples_in"] == 22
    assert summary["samples_rejected"] == 2
    assert summary["samples_packed"] == 20
    assert summary["tokens_packed"] == sum(map(length_of, CHATS))


def test_a_first_row_that_is_bad_is_named_too(tmp_path: Path, tokenizer: Path) -> None:
    """Without it a file of another kind under the name .jsonl fails while its format is detected, with no line."""
    path = write_rows(tmp_path / "chats.jsonl", [b"\x89PNG\r\n\x1a\n\xff", b"\xff\xfe\xff"])
    assert f"{path}:1 (sample 0): invalid UTF-8" in refused("measure", path, "--tokenizer", tokenizer, "--quiet")


def test_a_bad_row_far_behind_is_named_by_a_worker_process(tmp_path: Path, tokenizer: Path) -> None:
    """Without it the error of a worker process arrives as a pickling failure instead of the row it is about."""
    path = write_rows(tmp_path / "chats.jsonl", [*CHATS * 230, {"messages": []}])
    line = refused("measure", path, "--tokenizer", tokenizer, "--num-proc", 2, "--quiet")
    assert f"{path}:4601 (sample 4600): 'messages' is empty" in line


def test_rows_of_no_known_format_are_shown(tmp_path: Path, tokenizer: Path) -> None:
    """Without it a user with other column names does not learn how to map them."""
    path = write_rows(tmp_path / "odd.jsonl", [{"foo": 1, "bar": 2}])
    line = refused("measure", path, "--tokenizer", tokenizer, "--quiet")
    assert "['bar', 'foo']" in line
    assert "--field messages=dialogue" in line


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--format", "nonsense"], "--format nonsense is unknown: use one of tokens, messages, sharegpt"),
        (["--format", "messages", "--field", "answer=x"], "--field 'answer' is not a field of format messages"),
        (["--field", "messages"], "--field 'messages' must be NAME=KEY"),
        (["--field", "=dialogue"], "--field '=dialogue' must be NAME=KEY"),
        (["--mode", "nonsense"], "--mode"),
        (["--train-on", "nonsense"], "--train-on"),
        (["--on-bad-sample", "ignore"], "--on-bad-sample"),
        (["--num-proc", "0"], "--num-proc"),
        (["--num-proc", "many"], "--num-proc"),
        (["--budget", "patches"], "--budget patches cannot be measured here: use tokens, loss_tokens"),
        (["--chat-template", "/nowhere/template.jinja"], "--chat-template /nowhere/template.jinja"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_a_wrong_option_of_measure_is_named(options: list[str], expected: str, chats: Path, tokenizer: Path) -> None:
    """Without it a typing error is answered by a traceback, or by silence and a default."""
    assert expected in refused("measure", chats, "--tokenizer", tokenizer, "--quiet", *options)


def test_a_renamed_field_that_no_row_has_is_named(chats: Path, tokenizer: Path) -> None:
    """Without it --field messages=dialog for data with `dialogue` gives no hint at the rows."""
    line = refused(
        "measure", chats, "--tokenizer", tokenizer, "--quiet", "--format", "messages", "--field", "messages=dialog"
    )
    assert f"{chats}:1 (sample 0): field 'dialog' is missing (found ['messages'])" in line


def test_a_chat_template_that_is_no_text_is_refused(tmp_path: Path, chats: Path, tokenizer: Path) -> None:
    """Without it the wrong file after --chat-template is a UnicodeDecodeError."""
    template = tmp_path / "template.jinja"
    template.write_bytes(b"\xff\xfe\x00")
    line = refused("measure", chats, "--tokenizer", tokenizer, "--quiet", "--chat-template", template)
    assert str(template) in line


def test_a_chat_template_that_refuses_a_conversation_names_the_sample(
    tmp_path: Path, chats: Path, tokenizer: Path
) -> None:
    """Without it a template's own complaint (roles must alternate) does not say about which row."""
    template = tmp_path / "template.jinja"
    template.write_text("{{ raise_exception('roles must alternate') }}")
    line = refused("measure", chats, "--tokenizer", tokenizer, "--quiet", "--chat-template", template)
    assert f"{chats}:1 (sample 0): the chat template refuses it: " in line
    assert "roles must alternate" in line


@pytest.mark.parametrize("name", ["nothing.jsonl", "nothing-*.jsonl", "nothing.parquet", "nothing.npy"])
@pytest.mark.parametrize("command", ["measure", "plan", "pack"])
def test_a_source_that_is_not_there_is_named(command: str, name: str, tmp_path: Path, tokenizer: Path) -> None:
    """Without it a wrong path is a traceback out of the file's library."""
    options = {
        "measure": ["--tokenizer", tokenizer],
        "plan": ["--tokenizer", tokenizer, "--max-length", 64],
        "pack": ["--tokenizer", tokenizer, "--max-length", 64, "-o", tmp_path / "packs"],
    }[command]
    assert str(tmp_path / name) in refused(command, tmp_path / name, "--quiet", *options)


def test_a_directory_under_the_name_of_a_file_is_refused(tmp_path: Path, tokenizer: Path) -> None:
    """Without it an empty directory called data.jsonl is an IsADirectoryError somewhere inside."""
    for name in ("data.jsonl", "data.parquet", "lengths.npy"):
        (tmp_path / name).mkdir()
        line = refused("plan", tmp_path / name, "--tokenizer", tokenizer, "--max-length", 64, "--quiet")
        assert str(tmp_path / name) in line


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read_is_named(chats: Path, tokenizer: Path) -> None:
    """Without it missing permissions look like damaged data."""
    chats.chmod(0)
    line = refused("measure", chats, "--tokenizer", tokenizer, "--quiet")
    assert str(chats) in line
    assert "ermission" in line


@pytest.mark.parametrize("damage", ["text", "empty", "half", "tail", "begin"])
def test_a_parquet_file_that_is_none_or_was_damaged_is_named(damage: str, tmp_path: Path, tokenizer: Path) -> None:
    """Without it a download that broke off is an Arrow traceback, or an error that names no file."""
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"prompt": ["1+1?"] * 1000, "completion": ["2"] * 1000}), path)
    data = path.read_bytes()
    path.write_bytes(
        {
            "text": b"no parquet at all, but long enough to look for a footer",
            "empty": b"",
            "half": data[: len(data) // 2],
            "tail": data[:-1],
            "begin": data[:4] + b"\xff" * 200 + data[204:],
        }[damage]
    )
    assert str(path) in refused("measure", path, "--tokenizer", tokenizer, "--quiet")


def test_a_compressed_file_that_was_cut_is_refused_not_read_in_part(tmp_path: Path, tokenizer: Path) -> None:
    """Without it half a download trains as if it were the whole data set."""
    plain = write_rows(tmp_path / "chats.jsonl", CHATS * 50).read_bytes()
    packed = {
        ".gz": gzip.compress(plain, mtime=0),
        ".zst": pa.Codec("zstd").compress(plain, asbytes=True),
        ".bz2": bz2.compress(plain),
    }
    for suffix, data in packed.items():
        whole = tmp_path / f"whole.jsonl{suffix}"
        whole.write_bytes(data)
        assert done("measure", whole, "--tokenizer", tokenizer, "--json").json["samples"] == 1000
        for name, content in {"half": data[: len(data) // 2], "tail": data[:-1], "garbage": b"garbage" * 20}.items():
            path = tmp_path / f"{name}.jsonl{suffix}"
            path.write_bytes(content)
            line = refused("measure", path, "--tokenizer", tokenizer, "--quiet")
            assert str(path) in line, (suffix, name)


# ── samples longer than a pack ────────────────────────────────────────────────────────────────────────────────────

LONG = [chat("q", "a" * 10), chat("q", "b" * 300), chat("q", "c" * 130), chat("q", "d" * 20)]
LENGTHS = [length_of(row) for row in LONG]


@pytest.mark.parametrize("policy", POLICIES)
def test_every_overflow_policy_accounts_for_every_token(policy: str, tmp_path: Path, tokenizer: Path) -> None:
    """Without it a policy may lose tokens that no number of the summary shows."""
    assert LENGTHS == [32, 322, 152, 42]
    path = write_rows(tmp_path / "long.jsonl", LONG)
    command = ("pack", path, "-o", tmp_path / "packs", "--tokenizer", tokenizer, "--max-length", 100)
    if policy == "error":
        line = refused(*command, "--quiet")
        assert "2 of 4 samples are longer than the capacity of 100 tokens: sample 1 (322), 2 (152)" in line
        assert "--overflow drop, truncate, truncate_left or split, or --max-length 322" in line
        assert not (tmp_path / "packs" / "stream.json").exists()
        return
    summary = done(*command, "--overflow", policy, "--json").json
    names = ("packed", "dropped", "truncated", "split", "rejected")
    samples = [summary[f"samples_{name}"] for name in names]
    tokens = [summary[f"tokens_{name}"] for name in ("packed", "dropped", "truncated")]
    expected = {
        "drop": ([2, 2, 0, 0, 0], [74, 474, 0]),
        "truncate": ([4, 0, 2, 0, 0], [274, 0, 274]),
        "truncate_left": ([4, 0, 2, 0, 0], [274, 0, 274]),
        "split": ([4, 0, 0, 2, 0], [548, 0, 0]),
    }[policy]
    assert (samples, tokens) == expected
    assert summary["tokens_in"] == sum(tokens) == 548
    assert summary["samples_in"] == 4


@pytest.fixture(scope="session")
def refused_monster(tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `pack` with the policy error gave up on a sample of 3 MB: measured, nothing written."""
    home = tmp_path_factory.mktemp("monster")
    rows = [*CHATS[:5], chat("tell me", "word " * 600_000), *CHATS[5:]]
    path = write_rows(home / "monster.jsonl", rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRIMFUL_CACHE", str(home / "cache"))
        line = refused("pack", path, "-o", home / "packs", "--tokenizer", tokenizer, "--max-length", 4096, "--quiet")
    assert f"sample 5 ({length_of(rows[5]):,})" in line
    assert f"--max-length {length_of(rows[5])}" in line
    return home


@pytest.mark.parametrize("policy", [policy for policy in POLICIES if policy != "error"])
def test_a_sample_of_3_megabytes_is_dropped_cut_or_split(
    policy: str, refused_monster: Path, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it one scraped monster row stops or distorts a job of a million."""
    monkeypatch.setenv("BRIMFUL_CACHE", str(refused_monster / "cache"))
    packs = Path(shutil.copytree(refused_monster / "packs", tmp_path / "packs"))
    summary = done(
        *("pack", refused_monster / "monster.jsonl", "-o", packs, "--tokenizer", tokenizer),
        *("--max-length", 4096, "--overflow", policy, "--json"),
    ).json
    small = sum(map(length_of, CHATS))
    monster = 3_000_000 + len("assistant") + 4 + len("user") + len("tell me") + 4
    lost = {"drop": (monster, 0), "truncate": (0, monster - 4096), "truncate_left": (0, monster - 4096)}
    assert summary["tokens_in"] == small + monster
    assert (summary["tokens_dropped"], summary["tokens_truncated"]) == lost.get(policy, (0, 0))
    assert summary["tokens_packed"] == small + monster - sum(lost.get(policy, (0, 0)))
    assert (summary["samples_dropped"], summary["samples_split"]) == (int(policy == "drop"), int(policy == "split"))
    assert "agree with log and plan" in done("inspect", packs, "--check").out


# ── tokenizers ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_no_tokenizer_is_said(chats: Path, tmp_path: Path) -> None:
    """Without it a forgotten --tokenizer is an AttributeError of None."""
    for command in (["measure"], ["plan", "--max-length", "64"], ["pack", "--max-length", "64", "-o", tmp_path / "p"]):
        assert "--tokenizer is missing" in refused(command[0], chats, *command[1:], "--quiet")
    assert "--tokenizer" in refused("measure", chats, "--tokenizer", "", "--quiet")


def test_a_tokenizer_directory_that_does_not_serve_is_named(chats: Path, tmp_path: Path) -> None:
    """Without it a wrong --tokenizer is a page of transformers, or a request to the hub."""
    empty, garbage, file = tmp_path / "empty", tmp_path / "garbage", tmp_path / "file"
    empty.mkdir()
    garbage.mkdir()
    (garbage / "tokenizer.json").write_text('{"version": "1.0"}')
    (garbage / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    file.write_text("no directory")
    for path in (tmp_path / "nowhere", empty, garbage, file):
        assert f"--tokenizer {path}: no " in refused("measure", chats, "--tokenizer", path, "--quiet")


def test_a_tokenizer_without_chat_template_says_what_to_do(chats: Path, plain_tokenizer: Path) -> None:
    """Without it a base model's tokenizer fails in the middle of rendering."""
    line = refused("measure", chats, "--tokenizer", plain_tokenizer, "--quiet")
    assert "has no chat template" in line
    assert str(plain_tokenizer) in line
    assert "--chat-template" in line
    assert "--mode completion" in line


# ── plans ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], "--max-length is missing"),
        (["--max-length", "0"], "--max-length must be from 1 to 2,147,483,647 and is 0"),
        (["--max-length", "-5"], "--max-length must be from 1 to 2,147,483,647 and is -5"),
        (["--max-length", "9999999999"], "--max-length must be from 1 to 2,147,483,647 and is 9,999,999,999"),
        (["--max-length", "8k"], "--max-length"),
        (["--max-length", "64", "--algorithm", "magic"], "--algorithm magic is unknown: use one of best_fit_decrea"),
        (["--max-length", "64", "--overflow", "magic"], "--overflow"),
        (["--max-length", "64", "--budget", "patches"], "--budget 'patches' must be NAME=MOST"),
        (["--max-length", "64", "--budget", "samples=2", "--budget", "samples=3"], "--budget samples is given twice"),
        (
            ["--max-length", "64", "--budget", "frames=3"],
            "--budget frames is unknown: packing can measure loss_tokens, samples, squares",
        ),
        (["--max-length", "64", "--align", "4", "--cp", "2"], "--align and --cp both say what to align to"),
        (["--max-length", "64", "--fp8", "magic"], "--fp8 'magic' is unknown"),
        (["--max-length", "64", "--cp", "64"], "no row fits"),
        (["--max-length", "64", "--min-fill", "2"], "--min-fill is a share of the capacity"),
        (["--max-length", "64", "--phases", "finish"], "--phases is for --algorithm phased"),
        (["--max-length", "64", "--algorithm", "phased", "--phases", "magic"], "magic"),
        (["--max-length", "64", "--epoch", "-1"], "--epoch must be at least 0"),
        (["--max-length", "64", "--seed", "x"], "--seed"),
    ],
)
def test_a_wrong_option_of_pack_is_named(
    options: list[str], expected: str, chats: Path, tokenizer: Path, tmp_path: Path
) -> None:
    """Without it an impossible capacity or a misspelt name ends in a traceback, or in a plan nobody asked for."""
    packs = tmp_path / "packs"
    assert expected in refused("pack", chats, "-o", packs, "--tokenizer", tokenizer, "--quiet", *options)
    assert not (packs / "stream.json").exists()


def test_a_missing_output_is_said(chats: Path, tokenizer: Path, tmp_path: Path) -> None:
    """Without it a forgotten -o writes into the working directory, or nowhere."""
    assert "-o is missing" in refused("pack", chats, "--tokenizer", tokenizer, "--max-length", 64, "--quiet")
    assert "-o is missing" in refused("write", tmp_path / "plan", chats, "--tokenizer", tokenizer, "--quiet")


WHOLE_NPY = io.BytesIO()
np.save(WHOLE_NPY, np.arange(1, 1000))

ARRAYS: dict[str, tuple[Any, str]] = {
    "floats.npy": (np.array([1.5, 2.0]), "must be whole numbers and are float64"),
    "flags.npy": (np.array([True]), "must be whole numbers and are bool"),
    "texts.npy": (np.array(["a"]), "must be whole numbers"),
    "negative.npy": (np.array([5, -3]), "sample 1 has length -3"),
    "zero.npy": (np.array([5, 0]), "sample 1 has length 0"),
    "none.npy": (np.array([], dtype=np.int64), "there are no lengths"),
    "square.npy": (np.ones((2, 2), dtype=int), "has shape (2, 2)"),
    "huge.npy": (np.array([1, 2**40]), "sample 1 has 1,099,511,627,776"),
    "objects.npy": (np.array([{}], dtype=object), "objects.npy"),
    "text.npy": (b"1 2 3\n", "text.npy"),
    "empty.npy": (b"", "empty.npy"),
    "cut.npy": (b"\x93NUMPY\x01\x00", "cut.npy"),
    "tail.npy": (WHOLE_NPY.getvalue()[:-1], "tail.npy"),
}


@pytest.mark.parametrize("command", ["plan", "report"])
@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_that_is_no_lengths_is_refused(name: str, command: str, tmp_path: Path) -> None:
    """Without it floats, negative numbers or pickled objects in a .npy file are planned, or executed."""
    content, expected = ARRAYS[name]
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.save(path, content, allow_pickle=True)
    options = ["--max-length", 100, "--quiet"] if command == "plan" else []
    assert expected in refused(command, path, *options)


@pytest.fixture
def plan_file(chats: Path, tokenizer: Path, tmp_path: Path) -> Path:
    done("plan", chats, "--tokenizer", tokenizer, "--max-length", 64, "-o", tmp_path / "chats.plan", "--quiet")
    return tmp_path / "chats.plan"


def test_a_plan_that_was_cut_is_refused_everywhere(
    plan_file: Path, chats: Path, tokenizer: Path, tmp_path: Path
) -> None:
    """Without it a plan that was copied in part is packed in part, or kills the process that maps it."""
    data = plan_file.read_bytes()
    for size in (0, 1, len(data) // 2, len(data) - 1):
        plan_file.write_bytes(data[:size])
        for command in (
            ("inspect", plan_file),
            ("report", plan_file),
            ("write", plan_file, chats, "-o", tmp_path / "packs", "--tokenizer", tokenizer, "--quiet"),
        ):
            assert str(plan_file) in refused(*command), (size, command)
    assert not (tmp_path / "packs").exists()


def description_at(data: bytes) -> list[int]:
    """Where the keys and numbers of the JSON description of one of our tables lie, once in the footer's copy."""
    begin = data.rindex(b'"kind"')
    return list(range(begin, data.index(b"}", data.index(b'"fingerprint"', begin)), 5))


def test_a_plan_or_table_with_a_flipped_byte_in_its_description_gives_no_traceback(
    plan_file: Path, chats: Path, tokenizer: Path, tmp_path: Path
) -> None:
    """Without it one rotten bit in a header is a KeyError, which tells a user nothing."""
    table = tmp_path / "lengths.arrow"
    done("measure", chats, "--tokenizer", tokenizer, "-o", table, "--quiet")
    wrong = []
    for path in (plan_file, table):
        good = path.read_bytes()
        for at in description_at(good):
            for bit in (1, 0x80):
                path.write_bytes(good[:at] + bytes([good[at] ^ bit]) + good[at + 1 :])
                try:
                    outcome = run("inspect", path)
                except Exception as error:
                    wrong.append((path.name, at, bit, repr(error)[:80]))
                else:
                    assert outcome.code == 0 or one_line(outcome.code, outcome.err)
        path.write_bytes(good)
    assert not wrong, f"{len(wrong)} flips end in a traceback, for example {wrong[:: max(1, len(wrong) // 5)]}"


def test_a_plan_whose_packs_were_damaged_is_not_written(tokenizer: Path, tmp_path: Path) -> None:
    """Without it a flipped bit in a plan packs one sample twice and another never, and every length still agrees."""
    chats = write_rows(tmp_path / "equal.jsonl", [chat("q", letter * 10) for letter in "abcdefgh"])
    damaged = tmp_path / "equal.plan"
    done("plan", chats, "--tokenizer", tokenizer, "--max-length", 64, "-o", damaged, "--quiet")
    ids = np.array(Plan.open(damaged).sample_ids)
    assert sorted(ids.tolist()) == list(range(8))
    flip(damaged, damaged.read_bytes().index(ids.tobytes()))
    assert sorted(Plan.open(damaged).sample_ids.tolist()) != list(range(8))
    line = refused("write", damaged, chats, "-o", tmp_path / "packs", "--tokenizer", tokenizer, "--quiet")
    assert str(damaged) in line


def test_a_plan_of_other_data_is_not_written(plan_file: Path, tokenizer: Path, tmp_path: Path) -> None:
    """Without it a plan made before the data changed packs the wrong samples."""
    packs = tmp_path / "packs"
    shorter = write_rows(tmp_path / "shorter.jsonl", CHATS[:-1])
    edited = write_rows(tmp_path / "edited.jsonl", [*CHATS[:-1], chat("question 19", "b" * 25)])
    command = ("-o", packs, "--tokenizer", tokenizer, "--quiet")
    assert f"the plan is for 20 samples and {shorter} has 19" in refused("write", plan_file, shorter, *command)
    line = refused("write", plan_file, edited, *command)
    assert f"{edited}:20 (sample 19) encodes to 57 tokens and was planned with 51" in line
    assert not list((packs / "log").glob("*.json"))


def test_a_plan_that_is_no_plan_is_refused(chats: Path, tokenizer: Path, tmp_path: Path) -> None:
    """Without it a length table given for a plan, or nothing at all, is a KeyError."""
    table = tmp_path / "lengths.arrow"
    done("measure", chats, "--tokenizer", tokenizer, "-o", table, "--quiet")
    for path, reason in [
        (tmp_path / "none.plan", "no such plan"),
        (table, "is a length table and no plan"),
        (chats, ""),
    ]:
        line = refused("write", path, chats, "-o", tmp_path / "packs", "--tokenizer", tokenizer, "--quiet")
        assert str(path) in line
        assert reason in line
    assert str(tmp_path) in refused("write", tmp_path, chats, "-o", tmp_path / "p", "--tokenizer", tokenizer, "--quiet")


def test_a_length_table_of_other_data_is_not_overwritten(chats: Path, tokenizer: Path, tmp_path: Path) -> None:
    """Without it measuring another data set into the same file destroys hours of work."""
    table = tmp_path / "lengths.arrow"
    done("measure", chats, "--tokenizer", tokenizer, "-o", table, "--quiet")
    before = table.read_bytes()
    other = write_rows(tmp_path / "other.jsonl", list(reversed(CHATS)))
    line = refused("measure", other, "--tokenizer", tokenizer, "-o", table, "--quiet")
    assert str(table) in line
    assert "source content" in line
    assert "--on-mismatch rebuild" in line
    line = refused("measure", chats, "--tokenizer", tokenizer, "-o", chats, "--quiet")
    assert str(chats) in line
    assert table.read_bytes() == before
    done("measure", other, "--tokenizer", tokenizer, "-o", table, "--quiet", "--on-mismatch", "rebuild")
    assert table.read_bytes() != before


@pytest.mark.parametrize(
    ("command", "where"),
    [
        ("measure", "directory"),
        ("plan", "directory"),
        ("measure", "file"),
        ("pack", "file"),
        ("measure", "file/below"),
        ("plan", "file/below"),
        ("pack", "file/below"),
    ],
)
def test_an_output_that_is_in_the_way_is_named(
    where: str, command: str, chats: Path, tokenizer: Path, tmp_path: Path
) -> None:
    """Without it -o at a directory, or at or below a foreign file, destroys it or fails without naming it."""
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").write_text("in the way")
    options = [] if command == "measure" else ["--max-length", 64]
    line = refused(command, chats, "-o", tmp_path / where, "--tokenizer", tokenizer, "--quiet", *options)
    assert str(tmp_path / where.partition("/")[0]) in line
    assert (tmp_path / "file").read_text() == "in the way"
    assert temporary_files(tmp_path) == []


@pytest.mark.parametrize("command", ["measure", "plan", "pack"])
def test_an_output_that_is_the_input_is_refused(command: str, chats: Path, tokenizer: Path) -> None:
    """Without it one wrong -o replaces the data set by its plan."""
    before = chats.read_bytes()
    options = [] if command == "measure" else ["--max-length", 64]
    outcome = run(command, chats, "-o", chats, "--tokenizer", tokenizer, "--quiet", *options)
    assert chats.read_bytes() == before
    assert str(chats) in one_line(outcome.code, outcome.err)


# ── pack stores ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_directory_that_is_no_pack_store_is_named(tmp_path: Path) -> None:
    """Without it the wrong directory looks like an empty store."""
    for command in (["inspect"], ["inspect", "--pack", "0"], ["inspect", "--check"], ["report"]):
        assert str(tmp_path) in refused(command[0], tmp_path, *command[1:])


def test_a_path_that_brimful_did_not_write_is_named(tmp_path: Path, chats: Path) -> None:
    """Without it `inspect` on a data set is an Arrow traceback."""
    foreign = tmp_path / "foreign.arrow"
    table = pa.table({"a": [1]})
    with pa.ipc.new_file(foreign, table.schema) as writer:
        writer.write_table(table)
    for path in (chats, foreign, tmp_path / "nothing"):
        assert str(path) in refused("inspect", path)
        assert str(path) in refused("report", path)
    assert "--check reads a pack store" in refused("inspect", chats, "--check")


def test_an_unfinished_store_is_refused_with_what_is_there(store: Path) -> None:
    """Without it a job that was killed trains on half its data."""
    last = sorted((store / "log").iterdir())[-1]
    last.unlink()
    for options in ([], ["--pack", "0"], ["--check"]):
        line = refused("inspect", store, *options)
        assert f"{store} is not finished: 4 shards with 19 packs so far" in line
        assert "run the command that writes it again" in line


@pytest.mark.parametrize("index", ["19", "-1", "99999999999"])
def test_a_pack_out_of_range_is_answered_with_the_range(index: str, store: Path, plan_file: Path) -> None:
    """Without it --pack 19 of 19 packs is an IndexError, or shows the last one."""
    assert f"--pack {index}: the store has packs 0 … 18" in refused("inspect", store, "--pack", index)
    assert f"--pack {index}: the plan has packs 0 … 18" in refused("inspect", plan_file, "--pack", index)


def shards(store: Path) -> list[Path]:
    return sorted((store / "shards").iterdir())


def flip(path: Path, at: int, bit: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= bit
    path.write_bytes(data)


def test_a_shard_that_was_cut_is_named(store: Path) -> None:
    """Without it reading behind the end of a mapped file kills the process."""
    shard = shards(store)[0]
    size = shard.stat().st_size
    for keep in (size - 1, size // 2, 0):
        os.truncate(shard, keep)
        line = refused("inspect", store, "--pack", 0)
        assert f"{shard} has {keep:,} bytes and was committed with {size:,}" in line
        check = run("inspect", store, "--check")
        assert check.code == 2
        assert str(shard) in check.err.splitlines()[-1]


def test_a_shard_that_was_deleted_is_named(store: Path) -> None:
    """Without it a missing file is an OSError that does not say that packs were there."""
    shard = shards(store)[1]
    shard.unlink()
    line = refused("inspect", store, "--pack", 7)
    assert str(shard) in line
    assert "deleted" in line
    assert done("inspect", store, "--pack", 0).out.startswith("pack 0: ")
    check = run("inspect", store, "--check")
    assert check.code == 2
    assert check.err.splitlines()[-1].startswith("error: ")
    assert str(shard) in check.err.splitlines()[-1]


@pytest.mark.parametrize("damage", ["deleted", "cut"])
def test_packing_again_over_a_damaged_store_claims_no_success(
    damage: str, chats: Path, tokenizer: Path, tmp_path: Path
) -> None:
    """Without it the advice of the errors above, to write the shard again, ends in a summary over missing packs."""
    packs = tmp_path / "packs"
    command = ("pack", chats, "-o", packs, "--tokenizer", tokenizer, "--max-length", 64, "--quiet")
    done(*command)
    expected = snapshot(packs)
    shard = shards(packs)[0]
    shard.unlink() if damage == "deleted" else os.truncate(shard, 100)
    outcome = run(*command)
    if outcome.code == 0:
        assert snapshot(packs) == expected
    else:
        assert str(shard) in one_line(outcome.code, outcome.err)


def buffers_of(shard: Path) -> dict[str, tuple[int, int]]:
    """Where the buffers of the columns of the first batch lie in the file: offset and size."""
    data = pa.py_buffer(shard.read_bytes())
    batch = pa.ipc.open_file(pa.BufferReader(data)).get_batch(0)
    found = {}
    for name in batch.schema.names:
        kinds = ["offsets", "values"] if name == "loss_mask" else ["offsets", "validity", "values"]
        kinds = ["values"] if name == "checksum" else kinds
        for kind, buffer in zip(kinds, batch.column(name).buffers()[1:], strict=True):
            if buffer is not None:
                found[f"{name} {kind}"] = (buffer.address - data.address, buffer.size)
    return found


@pytest.mark.parametrize(
    "buffer",
    [
        "input_ids values",
        "input_ids offsets",
        "loss_mask values",
        "loss_mask offsets",
        "lengths values",
        "lengths offsets",
        "sample_ids values",
        "starts values",
        "checksum values",
    ],
)
def test_a_flipped_bit_in_a_shard_is_found_when_the_pack_is_read(buffer: str, store: Path) -> None:
    """Without it a model trains on tokens, labels or boundaries that nobody wrote."""
    shard = shards(store)[0]
    begin, _ = buffers_of(shard)[buffer]
    for at, bit in [(begin + 4, 1), (begin + 4, 0x80)] if buffer.endswith("offsets") else [(begin, 1), (begin + 3, 8)]:
        good = shard.read_bytes()
        flip(shard, at, bit)
        line = refused("inspect", store, "--pack", 0)
        assert str(shard) in line
        assert "row 0" in line or "batch 0" in line
        check = run("inspect", store, "--check")
        assert check.code == 2
        assert shard.name in check.err.splitlines()[-1]
        shard.write_bytes(good)


def test_no_flipped_bit_in_a_shard_ever_gives_a_wrong_pack(store: Path) -> None:
    """Without it damage in a footer or in metadata may crash the reader or move rows; one bit in every fifth byte."""
    shard = shards(store)[0]
    good = shard.read_bytes()
    expected = done("inspect", store, "--pack", 2, "--full").out
    caught = 0
    for at in range(0, len(good), 5):
        flip(shard, at, 1 << at % 8)
        outcome = run("inspect", store, "--pack", 2, "--full")
        if outcome.code == 0:
            assert outcome.out == expected, at
        else:
            assert str(shard) in one_line(outcome.code, outcome.err)
            caught += 1
        shard.write_bytes(good)
    assert caught > 50


@pytest.mark.parametrize("name", ["log/000000000000.json", "log/000000000004.json", "stream.json"])
def test_no_flipped_bit_in_the_log_or_header_gives_a_traceback(name: str, store: Path) -> None:
    """Without it one rotten bit in a small JSON file is a KeyError that names nothing."""
    path = store / name
    good = path.read_bytes()
    wrong: list[Any] = []
    caught = 0
    for at in range(len(good)):
        flip(path, at, 1 << at % 7)
        try:
            outcome = run("inspect", store)
        except Exception as error:
            wrong.append((at, good[max(at - 12, 0) : at + 12].decode(), repr(error)[:80]))
        else:
            if outcome.code != 0:
                assert str(path) in one_line(outcome.code, outcome.err), at
                caught += 1
        path.write_bytes(good)
    assert caught > 20
    assert not wrong, f"{len(wrong)} of {len(good)} flips end in a traceback, such as {wrong[:: len(wrong) // 5 + 1]}"


def test_a_header_of_another_store_is_found_by_check(store: Path) -> None:
    """Without it a damaged capacity or fingerprint in stream.json is believed: nothing else states it."""
    header = json.loads((store / "stream.json").read_text())
    header["identity"]["plan"] = "0" * 32
    (store / "stream.json").write_text(json.dumps(header))
    outcome = run("inspect", store, "--check")
    assert outcome.code == 2
    assert outcome.err.splitlines()[-1].startswith("error: ")
    assert str(store) in outcome.err.splitlines()[-1]


def test_a_log_record_that_is_gone_is_not_passed_over(store: Path) -> None:
    """Without it a lost record moves every pack behind it to another index."""
    (store / "log" / "000000000001.json").unlink()
    line = refused("inspect", store)
    assert f"{store} is not finished: 1 shard with 5 packs so far" in line


@pytest.mark.parametrize(
    ("options", "differs"),
    [
        (["--max-length", "128"], "capacity (64 there, 128 now)"),
        (["--max-length", "64", "--algorithm", "next_fit"], "settings algorithm (auto there, next_fit now)"),
        (["--max-length", "64", "--seed", "7"], "settings seed (0 there, 7 now)"),
        (["--max-length", "64", "--train-on", "all"], "encoder ("),
        (["--max-length", "64", "other data"], "source ("),
    ],
)
@pytest.mark.parametrize("state", ["finished", "unfinished"])
def test_a_store_of_another_job_is_refused_and_stays_as_it_was(
    state: str, options: list[str], differs: str, chats: Path, tokenizer: Path, tmp_path: Path
) -> None:
    """Without it two jobs mix their packs in one directory, or the second destroys the first."""
    packs = tmp_path / "packs"
    base = ("-o", packs, "--tokenizer", tokenizer, "--quiet")
    done("pack", chats, *base, "--max-length", 64)
    if state == "unfinished":
        sorted((packs / "log").iterdir())[-1].unlink()
    before = snapshot(packs)
    data = chats
    if "other data" in options:
        options = options[:-1]
        data = write_rows(tmp_path / "other.jsonl", list(reversed(CHATS)))
    line = refused("pack", data, *base, *options)
    assert str(packs) in line
    assert differs in line
    assert "Choose another -o" in line
    changed = [name for name, content in snapshot(packs).items() if before.get(name) != content]
    assert (changed, set(before) - set(snapshot(packs))) == ([], set())


# ── a full disk ───────────────────────────────────────────────────────────────────────────────────────────────────

ORDER = ("stream.json", "shards/", "log/000000000000.json", "log/000000000001.json", "summary.json")


@pytest.mark.parametrize("name", ORDER)
def test_a_disk_that_fills_up_costs_one_line_and_nothing_else(
    name: str, chats: Path, tokenizer: Path, tmp_path: Path
) -> None:
    """Without it a full disk leaves half a file that the next run believes, or that nobody can finish."""
    whole, packs = tmp_path / "whole", tmp_path / "packs"
    command = ("pack", chats, "--tokenizer", tokenizer, "--max-length", 64, "--quiet", "-o")
    done(*command, whole)
    sizes = [
        sum(path.stat().st_size for path in whole.rglob("*") if str(path)[len(f"{whole}/") :].startswith(one))
        for one in ORDER
    ]
    room = sum(sizes[: ORDER.index(name)]) + sizes[ORDER.index(name)] // 2
    with full_disk(after_bytes=room):
        line = refused(*command, packs)
    assert f"no space left while writing {packs}/{name}" in line
    assert "nothing that was committed is lost" in line
    assert temporary_files(packs) == []
    there, expected = snapshot(packs), snapshot(whole)
    assert {key: expected[key] for key in there} == there
    assert not any(key.startswith(name) for key in there)
    done(*command, packs)
    assert snapshot(packs) == expected


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    """A real file system of 2 MB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_real_disk_freed_page_by_page_ends_with_the_same_store(
    small_disk: Path, chats: Path, tokenizer: Path, tmp_path: Path
) -> None:
    """Without it only the write that the test replaced is safe, not those of Arrow and of buffered files."""
    packs, ballast = small_disk / "packs", small_disk / "ballast"
    command = ("pack", chats, "--tokenizer", tokenizer, "--max-length", 64, "--quiet", "-o")
    done(*command, tmp_path / "whole")
    page = os.sysconf("SC_PAGE_SIZE")
    with open(ballast, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(page)):
            pass
    refusals = 0
    while (outcome := run(*command, packs)).code != 0:
        line = one_line(outcome.code, outcome.err)
        assert str(packs) in line
        assert "no space left" in line
        assert temporary_files(small_disk) == []
        refusals += 1
        assert refusals < 30
        os.truncate(ballast, ballast.stat().st_size - page)
    assert refusals >= 5
    assert snapshot(packs) == snapshot(tmp_path / "whole")


# ── the command line itself ───────────────────────────────────────────────────────────────────────────────────────


def test_unknown_commands_and_options_are_named(chats: Path) -> None:
    """Without it a typing error is answered by usage texts of thirty lines."""
    assert "'nonsense'" in refused("nonsense")
    assert "--nonsense" in refused("--nonsense")
    assert "--nonsense" in refused("pack", chats, "--nonsense")
    assert "--quite" in refused("pack", chats, "--quite")
    for command in ("pack", "measure", "plan", "write", "inspect", "report"):
        assert "Missing argument" in refused(command)


def test_no_command_at_all_shows_the_help() -> None:
    """Without it the first thing that a new user types is answered by the help squeezed into an error line."""
    outcome = run()
    assert "error: " not in outcome.err
    shown = (outcome.out or outcome.err).splitlines()
    assert any(line.strip().startswith("pack ") for line in shown)


def test_ctrl_c_says_that_nothing_is_lost(
    chats: Path, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it stopping a long job shows a traceback, and nobody dares to start it again."""
    import brimful.cli.pack as pack_command

    def stop(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pack_command, "pack_dataset", stop)
    outcome = run("pack", chats, "-o", tmp_path / "p", "--tokenizer", tokenizer, "--max-length", 64, "--quiet")
    assert outcome.code == 130
    assert outcome.err.strip() == "stopped; what was finished is kept, run the same command to go on"


def in_a_process(*arguments: Any, **environment: str) -> Outcome:
    result = subprocess.run(
        [sys.executable, "-m", "brimful.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
        timeout=120,
    )
    return Outcome(result.returncode, result.stdout, result.stderr)


def test_a_real_process_exits_with_2_and_one_line(tmp_path: Path, tokenizer: Path) -> None:
    """Without it only the function behaves, and what a shell or Slurm sees is untested."""
    path = write_rows(tmp_path / "chats.jsonl", [CHATS[0], {"messages": []}])
    outcome = in_a_process("measure", path, "--tokenizer", tokenizer, "--quiet")
    assert f"{path}:2 (sample 1): 'messages' is empty" in one_line(outcome.code, outcome.err)
    assert outcome.out == ""


def test_a_hub_id_that_cannot_be_reached_is_one_line(chats: Path, tmp_path: Path) -> None:
    """Without it a misspelt hub id on a node without network is a page of transformers."""
    outcome = in_a_process(
        *("measure", chats, "--tokenizer", "nobody/no-such-model", "--quiet"), HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path)
    )
    assert "--tokenizer nobody/no-such-model" in one_line(outcome.code, outcome.err)
