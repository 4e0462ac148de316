"""File systems behind URLs, opened by fsspec; a missing library or protocol is an error of one line."""

import contextlib
from collections.abc import Iterator
from typing import Any

from brimful.errors import BrimfulError, MissingExtraError, SettingsError, SourceError, SourceNotFoundError


def is_remote(path: str) -> bool:
    """Return true if a path is a URL of a file system other than the local one.

    >>> is_remote("s3://bucket/packs"), is_remote("file:///data"), is_remote("/data")
    (True, False, False)
    """
    return "://" in path and not path.startswith("file://")


def filesystem_of(url: str, **options: Any) -> tuple[Any, str]:
    """Return the fsspec file system of a URL, and the path in it.

    Raises:
        MissingExtraError: its library is not installed; names it.
        SettingsError: no file system has that protocol.

    >>> filesystem_of("nowhere://x")
    Traceback (most recent call last):
        ...
    brimful.errors.SettingsError: nowhere://x: fsspec knows no file system nowhere://
    """
    import fsspec

    protocol = url.partition("://")[0]
    try:
        filesystem, path = fsspec.core.url_to_fs(url, **options)
    except ImportError as error:
        # fsspec raises its own ImportError; its cause is the ImportError of the missing library.
        package = getattr(error.__cause__, "name", None) or error.name or protocol
        raise MissingExtraError(f"{url} needs {package}, which is not installed: pip install {package}") from error
    except ValueError as error:
        if protocol in fsspec.available_protocols():
            raise SettingsError(f"{url}: {error}") from error
        raise SettingsError(f"{url}: fsspec knows no file system {protocol}://") from error
    return filesystem, str(path)


@contextlib.contextmanager
def telling(url: str) -> Iterator[None]:
    """Turn the errors of remote file systems, which have their own classes, into errors of one line.

    Raises:
        SourceNotFoundError: no such file.
        SourceError: anything else, such as no network or no permission.
    """
    try:
        yield
    except BrimfulError:
        raise
    except FileNotFoundError as error:
        raise SourceNotFoundError(f"{url}: no such file") from error
    except Exception as error:  # cloud libraries have their own error classes
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        raise SourceError(f"{url} cannot be read: {type(error).__name__}: {reason}") from error
