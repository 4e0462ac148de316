"""``brimful export`` in its words, its JSON and its refusals."""

import json
import sys

import pytest

from brimful import open_source
from brimful.integrations.export import LAYOUTS
from tests.cli.tools import refused, result_of, shown
from tests.integrations.export.stores import tree
from tests.store.stores import written


@pytest.fixture
def packs(tmp_path):
    written(tmp_path / "packs", [30, 30, 50, 60, 24, 24], capacity=70)
    return tmp_path / "packs"


def test_an_export_that_is_checked(packs, tmp_path):
    """One command: what was written, how to train from it, and that it reads back."""
    lines = shown("export", packs, "--to", "jsonl", "-o", tmp_path / "a", "--check")
    assert "4 packs, 218 tokens, 6 segments, in 1 shard as jsonl; 1 written now" in lines[0]
    assert lines[-1].startswith("4 packs read by json equal the store's: input_ids, loss_mask, cu_seqlens")
    again = result_of("export", packs, "--to", "jsonl", "-o", tmp_path / "a", "--quiet")
    assert (again["shards_written"], again["checked_by"]) == (0, None)


@pytest.mark.parametrize("layout", [name for name, layout in LAYOUTS.items() if layout.reader[0] != "json"])
def test_a_check_without_its_reader_is_refused_before_anything_is_written(layout, packs, tmp_path, monkeypatch):
    """Without it the export of an hour is written, and then the check says what it needs."""
    module, package = LAYOUTS[layout].reader
    monkeypatch.setitem(sys.modules, module, None)
    message = refused("export", packs, "--to", layout, "-o", tmp_path / "a", "--check")
    assert message.endswith(f"pip install {package}")
    assert not (tmp_path / "a").exists()


def test_packs_in_a_shard(packs, tmp_path):
    shown("export", packs, "--to", "bridge", "-o", tmp_path / "a", "--packs-per-shard", 3, "--num-proc", 1)
    assert sorted(name for name in tree(tmp_path / "a") if "parquet" in name) == [
        "packs-000000.idx.parquet",
        "packs-000001.idx.parquet",
    ]


def test_refusals(packs, tmp_path):
    """In the words of the command line."""
    assert "--to is missing: name the layout: energon, webdataset" in refused("export", packs, "-o", tmp_path / "a")
    assert "--to 'tar' is unknown: use one of energon" in refused("export", packs, "--to", "tar", "-o", tmp_path / "a")
    assert "-o is missing" in refused("export", packs, "--to", "jsonl")
    assert "is not a pack store" in refused("export", tmp_path, "--to", "jsonl", "-o", tmp_path / "a")
    message = refused("export", packs, "--to", "packed-chats", "-o", tmp_path / "a")
    assert message.endswith("give the data that they were packed from as --source")
    shown("export", packs, "--to", "jsonl", "-o", tmp_path / "a")
    assert "Choose another -o, or delete that one" in refused("export", packs, "--to", "bridge", "-o", tmp_path / "a")


def test_texts_come_from_the_data(packs, tmp_path):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": "a" * n}) + "\n" for n in (1, 2)))
    message = refused(
        "export", packs, "--to", "packed-chats", "-o", tmp_path / "a", "--source", tmp_path / "rows.jsonl"
    )
    assert "rows.jsonl is not the data that was packed, or was changed since: name that as --source" in message


def test_a_mixed_data_set_from_the_shell_and_back(media_home, tmp_path):
    """A folder of pairs, one of texts and a file whose pictures lie elsewhere: without it the last --source wins in silence."""
    picture = sorted((media_home / "pictures").iterdir())[0]

    def chat(question, *images):
        turns = [{"role": "user", "content": question}, {"role": "assistant", "content": "A cat."}]
        return json.dumps({"messages": turns, "images": list(images)}) + "\n"

    sources = [tmp_path / name for name in ("captions", "texts", "else/rows.jsonl")]
    for folder in (sources[0], sources[1], sources[2].parent):
        folder.mkdir()
    (sources[0] / "7.json").write_text(chat("<image>\nwhat?", "7.png"))
    (sources[0] / "7.png").write_bytes(picture.read_bytes())
    (sources[1] / "output_00000000.json").write_text(chat("hi"))
    sources[2].write_text(chat("<image>\nwho?", str(picture)))
    options = (
        "--processor",
        media_home / "processor",
        "--max-length",
        512,
        "--num-proc",
        1,
        "--media-outside",
        "--quiet",
    )
    shown("pack", *sources, "-o", tmp_path / "packs", *options)

    def exported(target, *paths):
        flags = [value for path in paths for value in ("--source", path)]
        return (
            "export",
            tmp_path / "packs",
            "--to",
            "packed-chats",
            "-o",
            tmp_path / target,
            *flags,
            "--media-outside",
        )

    shown(*exported("export", *sources))
    samples = open_source(tmp_path / "export", media=True)
    assert sorted(len(samples[row].attachments) for row in range(len(samples))) == [0, 1, 1]
    assert [item.read() for row in range(3) for item in samples[row].attachments] == [picture.read_bytes()] * 2
    assert "in the order in which they were packed" in refused(*exported("other", *reversed(sources)))


def test_help_names_every_layout():
    text = "\n".join(shown("export", "--help"))
    assert all(name in text for name in LAYOUTS)
