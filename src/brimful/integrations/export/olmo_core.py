"""Documents of OLMo-core as open-instruct writes them: arrays without a header, and a table of
boundaries.
"""

import csv
import gzip
import io
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import numpy as np

from brimful.integrations.export.export_layout import (
    Layout,
    ReadPack,
    Shard,
    ShardOutcome,
    write_blob,
)

_DTYPE = "<u4"
"""Type of the tokens. A file does not name it: a reader takes it from its settings, or from the
size of the vocabulary, for which two bytes are too few from 65,537 words on.
"""

_COLUMNS = ("start", "end", "sample_id", "first_token", "pack")
"""Columns of the table, which has no header; OLMo-core reads the first two."""


class OlmoCoreLayout(Layout):
    """Files for ``NumpyPackedFSLDatasetConfig`` of OLMo-core 3, one document for each segment.

    ==============================  ========================================================
    ``token_ids_part_0000.npy``     ``uint32``, one after the other, without a header
    ``labels_mask_part_0000.npy``   ``bool``: true at targets, not shifted
    ``token_ids_part_0000.csv.gz``  begin and end of each document, its sample, the first token
                                    of it in the sample, and its pack
    ==============================  ========================================================
    """

    name = "olmo-core"
    reader = ("olmo_core.data.utils", "ai2-olmo-core")

    def write_shard(self, shard: Shard) -> ShardOutcome:
        tokens_key, mask_key, table_key = _keys(shard.index)
        buffer = io.BytesIO()
        # Without a time, so that the same packs give the same bytes.
        with (
            shard.store.blob(tokens_key) as tokens,
            shard.store.blob(mask_key) as mask,
            gzip.GzipFile("", "wb", fileobj=buffer, mtime=0) as table,
        ):
            offset = 0
            for index, pack in shard:
                tokens.write(pack.input_ids.astype(_DTYPE).data)
                mask.write(pack.loss_mask.astype(np.bool_).data)
                edges = pack.cu_seqlens.astype(np.int64) + offset
                columns = (edges[:-1], edges[1:], pack.sample_ids, pack.starts)
                for row in zip(*(column.tolist() for column in columns), strict=True):
                    table.write(f"{','.join(map(str, row))},{index}\n".encode())
                offset = int(edges[-1])
            tokens.publish(tokens_key)
            mask.publish(mask_key)
        size = write_blob(shard.store, table_key, [buffer.getvalue()])
        return shard.outcome({tokens_key: tokens.size, mask_key: mask.size, table_key: size})

    def advice(self, directory: str) -> str:
        return (
            f"NumpyPackedFSLDatasetConfig(paths=[{directory + '/token_ids_part_*.npy'!r}], "
            f"label_mask_paths=[{directory + '/labels_mask_part_*.npy'!r}], expand_glob=True, "
            "dtype='uint32', use_array_if_local=False, generate_doc_lengths=True, …)"
        )

    def read(self, directory: str, num_shards: int) -> Iterator[ReadPack]:
        from olmo_core.data.utils import iter_document_indices, load_array_slice

        for shard in range(num_shards):
            tokens, mask, table = (str(Path(directory, key)) for key in _keys(shard))
            spans = iter_document_indices(tokens, use_array_if_local=False, dtype=np.uint32)
            with gzip.open(table, "rt") as file:
                rows = zip(spans, csv.DictReader(file, _COLUMNS), strict=True)
                for _, documents in groupby(rows, key=lambda row: row[1]["pack"]):
                    pack_spans, facts = zip(*documents, strict=True)
                    start, end = pack_spans[0][0], pack_spans[-1][1]
                    yield ReadPack(
                        load_array_slice(tokens, start, end, np.uint32).tolist(),
                        load_array_slice(mask, start, end, np.bool_).tolist(),
                        [0, *(pack_span[1] - start for pack_span in pack_spans)],
                        [int(fact["sample_id"]) for fact in facts],
                        [int(fact["first_token"]) for fact in facts],
                    )


def _keys(shard: int) -> tuple[str, str, str]:
    """Return the keys of tokens, mask and table of a shard."""
    suffix = f"part_{shard:04d}"
    return f"token_ids_{suffix}.npy", f"labels_mask_{suffix}.npy", f"token_ids_{suffix}.csv.gz"
