"""Encoders of samples: ``ChatEncoder``, ``CompletionEncoder``, ``TextEncoder``,
``TokenEncoder``.
"""

from brimful.encode.chat import ChatEncoder, Reasoning, TrainOn
from brimful.encode.choose import EncoderSettings, Mode, as_encoder, encoder_for
from brimful.encode.encoded import EncodedSample
from brimful.encode.encoded_samples import EncodedSamples, check_augmentation
from brimful.encode.encoder import Encoder, TokenEncoder
from brimful.encode.text import CompletionEncoder, TextEncoder

__all__ = [
    "ChatEncoder",
    "CompletionEncoder",
    "EncodedSample",
    "EncodedSamples",
    "Encoder",
    "EncoderSettings",
    "Mode",
    "Reasoning",
    "TextEncoder",
    "TokenEncoder",
    "TrainOn",
    "as_encoder",
    "check_augmentation",
    "encoder_for",
]
