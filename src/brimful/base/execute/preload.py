"""Imports that every worker process needs, done once in the server that forks workers."""

import os
import signal

import numpy  # noqa: F401
import pyarrow  # noqa: F401

from brimful.base.execute.serving import ONE_THREAD

os.environ |= ONE_THREAD  # must be set before a tokenizer is used, which starts its threads

# The server was started with Ctrl-C blocked; otherwise these imports could end in a traceback.
# Processes forked from it, of brimful or not, receive Ctrl-C again.
os.register_at_fork(
    after_in_child=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
)
