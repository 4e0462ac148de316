"""What every worker process needs, imported once before they are forked from their server."""

from __future__ import annotations

import contextlib

import numpy  # noqa: F401
import pyarrow  # noqa: F401

with contextlib.suppress(ImportError):
    from transformers import AutoTokenizer  # noqa: F401
