"""Contracts of the three things that users can add: a source of rows, a blob store, and a dialect.

Each contract is a class of tests. Derive from it in a test module, define how to make your object,
and pytest runs all of its tests on it::

    from brimful.testing.contracts import RowsContract

    class TestCsvRows(RowsContract):
        def make_rows(self, folder, texts):
            path = folder / "rows.csv"
            path.write_text("text\n" + "".join(f'"{text}"\n' for text in texts))
            return CsvRows(path)

Failures explain themselves if a ``conftest.py`` calls
``pytest.register_assert_rewrite("brimful.testing.contracts")`` before the first import of this
module.
"""

import abc
import contextlib
import copy
import pickle
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import combinations_with_replacement, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import brimful
from brimful.base.blobs import BlobStore
from brimful.collate.padding import Padding
from brimful.errors import SourceError
from brimful.sources.rows import BLOCK_ROWS, Rows
from brimful.testing.toys import toy_pack

__all__ = ["BlobStoreContract", "DialectContract", "RowsContract"]


class RowsContract(abc.ABC):
    """Tests of a class that derives from ``brimful.sources.rows.Rows``.

    Attributes:
        texts: the texts of the rows that the small tests store; override it if the storage cannot
            hold one of them.
        num_rows: rows of the large tests: more than one block.
        knows_prefixes: whether ``prefix_fingerprints`` finds the fingerprint before rows were
            appended. Without it a growing data set is measured again as a whole.
    """

    texts: Sequence[str] = (
        "a",
        "two words",
        "é 漢 🙂",
        "quotes \"' and \\",
        "a",
        "tab\tand, comma",
    )
    num_rows: int = BLOCK_ROWS + 100
    knows_prefixes: bool = True

    @abc.abstractmethod
    def make_rows(self, folder: Path, texts: Sequence[str]) -> Rows:
        """Store one row for each text in an empty folder, and open them."""

    def text_of(self, row: Any) -> str:
        """Return the text that a row was made from."""
        return str(row["text"])

    def _read(self, rows: Rows, start: int = 0) -> list[str]:
        return list(map(self.text_of, rows.read(start, len(rows))))

    def _in(self, folder: Path, texts: Sequence[str]) -> Rows:
        folder.mkdir()
        return self.make_rows(folder, texts)

    def _fingerprints(self, rows: Rows) -> list[str]:
        return [block.fingerprint for block in rows.blocks]

    def test_every_run_of_rows_is_read_in_order(self, tmp_path: Path) -> None:
        """Worker processes read runs, and shuffled packs read single rows: a source that loses,
        repeats or reorders rows trains on another data set than it names.
        """
        rows, texts = self.make_rows(tmp_path, self.texts), list(self.texts)
        assert len(rows) == len(texts)
        for start, stop in combinations_with_replacement(range(len(rows) + 1), 2):
            run = list(map(self.text_of, rows.read(start, stop)))
            assert run == texts[start:stop], (start, stop)
        assert [self.text_of(rows.get(index)) for index in range(len(rows))] == texts
        backwards = [*reversed(range(len(rows))), 0]
        assert list(map(self.text_of, rows.read_many(backwards))) == [*texts[::-1], texts[0]]
        assert self._read(rows) == texts, "the second reading gives other rows"

    def test_two_readings_at_once_do_not_disturb_each_other(self, tmp_path: Path) -> None:
        """A reader that shares one position would skip rows as soon as two packs are built at
        once.
        """
        rows = self.make_rows(tmp_path, self.texts)
        pairs = zip(rows.read(0, len(rows)), rows.read(0, len(rows)), strict=True)
        assert [tuple(map(self.text_of, pair)) for pair in pairs] == [
            (text, text) for text in self.texts
        ]

    def test_every_row_has_a_place_of_its_own(self, tmp_path: Path) -> None:
        """An error names the row by ``where``: two rows with one name point to the wrong line.
        Reports give each file its share by the numbers of ``members``.
        """
        rows = self.make_rows(tmp_path, self.texts)
        locations = list(map(rows.where, range(len(rows))))
        assert len(set(locations)) == len(locations)
        assert all(location and "\n" not in location for location in locations)
        assert rows.title
        assert sum(count for _, count in rows.members) == len(rows)

    def test_blocks_cut_all_rows(self, tmp_path: Path) -> None:
        """Blocks are the tasks of measuring: a gap is a sample that is never measured."""
        rows = self.make_rows(tmp_path, [f"row {index}" for index in range(self.num_rows)])
        blocks = list(rows.blocks)
        assert [block.start for block in blocks] == [0, *(block.stop for block in blocks[:-1])]
        assert blocks[-1].stop == len(rows) == self.num_rows
        assert all(0 < len(block) <= BLOCK_ROWS for block in blocks)
        assert len(set(self._fingerprints(rows))) == len(blocks)

    def test_fingerprints_are_of_content(self, tmp_path: Path) -> None:
        """Fingerprints of a path or a date measure the same data again, or serve lengths of other
        data.
        """
        one, two = (self._in(tmp_path / name, self.texts) for name in ("one", "two"))
        assert one.fingerprint == two.fingerprint
        assert self._fingerprints(one) == self._fingerprints(two)
        contents = {
            "changed": [*self.texts[:-1], "changed"],
            "swapped": [self.texts[1], self.texts[0], *self.texts[2:]],
            "shorter": self.texts[:-1],
        }
        for name, texts in contents.items():
            rows = self._in(tmp_path / name, texts)
            assert rows.fingerprint != one.fingerprint
            assert self._fingerprints(rows) != self._fingerprints(one)

    def test_a_changed_row_changes_its_block_alone(self, tmp_path: Path) -> None:
        """Lengths are cached by block: one edited row must not cost the whole data set."""
        texts = [f"row {index}" for index in range(self.num_rows)]
        *first_blocks, last_block = self._fingerprints(self._in(tmp_path / "before", texts))
        texts[-1] = "row edited"
        *same_blocks, edited_block = self._fingerprints(self._in(tmp_path / "after", texts))
        assert first_blocks == same_blocks
        assert last_block != edited_block

    def test_appended_rows_are_seen_as_appended(self, tmp_path: Path) -> None:
        """Without it a data set that grows every night is measured from scratch every night."""
        shorter = self._in(tmp_path / "shorter", self.texts[:-2])
        longer = self._in(tmp_path / "longer", self.texts)
        assert longer.fingerprint in longer.prefix_fingerprints(len(longer))
        assert longer.fingerprint not in longer.prefix_fingerprints(len(shorter))
        if self.knows_prefixes:
            assert shorter.fingerprint in longer.prefix_fingerprints(len(shorter))
        other = self._in(tmp_path / "other", ["another beginning", *self.texts[1:]])
        assert shorter.fingerprint not in other.prefix_fingerprints(len(shorter))

    def test_rows_behind_a_change_are_its_own_or_refused(self, tmp_path: Path) -> None:
        """A job reads for hours: new rows must not be trained under the old fingerprint."""
        rows = self.make_rows(tmp_path, self.texts)
        assert rows.fingerprint
        pickle_of_rows = pickle.dumps(rows)
        reader = rows.read(0, len(rows))
        first_texts = [self.text_of(next(reader))]
        self.make_rows(tmp_path, [text[::-1] + "!" for text in self.texts])
        readings: Sequence[Callable[[], list[str]]] = (
            lambda: list(map(self.text_of, reader)),
            lambda: self._read(rows, 1),
            lambda: self._read(pickle.loads(pickle_of_rows), 1),
        )
        for reading in readings:
            with contextlib.suppress(SourceError):
                assert first_texts + reading() == list(self.texts), (
                    "rows of the new content under the old fingerprint"
                )

    def test_worker_processes_open_the_same(self, tmp_path: Path) -> None:
        """Processes get the source by pickle: an open file in it ends every job with ``num_proc``
        above 1.
        """
        rows = self.make_rows(tmp_path, self.texts)
        # The second time, a source that has been read from is pickled, with its files open.
        for _ in range(2):
            assert pickle.dumps(rows)
            reopened = copy.deepcopy(rows)  # by the protocol of pickle; no bytes are unpickled
            for source in (reopened, rows):
                assert self._read(source) == list(self.texts)
            for name in ("fingerprint", "title"):
                assert getattr(reopened, name) == getattr(rows, name)
            assert len(reopened) == len(rows)


