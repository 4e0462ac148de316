"""Random templates give the texts and tokens of ``apply_chat_template``: filled in, or rendered."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

pytest.importorskip("transformers", reason="templates need the extra brimful[text]")

from brimful.encode import ChatEncoder
from brimful.encode.encoded import EncodedSample
from brimful.encode.jinja_templates import compile_template
from brimful.encode.tokenizer import Tokenizer
from brimful.sources import Sample, Source
from brimful.sources.memory import MemoryRows
from tests.encode.random_templates import TemplateMaker, random_rows
from tests.encode.templates import STYLES, tokenizer_of

NUM_ROWS = 80
ORDINARY = [{"role": "user", "content": "How?"}, {"role": "assistant", "content": "So."}]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.of(tokenizer_of(STYLES["chatml"]))


class _NothingIsMissing:
    """A stand-in for the question whether the template leaves a part out, which is asked elsewhere."""

    first = missing_tool = staticmethod(lambda *_: None)


def template_of(seed: int) -> str:
    """Return a random template that renders an ordinary conversation."""
    maker = TemplateMaker(seed)
    while True:
        source = maker.template()
        with contextlib.suppress(Exception):
            if compile_template(source).render(messages=ORDINARY, tools=None).strip():
                return source


def compare(tokenizer: Tokenizer, seed: int, num_rows: int = NUM_ROWS) -> tuple[int, int]:
    """Return the rows of one random template that were compared, and which of them are filled in."""
    source, rows = template_of(seed), random_rows(seed, num_rows)
    samples = [sample for sample in Source(MemoryRows(rows)).read(0, len(rows)) if isinstance(sample, Sample)]
    assert len(samples) == len(rows)
    encoder = ChatEncoder(tokenizer, chat_template=source, train_on="all")
    encoder.__dict__["_swallowed"] = _NothingIsMissing()
    # A shape is met in the first batch, and asked for together in the second.
    results = [*encoder.encode_batch(samples[: num_rows // 2]), *encoder.encode_batch(samples[num_rows // 2 :])]
    num_compared = 0
    for sample, result in zip(samples, results, strict=True):
        expected = _by_transformers(tokenizer, source, sample)
        if isinstance(result, EncodedSample):
            num_compared += 1
            assert (encoder.render(sample), result.input_ids.tolist()) == expected, (seed, source, sample.messages)
        else:
            assert expected is None, (seed, source, sample.messages, str(result))
    return num_compared, len(encoder._filling.fill_together(samples))


def _by_transformers(tokenizer: Tokenizer, source: str, sample: Sample) -> tuple[str, list[int]] | None:
    options: dict[str, Any] = {"tools": sample.tools, "chat_template": source}
    try:
        text = tokenizer.hf.apply_chat_template(list(sample.messages or ()), tokenize=False, **options)
    except Exception:
        return None
    return text, tokenizer.hf.apply_chat_template(list(sample.messages or ()), return_dict=False, **options)


@pytest.mark.parametrize("first_seed", [0, pytest.param(1_000, marks=pytest.mark.long)])
def test_random_templates_are_those_of_transformers(tokenizer, first_seed, request):
    """Without it a proof with a hole would fill in what a template changes, for one rare text in a million."""
    pytest.importorskip("transformers", minversion="5.23")  # which has no release for Python 3.10
    num_templates = 1_000 if first_seed else 20
    counts = [compare(tokenizer, seed) for seed in range(first_seed, first_seed + num_templates)]
    num_compared, num_filled = map(sum, zip(*counts, strict=True))
    assert num_compared > num_templates * NUM_ROWS // 4
    assert num_filled > num_templates * NUM_ROWS // 50
