"""Tokenizing with ``fastokens``: byte-level BPE, tens of times faster than ``tokenizers``, with the
same ids.

``docs/adr/0005-fast-libraries-are-checked-against-the-reference.md`` says why this library.
``hard_texts`` are the texts on which tokenizers differ, if they differ at all: the fast one is
compared with the reference on them.
"""

import importlib.metadata
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import product
from typing import Any
from weakref import WeakMethod

import numpy as np

from brimful.base.fingerprint import fingerprint_of
from brimful.base.optional import version_of
from brimful.base.tables import Ragged
from brimful.encode.tokenizer import FastLibrary
from brimful.encode.tokenizer_facts import TokenizerFacts
from brimful.encode.verdicts import load_verdict, save_verdict
from brimful.fast.preloading import fast_tokenizer

RELEASED_VERDICTS = {
    "99f3ca8dec726038ba7fabfb7d11569e": "Qwen2.5, fastokens 0.3.5, tokenizers 0.23.3"
}
"""Tokenizers for which the fast library was found equal to the reference at the release, by the
fingerprint of ``FastTokenizer.subject``.
"""

_MARKS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "</s>",
    "<s>",
    "[INST]",
    "<tool_call>",
    "<|eot_id|>",
    "<pad>",
)
"""Added tokens of well-known tokenizers; for others they are plain text."""

_PIECES = ("", " ", "  ", "\n", "a", "1", "é", "漢", "'", ".")

_FRAGMENTS = (
    "'s 'S 't 'RE 'll 'LL don't I'M ſ 'ſ 'K",
    "a'b''c",
    "''''",
    "...?!?!",
    "_foo_bar",
    "fooBar",
    "x=1;y+=2//3",
    "\r\n\r\n",
    "\r\r\n\n",
    "a\r\nb",
    "\t\t x\t",
    " \n \n  \n",
    "\n\n\n a",
    "a \u00a0 b",
    "\u2028\u2029\u0085",
    "\x0b\x0c",
    "\x00",
    "a\x00b\x00\x00",
    "\x7f\x80\x9f",
    "\ufeffa\ufeff",
    "\ufffd\ufffe\uffff",
    "\U0010ffff",
    "👨\u200d👩\u200d👧\u200d👦",
    "👍🏽🇩🇪🏴\U000e0067\U000e0062\U000e007f",
    "1\ufe0f\u20e3",
    "☺\ufe0e☺\ufe0f",
    "e\u0301",
    "\u0301",
    "a\u0301\u0323\u0323b",
    "ǟ\u0323",
    "\u1100\u1161\u11a8",
    "각",
    "\u0958",
    "क्षि",
    "\u0344",
    "Å\u212b",
    "مرحبا بالعالم",
    "\u202eabc\u202c",
    "שלום 123 עולם",
    "ไทยไม่มีช่องว่าง",
    "日本語とEnglishが混在",
    "中文，标点。",
    "한국어 조사",
    "١٢٣٤٥٦",
    "１２３",
    "Ⅻ",
    "½¾",
    "²³",
    "0.1e-10",
    "1,234,567.89",
    "0xDEADBEEF",
    "2024-01-31T12:00:00Z",
    "def f(x):\n    return x  # é\n",
    "\\frac{a}{b}^{2}",
    "<div class='a'>&amp;</div>",
    '{"a": [1, "\\u00e9"]}',
    "https://a.b/c?d=e#f",
    "ﬁ ﬂ ǅ ß ẞ İ ı",
    "\u200b\u200c\u200d\u2060",
    "\xad",
    "K \u212a",
    "①②",
    "𝒜𝓑",
)


