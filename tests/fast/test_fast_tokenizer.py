"""The fast library is used where it gives the tokens of the reference for texts on which tokenizers differ."""

from __future__ import annotations

import pytest

pytest.importorskip("tokenizers", reason="the reference needs the extra brimful[text]")

from brimful.base.fingerprint import fingerprint_of
from brimful.encode.tokenizer import Tokenizer
from brimful.fast import fast_tokenizer
from brimful.fast.fast_tokenizer import RELEASED_VERDICTS, FastTokenizer, hard_texts


def test_released_verdicts_are_about_these_texts(monkeypatch):
    """A job that trusts a verdict compares nothing: with other texts, the verdicts have to be made once more.

    Which characters are of one category depends on the version of Python: of these texts only the characters count."""
    characters = {*"".join(fast_tokenizer._categories())}
    monkeypatch.setattr(fast_tokenizer, "_categories", tuple)
    assert fingerprint_of([*hard_texts(), sorted(characters)]) == "b33d371f2143c65963f4503247d9d129"


def test_released_verdicts_hold(qwen):
    """The comparison that the first job with the tokenizer leaves out."""
    subject = qwen._fast.subject
    if fingerprint_of(subject) not in RELEASED_VERDICTS:
        pytest.skip(f"compared with other versions than those here: {fingerprint_of(subject)} of {subject}")
    tokenizer = Tokenizer(qwen.name)
    fast = tokenizer._fast
    assert isinstance(fast, FastTokenizer)
    assert fast.difference(list(hard_texts())) == ""
