"""Media that changed between measuring and writing: the error names the remedy, once."""

from collections.abc import Iterator
from contextlib import contextmanager

from brimful.errors import BadSampleError, LengthChangedError
from brimful.messages import setting


@contextmanager
def explained_changes_of_media(*, is_measured_now: bool) -> Iterator[None]:
    """Add the remedy to errors of media that cannot be read any more, or differ from the measured ones.

    Measuring again finds the change: lengths are stored with the sizes and times of their files.

    Args:
        is_measured_now: true if the packing job also measures, and would again; false for lengths from
            elsewhere.

    >>> with explained_changes_of_media(is_measured_now=True):
    ...     raise BadSampleError("image 'a.png': is empty", sample_id=3, where="a.jsonl:4")
    Traceback (most recent call last):
    brimful.errors.BadSampleError: a.jsonl:4 (sample 3): image 'a.png': is empty; it could be read when it was measured: \
bring it back, or run the job again, with another directory if this one holds packs already
    """
    directory = setting("directory")
    anew = (
        f"run the job again, with another {directory} if this one holds packs already"
        if is_measured_now
        else f"measure again, with another {directory}"
    )
    try:
        yield
    except BadSampleError as error:
        reason = f"{error.reason}; it could be read when it was measured: bring it back, or {anew}"
        raise BadSampleError(reason, sample_id=error.sample_id, where=error.where) from error
    except LengthChangedError as error:
        raise LengthChangedError(
            f"{error.message}. If an image or audio file was changed: bring it back, or {anew}"
        ) from error
