"""Loading of what worker processes need, once, in the server from which they are forked.

A tokenizer that cannot be loaded is no error here: the job says so, in its own words.
"""

import contextlib
import importlib
import os
import threading

from brimful.encode.chat import ChatEncoder
from brimful.encode.tokenizer import Tokenizer
from brimful.encode.tokenizer_facts import TokenizerFacts
from brimful.preloading import TOKENIZER, TRANSFORMERS


def _load_tokenizer() -> None:
    name = os.environ[TOKENIZER]
    with contextlib.suppress(Exception):
        # The first job with a tokenizer loads it by Transformers: not here too, at the same time.
        if not os.path.isdir(name) or TokenizerFacts.recall(name) is not None:
            tokenizer = Tokenizer(name)
            tokenizer.tokenize(["a"])
            # Worker processes would each import Transformers, if its own template needs that.
            if any(TRANSFORMERS in variables for variables in ChatEncoder(tokenizer).preload.values()):
                _import_transformers()


def _import_transformers() -> None:
    with contextlib.suppress(ImportError):
        importlib.import_module("transformers.models.auto.tokenization_auto")


if os.environ.get(TOKENIZER):
    # In a thread: it takes a second and mostly no Python, so that the server goes on importing.
    _thread = threading.Thread(target=_load_tokenizer)
    _thread.start()
    # A process is forked when the thread is done, and inherits what it loaded.
    os.register_at_fork(before=_thread.join)

if os.environ.get(TRANSFORMERS):
    _import_transformers()
