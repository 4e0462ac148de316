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
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

from brimful.blobs import BlobStore
from brimful.export import energon_task_encoder_file
from brimful.export.energon_index import write_index
from brimful.export.layout import ExportPlan, Layout, ReadPack, ShardOutcome, Tally
from brimful.export.medium_bytes import suffix_of
from brimful.export.pack_members import members_of
from brimful.export.tar_shards import shard_name, write_tar
from brimful.shards import Pack

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

    def write_shard(
        self, packs: Iterable[tuple[int, Pack]], shard: int, plan: ExportPlan, store: BlobStore
    ) -> ShardOutcome:
        return write_pack_tar(packs, shard, plan, store, kinds_as_endings=True)

    def finish(self, outcomes: Sequence[ShardOutcome], plan: ExportPlan, store: BlobStore) -> list[str]:
        files = write_metadata([outcome.packs for outcome in outcomes], "packs", store, DATASET)
        store.put_atomic("task_encoder.py", energon_task_encoder_file.read_bytes())
        return [*files, "task_encoder.py"]

    def advice(self, directory: str) -> str:
        return (
            f"get_train_dataset({directory!r}, batch_size=1, task_encoder=PackTaskEncoder(), …), of "
            f"{directory}/task_encoder.py"
        )

    def read(self, directory: str, outcomes: Sequence[ShardOutcome]) -> Iterator[ReadPack]:
        from megatron.energon import WorkerConfig, get_loader, get_val_dataset

        from brimful.export.energon_task_encoder import PackTaskEncoder

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


def write_pack_tar(
    packs: Iterable[tuple[int, Pack]], shard: int, plan: ExportPlan, store: BlobStore, *, kinds_as_endings: bool
) -> ShardOutcome:
    """Write a tar of packs as they are.

    Args:
        packs: index and pack, in order.
        shard: its number.
        plan: of the export.
        store: the directory.
        kinds_as_endings: media end in ``.image``, which no reader decodes; else as their files do, without an
            index.
    """
    tally = Tally()

    def samples() -> Iterator[tuple[str, Iterator[tuple[str, bytes]]]]:
        for index, pack in packs:
            tally.add(pack)
            ending = (lambda item: str(item.medium.kind.value)) if kinds_as_endings else suffix_of
            yield plan.key(index), members_of(pack, index, ending)

    files = write_tar(samples(), shard_name(shard), store, with_index=kinds_as_endings)
    return tally.outcome(files)


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
