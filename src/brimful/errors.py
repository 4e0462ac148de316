"""The errors that brimful raises on purpose, as one tree.

::

    BrimfulError
    ├── SettingsError (ValueError)             an option is wrong, or two contradict each other
    │   └── WrongTypeError (TypeError)         an argument has a type that a call cannot take
    ├── MissingExtraError (ImportError)        an optional dependency is not installed
    ├── SourceError
    │   ├── SourceNotFoundError (FileNotFoundError)
    │   ├── UnknownFormatError (ValueError)    rows of an unknown format
    │   └── BadSampleError (ValueError)        one row is malformed: file, line, what is wrong
    ├── EncodeError
    │   ├── TokenizerNotFoundError (FileNotFoundError)
    │   ├── AssistantTurnsError (ValueError)   a template does not show where answers begin
    │   ├── AugmentationError (ValueError)     a random transform changes lengths
    │   └── EncodersDifferError (ValueError)   a fast library and its reference give different tokens
    │       └── ProcessorDiffersError          headers and the model's processor give different tokens
    ├── MeasureError
    │   └── CacheMismatchError (ValueError)    a length table was made with other settings or content
    ├── PlanError
    │   ├── InvalidLengthsError (ValueError)   lengths are negative, fractional, too many, or empty
    │   ├── OversizedSampleError (ValueError)  a length exceeds the capacity, and no overflow policy is set
    │   ├── NoTargetError (ValueError)         samples have no target of the loss, and no policy is set
    │   ├── PlanMismatchError (ValueError)     a plan was made from other lengths
    │   └── BuildFailedError (RuntimeError)    rank 0 could not plan: its error, raised on another rank
    ├── StoreError
    │   ├── NotAPackStoreError (FileNotFoundError)
    │   ├── StoreMismatchError (ValueError)    the directory holds packs of another job
    │   ├── StoreFullError (OSError)           no space left; nothing committed is lost
    │   ├── CorruptFileError (ValueError)      bytes differ from what was committed
    │   ├── ShardExpiredError (LookupError)    a shard was removed after later checkpoints
    │   ├── StreamTimeoutError (TimeoutError)  an expected shard did not come in time
    │   └── UnfinishedStoreError (ValueError)  packs are still missing
    ├── LengthChangedError (ValueError)        a sample encodes to another length than planned
    ├── CollateError (ValueError)              samples cannot share one batch
    ├── StateError (ValueError)                a saved state does not fit this loader
    ├── RankFailedError (RuntimeError)         another rank could not go on; raised on this one
    ├── UnfinishedSharesError (RuntimeError)   this share of a job is done; others are not
    └── TaskFailedError (RuntimeError)         a worker process died

Each class is also the built-in error that a caller would expect, so both work::

    >>> from brimful.errors import BrimfulError, OversizedSampleError
    >>> try:
    ...     raise OversizedSampleError("sample 3 has 9,000 tokens")
    ... except BrimfulError as error:
    ...     print(error)
    sample 3 has 9,000 tokens
    >>> issubclass(OversizedSampleError, ValueError)
    True

The command line prints only the message and exits with code 2. Errors of brimful itself are
``assert``.
"""

from __future__ import annotations

from functools import partial

from brimful.base.wording import in_python

__all__ = [
    "BrimfulError",
    "SettingsError",
    "WrongTypeError",
    "MissingExtraError",
    "SourceError",
    "SourceNotFoundError",
    "UnknownFormatError",
    "BadSampleError",
    "EncodeError",
    "TokenizerNotFoundError",
    "AssistantTurnsError",
    "AugmentationError",
    "EncodersDifferError",
    "ProcessorDiffersError",
    "MeasureError",
    "CacheMismatchError",
    "PlanError",
    "InvalidLengthsError",
    "OversizedSampleError",
    "NoTargetError",
    "PlanMismatchError",
    "BuildFailedError",
    "StoreError",
    "NotAPackStoreError",
    "StoreMismatchError",
    "StoreFullError",
    "CorruptFileError",
    "ShardExpiredError",
    "StreamTimeoutError",
    "UnfinishedStoreError",
    "LengthChangedError",
    "CollateError",
    "StateError",
    "RankFailedError",
    "UnfinishedSharesError",
    "TaskFailedError",
    "missing_extra",
]


