"""Whether the hub can be asked, found out at once.

Its libraries ask again and again, for some twenty seconds, before they say that there is no network. Whoever wants
something of the hub tries the connection first and, without one, takes what its cache has.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from urllib.parse import urlsplit
from urllib.request import getproxies

__all__ = ["looks_like_hub_id", "offline_if_unreachable"]

_SECONDS = 3.0


def looks_like_hub_id(name: str) -> bool:
    """Whether a name could be ``owner/name`` or ``name`` of the hub, and is no path by its looks.

    >>> looks_like_hub_id("openai/gsm8k"), looks_like_hub_id("./gsm8k"), looks_like_hub_id("a/b/c.jsonl")
    (True, False, False)
    """
    parts = name.split("/")
    return len(parts) <= 2 and all(part and part[0] not in ".~" and "\\" not in part for part in parts)


@contextlib.contextmanager
def offline_if_unreachable() -> Iterator[bool]:
    """Whether the hub can be reached; while the block runs without it, the hub's libraries use their caches alone."""
    import huggingface_hub.constants as constants

    if constants.HF_HUB_OFFLINE or _reachable(constants.ENDPOINT):
        yield not constants.HF_HUB_OFFLINE
        return
    modules = [constants, sys.modules.get("datasets.config")]
    present = [module for module in modules if hasattr(module, "HF_HUB_OFFLINE")]
    for module in present:
        module.HF_HUB_OFFLINE = True  # type: ignore[union-attr]
    try:
        yield False
    finally:
        for module in present:
            module.HF_HUB_OFFLINE = False  # type: ignore[union-attr]


def _reachable(endpoint: str) -> bool:
    if getproxies().get("https") or os.environ.get("ALL_PROXY"):
        return True  # who uses a proxy need not reach the hub directly
    address = urlsplit(endpoint)
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        with socket.create_connection((address.hostname or "", port), timeout=_SECONDS):
            return True
    except OSError:
        return False
