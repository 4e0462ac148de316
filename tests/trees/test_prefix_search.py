"""Prefixes of a source: the ones of all its tokens at once, whatever is read at a time, killed or kept."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful import LengthTable, measure_lengths, pack_dataset
from brimful.base.execute import Execution
from brimful.base.ragged import offsets_of
from brimful.base.tables import write_table
from brimful.clusters import LengthCache
from brimful.errors import CacheMismatchError, SettingsError, UnfinishedSharesError
from brimful.measure import join_tables
from brimful.measure.job import measure_and_keep
from brimful.measure.measure_settings import MeasureSettings
from brimful.sources import line_index, open_source
from brimful.testing.toys import toy_chat_encoder
from brimful.trees import prefix_search
from brimful.trees.prefixes import Prefixes, find_prefixes, prefixes_of
from tests.measure.encoders import Letters, Silent
from tests.store.pictures import PictureEncoder, chat, picture, write_pictures

TEXTS = ["abcx", "abcy", "q", "zzz", "abcxy", "zzz", "abd", "w"]
"""Trees with three letters in common: abcx, abcy and abcxy; zzz twice."""


@pytest.fixture(autouse=True)
def _two_rows_a_block(monkeypatch):
    monkeypatch.setattr(line_index, "BLOCK_ROWS", 2)


@pytest.fixture
def source(put):
    return open_source(put("data.jsonl", _jsonl(TEXTS)))


def _jsonl(texts: list[str]) -> str:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts)


def _measure(source: Any, encoder: Any = None, **options: Any) -> LengthTable:
    options = {"share": "prefixes", "least_shared": 3, "num_proc": 1, **options}
    return measure_lengths(source, encoder or Letters(), **options)


def _lists(found: Prefixes) -> tuple[list[int], list[int]]:
    return found.order.tolist(), found.shared.tolist()


def _at_once(texts: list[str], **options: Any) -> tuple[list[int], list[int]]:
    keys = np.array([ord(letter) for text in texts for letter in text], dtype=np.int32)
    return _lists(find_prefixes(keys, offsets_of([*map(len, texts)]), **options))


def test_prefixes_are_measured_with_the_lengths(source, tmp_path):
    """Without it a plan of a data set could share nothing."""
    table = _measure(source, path=tmp_path / "lengths.arrow")
    assert _lists(prefixes_of(table)) == ([0, 4, 1, 2, 3, 5, 6, 7], [0, 4, 3, 0, 0, 3, 0, 0])
    again = LengthTable.open(tmp_path / "lengths.arrow")
    assert (_lists(prefixes_of(again)), again.fingerprint) == (_lists(prefixes_of(table)), table.fingerprint)
    assert table.provenance["sharing"] == {"share": "prefixes", "least_shared": 3, "share_within": "all"}


@given(
    texts=st.lists(st.text("ab", min_size=1, max_size=9), min_size=1, max_size=20),
    least=st.integers(1, 4),
    groups=st.none() | st.lists(st.integers(-1, 1), min_size=20, max_size=20),
    window=st.sampled_from([1, 30, 1 << 20]),
)
def test_windows_find_what_is_found_at_once(texts, least, groups, window, tmp_path_factory):
    """Without it a large data set would share other tokens than a small one, or ones that differ."""
    groups = groups and groups[: len(texts)]
    home = tmp_path_factory.mktemp("windows")
    (home / "data.jsonl").write_text(_jsonl(texts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefix_search, "_WINDOW_TOKENS", window)
        table = _measure(
            open_source(home / "data.jsonl", cache_dir=home),
            least_shared=least,
            share_within="all" if groups is None else groups,
            cache_dir=home,
        )
    order, shared = _lists(prefixes_of(table))
    expected_order, expected = _at_once(texts, least=least, groups=groups)
    trees = {text[:least] for text in texts}
    if max(sum(len(text) for text in texts if text.startswith(tree)) for tree in trees) <= window:
        assert (order, shared) == (expected_order, expected)
    # A tree that is cut shares nothing across the cut, and what it shares is true.
    assert sorted(order) == list(range(len(texts)))
    assert sum(shared) <= sum(expected)
    for before, after, length in zip(order, order[1:], shared[1:], strict=False):
        assert texts[before][:length] == texts[after][:length]
        assert len(texts[after][:length]) == length
        assert not length or groups is None or groups[before] == groups[after] >= 0


@pytest.mark.parametrize("most", [1, 2, 3])
@pytest.mark.parametrize("window", [1, 6, 20, 60])
@pytest.mark.parametrize("seed", range(20))
def test_windows_hold_whole_trees_and_are_bounded(most, window, seed):
    """Without it a window of all samples would take all memory, or samples that share would never meet."""
    draw = np.random.default_rng(seed)
    count = int(draw.integers(0, 25))
    # Hashes of ever longer heads: equal ones of fewer samples, and 0 for a sample that is too short.
    digits = draw.integers(seed % 2, most + 1, (3, count))
    is_long = np.logical_and.accumulate(digits > 0)
    heads = [np.where(is_long[n], digits[: n + 1].T @ 4 ** np.arange(n + 1), 0) for n in range(3)]
    tokens = draw.integers(1, 9, count).astype(np.int32)
    sample_ids = np.flatnonzero(draw.integers(0, 4, count))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefix_search, "_WINDOW_TOKENS", window)
        windows = list(prefix_search._windows(sample_ids, heads, tokens))
    assert sorted(sample_id for ids in windows for sample_id in ids) == sample_ids.tolist()
    assert all((np.diff(ids) > 0).all() for ids in windows)
    # A tree that does not fit and has no branches ends with the sample that reaches the bound.
    sizes = [int(tokens[ids].sum()) for ids in windows]
    assert all(size - tokens[ids].max() <= window for size, ids in zip(sizes, windows, strict=True))
    place = {sample_id: number for number, ids in enumerate(windows) for sample_id in ids.tolist()}
    fits = []
    for column in heads:
        for head in set(column[sample_ids].tolist()) - {0}:
            tree = sample_ids[column[sample_ids] == head]
            fits.append(tokens[tree].sum() <= window)
            assert len({place[sample_id] for sample_id in tree.tolist()}) == 1 or not fits[-1]
    if all(fits) and tokens.max(initial=0) <= window:
        # As many trees as fit, near each other in the data.
        assert all(sum(pair) > window for pair in pairwise(sizes))
        assert [int(ids[0]) for ids in windows] == sorted(int(ids[0]) for ids in windows)


def test_a_tree_larger_than_a_window_is_cut_between_its_branches(put, monkeypatch):
    """A system prompt makes one tree of all samples: turns of a dialogue and shuffled copies still share."""
    monkeypatch.setattr(prefix_search, "_LONG", 6)
    texts = ["sssabcd", "sssklmn", "sssabcde", "sssk", "sssabcdef", "sssklm"]
    monkeypatch.setattr(prefix_search, "_WINDOW_TOKENS", 24)
    found = prefixes_of(_measure(open_source(put("data.jsonl", _jsonl(texts)))))
    assert _lists(found) == ([0, 2, 4, 3, 5, 1], [0, 7, 8, 0, 4, 6])


def test_a_killed_job_continues_after_its_last_window(source, monkeypatch):
    """Without it the last of a thousand windows would be a reason to read all of them again."""
    monkeypatch.setattr(prefix_search, "_WINDOW_TOKENS", 13)
    table = measure_lengths(source, Letters())
    broken = Letters()
    write, done = write_table, []

    def killed(*arguments: Any) -> None:
        if done:
            raise KeyboardInterrupt
        done.append(write(*arguments))

    with monkeypatch.context() as patch:
        patch.setattr("brimful.trees.prefix_search.write_table", killed)
        with pytest.raises(KeyboardInterrupt):
            _measure(source, broken)
    assert broken.seen == [*TEXTS, *(TEXTS[index] for index in (0, 1, 4)), *(TEXTS[index] for index in (3, 5))]
    resumed = Letters()
    found = prefixes_of(_measure(source, resumed))
    assert resumed.seen == ["zzz", "zzz"]
    assert _lists(found) == _at_once(TEXTS, least=3)
    assert table.sharing is None


@pytest.mark.parametrize("damage", ["cut", "other bytes"])
def test_a_damaged_window_is_compared_again(source, tmp_path, damage):
    """Without it half a file would be a forest."""
    _measure(source, cache_dir=tmp_path)
    (path,) = tmp_path.glob("lengths/*/prefixes/*/*.arrow")
    (table,) = tmp_path.glob("lengths/*/*.arrow")
    data = path.read_bytes()
    table.unlink()
    path.write_bytes(
        data[: len(data) // 2] if damage == "cut" else data.replace(b"\x04\x00\x00\x00\x03", b"\x09\0\0\0\3")
    )
    encoder = Letters()
    assert _lists(prefixes_of(_measure(source, encoder, cache_dir=tmp_path))) == _at_once(TEXTS, least=3)
    assert sorted(encoder.seen) == sorted(TEXTS[index] for index in (0, 1, 3, 4, 5))


def test_a_second_run_asks_for_nothing(source, tmp_path):
    """From the table, and for another table from the files of blocks and windows."""
    first = _measure(source)
    for path in (None, tmp_path / "other.arrow"):
        second = _measure(source, Silent(), path=path)
        assert (_lists(prefixes_of(second)), second.fingerprint) == (_lists(prefixes_of(first)), first.fingerprint)


@pytest.mark.parametrize("named", [True, False])
def test_appended_rows_share_with_earlier_ones(source, put, tmp_path, named):
    """Only they are measured; the tokens of candidates are read again."""
    path = tmp_path / "lengths.arrow" if named else None
    _measure(source, path=path)
    encoder, texts = Letters(), [*TEXTS, "abcz", "v"]
    found = prefixes_of(_measure(open_source(put("data.jsonl", _jsonl(texts))), encoder, path=path))
    assert _lists(found) == _at_once(texts, least=3)
    assert encoder.seen == ["abcz", "v", *(texts[index] for index in (0, 1, 3, 4, 5, 8))]


def test_measuring_without_is_as_before(source, tmp_path):
    """Files and their bytes: no data set is measured again because of this."""

    def files() -> dict[str, bytes]:
        paths = [path for path in tmp_path.glob("lengths/**/*") if path.is_file()]
        return {os.fspath(path.relative_to(tmp_path)): path.read_bytes() for path in paths}

    table = measure_lengths(source, Letters(), cache_dir=tmp_path)
    before = files()
    assert {Path(name).parts[1] for name in before} == {"04d29eb1958a3e0e"}
    _measure(source, cache_dir=tmp_path)
    assert before.items() < files().items()
    assert (table.sharing, "sharing" in table.provenance) == (None, False)
    assert measure_lengths(source, Silent(), cache_dir=tmp_path).sharing is None


def test_a_table_with_other_prefixes_is_not_taken(source, tmp_path):
    """Without it a plan would share what its settings forbid, or a flat one get another fingerprint."""
    path = tmp_path / "lengths.arrow"
    _measure(source, path=path)
    for options, names in (
        ({"least_shared": 2}, "least_shared"),
        ({"share_within": "row"}, "share_within"),
        ({"share_within": [0] * 8}, "share_within"),
        ({"share": "none"}, "least_shared, share, share_within"),
    ):
        with pytest.raises(CacheMismatchError, match=rf"these parts differ: {names}\. Choose"):
            _measure(source, path=path, **options)


def test_answers_of_one_conversation_share(tmp_path):
    """Conversations have different numbers of answers."""
    turns = [{"role": role, "content": "ab"} for role in ("user", "assistant") * 3]
    rows = [{"messages": turns}, {"messages": turns[:2]}, {"messages": turns[:4]}]
    source = open_source(rows, cache_dir=tmp_path, per_turn=True)
    found = prefixes_of(_measure(source, toy_chat_encoder(), share_within="row"))
    trees = np.split(found.order, np.flatnonzero(found.shared == 0)[1:])
    assert [tree.tolist() for tree in trees] == [[0, 1, 2], [3], [4, 5]]


def test_samples_of_one_row_share(tmp_path):
    """Pairs of a preference share their prompt, and no other pair's."""
    rows = [{"prompt": "abcdef", "chosen": answer, "rejected": "no"} for answer in ("yes", "yea")]
    source = open_source(rows, cache_dir=tmp_path)
    within, everywhere = (
        prefixes_of(_measure(source, toy_chat_encoder(), share_within=which, least_shared=6))
        for which in ("row", "all")
    )
    assert within.order.reshape(2, 2).max(axis=1).tolist() == [1, 3]
    assert np.flatnonzero(within.shared).tolist() == [1, 3]
    assert np.flatnonzero(everywhere.shared).tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": "suffixes"}, "share 'suffixes' is unknown: use one of none, prefixes"),
        ({"least_shared": 0}, "least_shared must be a whole number of at least 1 and is 0"),
        (
            {"share_within": "rows"},
            'share_within="rows" is unknown: use all, row, or in Python a number for each sample',
        ),
        (
            {"share_within": [1, 2]},
            "share_within must be all, row, or a whole number for each of the 8 samples, and is int64 of shape (2,)",
        ),
    ],
)
def test_what_can_not_be_shared(source, options, message):
    """Without it a slip would share nothing, in silence."""
    with pytest.raises(SettingsError) as caught:
        _measure(source, **options)
    assert str(caught.value) == message


