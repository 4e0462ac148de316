"""The base of encoders that render a sample as one text and tokenize the texts of a batch
together.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from brimful.base.ragged import mask_of_ranges, offsets_of
from brimful.base.tables import Ragged
from brimful.base.typing import LossMask
from brimful.base.wording import setting
from brimful.encode.chat_template import ChatTemplate
from brimful.encode.completions import (
    PromptAndOther,
    encode_borrowed,
    has_borrowed,
    mark_completions,
)
from brimful.encode.encoded import EncodedBatch, EncodedSample
from brimful.encode.encoder import Encoder, EncoderEngine, PendingBatch, TokenEncoder
from brimful.encode.token_places import Span, TextSpans
from brimful.encode.tokenizer import Tokenizer
from brimful.errors import BadSampleError
from brimful.sources.reading import NEEDS_PROCESSOR
from brimful.sources.sample import Sample

_REFUSAL = f"holds media, {NEEDS_PROCESSOR}"


class RenderingEncoder(Encoder):
    """An encoder whose tokens are ``prefix + tokenizer(text) + suffix``, with one text for each
    sample.

    Subclasses define how a sample becomes a text, and which of its tokens are targets. Rows of
    tokens stay as they are, and ``_documents`` encodes documents among chats.
    """

    tokenizer: Tokenizer

    is_reference = False
    """True for the reference that watches a faster encoder."""

    _chat_template: ChatTemplate | None = None

    _documents: RenderingEncoder | None = None
    """Encoder of documents; None renders them here."""

    @abc.abstractmethod
    def _render_sample(self, sample: Sample) -> tuple[Any, str]:
        """Return the value that ``_target_spans`` needs, and a sample's text.

        Raises:
            BadSampleError: the sample has no such text.
        """

    def _render_together(self, samples: Sequence[Sample]) -> Mapping[int, tuple[Any, str]]:
        """Return the results of ``_render_sample`` for the samples that need no further checks, by
        their index.
        """
        return {}

    def _target_spans(self, context: Any, text: str) -> Sequence[tuple[int, int]]:
        """Return the characters ``[start, end)`` that are targets; called unless
        ``all_are_targets``.

        Raises:
            BadSampleError: the targets cannot be determined.
        """
        raise NotImplementedError

    def _may_hide(self, context: Any) -> bool:
        """Return true if ``_target_spans`` may refuse a sample, which then has no length either."""
        return False

    def prompt_and_other(self, sample: Sample) -> PromptAndOther:
        """Return the text of a sample's prompt alone, and of its other conversation (empty without
        one).

        Raises:
            BadSampleError: the encoder has no prompts.
        """
        raise BadSampleError(
            f"belongs to a preference, and {type(self).__name__} has no prompts: choose "
            f"{setting('mode', 'chat')} or completion",
            sample_id=sample.sample_id,
        )

    def _spans_of_batch(
        self,
        indices: Sequence[int],
        contexts: Sequence[Any],
        texts: Sequence[str],
        errors: dict[int, BadSampleError],
    ) -> TextSpans:
        """Return the target characters in the texts of these indices, and add the errors of texts
        without any.
        """
        spans: dict[int, Sequence[Span]] = {}
        for index in indices:
            try:
                spans[index] = self._target_spans(contexts[index], texts[index])
            except BadSampleError as error:
                errors[index] = error
        return TextSpans.of_lists(spans)

    def _check_completion(self, sample: Sample) -> None:
        """Refuse a sample with a completion if other tokens are requested as targets."""
        if self.all_are_targets:
            raise BadSampleError(
                "belongs to a preference, whose targets are its completion: leave "
                f"{setting('train_on', 'all')} out",
                sample_id=sample.sample_id,
            )

    @property
    def marks(self) -> tuple[list[int], list[int]]:
        """Token ids before and after every text; the ids after it are targets."""
        return [], []

    @cached_property
    def engine(self) -> EncoderEngine:
        return EncoderEngine(
            self._by_reference,
            self.tokenizer,
            lambda: self._chat_template,
            self._needs_little_python,
        )

    def _needs_little_python(self) -> bool:
        """Return true if the text of an ordinary sample is made with little Python."""
        return True

    def _by_reference(self) -> RenderingEncoder:
        """Return the same encoder with the libraries that define its tokens; itself if it uses no
        faster ones.
        """
        if not self.tokenizer.fast:
            return self
        copy = object.__new__(type(self))
        copy.__dict__ |= {
            **self.__getstate__(),
            "tokenizer": self.tokenizer.reference,
            "is_reference": True,
        }
        documents = copy.__dict__.get("_documents")
        if isinstance(documents, RenderingEncoder):
            copy.__dict__["_documents"] = documents._by_reference()
        return copy

    def __getstate__(self) -> dict[str, Any]:
        # Worker processes get only settings, and the tokenizer, which they load by its name.
        return {
            name: value
            for name, value in vars(self).items()
            if not isinstance(getattr(type(self), name, None), cached_property)
        }

    def _indices_by_encoder(
        self, samples: Sequence[Sample]
    ) -> list[tuple[Encoder | None, list[int]]]:
        """Return the indices of the samples for each encoder; None means that they are rendered
        here.
        """
        indices: dict[str, list[int]] = {}
        for index, sample in enumerate(samples):
            indices.setdefault(sample.kind, []).append(index)
        if indices.keys() <= {"chat"}:
            return [(None, indices[kind]) for kind in indices]
        encoders = {"text": self._documents, "tokens": TokenEncoder()}
        return [(encoders.get(kind), indices[kind]) for kind in indices]

    def encode_batch(self, samples: Sequence[Sample]) -> list[EncodedSample | BadSampleError]:
        return self.encode_together(samples).samples()

    def begin_encoding(self, samples: Sequence[Sample], *, targets: bool = True) -> PendingBatch:
        if any(map(has_borrowed, samples)):
            batch = encode_borrowed(samples, self.encode_together)
            return lambda: batch
        halves = []
        for encoder, indices in self._indices_by_encoder(samples):
            start = self._begin_rendered if encoder is None else encoder.begin_encoding
            halves.append((indices, start([samples[index] for index in indices], targets=targets)))
        if len(halves) == 1:
            return halves[0][1]

        def finish() -> EncodedBatch:
            results: dict[int, EncodedSample | BadSampleError] = {}
            for indices, finish_encoder in halves:
                results.update(zip(indices, finish_encoder().samples(), strict=True))
            return EncodedBatch.of([results[index] for index in range(len(samples))])

        return finish

    def decode(self, input_ids: Sequence[int]) -> str:
        return self.tokenizer.decode(input_ids)

    def _render_batch(
        self, samples: Sequence[Sample]
    ) -> tuple[list[Any], list[str], dict[int, BadSampleError], dict[int, PromptAndOther]]:
        """Render all samples; a failed one has an empty text, and its error under its index.

        Samples with a completion have their prompt and other conversation under their index.
        """
        prompts: dict[int, PromptAndOther] = {}
        errors: dict[int, BadSampleError] = {}
        renderings = dict(self._render_together(samples))
        for index, sample in enumerate(samples):
            if index in renderings:
                continue
            try:
                if sample.attachments and not self.takes_attachments:
                    raise BadSampleError(_REFUSAL, sample_id=sample.sample_id)
                renderings[index] = self._render_sample(sample)
                if sample.completion is not None:
                    self._check_completion(sample)
                    prompts[index] = self.prompt_and_other(sample)
                    self.tokenizer.check(sample, "".join(prompts[index]))
            except BadSampleError as error:
                errors[index] = error
                renderings[index] = None, ""
        contexts, texts = (
            [renderings[index][column] for index in range(len(samples))] for column in (0, 1)
        )
        return contexts, texts, errors, prompts

    def _begin_rendered(self, samples: Sequence[Sample], *, targets: bool) -> PendingBatch:
        contexts, texts, errors, prompts = self._render_batch(samples)
        spans = None
        if not self.all_are_targets:
            known = errors.keys() | prompts.keys()
            indices = [
                index
                for index, context in enumerate(contexts)
                if index not in known and (targets or self._may_hide(context))
            ]
            spans = self._spans_of_batch(indices, contexts, texts, errors)
            for index in errors:
                texts[index] = ""

        def finish() -> EncodedBatch:
            if spans is None or not targets:
                ids = self.tokenizer.tokenize(texts)
                mask = np.ones(len(ids.values), dtype=bool)
            else:
                ids, first_tokens, last_tokens = self.tokenizer.align(texts, spans)
                starts = ids.offsets[spans.rows]
                # A target is a token that holds a character of a span.
                mask = mask_of_ranges(starts + first_tokens, starts + last_tokens, len(ids.values))
            if prompts:
                mark_completions(mask, ids, texts, prompts, self.tokenizer)
            return EncodedBatch(*self._with_marks(ids, mask, errors), errors)

        return finish

    def _with_marks(
        self, ids: Ragged, mask: LossMask, errors: Mapping[int, BadSampleError]
    ) -> tuple[Ragged, LossMask]:
        """Put the marks before and after each text, except for samples that cannot be encoded."""
        prefix, suffix = self.marks
        if not prefix and not suffix:
            return ids, mask
        is_encoded = np.ones(len(ids), dtype=bool)
        is_encoded[list(errors)] = False
        edges = (ids.offsets[:-1][is_encoded], ids.offsets[1:][is_encoded])
        # Of equal positions the first comes first: the suffix of a text before the prefix of the
        # next.
        positions = np.repeat(np.stack(edges, axis=1), (len(prefix), len(suffix)), axis=1).ravel()
        marks = np.tile(np.array([*prefix, *suffix], dtype=np.int32), len(edges[0]))
        # The suffix stays a target: the model should learn to end the text.
        mask_marks = np.tile(
            [self.all_are_targets] * len(prefix) + [True] * len(suffix), len(edges[0])
        )
        offsets = offsets_of(np.diff(ids.offsets) + is_encoded * (len(prefix) + len(suffix)))
        return Ragged(np.insert(ids.values, positions, marks), offsets), np.insert(
            mask, positions, mask_marks
        )
