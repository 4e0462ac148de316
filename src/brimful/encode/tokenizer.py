"""A tokenizer from a directory or the hub, loaded when it is first used, its fingerprint, and the texts it aligns."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from brimful.checks import check_type
from brimful.errors import BadSampleError, SettingsError, TokenizerNotFoundError
from brimful.fingerprint import fingerprint_of
from brimful.hub import looks_like_hub_id, offline_if_unreachable
from brimful.messages import setting
from brimful.optional import optional
from brimful.sources.sample import Sample
from brimful.typing import Fingerprint


@dataclass(frozen=True, slots=True)
class AlignedText:
    """A text and its tokens, of which each character can be looked up.

    Attributes:
        text: the characters.
        ids: token ids of the text.
        encoding: of ``tokenizers``, with its offsets; None for a tokenizer written in Python, which has none. Then the
            tokens of a prefix are counted.
        count_tokens: number of tokens of any text.
    """

    text: str
    ids: Sequence[int]
    encoding: Any | None
    count_tokens: Callable[[str], int]

    def first_token(self, position: int) -> int:
        """Return the index of the first token that holds the character at ``position`` or one behind it."""
        if self.encoding is None:
            return min(self.count_tokens(self.text[:position]), len(self.ids))
        for character in range(position, len(self.text)):
            token = self.encoding.char_to_token(character)
            if token is not None:
                return int(token)
        return len(self.ids)

    def token_run(self, start: int, end: int) -> tuple[int, int]:
        """Return the run of tokens ``[first, last)`` that hold the characters ``[start, end)``.

        A token that also holds characters behind the end belongs to the run, as in Transformers; so do all tokens of a
        last character that takes several.
        """
        first, last = self.first_token(start), self.first_token(end)
        if self.encoding is not None:
            # Backwards, because characters such as normalised blanks have no token of their own.
            for position in range(end - 1, start - 1, -1):
                token = self.encoding.char_to_token(position)
                if token is not None:
                    return first, max(last, int(token) + 1)
        return first, last


class Tokenizer:
    """A ``transformers`` tokenizer by name, or one that the caller already has.

    Pickling by name costs nothing; a worker process loads its own copy.
    """

    def __init__(self, name_or_tokenizer: str | os.PathLike[str] | Any, *, ask_hub: bool = True) -> None:
        """Take a name or a tokenizer; without ``ask_hub`` a hub id is looked up in the hub's cache alone."""
        self._ask_hub = ask_hub
        if isinstance(name_or_tokenizer, (str, os.PathLike)):
            self.name: str | None = os.fspath(name_or_tokenizer)
            if not self.name:
                raise SettingsError(f"no tokenizer: name a directory or a hub id with {setting('tokenizer')}")
            self._loaded: Any = None
        else:
            if not callable(getattr(name_or_tokenizer, "get_vocab", None)):
                check_type("tokenizer", name_or_tokenizer, (), "a directory, a hub id, or a tokenizer of Transformers")
            self.name = None
            self._loaded = name_or_tokenizer

    @classmethod
    def of(cls, tokenizer: Tokenizer | str | os.PathLike[str] | Any) -> Tokenizer:
        """Return a ``Tokenizer`` as it is; make one of a name or of a tokenizer of ``transformers``."""
        return tokenizer if isinstance(tokenizer, cls) else cls(tokenizer)

    @property
    def place(self) -> str | None:
        """Absolute path or hub id that finds it from any directory; None for a tokenizer that the caller loaded."""
        if self.name is not None and os.path.isdir(os.path.expanduser(self.name)):
            return os.path.realpath(os.path.expanduser(self.name))
        return self.name

    @cached_property
    def hf(self) -> Any:
        """The ``transformers`` tokenizer."""
        if self._loaded is not None:
            return self._loaded
        assert self.name is not None
        with optional("transformers", "text", "encoding text"):
            from transformers import AutoTokenizer
        path = os.path.expanduser(self.name)
        # A directory wins over a hub id of the same name, as in Transformers.
        if os.path.isdir(path):
            return self._load(AutoTokenizer, path, "no tokenizer can be loaded from it")
        if not looks_like_hub_id(self.name) or os.path.exists(path):
            raise TokenizerNotFoundError(f"{setting('tokenizer', self.name)}: no such directory")
        if not self._ask_hub:
            return self._load(AutoTokenizer, path, "it is not in the hub's cache", local_files_only=True)
        with offline_if_unreachable() as is_reachable:
            explanation = "no directory here, and the hub has no tokenizer of that name"
            if not is_reachable:
                explanation = "no directory here; the hub cannot be reached, and it is not in the hub's cache"
            return self._load(AutoTokenizer, path, explanation)

    def _load(self, loader: Any, path: str, explanation: str, **options: Any) -> Any:
        try:
            return loader.from_pretrained(path, **options)
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = str(error).strip().split("\n", 1)[0]
            raise TokenizerNotFoundError(f"{setting('tokenizer', self.name)}: {explanation} ({reason})") from error

    @cached_property
    def backend(self) -> Any:
        """The ``tokenizers`` object inside, or None for a tokenizer written in Python."""
        return getattr(self.hf, "backend_tokenizer", None) if getattr(self.hf, "is_fast", False) else None

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """Fingerprint of all that turns text into ids: vocabulary, merges, normaliser, added tokens. No path, no date."""
        options = {"split_special_tokens": self._splits_special_tokens}
        if self.backend is not None:
            state = json.loads(self.backend.to_str())
            # Left over from earlier uses of the tokenizer; here they are off (``_plain_backend``).
            del state["truncation"], state["padding"]
            return fingerprint_of([state, options])
        vocabulary = sorted(self.hf.get_vocab().items())
        return fingerprint_of([type(self.hf).__name__, vocabulary, options])

    @property
    def _splits_special_tokens(self) -> bool:
        return bool(getattr(self.hf, "split_special_tokens", False))

    @staticmethod
    def check(sample: Sample, text: str) -> None:
        """Refuse a sample with a text that no tokenizer takes; raise ``BadSampleError``."""
        if text.isascii():
            return
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            reason = f"holds half of a surrogate pair (U+{ord(text[error.start]):04X}), which is no character"
            raise BadSampleError(reason, sample_id=sample.sample_id) from error

    @property
    def special_texts(self) -> list[str]:
        """Texts of the special tokens."""
        added_tokens = [token for token in self.hf.added_tokens_decoder.values() if token.special]
        return [str(token) for token in [*self.hf.all_special_tokens, *added_tokens]]

    def _plain_backend(self) -> Any:
        """Return the backend, set to neither cut nor pad and to treat special tokens as ``transformers`` would."""
        backend = self.backend
        assert backend is not None
        # Nothing is set that is right already: a setter fails ("Already borrowed") while another thread encodes.
        if backend.truncation is not None or backend.padding is not None:
            backend.no_truncation()
            backend.no_padding()
        if backend.encode_special_tokens != self._splits_special_tokens:
            backend.encode_special_tokens = self._splits_special_tokens
        return backend

    def align(self, texts: Sequence[str]) -> list[AlignedText]:
        """Tokenise each text without special tokens, and find the tokens of its characters."""
        if self.backend is None:
            rows = zip(texts, self.ids(texts), strict=True)
            return [AlignedText(text, ids, None, self._count) for text, ids in rows]
        encodings = self._plain_backend().encode_batch(list(texts), add_special_tokens=False)
        pairs = zip(texts, encodings, strict=True)
        return [AlignedText(text, encoding.ids, encoding, self._count) for text, encoding in pairs]

    def _count(self, text: str) -> int:
        return self.counts([text])[0]

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, with no special tokens added."""
        if self.backend is not None:
            return [encoding.ids for encoding in self._without_offsets(texts)]
        if not texts:
            return []
        result: list[list[int]] = self.hf(list(texts), add_special_tokens=False)["input_ids"]
        return result

    def counts(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text."""
        if self.backend is not None:
            return [len(encoding) for encoding in self._without_offsets(texts)]
        return [len(ids) for ids in self.ids(texts)]

    def _without_offsets(self, texts: Sequence[str]) -> list[Any]:
        """Return the ``tokenizers.Encoding`` of each text without character offsets, which saves a fifth of the time."""
        return list(self._plain_backend().encode_batch_fast(list(texts), add_special_tokens=False))

    def decode(self, input_ids: Sequence[int]) -> str:
        """Return the text of tokens, special ones included."""
        return str(self.hf.decode(list(input_ids), skip_special_tokens=False))

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokenizer, (self.name if self.name is not None else self._loaded,)

    def __repr__(self) -> str:
        return f"Tokenizer({self.name or type(self._loaded).__name__!r})"
