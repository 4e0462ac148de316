"""Broken pictures among good ones: each is accounted for with its reason, and no other sample is lost with it."""

import io
import json
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from brimful import open_packs, pack_dataset
from brimful.media.encode.media_chat import MediaChatEncoder
from brimful.media.families import open_family
from brimful.plan import PlanSettings
from brimful.sources import open_source


def noise(format="PNG", size=(40, 40), **options):
    """A picture that is not of one colour."""
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (*size[::-1], 3), dtype=np.uint8)).save(
        file, format, **options
    )
    return file.getvalue()


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_header(width, height):
    """A PNG that states a size and holds nothing."""

    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))


def png_bomb(side):
    """A PNG of a few kilobytes that unpacks to ``side`` × ``side`` pixels."""

    line = bytes(1 + side // 8)
    compressor = zlib.compressobj(9)
    pixels = b"".join(compressor.compress(line * 100) for _ in range(side // 100)) + compressor.flush()
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


LONG_NAME = "a: b " + "x" * 240 + ".png"


FAULTS = {
    "gone.png": (None, "image 'gone.png': does not exist"),
    "zero.png": (b"", "image 'zero.png': is empty"),
    "text.png": (b"no picture", "image 'text.png'"),
    "cut.png": (noise()[:20], "image 'cut.png'"),
    "header.png": (png_header(30_000, 30_000), "image 'header.png': is not an image that Pillow can read"),
    "bomb.png": (png_bomb(20_000), "image 'bomb.png': Pillow cannot read it: "),
    "thin.png": (noise(size=(2, 600)), "image 'thin.png'"),
}
"""Pictures that are not to be packed: their bytes (None for no file), and the reason."""

GOOD_FILES = {
    "good.jpg": noise("JPEG"),
    "animated.gif": noise("GIF", save_all=True, append_images=[Image.new("RGB", (40, 40), "red")]),
    LONG_NAME: noise(),
}


def vqa(number, name, question="<image>?"):
    return json.dumps({"id": number, "question": question, "answer": f"Answer {number}.", "image": name})


def good_line(number):
    """Rows of pictures, an animation, a name of blanks and colons, and text alone, by turns."""
    names = [*GOOD_FILES, None]
    name = names[number % len(names)]
    return vqa(number, name) if name else json.dumps({"question": f"Number {number}?", "answer": "Yes."})


def bad_line(number):
    """A broken row, of every kind by turns, and the reason why it is rejected."""
    kinds = [
        *((lambda name=name: vqa(number, name), reason) for name, (_, reason) in FAULTS.items()),
        (lambda: '{"question": "<image>?", "answer": ', "not JSON"),
        (lambda: vqa(number, "good.jpg", "<image><image>?"), "its text has a mark <image> and the row has 1 image"),
        (lambda: vqa(number, "good.jpg", "?"), "it has 1 image and its text marks 0"),
        (lambda: vqa(number, "a: b " + "x" * 300), "image 'a: b xxx"),
        (lambda: vqa(number, "../good.jpg"), "'../good.jpg' is outside"),
        (lambda: '{"question": "<image>?", "image": "good.jpg"}', "field 'answer' is missing"),
    ]
    make, reason = kinds[number % len(kinds)]
    return make(), reason


@pytest.mark.parametrize("num_proc", [1, 2])
@pytest.mark.parametrize("num_rows", [600, pytest.param(20_000, marks=pytest.mark.chaos)])
def test_one_row_in_twenty_is_broken(num_rows, num_proc, small_qwen, tmp_path):
    """Every row is packed once, or stands in the list with its reason; no other sample goes with it."""
    for name, content in {**GOOD_FILES, **{name: content for name, (content, _) in FAULTS.items()}}.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
    # A little more than one in twenty, so that there are more than the thousand that a table of lengths names.
    broken = sorted(1 + np.random.default_rng(0).permutation(num_rows - 1)[: num_rows * 52 // 1000])
    rows = {number: bad_line(position) for position, number in enumerate(map(int, broken))}
    lines = [rows[number][0] if number in rows else good_line(number) for number in range(num_rows)]
    (tmp_path / "rows.jsonl").write_text("".join(f"{line}\n" for line in lines))
    encoder = MediaChatEncoder(
        small_qwen,
        open_family("qwen2-vl", small_qwen),
        chat_template=small_qwen / "chat_template_vl.jinja",
    )
    arguments = {
        "on_bad_sample": "skip",
        "num_proc": num_proc,
        "cache_dir": tmp_path / "cache",
    }
    source = open_source(tmp_path / "rows.jsonl", media=True, cache_dir=tmp_path / "cache")
    summary = pack_dataset(source, encoder, tmp_path / "packs", PlanSettings(capacity=2048), **arguments)
    ledger = summary.plan.ledger
    assert len(rows) > num_rows / 20
    assert (ledger.samples_in, ledger.samples_packed) == (num_rows, num_rows - len(rows))
    assert (ledger.samples_rejected, ledger.samples_dropped) == (len(rows), 0)
    packed = sorted(sample_id for pack in open_packs(tmp_path / "packs") for sample_id in pack.sample_ids.tolist())
    assert packed == sorted(set(range(num_rows)) - set(rows))
    rejects = [json.loads(line) for line in (tmp_path / "packs" / "rejects.jsonl").read_text().splitlines()]
    assert [reject["sample_id"] for reject in rejects] == sorted(rows)
    for reject in rejects:
        assert reject["reason"].startswith(rows[reject["sample_id"]][1]), reject
        assert reject["where"] == f"{tmp_path}/rows.jsonl:{reject['sample_id'] + 1}"
    # The same call on the finished directory reads what is there, and leaves the list as it is.
    again = pack_dataset(source, encoder, tmp_path / "packs", PlanSettings(capacity=2048), **arguments)
    assert again.plan.fingerprint == summary.plan.fingerprint
    assert [json.loads(line) for line in (tmp_path / "packs" / "rejects.jsonl").read_text().splitlines()] == rejects
