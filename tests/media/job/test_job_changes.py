"""Media that change under their rows: one error says how to go on, and that way works."""

import re

import pytest

from brimful import measure_lengths, pack_dataset, plan_packs, write_packs
from brimful.base.progress import Progress
from brimful.errors import BadSampleError, LengthChangedError
from brimful.serve import open_packs
from brimful.sources import open_source
from tests.store.pictures import PictureEncoder, chat, picture, write_pictures

CAPACITY = 64


@pytest.fixture
def home(tmp_path):
    write_pictures(tmp_path / "data", range(3))
    return tmp_path


def source_in(home):
    return open_source([chat("a", f"p{number}.png") for number in range(3)], media=True, media_dir=home / "data")


def pack(home, directory, **options):
    options = {"capacity": CAPACITY, "num_proc": 1, "cache_dir": home / "cache", **options}
    return pack_dataset(source_in(home), PictureEncoder(), home / directory, **options)


def change(home, how):
    path = home / "data" / "p2.png"
    path.unlink() if how == "gone" else path.write_bytes(picture(2, size=43))


class _ChangeAt(Progress):
    """Changes a picture as a stage begins."""

    def __init__(self, home, how, stage):
        super().__init__()
        self._home, self._how, self._stage = home, how, stage

    def _opened(self, record):
        if record.name == self._stage:
            change(self._home, self._how)


@pytest.mark.parametrize("how", ["gone", "larger"])
def test_a_job_measures_media_anew(home, how):
    """Without it the same command fails for ever: rows are as they were, and only name their media."""
    pack(home, "first")
    change(home, how)
    if how == "gone":
        with pytest.raises(BadSampleError, match=r"\(sample 2\): does not exist, looked for at") as caught:
            pack(home, "second")
        assert "measured" not in str(caught.value), "it is the first thing that anybody knows of it"
    assert pack(home, "third", on_bad_sample="skip").table.rejected_ids.tolist() == [2] * (how == "gone")
    if how == "larger":
        (length,) = {
            item.length for one in open_packs(home / "third") for item in one.attachments if "p2" in item.medium.name
        }
        assert length == 1 + 43 % 7


@pytest.mark.parametrize("stage", ["media", "write"])
@pytest.mark.parametrize(
    ("how", "reason"),
    [("gone", "does not exist, looked for at '[^']*'"), ("larger", "was changed while it was packed")],
)
def test_a_picture_that_changes_while_its_job_runs(home, how, reason, stage):
    """One error with the row, the medium and one way out, in whichever stage it is found; and that way works."""
    options = {"media_storage": "bytes", "on_bad_sample": "skip"}
    with pytest.raises(BadSampleError) as caught:
        pack(home, "packs", progress=_ChangeAt(home, how, stage), **options)
    assert re.fullmatch(
        rf"memory\[2\] \(sample 2\): image 'p2.png': {reason}; it could be read when it was measured: bring it back, or run "
        r"the job again, with another directory if this one holds packs already",
        str(caught.value),
    ), str(caught.value)
    pack(home, "other", **options)


def test_lengths_from_elsewhere_are_measured_anew(home):
    """A plan of before does not fit the picture of now; measuring again does, with the cache of before."""
    source = source_in(home)

    def measured():
        return measure_lengths(source, PictureEncoder(), cache_dir=home / "cache", num_proc=1)

    def write(directory, table):
        plan = plan_packs(table, capacity=CAPACITY)
        return write_packs(plan, source, PictureEncoder(), home / directory, cache_dir=home / "cache", num_proc=1)

    before = measured()
    change(home, "larger")
    with pytest.raises(
        LengthChangedError, match=r"If an image or audio file was changed: .* measure again, with another directory"
    ):
        write("packs", before)
    assert write("other", measured()) == 1
