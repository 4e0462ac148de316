"""The model's own processor, with which an encoder of media is compared while a job runs.

A model family computes tokens from the sizes in a header. Here the same sample is fully processed:
the template on the conversation as it is, decoded pixels and waveforms, and
``processor(text=…, images=…)`` of Transformers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from brimful.base.fingerprint import fingerprint_bytes, fingerprint_of
from brimful.base.typing import Fingerprint
from brimful.encode.encoded import EncodedSample
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


@dataclass
class ProcessorOutput:
    """The result of a processor for one sample.

    Attributes:
        ids: ``[num_tokens]``; None if no complete processor could be made.
        grids: patches along time, height and width of images and videos, in the order of each kind.
        mel_frames: spectrogram columns of audio clips.
    """

    ids: list[int] | None = None
    grids: dict[MediaKind, list[tuple[int, ...]]] = field(default_factory=dict)
    mel_frames: list[int] | None = None


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
            return "" if self._parts else "it has no parts"
        except MissingExtraError as error:
            return error.message
        except Exception as error:  # the files name no class, or a class of another version
            return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"

    def difference(self, sample: Sample, length: int) -> str | None:
        """Describe the difference between an encoded sample and the processor's output; empty if
        they are equal.

        Args:
            sample: as given to the encoder.
            length: number of tokens that was measured.

        Returns:
            None if a library to decode a medium of the sample is missing, so that nothing can be
            compared.

        Raises:
            BadSampleError: a medium cannot be decoded, though its header could be read.
        """
        prepared, encoded = self._prepare(sample), self._encode(sample)
        try:
            output = self._output(prepared.messages or (), prepared.tools, encoded.media)
        except MissingExtraError:
            return None
        except BadMediumError as error:
            reason = f"one of its media cannot be decoded, though its header can be read ({error}): training fails on it"
            raise BadSampleError(reason, sample_id=sample.sample_id) from error
        except Exception as error:  # processors raise exceptions of any class
            return f"{self.name} refuses it ({type(error).__name__}: {' '.join(str(error).split())[:300]})"
        if len(encoded) != length:
            return f"it was measured with {length:,} tokens and is encoded to {len(encoded):,}"
        difference = self._difference_of_media(encoded.media, output)
        if difference or output.ids is None:
            return difference
        ids = encoded.input_ids.tolist()
        if ids == output.ids:
            return ""
        if len(ids) != len(output.ids):
            return f"it has {len(ids):,} tokens, and {len(output.ids):,} by {self.name}"
        place = next(
            place
            for place, (ours, theirs) in enumerate(zip(ids, output.ids, strict=True))
            if ours != theirs
        )
        ours, theirs = (
            self._tokenizer.decode(tokens[place : place + 8]) for tokens in (ids, output.ids)
        )
        return f"token {place:,} begins {ours!r}, and {theirs!r} by {self.name}"

    def _difference_of_media(self, media: Sequence[PlacedMedium], output: ProcessorOutput) -> str:
        grids = {kind: iter(values) for kind, values in output.grids.items()}
        columns = iter(output.mel_frames or ())
        for item in media:
            kind = item.medium.kind
            if kind in grids and (grid := next(grids[kind], None)) != item.grid:
                return f"{item.title} has the grid {item.grid} by its header, and {grid} by {self.name}"
            if kind is MediaKind.AUDIO and output.mel_frames is not None:
                num_columns = next(columns, None)
                if num_columns != item.num_mel_frames:
                    return (
                        f"{item.title} has {item.num_mel_frames:,} columns of its spectrogram by "
                        f"its header, and {num_columns:,} by {self.name}"
                    )
        return ""

    def _output(
        self, messages: Sequence[Message], tools: Any, media: Sequence[PlacedMedium]
    ) -> ProcessorOutput:
        """Return the processor's output for a sample.

        Raises:
            BadMediumError: a medium cannot be decoded.
            Exception: the processor refuses it; of any class.
        """
        text = self._render(messages, tools)
        arguments: dict[str, Any] = {}
        by_kind = {kind: [item for item in media if item.medium.kind is kind] for kind in MediaKind}
        if items := by_kind[MediaKind.IMAGE]:
            arguments["images"] = [load_image(item.medium) for item in items]
        if items := by_kind[MediaKind.AUDIO]:
            rate = self._parts["feature_extractor"].sampling_rate
            arguments["audio"] = [load_audio(item.medium, rate) for item in items]
            arguments["sampling_rate"] = rate
        is_complete = True
        if items := by_kind[MediaKind.VIDEO]:
            is_complete = self._parts.get("video_processor") is not None and _are_decodable(items)
            _check_frames(items, self._family)
            if is_complete:
                arguments |= self._videos(items)
        if not is_complete or self._processor is None:
            return self._output_of_parts(arguments)
        output = self._processor(text=[text], add_special_tokens=False, **arguments)
        return ProcessorOutput(
            np.asarray(output["input_ids"][0]).tolist(),
            {
                kind: [tuple(grid) for grid in np.asarray(output[name]).tolist()]
                for kind, name in (
                    (MediaKind.IMAGE, "image_grid_thw"),
                    (MediaKind.VIDEO, "video_grid_thw"),
                )
                if name in output
            },
            _mel_frames(output),
        )

    def _output_of_parts(self, arguments: Mapping[str, Any]) -> ProcessorOutput:
        """Return only grids of images and columns of audio."""
        result = ProcessorOutput()
        if "images" in arguments:
            output = self._parts["image_processor"](images=arguments["images"], return_tensors="np")
            if "image_grid_thw" in output:
                result.grids[MediaKind.IMAGE] = [
                    tuple(grid) for grid in np.asarray(output["image_grid_thw"]).tolist()
                ]
        if "audio" in arguments:
            output = self._parts["feature_extractor"](
                arguments["audio"],
                sampling_rate=arguments["sampling_rate"],
                padding="max_length",
                return_attention_mask=True,
                return_tensors="np",
            )
            result.mel_frames = np.asarray(output["attention_mask"]).sum(axis=-1).tolist()
        return result

    def _videos(self, items: Sequence[PlacedMedium]) -> dict[str, Any]:
        """Return the frames that the family takes from videos, with the metadata for the
        processor's timestamps.
        """
        from transformers.video_utils import VideoMetadata

        videos, facts = [], []
        for item in items:
            header = video_header(item.medium)
            indices = self._family.frame_indices(header)
            videos.append(load_frames(item.medium, indices))
            facts.append(
                VideoMetadata(
                    total_num_frames=header.num_frames, fps=header.fps, frames_indices=indices
                )
            )
        return {"videos": videos, "video_metadata": facts, "do_sample_frames": False}

    @cached_property
    def _parts(self) -> dict[str, Any]:
        """Parts of the processor by argument name; None for a part that cannot be made here."""
        family = self._family
        directory, kinds = str(family.directory), family.placeholders
        parts: dict[str, Any] = {"tokenizer": self._tokenizer.hf}
        if MediaKind.IMAGE in kinds:
            parts["image_processor"] = ImageFeatures(directory, family).processor
        if MediaKind.AUDIO in kinds:
            parts["feature_extractor"] = AudioFeatures(directory, family).processor
        if MediaKind.VIDEO in kinds:
            parts["video_processor"] = self._video_processor(family.settings["video"])
        return parts

    def _video_processor(self, settings: Mapping[str, Any]) -> Any:
        try:
            from transformers import AutoVideoProcessor

            limits = {name: settings[name] for name in ("min_pixels", "max_pixels")}
            size = {"shortest_edge": limits["min_pixels"], "longest_edge": limits["max_pixels"]}
            return AutoVideoProcessor.from_pretrained(self._family.directory, size=size)
        except (
            ImportError,
            OSError,
            ValueError,
        ):  # it needs torchvision, and a file that names its class
            return None

    @cached_property
    def _processor(self) -> Any:
        """The processor made from its parts; None if that fails, and then only the parts are
        compared.
        """
        import transformers

        try:
            kind = getattr(transformers, self._family.processor_class)
            files = read_processor_files(self._family.directory or "")
            names = inspect.signature(kind.__init__).parameters
            settings = {name: files.processor[name] for name in names if name in files.processor}
            parts = {
                name: self._parts.get(name)
                for name in names
                if name in self._parts or name.endswith("_processor")
            }
            return _lenient(kind)(**settings | parts)
        except Exception:  # the tokenizer lacks names that some processors need, or another version
            return None


def _lenient(kind: type) -> type:
    """Return a processor class that accepts None for parts that a sample does not need (videos
    without torchvision).
    """

    class Lenient(kind):  # type: ignore[misc]
        def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
            return (
                None
                if argument is None
                else super().check_argument_for_proper_class(argument_name, argument)
            )

    Lenient.__name__ = kind.__name__
    return Lenient


def _are_decodable(items: Sequence[PlacedMedium]) -> bool:
    """Return whether the frames of videos fit in the memory that a comparison may use."""
    headers = [video_header(item.medium) for item in items]
    num_bytes = sum(
        3 * item.num_frames * header.width * header.height
        for item, header in zip(items, headers, strict=True)
    )
    return num_bytes <= _MAX_FRAME_BYTES


def _check_frames(items: Sequence[PlacedMedium], family: Family) -> None:
    """Decode the last frame that is taken from each video: a header may promise frames that do not
    exist.

    Raises:
        BadMediumError: the frame is missing.
    """
    for item in items:
        load_frames(item.medium, family.frame_indices(video_header(item.medium))[-1:])


def _mel_frames(output: Mapping[str, Any]) -> list[int] | None:
    if "feature_attention_mask" not in output:
        return None
    return [int(np.sum(mask)) for mask in output["feature_attention_mask"]]