def hard_texts() -> Iterator[str]:
    """Yield added tokens inside text, every category of Unicode, runs, line ends, emoji, combining
    marks, NUL, and more.
    """
    yield ""
    yield from _FRAGMENTS
    yield " ".join(_FRAGMENTS)
    yield from map("".join, product(_PIECES, _MARKS, _PIECES))
    yield from map("".join, product(_PIECES, [mark[:-1] for mark in _MARKS], ("", "a")))
    yield from map("".join, product(_MARKS, _MARKS))
    # Long runs of one kind: spaces, digits, letters, punctuation.
    for character in (" ", "\n", "\t", "1", "a", "é", "漢", ".", "-", "\u3000", "\u0301"):
        yield from (
            character * count for count in (2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 64, 129, 1000)
        )
        yield f"x{character * 9}y {character * 4}\n{character * 6}"
    yield from _categories()
    yield "ab" * 500_000  # a megabyte without a space
    yield "0123456789" * 10_000


def _categories() -> Iterator[str]:
    """Yield characters of every category of Unicode, alone and next to letters, spaces, digits and
    apostrophes.
    """
    members: dict[str, list[str]] = {}
    for code in range(0x110000):
        # Every character at the beginning of the first plane, and a share of the others.
        if code < 0x3000 or code % 37 == 0:
            character = chr(code)
            members.setdefault(unicodedata.category(character), []).append(character)
    members.pop("Cs")  # half of a pair is refused before it reaches a tokenizer
    for characters in members.values():
        for start in range(0, len(characters), 16):
            group = characters[start : start + 16]
            yield "".join(group)
            yield " ".join(group)
            yield "".join(f"a{character}1'{character} {character}\n" for character in group)


class FastTokenizer(FastLibrary):
    """A tokenizer of ``fastokens``, loaded when it first tokenizes, in place of ``tokenizers``.

    ``subject`` is what is compared before the first use: the tokenizer with the versions of both
    libraries.
    """

    def __init__(
        self, facts: TokenizerFacts, reference_ids: Callable[[Sequence[str]], Ragged]
    ) -> None:
        # Its tokenizer holds this object, and is freed with its last user, not at a collection.
        self._facts, self._reference_ids = facts, WeakMethod(reference_ids)
        self.name = FastTokenizer.version() or "bytes of tokens"
        versions = f"{self.name}, tokenizers {version_of('tokenizers')}"
        self.engine_id = f"{versions}, templates filled"
        self.subject = facts.subject(versions)

    @staticmethod
    def version() -> str | None:
        """Return name and version of the library; None if it is not installed."""
        try:
            return f"fastokens {version_of('fastokens')}"
        except importlib.metadata.PackageNotFoundError:
            return None

    @cached_property
    def obstacle(self) -> str:
        if self._facts.state is None:
            return "it is written in Python"
        if FastTokenizer.version() is None:
            return "fastokens is not installed: pip install 'brimful[fast]'"
        verdict = load_verdict(self.subject)
        if verdict is None:
            if fingerprint_of(self.subject) in RELEASED_VERDICTS:
                return ""
            verdict = {"reason": self.difference(list(hard_texts()))}
            save_verdict(self.subject, verdict)
        return str(verdict["reason"])

    def difference(self, texts: Sequence[str]) -> str:
        """Return the first text that the libraries tokenize differently, for a message; empty
        without one.
        """
        try:
            _ = self._library
        except ValueError as error:
            return f"fastokens refuses it: {str(error).splitlines()[0]}"
        try:
            ids = self.ids(texts)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic in Rust is not an Exception
            return f"fastokens fails on a hard text ({type(error).__name__})"
        reference_ids = self._reference_ids()
        assert reference_ids is not None
        reference = reference_ids(texts)
        for index, text in enumerate(texts):
            if not np.array_equal(ids.row(index), reference.row(index)):
                return f"fastokens gives other tokens for {text[:40]!r}"
        return ""

    @cached_property
    def _library(self) -> Any:
        assert self._facts.state is not None
        return fast_tokenizer(self._facts.state)

    def ids(self, texts: Sequence[str]) -> Ragged:
        ids, offsets = self._library.encode_batch_flat(
            list(texts),
            add_special_tokens=False,
            split_special_tokens=self._facts.splits_special_tokens,
        )
        return Ragged(np.frombuffer(ids, dtype=np.int32), np.frombuffer(offsets, dtype=np.int64))
