"""Broken pictures among good ones: each is accounted for with its reason, and nobody else is lost with it."""

import io
import json
import struct
import zlib

import pytest
from PIL import Image

from brimful import open_packs, pack_dataset
from brimful.encode.media_chat import MediaChatEncoder
from brimful.media.families import open_family
from brimful.plan import PlanSettings
from brimful.sources import open_source


def picture(format="PNG", size=(40, 40), **options):
    file = io.BytesIO()
    Image.new("RGB", size).save(file, format, **options)
    return file.getvalue()


def png_header(width, height):
    """A PNG that states a size and holds nothing."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))


LONG_NAME = "a: b " + "x" * 240 + ".png"
TOO_LONG_NAME = "x" * 300 + ".png"
FILES = {
    "good.jpg": picture("JPEG"),
    "turned.gif": picture("GIF"),
    "animated.gif": picture("GIF", save_all=True, append_images=[Image.new("RGB", (40, 40), "red")]),
    LONG_NAME: picture(),
    "empty.png": b"",
    "text.png": b"no picture",
    "cut.png": picture()[:20],
    "bomb.png": png_header(30_000, 30_000),
    "thin.png": picture(size=(1, 400)),
}
ROWS = [
    ({"question": "<image>?", "answer": "a", "image": "good.jpg"}, None),
    ({"question": "<image>?", "answer": "a", "image": "animated.gif"}, None),
    ({"question": "<image>?", "answer": "a", "image": LONG_NAME}, None),
    ({"question": "Hi?", "answer": "Hello."}, None),
    ({"question": "<image>?", "answer": "a", "image": "missing.png"}, "there is no such file"),
    ({"question": "<image>?", "answer": "a", "image": TOO_LONG_NAME}, "File name too long"),
    ({"question": "<image>?", "answer": "a", "image": "empty.png"}, "image 'empty.png'"),
    ({"question": "<image>?", "answer": "a", "image": "text.png"}, "image 'text.png'"),
    ({"question": "<image>?", "answer": "a", "image": "cut.png"}, "image 'cut.png'"),
    ({"question": "<image>?", "answer": "a", "image": "bomb.png"}, "image 'bomb.png'"),
    ({"question": "<image>?", "answer": "a", "image": "thin.png"}, "image 'thin.png'"),
    ({"question": "<image><image>?", "answer": "a", "image": "good.jpg"}, "its text has a mark <image>"),
    ({"question": "?", "answer": "a", "image": "good.jpg"}, "it has 1 image and its text marks 0"),
    ({"question": "<image>?", "answer": "a", "image": "../good.jpg"}, "is outside of"),
    ({"question": "<image>?", "image": "good.jpg"}, "field 'answer' is missing"),
]


@pytest.mark.parametrize("num_proc", [1, 2])
def test_broken_media_are_rejected_one_by_one(num_proc, qwen_tokenizer, tmp_path):
    """Hundreds of rows of every kind: counted, listed with their reasons, and all others packed once."""
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    rows = ROWS * 40
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row, _ in rows) + "{no json\n")
    source = open_source(tmp_path / "rows.jsonl", media=True)
    family = open_family("qwen2-vl", qwen_tokenizer)
    encoder = MediaChatEncoder(qwen_tokenizer, family, chat_template=qwen_tokenizer / "chat_template_vl.jinja")
    summary = pack_dataset(
        source,
        encoder,
        tmp_path / "packs",
        PlanSettings(capacity=2048),
        on_bad_sample="skip",
        num_proc=num_proc,
        cache_dir=tmp_path / "cache",
    )
    good = [index for index, (_, reason) in enumerate(rows) if reason is None]
    assert (summary.plan.ledger.samples_packed, summary.plan.ledger.samples_rejected) == (len(good), 601 - len(good))
    rejects = [json.loads(line) for line in (tmp_path / "packs" / "rejects.jsonl").read_text().splitlines()]
    assert len(rejects) == 601 - len(good)
    for reject in rejects[:-1]:
        assert rows[reject["sample_id"]][1] in reject["reason"]
    packed = sorted(sample_id for pack in open_packs(tmp_path / "packs") for sample_id in pack.sample_ids.tolist())
    assert packed == good
