"""Lengths come from the media of now: a picture that is replaced under its name is measured again."""

import io
import json
import os
import shutil
import tarfile

import pytest

from brimful import measure_lengths
from brimful.base.execute import Resources
from brimful.clusters import LengthCache
from brimful.errors import CacheMismatchError
from brimful.measure import LengthTable
from brimful.media import measure as media_measure
from brimful.media.measure import changed_samples
from brimful.sources import open_source
from tests.store.pictures import PictureEncoder, chat, picture, write_pictures

NUM_ROWS = 6


@pytest.fixture
def home(tmp_path):
    write_pictures(tmp_path / "data", range(NUM_ROWS))
    return tmp_path


def source_in(home, count=NUM_ROWS):
    """Rows with a file each, one with a file and bytes, and a text."""
    rows = [chat("ab", f"p{number}.png") for number in range(count - 2)]
    return open_source([*rows, chat("ab", "p0.png", picture(3)), chat("ab")], media=True, media_dir=home / "data")


def measure(home, source=None, **options):
    """Tokens, and how many samples were encoded for them."""
    PictureEncoder.num_encoded = 0
    source = source_in(home) if source is None else source
    table = measure_lengths(source, PictureEncoder(), cache_dir=home / "cache", num_proc=1, **options)
    return table.tokens.tolist(), PictureEncoder.num_encoded


def replace_picture(home, number, size):
    """Another picture under the same name."""
    (home / "data" / f"p{number}.png").write_bytes(picture(number, size=size))


@pytest.mark.parametrize("keep_table", [True, False])
def test_a_picture_replaced_under_its_name_is_measured_again(home, keep_table):
    """From the table in the cache, and from the files of its blocks: the old length would train on placeholders of another picture."""
    before, _ = measure(home)
    assert measure(home) == (before, 0)
    replace_picture(home, 1, size=80)
    if not keep_table:
        for path in (home / "cache" / "lengths").glob("*/*.arrow"):
            path.unlink()
    after, num_encoded = measure(home)
    assert num_encoded == NUM_ROWS, "its block of rows, which is all of them here"
    assert after[1] - before[1] == (1 + 80 % 7) - (1 + 53 % 7)
    assert [*after[:1], *after[2:]] == [*before[:1], *before[2:]]
    assert measure(home) == (after, 0)


@pytest.mark.parametrize("images", [("p1.png", picture(3)), (picture(3), "p1.png"), ("p0.png", "p1.png")])
def test_a_file_is_looked_at_whatever_else_its_row_holds(home, images):
    """Next to bytes, or after another file: the row would keep the length of the picture before."""

    def measured():
        return measure(home, open_source([chat("ab", *images)], media=True, media_dir=home / "data"))

    before, _ = measured()
    assert measured() == (before, 0)
    replace_picture(home, 1, size=80)
    after, num_encoded = measured()
    assert (after[0] - before[0], num_encoded) == ((1 + 80 % 7) - (1 + 53 % 7), 1)


def test_another_picture_of_the_same_size_is_told_by_its_time(home):
    """Its header may say anything; a file of the same size and time is taken for the same."""
    before, _ = measure(home)
    path = home / "data" / "p1.png"
    state = path.stat()
    path.write_bytes(picture(2, size=state.st_size))
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    assert measure(home) == (before, NUM_ROWS)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    assert measure(home) == (before, 0)


def test_a_copy_that_keeps_times_costs_nothing(home):
    """Elsewhere too: as ``cp -p`` and ``rsync -a`` make it."""
    shutil.copytree(home / "data", home / "copy")
    source = open_source([chat("ab", f"p{n}.png") for n in range(4)], media=True, media_dir=home / "data")
    copied = open_source([chat("ab", f"p{n}.png") for n in range(4)], media=True, media_dir=home / "copy")
    tokens, _ = measure(home, source)
    assert measure(home, copied) == (tokens, 0)


def test_equal_rows_of_two_directories_have_their_own_pictures(home):
    """Their block of rows was measured once, and pictures of the second had the lengths of the first."""
    for folder, number in (("one", 1), ("two", 2)):
        write_pictures(home / folder, [0])
        (home / folder / "p0.png").write_bytes(picture(number))
        (home / folder / "rows.jsonl").write_text(json.dumps(chat("ab", "p0.png")) + "\n")
    source = open_source([home / "one/rows.jsonl", home / "two/rows.jsonl"], media=True)
    expected = [len(PictureEncoder().encode(sample)) for sample in source.read(0, 2)]
    assert len(set(expected)) == 2
    assert measure(home, source)[0] == expected


