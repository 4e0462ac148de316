"""Pictures on the command line: flags that change tokens, what is refused, and what is shown of packs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from brimful.serve import open_packs
from tests.cli.tools import refused, result_of, run, value
from tests.report.html.test_page import Page


def pack(home: Path, *options: object) -> tuple[object, ...]:
    return ("pack", home / "chats.jsonl", "--processor", home / "processor", "--num-proc", 1, *options)


def test_the_summary_counts_media_and_a_second_run_says_the_same(media_home: Path, media_packs: Path) -> None:
    """Without it users do not see how many pictures the packs hold, or which one is too large."""
    summary = json.loads((media_packs / "summary.json").read_text())
    pictures = summary["media"]["kinds"]["image"]
    assert (pictures["count"], pictures["distinct"]) == (20, 20)
    assert result_of("inspect", media_packs)["media"] == result_of("report", media_packs)["media"] == summary["media"]
    out, _ = run("inspect", media_packs)
    assert value(out, "media").startswith("20 images (20 distinct), ")
    assert value(out, "largest").startswith("image 'pictures/")
    shown = [line for line in out if line.startswith(("media ", "largest ", "media in "))]
    assert len(shown) == 3
    assert [line for line in run("report", media_packs)[0] if line in shown] == shown
    options = ("--max-length", 512, "--max-patches", 768, "--quiet", "-o", media_packs)
    assert [line for line in run(*pack(media_home, *options))[0] if line in shown] == shown


def test_limits_of_pixels_change_what_is_packed(media_home: Path, tmp_path: Path) -> None:
    """Without it a flag that is given is not in the fingerprint, and packs of other settings are taken for these."""
    identities = []
    for number, options in enumerate([(), ("--max-pixels", 12_544), ("--fps", 2)]):
        out = tmp_path / str(number)
        run(*pack(media_home, "--max-length", 512, "-o", out, "--max-samples", 2, "--quiet", *options))
        identities.append(open_packs(out).identity["encoder"])
    assert len(set(identities)) == 3
    patches = [sum(item.num_patches for p in open_packs(tmp_path / name) for item in p.attachments) for name in "01"]
    assert patches[1] < patches[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--sampling-rate", 8000), "the family qwen2-vl has no setting --sampling-rate: leave it out"),
        (
            ("--max-frames", 8),
            "--max-frames 8: a bound of the frames that --fps takes, and this processor takes others",
        ),
        (("--fps", 0), "--fps of videos has to be above 0 and is 0.0"),
        (("--video-max-pixels", 0), "--video-max-pixels of video has to be a positive whole number and is 0"),
        (("--num-frames", 0), "--num-frames of video has to be a positive whole number and is 0"),
        (("--fps", 1, "--num-frames", 4), "--fps and --num-frames of videos contradict each other: keep one"),
    ],
)
def test_settings_that_would_change_nothing_are_refused(
    media_home: Path, tmp_path: Path, options: tuple[object, ...], message: str
) -> None:
    """Without it a bound is given, ignored, and missed when memory runs out."""
    assert message in refused(*pack(media_home, "--max-length", 512, "-o", tmp_path / "p", *options))


def test_flags_of_media_need_a_processor(chats: Path, tokenizer: Path, tmp_path: Path) -> None:
    """Without it pictures that were to be made smaller are packed as text, or not at all."""
    line = refused("pack", chats, "--tokenizer", tokenizer, "--max-length", 70, "-o", tmp_path / "p", "--fps", 2)
    assert line == "--fps is for images, videos and audio: name the model's --processor, or leave it out"


def test_a_wrong_processor_is_named(media_home: Path, tmp_path: Path) -> None:
    """Without it the first message is about a file that the user did not name."""
    for name, words in [
        ("processor/preprocessor_config.json", "is a file: name its directory"),
        ("nowhere", "is not a directory"),
        ("pictures", "has no preprocessor_config.json and no processor_config.json"),
    ]:
        path = media_home / name
        line = refused("pack", media_home / "chats.jsonl", "--processor", path, "--max-length", 9, "-o", tmp_path / "p")
        assert line.startswith(f"--processor {path}: ")
        assert words in line


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--max-length", 60), "has 82 tokens, 49 of them of its image 'big.png', and a pack holds 60: "),
        (("--max-length", 512, "--max-patches", 40), "patches, and a pack holds 40"),
    ],
)
def test_a_picture_that_does_not_fit_names_its_way_out(
    media_home: Path, tmp_path: Path, options: tuple[object, ...], words: str
) -> None:
    """Without it the way out of a picture that is too large is to cut it, which is refused."""
    folder = tmp_path / "one"
    folder.mkdir()
    rows = [json.loads(line) for line in (media_home / "chats.jsonl").read_text().splitlines()]
    from PIL import Image

    Image.new("RGB", (300, 300)).save(folder / "big.png")
    row = {**rows[0], "images": ["big.png"]}
    (folder / "chats.jsonl").write_text(json.dumps(row) + "\n")
    shutil.copytree(media_home / "processor", folder / "processor")
    line = refused(*pack(folder, "-o", tmp_path / "p", "--quiet", *options))
    assert words in line
    assert "Choose smaller images with --max-pixels, --overflow drop, or --" in line


def test_a_pack_is_shown_with_its_pictures_as_words(media_packs: Path) -> None:
    """Without it `inspect` prints the same token hundreds of times."""
    number = next(index for index, pack in enumerate(open_packs(media_packs)) if pack.attachments)
    text = "\n".join(run("inspect", media_packs, "--pack", number)[0])
    assert "<|image_pad|>" not in text
    assert "<|vision_start|>[image 'pictures/" in text
    segments = result_of("inspect", media_packs, "--pack", number)["segments"]
    assert sum(len(segment.get("media", ())) for segment in segments) == len(
        open_packs(media_packs)[number].attachments
    )


def test_the_page_shows_packs_as_pictures_and_stays_small(media_packs: Path, tmp_path: Path) -> None:
    """Without it users open a viewer of their own to see what they train on."""
    page, again = tmp_path / "a.html", tmp_path / "b.html"
    out, _ = run("report", media_packs, "-o", page)
    run("report", media_packs, "-o", again)
    assert page.read_bytes() == again.read_bytes()
    assert page.stat().st_size < 1_000_000
    elements = Page(page.read_text()).elements
    assert sum(name == "img" for name, _ in elements) > 3
    assert ("section", {"id": "media"}) in elements
    policy = next(attributes["content"] for name, attributes in elements if "http-equiv" in attributes)
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert any(line.split()[:1] == ["patches"] and "%" in line for line in out)
    assert {fill["name"] for fill in result_of("report", media_packs)["budgets"]} == {"tokens", "patches", "images"}
