"""Demo of the whole flow on real text that every machine has: ``brimful demo``. No network, no GPU.

::

    docstrings ─► chats ─► tokenizer ─► brimful pack, report, inspect
"""

from brimful.demo.chats import Chat, make_chats
from brimful.demo.media_demo import make_media_chats
from brimful.demo.model import make_model
from brimful.demo.steps import run_demo, run_multimodal_demo
from brimful.demo.toy_tokenizer import train_tokenizer

__all__ = [
    "Chat",
    "make_chats",
    "make_media_chats",
    "make_model",
    "run_demo",
    "run_multimodal_demo",
    "train_tokenizer",
]
