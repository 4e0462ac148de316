"""Sizes and fingerprints of the media of a job."""

import os

import numpy as np
import pytest

from brimful.base.execute import Resources
from brimful.base.fingerprint import fingerprint_bytes
from brimful.base.progress import Progress
from brimful.errors import BadSampleError
from brimful.media import Medium
from brimful.media.job.survey import fingerprint_of_digest, survey_media
from brimful.sources import open_source
from tests.store.pictures import chat, picture, write_pictures

ROWS = [chat("a", "p0.png"), chat("b"), chat("c", "p0.png", picture(3)), chat("d", "p1.png")]


@pytest.fixture
def source(tmp_path):
    write_pictures(tmp_path, range(3))
    return open_source(ROWS, media=True, media_dir=tmp_path)


@pytest.fixture
def read_paths(monkeypatch):
    """Names of the files that are read, in order."""
    paths, real = [], Medium.fingerprint

    def fingerprint(medium):
        if medium.path:
            paths.append(os.path.basename(medium.path))
        return real(medium)

    monkeypatch.setattr(Medium, "fingerprint", fingerprint)
    return paths


def test_every_file_is_read_once(source, read_paths, tmp_path):
    """Five captions of one picture read it once; bytes of the row are known too."""
    survey = survey_media(source, np.ones(4, dtype=bool), cache_dir=tmp_path / "cache")
    assert sorted(read_paths) == ["p0.png", "p1.png"]
    assert survey.offsets.tolist() == [0, 1, 1, 3, 4]
    assert [*map(fingerprint_of_digest, survey.digests.tolist())] == [
        fingerprint_bytes(picture(number)) for number in (0, 0, 3, 1)
    ]
    assert survey.sizes.tolist() == [len(picture(number)) for number in (0, 0, 3, 1)]
    assert survey.is_in_row.tolist() == [False, False, True, False]


def test_only_media_that_are_asked_for(source, read_paths, tmp_path):
    """Samples that are in no pack cost nothing, and may be broken."""
    (tmp_path / "p0.png").unlink()
    survey = survey_media(source, np.array([False, True, False, True]), cache_dir=tmp_path / "cache")
    assert (survey.offsets.tolist(), read_paths) == ([0, 0, 0, 0, 1], ["p1.png"])


def test_a_file_that_nobody_wrote_to_is_not_read_again(source, read_paths, tmp_path):
    """Remembered by size, times and inode; a picture that is written over with equal size and time is read."""
    everything = np.ones(4, dtype=bool)
    first = survey_media(source, everything, cache_dir=tmp_path / "cache")
    read_paths.clear()
    assert survey_media(source, everything, cache_dir=tmp_path / "cache").digests.tolist() == first.digests.tolist()
    assert read_paths == []
    path = tmp_path / "p0.png"
    times = os.stat(path)
    path.write_bytes(bytes(len(picture(0))))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    again = survey_media(source, everything, cache_dir=tmp_path / "cache")
    assert read_paths == ["p0.png"]
    assert fingerprint_of_digest(again.digests[0].tolist()) == fingerprint_bytes(bytes(len(picture(0))))


def test_processes_find_the_same(tmp_path, monkeypatch):
    """The number of processes never changes a byte of the packs."""
    write_pictures(tmp_path, range(3))
    monkeypatch.setattr("brimful.sources.memory.MemoryRows.block_rows", 4, raising=False)
    source = open_source([chat("a", f"p{number % 3}.png") for number in range(24)], media=True, media_dir=tmp_path)
    surveys = [
        survey_media(source, np.ones(24, dtype=bool), cache_dir=tmp_path / str(count), resources=Resources(count))
        for count in (1, 2)
    ]
    assert surveys[0].digests.tolist() == surveys[1].digests.tolist()


def test_a_missing_file_is_named(source, tmp_path):
    """With its row, and not with the path of a worker."""
    (tmp_path / "p1.png").unlink()
    with pytest.raises(BadSampleError, match=r"memory\[3\] \(sample 3\): image 'p1.png': does not exist"):
        survey_media(source, np.ones(4, dtype=bool), cache_dir=tmp_path / "cache")


def test_progress_counts_samples_that_need_nothing_too(tmp_path):
    """Media of blocks that were not asked for are done, and cost nothing."""
    write_pictures(tmp_path, range(2))
    rows = [chat("a", "p0.png"), chat("b", "p1.png")]
    source = open_source(rows, media=True, media_dir=tmp_path)
    for is_wanted, resumed in ((np.array([True, False]), 0), (np.array([False, False]), 2)):
        progress = Progress()
        with progress.stage("plan", total=3, unit="packs"):
            progress.advance(3)
        survey = survey_media(source, is_wanted, cache_dir=tmp_path / "cache", resources=Resources(progress=progress))
        assert len(survey.offsets) == 3
        _, stage = progress.stages
        assert (stage.name, stage.total, stage.done, stage.resumed) == ("media", 2, 2, resumed)


def test_a_digest_and_its_halves():
    assert fingerprint_of_digest([2**64 - 1, 10]) == "f" * 16 + "0" * 15 + "a"
