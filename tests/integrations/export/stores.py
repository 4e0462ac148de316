"""Packs to export, small and with everything in them: cut samples, one token, equal pictures, odd names."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from brimful.media import MediaKind, Medium, PlacedMedium
from brimful.store.shards import assemble_pack
from brimful.testing.toys import ToyPacks

ROOT = Path(__file__).parents[3]


def some_packs(count, *, with_media=False):
    """Packs of three segments, of which the second has one token and the third is the end of a sample."""
    packs = ToyPacks()
    rng = np.random.default_rng(5)
    for number in range(count):
        lengths = [3 + number % 7, 1, 4]
        ids = [rng.integers(1, 60_000, length, dtype=np.int32) for length in lengths]
        masks = [rng.random(length) < 0.6 for length in lengths]
        media = [[], [], []]
        if with_media and number % 3 != 2:
            media[0] = [picture(number % 4, 0), picture(number % 4, 1)]
            media[2] = [
                PlacedMedium(Medium(MediaKind.AUDIO, "no ending", data=b"sound"), start=9, length=1, num_tokens=1)
            ]
        starts = [0, 0, 7]
        packs.append(assemble_pack(ids, masks, [3 * number, 3 * number + 1, 3 * number + 2], starts, media))
    return packs


def picture(number, start):
    """One of few pictures: equal ones share their bytes."""
    name = ["a.png", "sub/b.c.JPG", "x:y \udcff.webp", ""][number]
    medium = Medium(MediaKind.IMAGE, name, data=bytes([number]) * (500 + number))
    return PlacedMedium(medium, start=start, length=1, num_tokens=1, num_patches=4, grid=(1, 2, 2))


def as_rows(packs):
    """What a reader should find in each pack."""
    return [
        {
            "input_ids": pack.input_ids.tolist(),
            "loss_mask": pack.loss_mask.tolist(),
            "cu_seqlens": pack.cu_seqlens.tolist(),
            "sample_ids": pack.sample_ids.tolist(),
            "starts": pack.starts.tolist(),
            "media": [item.read().hex() for item in pack.attachments],
        }
        for pack in packs
    ]


def content(tar, name):
    """Bytes of a member."""
    return tar.extractfile(name).read()


def tree(directory):
    """Bytes of every file."""
    root = Path(directory)
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def run_with(variable, *arguments):
    """Standard output of a script of this folder in a process with the libraries in the folders of a variable."""
    folders = os.environ.get(variable)
    if not folders:
        pytest.skip(f"{variable} names no folder with the library (several are joined by {os.pathsep!r})")
    paths = [str(ROOT / "src"), str(ROOT), *folders.split(os.pathsep)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONWARNINGS": "ignore"}
    script, *rest = arguments
    command = [sys.executable, str(Path(__file__).with_name(script)), *map(str, rest)]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout.splitlines()[-1]
