"""Planned windows as lmms-engine's online packing: by its registry if installed."""

import importlib
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from brimful.errors import OversizedSampleError
from brimful.integrations.trainers.lmms_engine import WindowPacking, install


@pytest.fixture(params=["stand-in", "installed"])
def build(request, monkeypatch):
    """``build_online_packer`` of lmms-engine, which looks a strategy up by its name."""
    name = "lmms_engine.datasets.packing"
    if request.param == "installed":
        try:
            module = importlib.import_module(name)
        except Exception as error:
            pytest.skip(f"lmms-engine cannot be imported here: {error!r}")
    else:
        registry: dict[str, Any] = {}
        module = ModuleType(name)
        vars(module).update(
            _ONLINE_REGISTRY=registry,
            build_online_packer=lambda strategy, length, **options: registry[strategy](length, **options),
        )
        monkeypatch.setitem(sys.modules, name, module)
    install()
    return module.build_online_packer


def packs_of(packer, lengths):
    for number, length in enumerate(lengths):
        yield from packer.add({"number": number, "length": length}, length)
    yield from packer.flush()


def test_every_sample_leaves_once_in_a_pack_that_holds_it(build):
    """And the object itself: lmms-engine's samples carry their images. The packer serves the next epoch too."""
    lengths = np.clip(np.random.default_rng(0).lognormal(4, 1, 2000), 2, 512).astype(int).tolist()
    packer = build("brimful", 512, size=128)
    for _ in range(2):
        packs = list(packs_of(packer, lengths))
        assert sorted(item["number"] for pack in packs for item in pack) == list(range(2000))
        sizes = [sum(item["length"] for item in pack) for pack in packs]
        assert max(sizes) <= 512
        assert sum(sizes) / (512 * len(sizes)) > 0.99


def test_a_sample_longer_than_a_pack_is_an_error():
    """lmms-engine keeps it away: alone in a row, or left out."""
    with pytest.raises(OversizedSampleError):
        list(WindowPacking(8).add("a", 9))
