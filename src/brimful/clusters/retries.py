"""Requests to remote stores: which failures are transient, and how often they are tried again."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable
from typing import TypeVar

from brimful.errors import BrimfulError, StoreError, StoreFullError

Answer = TypeVar("Answer")

_ATTEMPTS = 8
"""Attempts of one request before it fails."""

_FIRST_WAIT = 0.1
"""Seconds before the second attempt, doubled for each further one: at most 13 s in all."""

_LASTING_ERRORS = (
    *(FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError),
    *(
        BrimfulError,
        NotImplementedError,
        ImportError,
        TypeError,
        ValueError,
        AttributeError,
        MemoryError,
    ),
)
_FULL_CODES = {errno.ENOSPC, errno.EDQUOT}
_LASTING_CODES = {
    errno.EINVAL,
    errno.ENOSYS,
    errno.ENAMETOOLONG,
    errno.EPERM,
    errno.ENOENT,
    *_FULL_CODES,
}
_LASTING_NAMES = {
    "NoCredentialsError",
    "PartialCredentialsError",
    "ParamValidationError",
    "ProfileNotFound",
}


class ShortReadError(ConnectionError):
    """An answer with fewer bytes than were asked for."""


def is_passing(error: BaseException) -> bool:
    """Return true unless a failure is known to be permanent: cloud libraries have errors of their
    own for the rest.

    >>> is_passing(TimeoutError()), is_passing(PermissionError()), is_passing(OSError(errno.EIO, "5xx"))
    (True, False, True)
    """
    if not isinstance(error, Exception) or isinstance(error, _LASTING_ERRORS):
        return False
    if isinstance(error, OSError) and error.errno in _LASTING_CODES:
        return False
    return type(error).__name__ not in _LASTING_NAMES


class Retries:
    """Repeater of the requests to one store. It logs the first failure, and counts all.

    Attributes:
        num_repeated: requests that failed and were repeated.
        last_error: the last failure, in words; empty if none occurred.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.num_repeated = 0
        self.last_error = ""

    def call(self, action: str, request: Callable[[], Answer]) -> Answer:
        """Return the result of a request, repeated while it fails for a transient reason.

        Args:
            action: what the request does, for messages: ``read log/000000000000.json``.

        Raises:
            StoreFullError: no space left.
            StoreError: the last attempt failed, or the reason is permanent; names request and
                reason.
            OSError: the blob is absent, or exists already: an answer, not a failure.
        """
        attempt = 0
        while True:
            attempt += 1
            try:
                return request()
            except (FileNotFoundError, FileExistsError, BrimfulError) as error:
                if isinstance(error, FileNotFoundError) and error.filename is None:
                    # A missing bucket, reported without its name.
                    raise FileNotFoundError(
                        errno.ENOENT, error.strerror or str(error), self.url
                    ) from error
                raise
            except Exception as error:
                self._note(action, error, attempt)
                # Ranks that failed together must not retry together.
                jitter = 0.5 + os.urandom(1)[0] / 512
                time.sleep(_FIRST_WAIT * 2 ** (attempt - 1) * jitter)

    def _note(self, action: str, error: Exception, attempt: int) -> None:
        """Count and log a failure; raise the error of one line if it is the last."""
        self.last_error = (
            f"{type(error).__name__}: {(str(error).strip() or repr(error)).splitlines()[0]}"
        )
        if isinstance(error, OSError) and error.errno in _FULL_CODES:
            raise StoreFullError(
                error.errno,
                f"{self.url}: no space left to {action}: nothing that was committed is lost; free "
                "some space and run the same command again to resume",
            ) from error
        if not is_passing(error):
            raise StoreError(f"{self.url}: cannot {action}: {self.last_error}") from error
        if attempt == _ATTEMPTS:
            raise StoreError(
                f"{self.url}: cannot {action}: failed {_ATTEMPTS} times, last with "
                f"{self.last_error}; nothing that was committed is lost, run the same command again"
            ) from error
        if not self.num_repeated:
            logging.getLogger("brimful").warning(
                "%s: %s failed and is repeated: %s", self.url, action, self.last_error
            )
        self.num_repeated += 1

    def log_total(self) -> None:
        """Log how many requests were repeated, if any."""
        if self.num_repeated:
            logging.getLogger("brimful").warning(
                "%s: %d requests were repeated, last after %s",
                self.url,
                self.num_repeated,
                self.last_error,
            )