class BrimfulError(Exception):
    """Base of every error that brimful raises on purpose.

    ``str(error)`` shows settings as Python arguments. In ``message`` they are still marked
    (``messages.setting``), for code that puts one message into another or shows settings as
    command-line flags.
    """

    def __init__(self, message: object = "", *arguments: object) -> None:
        # A DataLoader re-creates an error of its worker with ``message`` as a keyword if the class
        # has that attribute.
        super().__init__(message, *arguments)

    @property
    def message(self) -> str:
        """The message with its settings marked."""
        return super().__str__()

    def __str__(self) -> str:
        return in_python(self.message)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


class SettingsError(BrimfulError, ValueError):
    """An option has an impossible value, or two options contradict each other."""


class WrongTypeError(SettingsError, TypeError):
    """An argument is of a type that this call cannot take; the message says what it takes."""


class MissingExtraError(BrimfulError, ImportError):
    """An optional dependency is needed and not installed; the message is the ``pip install``
    line.
    """


class SourceError(BrimfulError):
    """Base of the errors in a data set."""


class SourceNotFoundError(SourceError, FileNotFoundError):
    """No such file or directory, or nothing in it that can be read."""


class UnknownFormatError(SourceError, ValueError):
    """The rows have an unknown format; the message shows their keys and how to map them."""


class BadSampleError(SourceError, ValueError):
    """One row is malformed.

    Attributes:
        sample_id: index of the sample in its source.
        where: file and line, such as ``data.jsonl:17``; empty if only the encoder knows the sample.
    """

    def __init__(self, reason: str, *, sample_id: int, where: str = "") -> None:
        super().__init__(
            f"{where} (sample {sample_id}): {reason}" if where else f"sample {sample_id}: {reason}"
        )
        self.sample_id = sample_id
        self.where = where
        self._marked_reason = reason

    @property
    def reason(self) -> str:
        """The fault in one line with settings as Python arguments, ready to be stored in a file."""
        return in_python(self._marked_reason)

    def located(self, where: str) -> BadSampleError:
        """Return the same error with the file and line, which only the source knows."""
        return BadSampleError(self._marked_reason, sample_id=self.sample_id, where=where)

    def of_sample(self, sample_id: int) -> BadSampleError:
        """Return the same error for another sample with the same content."""
        return BadSampleError(self._marked_reason, sample_id=sample_id)

    def __reduce__(self) -> tuple[object, ...]:
        # Pickle rebuilds an exception from ``args``, which hold the message and lack the keywords.
        return partial(BadSampleError, sample_id=self.sample_id, where=self.where), (
            self._marked_reason,
        )


class EncodeError(BrimfulError):
    """Base of the errors of encoding a sample."""


class TokenizerNotFoundError(EncodeError, FileNotFoundError):
    """No tokenizer at that path or hub id."""


class AssistantTurnsError(EncodeError, ValueError):
    """The chat template does not show where the assistant's turns begin and end."""


class EncodersDifferError(EncodeError, ValueError):
    """A fast library gave different tokens than the reference library that it replaces."""


class AugmentationError(EncodeError, ValueError):
    """A random transform changes the length of a sample, which was planned without the
    transform.
    """


class ProcessorDiffersError(EncodersDifferError):
    """The model's own processor made different tokens from a sample with media than were
    measured.
    """


class MeasureError(BrimfulError):
    """Base of the errors of measuring lengths."""


class CacheMismatchError(MeasureError, ValueError):
    """A length table was made with other content or settings; the message says which."""


class PlanError(BrimfulError):
    """Base of the errors of planning packs."""


class InvalidLengthsError(PlanError, ValueError):
    """Lengths that cannot be planned: negative, fractional, or none at all."""


class OversizedSampleError(PlanError, ValueError):
    """A length exceeds the capacity and the overflow policy is ``error``."""


