"""For tests, ours and yours: toys, slow reference algorithms, strategies, faults."""

from __future__ import annotations
