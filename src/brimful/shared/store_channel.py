"""A channel through the key-value store that a PyTorch job has already."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from brimful.errors import TaskFailedError
from brimful.shared.channel import Channel
from brimful.shared.ranks import process_group

_Value = TypeVar("_Value")


class StoreChannel(Channel):
    """Documents as keys of a ``torch.distributed`` store. It lives as long as the job: nothing in it is stale.

    Args:
        store: a ``TCPStore``, ``FileStore`` or ``HashStore``, or one that wraps it.
        prefix: before every key, so that several plans share a store.
    """

    carries_files = True

    def __init__(self, store: Any, prefix: str) -> None:
        self._store, self._prefix = store, prefix

    def put(self, name: str, data: bytes) -> None:
        self._call(lambda: self._store.set(self._key(name), data))

    def get(self, name: str) -> bytes | None:
        # ``get`` alone would wait for the key, up to the store's timeout.
        key = self._key(name)
        return self._call(lambda: bytes(self._store.get(key)) if self._store.check([key]) else None)

    def delete(self, name: str) -> None:
        self._call(lambda: self._store.delete_key(self._key(name)))

    def tell(self, topic: str, who: str) -> None:
        self._call(lambda: self._store.add(self._key(topic), 1))

    def told(self, topic: str) -> int:
        return self._call(lambda: int(self._store.add(self._key(topic), 0)))

    def clone(self) -> StoreChannel:
        # A connection of its own: one that waits in a call keeps every other thread of the process out.
        try:
            return StoreChannel(self._store.clone(), self._prefix)
        except (AttributeError, RuntimeError, NotImplementedError):
            return self

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}"

    def _call(self, operation: Callable[[], _Value]) -> _Value:
        try:
            return operation()
        except RuntimeError as error:  # torch.distributed's own errors derive from it
            first_line = str(error).partition("\n")[0]
            raise TaskFailedError(
                f"the store of the process group does not answer ({type(error).__name__}: {first_line}): the process "
                f"that kept it, rank 0 or the launcher, has ended. Its log says why"
            ) from error


def default_store() -> Any | None:
    """Return the store of the initialised process group; None without one, or where PyTorch does not give it."""
    distributed = process_group()
    if distributed is None:
        return None
    # PyTorch has no public name for it; what is missing in another version leaves the directory as the way.
    find = getattr(getattr(distributed, "distributed_c10d", None), "_get_default_store", None)
    return None if find is None else find()
