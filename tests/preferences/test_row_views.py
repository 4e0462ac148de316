"""Rows of KTO are two samples: the answer at its label, and the mismatch."""

import pytest

from brimful import open_source
from brimful.base.fingerprint import fingerprint_of
from brimful.errors import BadSampleError, SettingsError
from brimful.preferences.formats import KtoRows
from brimful.sources.memory import MemoryRows
from brimful.sources.rows import Block


def row(number, label=True):
    return {"prompt": f"q{number}", "completion": f"a{number}", "label": label}


def test_an_answer_is_at_its_label():
    source = open_source([row(0), row(1, False), row(2)], format="kto")
    others = [None if sample.completion.borrowed is None else sample.completion.borrowed.messages[-1]["content"] for sample in source.read(0, 6)]  # fmt: skip
    assert others == [None, "a2", "a0", None, None, "a1"]
    assert source.group_size == 2
    assert [source[index] for index in range(6)] == list(source.read(0, 6))


def test_eight_rows_rotate():
    rows = KtoRows(MemoryRows(list(range(19))))
    whole = list(rows.read(0, 38))
    assert [pair.other for pair in whole[::2]] == [7, *range(7), 15, *range(8, 15), 18, 16, 17]
    assert [rows.get(index) for index in range(38)] == whole
    for start in (0, 5, 15, 16, 17, 33):
        assert list(rows.read(start, 37)) == whole[start:37]


class BlocksOfFour(MemoryRows):
    """Rows in blocks of four, as files have blocks of thousands."""

    @property
    def blocks(self):
        texts = list(self.read(0, len(self)))
        return [Block(start, min(start + 4, 10), fingerprint_of(texts[start : start + 4])) for start in (0, 4, 8)]


def test_blocks_depend_on_the_rows_of_their_rotations():
    """Row 3 changes both blocks of its rotation, and row 9 only its own: otherwise lengths of other mismatches are taken."""

    def fingerprints(rows):
        return [block.fingerprint for block in KtoRows(BlocksOfFour(rows)).blocks]

    before = fingerprints(list(range(10)))

    def changed(row):
        after = fingerprints([-1 if number == row else number for number in range(10)])
        return [one != other for one, other in zip(before, after, strict=True)]

    assert before == fingerprints(list(range(10)))
    assert changed(3) == [True, True, False]
    assert changed(9) == [False, False, True]


@pytest.mark.parametrize("label", [1, "true", None])
def test_a_label_is_true_or_false(label):
    with pytest.raises(BadSampleError, match="'label' must be true or false"):
        open_source([row(0, label)], format="kto")[0]


def test_rows_without_an_answer_are_named():
    turns = [{"role": "user", "content": "q"}]
    with pytest.raises(BadSampleError, match="its last turn is not from the assistant"):
        open_source([{"messages": turns, "label": True}], format="messages_kto")[0]
    source = open_source([row(0), {"prompt": "q", "label": True}, row(2)], format="kto")
    with pytest.raises(BadSampleError, match="the row whose answer is its mismatch is malformed: field 'completion'"):
        source[5]


def test_labels_are_not_ignored_in_silence():
    for column in ("label", "kto_tag"):
        with pytest.raises(BadSampleError, match=f"'{column}' says which answers are wanted.*format"):
            open_source([{"instruction": "q", "output": "a", column: False}])[0]
    pairs = {"prompt": "q", "chosen": "a", "rejected": "b"}
    with pytest.raises(SettingsError):
        open_source([row(0), pairs], format="kto", fields={"strange": "a"})
