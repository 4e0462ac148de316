"""Checks of ``verify_packing``, one question a file; each takes a ``PackingSetup`` and returns findings."""

from __future__ import annotations
