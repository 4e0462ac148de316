"""Disks that fill up while a store is written: one line, nothing lost, the same command goes on."""

import contextlib
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.bad_input.tools import done, one_line, refused, snapshot, temporary_files
from tests.cli.tools import outcome as run
from tests.faults.planted import full_disk

ORDER = ("stream.json", "shards/", "log/000000000000.json", "log/000000000001.json", "summary.json")


@pytest.mark.parametrize("name", ORDER)
def test_a_disk_that_fills_up_costs_one_line_and_nothing_else(
    name: str, chats: Path, tokenizer: Path, tmp_path: Path
) -> None:
    """Without it a full disk leaves half a file that the next run believes, or that cannot be finished."""
    whole, packs = tmp_path / "whole", tmp_path / "packs"
    command = ("pack", chats, "--tokenizer", tokenizer, "--max-length", 64, "--quiet", "-o")
    done(*command, whole)
    sizes = [
        sum(path.stat().st_size for path in whole.rglob("*") if str(path)[len(f"{whole}/") :].startswith(one))
        for one in ORDER
    ]
    room = sum(sizes[: ORDER.index(name)]) + sizes[ORDER.index(name)] // 2
    with full_disk(after_bytes=room, folder=packs):
        line = refused(*command, packs)
    assert f"no space left while writing {packs}/{name}" in line
    assert "nothing that was committed is lost" in line
    assert temporary_files(packs) == []
    there, expected = snapshot(packs), snapshot(whole)
    assert {key: expected[key] for key in there} == there
    assert not any(key.startswith(name) for key in there)
    done(*command, packs)
    assert snapshot(packs) == expected


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    """A real file system of 2 MB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_real_disk_freed_page_by_page_ends_with_the_same_store(
    small_disk: Path, chats: Path, tokenizer: Path, tmp_path: Path
) -> None:
    """Without it only the write that the test replaced is safe, not writes of Arrow and of buffered files."""
    packs, ballast = small_disk / "packs", small_disk / "ballast"
    command = ("pack", chats, "--tokenizer", tokenizer, "--max-length", 64, "--quiet", "-o")
    done(*command, tmp_path / "whole")
    page = os.sysconf("SC_PAGE_SIZE")
    with open(ballast, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(page)):
            pass
    refusals = 0
    while (outcome := run(*command, packs)).code != 0:
        line = one_line(outcome.code, outcome.err)
        assert str(packs) in line
        assert "no space left" in line
        assert temporary_files(small_disk) == []
        refusals += 1
        assert refusals < 30
        os.truncate(ballast, ballast.stat().st_size - page)
    assert refusals >= 5
    assert snapshot(packs) == snapshot(tmp_path / "whole")
