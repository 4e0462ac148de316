"""Task encoder of Megatron-Energon, versions 5 to 8, for data sets that
``brimful export --to energon`` wrote.

The file is complete: every export includes a copy. One sample of Energon is one pack; a batch is
one row with the segments of its packs one after the other. Nothing is drawn or kept between calls,
so that every kind of worker may share one encoder.
"""

from dataclasses import dataclass
from typing import Any

try:
    import torch
    from megatron.energon import Batch, Cooker, Sample, TaskEncoder, basic_sample_keys, stateless
except ModuleNotFoundError as error:
    from brimful.errors import MissingExtraError

    raise MissingExtraError(
        f"the task encoder needs {error.name}, which is not installed: pip install megatron-energon"
    ) from error

IGNORE_INDEX = -100
"""Label of a token that predicts nothing."""


@dataclass(kw_only=True)
class EnergonRow:
    """Row of T tokens and S segments: a pack, or a batch of packs.

    Attributes:
        tokens: ``int64[1, T]``.
        labels: ``int64[1, T]``, shifted: label i is the token that token i predicts in its segment;
            else -100.
        loss_mask: ``float32[1, T]``, 1 at labels.
        is_target: ``bool[1, T]``, not shifted: true for tokens that are learned.
        position_ids: ``int64[1, T]``, from 0 in each segment.
        cu_lengths: ``int32[1, S + 1]``: where segments begin, and the end.
        max_lengths: ``int32[1]``, tokens of the longest segment.
        sample_ids: ``int64[S]``.
        starts: ``int64[S]``, first token of the sample in the segment.
        media: of each image, video and audio clip its bytes (``data``), ``kind``, ``name``,
            ``segment``, ``start`` and ``length`` among the tokens of the row, and its numbers from
            packing (``grid``, …).
    """

    tokens: torch.Tensor
    labels: torch.Tensor
    loss_mask: torch.Tensor
    is_target: torch.Tensor
    position_ids: torch.Tensor
    cu_lengths: torch.Tensor
    max_lengths: torch.Tensor
    sample_ids: torch.Tensor
    starts: torch.Tensor
    media: list[dict[str, Any]]


@dataclass(kw_only=True)
class PackSample(EnergonRow, Sample):
    """One pack."""


@dataclass(kw_only=True)
class PackBatch(EnergonRow, Batch):
    """Packs of a batch in one row.

    Energon writes ``__restore_key__`` after ``batch``; version 8 makes batches of it again that it
    had prefetched before a state was saved. Make other batches of this one with ``derive_from``,
    which keeps it.
    """

    __key__: list[str]
    __restore_key__: Any


@stateless
def cook_pack(sample: dict[str, Any]) -> PackSample:
    """Make one pack of the members of its sample."""
    facts = sample["json"]
    tokens = torch.from_numpy(sample["input_ids.npy"]).long()
    is_target = torch.from_numpy(sample["loss_mask.npy"]).bool()
    edges = torch.tensor(facts["cu_lengths"], dtype=torch.int32)
    lengths = edges[1:] - edges[:-1]
    # A token predicts the next one of its segment; the first of a segment is never a target.
    labels = torch.full_like(tokens, IGNORE_INDEX)
    labels[:-1] = torch.where(is_target[1:], tokens[1:], IGNORE_INDEX)
    first_tokens = torch.repeat_interleave(edges[:-1], lengths)
    return PackSample(
        **basic_sample_keys(sample),
        tokens=tokens[None],
        labels=labels[None],
        loss_mask=(labels != IGNORE_INDEX).float()[None],
        is_target=is_target[None],
        position_ids=(torch.arange(len(tokens)) - first_tokens)[None],
        cu_lengths=edges[None],
        max_lengths=lengths.max()[None],
        sample_ids=torch.tensor(facts["sample_ids"]),
        starts=torch.tensor(facts["starts"]),
        media=[{**item, "data": sample[item["part"]]} for item in facts["media"]],
    )


class PackTaskEncoder(TaskEncoder):
    """Task encoder of packs: derive from it, and make ``pixel_values`` of ``media`` in
    ``encode_batch``.
    """

    cookers = [Cooker(cook_pack, has_subflavors={"brimful": "packs"})]

    @stateless
    def batch(self, samples: list[PackSample]) -> PackBatch:
        """Concatenate packs into one row; ``cu_lengths`` keeps their segments apart."""
        edges, media = [samples[0].cu_lengths[:, :1]], []
        num_tokens = num_segments = 0
        for sample in samples:
            edges.append(sample.cu_lengths[:, 1:] + num_tokens)
            media += [
                {
                    **item,
                    "segment": item["segment"] + num_segments,
                    "start": item["start"] + num_tokens,
                }
                for item in sample.media
            ]
            num_tokens += sample.tokens.shape[1]
            num_segments += len(sample.sample_ids)
        columns: dict[str, Any] = {
            name: torch.cat([getattr(sample, name) for sample in samples], dim=1)
            for name in ("tokens", "labels", "loss_mask", "is_target", "position_ids")
        }
        columns |= {
            "__key__": [sample.__key__ for sample in samples],
            "__restore_key__": (),
            "cu_lengths": torch.cat(edges, dim=1),
            "max_lengths": torch.cat([sample.max_lengths for sample in samples]).max()[None],
            "sample_ids": torch.cat([sample.sample_ids for sample in samples]),
            "starts": torch.cat([sample.starts for sample in samples]),
            "media": media,
        }
        # From version 7 on, batches also name the sources of their samples.
        make = getattr(PackBatch, "from_samples", None)
        return PackBatch(**columns) if make is None else make(samples, **columns)
