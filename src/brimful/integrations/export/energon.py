"""Data set of Megatron-Energon, versions 5 to 8, that loads without ``energon prepare``.

::

    packs-000000.tar      one sample a pack: KEY.json, KEY.input_ids.npy, KEY.loss_mask.npy, KEY.000.image, …
    packs-000000.tar.idx  where each sample begins
    task_encoder.py       segments of a pack as tensors, for training; needs nothing of brimful
    .nv-meta/             what `energon prepare` would write

Media are members called ``000.image``, ``000.video`` or ``000.audio``: Energon leaves these endings
undecoded, as the model's processor needs the bytes.
"""

import json
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from brimful.base.atomic_file import atomic_file
from brimful.base.blobs import BlobStore
from brimful.base.typing import Int64Array
from brimful.errors import SettingsError
from brimful.integrations.export.export_layout import (
    ExportPlan,
    Layout,
    ReadPack,
    Shard,
    ShardOutcome,
    chunks_of_file,
    write_blob,
)
from brimful.integrations.export.webdataset import shard_name, write_pack_tar
from brimful.integrations.packed_layouts import tar_groups
from brimful.measure import LengthTable
from brimful.plan import plan_packs

META = ".nv-meta"
"""Folder of Energon's own files."""

DATASET = """\
__module__: megatron.energon
__class__: CrudeWebdataset
subflavors:
  brimful: packs
"""
"""Contents of ``dataset.yaml``: samples are dictionaries of members, which a cooker of the task
encoder takes.
"""


class EnergonLayout(Layout):
    """Tars with keys, offsets and metadata for Megatron-Energon."""

    name = "energon"
    takes_media = True
    reader = ("megatron.energon", "megatron-energon")

    def write_shard(self, shard: Shard) -> ShardOutcome:
        return write_pack_tar(shard, kinds_as_endings=True)

    def finish(
        self, outcomes: Sequence[ShardOutcome], plan: ExportPlan, store: BlobStore
    ) -> list[str]:
        files = write_metadata([outcome.packs for outcome in outcomes], "packs", store, DATASET)
        task_encoder = Path(__file__).with_name("energon_task_encoder.py")
        store.put_atomic("task_encoder.py", task_encoder.read_bytes())
        return [*files, "task_encoder.py"]

    def advice(self, directory: str) -> str:
        return (
            f"get_train_dataset({directory!r}, batch_size=1, task_encoder=PackTaskEncoder(), …), "
            f"of {directory}/task_encoder.py"
        )

    def read(self, directory: str, num_shards: int) -> Iterator[ReadPack]:
        from megatron.energon import WorkerConfig, get_loader, get_val_dataset

        from brimful.integrations.export.energon_task_encoder import PackTaskEncoder

        workers = WorkerConfig(rank=0, world_size=1, num_workers=0)
        dataset = get_val_dataset(
            directory,
            split_part="train",
            worker_config=workers,
            batch_size=1,
            task_encoder=PackTaskEncoder(),
        )
        with ExitStack() as at_the_end:
            loader = get_loader(dataset)
            if hasattr(loader, "shutdown"):  # from version 8 on, a loader has to be ended
                at_the_end.callback(loader.shutdown)
            for batch in loader:
                yield ReadPack(
                    input_ids=batch.tokens[0].tolist(),
                    loss_mask=batch.is_target[0].tolist(),
                    cu_seqlens=batch.cu_lengths[0].tolist(),
                    sample_ids=batch.sample_ids.tolist(),
                    starts=batch.starts.tolist(),
                    media=[item["data"] for item in batch.media],
                )


def write_metadata(counts: Sequence[int], prefix: str, store: BlobStore, dataset: str) -> list[str]:
    """Write ``.nv-meta`` for tars of one prefix, all of them for training; return the keys of its
    files.

    Args:
        counts: samples in each tar.
        prefix: of their names.
        store: that holds them.
        dataset: contents of ``dataset.yaml``.
    """
    names = [shard_name(shard, prefix) for shard in range(len(counts))]
    shard_counts = dict(zip(names, counts, strict=True))
    # One line for tars of any number, which Energon expands.
    range_text = "000000" if len(counts) == 1 else f"{{000000..{len(counts) - 1:06d}}}"
    # Version 5 reads one and version 7 the other. JSON is valid YAML, but version 5 expects lines.
    files: dict[str, str] = {
        ".info.json": json.dumps({"shard_counts": shard_counts}, indent=2) + "\n",
        ".info.yaml": "shard_counts:\n"
        + "".join(f"  {name}: {count}\n" for name, count in shard_counts.items()),
        "split.yaml": f'split_parts:\n  train:\n  - "{prefix}-{range_text}.tar"\n  val: []\n  test: '
        "[]\nexclude: []\n",
        "dataset.yaml": dataset,
    }
    index = write_index(names, store, f"{META}/index.sqlite")
    for name, text in files.items():
        store.put_atomic(f"{META}/{name}", text.encode())
    return [*index, *(f"{META}/{name}" for name in files)]


_TABLES = """
CREATE TABLE samples (
    tar_file_id INTEGER NOT NULL,
    sample_key TEXT NOT NULL UNIQUE,
    sample_index INTEGER NOT NULL,
    byte_offset INTEGER,
    byte_size INTEGER
);
CREATE TABLE sample_parts (
    tar_file_id INTEGER,
    sample_index INTEGER,
    part_name TEXT,
    content_byte_offset INTEGER,
    content_byte_size INTEGER
);
"""

