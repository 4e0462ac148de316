"""Lines for a terminal."""

from __future__ import annotations