class BlobStoreContract:
    """Tests of a class that derives from ``brimful.base.blobs.BlobStore``.

    Override the fixture ``store``; use one that yields if something must be removed afterwards.
    """

    @pytest.fixture
    def store(self, tmp_path: Path) -> BlobStore:
        """An empty store, of its own for each test."""
        raise NotImplementedError(
            f"{type(self).__name__} has no fixture 'store' that makes an empty store"
        )

    def test_every_operation(self, store: BlobStore) -> None:
        """Without it a directory and an object store would behave differently under the same
        calls.
        """
        assert (store.list("log/"), store.size("log/1")) == ([], None)
        store.put_atomic("log/2", b"two")
        assert store.put_if_absent("log/1", b"first") is True
        assert store.put_if_absent("log/1", b"second") is False
        store.put_atomic("log/2", b"TWO!")
        store.put_atomic("shards/00/a", memoryview(b"0123456789"))
        store.put_atomic("log/empty", b"")
        assert store.get("log/1") == b"first"
        assert store.get("log/2") == b"TWO!"
        assert store.get("log/empty") == b""
        assert store.size("log/2") == 4
        assert store.list("log/") == store.list("log") == ["log/1", "log/2", "log/empty"]
        assert (store.folders("shards/"), store.folders("log"), store.folders("acks")) == (
            ["00"],
            [],
            [],
        )
        store.delete("log/1")
        store.delete("log/1")
        assert store.list("log/") == ["log/2", "log/empty"]
        assert store.list("tmp/") == []
        with pytest.raises(FileNotFoundError):
            store.get("log/1")

    def test_put_if_absent_of_eight_threads_has_exactly_one_winner(self, store: BlobStore) -> None:
        """Without it two jobs could both believe that their commit counts, and one would be
        lost.
        """
        barrier = threading.Barrier(8)

        def put(key: str, index: int) -> bool:
            barrier.wait()
            return store.put_if_absent(key, b"%d" % index)

        with ThreadPoolExecutor(8) as threads:
            for key in (f"log/{index}" for index in range(5)):
                is_winner = list(threads.map(partial(put, key), range(8)))
                assert sum(is_winner) == 1
                assert store.get(key) == b"%d" % is_winner.index(True)
        assert store.list("tmp/") == []

    def test_a_blob_is_written_in_pieces_and_appears_when_it_is_published(
        self, store: BlobStore
    ) -> None:
        """A shard is named by its hash, which is known at its end: nothing of it may be visible
        before.
        """
        pieces = [b"ab", bytes(200_000), b"", b"c" * 70_000, b"end"]
        with store.blob("a shard") as blob:
            for piece in pieces:
                assert blob.write(piece) == len(piece)
            assert store.list("shards/") == []
            assert blob.size == sum(map(len, pieces))
            key = f"shards/{blob.xxh3_128}"
            blob.publish(key)
        assert store.get(key) == b"".join(pieces)
        assert store.size(key) == sum(map(len, pieces))
        assert store.list("tmp/") == []

    def test_a_blob_that_is_not_published_leaves_nothing(self, store: BlobStore) -> None:
        """Without it every failed job would leave a shard without a reference."""
        with store.blob("a shard") as blob:
            blob.write(bytes(200_000))
        assert store.list("shards/") == store.list("tmp/") == []

    def test_a_published_blob_replaces_what_was_there(self, store: BlobStore) -> None:
        """A damaged shard is repaired by writing it again under its name."""
        store.put_atomic("shards/a", b"damaged")
        with store.blob("a shard") as blob:
            blob.write(b"whole")
            blob.publish("shards/a")
        assert store.get("shards/a") == b"whole"

    def test_parts_of_a_blob_and_many_at_once(self, store: BlobStore) -> None:
        """Shards and images are read by ranges, and logs by hundreds of records: a byte too few is
        a lost sample.
        """
        data = bytes(range(256)) * 4
        store.put_atomic("shards/a", data)
        for start, stop in ((0, 1024), (0, 1), (100, 900), (1023, 1024), (5, 5)):
            assert store.get_range("shards/a", start, stop) == data[start:stop]
        store.put_atomic("log/1", b"one")
        store.put_atomic("log/2", b"two")
        assert store.get_many(["log/2", "shards/a", "log/1"]) == [b"two", data, b"one"]
        assert store.get_many([]) == []
        with pytest.raises(FileNotFoundError):
            store.get_range("shards/b", 0, 1)
        with pytest.raises(FileNotFoundError):
            store.get_many(["log/1", "log/3"])

    def test_a_job_may_say_that_it_works_here(self, store: BlobStore) -> None:
        """Leftovers of jobs in ``tmp/`` are removed at the end, and published blobs are not."""
        with store.used("encoded"):
            store.put_atomic("log/1", b"1")
        assert store.get("log/1") == b"1"
        assert store.list("tmp/") == []

    def test_a_local_path_leads_to_the_bytes(self, store: BlobStore) -> None:
        """Readers use it to map shards into memory; a store without local files returns None."""
        store.put_atomic("shards/a", b"bytes")
        path = store.local_path("shards/a")
        assert path is None or Path(path).read_bytes() == b"bytes"


