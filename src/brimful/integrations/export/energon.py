"""Data set of Megatron-Energon, versions 5 to 7, that loads without ``energon prepare``.

::

    packs-000000.tar      one sample a pack: KEY.json, KEY.input_ids.npy, KEY.loss_mask.npy, KEY.000.image, …
    packs-000000.tar.idx  where each sample begins
    task_encoder.py       segments of a pack as tensors, for training; needs nothing of brimful
    .nv-meta/             what `energon prepare` would write

Media are members called ``000.image``, ``000.video`` or ``000.audio``: Energon leaves these endings undecoded, as the
model's processor needs the bytes.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from brimful.base.blobs import BlobStore
from brimful.integrations.export.energon_index import write_index
from brimful.integrations.export.export_layout import ExportPlan, Layout, ReadPack, Shard, ShardOutcome
from brimful.integrations.export.pack_members import write_pack_tar
from brimful.integrations.export.tar import shard_name

META = ".nv-meta"
"""Folder of Energon's own files."""

DATASET = """\
__module__: megatron.energon
__class__: CrudeWebdataset
subflavors:
  brimful: packs
"""
"""Contents of ``dataset.yaml``: samples are dictionaries of members, which a cooker of the task encoder takes."""


class EnergonLayout(Layout):
    """Tars with keys, offsets and metadata for Megatron-Energon."""

    name = "energon"
    summary = "Megatron-Energon 5 to 7: tars with index and metadata, tokens and media, with a task encoder"
    takes_media = True
    reader: ClassVar[tuple[str, str]] = ("megatron.energon", "megatron-energon")

    def write_shard(self, shard: Shard) -> ShardOutcome:
        return write_pack_tar(shard, kinds_as_endings=True)

    def finish(self, outcomes: Sequence[ShardOutcome], plan: ExportPlan, store: BlobStore) -> list[str]:
        files = write_metadata([outcome.packs for outcome in outcomes], "packs", store, DATASET)
        task_encoder = Path(__file__).with_name("energon_task_encoder.py")
        store.put_atomic("task_encoder.py", task_encoder.read_bytes())
        return [*files, "task_encoder.py"]

    def advice(self, directory: str) -> str:
        return (
            f"get_train_dataset({directory!r}, batch_size=1, task_encoder=PackTaskEncoder(), …), of "
            f"{directory}/task_encoder.py"
        )

    def read(self, directory: str, outcomes: Sequence[ShardOutcome]) -> Iterator[ReadPack]:
        from megatron.energon import WorkerConfig, get_loader, get_val_dataset

        from brimful.integrations.export.energon_task_encoder import PackTaskEncoder

        workers = WorkerConfig(rank=0, world_size=1, num_workers=0)
        dataset = get_val_dataset(
            directory, split_part="train", worker_config=workers, batch_size=1, task_encoder=PackTaskEncoder()
        )
        for batch in get_loader(dataset):
            yield ReadPack(
                input_ids=batch.tokens[0].tolist(),
                loss_mask=batch.is_target[0].tolist(),
                cu_seqlens=batch.cu_lengths[0].tolist(),
                sample_ids=batch.sample_ids.tolist(),
                starts=batch.starts.tolist(),
                media=[item["data"] for item in batch.media],
            )


def write_metadata(counts: Sequence[int], prefix: str, store: BlobStore, dataset: str) -> list[str]:
    """Write ``.nv-meta`` for tars of one prefix, all of them for training; return the keys of its files.

    Args:
        counts: samples in each tar.
        prefix: of their names.
        store: that holds them.
        dataset: contents of ``dataset.yaml``.
    """
    names = [shard_name(shard, prefix) for shard in range(len(counts))]
    shard_counts = dict(zip(names, counts, strict=True))
    # Version 5 reads one and version 7 the other. JSON is valid YAML, but version 5 expects lines.
    files: dict[str, str] = {
        ".info.json": json.dumps({"shard_counts": shard_counts}, indent=2) + "\n",
        ".info.yaml": "shard_counts:\n" + "".join(f"  {name}: {count}\n" for name, count in shard_counts.items()),
        "split.yaml": _split(len(counts), prefix),
        "dataset.yaml": dataset,
    }
    index = write_index(names, store, f"{META}/index.sqlite")
    for name, text in files.items():
        store.put_atomic(f"{META}/{name}", text.encode())
    return [*index, *(f"{META}/{name}" for name in files)]


def _split(num_shards: int, prefix: str) -> str:
    """Return ``split.yaml``: one line for shards of any number, which Energon expands."""
    first, last = f"{0:06d}", f"{num_shards - 1:06d}"
    numbers = first if num_shards == 1 else f"{{{first}..{last}}}"
    return f'split_parts:\n  train:\n  - "{prefix}-{numbers}.tar"\n  val: []\n  test: []\nexclude: []\n'
