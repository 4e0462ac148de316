"""Outputs at URLs where nothing can be kept, or two writers could create one name: refused before any work."""

from pathlib import Path
from typing import Any

import fsspec
import pytest

from brimful.clusters import remote_blobs as remote
from brimful.clusters.remote_blobs import CONDITIONAL, FsspecBlobStore, protocol_to_write
from brimful.errors import SettingsError, StoreError
from brimful.plan import plan_packs
from tests.cli.bad_input.tools import refused, snapshot

URLS = [
    "memory://x/p",
    "ftp://host/x",
    "http://host/x",
    "github://org:repo@/x",
    "zip::s3://x/a.zip",
    "simplecache::s3://x",
]


@pytest.fixture(autouse=True)
def nothing_but_the_door(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No file system is opened, and no data are, before an output is refused."""
    monkeypatch.delitem(CONDITIONAL, "memory")
    monkeypatch.chdir(tmp_path)

    def opened(*_arguments: Any) -> None:
        raise AssertionError("a file system was opened")

    monkeypatch.setattr(remote, "filesystem_of", opened)


@pytest.mark.parametrize("url", URLS)
def test_a_directory_where_two_writers_could_create_one_name_is_refused_by_every_command(
    url: str, chats: Path, plan_file: Path, store: Path, tmp_path: Path, tokenizer: Path
) -> None:
    """``memory://`` ends with its process: without it the command succeeds, and nothing exists afterwards."""
    before = snapshot(tmp_path)
    for command in (
        ["pack", chats, "--tokenizer", tokenizer, "--max-length", 64],
        ["produce", chats, "--tokenizer", tokenizer, "--max-length", 64, "--close"],
        ["write", plan_file, chats, "--tokenizer", tokenizer],
        ["export", store, "--to", "jsonl"],
    ):
        line = refused(*command, "-o", url)
        assert f"{url}: {url.partition('://')[0]}:// is read only here" in line
        assert line.endswith(f"Write to a local directory or to one of {', '.join(CONDITIONAL)}")
    for command in (
        ["measure", chats, "--tokenizer", tokenizer],
        ["plan", chats, "--tokenizer", tokenizer, "--max-length", 64],
        ["report", store],
    ):
        assert f"-o {url} is a URL: name a local file" in refused(*command, "-o", url)
    assert snapshot(tmp_path) == before


def test_every_protocol_of_fsspec_is_written_to_by_condition_or_refused() -> None:
    """Without it a new file system of fsspec is written to with its default, which looks and then writes."""
    for protocol in fsspec.available_protocols():
        if protocol in CONDITIONAL:
            assert protocol_to_write(f"{protocol}://x") == protocol
        else:
            with pytest.raises(StoreError, match="is read only here"):
                protocol_to_write(f"{protocol}://x")


def test_a_job_in_python_is_refused_before_its_work_too(tmp_path: Path) -> None:
    """Without it days of measuring come first; a plan would be in a local folder named ``s3:``."""
    store = FsspecBlobStore("ftp://x/p", filesystem=fsspec.filesystem("memory"), root="p")
    with pytest.raises(StoreError, match="ftp:// is read only here"), store.used():
        raise AssertionError("the work began")
    with pytest.raises(SettingsError, match="is a URL: name a local file"):
        plan_packs([1, 2], capacity=4).save("s3://bucket/plan.arrow")
    assert not (tmp_path / "s3:").exists()