def test_a_picture_that_is_gone_or_comes_is_noticed(home):
    """Its row was there and is rejected now, and the other way round."""
    path = home / "data" / "p2.png"
    before, _ = measure(home, on_bad_sample="skip")
    path.rename(home / "away")
    without, _ = measure(home, on_bad_sample="skip")
    assert (without[2], without[:2]) == (-1, before[:2])
    (home / "away").rename(path)
    assert measure(home, on_bad_sample="skip")[0] == before


def test_appended_rows_are_the_only_ones_measured(home):
    """The states of the rows before are looked at, and their pictures are not opened."""
    whole = [chat("ab", f"p{number}.png") for number in range(NUM_ROWS)]
    few, all_rows = (open_source(whole[:count], media=True, media_dir=home / "data") for count in (3, NUM_ROWS))
    path = home / "lengths.arrow"
    before, _ = measure(home, few, path=path)
    after, num_encoded = measure(home, all_rows, path=path)
    assert (after[:3], num_encoded) == (before, NUM_ROWS - 3)
    replace_picture(home, 5, size=91)
    with pytest.raises(CacheMismatchError, match=r"\(sample 5\) were changed since"):
        measure(home, all_rows, path=path)


def test_a_file_of_lengths_names_the_sample_whose_picture_changed(home):
    """Under each policy of a training: refused by name, measured again into the file, or without it."""
    path = home / "lengths.arrow"
    before, _ = measure(home, path=path)
    cache = LengthCache(path)
    assert cache.lengths(source_in(home), PictureEncoder(), cache_dir=home / "other").tokens.tolist() == before
    replace_picture(home, 1, size=80)
    kept = path.read_bytes()
    with pytest.raises(
        CacheMismatchError,
        match=r"with other media: files of memory\[1\] \(sample 1\) were changed since. Write it with",
    ):
        cache.lengths(source_in(home), PictureEncoder(), cache_dir=home / "other")
    with pytest.warns(UserWarning, match=r"\(sample 1\) were changed since: lengths are measured without it"):
        table = LengthCache(path, on_mismatch="fallback").lengths(
            source_in(home), PictureEncoder(), cache_dir=home / "other"
        )
    assert (table.tokens[1] - before[1], path.read_bytes()) == ((1 + 80 % 7) - (1 + 53 % 7), kept)
    rebuilt = LengthCache(path, on_mismatch="rebuild").lengths(
        source_in(home), PictureEncoder(), cache_dir=home / "other"
    )
    assert rebuilt.tokens.tolist() == table.tokens.tolist() == LengthTable.open(path).tokens.tolist()


def test_members_of_a_tar_are_of_the_tar(home):
    """Written again, its rows are measured again: it is not opened to see which member is another."""

    def write(size):
        with tarfile.open(home / "a.tar", "w") as tar:
            for name, content in (("a.txt", b"One."), ("a.jpg", picture(1, size=size))):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))

    write(60)
    source = open_source(home / "a.tar", media=True, cache_dir=home / "cache")
    before, _ = measure(home, source)
    assert measure(home, source) == (before, 0)
    write(61)
    after, num_encoded = measure(home, open_source(home / "a.tar", media=True, cache_dir=home / "cache"))
    assert (after[0] - before[0], num_encoded) == ((61 % 7) - (60 % 7), 1)


def test_bytes_in_rows_need_no_state(home):
    """They belong to the fingerprint of the rows."""
    source = open_source([chat("ab", picture(1)), chat("ab")], media=True)
    path = home / "lengths.arrow"
    measure(home, source, path=path)
    states = LengthTable.open(path).states
    assert states is not None
    assert states.tolist() == [0, 0]
    other, _ = measure(home, open_source([chat("ab", picture(1, size=54)), chat("ab")], media=True))
    assert other[0] != measure(home, source)[0][0]


def test_runs_of_rows_name_their_first_change(home, monkeypatch):
    """They are compared apart, in all processes; a run without a change is not named."""
    path = home / "lengths.arrow"
    measure(home, path=path)
    states = LengthTable.open(path).states
    assert states is not None
    monkeypatch.setattr(media_measure, "_TASK_ROWS", 3)
    parts = [(0, states[:1]), (1, states[1:])]
    for number in (2, 3):
        replace_picture(home, number, size=91)
    changes = changed_samples(source_in(home), parts, Resources(1))
    assert list(changes) == [(1, 2)]
