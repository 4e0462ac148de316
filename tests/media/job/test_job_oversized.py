"""Samples with media that are longer than a pack are refused by name: they are not cut."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from brimful import LengthTable, open_source, pack_dataset
from brimful.base.attachment import AttachmentStorage
from brimful.errors import OversizedSampleError
from brimful.media.job.media_job import MediaJob
from brimful.plan import PlanSettings
from brimful.testing.toys import toy_chat_encoder
from tests.store.pictures import PictureEncoder, chat, picture

ROWS = [chat("a"), chat("bb", picture(0)), chat("c", picture(1), picture(4)), chat("d" * 9)]
"""3, 10, 10 and 11 tokens: a text of 1 to 9, pictures of 6, 5 and 2 tokens, and an answer of 2."""


def table_of(source):
    encoder = PictureEncoder()
    samples = [encoder.encode(source[index]) for index in range(len(source))]
    columns = {
        "tokens": np.array([len(sample) for sample in samples], dtype=np.int32),
        "patches": np.array(
            [sum(item.num_patches for item in sample.attachments) for sample in samples], dtype=np.int32
        ),
        "images": np.array([len(sample.attachments) for sample in samples], dtype=np.int32),
    }
    return LengthTable(columns)


def check_fit(table, settings, source):
    job: Any = SimpleNamespace(source=source, encoder=PictureEncoder())
    MediaJob(job, AttachmentStorage.BYTES, None).check_fit(table, settings)


def refusal(**settings):
    source = open_source(ROWS, media=True)
    with pytest.raises(OversizedSampleError) as refused:
        check_fit(table_of(source), PlanSettings(**settings), source)
    return str(refused.value)


def test_a_sample_may_be_shorter_than_a_pack():
    """A larger pack would not help it."""
    assert refusal(capacity=20, max_path=8).endswith(
        'and a sample may have 8: samples with media are not cut. Choose overflow="drop", or max_path=10'
    )


def test_the_longest_is_named_with_its_largest_medium():
    """Only samples with media count: the text is a matter of the overflow policy. Of equally long ones the first is named."""
    assert table_of(open_source(ROWS, media=True)).tokens.tolist() == [3, 10, 10, 11]
    assert refusal(capacity=8) == (
        "memory[1] (sample 1) has 10 tokens, 6 of them of its image '', and a pack holds 8: "
        'samples with media are not cut. Choose overflow="drop", or capacity=10'
    )
    assert refusal(capacity=20, budgets={"patches": 23}) == (
        "memory[2] (sample 2) has 28 patches, and a pack holds 23: samples with media are not "
        'cut. Choose overflow="drop", or budgets={"patches": 28}'
    )
    assert refusal(capacity=20, budgets={"patches": 24, "samples": 9}).startswith("memory[2] (sample 2) has 28 patches")


def test_what_fits_or_is_dropped_passes():
    source = open_source(ROWS, media=True)
    table = table_of(source)
    check_fit(table, PlanSettings(capacity=10, budgets={"patches": 28, "images": 2}), source)
    check_fit(table, PlanSettings(capacity=1, overflow="drop"), source)


@pytest.mark.parametrize("row", [chat("bb", "gone.png"), chat("bb")])
def test_a_sample_that_changed_since_is_named_without_its_media(row):
    """Its length is the error to report."""
    table = table_of(open_source(ROWS, media=True))
    changed = open_source([chat("a"), row, *ROWS[2:]], media=True)
    with pytest.raises(OversizedSampleError, match=r"^memory\[1\] \(sample 1\).* has 10 tokens, and a pack holds 9: "):
        check_fit(table, PlanSettings(capacity=9), changed)


def test_a_job_refuses_them_before_it_plans(tmp_path):
    """Where they are dropped and none is left, the longest is named."""
    with pytest.raises(OversizedSampleError, match="samples with media are not cut"):
        pack_dataset(open_source(ROWS, media=True), PictureEncoder(), tmp_path / "a", capacity=9)
    with pytest.raises(OversizedSampleError) as refused:
        pack_dataset(
            open_source(ROWS[1:3], media=True),
            PictureEncoder(),
            tmp_path / "b",
            PlanSettings(capacity=9, overflow="drop"),
        )
    assert str(refused.value) == (
        "no sample is left to pack: 2 were dropped; the longest is memory[0] (sample 0) with 10 tokens. Choose a larger capacity"
    )
    with pytest.raises(OversizedSampleError) as refused:
        pack_dataset(
            open_source([ROWS[0], ROWS[3]]),
            toy_chat_encoder(),
            tmp_path / "c",
            PlanSettings(capacity=2, overflow="drop"),
        )
    assert str(refused.value) == (
        "no sample is left to pack: 2 were dropped; the longest is memory[1] (sample 1) with 28 tokens. Choose "
        'overflow="split", a larger capacity'
    )
