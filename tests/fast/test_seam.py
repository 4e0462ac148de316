"""The core asks for the wing when it needs it, and not before."""

import subprocess
import sys

from brimful.encode.tokenizer import Tokenizer
from tests.library import is_freed_with_its_user

SCRIPT = """
import sys
from brimful.encode import ChatEncoder, TextEncoder, TokenEncoder
from brimful.encode.tokenizer import Tokenizer
from brimful.sources import Sample

def show():
    print(*sorted(name[13:] for name in sys.modules if name.startswith("brimful.fast.")), sep=",")

TokenEncoder().encode(Sample(0, input_ids=[1, 2]))
show()
tokenizer = Tokenizer(sys.argv[1])
TextEncoder(tokenizer.reference, eos=False).encode(Sample(0, text="a"))
show()
TextEncoder(tokenizer, eos=False).encode(Sample(0, text="a"))
show()
ChatEncoder(tokenizer, chat_template="{{ messages[0].content }}").encode(Sample(0, messages=[{"role": "user", "content": "a"}]))
show()
"""


def test_a_job_imports_the_part_of_the_wing_that_it_uses(small_qwen):
    """Each module costs every worker time: rows of tokens need none of them, and documents fill no template."""
    command = [sys.executable, "-c", SCRIPT, str(small_qwen)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    documents = "fast_tokenizer,preloading"
    assert [line.replace("tokenizer_files", "").strip(",") for line in shown] == [
        "",
        "",
        documents,
        "fast_tokenizer,filling,opaque,preloading,skeleton",
    ]


def test_a_tokenizer_is_freed_with_its_last_user(small_qwen):
    """A collection knows nothing of the megabytes that a tokenizer has outside of Python."""

    def tokenizer():
        made = Tokenizer(str(small_qwen))
        assert made.is_fast
        return made

    assert is_freed_with_its_user(tokenizer)
