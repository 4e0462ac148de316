"""The data files of a directory, such as a clone of the hub."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from brimful.errors import SettingsError, SourceNotFoundError
from brimful.sources import open_source
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
    """Without it the README beside the data makes the directory unreadable, or becomes a sample."""
    clone = _clone(put, tmp_path, "data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet")
    assert texts(open_source(clone)) == ["0", "1"]


def test_the_splits_of_a_clone_are_not_mixed(put: Put, tmp_path: Path) -> None:
    """Without it the test set is trained on, and every evaluation is spoilt."""
    clone = _clone(put, tmp_path, "data/test-00000-of-00001.parquet", "data/train-00000-of-00001.parquet")
    with pytest.raises(SettingsError) as caught:
        open_source(clone)
    assert str(caught.value) == (
        f'{clone} holds several splits (test, train): name one with split="train", or take every one with split="all"'
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
