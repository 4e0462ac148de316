"""The layouts after packing of LLaVA-OneVision-1.5: images by their position in the pack, questions
and answers.

A tar is a WebDataset whose members are the files of the layout; unpacked, they lie in one directory
as its tools expect them. ``.nv-meta`` names the classes of its trainer, so that its loader takes
the directory as it is.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from brimful.base.blobs import BlobStore
from brimful.base.wording import setting
from brimful.errors import BadSampleError, SettingsError, StoreMismatchError
from brimful.integrations.export.energon import META, write_metadata
from brimful.integrations.export.export_layout import (
    ExportPlan,
    Layout,
    ReadPack,
    Shard,
    ShardOutcome,
    suffix_of,
)
from brimful.integrations.export.webdataset import read_tars, shard_name, write_tar
from brimful.integrations.packed_layouts import images_among, rows_of_pairs
from brimful.media import BadMediumError, MediaKind
from brimful.plan import Overflow
from brimful.serve import Pack
from brimful.sources import Source, open_source
from brimful.sources.attachment_names import MARK
from brimful.sources.sample import Sample
from brimful.store.shards.pack import FingerprintedPacks

DATASET = """\
sample_type:
  __module__: aiak_training_llm.data.multimodal
  __class__: PackedCaptioningSample
part_filter: sample_loader.py:part_filter
sample_loader: sample_loader.py:sample_loader
"""
"""Contents of ``dataset.yaml``: the sample class of the trainer of LLaVA-OneVision-1.5."""

SAMPLE_LOADER = '''\
"""Loads one pack: an image for each sample, None for a text, a list for several."""


def sample_loader(sample):
    pack = sample["json"]
    return {
        "__key__": sample["__key__"],
        "__restore_key__": sample["__restore_key__"],
        "images": [pictures(sample, names) for names in pack["images"]],
        "prompts": pack["prompts"],
        "captions": pack["captions"],
    }


def pictures(sample, names):
    found = [sample[name] for name in ([names] if isinstance(names, str) else names)]
    return None if not found else found[0] if len(found) == 1 else found


def part_filter(part):
    return True
'''
"""Contents of ``sample_loader.py``, which ``dataset.yaml`` names."""


class PackedChatsLayout(Layout):
    """Packs of conversations of any number of turns, with or without images: nested lists."""

    name = "packed-chats"
    takes_media = True
    takes_source = True
    reader = ("webdataset", "webdataset")

    is_flat: ClassVar[bool] = False
    """True if each sample is one image, one question and one answer."""

    def write_shard(self, shard: Shard) -> ShardOutcome:
        def samples() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
            for index, pack in shard:
                check_whole(pack, index)
                sample_ids = pack.sample_ids.tolist()
                members = self._members([shard.plan.source[sample_id] for sample_id in sample_ids])
                # Packs of tokens may name no media; the samples do.
                shard.counts["media"] += len(members) - 1 - len(pack.attachments)
                yield f"ps_{index:08d}", members

        name = shard_name(shard.index)
        return shard.outcome(write_tar(samples(), name, shard.store, with_index=True))

    def finish(
        self, outcomes: Sequence[ShardOutcome], plan: ExportPlan, store: BlobStore
    ) -> list[str]:
        files = write_metadata([outcome.packs for outcome in outcomes], "packs", store, DATASET)
        store.put_atomic(f"{META}/sample_loader.py", SAMPLE_LOADER.encode())
        return [*files, f"{META}/sample_loader.py"]

    def advice(self, directory: str) -> str:
        variable = "VQA" if self.is_flat else "BMR"
        # Both on one line without `&`: the first export of `export A=1 & export B=1` runs in
        # another shell.
        return f"export OFFLINE_PACKED_DATA=1 OFFLINE_PACKING_{variable}=1"

    def read(self, directory: str, num_shards: int) -> Iterator[ReadPack]:
        for sample in read_tars(directory, num_shards):
            samples = rows_of_pairs(json.loads(sample["json"]), images_among(sample))
            rows = [_comparable_row(row) for row in samples]
            yield ReadPack(
                messages=[turns for turns, _ in rows], media=[images for _, images in rows]
            )

    def _members(self, samples: Sequence[Sample]) -> list[tuple[str, bytes]]:
        """Return ending and content of each member of a pack."""
        columns: dict[str, list[Any]] = {"images": [], "prompts": [], "captions": []}
        members = []
        for position, sample in enumerate(samples):
            questions, answers = turns_of(sample)
            images = []
            for index, medium in enumerate(sample.attachments):
                if medium.kind is not MediaKind.IMAGE:
                    raise BadSampleError(
                        f"has {medium.kind.value}, and the layout holds images",
                        sample_id=sample.sample_id,
                    )
                sub = f"_sub{index:03d}" if len(sample.attachments) > 1 else ""
                images.append(f"img{position:03d}{sub}.{suffix_of(medium.name, 'jpg')}")
                try:
                    members.append((images[-1], medium.read()))
                except BadMediumError as error:
                    raise BadSampleError(
                        f"image {medium.name[:200]!r} {error}", sample_id=sample.sample_id
                    ) from error
            if self.is_flat and (len(questions), len(images)) != (1, 1):
                raise BadSampleError(
                    f"has {len(questions):,} questions and {len(images):,} images, and {self.name} "
                    f"holds one of each: choose {setting('to', PackedChatsLayout.name)}",
                    sample_id=sample.sample_id,
                )
            for column, values in zip(columns.values(), (images, questions, answers), strict=True):
                column.append(values[0] if self.is_flat else values)
        pack = {**columns, "sample_ids": [sample.sample_id for sample in samples]}
        return [("json", json.dumps(pack, ensure_ascii=True).encode()), *members]


class PackedCaptionsLayout(PackedChatsLayout):
    """Packs of captions, or of one question and answer on each image: flat lists."""

    name = "packed-captions"
    is_flat = True


def turns_of(sample: Sample) -> tuple[list[str], list[str]]:
    """Return questions and answers of a chat; marks ``<image>`` stay in them except at the very
    beginning.

    Raises:
        BadSampleError: the layout has no place for something in the sample.

    >>> picture = {"type": "image"}
    >>> turns_of(Sample(0, messages=[{"role": "user", "content": [picture, {"type": "text", "text": "\\nwho?"}]},
    ...                              {"role": "assistant", "content": "Ann"}], attachments=(None,)))
    (['who?'], ['Ann'])
    """
    messages = sample.messages or ()
    roles = [message.get("role") for message in messages]
    extra_keys = {key for message in messages for key, value in message.items() if value} - {
        "role",
        "content",
    }
    if (
        not messages
        or roles != ["user", "assistant"] * (len(roles) // 2)
        or extra_keys
        or sample.tools
    ):
        reason = ", ".join(sorted(extra_keys)) or (
            "tools" if sample.tools else "turns of " + ", ".join(map(str, roles))
        )
        raise BadSampleError(
            f"has {reason if messages else 'no turns'}, and the layout holds only alternating "
            "questions and answers",
            sample_id=sample.sample_id,
        )
    texts = [_text(message.get("content"), sample) for message in messages]
    marks = "<image>" * len(sample.attachments)
    # Marks before the first question only repeat the list of images.
    if marks and texts[0] == marks:
        texts[0] = ""
    elif marks and texts[0].startswith(f"{marks}\n") and len(texts[0]) > len(marks) + 1:
        texts[0] = texts[0][len(marks) + 1 :]
    return texts[::2], texts[1::2]


def _text(content: Any, sample: Sample) -> str:
    """Return a content with a mark for each image."""
    items = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    for item in items:
        if item["type"] not in ("text", "image"):
            raise BadSampleError(
                f"has {item['type']}, and the layout holds images", sample_id=sample.sample_id
            )
        if mark := MARK.search(item.get("text") or ""):
            raise BadSampleError(
                f"has {mark[0]} as plain text, which would be read as an image",
                sample_id=sample.sample_id,
            )
    return "".join(item["text"] if item["type"] == "text" else "<image>" for item in items)


def comparable(sample: Sample) -> tuple[Any, list[bytes]]:
    """Return what the layout keeps of a sample: roles and texts with marks, and the bytes of its
    images.
    """
    turns = [
        (message["role"], _text(message.get("content"), sample))
        for message in sample.messages or ()
    ]
    return turns, [medium.read() for medium in sample.attachments]


def _comparable_row(row: Any) -> tuple[Any, list[bytes]]:
    if not isinstance(row, Mapping):
        return str(row), []
    turns = [(message["role"], message["content"]) for message in row["messages"]]
    return turns, [image["bytes"] for image in row.get("images", ())]


_CUTS = (Overflow.TRUNCATE.value, Overflow.TRUNCATE_LEFT.value, Overflow.SPLIT.value)


def source_of_packs(source: Any, packs: FingerprintedPacks) -> Source:
    """Return the source of some packs, open.

    Args:
        source: the samples, or anything that ``open_source`` takes.
        packs: packs that were made of it.

    Raises:
        StoreMismatchError: the packs were made of other data.
        SettingsError: the plan cut samples.
    """
    samples = source if isinstance(source, Source) else open_as_packed(source, packs)
    identity = getattr(packs, "identity", None)
    if identity is not None:
        if identity["source"] != samples.fingerprint:
            raise StoreMismatchError(
                f"{samples.title} is not the data that was packed, or was changed since: name that "
                f"as {setting('source')}, several in the order in which they were packed"
            )
        overflow = identity.get("settings", {}).get("overflow")
        if overflow in _CUTS:
            raise SettingsError(
                f"the packs were planned with {setting('overflow', overflow)}, and a text cannot "
                f"be cut at a token: pack again with {setting('overflow', 'drop')}"
            )
    return samples


def open_as_packed(data: Any, packs: FingerprintedPacks, **options: Any) -> Source:
    """Open data as it was opened for packing: with its media, or without them if the packs were
    packed so.

    Args:
        data: anything that ``open_source`` takes.
        packs: packs that were made of it.
        options: of ``open_source``.
    """
    samples = open_source(data, media=True, **options)
    identity = getattr(packs, "identity", None)
    if (
        identity is not None
        and identity["source"] != samples.fingerprint
        and options.get("media_dir") is None
    ):
        plain_samples = open_source(data, **options)
        if identity["source"] == plain_samples.fingerprint:
            return plain_samples
    return samples


def check_whole(pack: Pack, index: int) -> None:
    """Refuse a pack with a part of a sample.

    Raises:
        SettingsError: names pack and sample.
    """
    if pack.starts.any():
        sample_id = int(pack.sample_ids[pack.starts.argmax()])
        raise SettingsError(
            f"pack {index} holds a part of sample {sample_id}, and a text cannot be cut at a "
            f"token: pack again with {setting('overflow', 'drop')}"
        )
