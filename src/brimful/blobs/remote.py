"""Blobs behind a URL that fsspec opens, such as an object store."""

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any

from brimful.blobs.interface import Blob, BlobStore
from brimful.errors import StoreError
from brimful.remote import filesystem_of


class FsspecBlobStore(BlobStore):
    """A prefix of an object store or any other file system that fsspec opens.

    ``put_if_absent`` uses the file system's exclusive creation (``If-None-Match`` on S3). A backend without it
    would let two writers both win, so it is probed once and refused.
    """

    def __init__(self, url: str, **storage_options: Any) -> None:
        self.url = url.rstrip("/")
        self._fs, self._root = filesystem_of(self.url, **storage_options)
        self._probed = False

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    @contextlib.contextmanager
    def blob(self, title: str) -> Iterator[Blob]:
        yield _MemoryBlob(self)

    def put_if_absent(self, key: str, data: bytes | memoryview) -> bool:
        # Not when the store is opened: reading needs no right to write.
        if not self._probed:
            self._probe()
        return self._create(key, data)

    def _create(self, key: str, data: bytes | memoryview) -> bool:
        try:
            self.put(key, data, mode="create")
        except FileExistsError:
            return False
        return True

    def put(self, key: str, data: bytes | bytearray | memoryview, **options: Any) -> None:
        """Put all bytes of a blob with one request; ``options`` are those of fsspec's ``pipe_file``."""
        self._fs.makedirs(self._path(key).rpartition("/")[0], exist_ok=True)
        self._fs.pipe_file(self._path(key), bytes(data), **options)

    def _probe(self) -> None:
        """Refuse a file system on which the second of two creations of one name succeeds too."""
        key = f"tmp/probe-{uuid.uuid4().hex}"
        is_first_created, is_second_created = self._create(key, b"1"), self._create(key, b"2")
        self.delete(key)
        if not is_first_created or is_second_created:
            raise StoreError(
                f"{self.url}: this file system lets two writers create the same name, so packs written by two "
                f"jobs at once could be lost; use one with exclusive creation (S3, GCS, local)"
            )
        self._probed = True

    def get(self, key: str) -> bytes:
        return bytes(self._fs.cat_file(self._path(key)))

    def get_range(self, key: str, offset: int, size: int) -> bytes:
        return bytes(self._fs.cat_file(self._path(key), start=offset, end=offset + size))

    def size(self, key: str) -> int | None:
        try:
            return int(self._fs.size(self._path(key)))
        except FileNotFoundError:
            return None

    def list(self, prefix: str) -> list[str]:
        # fsspec keeps listings, and other writers add keys behind its back.
        self._fs.invalidate_cache()
        folder = prefix.rstrip("/")
        try:
            entries = self._fs.ls(self._path(folder), detail=True)
        except FileNotFoundError:
            return []
        return sorted(f"{folder}/{entry['name'].rsplit('/', 1)[-1]}" for entry in entries if entry["type"] == "file")

    def delete(self, key: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._path(key))


class _MemoryBlob(Blob):
    """Bytes collected in memory and put with one request, which makes them atomic."""

    def __init__(self, store: FsspecBlobStore) -> None:
        super().__init__()
        self._store = store
        self._data = bytearray()

    def _write(self, view: memoryview) -> None:
        self._data += view

    def publish(self, key: str) -> None:
        self._flush_pending()
        self._store.put(key, self._data)
