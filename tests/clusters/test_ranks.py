"""Who this process is among the ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from brimful import open_source, plan_packs
from brimful.clusters import Ranks, Waiting, broadcast_plan, find_ranks, ranks
from brimful.clusters.ranks import arguments_of, check_arguments, kept_fingerprint
from brimful.errors import CorruptFileError, PlanMismatchError, SettingsError
from brimful.sources.source import Source
from brimful.testing.toys import toy_chat_encoder


def test_a_process_without_a_launcher_is_alone(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    assert find_ranks() == Ranks(0, 1)


def test_the_launcher_counts_before_the_process_group_is_there(monkeypatch):
    """Trainers make data sets first: every rank would plan, and none would know of the others."""
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert find_ranks() == Ranks(3, 8, logs=False)
    assert find_ranks(rank=0, world_size=2) == Ranks(0, 2), "an argument beats the environment"
    assert find_ranks(rank=1, world_size=2) == Ranks(1, 2, logs=False)
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert find_ranks() == Ranks(3, 8), "the first of each node logs"
    monkeypatch.delenv("LOCAL_RANK")
    assert find_ranks() == Ranks(3, 8)
    monkeypatch.setenv("RANK", "three")
    assert find_ranks() == Ranks(0, 1), "some launchers use the word for something else"


@pytest.mark.parametrize(
    ("options", "match"),
    [
        *[({name: 2}, "go together") for name in ("rank", "world_size")],
        ({"rank": 2, "world_size": 2}, "rank"),
        ({"rank": 0, "world_size": 0}, "world_size"),
        ({"rank": -1, "world_size": 2}, "rank"),
    ],
)
def test_impossible_ranks_are_refused(options, match):
    with pytest.raises(SettingsError, match=match):
        find_ranks(**options)


@pytest.mark.parametrize("options", [{"poll_seconds": 0}, {"see_seconds": "1"}, {"arrive_seconds": -2}])
def test_impossible_times_are_refused(options):
    with pytest.raises(SettingsError, match=next(iter(options))):
        Waiting(**options)


def test_long_arguments_are_compared_by_their_fingerprint():
    """A template of a page would be the whole message."""
    texts = {number: "x" * number for number in (40, 41)}
    encoder: Any = SimpleNamespace(
        length_settings={"short": texts[40], "long": texts[41]}, label_settings={"list": [1, "b"]}
    )
    found = arguments_of(open_source([{"text": "a"}]), encoder)
    assert found["encoder short"] == texts[40]
    assert len(found["encoder long"]) == 32
    assert found["encoder list"] == '[1,"b"]'


def test_titles_may_differ_and_nothing_else():
    theirs = {"title": "a", "source": "0123456789" * 3, "zeta": "1", "alpha": "1"}
    check_arguments(theirs, {**theirs, "title": "b"}, 3)
    for name in ("zeta", "alpha"):
        with pytest.raises(PlanMismatchError, match=rf"rank 3 .* from rank 1.*: {name} \(1 on rank 1, 2 here\)$"):
            check_arguments(theirs, {**theirs, name: "2"}, 3, 1)
    with pytest.raises(PlanMismatchError, match=r"source \(a 0123456 on rank 0, b 9999999 here\)$"):
        check_arguments(theirs, {**theirs, "title": "b", "source": "9" * 32}, 3)
    with pytest.raises(PlanMismatchError, match=r"beta \(not given on rank 0, 5 here\)$"):
        check_arguments(theirs, {**theirs, "beta": "5"}, 3)


@pytest.fixture
def reads(monkeypatch):
    """Titles of the sources whose bytes were read for a fingerprint."""
    titles, real = [], vars(Source)["fingerprint"].fget
    monkeypatch.setattr(Source, "fingerprint", property(lambda self: titles.append(self.title) or real(self)))
    return titles


@pytest.mark.parametrize("is_folder", [False, True])
def test_files_are_read_for_their_fingerprint_once(tmp_path, reads, is_folder):
    """Eight ranks of a node that each hash a terabyte; a file that changed is read again."""
    data = tmp_path / "data"
    data.mkdir()
    for name in ("a.jsonl", "b.jsonl"):
        (data / name).write_text('{"text": "a"}\n')

    def found():
        return kept_fingerprint(open_source(data if is_folder else data / "b.jsonl"), tmp_path / "cache")

    first = found()
    assert found() == first
    assert len(reads) == 1
    (data / "b.jsonl").write_text('{"text": "b!"}\n')
    assert found() != first
    assert found() != first
    assert len(reads) == 2


def test_rows_that_are_in_no_file_are_read_each_time(tmp_path, reads):
    """Their name tells nothing of them, though a file may have it."""
    source = open_source([{"text": "a"}])
    assert kept_fingerprint(source, tmp_path) == kept_fingerprint(source, tmp_path) == source.fingerprint
    assert len(reads) == 3
    assert not list(tmp_path.iterdir())


class Line:
    """A process group of two on one thread: what rank 0 sends, then what rank 1 receives."""

    def __init__(self, rank, sent, damaged=None):
        self.rank, self.sent, self.damaged, self.next = rank, sent, damaged, 0

    def get_rank(self):
        return self.rank

    def get_backend(self, group):
        return "gloo"

    def broadcast(self, tensor, *, src, group):
        assert (src, group) == (0, "group")
        if self.rank == src:
            self.sent.append(tensor.clone())
            return
        tensor.copy_(self.sent[self.next])
        if self.next == self.damaged:
            tensor[len(tensor) // 2] += 1
        self.next += 1


def test_a_plan_is_sent_in_pieces_and_damage_on_its_way_is_found(monkeypatch):
    """Of a gigabyte, each piece has its room in memory, and a wrong byte would give two ranks other packs."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(ranks, "_CHUNK_BYTES", 1000)
    plan, sent = plan_packs([3] * 500, capacity=9), []

    def at(rank, given, samples=None, **options):
        line = Line(rank, sent, **options)
        monkeypatch.setattr(ranks, "process_group", lambda: line)
        return broadcast_plan(given, group="group", samples=samples)

    assert at(0, plan) is plan
    assert plan.path is None
    size, letters, *pieces = sent
    assert (size[0], size[1], letters.numpy().tobytes()) == (sum(map(len, pieces)), 2, b"{}")
    assert {len(piece) for piece in pieces[:-1]} == {1000}
    assert len(pieces) > 3
    received = at(1, None)
    assert (received.fingerprint, received.path) == (plan.fingerprint, None)
    assert received.sample_ids.tolist() == plan.sample_ids.tolist()
    with pytest.raises(CorruptFileError, match="the plan that rank 0 sent arrived damaged"):
        at(1, None, damaged=len(sent) // 2)
    samples = [(open_source([{"text": text}]), toy_chat_encoder()) for text in "ab"]
    at(1, None, samples=samples[1])  # compared only if both ranks have samples
    sent.clear()
    at(0, plan, samples=samples[0])
    at(1, None)
    at(1, None, samples=samples[0])
    with pytest.raises(PlanMismatchError, match=r"rank 1 has different arguments from rank 0.*: source"):
        at(1, None, samples=samples[1])
    sent.clear()
    at(0, plan)
    for given, words in ((None, "rank 0 has no plan to send"), ("plan.arrow", "plan")):
        sent.clear()
        for rank, own in ((0, given), (1, None)):
            with pytest.raises((SettingsError, TypeError), match=words if rank == 0 else "rank 0 has no plan to send"):
                at(rank, own)
        assert torch.equal(sent[0], torch.tensor([-1, 2]))
    monkeypatch.setattr(ranks, "process_group", lambda: None)
    with pytest.raises(SettingsError, match="init_process_group before it"):
        broadcast_plan(plan)