def test_kept_tokens_are_not_encoded_again(source, tmp_path):
    """Without it packing would tokenise many samples twice."""
    encoder = Letters()
    settings = MeasureSettings(share="prefixes", least_shared=3, num_proc=1)
    table, stored = measure_and_keep(source, encoder, settings, tmp_path / "encoded")
    assert encoder.seen == TEXTS
    assert stored is not None
    assert _lists(prefixes_of(table)) == _at_once(TEXTS, least=3)


def test_processes_find_the_same(source, tmp_path, monkeypatch):
    """Without it a plan would depend on the machine it was measured on."""
    monkeypatch.setattr(prefix_search, "_WINDOW_TOKENS", 13)
    tables = [_measure(source, toy_chat_encoder(), num_proc=n, cache_dir=tmp_path / f"{n}") for n in (1, 2)]
    assert tables[0].fingerprint == tables[1].fingerprint
    assert _lists(prefixes_of(tables[0])) == _at_once(TEXTS, least=3)


def test_shares_of_a_job_find_them_once(source, tmp_path):
    """Without it samples of two shares would share nothing."""
    path = tmp_path / "lengths.arrow"
    with pytest.raises(UnfinishedSharesError):
        _measure(source, path=path, execution=Execution(task_index=0, num_tasks=2))
    table = _measure(source, path=path, execution=Execution(task_index=1, num_tasks=2))
    assert _lists(prefixes_of(table)) == _at_once(TEXTS, least=3)


