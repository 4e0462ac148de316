"""Facts about a tokenizer of Transformers: all that encoding needs, stored so that the library need
not be loaded.

Importing Transformers and making its tokenizer take seconds; the result depends on the files in the
tokenizer's directory and on versions, so from the second job on it comes from the cache.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from brimful.base.atomic_file import atomic_file
from brimful.base.fingerprint import canonical_json, fingerprint_bytes, fingerprint_of
from brimful.base.locks import cache_dir
from brimful.base.optional import fast_json_library, optional, version_of
from brimful.base.plain_files import read_plain
from brimful.base.tables import open_table, write_table
from brimful.base.typing import Fingerprint
from brimful.encode.token_places import TokenBytes
from brimful.errors import BrimfulError

_VERSION = 2
_MAX_FILE_BYTES = 64 << 20
"""Larger files of the directory are weights, not part of a tokenizer."""


@dataclass(frozen=True)
class TokenizerFacts:
    """Properties of a tokenizer that encoding needs.

    Attributes:
        fingerprint: of everything that turns text into ids: vocabulary, merges, normalizer, added
            tokens.
        state: the tokenizer as ``tokenizers`` writes it, without truncation and padding; None if it
            is written in Python.
        splits_special_tokens: true if special tokens in a text are encoded like any other text.
        chat_template: Jinja source; None if it has none.
        special_tokens: texts of the special tokens by their name, as templates see them.
        special_texts: texts of all special tokens.
        bos_id, eos_id: tokens that begin and end a text; None if it has none.
        begins_with_bos: true if it adds BOS automatically.
        aliases_reasoning: true if its Transformers gives reasoning to templates under all of its
            names.
        sizes: bytes of each token of a byte-level vocabulary; None for others.
    """

    fingerprint: Fingerprint
    state: str | None
    splits_special_tokens: bool
    chat_template: str | None
    special_tokens: Mapping[str, str]
    special_texts: tuple[str, ...]
    bos_id: int | None
    eos_id: int | None
    begins_with_bos: bool
    aliases_reasoning: bool
    sizes: TokenBytes | None

    @classmethod
    def of(cls, hf: Any) -> TokenizerFacts:
        """Read the facts from a tokenizer of Transformers."""
        from transformers.utils import chat_template_utils

        backend = getattr(hf, "backend_tokenizer", None) if getattr(hf, "is_fast", False) else None
        splits_special_tokens = bool(getattr(hf, "split_special_tokens", False))
        added_tokens = [token for token in hf.added_tokens_decoder.values() if token.special]
        properties: dict[str, Any] = {
            "splits_special_tokens": splits_special_tokens,
            "chat_template": str(hf.get_chat_template(None, None)) if hf.chat_template else None,
            "special_tokens": {key: str(value) for key, value in hf.special_tokens_map.items()},
            "special_texts": tuple(
                dict.fromkeys(map(str, [*hf.all_special_tokens, *added_tokens]))
            ),
            "bos_id": hf.bos_token_id,
            "eos_id": hf.eos_token_id,
            "begins_with_bos": hf.bos_token_id is not None
            and hf("a")["input_ids"][:1] == [hf.bos_token_id],
            "aliases_reasoning": hasattr(chat_template_utils, "_alias_reasoning_fields"),
        }
        if backend is None:
            options = {"split_special_tokens": splits_special_tokens}
            fingerprint = fingerprint_of(
                [type(hf).__name__, sorted(hf.get_vocab().items()), options]
            )
            return cls(fingerprint, state=None, sizes=None, **properties)
        return cls.from_settings(settings_of(backend), **properties)

    @classmethod
    def from_settings(
        cls, settings: Mapping[str, Any], *, splits_special_tokens: bool, **properties: Any
    ) -> TokenizerFacts:
        """Return the facts of a tokenizer whose ``tokenizer.json`` is known, in the form of
        ``settings_of``.

        Args:
            settings: from ``settings_of``.
            splits_special_tokens, properties: the other attributes.
        """
        options = {"split_special_tokens": splits_special_tokens}
        return cls(
            fingerprint=fingerprint_bytes(_canonical([settings, options])),
            state=_written({"truncation": None, "padding": None, **settings}),
            splits_special_tokens=splits_special_tokens,
            sizes=TokenBytes.of(settings),
            **properties,
        )

    def subject(self, versions: str) -> Any:
        """Return what libraries of these versions are compared on, for ``encode.verdicts``."""
        return ["tokenizer", self.fingerprint, self.splits_special_tokens, versions]

    @classmethod
    def recall(cls, directory: str, hub_id: str = "") -> TokenizerFacts | None:
        """Return the facts that an earlier job stored for the tokenizer in a directory; None
        without any.

        Args:
            directory: directory of its files.
            hub_id: name by which it is loaded from there; empty if it is loaded by directory.
                Transformers checks the two differently.
        """
        folder = _folder(directory, hub_id)
        try:
            table = open_table(folder / "facts.arrow")
            facts = dict(table.description["facts"])
            state = read_plain(folder / "tokenizer.json") if facts["state"] else None
            if state is not None and fingerprint_bytes(state) != facts["state"]:
                return None
            form = facts.pop("form")
            sizes = TokenBytes(table.flat("num_bytes"), form) if len(table) else None
            facts |= {"state": None if state is None else state.decode(), "sizes": sizes}
            return cls(**{**facts, "special_texts": tuple(facts["special_texts"])})
        except (OSError, KeyError, TypeError, ValueError, BrimfulError):
            return None

    def remember(self, directory: str, hub_id: str = "") -> None:
        """Store the facts of the tokenizer in a directory; a cache that cannot be written only
        costs time.
        """
        folder = _folder(directory, hub_id)
        facts = {key: value for key, value in vars(self).items() if key not in ("sizes", "state")}
        state = None if self.state is None else self.state.encode()
        facts |= {
            "state": state and fingerprint_bytes(state),
            "form": self.sizes and self.sizes.form,
        }
        num_bytes = np.zeros(0, dtype=np.int64) if self.sizes is None else self.sizes.num_bytes
        try:
            if state is not None:
                with atomic_file(folder / "tokenizer.json") as file:
                    file.write(state)
            write_table(
                folder / "facts.arrow",
                {"num_bytes": num_bytes},
                {"kind": "tokenizer", "version": _VERSION, "facts": facts},
            )
        except (OSError, BrimfulError):
            return


def _canonical(value: Any) -> bytes:
    """Return ``canonical_json`` of the settings of a tokenizer, faster if a fast library writes the
    same bytes.
    """
    library, model = fast_json_library(), value[0]["model"]
    # The libraries write floats differently, but BPE without dropout has none.
    if library is None or model["type"] != "BPE" or model.get("dropout") is not None:
        return canonical_json(value)
    return bytes(library.dumps(value, option=library.OPT_SORT_KEYS))


def settings_of(backend: Any) -> dict[str, Any]:
    """Return the settings of a ``tokenizers`` object, without truncation and padding: encoding does
    neither.
    """
    library = fast_json_library() or json
    settings: dict[str, Any] = library.loads(backend.to_str())
    del settings["truncation"], settings["padding"]
    return settings


def _written(settings: Mapping[str, Any]) -> str:
    """Return settings of ``tokenizers`` as JSON, with each merge of two tokens as one text if that
    is equivalent.

    Libraries read one text in less time than two: the fast one loads about 0.2 seconds sooner.
    """
    model = settings["model"]
    merges = model.get("merges")
    # A space would split the pair elsewhere, and a line with this beginning is a comment in merges
    # files.
    if not merges or any(
        " " in left or " " in right or left.startswith("#version") for left, right in merges
    ):
        return json.dumps(settings, ensure_ascii=False)
    model = {**model, "merges": [f"{left} {right}" for left, right in merges]}
    settings, library = {**settings, "model": model}, fast_json_library()
    if library is not None:
        return str(library.dumps(settings), "utf-8")
    return json.dumps(settings, ensure_ascii=False, separators=(",", ":"))


def state_path(directory: str, hub_id: str) -> str:
    """Return the file in the cache with the state of the tokenizer in a directory, as ``recall``
    reads it.
    """
    return os.fspath(_folder(directory, hub_id).resolve() / "tokenizer.json")


def _folder(directory: str, hub_id: str) -> Path:
    """Return the folder of the cache for a tokenizer's files and the versions of the libraries that
    read them.
    """
    with optional("transformers", "text", "encoding text"):
        versions = [_VERSION, *(version_of(name) for name in ("transformers", "tokenizers"))]
    contents = [[name, fingerprint_bytes(content)] for name, content in _files(directory)]
    fingerprint = fingerprint_of([versions, contents])
    return (
        cache_dir()
        / "tokenizers"
        / (fingerprint_of([hub_id, fingerprint]) if hub_id else fingerprint)[:16]
    )


def _files(directory: str) -> Iterator[tuple[str, bytes]]:
    """Yield the files that Transformers reads, in the order of their names: not too large, and not
    in other folders.
    """
    for folder in (directory, os.path.join(directory, "additional_chat_templates")):
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
            path = os.path.join(folder, name)
            if os.path.isfile(path) and os.path.getsize(path) <= _MAX_FILE_BYTES:
                with open(path, "rb") as file:
                    yield os.path.relpath(path, directory), file.read()
