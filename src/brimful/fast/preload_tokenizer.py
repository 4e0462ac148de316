"""Load a tokenizer and its template once, in the server from which worker processes are forked."""

import contextlib
import os

from brimful.encode.chat import ChatEncoder
from brimful.fast.preloading import TOKENIZER, loading_thread

if path := os.environ.get(TOKENIZER):
    # No process is forked until all threads have ended, so a fork never inherits a lock held here.
    # A tokenizer that cannot be loaded, or has no template, is not an error here: the job reports
    # it.
    with contextlib.suppress(Exception):
        ChatEncoder(path).engine.load()
    if loading_thread.ident is not None:
        loading_thread.join()