def test_joined_tables_keep_their_trees(put):
    """Without it the trees of a data set would be lost when another joins it."""
    halves = [TEXTS[:5], TEXTS[5:]]
    sources = [open_source(put(f"{number}.jsonl", _jsonl(half))) for number, half in enumerate(halves)]
    tables = [_measure(source) for source in sources]
    assert _lists(prefixes_of(join_tables(tables))) == ([0, 4, 1, 2, 3, 5, 6, 7], [0, 4, 3, 0, 0, 0, 0, 0])
    with pytest.raises(CacheMismatchError, match="these parts differ: least_shared, share, share_within, share"):
        join_tables([tables[0], measure_lengths(sources[1], Letters())])


def test_a_missing_length_cache_names_the_command_that_shares(source, tmp_path):
    """Without it the command writes a table that the same training refuses again."""
    cache = LengthCache(tmp_path / "lengths.arrow")
    with pytest.raises(CacheMismatchError, match="share='prefixes', least_shared=3, share_within='all'"):
        cache.lengths(source, toy_chat_encoder(), share="prefixes", least_shared=3)
    with pytest.raises(CacheMismatchError) as caught:
        cache.lengths(source, toy_chat_encoder())
    assert "share" not in str(caught.value)


@pytest.fixture
def pictures(tmp_path):
    write_pictures(tmp_path / "data", range(4))
    write_pictures(tmp_path / "data", [3], name="same as p{}.png")
    return tmp_path


