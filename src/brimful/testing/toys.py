"""Toys that behave like the real objects: an encoder without a tokenizer, packs without files,
streams in steps.
"""

import io
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from brimful.base.blobs import BlobGroup, open_blob_store
from brimful.base.fingerprint import fingerprint_of
from brimful.base.optional import optional
from brimful.base.typing import AnyPath, Fingerprint
from brimful.encode.encoded import EncodedSample
from brimful.encode.encoder import Encoder
from brimful.errors import BadSampleError
from brimful.sources.sample import Sample
from brimful.store.shards import (
    EndRecord,
    Pack,
    ShardRecord,
    ShardWriter,
    StreamLog,
    add_shard,
    assemble_pack,
)
from brimful.trees.packs import assemble_tree

__all__ = [
    "ToyPacks",
    "ToyProducer",
    "toy_chat_encoder",
    "toy_media_tokenizer",
    "toy_pack",
    "toy_packs",
    "toy_picture",
    "toy_records",
    "toy_stream",
    "toy_tree",
]


class _ToyEncoder(Encoder):
    """An encoder with one token a character.

    A turn is its role, a colon, the content and a newline. Answers are targets.
    """

    def __init__(self, version: int = 0) -> None:
        self._version = version

    @property
    def length_settings(self) -> dict[str, Any]:
        return {"encoder": "toy", "version": self._version}

    @property
    def label_settings(self) -> dict[str, Any]:
        return {"train_on": "assistant"}

    def encode_batch(self, samples: Sequence[Sample]) -> list[EncodedSample | BadSampleError]:
        return [self._one(sample) for sample in samples]

    def _one(self, sample: Sample) -> EncodedSample | BadSampleError:
        if "refuse me" in f"{sample.text} {sample.messages}":
            return BadSampleError("asks to be refused", sample_id=sample.sample_id)
        pieces = [(sample.text or "", True)] if sample.messages is None else []
        for turn in sample.messages or ():
            pieces += [
                (f"{turn['role']}:", False),
                (f"{turn.get('content') or ''}\n", turn["role"] == "assistant"),
            ]
        ids = np.array([ord(char) for text, _ in pieces for char in text], dtype=np.int32)
        return EncodedSample(
            ids, np.repeat([flag for _, flag in pieces], [len(text) for text, _ in pieces])
        )

    def decode(self, input_ids: Sequence[int]) -> str:
        return "".join(map(chr, input_ids))


def toy_chat_encoder(version: int = 0) -> Encoder:
    """Return an encoder with one token a character; another ``version`` has another fingerprint.

    >>> toy_chat_encoder().encode(Sample(0, text="abc")).input_ids.tolist()
    [97, 98, 99]
    """
    return _ToyEncoder(version)


