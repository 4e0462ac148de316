"""Processes of fault tests."""

import os
import traceback


def forked(function, *arguments):
    """Run a function in a process of its own, which ends with it; return its number."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            function(*arguments)
            code = 0
        except BaseException:
            traceback.print_exc()
        os._exit(code)
    return pid