def _of_pictures(home: Path, rows: list[Any], **options: Any) -> LengthTable:
    source = open_source(rows, media=True, media_dir=home / "data")
    return _measure(source, PictureEncoder(), cache_dir=home / "cache", **options)


def test_pictures_are_shared_by_content(pictures):
    """Without it an answer would be trained on the picture of another question."""
    # Pictures 0 and 7 take the same number of tokens.
    other = picture(0)[::-1]
    rows = [chat("abc", "p0.png"), chat("abd", "p0.png"), chat("abc", "p1.png"), chat("abc", other)]
    rows += [chat("abe", picture(0)), chat("abf", picture(0)), chat("abc"), chat("abc", "p0.png", other)]
    length = 1 + len(picture(0)) % 7
    found = prefixes_of(_of_pictures(pictures, rows, least_shared=length))
    # Rows 0 and 1 name one file, 4 and 5 bring equal bytes; row 7 has another second picture.
    trees = np.split(found.order, np.flatnonzero(found.shared == 0)[1:])
    assert sorted(sorted(tree.tolist()) for tree in trees) == [[0, 1, 7], [2], [3], [4, 5], [6]]
    # No branch cuts a picture in two: picture and two letters, or the picture alone.
    assert sorted(found.shared[found.shared > 0].tolist()) == [length, length + 2, length + 2]
    assert {name: sorted(column.tolist())[-4:] for name, column in found.amounts.items()} == {
        "patches": [0, 4 * length, 4 * length, 4 * length],
        "images": [0, 1, 1, 1],
    }