class NoTargetError(PlanError, ValueError):
    """Samples have no target of the loss and the policy is ``error``, or no sample has one.

    Attributes:
        sample_id: the first such sample.
        sample_ids: all such samples, if they can be left out; None if no sample would be left.
        further: another fault of the data; empty without one.
        way_out: settings that leave out the samples of both faults, marked as in ``message``.
    """

    def __init__(
        self,
        reason: str,
        *,
        sample_id: int = 0,
        sample_ids: object = None,
        further: str = "",
        way_out: str = "",
    ) -> None:
        super().__init__(reason)
        self.sample_id, self.sample_ids = sample_id, sample_ids
        self.further, self.way_out = further, way_out

    @property
    def message(self) -> str:
        reason = super().message
        return (
            f"{reason}. Also, {self.further}. To leave out all of them: {self.way_out}"
            if self.further
            else reason
        )

    def located(self, where: str) -> NoTargetError:
        """Return the same error with the file and line of the first sample, which only the source
        knows.
        """
        return NoTargetError(f"{super().message}; the first is {where}", **vars(self))

    def with_fault(self, fault: str, way_out: str) -> NoTargetError:
        """Return the same error with a second fault, and the settings that leave out the samples of
        both.
        """
        return NoTargetError(
            super().message, **{**vars(self), "further": fault, "way_out": way_out}
        )


class PlanMismatchError(PlanError, ValueError):
    """The plan was made from other lengths."""


class BuildFailedError(PlanError, RuntimeError):
    """Rank 0 could not plan; raised on every other rank, which waited for it.

    Attributes:
        error_class: name of the error's class on rank 0.
        build_traceback: its traceback, as Python prints it.
    """

    def __init__(self, reason: str, *, error_class: str = "", build_traceback: str = "") -> None:
        super().__init__(reason)
        self.error_class = error_class
        self.build_traceback = build_traceback
        # Python 3.11 and later print notes below the error, wherever it ends.
        if build_traceback and hasattr(self, "add_note"):
            self.add_note(f"On rank 0:\n{build_traceback}")

    def __reduce__(self) -> tuple[object, ...]:
        keywords = {"error_class": self.error_class, "build_traceback": self.build_traceback}
        return partial(BuildFailedError, **keywords), (self.message,)


class StoreError(BrimfulError):
    """Base of the errors in files that we write."""


class NotAPackStoreError(StoreError, FileNotFoundError):
    """The directory holds no packs."""


class StoreMismatchError(StoreError, ValueError):
    """The directory holds packs made with other settings or from other data."""


class StoreFullError(StoreError, OSError):
    """No space left on the device. Committed data stays; the same command continues from there."""

    @property
    def message(self) -> str:
        return str(self.strerror or super().message)


class CorruptFileError(StoreError, ValueError):
    """A file's bytes differ from what was committed: truncated, flipped or replaced."""


class ShardExpiredError(StoreError, LookupError):
    """A shard of a stream was removed, since later checkpoints were acknowledged."""


class StreamTimeoutError(StoreError, TimeoutError):
    """A shard of a growing stream did not come in time."""


class UnfinishedStoreError(StoreError, ValueError):
    """The pack store is not complete yet; the command that writes it can be run again."""


class LengthChangedError(BrimfulError, ValueError):
    """A sample encodes to another length than it was planned with."""


class CollateError(BrimfulError, ValueError):
    """These packs or samples cannot become one batch."""


class StateError(BrimfulError, ValueError):
    """A saved state does not fit this loader."""


class RankFailedError(BrimfulError, RuntimeError):
    """Another data-parallel rank could not make its part of a step, and this rank would wait for it
    forever.
    """


class UnfinishedSharesError(BrimfulError, RuntimeError):
    """The share of this call is done, others of the job are not: not a failure, but the result is
    not ready.
    """


class TaskFailedError(BrimfulError, RuntimeError):
    """A worker process ended without an answer, most often because memory ran out."""


def missing_extra(package: str, extra: str, purpose: str) -> MissingExtraError:
    """Return the error for an optional dependency that is not installed.

    >>> print(missing_extra("torch", "torch", "PackCollator"))
    PackCollator needs torch, which is not installed: pip install 'brimful[torch]'
    """
    line = f"pip install 'brimful[{extra}]'"
    return MissingExtraError(f"{purpose} needs {package}, which is not installed: {line}")
