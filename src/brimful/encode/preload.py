"""Loading of what worker processes need, once, in the server from which they are forked.

A tokenizer that cannot be loaded is no error here: the job says so, in its own words.
"""

import contextlib
import importlib
import os

from brimful.encode.preloading import TOKENIZER, TRANSFORMERS
from brimful.encode.tokenizer import Tokenizer

if os.environ.get(TOKENIZER):
    with contextlib.suppress(Exception):
        Tokenizer(os.environ[TOKENIZER]).tokenize(["a"])

if os.environ.get(TRANSFORMERS):
    with contextlib.suppress(ImportError):
        importlib.import_module("transformers.models.auto.tokenization_auto")
