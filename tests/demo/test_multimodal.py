"""The demo on pictures: its losses agree, it goes on where it was stopped, and files of others are left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from brimful import open_packs
from brimful.demo import run_multimodal_demo
from brimful.demo.media_train import compare_media_training
from brimful.errors import SettingsError


def test_packed_and_padded_losses_agree(media_home: Path, media_packs: Path) -> None:
    """Without it the demo shows a model whose samples see each other's pictures."""
    pytest.importorskip("torch")
    packed, padded = compare_media_training(media_packs, media_home / "processor", steps=2, packs_per_step=2)
    assert packed.losses == pytest.approx(padded.losses, abs=1e-4)
    assert packed.losses[1] < packed.losses[0]
    assert packed.real_tokens == padded.real_tokens == packed.positions < padded.positions


@pytest.mark.long
def test_a_second_run_goes_on(tmp_path: Path) -> None:
    """Without it a demo that was stopped begins anew, or cannot begin at all."""
    lines: list[str] = []
    home = tmp_path / "demo"
    run_multimodal_demo(home, lines.append, num_chats=24, num_tones=4, steps=2)
    text = "\n".join(lines)
    assert "$ brimful pack --config tones.yaml" in text
    assert "nothing to do: all was there" not in text
    assert {path.name for path in home.iterdir()} >= {"packs", "packs-of-tones", "packs.html", "tones.html"}
    assert len(open_packs(home / "packs")) > 3
    shards = {path: path.stat().st_mtime_ns for path in (home / "packs" / "shards").iterdir()}
    (home / "pictures" / "0000_0.png").unlink()
    again: list[str] = []
    packed, _ = run_multimodal_demo(home, again.append, num_chats=24, num_tones=4, steps=2)
    assert "\n".join(again).count("nothing to do: all was there") == 2
    assert shards == {path: path.stat().st_mtime_ns for path in (home / "packs" / "shards").iterdir()}
    assert (home / "pictures" / "0000_0.png").exists()
    assert [line for line in again if line.startswith("packed  ")][1].split()[-3:] == (
        [line for line in lines if line.startswith("packed  ")][1].split()[-3:]
    ), "the same seed, and other losses"
    assert len(packed.losses) == 2


def test_files_that_are_there_are_left_alone(tmp_path: Path) -> None:
    """Without it a demo writes between the files of its user."""
    (tmp_path / "chats.jsonl").write_text("mine")
    with pytest.raises(SettingsError, match="has files already, and not of this demo"):
        run_multimodal_demo(tmp_path, print)
    assert (tmp_path / "chats.jsonl").read_text() == "mine"
    with pytest.raises(SettingsError, match="is a file"):
        run_multimodal_demo(tmp_path / "chats.jsonl", print)
