"""Demo of the whole flow on real text that every machine has: ``brimful demo``. No network, no GPU.

::

    docstrings ─► chats ─► tokenizer ─► brimful pack, report, inspect ─► training, packed against padded
"""

from brimful.demo.chats import Chat, make_chats
from brimful.demo.media_chats import make_media_chats
from brimful.demo.multimodal import run_multimodal_demo
from brimful.demo.steps import run_demo
from brimful.demo.tokenizer import train_tokenizer
from brimful.demo.train import TrainingRun, compare_training, draw_comparison

__all__ = [
    "Chat",
    "TrainingRun",
    "compare_training",
    "draw_comparison",
    "make_chats",
    "make_media_chats",
    "run_demo",
    "run_multimodal_demo",
    "train_tokenizer",
]
