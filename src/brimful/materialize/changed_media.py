"""Media that changed between measuring and writing, and how their samples are measured anew."""

from brimful.errors import BadSampleError, LengthChangedError
from brimful.messages import setting


def explain_changed_media(error: BadSampleError | LengthChangedError) -> BadSampleError | LengthChangedError:
    """Return an error of writing packs with the way out: lengths are kept by rows, and a row only names its media.

    >>> print(explain_changed_media(BadSampleError("image 'a.png': is empty", sample_id=3, where="a.jsonl:4")))
    a.jsonl:4 (sample 3): image 'a.png': is empty; it could be read when it was measured: bring it back, or measure \
anew, with another directory and another cache_dir
    """
    way_out = f"bring it back, or measure anew, with another {setting('directory')} and another {setting('cache_dir')}"
    if isinstance(error, BadSampleError):
        reason = f"{error.reason}; it could be read when it was measured: {way_out}"
        return BadSampleError(reason, sample_id=error.sample_id, where=error.where)
    return LengthChangedError(f"{error.message}. If a picture or sound was changed: {way_out}")
