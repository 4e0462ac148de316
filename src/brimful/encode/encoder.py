"""The interface of every encoder: tokens, exact lengths, a fingerprint of its settings, and its
libraries.

``TokenEncoder``, for rows that are already tokenized, is the simplest one.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from brimful.base.checks import check_type
from brimful.base.fingerprint import fingerprint_of
from brimful.base.typing import IGNORE_INDEX, AnyPath, Fingerprint
from brimful.base.wings import PRELOAD, loaded
from brimful.base.wording import setting
from brimful.encode.chat_template import ChatTemplate
from brimful.encode.encoded import EncodedBatch, EncodedSample, MeasuredLengths
from brimful.encode.tokenizer import Tokenizer
from brimful.errors import BadSampleError
from brimful.sources.sample import Sample

PendingBatch: TypeAlias = Callable[[], EncodedBatch]
"""The second half of measuring a batch, which any thread may call."""


class EncoderEngine:
    """The libraries of an encoder: the ones that tokenize, and the ones that render chats.

    Args:
        make_reference: returns the same encoder with the libraries that define its tokens; called
            once, when needed.
        tokenizer: of the encoder; None for an encoder without faster libraries than its reference.
        find_template: returns its chat template, which is made when needed; None for other
            encoders.
        needs_little_python: returns true if it makes texts with little Python.
    """

    def __init__(
        self,
        make_reference: Callable[[], Encoder],
        tokenizer: Tokenizer | None = None,
        find_template: Callable[[], ChatTemplate | None] = lambda: None,
        needs_little_python: Callable[[], bool] = lambda: True,
    ) -> None:
        self._make_reference, self._needs_little_python = make_reference, needs_little_python
        self._tokenizer, self._find_template = tokenizer, find_template

    @cached_property
    def reference(self) -> Encoder:
        """The same encoder with the libraries that define its tokens; the encoder itself if it uses
        no faster ones.
        """
        return self._make_reference()

    @property
    def _libraries(self) -> list[Tokenizer | ChatTemplate]:
        libraries = (self._tokenizer, self._find_template())
        return [library for library in libraries if library is not None]

    @property
    def name(self) -> str:
        """Names and versions of the libraries that encode, for display; empty if there is nothing
        to report.
        """
        return ", templates by ".join(library.engine for library in self._libraries)

    @property
    def id(self) -> str:
        """Versions of the faster libraries that encode; empty without any."""
        return "" if self._tokenizer is None else self._tokenizer.engine_id

    @property
    def uses_threads(self) -> bool:
        """True if one process keeps several cores busy most of the time: library threads encode,
        with little Python.
        """
        tokenizer = self._tokenizer
        return tokenizer is not None and tokenizer.is_fast and self._needs_little_python()

    def trusts(self, engine_id: str) -> bool:
        """Return false for faster libraries that were found to encode differently than the
        reference.
        """
        return self._tokenizer is None or self._tokenizer.trusts(engine_id)

    def disable(self, engine_id: str, reason: str) -> None:
        """Never encode with faster libraries of these versions again, nor use what they encoded."""
        assert self._tokenizer is not None, "an encoder without faster libraries was compared"
        self._tokenizer.disable(engine_id, reason)

    def load(self) -> None:
        """Load what encoding needs, now."""
        for library in self._libraries:
            library.load()

    @property
    def preload(self) -> Mapping[str, Mapping[str, str]]:
        """Modules that worker processes need, with the variables of the environment that each
        reads.
        """
        tokenizer, template = self._tokenizer, self._find_template()
        if tokenizer is None or tokenizer.place is None:
            return {}
        modules = dict(loaded(PRELOAD)(tokenizer.place, tokenizer.state_path))
        if template is not None and template.needs_transformers:
            modules["transformers.models.auto.tokenization_auto"] = {}
        return modules


class Encoder(abc.ABC):
    """Conversion of samples into tokens. Encoders are picklable: worker processes load the same
    one.
    """

    takes_attachments = False
    """True if it encodes attachments; else samples with any are refused."""

    @property
    def budgets(self) -> tuple[str, ...]:
        """Names of what it measures in addition to tokens: ``patches``, ``images``, …."""
        return ()

    def attachment_sizes(self, attachments: Sequence[Any]) -> dict[str, int]:
        """Return what the attachments of one encoded sample take of each of ``budgets``, by its
        name.
        """
        return {}

    @property
    @abc.abstractmethod
    def length_settings(self) -> dict[str, Any]:
        """Everything that changes a length, and nothing else; with names, so that a mismatch can
        say what differs.
        """

    @property
    @abc.abstractmethod
    def label_settings(self) -> dict[str, Any]:
        """Everything that changes labels but no length, with names as in ``length_settings``."""

    @property
    def length_fingerprint(self) -> Fingerprint:
        """Fingerprint of the lengths that this encoder gives."""
        return fingerprint_of(self.length_settings)

    @property
    def fingerprint(self) -> Fingerprint:
        """Fingerprint of the tokens and labels that this encoder gives."""
        return fingerprint_of([self.length_settings, self.label_settings])

    @abc.abstractmethod
    def encode_batch(self, samples: Sequence[Sample]) -> list[EncodedSample | BadSampleError]:
        """Encode several samples; an error takes the place of one that cannot be encoded."""

    def encode_together(self, samples: Sequence[Sample]) -> EncodedBatch:
        """Encode several samples into flat arrays."""
        return self.begin_encoding(samples)()

    def begin_encoding(self, samples: Sequence[Sample], *, targets: bool = True) -> PendingBatch:
        """Do the half of ``encode_together`` that needs Python, and return a function that does the
        other half.

        The second half may run in another thread, during the first half of the next samples.

        Args:
            samples: to encode.
            targets: if false, only lengths and errors are needed, and the loss mask may have any
                values.
        """
        batch = EncodedBatch.of(self.encode_batch(samples))
        return lambda: batch

    @property
    def engine(self) -> EncoderEngine:
        """The libraries that encode; an encoder with faster ones than its reference overrides
        this.
        """
        return EncoderEngine(lambda: self)

    def lengths(self, samples: Sequence[Sample]) -> MeasuredLengths:
        """Measure samples exactly, without labels.

        Returns:
            ``int32[len(samples)]``: each ``len(encode(sample).input_ids)``, or -1 for a sample that
            cannot be encoded; and the errors of the latter.
        """
        return self.encode_together(samples).measured

    @property
    def all_are_targets(self) -> bool:
        """True if every token of every sample is a target of the loss, so that lengths alone give
        the number of targets.
        """
        return False

    def no_target_reason(self, sample: Sample) -> str:
        """Return the reason why an encoded sample has no target, in a few words that many samples
        share.
        """
        if sample.kind == "tokens":
            return "all its labels are -100"
        return "it has one token, and the first of a segment is not a target"

    @abc.abstractmethod
    def decode(self, input_ids: Sequence[int]) -> str:
        """Return the text of tokens, including special tokens, for display."""

    def __repr__(self) -> str:
        # Debuggers call this, so it must not load a tokenizer.
        tokenizer = getattr(self, "tokenizer", None)
        texts = [] if tokenizer is None else [repr(tokenizer)]
        texts += [f"{name} {value}" for name, value in self.label_settings.items()]
        return f"{type(self).__name__.lstrip('_')}({', '.join(texts)})"

    def encode(self, sample: Sample) -> EncodedSample:
        """Encode one sample.

        Raises:
            BadSampleError: it cannot be encoded; says why.
            WrongTypeError: it is not a ``Sample``.
        """
        check_type(
            "sample",
            sample,
            Sample,
            "a Sample",
            "take it from open_source(…), or make one by Sample(0, text=…)",
        )
        result = self.encode_batch([sample])[0]
        if isinstance(result, BadSampleError):
            raise result
        return result


class TokenEncoder(Encoder):
    """Encoder that takes ``input_ids`` and ``labels`` of rows of format ``tokens``.

    Args:
        tokenizer: only to display texts (``decode``); nothing is encoded with it.

    >>> TokenEncoder().encode(Sample(0, input_ids=[5, 6, 7], labels=[-100, 6, 7])).labels.tolist()
    [-100, 6, 7]
    """

    def __init__(self, tokenizer: AnyPath | Any | None = None) -> None:
        self.tokenizer = None if tokenizer is None else Tokenizer.of(tokenizer)

    @property
    def length_settings(self) -> dict[str, Any]:
        return {"encoder": "tokens"}

    @property
    def label_settings(self) -> dict[str, Any]:
        return {"train_on": "labels"}

    def encode_batch(self, samples: Sequence[Sample]) -> list[EncodedSample | BadSampleError]:
        results: list[EncodedSample | BadSampleError] = []
        for sample in samples:
            if sample.input_ids is None:
                results.append(wrong_kind(sample, "rows of tokens"))
                continue
            ids = np.array(sample.input_ids, dtype=np.int32)
            mask = np.ones(len(ids), dtype=bool)
            if sample.labels is not None:
                mask = np.array(sample.labels, dtype=np.int64) != IGNORE_INDEX
            results.append(EncodedSample(ids, mask))
        return results

    def decode(self, input_ids: Sequence[int]) -> str:
        if self.tokenizer is None:
            return " ".join(map(str, input_ids))
        return self.tokenizer.decode(input_ids)


def wrong_kind(sample: Sample, expected_forms: str) -> BadSampleError:
    """Return the error for a sample of a kind that an encoder does not take; ``expected_forms``
    says what it takes.
    """
    chat_encoder = setting("mode", "chat", python="ChatEncoder")
    reason = (
        f"is a {sample.kind}, and the encoder is for {expected_forms}: use {chat_encoder}, which "
        "takes both"
    )
    return BadSampleError(reason, sample_id=sample.sample_id)
