"""Loading of what worker processes need, once, in the server from which they are forked.

A tokenizer that cannot be loaded is not an error here: the job reports it.
"""

import contextlib
import importlib
import os

from brimful.encode.chat import ChatEncoder
from brimful.encode.tokenizer import Tokenizer
from brimful.encode.tokenizer_facts import TokenizerFacts
from brimful.encode.tokenizer_files import read_facts
from brimful.errors import BrimfulError
from brimful.preloading import TOKENIZER, TRANSFORMERS
from brimful.sources.sample import PlainMessages, Sample

_CHAT = Sample(0, messages=PlainMessages.of([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]))


def _load_tokenizer() -> None:
    name = os.environ[TOKENIZER]
    with contextlib.suppress(Exception):
        tokenizer = Tokenizer(name)
        if os.path.isdir(name):
            facts = TokenizerFacts.recall(name) or (read_facts(name) or (None,))[0]
            if facts is not None:
                tokenizer.facts = facts
        # The first job with some tokenizers loads them with Transformers: do not do it here too, at the same time.
        if not os.path.isdir(name) or "facts" in vars(tokenizer):
            encoder = ChatEncoder(tokenizer)
            with contextlib.suppress(BrimfulError):
                # A template that no job has rendered needs Transformers for the comparison, and documents need no
                # template.
                if encoder.is_template_known:
                    # Compiles the template, and imports the engines that render it.
                    encoder.render(_CHAT)
                    # Otherwise each worker would import Transformers, if the template needs it.
                    if any(TRANSFORMERS in variables for variables in encoder.engine.preload.values()):
                        _import_transformers()
            tokenizer.tokenize(["a"])


def _import_transformers() -> None:
    with contextlib.suppress(ImportError):
        importlib.import_module("transformers.models.auto.tokenization_auto")


if os.environ.get(TOKENIZER):
    # Not in a thread: no process is forked until this is loaded, so a fork never inherits a lock held here.
    _load_tokenizer()

if os.environ.get(TRANSFORMERS):
    _import_transformers()
