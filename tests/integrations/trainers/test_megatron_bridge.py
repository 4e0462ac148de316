"""Batches for ``vlm_step`` of Megatron-Bridge, by a reading of its source of August 2026: it cannot be imported without a GPU."""

import importlib
import sys
import types
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from brimful import PackCollator  # noqa: E402
from brimful.errors import CollateError, MissingExtraError, SettingsError  # noqa: E402
from brimful.integrations.trainers.megatron_bridge import BridgeCollator  # noqa: E402
from brimful.testing.toys import toy_pack  # noqa: E402


@dataclass
class VisualInputs:
    """The fields of ``GenericVisualInputs``."""

    pixel_values: Any = None
    pixel_values_videos: Any = None
    image_grid_thw: Any = None
    video_grid_thw: Any = None
    second_per_grid_ts: Any = None
    image_sizes: Any = None
    image_position_ids: Any = None
    mm_token_type_ids: Any = None


READ = {"input_ids", "position_ids", "labels", "loss_mask", "attention_mask", "total_tokens", "visual_inputs"}
READ |= {f"{name}_{part}" for name in ("cu_seqlens", "max_seqlen") for part in ("q", "kv")}
"""Keys that ``get_batch_from_iterator`` and ``get_batch`` take."""


def with_images():
    """A row of a processor with one image of four patches, and its positions."""
    ids = np.array([5, 9, 6, 7], dtype=np.int32)
    return {
        "input_ids": ids,
        "labels": ids,
        "position_ids": np.tile(np.arange(4), (3, 1)),
        "mm_token_type_ids": np.array([0, 1, 0, 0]),
        "pixel_values": np.ones((4, 6), dtype=np.float32),
        "image_grid_thw": np.array([[1, 2, 2]]),
    }


@pytest.fixture
def bridge(monkeypatch):
    """The module that has Bridge's class, as far as it was read."""
    name = "megatron"
    for part in ("", ".bridge", ".training", ".utils", ".visual_inputs"):
        name += part
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    vars(sys.modules[name])["GenericVisualInputs"] = VisualInputs


def test_images_are_one_object_that_the_step_moves_to_the_device(bridge):
    collate = BridgeCollator(PackCollator(dialect="megatron_bridge"))
    batch = collate([with_images(), with_images()], object(), enable_in_batch_packing=True, sequence_length=8)
    assert set(batch) - {"padding_mask"} <= READ
    visual = batch["visual_inputs"]
    assert visual.pixel_values.shape == (8, 6)
    assert visual.image_grid_thw.tolist() == [[1, 2, 2], [1, 2, 2]]
    assert all(value is None or torch.is_tensor(value) for value in vars(visual).values()), "each is moved by .cuda()"


def test_texts_have_none():
    batch = BridgeCollator(PackCollator(dialect="megatron_bridge"))([toy_pack([3, 2])])
    assert batch["visual_inputs"] is None
    assert batch["cu_seqlens_q"].tolist() == [0, 3, 5]


def test_it_stands_in_the_registry_as_the_resolver_finds_it():
    """By module and name; the registry calls ``collate(batch, processor, **settings)``."""
    sys.modules["my_packs"] = types.ModuleType("my_packs")
    try:
        sys.modules["my_packs"].collate = BridgeCollator(PackCollator(dialect="megatron_bridge"))  # type: ignore[attr-defined]
        found = getattr(importlib.import_module("my_packs"), "collate")  # noqa: B009
        assert callable(found)
        assert found([toy_pack([3])], None, pad_to_max_length=True)["visual_inputs"] is None
    finally:
        del sys.modules["my_packs"]


def test_what_it_cannot_pass_on_is_refused():
    with pytest.raises(SettingsError, match="the collator has dialect megatron: Megatron-Bridge reads"):
        BridgeCollator(PackCollator(dialect="megatron"))
    audio = {
        "input_ids": np.array([5, 9, 6], dtype=np.int32),
        "mm_token_type_ids": np.array([0, 3, 0]),
        "input_features": np.ones((1, 4, 8), dtype=np.float32),
        "feature_attention_mask": np.ones((1, 8), dtype=np.int32),
    }
    with pytest.raises(CollateError, match="packs have audio"):
        BridgeCollator(PackCollator(dialect="megatron_bridge"))([audio])


def test_without_megatron_bridge_it_is_named():
    try:
        import megatron.bridge  # noqa: F401
    except ImportError:
        with pytest.raises(MissingExtraError, match="BridgeCollator needs Megatron-Bridge"):
            BridgeCollator(PackCollator(dialect="megatron_bridge"))([with_images()])