_PACKS = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=3)


class DialectContract(abc.ABC):
    """Tests of one dialect, read as its trainer reads it: boundaries, loss tokens and targets.

    The reader uses only the batch, and none of the dialect's own code: it is a second opinion.

    Attributes:
        dialect: the name in ``DIALECTS``.
        knows_gaps: whether the dialect can say that padding after a segment does not belong to it.
    """

    dialect: str
    knows_gaps: bool = False

    @abc.abstractmethod
    def segments(self, batch: Mapping[str, Any]) -> list[list[int]]:
        """Return the tokens of every segment as the trainer finds them, padding that the dialect
        marks left out.
        """

    @abc.abstractmethod
    def targets(self, batch: Mapping[str, Any]) -> list[tuple[int, int]]:
        """Return each predicting token with the token that it must predict, in order."""

    @abc.abstractmethod
    def loss_tokens(self, batch: Mapping[str, Any]) -> int:
        """Return the number that the trainer divides the loss by: the targets of the batch."""

    def collate(self, packs: Sequence[Any], padding: Padding | None = None) -> Mapping[str, Any]:
        """Return the batch of some packs or samples; override it for a collator of your own."""
        return brimful.PackCollator(dialect=self.dialect, padding=padding)(packs)

    @settings(max_examples=15, suppress_health_check=[HealthCheck.differing_executors])
    @given(packs=_PACKS, unit=st.sampled_from([1, 1, 4]), is_fixed=st.booleans())
    def test_each_sample_is_read_with_its_tokens_and_targets(
        self, packs: list[list[int]], unit: int, is_fixed: bool
    ) -> None:
        """Each sample is present with its tokens and without padding; targets equal the samples'
        one by one.
        """
        toys = [
            toy_pack(lengths, first_sample=10 * index, seed=index)
            for index, lengths in enumerate(packs)
        ]
        batch = self.collate(toys, Padding(to=160 if is_fixed else None, segment_multiple_of=unit))
        samples = [
            pack.segment(segment_index).tolist()
            for pack in toys
            for segment_index in range(pack.num_segments)
        ]
        # The padding at the end of each row is a segment without a sample. Tokens of samples are
        # never 0, padding is, and where the dialect cannot say otherwise, it belongs to the
        # segment before it.
        segments = [segment for segment in self.segments(batch) if any(segment)]
        gaps = [0 if self.knows_gaps else -len(sample) % unit for sample in samples]
        assert list(map(len, segments)) == [
            len(sample) + gap for sample, gap in zip(samples, gaps, strict=True)
        ]
        assert [
            segment[: len(sample)] for segment, sample in zip(segments, samples, strict=True)
        ] == samples
        pairs = [pair for sample in samples for pair in pairwise(sample)]
        assert self.loss_tokens(batch) == len(pairs) == sum(pack.num_loss_tokens for pack in toys)
        assert self.targets(batch) == pairs

    def test_the_first_label_of_a_segment_is_never_a_target(self) -> None:
        """Not even if a sample labels it: no token before it may predict it."""
        rows = [
            {"input_ids": [5, 6, 7], "labels": [5, 6, 7]},
            {"input_ids": [8, 9], "labels": [8, 9]},
        ]
        assert self.targets(self.collate(rows)) == [(5, 6), (6, 7), (8, 9)]