@pytest.mark.parametrize("kept", [False, True])
def test_pictures_of_equal_rows_in_two_directories_differ(tmp_path, kept):
    """Their block of rows is measured once, for both: size and time of a file may be equal, its place is not."""
    for number, folder in enumerate(("one", "two")):
        write_pictures(tmp_path / folder, [0])
        path = tmp_path / folder / "p0.png"
        path.write_bytes(picture(number, size=80))
        os.utime(path, ns=(0, 0))
        (tmp_path / folder / "rows.jsonl").write_text(
            "".join(json.dumps(chat(t, "p0.png")) + "\n" for t in ("ab", "ac"))
        )
    source = open_source([tmp_path / "one/rows.jsonl", tmp_path / "two/rows.jsonl"], media=True)
    settings = MeasureSettings(share="prefixes", least_shared=3, num_proc=1, cache_dir=tmp_path / "cache")
    table, _ = measure_and_keep(source, PictureEncoder(), settings, tmp_path / "encoded" if kept else None)
    trees = np.split(prefixes_of(table).order, np.flatnonzero(prefixes_of(table).shared == 0)[1:])
    assert [tree.tolist() for tree in trees] == [[0, 1], [2, 3]]


def test_a_picture_that_was_replaced_is_compared_again(pictures):
    """Without it an old forest would stay when its pictures have changed."""
    rows = [chat("ab", "p0.png"), chat("ab", "p0.png"), chat("ab", "p3.png"), chat("ab", "same as p3.png")]
    first = prefixes_of(_of_pictures(pictures, rows))
    assert (first.shared > 0).tolist() == [False, True, False, False]
    path = pictures / "data" / "p0.png"
    path.write_bytes(picture(1))
    second = prefixes_of(_of_pictures(pictures, rows))
    assert second.shared[1] - first.shared[1] == len(picture(1)) % 7 - len(picture(0)) % 7


def test_packing_measures_prefixes(source, tmp_path):
    """Without it the plan of a job could share nothing."""
    options: dict[str, Any] = {"capacity": 16, "num_proc": 1, "least_shared": 3, "no_target": "keep"}
    for name, share in (("flat", "none"), ("trees", "prefixes")):
        pack_dataset(source, toy_chat_encoder(), tmp_path / name, share=share, **options)
    assert LengthTable.open(tmp_path / "flat/lengths.arrow").sharing is None
    table = LengthTable.open(tmp_path / "trees/lengths.arrow")
    assert _lists(prefixes_of(table)) == _at_once(TEXTS, least=3)
