"""Readers of other projects, as far as their sources were read: they stand in where a project is not installed."""

import gzip
import importlib
import io
import json
import struct
import sys
import tarfile
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np


def samples_of_tars(tars, *, shardshuffle):
    """``webdataset``: the members of a tar by their keys, which end at the first dot; in another order if it may."""
    for path in tars[::-1] if shardshuffle else tars:
        with tarfile.open(path) as tar:
            for key, members in groupby(tar, key=lambda member: member.name.partition(".")[0]):
                parts = {member.name.partition(".")[2]: tar.extractfile(member).read() for member in members}
                yield {"__key__": key, **parts}


def npy_loads(data):
    return np.load(io.BytesIO(data))


class IndexedDataset:
    """The data set of Megatron-Core: slices of sequences, by its index."""

    def __init__(self, path):
        index = Path(f"{path}.idx").read_bytes()
        version, code, num_sequences, num_edges = struct.unpack("<QBQQ", index[9:34])
        assert (index[:9], version) == (b"MMIDIDX\x00\x00", 1)
        self.dtype: Any = {1: np.dtype("uint8"), 4: np.dtype("int32")}[code]
        self.lengths = np.frombuffer(index, "<i4", num_sequences, 34)
        self.pointers = np.frombuffer(index, "<i8", num_sequences, 34 + 4 * num_sequences)
        self.document_indices = np.frombuffer(index, "<i8", num_edges, 34 + 12 * num_sequences)
        self.data = Path(f"{path}.bin").read_bytes()

    def __getitem__(self, sequences):
        return [
            np.frombuffer(self.data, self.dtype, length, pointer)
            for length, pointer in zip(self.lengths[sequences], self.pointers[sequences], strict=True)
        ]


def documents_of_table(path, *, use_array_if_local, dtype):
    """``iter_document_indices`` of OLMo-core: the first two columns of the table next to a file of tokens."""
    assert not use_array_if_local, "it looks for end-of-text tokens, and packs have none"
    table = str(path).replace(".npy", ".csv.gz")
    with gzip.open(table, "rt") as lines:
        for line in lines:
            begin, end, *_ = line.split(",")
            yield int(begin), int(end)


def slice_of_array(path, begin, end, dtype):
    return np.fromfile(path, dtype)[begin:end]


@dataclass(kw_only=True)
class EnergonSample:
    """As Energon's ``Sample`` and ``Batch``: a key, and what derived classes add."""

    __key__: str


def cooked_samples(path):
    """The samples of a tar as Energon decodes them, by the endings of their members."""
    decoders = {"json": json.loads, "npy": npy_loads}
    for sample in samples_of_tars([path], shardshuffle=False):
        yield {name: decoders.get(name.rpartition(".")[2], lambda part: part)(part) for name, part in sample.items()}


class EnergonLoader:
    """A loader of Energon 8, which has to be ended."""

    running = 0

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        EnergonLoader.running += 1
        return iter(self.batches)

    def shutdown(self):
        EnergonLoader.running -= 1


def batches_of_energon(directory, *, split_part, worker_config, batch_size, task_encoder):
    assert (split_part, batch_size) == ("train", 1)
    assert vars(worker_config) == {"rank": 0, "world_size": 1, "num_workers": 0}
    (cooker,) = task_encoder.cookers
    assert cooker.subflavors == {"brimful": "packs"}
    for path in sorted(Path(directory).glob("*.tar")):
        for sample in cooked_samples(path):
            yield task_encoder.batch([cooker.cook(sample)])


ENERGON: dict[str, Any] = {
    "Batch": EnergonSample,
    "Sample": EnergonSample,
    "TaskEncoder": object,
    "Cooker": lambda cook, *, has_subflavors: SimpleNamespace(cook=cook, subflavors=has_subflavors),
    "WorkerConfig": SimpleNamespace,
    "stateless": lambda function: function,
    "basic_sample_keys": lambda sample: {"__key__": sample["__key__"]},
    "get_val_dataset": batches_of_energon,
    "get_loader": EnergonLoader,
}

STAND_INS: dict[str, dict[str, Any]] = {
    "webdataset": {"WebDataset": samples_of_tars},
    "webdataset.autodecode": {"npy_loads": npy_loads},
    "megatron.core.datasets.indexed_dataset": {"IndexedDataset": IndexedDataset},
    "megatron.energon": ENERGON,
    "olmo_core.data.utils": {"iter_document_indices": documents_of_table, "load_array_slice": slice_of_array},
}


def stand_in(monkeypatch, *names):
    """Let these modules be found for a test: the installed ones, or the ones of this file."""
    for name in names:
        with suppress(ImportError):
            importlib.import_module(name)
        if name not in sys.modules:
            module = ModuleType(name)
            vars(module).update(STAND_INS[name])
            monkeypatch.setitem(sys.modules, name, module)
