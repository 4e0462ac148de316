"""The fast library is used if it gives the tokens of the reference for texts on which tokenizers differ."""

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


class Panic(BaseException):
    """As Rust's, which is not an ``Exception``."""


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (Panic(), "fails on a hard text (Panic)"),
        (ValueError("no\nmore"), "fails on a hard text (ValueError)"),
        (KeyboardInterrupt(), None),
        (SystemExit(), None),
    ],
)
def test_a_library_that_fails_is_not_used_and_a_job_that_is_stopped_stops(small_qwen, monkeypatch, failure, reason):
    fast = Tokenizer(str(small_qwen))._fast
    assert isinstance(fast, FastTokenizer)

    def fail(texts):
        raise failure

    monkeypatch.setattr(fast, "ids", fail)
    if reason is None:
        with pytest.raises(type(failure)):
            fast.difference(["a"])
    else:
        assert reason in fast.difference(["a"])


def test_a_library_of_other_tokens_is_not_used(small_qwen, monkeypatch):
    """The first text that it splits in another way is named."""
    tokenizer = Tokenizer(str(small_qwen))
    fast = tokenizer._fast
    assert isinstance(fast, FastTokenizer)
    texts = ["a", "b" * 50, "c"]
    assert fast.difference(texts) == ""
    changed = fast.ids([texts[0], texts[2], texts[1]])
    monkeypatch.setattr(fast, "ids", lambda texts: changed)
    assert fast.difference(texts).endswith(f"for {'b' * 40!r}")
