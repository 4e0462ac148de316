"""A tokenizer from a directory or the hub, loaded at first use, with the fastest library that gives
its ids.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property, partial
from itertools import chain
from typing import Any, Protocol

import numpy as np

from brimful.base.checks import check_type
from brimful.base.hub import looks_like_hub_id, offline_if_unreachable, offline_snapshot
from brimful.base.optional import optional, version_of
from brimful.base.ragged import offsets_of
from brimful.base.tables import Ragged
from brimful.base.typing import AnyPath, Fingerprint, Int64Array
from brimful.base.wings import FAST_TOKENIZER, TOKENIZER_READER, loaded
from brimful.base.wording import setting
from brimful.encode.token_places import TextSpans, runs_by_bytes, runs_by_counts, runs_by_offsets
from brimful.encode.tokenizer_facts import TokenizerFacts, state_path
from brimful.encode.verdicts import load_verdict, save_verdict
from brimful.errors import BadSampleError, SettingsError, TokenizerNotFoundError
from brimful.sources.sample import Sample


class FastLibrary(Protocol):
    """A library that tokenizes in place of ``tokenizers``, the reference, if it gives its ids.

    ``base.wings.FAST_TOKENIZER`` makes it from the facts of a tokenizer, and from the function that
    gives the reference's ids of texts.
    """

    name: str
    """Name and version, for display."""

    engine_id: str
    """Versions of all that encodes faster than the reference, and of the reference."""

    @property
    def obstacle(self) -> str:
        """The reason why it does not tokenize, such as a text on which it was found to differ;
        empty without one.
        """

    def ids(self, texts: Sequence[str]) -> Ragged:
        """Return the tokens of each text, ``int32``, with no special tokens added."""


class Tokenizer:
    """A ``transformers`` tokenizer by name, or one that the caller already has.

    Pickling by name costs nothing; a worker process loads its own copy.

    Args:
        name_or_tokenizer: a directory, a hub id, or a tokenizer of ``transformers``.
        fast: tokenize with the fast library if it gives the same ids; otherwise with the
            ``tokenizers`` library.
        ask_hub: if false, look for a hub id only in the hub's cache.
    """

    def __init__(
        self, name_or_tokenizer: AnyPath | Any, *, fast: bool = True, ask_hub: bool = True
    ) -> None:
        self.fast = fast
        self._ask_hub = ask_hub
        self._read_backend: Any = None
        self._original: Tokenizer | None = None  # whose loaded libraries a copy uses
        if isinstance(name_or_tokenizer, (str, os.PathLike)):
            self.name: str | None = os.fspath(name_or_tokenizer)
            if not self.name:
                raise SettingsError(
                    f"no tokenizer: name a directory or a hub id with {setting('tokenizer')}"
                )
            self._loaded: Any = None
        else:
            if not callable(getattr(name_or_tokenizer, "get_vocab", None)):
                check_type(
                    "tokenizer",
                    name_or_tokenizer,
                    (),
                    "a directory, a hub id, or a tokenizer of Transformers",
                )
            self.name = None
            self._loaded = name_or_tokenizer

    @classmethod
    def of(cls, tokenizer: Tokenizer | AnyPath | Any) -> Tokenizer:
        """Return a ``Tokenizer`` as it is; make one from a name or a ``transformers`` tokenizer."""
        return tokenizer if isinstance(tokenizer, cls) else cls(tokenizer)

    @property
    def place(self) -> str | None:
        """Absolute path or hub id that finds it from any directory; None for a tokenizer that the
        caller loaded.
        """
        if self.name is not None and os.path.isdir(os.path.expanduser(self.name)):
            return os.path.realpath(os.path.expanduser(self.name))
        return self.name

    @cached_property
    def hf(self) -> Any:
        """The ``transformers`` tokenizer."""
        if self._loaded is not None:
            return self._loaded
        if self._original is not None:
            return self._original.hf
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
            return self._load(
                AutoTokenizer, path, "it is not in the hub's cache", local_files_only=True
            )
        with offline_if_unreachable() as is_reachable:
            explanation = "no directory here, and the hub has no tokenizer of that name"
            if not is_reachable:
                explanation = (
                    "no directory here; the hub cannot be reached, and it is not in the hub's cache"
                )
            return self._load(AutoTokenizer, path, explanation)

    def _load(self, loader: Any, path: str, explanation: str, **options: Any) -> Any:
        try:
            with optional("transformers", "text", f"the tokenizer {self.name}"):
                return loader.from_pretrained(path, **options)
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = str(error).strip().split("\n", 1)[0]
            raise TokenizerNotFoundError(
                f"{setting('tokenizer', self.name)}: {explanation} ({reason})"
            ) from error

    @cached_property
    def facts(self) -> TokenizerFacts:
        """Everything that encoding needs to know; from the cache if an earlier job loaded it from
        the same files.
        """
        directory, hub_id = self._files
        if directory is None:
            return TokenizerFacts.of(self.hf)
        facts = TokenizerFacts.recall(directory, hub_id)
        if facts is None:
            reading = (
                None if hub_id or "hf" in self.__dict__ else loaded(TOKENIZER_READER)(directory)
            )
            facts, self._read_backend = reading or (TokenizerFacts.of(self.hf), None)
            # Another process may have changed the files of a hub id meanwhile.
            if self._files == (directory, hub_id):
                facts.remember(directory, hub_id)
        return facts

    @property
    def state_path(self) -> str:
        """File in the cache with the state that the fast library loads; empty if there is none."""
        directory, hub_id = self._files
        return state_path(directory, hub_id) if directory is not None and self.is_fast else ""

    @property
    def _files(self) -> tuple[str | None, str]:
        """Directory of its files, None if only the hub knows; and the hub id, empty for a directory
        of the caller.
        """
        if self.name is None:
            return None, ""
        path = os.path.expanduser(self.name)
        return (path, "") if os.path.isdir(path) else (offline_snapshot(self.name), self.name)

    @cached_property
    def backend(self) -> Any:
        """The ``tokenizers`` object; None for a tokenizer written in Python."""
        if self._original is not None:
            return self._original.backend
        if self.facts.state is None:
            return None
        # Use the object of Transformers if it was loaded only for this tokenizer: making another
        # takes half a second.
        if self._loaded is None and "hf" in self.__dict__:
            backend = self.hf.backend_tokenizer
        elif self._read_backend is not None:
            backend = self._read_backend
        else:
            from tokenizers import Tokenizer as Backend

            backend = Backend.from_str(self.facts.state)
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = self.facts.splits_special_tokens
        return backend

    @property
    def fingerprint(self) -> Fingerprint:
        """Fingerprint of what turns text into ids: vocabulary, merges, normalizer, added tokens. No
        path, no date.
        """
        return self.facts.fingerprint

    @cached_property
    def reference(self) -> Tokenizer:
        """The same tokenizer with the ``tokenizers`` library alone."""
        copy = Tokenizer(
            self.name if self._loaded is None else self._loaded, fast=False, ask_hub=self._ask_hub
        )
        copy._original, copy.facts = self, self.facts
        return copy

    @property
    def engine(self) -> str:
        """Name and version of the library that tokenizes, and the reason if it is not the fast
        one.
        """
        if self.is_fast:
            return self._fast.name
        library = "tokenizers" if self.facts.state is not None else "transformers"
        reason = self._reason_against_fast
        return f"{library} {version_of(library)}{f' ({reason})' if reason else ''}"

    @property
    def is_fast(self) -> bool:
        """True if the fast library tokenizes: it is installed, takes the tokenizer, and gave the
        reference's ids.
        """
        return self.fast and not self._reason_against_fast

    @property
    def _reason_against_fast(self) -> str:
        """The reason why the fast library does not tokenize; empty if it does, or is not wanted."""
        return self._reason_disabled or (self._fast.obstacle if self.fast else "")

    @cached_property
    def _reason_disabled(self) -> str:
        """The difference from the reference that was found in an earlier job; empty without one."""
        verdict = load_verdict(self.facts.subject(self._fast.engine_id)) if self.fast else None
        return "" if verdict is None else str(verdict["reason"])

    @cached_property
    def _fast(self) -> FastLibrary:
        library: FastLibrary = loaded(FAST_TOKENIZER)(self.facts, self._reference_ids)
        return library

    @property
    def engine_id(self) -> str:
        """Versions of the libraries that encode faster than the reference, and of the reference;
        empty for the reference alone.
        """
        return "" if not self.fast or self._reason_disabled else self._fast.engine_id

    def trusts(self, engine_id: str) -> bool:
        """Return false if these versions were found to differ from the reference."""
        return not engine_id or load_verdict(self.facts.subject(engine_id)) is None

    def disable(self, engine_id: str, reason: str) -> None:
        """Never encode with libraries of these versions for this tokenizer again, nor use what they
        encoded.

        Any of them may be to blame, so none is used after a difference: neither the fast library
        nor counted bytes nor filled templates.
        """
        save_verdict(self.facts.subject(engine_id), {"reason": reason})
        if engine_id == self._fast.engine_id:
            self._reason_disabled = reason

    @staticmethod
    def check(sample: Sample, text: str) -> None:
        """Refuse a sample with a text that no tokenizer takes; raise ``BadSampleError``."""
        if text.isascii():
            return
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            reason = (
                f"holds half of a surrogate pair (U+{ord(text[error.start]):04X}), which is "
                "not a character"
            )
            raise BadSampleError(reason, sample_id=sample.sample_id) from error

    @staticmethod
    def takes(texts: Sequence[str]) -> bool:
        """Return true if ``check`` refuses none of the texts: one check for many."""
        try:
            "".join(texts).encode("utf-8")
        except UnicodeEncodeError:
            return False
        return True

    def tokenize(self, texts: Sequence[str]) -> Ragged:
        """Return the tokens of each text, ``int32``, with no special tokens added; ``check``
        refuses none of them.
        """
        return self._fast.ids(texts) if self.is_fast else self._reference_ids(texts)

    def load(self) -> None:
        """Load the library that tokenizes."""
        self.tokenize(["a"])

    def align(
        self, texts: Sequence[str], spans: TextSpans
    ) -> tuple[Ragged, Int64Array, Int64Array]:
        """Return the tokens of each text, and the run of tokens of each span.

        The reference takes a fifth more time for places of tokens than for tokens alone.

        Returns:
            Tokens; first token of each span, and the token after its last, counted from the first
                token of its text. A token that also holds characters after the end belongs to the
                span, as in Transformers; so do all tokens of a last character that takes several.
        """
        sizes = self.facts.sizes
        if not self.engine_id or sizes is None:
            return self._align_by_reference(texts, spans)
        ids = self.tokenize(texts)
        firsts, lasts, is_aligned = runs_by_bytes(texts, ids, sizes, spans)
        unaligned = np.flatnonzero(~is_aligned)
        if len(unaligned):
            rows, starts, ends = (column[unaligned] for column in spans)
            own_texts, own_rows = np.unique(rows, return_inverse=True)
            _, firsts[unaligned], lasts[unaligned] = self._align_by_reference(
                [texts[row] for row in own_texts.tolist()], TextSpans(own_rows, starts, ends)
            )
        return ids, firsts, lasts

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, with no special tokens added."""
        ids = self.tokenize(texts)
        return [ids.row(index).tolist() for index in range(len(texts))]

    def _align_by_reference(
        self, texts: Sequence[str], spans: TextSpans
    ) -> tuple[Ragged, Int64Array, Int64Array]:
        if self.backend is None:
            ids = self._reference_ids(texts)
            return ids, *runs_by_counts(texts, ids, spans, lambda text: len(self.ids([text])[0]))
        encodings = self.backend.encode_batch(list(texts), add_special_tokens=False)
        ids = _ragged([encoding.ids for encoding in encodings])
        return ids, *runs_by_offsets(texts, ids, spans, encodings)

    def _reference_ids(self, texts: Sequence[str]) -> Ragged:
        if not texts:
            return _ragged([])
        if self.backend is None:
            return _ragged(self.hf(list(texts), add_special_tokens=False)["input_ids"])
        # Without character offsets, which saves a fifth of the time.
        encodings = self.backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return _ragged([encoding.ids for encoding in encodings])

    def decode(self, input_ids: Sequence[int]) -> str:
        """Return the text of tokens, including special tokens."""
        return str(self.hf.decode(list(input_ids), skip_special_tokens=False))

    def __reduce__(self) -> tuple[Any, ...]:
        name_or_tokenizer = self._loaded if self.name is None else self.name
        return partial(Tokenizer, fast=self.fast, ask_hub=self._ask_hub), (name_or_tokenizer,)

    def __repr__(self) -> str:
        return f"Tokenizer({self.name or type(self._loaded).__name__!r})"


def _ragged(rows: Sequence[Sequence[int]]) -> Ragged:
    sizes = [len(row) for row in rows]
    ids = np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=sum(sizes))
    return Ragged(ids, offsets_of(sizes))
