"""Drawn pictures and tones: the same every time, named once, and each mark has its medium."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from examples.drawn_chats import main, make_media_chats

from brimful import open_packs

pytest.importorskip("PIL", reason="pictures need the extra brimful[media]")
soundfile = pytest.importorskip("soundfile", reason="sounds need the extra brimful[media]")


def test_every_mark_has_its_file_and_every_file_its_mark() -> None:
    """Without it the example ends at a row of its own."""
    made = make_media_chats(num_chats=40, num_tones=5)
    names = []
    for row in (*made.chats, *made.tones):
        text = "".join(turn["content"] for turn in row["messages"])
        media = [*row.get("images", ()), *row.get("audios", ())]
        assert text.count("<image>") + text.count("<audio>") == len(media)
        names += media
    assert sorted(names) == sorted(made.files)
    assert sum(not row.get("images") for row in made.chats) == 5


def test_other_seeds_draw_other_pictures() -> None:
    """Without it the seed decides nothing."""
    first, second = (make_media_chats(num_chats=8, num_tones=1, seed=seed) for seed in (0, 1))
    assert first.files.keys() == second.files.keys()
    assert first.files != second.files


def test_pictures_and_tones_can_be_read() -> None:
    """Without it the example shows that broken media are counted."""
    from PIL import Image

    made = make_media_chats(num_chats=30, num_tones=4)
    for name, content in made.files.items():
        if name.endswith(".wav"):
            waveform, rate = soundfile.read(io.BytesIO(content))
            assert rate == 16_000
            assert 0.2 < abs(waveform).max() < 1
        else:
            with Image.open(io.BytesIO(content)) as picture:
                assert all(56 <= side <= 224 for side in picture.size)
                assert len(picture.getcolors(1 << 16) or ()) > 1, "an empty picture shows nothing"


@pytest.mark.long
def test_a_second_run_goes_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Without it a show that was stopped begins again, or cannot begin at all."""
    pytest.importorskip("transformers")
    main(str(tmp_path))
    assert "nothing to do: all was there" not in capfd.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} >= {"packs", "packs-of-tones", "packs.html", "tones.html"}
    assert len(open_packs(tmp_path / "packs")) > 3
    shards = {path: path.stat().st_mtime_ns for path in (tmp_path / "packs" / "shards").iterdir()}
    (tmp_path / "pictures" / "0000_0.png").unlink()
    main(str(tmp_path))
    assert capfd.readouterr().out.count("nothing to do: all was there") == 2
    assert shards == {path: path.stat().st_mtime_ns for path in (tmp_path / "packs" / "shards").iterdir()}
    assert (tmp_path / "pictures" / "0000_0.png").exists()