_INDEXES = """
CREATE INDEX idx_samples_by_tar_and_idx ON samples(tar_file_id, sample_index);
CREATE INDEX idx_sample_parts_seq ON sample_parts(tar_file_id, sample_index, content_byte_offset);
CREATE INDEX idx_sample_parts_full ON sample_parts(tar_file_id, sample_index, part_name, content_byte_offset, content_byte_size);
"""


def write_index(tars: Sequence[str], store: BlobStore, key: str) -> list[str]:
    """Write the index of some tars, reading only their headers; return its key.

    A remote store gets none: Energon needs it only to read single samples by their keys, not to
    train.

    Args:
        tars: keys of the tars, in the order of the data set.
        store: that holds them.
        key: of the index.
    """
    if store.local_path(tars[0]) is None:
        return []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index.sqlite"
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(_TABLES)
            for tar_index, name in enumerate(tars):
                tar = store.local_path(name)
                assert tar is not None
                samples = []
                for index, (sample_key, start, end, members) in enumerate(tar_groups(tar)):
                    samples.append((tar_index, sample_key, index, start, end - start))
                    members_ = (
                        (member.name.partition(".")[2], member.offset_data, member.size)
                        for member in members
                    )
                    connection.executemany(
                        "INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)",
                        ((tar_index, index, *member) for member in members_),
                    )
                connection.executemany("INSERT INTO samples VALUES (?, ?, ?, ?, ?)", samples)
                connection.commit()
            connection.executescript(_INDEXES)
            connection.commit()
        write_blob(store, key, chunks_of_file(path))
    return [key]


def energon_mix(weights: Mapping[str, float], path: str | Path, *, split: str = "train") -> None:
    """Write the ``Metadataset`` file from which Energon draws several exports, for versions 5 to 8.

    Energon draws a data set in proportion to its weight, so weights are shares of packs.

    Args:
        weights: directory of each export, relative to the file or absolute, and its weight.
        path: of the file, which ends in ``.yaml``.
        split: of the data sets, and of the mix.

    Raises:
        SettingsError: no data set, or a weight that is not above 0.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as home:
    ...     energon_mix({"captions": 1, "chats": 2.5}, f"{home}/mix.yaml")
    ...     print(Path(f"{home}/mix.yaml").read_text())
    __module__: megatron.energon
    __class__: Metadataset
    splits:
      train:
        datasets:
        - path: "captions"
          weight: 1.0
        - path: "chats"
          weight: 2.5
    <BLANKLINE>
    """
    bad_weights = {
        name: weight for name, weight in weights.items() if not 0 < weight < float("inf")
    }
    if not weights or bad_weights:
        raise SettingsError(
            f"a mix needs data sets with weights above 0 and has {bad_weights or 'none'}"
        )
    lines = [
        "__module__: megatron.energon",
        "__class__: Metadataset",
        "splits:",
        f"  {split}:",
        "    datasets:",
    ]
    for name, weight in weights.items():
        # A JSON string is also a YAML string: names may hold any character.
        lines += [f"    - path: {json.dumps(str(name))}", f"      weight: {float(weight)!r}"]
    with atomic_file(path) as file:
        file.write("\n".join([*lines, ""]).encode())


def select_samples_to_pack(
    samples: Sequence[Any],
    *,
    capacity: int,
    length_of: Callable[[Any], int] | None = None,
    budgets: Mapping[str, tuple[int, Callable[[Any], int]]] | None = None,
    seed: int = 0,
) -> list[list[Any]]:
    """Return groups of samples that share a pack, for ``select_samples_to_pack`` of an Energon task
    encoder.

    ::

        def select_samples_to_pack(self, samples):
            return select_samples_to_pack(samples, capacity=8192)

    Args:
        samples: Energon's buffer of encoded samples.
        capacity: most tokens of a pack.
        length_of: function from a sample to its number of tokens; ``len(sample.tokens)`` if None.
        budgets: by name, the limit of a pack and the function from a sample to its use:
            ``{"patches": (32_768, lambda sample: sample.num_patches)}``.
        seed: of the order of equally long samples.

    Raises:
        OversizedSampleError: a sample is longer than a pack: refuse it in ``encode_sample``
            (``SkipSample``).

    >>> packs = select_samples_to_pack(["aaa", "bbb", "ccccc", "dddddd", "e", "f"], capacity=7, length_of=len)
    >>> sorted(packs, key=len)
    [['ccccc'], ['dddddd', 'f'], ['bbb', 'aaa', 'e']]
    """
    if not samples:
        return []
    measure = length_of if length_of is not None else (lambda sample: len(sample.tokens))

    def measured(amount: Callable[[Any], int]) -> Int64Array:
        return np.array([amount(sample) for sample in samples], dtype=np.int64)

    limits = budgets or {}
    columns = {name: measured(amount) for name, (_, amount) in limits.items()}
    plan = plan_packs(
        LengthTable.from_lengths(measured(measure), **columns),
        capacity=capacity,
        budgets={name: most for name, (most, _) in limits.items()} or None,
        seed=seed,
    )
    ids = plan.sample_ids.tolist()
    return [
        [samples[sample_id] for sample_id in ids[start:end]]
        for start, end in pairwise(plan.offsets.tolist())
    ]
