"""A quick test whether the hub can be reached, and the use of its cache if it cannot.

The hub's libraries retry for some twenty seconds before they report that the network is missing.
Code that needs the hub therefore tries the connection first and, without one, uses the files in the
hub's cache.
"""

import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

_CONNECT_SECONDS = 3.0


def looks_like_hub_id(name: str) -> bool:
    """Return true if a name could be ``owner/name`` or ``name`` on the hub and does not look like a
    path.

    >>> looks_like_hub_id("openai/gsm8k"), looks_like_hub_id("./gsm8k"), looks_like_hub_id("a/b/c.jsonl")
    (True, False, False)
    """
    pieces = name.split("/")
    return len(pieces) <= 2 and all(
        piece and piece[0] not in ".~" and "\\" not in piece for piece in pieces
    )


def offline_snapshot(hub_id: str) -> str | None:
    """Return the directory with the files of a hub id in the hub's cache; None unless
    ``HF_HUB_OFFLINE`` is set.

    Only then do the hub's libraries use this directory without asking the hub. Otherwise the name
    may mean newer files.
    """
    # Transformers before 5 may have a cache of its own.
    if not looks_like_hub_id(hub_id) or os.environ.get("TRANSFORMERS_CACHE"):
        return None
    try:
        import huggingface_hub.constants as constants
    except ImportError:
        return None
    if not constants.HF_HUB_OFFLINE:
        return None
    repository = os.path.join(constants.HF_HUB_CACHE, f"models--{hub_id.replace('/', '--')}")
    try:
        with open(os.path.join(repository, "refs", "main"), encoding="utf-8") as file:
            commit = file.read()
    except (OSError, ValueError):
        return None
    directory = os.path.join(repository, "snapshots", commit)
    return directory if commit and os.path.isdir(directory) else None


@contextlib.contextmanager
def offline_if_unreachable() -> Iterator[bool]:
    """Yield true if the hub can be reached; if not, its libraries use only their caches while the
    block runs.
    """
    import huggingface_hub.constants as constants

    if constants.HF_HUB_OFFLINE or _reachable(constants.ENDPOINT):
        yield not constants.HF_HUB_OFFLINE
        return
    # Each library copied the switch when it was imported, so it is set in all of them.
    candidates: list[Any] = [constants, sys.modules.get("datasets.config")]
    modules = [module for module in candidates if hasattr(module, "HF_HUB_OFFLINE")]
    for module in modules:
        module.HF_HUB_OFFLINE = True
    try:
        yield False
    finally:
        for module in modules:
            module.HF_HUB_OFFLINE = False


def _reachable(endpoint: str) -> bool:
    # urllib takes as long to import as the rest of this package, and few jobs use the hub.
    from urllib.request import getproxies

    if getproxies().get("https") or os.environ.get("ALL_PROXY"):
        return True  # with a proxy, a direct connection may be impossible and is not needed
    address = urlsplit(endpoint)
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        with socket.create_connection((address.hostname or "", port), timeout=_CONNECT_SECONDS):
            return True
    except OSError:
        return False
