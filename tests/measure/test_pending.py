"""One process measures what it has done before others would have started."""

from __future__ import annotations

import pytest

from brimful.encode import ChatEncoder, Encoder
from brimful.measure.block_task import BlockContext, BlockTask
from brimful.measure.pending import _is_for_one_process
from brimful.sources import open_source
from brimful.testing.toys import toy_chat_encoder


def is_for_one_process(encoder: Encoder, num_blocks: int, num_bytes: int | None, *, targets: bool = True) -> bool:
    context = BlockContext(open_source([{"text": "a"}]), encoder, ("tokens",), False, False, targets)
    tasks = [BlockTask(10 * index, 10 * index + 10, "", None, num_bytes) for index in range(num_blocks)]
    return _is_for_one_process(context, tasks)


@pytest.mark.parametrize(
    ("template", "num_bytes", "expected"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", 5 << 20, True),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", 7 << 20, False),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", None, True),
        # These are rendered in Python, which keeps one core busy.
        ("{% for m in messages %}{{ m.content | trim }}{% endfor %}", 5 << 20, False),
        ("{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}", 5 << 20, False),
    ],
)
def test_one_process_has_threads_for_some_megabytes(small_qwen, template, num_bytes, expected):
    """Without it short rows wait for processes that are not needed, or slow templates for one core."""
    pytest.importorskip("fastokens", reason="the fast tokenizer comes with brimful[fast]")
    assert is_for_one_process(ChatEncoder(small_qwen, chat_template=template), 4, num_bytes) is expected


@pytest.mark.parametrize(
    ("num_blocks", "targets", "expected"), [(3, True, True), (4, True, False), (12, False, True), (13, False, False)]
)
def test_other_encoders_have_one_process_for_few_blocks(num_blocks, targets, expected):
    """The time that they take is unknown; lengths alone take less than targets."""
    assert is_for_one_process(toy_chat_encoder(), num_blocks, 10, targets=targets) is expected
