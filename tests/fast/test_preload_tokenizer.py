"""The server of worker processes loads a tokenizer before it forks, and never waits for itself."""

import os
import runpy
import subprocess
import sys
from types import SimpleNamespace

import pytest

from brimful.encode.verdicts import save_verdict
from brimful.fast.preloading import TOKENIZER

SERVER = """
import os, sys
from pathlib import Path
import brimful.base.execute.preload, brimful.measure.block, brimful.fast.preload_tokenizer
threads = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
print(sum(name.startswith(("fastokens", "rayon")) for name in threads))
sys.stdout.flush()
child = os.fork()
if child == 0:
    from brimful.fast.preloading import _tokenizers
    print(len(_tokenizers), "transformers" in sys.modules, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


@pytest.mark.long
def test_a_fork_waits_for_the_tokenizer_and_for_no_lock(qwen, qwen_tokenizer, fresh_cache):
    """Facts are known and the template is not, as after a job on documents: a template was compared in a thread, whose
    import of Transformers waited for the lock that the fork held, for ever."""
    qwen.facts.remember(str(qwen_tokenizer))
    save_verdict(qwen._fast.subject, {"reason": ""})
    environment = {**os.environ, TOKENIZER: str(qwen_tokenizer), "BRIMFUL_CACHE": str(fresh_cache)}
    command = [sys.executable, "-c", SERVER]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True).stdout
    assert shown.split() == ["0", "1", "False"], (
        "no thread holds a lock of the library at a fork, and what it loaded is there"
    )


@pytest.mark.parametrize(("named", "loaded"), [("a place", ["a place", "loaded"]), (None, [])])
def test_the_tokenizer_of_the_job_is_loaded_and_no_other(monkeypatch, named, loaded):
    """Without it each worker process would load it again, or a job without one would look for it."""
    seen = []

    def encoder(place):
        seen.append(place)
        return SimpleNamespace(engine=SimpleNamespace(load=lambda: seen.append("loaded")))

    monkeypatch.setattr("brimful.encode.chat.ChatEncoder", encoder)
    monkeypatch.delenv(TOKENIZER, raising=False)
    if named is not None:
        monkeypatch.setenv(TOKENIZER, named)
    monkeypatch.delitem(sys.modules, "brimful.fast.preload_tokenizer", raising=False)
    runpy.run_module("brimful.fast.preload_tokenizer")
    assert seen == loaded
