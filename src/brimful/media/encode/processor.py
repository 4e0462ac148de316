"""The model's own processor, with which an encoder of media is compared while a job runs.

A model family computes tokens from the sizes in a header. Here the same sample is fully processed:
the template on the conversation as it is, decoded pixels and waveforms, and
``processor(text=…, images=…)`` of Transformers.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from brimful.base.fingerprint import fingerprint_bytes, fingerprint_of
from brimful.base.typing import Fingerprint
from brimful.encode.encoded import EncodedSample
from brimful.encode.encoder import Encoder
from brimful.encode.tokenizer import Tokenizer
from brimful.errors import BadSampleError, MissingExtraError
from brimful.media import BadMediumError, MediaKind, PlacedMedium
from brimful.media.audio import load_audio
from brimful.media.families import Family
from brimful.media.families.family import read_processor_files
from brimful.media.feature_maker import AudioFeatures, ImageFeatures
from brimful.media.images import load_image
from brimful.media.videos import load_frames, video_header
from brimful.sources.sample import Message, Sample

_MAX_FRAME_BYTES = 1 << 28
"""Maximum bytes of video frames to decode for a comparison; of a longer video, only the text around
it is compared.
"""

_ENDINGS = ("tokenizer", "_processor", "_extractor")
"""Ends of the names of a processor's parts."""

_FACTS = {
    MediaKind.IMAGE: "image_grid_thw",
    MediaKind.VIDEO: "video_grid_thw",
    MediaKind.AUDIO: "feature_attention_mask",
}
"""Outputs of processors that are compared with the facts of headers."""


