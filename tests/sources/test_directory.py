"""The data files of a directory, such as a clone of the hub."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from brimful.errors import SettingsError, SourceError, SourceNotFoundError
from brimful.sources import open_source
from brimful.sources.settings import RowSettings
from brimful.stream.producer.directory_feed import DirectoryFeed, open_feed
from tests.sources.tools import Put, texts


def _clone(put: Put, tmp_path: Path, *names: str) -> Path:
    put("README.md", "# A data set")
    put("LICENSE.txt", "a licence")
    put("dataset_infos.json", "{}")
    put(".git/config.json", "{}")
    for number, name in enumerate(names):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist([{"text": f"{number}"}]), tmp_path / name)
    return tmp_path


def test_a_clone_of_the_hub_is_its_data(put: Put, tmp_path: Path) -> None:
    """Without it the README among the data makes the directory unreadable, or becomes a sample."""
    clone = _clone(put, tmp_path, "data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet")
    assert texts(open_source(clone)) == ["0", "1"]


def test_the_splits_of_a_clone_are_not_mixed(put: Put, tmp_path: Path) -> None:
    """Without it the test set is trained on, and every evaluation is spoilt."""
    clone = _clone(put, tmp_path, "data/test-00000-of-00001.parquet", "data/train-00000-of-00001.parquet")
    with pytest.raises(SettingsError) as caught:
        open_source(clone)
    assert str(caught.value) == (
        f'{clone} holds several splits (test, train): name one with split="train", or take all with split="all"'
    )
    assert texts(open_source(clone, split="train")) == ["1"]
    assert texts(open_source(clone, split="all")) == ["0", "1"]
    with pytest.raises(SourceNotFoundError, match="has no such split"):
        open_source(clone, split="dev")


def test_the_configurations_of_a_clone_are_not_mixed(put: Put, tmp_path: Path) -> None:
    """Without it the same questions come once for each configuration."""
    clone = _clone(put, tmp_path, "main/train-00000-of-00001.parquet", "socratic/train-00000-of-00001.parquet")
    with pytest.raises(SettingsError, match=r"several configurations \(main, socratic\): name one with config="):
        open_source(clone)
    assert texts(open_source(clone, config="socratic")) == ["1"]
    with pytest.raises(SourceNotFoundError, match="no folder of"):
        open_source(clone, config="other")


def test_a_configuration_is_the_whole_name_of_a_folder(put: Put, tmp_path: Path) -> None:
    """Without it a training on English reads French, and all that has these letters in its name."""
    folders = ("french", "en-us", "data/en", "data/open")
    clone = _clone(put, tmp_path, *(f"{folder}/train-00000-of-00001.parquet" for folder in folders))
    assert texts(open_source(clone, config="en")) == ["2"]
    with pytest.raises(SourceNotFoundError, match="no folder of"):
        open_source(clone, config="us")


def test_what_jobs_wrote_into_a_directory_is_not_its_data(put: Put, tmp_path: Path) -> None:
    """Without it `brimful pack data -o data/packs` fails on its second run, and so does going on after a kill."""
    put("a.jsonl", '{"text": "a"}\n')
    for name in ("packs/stream.json", "packs/log/000000000000.json", "packs/dropped.jsonl", "packs/summary.json"):
        put(name, "{}")
    # A job that ended before it began its packs.
    for name in ("begun/lengths.arrow", "begun/rejects.jsonl", "table", "table.rejects.jsonl"):
        put(name, "{}")
    put("rejects.jsonl", '{"text": "b"}\n')  # no lengths beside it: rows
    assert texts(open_source(tmp_path)) == ["a", "b"]
    feed = DirectoryFeed(tmp_path, RowSettings())
    assert not any(name.startswith("packs/") for name, _ in feed._sizes())


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.txt", "a.parquet", "a.tar", "a.jsonl.gz"])
def test_a_named_pipe_is_refused_before_it_is_opened(name: str, tmp_path: Path) -> None:
    """Without it the job waits for ever, and says nothing."""
    os.mkfifo(tmp_path / name)
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(SourceError, match="is a named pipe, not a file: read the rows of a pipe as standard input"):
            open_source(path)
    with pytest.raises(SourceError, match="is a named pipe"):
        DirectoryFeed(tmp_path, RowSettings()).poll(1, 0)
    with pytest.raises(SourceError, match="is a named pipe"):
        open_feed(tmp_path / name)


@pytest.mark.parametrize("names", [("a.json", "a.jpg"), ("ps_0.json",)])
def test_a_named_pipe_among_rows_of_files_is_refused(names: tuple[str, ...], tmp_path: Path) -> None:
    """Pairs and packs of a directory are read by readers of their own."""
    os.mkfifo(tmp_path / names[0])
    for name in names[1:]:
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "b.json").write_text("{}")
    with pytest.raises(SourceError, match=f"{names[0]} is a named pipe"):
        open_source(tmp_path, media=True)
