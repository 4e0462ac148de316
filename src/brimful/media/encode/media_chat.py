"""Chats with images, videos and audio: text through the chat template, media by their headers."""

from collections.abc import Hashable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from brimful.base.ragged import offsets_of
from brimful.base.tables import Ragged
from brimful.base.typing import PAIRS_PER_BLOCK, AnyIntArray, AnyPath, LossMask, TokenIds
from brimful.base.wording import setting
from brimful.encode.chat import ChatEncoder
from brimful.encode.encoded import EncodedBatch
from brimful.encode.encoder import PendingBatch
from brimful.encode.jinja_templates import examined
from brimful.encode.tokenizer import Tokenizer
from brimful.errors import BadSampleError, SettingsError
from brimful.media import BadMediumError, MediaKind, PlacedMedium
from brimful.media.encode.processor import ProcessorReference
from brimful.media.families import Expansion, Family
from brimful.sources.sample import Message, Sample

_TEMPLATE_OF_MODEL = f"name the template of the model with {setting('chat_template')}"


class MediaChatEncoder(ChatEncoder):
    """The tokens that a model's processor gives for chats with media, one for one, from the headers
    of media alone.

    A chat template writes one placeholder for a medium, and the processor replaces it by as many
    tokens as the medium has features. Here the placeholder is written into the text, which then is
    a chat like any other; after tokenizing, the tokens of the medium replace the placeholder's
    token. Tokens of media are not targets.

    Args:
        tokenizer: see ``ChatEncoder``.
        family: maps sizes of media to tokens, as the model's processor does
            (``media.families.open_family``).
        compare_media: compare a share of the samples of a job with the model's own processor, if
            the family has one.
        settings: further arguments of ``ChatEncoder``.

    Raises:
        SettingsError: see ``ChatEncoder``.

    >>> from brimful.media.families import open_family
    >>> from brimful.sources import open_source
    >>> from brimful.testing.toys import toy_media_tokenizer, toy_picture
    >>> row = {"messages": [{"role": "user", "content": "<image>What?"}, {"role": "assistant", "content": "A square."}]}
    >>> sample = open_source([{**row, "images": [toy_picture(56, 84)]}], media=True)[0]
    >>> encoded = MediaChatEncoder(toy_media_tokenizer(), open_family("qwen2-vl")).encode(sample)
    >>> [(item.start, item.length, item.grid) for item in encoded.attachments]  # 6 x 4 patches, four to a token
    [(7, 6, (1, 6, 4))]
    """

    takes_attachments = True

    def __init__(
        self,
        tokenizer: AnyPath | Any,
        family: Family,
        *,
        compare_media: bool = True,
        **settings: Any,
    ) -> None:
        super().__init__(tokenizer, **settings)
        self.tokenizer: Tokenizer
        self.family = family
        self._compares = compare_media
        self._written: dict[Hashable, list[str]] = {}
        """Texts that the template writes for the media of conversations, by shape."""
        self._ids_by_token: dict[str, int] = {}

    @cached_property
    def attachment_reference(self) -> ProcessorReference | None:
        if not (self._compares and self.family.directory and self.family.processor_class):
            return None
        return ProcessorReference(
            self.family,
            self.tokenizer,
            prepare=super()._prepare,
            render=lambda messages, tools: self._apply_template(messages, tools, False),
            encode=self.encode,
        )

    @property
    def length_settings(self) -> dict[str, Any]:
        return {**super().length_settings, "media": self.family.settings}

    @property
    def budgets(self) -> tuple[str, ...]:
        kinds = self.family.placeholders
        has_vision = MediaKind.IMAGE in kinds or MediaKind.VIDEO in kinds
        names = ("patches", "images", "frames", "patch_blocks") if has_vision else ()
        return (*names, "audio_frames", "sounds") if MediaKind.AUDIO in kinds else names

    def attachment_sizes(self, attachments: Sequence[PlacedMedium]) -> dict[str, int]:
        return media_sizes(attachments, self.family)

    def _prepare(self, sample: Sample) -> Sample:
        prepared = super()._prepare(sample)
        if not sample.attachments:
            return prepared
        messages = prepared.messages or ()
        for kind in {
            medium.kind for medium in sample.attachments
        } - self.family.placeholders.keys():
            known_kinds = ", ".join(known.value for known in self.family.placeholders)
            raise BadSampleError(
                f"holds {kind.value}, which {self.family.name} does not know (it knows "
                f"{known_kinds})",
                sample_id=sample.sample_id,
            )
        shape = tuple((message["role"], _types_of_items(message)) for message in messages)
        texts: list[str] = examined(
            self._written, shape, lambda: self._write_placeholders(messages, prepared.tools)
        )
        placeholder_texts = iter(texts)
        return Sample(
            sample.sample_id,
            messages=[_as_text(message, placeholder_texts) for message in messages],
            tools=prepared.tools,
            attachments=sample.attachments,
            unread=sample.unread,
        )

    def _write_placeholders(self, messages: Sequence[Message], tools: Any) -> list[str]:
        """Return what the template writes for each medium of a conversation.

        Raises:
            SettingsError: the template does not write media, or changes the texts around them.
        """
        render = self._chat_template.render
        marks: list[str] = []
        marked_items = [
            {**message, "content": _between_marks(message, marks)} for message in messages
        ]
        try:
            text = render(marked_items, tools)
            placeholder_texts = [
                text.partition(before)[2].partition(end)[0]
                for before, end in zip(marks[::2], marks[1::2], strict=True)
            ]
            texts = iter(placeholder_texts)
            is_same = render([_as_text(message, texts) for message in messages], tools) == render(
                messages, tools
            )
        except Exception as error:  # templates raise exceptions of any class
            raise SettingsError(
                f"the chat template cannot write media ({error}): {_TEMPLATE_OF_MODEL}"
            ) from error
        tokens = self.family.placeholders.values()
        if any(sum(map(text.count, tokens)) != 1 for text in placeholder_texts):
            raise SettingsError(
                f"the chat template does not write {' or '.join(tokens)} for a medium: "
                f"{_TEMPLATE_OF_MODEL}"
            )
        if not is_same:
            raise SettingsError(
                "the chat template changes texts next to media, so that it is unclear what it "
                f"writes: {_TEMPLATE_OF_MODEL}"
            )
        return placeholder_texts

    @cached_property
    def _token_ids(self) -> dict[int, MediaKind]:
        """Kind of medium by the id of its placeholder's token."""
        ids = {}
        for kind, token in self.family.placeholders.items():
            tokens = self.tokenizer.ids([token])[0]
            if len(tokens) != 1:
                raise SettingsError(
                    f"{self.tokenizer} has no token {token}: it is not the tokenizer "
                    f"of {self.family.name}"
                )
            ids[tokens[0]] = kind
        return ids

    def _begin_rendered(self, samples: Sequence[Sample], *, targets: bool) -> PendingBatch:
        begun = super()._begin_rendered(samples, targets=targets)
        if not any(sample.attachments for sample in samples):
            return begun
        # Media are opened here, in the thread that reads the source.
        batch = self._filled_in(begun(), samples)
        return lambda: batch

    def _filled_in(self, batch: EncodedBatch, samples: Sequence[Sample]) -> EncodedBatch:
        """Return a batch with the tokens of all media in place of their placeholders."""
        rows: list[TokenIds] = []
        masks: list[LossMask] = []
        errors = dict(batch.errors)
        media: dict[int, tuple[PlacedMedium, ...]] = {}
        for index, sample in enumerate(samples):
            span = slice(int(batch.ids.offsets[index]), int(batch.ids.offsets[index + 1]))
            ids, mask = batch.ids.values[span], batch.loss_mask[span]
            if sample.attachments and index not in errors:
                try:
                    ids, mask, media[index] = self._with_media(sample, ids, mask)
                except BadSampleError as error:
                    errors[index] = error
                    ids, mask = ids[:0], mask[:0]
            rows.append(ids)
            masks.append(mask)
        offsets = offsets_of([len(row) for row in rows])
        return EncodedBatch(
            Ragged(np.concatenate(rows), offsets), np.concatenate(masks), errors, media
        )

    def _with_media(
        self, sample: Sample, ids: TokenIds, mask: LossMask
    ) -> tuple[TokenIds, LossMask, tuple[PlacedMedium, ...]]:
        """Return a sample's tokens and mask, with its media's in place of their placeholders."""
        positions = self._positions(sample, ids)
        pieces: list[TokenIds] = []
        masks: list[LossMask] = []
        media = []
        start = num_tokens = 0
        for medium, position in zip(sample.attachments, positions.tolist(), strict=True):
            try:
                # The state of the file first, so that a change between the two is detected when
                # packs are written.
                stamp, expansion = medium.stamp(), self.family.expand(medium)
            except BadMediumError as error:
                raise BadSampleError(
                    f"{medium.kind.value} {medium.name[:200]!r}: {error}",
                    sample_id=sample.sample_id,
                ) from error
            tokens, runs = self._ids_of(expansion, self.family.placeholders[medium.kind])
            pieces += [ids[start:position], tokens]
            masks += [mask[start:position], np.zeros(len(tokens), dtype=bool)]
            num_tokens += position - start
            # All facts of an expansion but its pieces are facts of the placed medium too.
            facts = {name: fact for name, fact in vars(expansion).items() if name != "pieces"}
            item = PlacedMedium(medium, num_tokens, len(tokens), runs=runs, stamp=stamp, **facts)
            media.append(item)
            num_tokens += len(tokens)
            start = position + 1
        return (
            np.concatenate([*pieces, ids[start:]]),
            np.concatenate([*masks, mask[start:]]),
            tuple(media),
        )

    def _positions(self, sample: Sample, ids: TokenIds) -> AnyIntArray:
        """Return the places of the placeholder tokens; refuse a sample whose placeholders do not
        match its media.
        """
        positions = np.flatnonzero(np.isin(ids, list(self._token_ids)))
        kinds = [self._token_ids[token] for token in ids[positions].tolist()]
        if kinds != [medium.kind for medium in sample.attachments]:
            raise BadSampleError(
                f"has {len(sample.attachments)} media and {len(kinds)} placeholders in its text",
                sample_id=sample.sample_id,
            )
        return positions

    def _ids_of(self, expansion: Expansion, token: str) -> tuple[TokenIds, tuple[int, ...]]:
        """Return the tokens of a medium, and the start of each run of its placeholder's token in
        them.
        """
        pieces: list[TokenIds] = []
        runs = []
        num_tokens = 0
        for piece in expansion.pieces:
            if not piece.is_token:
                ids = self.tokenizer.ids([piece.text * piece.repetitions])[0]
                pieces.append(np.array(ids, dtype=np.int32))
            else:
                if piece.text not in self._ids_by_token:
                    self._ids_by_token[piece.text] = self.tokenizer.ids([piece.text])[0][0]
                token_id = self._ids_by_token[piece.text]
                pieces.append(np.full(piece.repetitions, token_id, dtype=np.int32))
            if piece.text == token:
                runs.append(num_tokens)
            num_tokens += len(pieces[-1])
        return np.concatenate(pieces), tuple(runs)