class ProcessorReference:
    """The processor of Transformers for a family, made from the files in its directory and the
    encoder's tokenizer.

    Args:
        family: family of the encoder, with a ``directory`` and a ``processor_class``.
        tokenizer: of the encoder.
        prepare: returns a sample with the messages that the template gets, before placeholders are
            written into them.
        render: returns the text of a conversation from Transformers, as the template writes it.
        encode: returns the encoder's tokens and media of a sample.
    """

    def __init__(
        self,
        family: Family,
        tokenizer: Tokenizer,
        *,
        prepare: Callable[[Sample], Sample],
        render: Callable[[Sequence[Message], Any], str],
        encode: Callable[[Sample], EncodedSample],
    ) -> None:
        self._family, self._tokenizer = family, tokenizer
        self._prepare, self._render, self._encode = prepare, render, encode

    @property
    def name(self) -> str:
        """Name of the processor with the version of Transformers."""
        return f"{self._family.processor_class} of Transformers {version('transformers')}"

    @cached_property
    def id(self) -> Fingerprint:
        """Fingerprint of everything that decides its output, other than tokenizer and template."""
        files = sorted(Path(self._family.directory or "").glob("*processor*.json"))
        contents = {path.name: fingerprint_bytes(path.read_bytes()) for path in files}
        versions = {name: version(name) for name in ("transformers", "pillow")}
        return fingerprint_of(
            [self._family.processor_class, self._family.settings, contents, versions]
        )

    @cached_property
    def obstacle(self) -> str:
        """The reason why nothing can be compared here; empty without one."""
        try:
            _ = self._processor
            return ""
        except MissingExtraError as error:
            return error.message
        except Exception as error:  # the files name no class, or a class of another version
            return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"

    def difference(self, sample: Sample, length: int) -> str:
        """Describe the difference between an encoded sample and the processor's output; empty if
        they are equal, or if a library to decode a medium is missing.

        Args:
            sample: as given to the encoder.
            length: number of tokens that was measured.

        Raises:
            BadSampleError: a medium cannot be decoded, though its header could be read.
        """
        prepared, encoded = self._prepare(sample), self._encode(sample)
        try:
            output = self._output(prepared.messages or (), prepared.tools, encoded.attachments)
        except MissingExtraError:
            return ""
        except BadMediumError as error:
            reason = (
                "one of its media cannot be decoded, though its header can be read "
                f"({error}): training fails on it"
            )
            raise BadSampleError(reason, sample_id=sample.sample_id) from error
        except Exception as error:  # processors raise exceptions of any class
            return (
                f"{self.name} refuses it ({type(error).__name__}: "
                f"{' '.join(str(error).split())[:300]})"
            )
        if len(encoded) != length:
            return f"it was measured with {length:,} tokens and is encoded to {len(encoded):,}"
        if output is None:
            return ""
        if difference := self._difference_of_media(encoded.attachments, output):
            return difference
        ids, other_ids = encoded.input_ids, np.asarray(output["input_ids"][0])
        if len(ids) != len(other_ids):
            return f"it has {len(ids):,} tokens, and {len(other_ids):,} by {self.name}"
        positions = np.flatnonzero(ids != other_ids)
        if not len(positions):
            return ""
        position = int(positions[0])
        ours, theirs = (
            self._tokenizer.decode(tokens[position : position + 8].tolist())
            for tokens in (ids, other_ids)
        )
        return f"token {position:,} begins {ours!r}, and {theirs!r} by {self.name}"

    def _difference_of_media(self, media: Sequence[PlacedMedium], output: Mapping[str, Any]) -> str:
        for kind, name in _FACTS.items():
            items = [item for item in media if item.medium.kind is kind]
            for item, fact in zip(items, output.get(name, ()), strict=False):
                if kind is MediaKind.AUDIO:
                    if (num_columns := int(np.sum(fact))) != item.num_mel_frames:
                        return (
                            f"{item.title} has {item.num_mel_frames:,} columns of its spectrogram "
                            f"by its header, and {num_columns:,} by {self.name}"
                        )
                elif (grid := tuple(np.asarray(fact).tolist())) != item.grid:
                    return (
                        f"{item.title} has the grid {item.grid} by its header, and {grid} by "
                        f"{self.name}"
                    )
        return ""

    def _output(
        self, messages: Sequence[Message], tools: Any, media: Sequence[PlacedMedium]
    ) -> Mapping[str, Any] | None:
        """Return the processor's output for a sample; None if it cannot take the sample's videos
        here.

        Raises:
            BadMediumError: a medium cannot be decoded.
            Exception: the processor refuses it; of any class.
        """
        processor, family = self._processor, self._family
        arguments: dict[str, Any] = {}
        by_kind = {kind: [item for item in media if item.medium.kind is kind] for kind in MediaKind}
        if items := by_kind[MediaKind.IMAGE]:
            arguments["images"] = [load_image(item.medium) for item in items]
        if items := by_kind[MediaKind.AUDIO]:
            rate = processor.feature_extractor.sampling_rate
            arguments["audio"] = [load_audio(item.medium, rate) for item in items]
            arguments["sampling_rate"] = rate
        if items := by_kind[MediaKind.VIDEO]:
            headers = [video_header(item.medium) for item in items]
            indices = [family.frame_indices(header) for header in headers]
            # A header may promise frames that do not exist: the last one is decoded in any case.
            for item, frame_indices in zip(items, indices, strict=True):
                load_frames(item.medium, frame_indices[-1:])
            num_bytes = sum(
                3 * item.num_frames * header.width * header.height
                for item, header in zip(items, headers, strict=True)
            )
            if processor.video_processor is None or num_bytes > _MAX_FRAME_BYTES:
                return None
            from transformers.video_utils import VideoMetadata

            # The frames that the family takes, and the metadata for the processor's timestamps.
            arguments["do_sample_frames"] = False
            arguments["videos"] = [
                load_frames(item.medium, frame_indices)
                for item, frame_indices in zip(items, indices, strict=True)
            ]
            arguments["video_metadata"] = [
                VideoMetadata(
                    total_num_frames=header.num_frames, fps=header.fps, frames_indices=frame_indices
                )
                for header, frame_indices in zip(headers, indices, strict=True)
            ]
        text = self._render(messages, tools)
        output: Mapping[str, Any] = processor(text=[text], add_special_tokens=False, **arguments)
        return output

    @cached_property
    def _processor(self) -> Any:
        """The processor, made from its parts; None for a part that cannot be made here (videos
        without torchvision).
        """
        import transformers

        family = self._family
        directory, kinds = str(family.directory), family.placeholders
        processors: dict[str, Any] = {"tokenizer": self._tokenizer.hf}
        if MediaKind.IMAGE in kinds:
            processors["image_processor"] = ImageFeatures(directory, family).processor
        if MediaKind.AUDIO in kinds:
            processors["feature_extractor"] = AudioFeatures(directory, family).processor
        if MediaKind.VIDEO in kinds:
            settings = family.settings["video"]
            size = {"shortest_edge": settings["min_pixels"], "longest_edge": settings["max_pixels"]}
            # It needs torchvision, and a file that names its class.
            with contextlib.suppress(ImportError, OSError, ValueError):
                processors["video_processor"] = transformers.AutoVideoProcessor.from_pretrained(
                    directory, size=size
                )
        processor_class = getattr(transformers, family.processor_class)
        files = read_processor_files(directory).processor
        names = inspect.signature(processor_class.__init__).parameters

        class Lenient(processor_class):  # type: ignore[misc, valid-type]
            def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
                if argument is None:
                    return None
                return super().check_argument_for_proper_class(argument_name, argument)

        Lenient.__name__ = processor_class.__name__
        return Lenient(
            # A file of Transformers 5 has the settings of the parts too.
            **{name: files[name] for name in names if name in files}
            | {name: processors.get(name) for name in names if name.endswith(_ENDINGS)}
        )


def reference_of(encoder: Encoder) -> ProcessorReference | None:
    """Return the model's own processor of samples with media; None for an encoder without one."""
    return getattr(encoder, "attachment_reference", None)
