"""Texts and chats pass from rows to batches, in a job and in a stream, without a module of media."""

from __future__ import annotations

import subprocess
import sys

import pytest

BEGINNING = """
import json, pathlib, sys
from brimful.testing.toys import toy_chat_encoder
encoder, home = toy_chat_encoder(), pathlib.Path(sys.argv[1])
rows = [{"messages": [{"role": "user", "content": "a" * n}, {"role": "assistant", "content": "b"}]} for n in range(9)]
texts = [{"text": "a" * n} for n in range(2, 10)]
(home / "rows").mkdir()
(home / "rows" / "a.jsonl").write_text("".join(json.dumps(row) + chr(10) for row in texts))
(home / "rows" / "b.txt").write_text("a text")
"""

JOB = """
from brimful import PackCollator, PackLoader, PackedDataset, pack_dataset
from brimful.report.store_check import check_store
for name, data in {"chats": rows, "texts": home / "rows" / "a.jsonl"}.items():
    pack_dataset(data, encoder, home / name, capacity=64)
    batches = PackLoader(PackedDataset(home / name), dp_rank=0, dp_world_size=1, collate_fn=PackCollator())
    assert [*batches] and check_store(home / name).samples == len(rows) - (name == "texts")
"""

STREAM = """
from brimful.stream import PackingProducer, StreamLoader
for name, data in {"chats": rows, "texts": texts, "directory": home / "rows"}.items():
    made = PackingProducer(data, encoder, home / name, capacity=64, lookahead=4, packs_per_shard=1)
    assert made.run(close=True).samples_read == len(texts) + (name != "texts")
    batches = StreamLoader(home / name, dp_rank=0, dp_world_size=1)
    assert sum(pack.num_samples for batch in batches for pack in batch) > 0
"""

END = """
print(*sorted(name for name in sys.modules if name.startswith("brimful.media")))
"""


@pytest.mark.parametrize("work", [JOB, STREAM], ids=["job", "stream"])
def test_texts_load_nothing_of_media(work, tmp_path):
    """What texts do not need costs their start, and is read by everybody who reads their way."""
    script = BEGINNING + work + END
    done = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr
