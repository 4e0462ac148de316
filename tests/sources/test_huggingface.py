"""Data sets of the hub."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from brimful.errors import BadSampleError, SourceNotFoundError
from brimful.sources import open_source


def test_the_hub_is_asked_only_where_a_split_says_so_and_at_once() -> None:
    """Without it a mistyped path waits for a network, for half a minute without one."""
    with pytest.raises(SourceNotFoundError) as caught:
        open_source("owner/name")
    assert str(caught.value) == (
        'owner/name: no such file or directory (a data set of the hub is opened with split="train")'
    )
    pytest.importorskip("datasets", reason="needs the extra brimful[huggingface]")
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    with pytest.raises(SourceNotFoundError) as caught:
        open_source("owner/name", split="train")
    assert str(caught.value) == (
        "owner/name (split train): no such file or directory here, and the hub cannot be reached, and it is not in the "
        "cache of datasets"
    )


def test_a_hub_that_cannot_be_reached_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the hub's library asks eleven times before it gives up."""
    pytest.importorskip("datasets", reason="needs the extra brimful[huggingface]")
    import datasets
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # where nobody listens
    monkeypatch.setattr("urllib.request.getproxies", dict)
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("asked again"))
    with pytest.raises(SourceNotFoundError, match="the hub cannot be reached"):
        open_source("owner/name", split="train")
    assert constants.HF_HUB_OFFLINE is False


def _media_columns() -> tuple[object, object]:
    datasets = pytest.importorskip("datasets", reason="needs the extra brimful[huggingface]")
    row = {
        "images": [{"bytes": b"no picture at all", "path": "a.png"}, {"bytes": None, "path": "b.png"}],
        "audio": {"bytes": b"no sound", "path": "a.wav"},
        "question": "<image><audio><image>?",
        "answer": "a",
    }
    dataset = datasets.Dataset.from_list([row, row])
    dataset = dataset.cast_column("images", datasets.Sequence(datasets.Image()))
    return datasets, dataset.cast_column("audio", datasets.Audio())


@pytest.mark.parametrize("is_saved", [False, True])
def test_media_columns_give_what_is_stored_and_decode_nothing(
    is_saved: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoded and encoded again a picture would be another one, in twenty times the time; these cannot be decoded."""
    _, dataset = _media_columns()
    (tmp_path / "b.png").write_bytes(b"beside")
    monkeypatch.chdir(tmp_path)  # saving puts files into the data set, and looks for them here
    given: Any = dataset
    if is_saved:
        given = tmp_path / "saved"
        dataset.save_to_disk(given)  # type: ignore[attr-defined]
    source = open_source(given, media_dir=tmp_path)
    first, second = source.read(0, 2)
    assert not isinstance(first, BadSampleError)
    assert [medium.kind.value for medium in first.attachments] == ["image", "audio", "image"]
    contents = [medium.read() for medium in first.attachments]
    assert sorted(contents) == [b"beside", b"no picture at all", b"no sound"]
    assert not isinstance(second, BadSampleError)
    assert first.attachments == second.attachments
    assert source[1].attachments == first.attachments


def test_columns_that_are_decoded_and_those_that_are_not_are_one_data_set() -> None:
    """``Image(decode=False)`` says how to read a column, and not what it holds."""
    datasets, dataset = _media_columns()
    plain = dataset.cast_column("audio", datasets.Audio(decode=False))  # type: ignore[attr-defined]
    assert open_source(plain, media=True).fingerprint == open_source(dataset, media=True).fingerprint
