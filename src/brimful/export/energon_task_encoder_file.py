"""The task encoder as a file, to include in an export."""

from pathlib import Path


def read_bytes() -> bytes:
    """Return the source of ``brimful.export.energon_task_encoder``."""
    return Path(__file__).with_name("energon_task_encoder.py").read_bytes()
