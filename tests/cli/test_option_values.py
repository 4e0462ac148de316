"""The flags of the entrance reach what they are for: rows, templates, targets, and what a store notes of its tokenizer."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="templates need the extra brimful[text]")

from brimful import pack_dataset
from tests.cli.bad_input.tools import done, refused, write_rows
from tests.cli.tools import save_tokenizer

TEMPLATE = (
    "{% if day %}{{ day }}\n{% endif %}{% if dated %}{{ strftime_now('%d %b %Y') }}\n{% endif %}"
    "{% for m in messages %}{% if m.role in ('user', 'assistant', 'system') %}<|im_start|>{{ m.role }}\n"
    "{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ROW = {"question": "q", "answer": "a"}


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer"), TEMPLATE)


@pytest.fixture
def packed(tokenizer: Path, tmp_path: Path) -> Any:
    """Packs rows with some flags, and gives the text of the first pack."""

    def pack(rows: Any, *options: Any, source: Any = None) -> str:
        path = source or write_rows(tmp_path / "rows.jsonl", rows)
        out = tmp_path / f"packs {len(list(tmp_path.iterdir()))}"
        done("pack", path, "-o", out, "--tokenizer", tokenizer, "--max-length", 200, "--quiet", *options)
        return str(done("inspect", out, "--pack", 0, "--full").out)

    return pack


def test_a_system_prompt_and_variables_of_the_template(packed: Any) -> None:
    """Without it both would have to be written into every row."""
    shown = packed([ROW], "--system", "Be brief.", "--template-arg", "day=today", "--template-arg", "other=true")
    assert "today" in shown
    assert "Be brief." in shown


def test_the_day_of_a_template_is_a_flag(packed: Any, tokenizer: Path, tmp_path: Path) -> None:
    """Without it the user has no way out of the error that asks for it."""
    assert "31 Jan 2026" in packed([ROW], "--template-arg", "dated=true", "--date", "2026-01-31")
    path = write_rows(tmp_path / "rows.jsonl", [ROW])
    line = refused("measure", path, "--tokenizer", tokenizer, "--quiet", "--template-arg", "dated=true")
    assert "writes today's date" in line
    assert "name the day with --date 2" in line


def test_thoughts_are_a_flag(packed: Any) -> None:
    """Without it reasoning data could not be packed with a template that does not know it."""
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "reasoning_content": "hm"}]
    assert "<think>" in packed([{"messages": turns}], "--reasoning", "inline")
    assert "hm" not in packed([{"messages": turns}], "--reasoning", "drop").replace("them", "")


def test_prompt_and_completion_without_a_template(packed: Any) -> None:
    """Without it base models cannot be trained on pairs from the command line."""
    shown = packed([ROW], "--mode", "completion", "--separator", " -> ")
    assert "q -> ⟦a<|im_end|>⟧" in shown


def test_columns_and_marks_may_be_ignored(packed: Any, tokenizer: Path, tmp_path: Path) -> None:
    """Without it the way out that the errors name leads nowhere."""
    rows = [{"question": "<image> q", "answer": "a", "label": True}]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    command = ("measure", path, "--tokenizer", tokenizer, "--quiet")
    assert refused(*command).endswith("leave it out with --ignore label")
    assert refused(*command, "--ignore", "label").endswith("say so with --ignore '<image>'")
    assert "<image> q" in packed(rows, "--ignore", "label", "--ignore", "<image>")


def test_samples_without_a_target_follow_the_flag(tokenizer: Path, tmp_path: Path) -> None:
    """Without it the first conversation that ends with a question ends the job for good."""
    chats = [
        {"messages": [{"role": "user", "content": "q"}]},
        {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "id": 1},
    ]
    path = write_rows(tmp_path / "chats.jsonl", chats)
    command = ("pack", path, "-o", tmp_path / "p", "--tokenizer", tokenizer, "--max-length", 200, "--quiet")
    line = refused(*command)
    assert "1 of 2 samples have no target of the loss (1: it has no turn of the assistant): sample 0. Choose" in line
    assert line.endswith(f"--no-target keep; the first is {path}:1")
    out = done(*command, "--no-target", "drop").out
    assert "dropped        1 sample (50.00 %)" in out
    assert "without a target" in out
    assert "not read       columns id (50.00 %) of the rows" in out
    (listed,) = map(json.loads, (tmp_path / "p" / "dropped.jsonl").read_text().splitlines())
    assert (listed["where"], listed["reason"]) == (f"{path}:1", "no target of the loss")
    keep = ("pack", path, "-o", tmp_path / "k", *command[4:])
    assert "warning        1 sample in the packs have no target" in done(*keep, "--no-target", "keep").out
    assert (
        "without any    1 sample: it has no turn of the assistant"
        in done("inspect", tmp_path / "k" / "lengths.arrow").out
    )


def test_standard_input_and_a_trial_run(packed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it data could not come out of a pipe, and a look at large data would read all of it."""
    lines = "".join(json.dumps({"question": f"q{number}", "answer": "a"}) + "\n" for number in range(9))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    shown = packed(None, "--max-samples", 3, source="-")
    assert all(f"q{number}" in shown for number in range(3))
    assert "q3" not in shown


def test_a_store_finds_its_tokenizer_from_anywhere(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it a relative path of another day is asked of the hub as the name of a model."""
    path = write_rows(tmp_path / "rows.jsonl", [ROW])
    monkeypatch.chdir(tokenizer.parent)
    done("pack", path, "-o", tmp_path / "p", "--tokenizer", tokenizer.name, "--max-length", 200, "--quiet")
    monkeypatch.chdir(tmp_path)
    asked: list[Any] = []
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("brimful.base.hub._reachable", lambda endpoint: asked.append(endpoint) or True)
    assert "⟦a<|im_end|>⟧" in done("inspect", tmp_path / "p", "--pack", 0).out
    header = tmp_path / "p" / "stream.json"
    notes = json.loads(header.read_text())["notes"]
    assert (notes["tokenizer"], len(notes["tokenizer_fingerprint"])) == (str(tokenizer), 32)
    tokenizer.rename(tokenizer.parent / "moved")
    try:
        found = done("inspect", tmp_path / "p", "--pack", 0)
    finally:
        (tokenizer.parent / "moved").rename(tokenizer)
    assert "(no text: --tokenizer" in found.err
    of_hub = {"notes": {"tokenizer": "owner/name"}, "capacity": 200}
    pack_dataset(path, str(tokenizer), tmp_path / "of hub", **of_hub)  # type: ignore[arg-type]
    assert "owner/name: it is not in the hub's cache" in done("inspect", tmp_path / "of hub", "--pack", 0).err
    assert asked == []
