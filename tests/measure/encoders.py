"""Encoders that count what they are asked, refuse, or break."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from brimful.encode import EncodedSample, Encoder
from brimful.errors import BadSampleError
from brimful.sources import Sample


class Letters(Encoder):
    """One token a character; small letters are targets. Remembers the texts it was asked for.

    Args:
        version: changes the length fingerprint. targets: changes the label fingerprint only.
        fail_at: texts at which it breaks, as a killed process would.
    """

    def __init__(self, version: int = 0, targets: str = "small", fail_at: Sequence[str] = ()) -> None:
        self.version, self.targets, self.fail_at = version, targets, set(fail_at)
        self.seen: list[str] = []

    @property
    def length_settings(self) -> dict[str, Any]:
        return {"encoder": "letters", "version": self.version}

    @property
    def label_settings(self) -> dict[str, Any]:
        return {"targets": self.targets}

    def encode_batch(self, samples: Sequence[Sample]) -> list[EncodedSample | BadSampleError]:
        results: list[EncodedSample | BadSampleError] = []
        for sample in samples:
            assert sample.text is not None
            if sample.text in self.fail_at:
                raise KeyboardInterrupt
            self.seen.append(sample.text)
            if sample.text.startswith("!"):
                results.append(BadSampleError("is shouted", sample_id=sample.sample_id))
                continue
            text = sample.text.strip()
            mask = [letter.islower() if self.targets == "small" else True for letter in text]
            results.append(EncodedSample(np.array([*map(ord, text)], dtype=np.int32), np.array(mask, dtype=bool)))
        return results

    def lengths(self, samples: Sequence[Sample]) -> tuple[np.ndarray[Any, Any], list[BadSampleError]]:
        results = self.encode_batch(samples)
        errors = [result for result in results if isinstance(result, BadSampleError)]
        lengths = [-1 if isinstance(result, BadSampleError) else len(result) for result in results]
        return np.array(lengths, dtype=np.int32), errors

    def decode(self, input_ids: Sequence[int]) -> str:
        return "".join(map(chr, input_ids))


class Silent(Letters):
    """Has the same settings and must not be asked."""

    def encode_batch(self, samples: Sequence[Sample]) -> list[EncodedSample | BadSampleError]:
        raise AssertionError(f"encoded again: {[sample.text for sample in samples]}")
