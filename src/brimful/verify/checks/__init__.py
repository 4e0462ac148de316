"""One question a file; each takes a ``Subject`` and returns findings."""

from __future__ import annotations
