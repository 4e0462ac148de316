"""``brimful inspect`` on stores with media."""

import json

import pytest

from brimful import pack_dataset
from brimful.plan import PlanSettings
from brimful.sources import open_source
from tests.cli.tools import outcome, result_of, run, value
from tests.store.pictures import PictureEncoder, chat, picture, write_pictures


@pytest.fixture
def store(request, tmp_path):
    write_pictures(tmp_path / "data", range(3))
    rows = [chat("a", f"p{number % 3}.png", picture(5)) for number in range(6)]
    source = open_source(rows, media=True, media_dir=tmp_path / "data")
    settings = PlanSettings(capacity=64)
    pack_dataset(source, PictureEncoder(), tmp_path / "packs", settings, media_storage=request.param, num_proc=1)
    return tmp_path / "packs"


@pytest.mark.parametrize("store", ["references", "bytes"], indirect=True)
def test_inspect_counts_media_and_says_where_they_are(store, tmp_path, request):
    """Without it users cannot tell whether a store can be moved without its pictures."""
    out, _ = run("inspect", store, "--check")
    assert value(out, "media") == "12 images (4 distinct), 144 patches, 948 bytes"
    places = {
        "references": f"1 distinct in 1 file of {store}/media (2.05 kB); files in {tmp_path / 'data'}",
        "bytes": f"4 distinct in 1 file of {store}/media (5.12 kB)",
    }
    assert value(out, "media in") == places[request.node.callspec.params["store"]]
    assert "and 12 media agree with log and plan" in out[-1]
    assert result_of("inspect", store)["media"]["kinds"]["image"]["count"] == 12


def found(*arguments):
    """The error of a check, which comes after the description of the store."""
    code, _, err = outcome(*arguments)
    assert code == 2
    return err


@pytest.mark.parametrize("store", ["bytes"], indirect=True)
@pytest.mark.parametrize("fault", ["missing", "cut", "flipped"])
def test_damaged_containers_are_named(store, fault):
    """Exit code 2 and the file, before anything is trained on it."""
    (path,) = (store / "media").iterdir()
    data = path.read_bytes()
    path.unlink()
    if fault != "missing":
        path.write_bytes(data[:-700] if fault == "cut" else data.replace(picture(5), picture(5)[::-1]))
    assert f"{path} " in found("inspect", store, "--check")


@pytest.mark.parametrize("store", ["references"], indirect=True)
def test_a_check_looks_where_the_media_are_by_now(store, tmp_path):
    """Without it a store on another machine cannot be checked."""
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    assert "image 'p" in found("inspect", store, "--check")
    out, _ = run("inspect", store, "--check", "--media-root", tmp_path / "elsewhere")
    assert "12 media agree" in out[-1]


def test_pack_puts_bytes_into_the_store(tmp_path, small_qwen):
    """The flag, with a real processor; and what goes to disk is said first."""
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (60, 40)).save(tmp_path / "a.png")
    row = {"question": "<image>What?", "answer": "A picture.", "image": "a.png"}
    (tmp_path / "rows.jsonl").write_text(f"{json.dumps(row)}\n" * 2)
    encoding = ["--processor", small_qwen, "--chat-template", small_qwen / "chat_template_vl.jinja"]
    options = [*encoding, "--encoder", "qwen2-vl", "--max-length", 64, "-o", tmp_path / "packs", "--num-proc", 1]
    _, messages = run("pack", tmp_path / "rows.jsonl", *options, "--media", "bytes")
    assert any("2 in the packs" in line and "1 distinct ones stored" in line for line in messages)
    (tmp_path / "a.png").unlink()
    assert value(run("inspect", tmp_path / "packs", "--check")[0], "media").startswith("2 images (1 distinct), ")
