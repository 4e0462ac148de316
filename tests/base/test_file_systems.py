"""URLs whose library is missing, or whose server does not answer, are one line and no traceback."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from brimful.clusters.remote_blobs import filesystem_of, telling
from brimful.errors import MissingExtraError, SettingsError, SourceError
from brimful.serve import open_packs
from brimful.sources import open_source


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No library of any cloud, whatever this machine has."""
    registry = importlib.import_module("fsspec.registry")
    for name in ("s3fs", "gcsfs", "huggingface_hub"):
        monkeypatch.setitem(sys.modules, name, None)
    for protocol in ("s3", "gs", "hf"):
        monkeypatch.delitem(registry._registry, protocol, raising=False)


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.parametrize(
    ("url", "package"),
    [("s3://b/a.jsonl", "s3fs"), ("gs://b/a.jsonl", "gcsfs"), ("hf://datasets/a/b/c.jsonl", "huggingface_hub")],
)
def test_a_missing_library_is_the_line_that_installs_it(url: str, package: str) -> None:
    """Without it these are thirty lines that end in fsspec."""
    line = f"{url} needs {package}, which is not installed: pip install {package}"
    for call in (open_source, open_packs):
        with pytest.raises(MissingExtraError) as caught:
            call(url)
        assert str(caught.value) == line


def test_a_protocol_that_nobody_knows_is_named() -> None:
    """Without it a slip in the URL is a traceback."""
    with pytest.raises(SettingsError, match=r"^nowhere://x: fsspec knows no file system nowhere://$"):
        open_source("nowhere://x")


def test_a_server_that_does_not_answer_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it no network is a traceback through the client's layers."""

    def refuse(self: Any, path: str) -> str:
        raise RuntimeError("name or service not known\nmore")

    monkeypatch.setattr(type(filesystem_of("memory://a")[0]), "ukey", refuse)
    with pytest.raises(
        SourceError, match=r"^memory://a/b.jsonl cannot be read: RuntimeError: name or service not known$"
    ):
        open_source("memory://a/b.jsonl")


def test_our_own_errors_stay_as_they_are() -> None:
    """Without it a line of ours would be wrapped in another one."""
    with pytest.raises(SettingsError, match="ours"), telling("memory://a"):
        raise SettingsError("ours")


def test_remote_parquet_is_refused_by_name() -> None:
    """Without it Parquet at a URL ends in an error of Arrow's own clouds."""
    with pytest.raises(
        SourceError, match=r"^hf://datasets/a/b.parquet: Parquet is read in place and must be a local file"
    ):
        open_source("hf://datasets/a/b.parquet")


def test_every_extra_that_is_named_exists() -> None:
    """Without it an error asks for ``.[ms-swift]``, which installs nothing."""
    import re

    root = Path(__file__).parents[2]
    listed = set(
        re.findall(
            r"^(\w[\w-]*) = \[",
            (root / "pyproject.toml").read_text().split("[project.optional-dependencies]")[1].split("\n[")[0],
            re.M,
        )
    )
    sources = "\n".join(
        path.read_text("utf-8") for folder in ("src", "docs") for path in (root / folder).rglob("*.[pm][yd]")
    )
    sources += (root / "README.md").read_text("utf-8")
    named = {name for found in re.findall(r"'\.\[([\w,-]+)\]'", sources) for name in found.split(",")}
    named |= {name for found in re.findall(r'missing_extra\([^,]+, "([\w,-]+)"', sources) for name in found.split(",")}
    assert {"text", "torch", "optimal", "trl"} <= named
    assert named <= listed
