"""Ctrl-C twice while pictures are measured and written: the program ends at once, and the same command goes on."""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from pathlib import Path

import pytest

import brimful.cli.jobs as pack_command
from brimful import pack_dataset
from brimful.cli import main
from tests.faults.test_signals import LINE, ROOT, signalled, when_stalled
from tests.store.stores import tree

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals to process groups")

DRIVER = """
from functools import partial
from itertools import count
from brimful.__main__ import main
from tests.faults.stalls import stall, stalling

import brimful.cli.jobs as command
from brimful.media.job.writer import ShardMediaWriter
from brimful.media.families import Qwen2VL
command.pack_dataset = partial(command.pack_dataset, shard_bytes=1 << 11)

def stalling_in(function, stage, occurrence):
    numbers = count(1)
    def stalled(*arguments, **options):
        if stalling(stage) and next(numbers) == occurrence:
            stall()
        return function(*arguments, **options)
    return stalled

Qwen2VL.image = stalling_in(Qwen2VL.image, "measuring", 5)
ShardMediaWriter.packs = stalling_in(ShardMediaWriter.packs, "writing", 2)

if __name__ == "__main__":
    main()
"""

SHARD_BYTES = 1 << 11


def arguments(out: Path) -> list[str]:
    options = ["--processor", "processor", "--max-length", "512", "--max-patches", "768", "--num-proc", "1", "--quiet"]
    return ["pack", "chats.jsonl", "-o", str(out), *options, "--cache-dir", f"{out}-cache"]


def finish(home: Path, out: Path) -> dict[str, str]:
    """Run the same command to its end, and return the files of its store."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        patch.setattr(pack_command, "pack_dataset", partial(pack_dataset, shard_bytes=SHARD_BYTES))
        with pytest.raises(SystemExit) as left:
            main(arguments(out))
    assert not left.value.code
    return tree(out)


@pytest.mark.parametrize("stage", ["measuring", pytest.param("writing", marks=pytest.mark.long)])
def test_ctrl_c_twice_loses_no_picture(media_home: Path, tmp_path: Path, stage: str) -> None:
    """Without it a job of days on pictures starts over, or leaves packs whose media are of another run."""
    never_stopped = finish(media_home, tmp_path / "whole")
    assert sum(name.startswith("shards/") for name in never_stopped) > 2, "one shard alone proves nothing"
    (tmp_path / "driver.py").write_text(DRIVER)
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "STALL": stage, "STALLED": str(tmp_path / "stalled")}
    script = f"import os, runpy; os.chdir({str(media_home)!r}); runpy.run_path({str(tmp_path / 'driver.py')!r}, run_name='__main__')"
    ended = signalled(
        [sys.executable, "-c", script, *arguments(tmp_path / "packs")],
        environment,
        tmp_path / "log",
        when=when_stalled(tmp_path),
        signum=signal.SIGINT,
        to_group=True,
        again_after=0.0,
    )
    assert (ended.code, ended.err) == (128 + signal.SIGINT, LINE + "\n")
    assert finish(media_home, tmp_path / "packs") == never_stopped
