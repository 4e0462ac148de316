"""The reference tokenizer in a process of its own, which the program starts before it imports the rest of itself.

Loading ``tokenizers`` takes half a second and keeps Python to itself, as imports do: in one process one waits for the other,
and together they are half of a small job. The process loads the state that the last job took for a directory
(``preloading.state_note``), and then answers batches of texts. One that does not start, loads another state or ends costs
nothing but time: the tokenizer is loaded here then.

Each message on its standard streams is a size and so many bytes. The first one that it sends is a digest of the state, by which
the program knows the tokenizer. A request is JSON: whether characters are asked for, and the texts. An answer is four messages: the number of tokens of each text, the
ids, and for each token its first character and the one behind its last.
"""

import contextlib
import hashlib
import json
import os
import signal
import struct
import subprocess
import sys
import threading
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import IO, Any

from brimful.preloading import state_note
from brimful.stopping import at_the_end

_SIZE = struct.Struct("<q")

_COMMAND = "import sys; sys.path[:] = filter(None, sys.path); from brimful.tokenizer_process import serve; serve()"
"""Program of the process. It imports nothing from the present directory, where a user may have a ``json.py``."""

_processes: dict[str, "TokenizerProcess"] = {}


class RemoteEncoding:
    """Tokens of one text, as far as an ``Encoding`` of ``tokenizers`` is asked for them.

    >>> encoding = RemoteEncoding([5, 6, 7], starts=[0, 2, 2], ends=[1, 3, 3])
    >>> [encoding.char_to_token(position) for position in range(4)]
    [0, None, 1, None]
    """

    def __init__(self, ids: Sequence[int], starts: Sequence[int], ends: Sequence[int]) -> None:
        self.ids, self._starts, self._ends = ids, starts, ends

    def __len__(self) -> int:
        return len(self.ids)

    def char_to_token(self, position: int) -> int | None:
        """Return the index of the first token that holds a character; None if none does."""
        # Ends never fall, so the first one behind the character is that of its first token, or of a token behind it.
        index = bisect_right(self._ends, position)
        return index if index < len(self._ends) and self._starts[index] <= position else None


class TokenizerProcess:
    """A tokenizer in another process, with the two methods of ``tokenizers.Tokenizer`` that encode a batch.

    Args:
        path: file of its state.
    """

    def __init__(self, path: str) -> None:
        # In a session of its own: Ctrl-C is for the program, which ends it.
        self._process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._lock = threading.Lock()
        self._tokenizer: Any = None
        at_the_end(self._process.kill)

    def claim(self, state: str) -> bool:
        """Wait until the tokenizer is loaded; return false, and end the process, if it is not the one of this state."""
        self._state = state
        try:
            if self._receive() == _digest(state):
                return True
        except (OSError, EOFError):
            pass
        self._end()
        return False

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool) -> Sequence[Any]:
        """Return the tokens of each text, which tell the token of each character. No special tokens can be added here."""
        return self._encode(texts, "encode_batch", add_special_tokens)

    def encode_batch_fast(self, texts: Sequence[str], *, add_special_tokens: bool) -> Sequence[Any]:
        """Return the tokens of each text without their characters."""
        return self._encode(texts, "encode_batch_fast", add_special_tokens)

    def _encode(self, texts: Sequence[str], method: str, add_special_tokens: bool) -> Sequence[Any]:
        assert not add_special_tokens
        with self._lock:
            if self._tokenizer is None:
                try:
                    self._send(json.dumps([method == "encode_batch", texts], ensure_ascii=False).encode())
                    sizes, ids, starts, ends = (array(code, self._receive()) for code in "qiii")
                except (OSError, EOFError):
                    self._end()
                    self._tokenizer = _loaded(self._state)
        if self._tokenizer is not None:
            return getattr(self._tokenizer, method)(texts, add_special_tokens=False)  # type: ignore[no-any-return]
        edges = pairwise(accumulate(sizes, initial=0))
        return [RemoteEncoding(ids[begin:end], starts[begin:end], ends[begin:end]) for begin, end in edges]

    def _end(self) -> None:
        """End the process, if it has not ended, and close its streams."""
        self._process.kill()
        with contextlib.suppress(OSError), self._process:
            pass

    def _send(self, message: bytes) -> None:
        assert self._process.stdin is not None
        _write(self._process.stdin, message)

    def _receive(self) -> bytes:
        assert self._process.stdout is not None
        return _read(self._process.stdout)


def begin_process(directory: str) -> None:
    """Start a process for the tokenizer of a directory, if an earlier job left its state."""
    # A note that is damaged is no error: the job reads the tokenizer's own files.
    with contextlib.suppress(OSError, ValueError):
        path = state_note(directory).read_text(encoding="utf-8")
        _processes[os.path.realpath(directory)] = TokenizerProcess(path)


def take_process(directory: str, state: str) -> TokenizerProcess | None:
    """Return the process that was started for the tokenizer of a directory, once; None if there is none of this state.

    Args:
        directory: of the tokenizer's files.
        state: the tokenizer as ``tokenizers`` writes it.
    """
    process = _processes.pop(os.path.realpath(directory), None)
    return process if process is not None and process.claim(state) else None


def serve() -> None:
    """Load the tokenizer whose state is in the file of the last argument, and answer requests until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where there are no sessions
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    # The program went away, or its tokenizer is gone: it is told by the end of the answers.
    with contextlib.suppress(OSError, EOFError):
        state = Path(sys.argv[-1]).read_text(encoding="utf-8")
        tokenizer = _loaded(state)
        _write(answers, _digest(state))
        while True:
            is_aligned, texts = json.loads(_read(requests))
            encode = tokenizer.encode_batch if is_aligned else tokenizer.encode_batch_fast
            encodings = encode(texts, add_special_tokens=False)
            offsets = [encoding.offsets for encoding in encodings] if is_aligned else []
            characters = list(chain.from_iterable(chain.from_iterable(offsets)))
            for code, numbers in (
                ("q", map(len, encodings)),
                ("i", chain.from_iterable(encoding.ids for encoding in encodings)),
                ("i", characters[::2]),
                ("i", characters[1::2]),
            ):
                _write(answers, array(code, numbers).tobytes())


def _loaded(state: str) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_str(state)


def _digest(state: str) -> bytes:
    return hashlib.blake2b(state.encode()).digest()


def _write(stream: IO[bytes], message: bytes) -> None:
    stream.write(_SIZE.pack(len(message)))
    stream.write(message)
    stream.flush()


def _read(stream: IO[bytes]) -> bytes:
    size = _SIZE.unpack(_exactly(stream, _SIZE.size))[0]
    return _exactly(stream, size)


def _exactly(stream: IO[bytes], size: int) -> bytes:
    message = stream.read(size)
    if len(message) < size:
        raise EOFError
    return message
