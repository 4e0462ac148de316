"""WebDataset: tars with one sample a pack, for ``webdataset`` and other readers of its tars."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from brimful.integrations.export.export_layout import Layout, ReadPack, Shard, ShardOutcome
from brimful.integrations.export.pack_members import write_pack_tar
from brimful.integrations.export.tar import shard_name


class WebDatasetLayout(Layout):
    """Tars of packs; media end as their files do, so that ``decode("pil")`` recognizes them."""

    name = "webdataset"
    summary = "webdataset: tars with tokens and media, which end as their files do"
    takes_media = True
    reader: ClassVar[tuple[str, str]] = ("webdataset", "webdataset")

    def write_shard(self, shard: Shard) -> ShardOutcome:
        return write_pack_tar(shard, kinds_as_endings=False)

    def advice(self, directory: str) -> str:
        return f"webdataset.WebDataset(sorted(glob({directory + '/packs-*.tar'!r})), shardshuffle=False)"

    def read(self, directory: str, outcomes: Sequence[ShardOutcome]) -> Iterator[ReadPack]:
        import webdataset
        from webdataset.autodecode import npy_loads

        tars = [str(Path(directory) / shard_name(shard)) for shard in range(len(outcomes))]
        for sample in webdataset.WebDataset(tars, shardshuffle=False):
            facts = json.loads(sample["json"])
            yield ReadPack(
                input_ids=npy_loads(sample["input_ids.npy"]).tolist(),
                loss_mask=npy_loads(sample["loss_mask.npy"]).astype(bool).tolist(),
                cu_seqlens=facts["cu_lengths"],
                sample_ids=facts["sample_ids"],
                starts=facts["starts"],
                media=[sample[item["part"]] for item in facts["media"]],
            )