_MEDIA_TOKENS = (
    "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip

_MEDIA_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content -%}
{% if part.type == "text" %}{{ part.text }}{% else %}<|vision_start|><|{{ part.type }}_pad|><|vision_end|>{% endif %}
{%- endfor %}{% endif %}<|im_end|>
{% endfor -%}
"""


def toy_media_tokenizer() -> Any:
    """Return a tokenizer of ``transformers`` with one token a byte, and the placeholders and
    template of Qwen-VL.

    >>> toy_media_tokenizer()("<|image_pad|>ab")["input_ids"]
    [260, 64, 65]
    """
    with optional("transformers", "text", "a tokenizer"):
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        additional_special_tokens=list(_MEDIA_TOKENS),
    )
    tokenizer.chat_template = _MEDIA_TEMPLATE
    return tokenizer


def toy_picture(width: int, height: int) -> bytes:
    """Return a black image as PNG.

    >>> toy_picture(2, 3)[:4]
    b'\\x89PNG'
    """
    with optional("PIL", "media", "a picture"):
        from PIL import Image
    file = io.BytesIO()
    Image.new("RGB", (width, height)).save(file, "PNG")
    return file.getvalue()


def toy_pack(lengths: Sequence[int], first_sample: int = 0, seed: int = 0) -> Pack:
    """Return a pack of segments of these lengths with random tokens, all of them targets.

    >>> toy_pack([3, 2]).cu_seqlens.tolist()
    [0, 3, 5]
    """
    rng = np.random.default_rng(seed)
    ids = [rng.integers(1, 1000, length, dtype=np.int32) for length in lengths]
    masks = [np.ones(length, dtype=bool) for length in lengths]
    return assemble_pack(ids, masks, range(first_sample, first_sample + len(lengths)))


def toy_tree(
    samples: Sequence[Sequence[int]], masks: Sequence[Sequence[bool]] | None = None
) -> Pack:
    """Return the pack of samples as one forest: what any of them share is there once.

    Args:
        samples: tokens of each, none empty.
        masks: targets of each; all tokens if None.

    >>> pack = toy_tree([[5, 6, 7], [5, 6, 8], [9]])
    >>> pack.input_ids.tolist(), pack.sharing.parents.tolist(), pack.sample_ids.tolist()
    ([5, 6, 7, 8, 9], [-1, 0, 0, -1], [0, 0, 1, 2])
    """
    ids = [np.asarray(sample, dtype=np.int32) for sample in samples]
    targets = [np.ones(len(sample), bool) for sample in ids] if masks is None else masks
    segments: list[tuple[int, int, int]] = []  # sample, length, parent

    def grow(members: list[int], depth: int, parent: int) -> None:
        end = depth
        while len(
            {tuple(ids[member][depth : end + 1].tolist()) for member in members}
        ) == 1 and all(len(ids[member]) > end for member in members):
            end += 1
        index = len(segments)
        segments.append((members[0], end - depth, parent))
        ended = [member for member in members if len(ids[member]) == end]
        segments.extend((member, 0, index) for member in ended[1:])
        branches = [member for member in members if len(ids[member]) > end]
        for token in dict.fromkeys(int(ids[member][end]) for member in branches):
            grow([member for member in branches if ids[member][end] == token], end, index)

    order = sorted(range(len(ids)), key=lambda sample: ids[sample].tolist())
    for token in dict.fromkeys(int(ids[sample][0]) for sample in order):
        grow([sample for sample in order if ids[sample][0] == token], 0, -1)
    owners, lengths, parents = map(list, zip(*segments, strict=True))
    return assemble_tree(
        [ids[owner] for owner in owners],
        [np.asarray(targets[owner], dtype=np.bool_) for owner in owners],
        owners,
        lengths,
        parents,
    )


class ToyPacks(list[Pack]):
    """A data set of packs in memory."""

    @property
    def fingerprint(self) -> Fingerprint:
        """Fingerprint of the sample ids."""
        return fingerprint_of([pack.sample_ids.tolist() for pack in self])


def toy_packs(count: int) -> ToyPacks:
    """Return packs of one segment each; pack ``i`` holds sample ``i``.

    >>> toy_packs(3)[2].sample_ids.tolist()
    [2]
    """
    return ToyPacks([toy_pack([4], first_sample=index, seed=index) for index in range(count)])


def toy_records(packs: Sequence[int]) -> list[ShardRecord]:
    """Return the records of shards with these numbers of packs, without the shards.

    >>> [record.cum_packs for record in toy_records([3, 2])]
    [3, 5]
    """
    ends = np.cumsum([0, *packs]).tolist()
    return [
        ShardRecord(
            seq, f"shards/{seq}", 0, "", num, 4 * num, ends[seq + 1], 4 * ends[seq + 1], "toy"
        )
        for seq, num in enumerate(packs)
    ]


class ToyProducer:
    """A producer of a stream of ``toy_packs``, shard by shard, when a test says so.

    Args:
        directory: path or URL of the stream.
        lanes: in its header.
    """

    def __init__(self, directory: AnyPath, *, lanes: int = 1) -> None:
        self._store = open_blob_store(directory)
        self._log = StreamLog(self._store)
        toy = {"capacity": 4, "plan": "toy", "source": "toy", "encoder": "toy", "lanes": lanes}
        self._log.claim(toy, {})

    def append(self, num_packs: int, *, seq: int | None = None) -> None:
        """Write and commit one shard; nothing if ``seq`` is not the next, as when another producer
        has written it.
        """
        records, _ = self._log.records()
        if seq not in (None, len(records)):
            return
        first = records[-1].cum_packs if records else 0
        with BlobGroup(self._store) as files:
            blob = files.blob("a shard")
            writer = ShardWriter(blob)
            end = first + num_packs
            writer.add_packs([toy_pack([4], first_sample=i, seed=i) for i in range(first, end)])
            counts = (num_packs, 4 * num_packs, end, 4 * end)
            record = add_shard(files, len(records), blob, counts, "toy", batches=writer.batches)
            self._log.commit(record, files)

    def close(self) -> None:
        """End the stream."""
        records, _ = self._log.records()
        num_packs = records[-1].cum_packs if records else 0
        self._log.end(EndRecord(len(records), num_packs, 4 * num_packs))


def toy_stream(directory: AnyPath, packs: Sequence[int], *, lanes: int = 1) -> str:
    """Write a finished stream with these packs per shard; pack ``i`` holds sample ``i``. Return its
    directory.
    """
    producer = ToyProducer(directory, lanes=lanes)
    for num_packs in packs:
        producer.append(num_packs)
    producer.close()
    return os.fspath(directory)
