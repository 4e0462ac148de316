"""What every encoder offers to the rest: tokens, exact lengths, and a fingerprint of its settings."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from brimful.checks import check_type
from brimful.encode.encoded import EncodedSample
from brimful.errors import BadSampleError
from brimful.fingerprint import fingerprint_of
from brimful.sources.sample import Sample
from brimful.typing import Fingerprint, Lengths

__all__ = ["Encoder"]


class Encoder(abc.ABC):
    """Turns samples into tokens. Picklable: worker processes load the same one."""

    @property
    @abc.abstractmethod
    def length_settings(self) -> dict[str, Any]:
        """Everything that changes a length, and nothing else; named, so that a mismatch can say what differs."""

    @property
    @abc.abstractmethod
    def label_settings(self) -> dict[str, Any]:
        """What changes labels, but no length."""

    @property
    def length_fingerprint(self) -> Fingerprint:
        """Identifies the lengths this encoder gives."""
        return fingerprint_of(self.length_settings)

    @property
    def fingerprint(self) -> Fingerprint:
        """Identifies the tokens and labels this encoder gives."""
        return fingerprint_of([self.length_settings, self.label_settings])

    @abc.abstractmethod
    def encode_batch(self, samples: Sequence[Sample]) -> list[EncodedSample | BadSampleError]:
        """Tokens of several samples; an error in the place of one that cannot be encoded."""

    @abc.abstractmethod
    def lengths(self, samples: Sequence[Sample]) -> tuple[Lengths, list[BadSampleError]]:
        """Exact lengths without labels, and what could not be encoded.

        Returns:
            ``int32[len(samples)]`` tokens, always ``len(encode(sample).input_ids)``, and -1 for a sample that
            stands among the errors.
        """

    @property
    def all_are_targets(self) -> bool:
        """Whether every token of every sample is a target of the loss, so that lengths alone tell how many there are."""
        return False

    def no_target_reason(self, sample: Sample) -> str:
        """Why a sample that was encoded has no target, in a few words that many samples share."""
        if sample.kind == "tokens":
            return "all its labels are -100"
        return "it has one token, and the first of a segment is no target"

    def begin_lengths(self, samples: Sequence[Sample]) -> Callable[[], tuple[Lengths, list[BadSampleError]]]:
        """``lengths`` in two halves: what Python has to do is done now, the function returned does the rest.

        The second half may run in another thread, beside the first half of the next samples.
        """
        found = self.lengths(samples)
        return lambda: found

    @abc.abstractmethod
    def decode(self, input_ids: Sequence[int]) -> str:
        """Text of tokens, special ones included, for people to read."""

    def __repr__(self) -> str:
        # Nothing that would load a tokenizer: a debugger asks for this.
        tokenizer = getattr(self, "tokenizer", None)
        parts = [] if tokenizer is None else [repr(tokenizer)]
        parts += [f"{name} {value}" for name, value in self.label_settings.items()]
        return f"{type(self).__name__.lstrip('_')}({', '.join(parts)})"

    def encode(self, sample: Sample) -> EncodedSample:
        """Tokens of one sample.

        Raises:
            BadSampleError: it cannot be encoded; says why.
            WrongTypeError: it is no ``Sample``.
        """
        check_type(
            "sample", sample, Sample, "a Sample", "take it from open_source(…), or make one by Sample(0, text=…)"
        )
        result = self.encode_batch([sample])[0]
        if isinstance(result, BadSampleError):
            raise result
        return result


def lengths_of(encodings: Sequence[int], errors: dict[int, BadSampleError]) -> tuple[Lengths, list[BadSampleError]]:
    """Lengths with -1 at the places of errors."""
    lengths = np.asarray(encodings, dtype=np.int32)
    for place in errors:
        lengths[place] = -1
    return lengths, [errors[place] for place in sorted(errors)]
