"""Data sets of the hub."""

from __future__ import annotations

import os
import time

import pytest

from brimful.errors import SourceNotFoundError
from brimful.sources import open_source


def test_the_hub_is_asked_only_where_a_split_says_so_and_at_once() -> None:
    """Without it a mistyped path waits for a network, for half a minute where there is none."""
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
    monkeypatch.setattr("brimful.hub.getproxies", dict)
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("asked again"))
    with pytest.raises(SourceNotFoundError, match="the hub cannot be reached"):
        open_source("owner/name", split="train")
    assert constants.HF_HUB_OFFLINE is False
