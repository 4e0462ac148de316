"""Which failures of a store pass, and how long they are waited for."""

from __future__ import annotations

import errno
import os
import time

import pytest

from brimful.clusters.retries import Retries, ShortReadError, is_passing
from brimful.errors import SettingsError, StoreError, StoreFullError

LASTING_CODES = (
    *(errno.EINVAL, errno.ENOSYS, errno.ENAMETOOLONG, errno.EPERM, errno.ENOENT, errno.ENOSPC, errno.EDQUOT),
)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        *[
            (kind("x"), True)
            for kind in (TimeoutError, ConnectionError, ShortReadError, OSError, RuntimeError, Exception)
        ],
        *[(OSError(code, "x"), True) for code in (errno.EIO, errno.EAGAIN, errno.ESTALE)],
        *[(OSError(code, "x"), False) for code in LASTING_CODES],
        *[(kind("x"), False) for kind in (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError)],
        *[(kind("x"), False) for kind in (NotADirectoryError, SettingsError, NotImplementedError, ImportError)],
        *[(kind("x"), False) for kind in (TypeError, ValueError, AttributeError, MemoryError, KeyboardInterrupt)],
        *[(type(name, (Exception,), {})(), False) for name in ("NoCredentialsError", "ParamValidationError")],
        (type("SlowDown", (Exception,), {})(), True),
    ],
    ids=repr,
)
def test_a_failure_passes_unless_it_is_known_to_stay(error, expected):
    """Repeated in vain, a wrong name costs twenty seconds; given up, a slow server costs the job."""
    assert is_passing(error) is expected


@pytest.mark.parametrize(("byte", "factor"), [(0, 0.5), (128, 0.75), (255, 0.5 + 255 / 512)])
def test_waits_double_and_ranks_do_not_ask_together(monkeypatch, byte, factor):
    """Twelve seconds in all; what fails together is asked for again at other times."""
    waits, errors = [], [TimeoutError(f"number {number}\nmore") for number in range(7)]
    monkeypatch.setattr(os, "urandom", lambda count: bytes([byte]) * count)
    monkeypatch.setattr(time, "sleep", waits.append)

    def request():
        if errors:
            raise errors.pop(0)
        return "answer"

    calls = Retries("s3://a")
    assert calls.call("read b", request) == "answer"
    assert waits == pytest.approx([factor * 0.1 * 2**number for number in range(7)])
    assert (calls.num_repeated, calls.last_error) == (7, "TimeoutError: number 6")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_store_is_told_with_the_way_out(code):
    def request():
        raise OSError(code, "full")

    with pytest.raises(StoreFullError, match=r"s3://a: no space left to write b.*run the same command again") as caught:
        Retries("s3://a").call("write b", request)
    assert caught.value.errno == code


@pytest.mark.parametrize(
    ("error", "words"),
    [(ValueError("one\ntwo\nthree"), "ValueError: one$"), (ValueError(), r"ValueError: ValueError\(\)$")],
)
def test_a_reason_is_one_line(error, words):
    def request():
        raise error

    with pytest.raises(StoreError, match=f"s3://a: cannot read b: {words}"):
        Retries("s3://a").call("read b", request)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (FileNotFoundError("no bucket"), "no bucket: 's3://a'"),
        (FileNotFoundError(errno.ENOENT, "gone"), "gone: 's3://a'"),
        (FileNotFoundError(errno.ENOENT, "gone", "key"), "gone: 'key'"),
        (FileExistsError("is there"), "^is there$"),
        (StoreError("ours"), "^ours$"),
    ],
)
def test_an_answer_is_no_failure(error, words, monkeypatch):
    """Absent or there already: not repeated, and named by the store where the library names nothing."""
    monkeypatch.setattr("brimful.clusters.retries.time.sleep", None)

    def request():
        raise error

    with pytest.raises(type(error), match=words):
        Retries("s3://a").call("read b", request)
