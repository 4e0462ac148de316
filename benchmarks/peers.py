"""The packers of other projects, each through its own function, where it is installed.

Every peer takes lengths and gives packs of sample ids. Peers whose function returns lengths get the ids the way their own
trainer does it: from a list of ids for each length. Single files are loaded by path where the package around them needs a
GPU or a training framework to be imported.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Peer", "installed_peers"]

Packs = list[list[int]]


@dataclass(frozen=True)
class Peer:
    """A packer: ``pack(lengths, capacity)`` gives lists of sample ids."""

    name: str
    pack: Callable[[npt.NDArray[np.int32], int], Packs]
    most_items: int
    """It takes minutes or hours for more."""


def installed_peers() -> Iterator[Peer]:
    """Those that can be imported here; the others are named on standard error."""
    for package, name, make, most_items in _PEERS:
        try:
            version = importlib.metadata.version(package)
            pack = make()
        except (ImportError, OSError, AttributeError) as error:
            print(f"{name}: left out ({error})", file=sys.stderr)
            continue
        yield Peer(f"{name} ({package} {version})", pack, most_items)


def _module_at(package: str, path: str) -> ModuleType:
    """One file of a package, without the package."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ImportError(f"{package} is not installed")
    for place in found.submodule_search_locations:
        file = Path(place) / path
        if file.exists():
            spec = importlib.util.spec_from_file_location(f"peer_{file.stem}", file)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module  # dataclasses look their module up
            spec.loader.exec_module(module)
            return module
    raise ImportError(f"{package} has no {path}")


def _with_ids(
    pack: Callable[[list[int], int], Packs],
) -> Callable[[npt.NDArray[np.int32], int], Packs]:
    """From packs of lengths to packs of ids."""

    def run(lengths: npt.NDArray[np.int32], capacity: int) -> Packs:
        ids: defaultdict[int, list[int]] = defaultdict(list)
        numbers = lengths.tolist()
        for sample_id, length in enumerate(numbers):
            ids[length].append(sample_id)
        return [[ids[length].pop() for length in group] for group in pack(numbers, capacity)]

    return run


def _nemo_automodel() -> Any:
    pack = _module_at("nemo_automodel", "components/datasets/llm/neat_packing.py").greedy_knapsack
    return lambda lengths, capacity: pack(lengths.tolist(), capacity)


def _llama_factory() -> Any:
    return _with_ids(
        _module_at("llamafactory", "data/processor/processor_utils.py").greedy_knapsack
    )


def _megatron_bridge() -> Any:
    pack = _module_at("megatron", "bridge/data/datasets/packing_utils.py").first_fit_decreasing
    return _with_ids(pack)


def _binpacking() -> Any:
    import binpacking

    def run(lengths: npt.NDArray[np.int32], capacity: int) -> Packs:
        packs = binpacking.to_constant_volume(
            list(enumerate(lengths.tolist())), capacity, weight_pos=1
        )
        return [[sample_id for sample_id, _ in pack] for pack in packs]

    return run


def _binpacking_in_windows() -> Any:
    """A thousand samples at a time, as ms-swift calls it; the last pack of a window goes on into the next."""
    import binpacking

    def run(lengths: npt.NDArray[np.int32], capacity: int) -> Packs:
        items = list(enumerate(lengths.tolist()))
        packs: Packs = []
        carried: list[tuple[int, int]] = []
        for begin in range(0, len(items), 1000):
            *closed, carried = binpacking.to_constant_volume(
                carried + items[begin : begin + 1000], capacity, weight_pos=1
            )
            packs += [[sample_id for sample_id, _ in pack] for pack in closed]
        return [*packs, [sample_id for sample_id, _ in carried]]

    return run


def _trl() -> Any:
    """``pack_dataset`` on one batch of all samples. It moves the tokens too; here they are bytes."""
    import pyarrow as pa
    from datasets import Dataset, disable_progress_bars
    from trl import pack_dataset

    disable_progress_bars()

    def run(lengths: npt.NDArray[np.int32], capacity: int) -> Packs:
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        if offsets[-1] >= 2**31:
            raise OverflowError("TRL packs at most 2**31 tokens in one batch")
        offsets = offsets.astype(np.int32)
        tokens = pa.ListArray.from_arrays(
            pa.array(offsets), pa.array(np.zeros(int(offsets[-1]), dtype=np.int8))
        )
        samples = Dataset(pa.table({"input_ids": tokens}))
        settings = {
            "batch_size": len(samples),
            "load_from_cache_file": False,
            "keep_in_memory": True,
        }
        packed = pack_dataset(samples, capacity, "bfd", settings)
        inside = packed.data.column("seq_lengths").combine_chunks()
        ends = np.asarray(inside.offsets) - np.asarray(inside.offsets)[0]
        return [
            list(range(a, b)) for a, b in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)
        ]

    return run


_EVERYTHING = 10**9
_PEERS: tuple[tuple[str, str, Callable[[], Any], int], ...] = (
    ("nemo-automodel", "NeMo Automodel knapsack, global", _nemo_automodel, _EVERYTHING),
    ("llamafactory", "LLaMA-Factory knapsack, global", _llama_factory, _EVERYTHING),
    ("megatron-bridge", "Megatron-Bridge first-fit-decreasing", _megatron_bridge, 20_000),
    ("trl", "TRL pack_dataset bfd, one batch", _trl, _EVERYTHING),
    ("binpacking", "binpacking, windows of 1,000", _binpacking_in_windows, _EVERYTHING),
    ("binpacking", "binpacking, global", _binpacking, 20_000),
)
