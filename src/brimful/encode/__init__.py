"""One sample to its tokens and its exact length: ``ChatEncoder``, ``TextEncoder``."""

from __future__ import annotations

from brimful.encode.chat import ChatEncoder, TrainOn
from brimful.encode.encoded import EncodedSample
from brimful.encode.encoder import Encoder
from brimful.encode.text import TextEncoder

__all__ = ["ChatEncoder", "EncodedSample", "Encoder", "TextEncoder", "TrainOn"]
