"""What people read: descriptions of lengths, plans, packs and stores."""

from __future__ import annotations