def _types_of_items(message: Message) -> tuple[str, ...] | None:
    content = message.get("content")
    return tuple(item["type"] for item in content) if isinstance(content, list) else None


def _as_text(message: Message, written: Iterator[str]) -> Message:
    """Return a message whose content is a text, with the next written placeholders in place of its
    media.
    """
    content = message.get("content")
    if not isinstance(content, list):
        return message
    texts = [item["text"] if item["type"] == "text" else next(written) for item in content]
    return {**message, "content": "".join(texts)}


def _between_marks(message: Message, marks: list[str]) -> Any:
    """Return a content with a mark on each side of every medium; the marks are appended to
    ``marks``.
    """
    content = message.get("content")
    if not isinstance(content, list):
        return content
    items: list[dict[str, Any]] = []
    for item in content:
        if item["type"] == "text":
            continue
        pair = [f"brimful-{side}-{len(marks)}." for side in ("before", "behind")]
        marks += pair
        items += [{"type": "text", "text": pair[0]}, item, {"type": "text", "text": pair[1]}]
    return items


def media_sizes(media: Sequence[PlacedMedium], family: Family) -> dict[str, int]:
    """Return what the media of one sample take of each budget, by its name.

    ==================  ============================================================================================
    ``patches``         of the vision tower, before any merging
    ``images``          images
    ``frames``          frames taken from videos
    ``patch_blocks``    pairs of patches that attend to each other, in blocks of 64 · 64: the square of the patches of
                        each separate image, frame or tile, rounded up for each medium
    ``audio_frames``    columns of spectrograms
    ``sounds``          audio clips
    ==================  ============================================================================================

    >>> from brimful.media import Medium
    >>> from brimful.media.families import open_family
    >>> picture = PlacedMedium(Medium(MediaKind.IMAGE, "a"), 0, 64, 64, num_patches=256, grid=(1, 16, 16))
    >>> sizes = media_sizes([picture, picture], open_family("qwen2-vl"))
    >>> sizes["patches"], sizes["patch_blocks"]  # 2 · 256² ÷ 4,096, and not 512² ÷ 4,096
    (512, 32)
    """
    groups = [
        family.attention_groups(item.num_patches, item.grid) for item in media if item.num_patches
    ]
    return {
        "patches": sum(item.num_patches for item in media),
        "images": sum(item.medium.kind is MediaKind.IMAGE for item in media),
        "frames": sum(item.num_frames for item in media if item.medium.kind is MediaKind.VIDEO),
        "patch_blocks": sum(-(-count * size**2 // PAIRS_PER_BLOCK) for count, size in groups),
        "audio_frames": sum(item.num_mel_frames for item in media),
        "sounds": sum(item.medium.kind is MediaKind.AUDIO for item in media),
    }
