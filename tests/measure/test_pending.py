"""One process measures what it has done before others would have started; shares that are missing are named."""

from __future__ import annotations

import pytest

from brimful.base.blobs import LocalBlobStore
from brimful.base.execute import Execution
from brimful.encode import ChatEncoder, Encoder
from brimful.measure.block_task import BlockContext, BlockTask
from brimful.measure.pending import _is_for_one_process, forget_shares, note_shares, unfinished_shares
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


@pytest.mark.parametrize("note", [b"", b"{", b"\xff", b"[]", b"{}", b'{"folder": 1, "num_tasks": 2, "source": ""}'])
def test_a_damaged_note_of_shares_is_not_read(tmp_path, note):
    """Without it a table that is not there would be a traceback in the place of its message."""
    (tmp_path / "t.arrow.shares.json").write_bytes(note)
    assert unfinished_shares(tmp_path / "t.arrow") is None


@pytest.mark.parametrize(
    ("done", "expected"),
    [
        (
            [],
            "of 3 shares 0, 1, 2 are missing: brimful measure a.jsonl -o {} with the settings of the other shares and ",
        ),
        ([0, 2], "of 3 shares 1 are missing: "),
        ([2, 1, 0], "its shares are done and were not joined: "),
    ],
)
def test_missing_shares_are_named(tmp_path, done, expected):
    """Without it a job array of a cluster waits for a share that no one starts."""
    target, folder = tmp_path / "t.arrow", tmp_path / "shares"
    note_shares(target, folder, Execution(task_index=0, num_tasks=3), "a.jsonl")
    for index in done:
        LocalBlobStore(folder).put_if_absent(f"3/{index}", b"")
    said = unfinished_shares(target)
    assert said is not None
    assert f"{target} is not there yet, {expected.format(target)}" in said
    assert ("without shares" in said) == (len(done) == 3)
    forget_shares(target)
    assert unfinished_shares(target) is None
