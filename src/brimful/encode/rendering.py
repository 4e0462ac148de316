"""The base of encoders that render a sample as one text and tokenise the texts of a batch together."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from brimful.encode.encoded import EncodedSample
from brimful.encode.encoder import Encoder, MeasuredLengths, PendingLengths
from brimful.encode.tokenizer import AlignedText, Tokenizer
from brimful.encode.tokens import TokenEncoder
from brimful.errors import BadSampleError
from brimful.sources.sample import Sample
from brimful.typing import LossMask


class RenderingEncoder(Encoder):
    """An encoder whose tokens are ``prefix + tokenizer(text) + suffix``, with one text for each sample.

    Subclasses say how a sample becomes a text, and which of its tokens are targets. Rows of tokens stay as they are, and
    documents among chats are for ``_documents``.
    """

    tokenizer: Tokenizer

    _documents: RenderingEncoder | None = None
    """Encoder of texts; None renders them here."""

    @abc.abstractmethod
    def _render_sample(self, sample: Sample) -> tuple[Any, str]:
        """Return a sample's text, and in front of it the value that ``_target_mask`` needs to know.

        Raises:
            BadSampleError: the sample has no such text.
        """

    def _target_mask(self, context: Any, tokens: AlignedText) -> LossMask:
        """Return ``bool[len(tokens.ids)]``, true at targets; called unless ``all_are_targets``."""
        raise NotImplementedError

    @property
    def marks(self) -> tuple[list[int], list[int]]:
        """Token ids in front of every text and behind it; those behind are targets."""
        return [], []

    def __getstate__(self) -> dict[str, Any]:
        # Only settings travel to worker processes, and the tokenizer, which is loaded there by its name.
        return {
            name: v
            for name, v in vars(self).items()
            if not isinstance(getattr(type(self), name, None), cached_property)
        }

    def _indices_by_encoder(self, samples: Sequence[Sample]) -> list[tuple[Encoder | None, list[int]]]:
        """Return the indices of the samples for each encoder; None stands for those that are rendered here."""
        indices: dict[str, list[int]] = {}
        for index, sample in enumerate(samples):
            indices.setdefault(sample.kind, []).append(index)
        encoders = {"text": self._documents, "tokens": TokenEncoder()}
        return [(encoders.get(kind), indices[kind]) for kind in indices]

    def encode_batch(self, samples: Sequence[Sample]) -> list[EncodedSample | BadSampleError]:
        results: dict[int, EncodedSample | BadSampleError] = {}
        for encoder, indices in self._indices_by_encoder(samples):
            encode = self._encode_rendered if encoder is None else encoder.encode_batch
            results.update(zip(indices, encode([samples[index] for index in indices]), strict=True))
        return [results[index] for index in range(len(samples))]

    def lengths(self, samples: Sequence[Sample]) -> MeasuredLengths:
        return self.begin_lengths(samples)()

    def begin_lengths(self, samples: Sequence[Sample]) -> PendingLengths:
        halves = []
        for encoder, indices in self._indices_by_encoder(samples):
            begin = self._begin_rendered_lengths if encoder is None else encoder.begin_lengths
            halves.append((indices, begin([samples[index] for index in indices])))
        if len(halves) == 1:
            return halves[0][1]

        def finish() -> MeasuredLengths:
            # The errors of all kinds are merged, so their order has to be made again.
            lengths = np.empty(len(samples), dtype=np.int32)
            errors: list[BadSampleError] = []
            for indices, finish_kind in halves:
                lengths[indices], kind_errors = finish_kind()
                errors += kind_errors
            return lengths, sorted(errors, key=lambda error: error.sample_id)

        return finish

    def decode(self, input_ids: Sequence[int]) -> str:
        return self.tokenizer.decode(input_ids)

    def _render_batch(self, samples: Sequence[Sample]) -> tuple[list[Any], list[str], dict[int, BadSampleError]]:
        """Render all samples; one that cannot be rendered has an empty text, and its error under its index."""
        contexts: list[Any] = []
        texts: list[str] = []
        errors: dict[int, BadSampleError] = {}
        for index, sample in enumerate(samples):
            try:
                context, text = self._render_sample(sample)
            except BadSampleError as error:
                errors[index] = error
                context, text = None, ""
            contexts.append(context)
            texts.append(text)
        return contexts, texts, errors

    def _encode_rendered(self, samples: Sequence[Sample]) -> list[EncodedSample | BadSampleError]:
        contexts, texts, errors = self._render_batch(samples)
        prefix, suffix = self.marks
        # Offsets cost a fifth of the time of tokenising, and nobody asks for them when every token is a target.
        alignments = None if self.all_are_targets else self.tokenizer.align(texts)
        ids_of_texts = self.tokenizer.ids(texts) if alignments is None else [tokens.ids for tokens in alignments]
        results: list[EncodedSample | BadSampleError] = []
        for index, text_ids in enumerate(ids_of_texts):
            if index in errors:
                results.append(errors[index])
                continue
            ids = np.array([*prefix, *text_ids, *suffix], dtype=np.int32)
            mask = np.ones(len(ids), dtype=bool)
            if alignments is not None:
                # The suffix stays a target: its token ends the text, and ending is worth learning.
                mask[: len(prefix)] = False
                try:
                    mask[len(prefix) : len(ids) - len(suffix)] = self._target_mask(contexts[index], alignments[index])
                except BadSampleError as error:
                    results.append(error)
                    continue
            results.append(EncodedSample(ids, mask))
        return results

    def _begin_rendered_lengths(self, samples: Sequence[Sample]) -> PendingLengths:
        _, texts, errors = self._render_batch(samples)
        num_marks = sum(map(len, self.marks))

        def finish() -> MeasuredLengths:
            lengths = np.array(self.tokenizer.counts(texts), dtype=np.int32) + np.int32(num_marks)
            lengths[list(errors)] = -1
            return lengths, list(errors.values())

        return finish
