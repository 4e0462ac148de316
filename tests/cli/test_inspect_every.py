"""``brimful inspect STREAM``, once and again and again: for people, for machines and as a file of metrics."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from brimful.report.analysis.stream_watch import StreamWatch
from brimful.testing.toys import ToyProducer
from tests.cli.tools import outcome, refused, run
from tests.stream.producer.streams import producer, texts


@pytest.fixture
def stream(tmp_path: Path) -> ToyProducer:
    toy = ToyProducer(tmp_path / "stream")
    toy.append(3)
    return toy


def test_each_look_is_a_line(stream: ToyProducer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a log of Slurm a picture that is painted again would be a thousand pages."""
    # What another process does between two looks.
    monkeypatch.setattr("time.sleep", lambda seconds: stream.append(2))
    out, err = run("inspect", tmp_path / "stream", "--every", 10, "--updates", 3)
    assert err == []
    assert [line.split(" ", 1)[1].partition(";")[0] for line in out] == [
        "1 shard, 3 packs",
        "2 shards, 5 packs",
        "3 shards, 7 packs",
    ]


def test_each_look_is_a_line_of_json(stream: ToyProducer, tmp_path: Path) -> None:
    """For scripts: the numbers by the names of Python."""
    out, _ = run("inspect", tmp_path / "stream", "--every", 0.01, "--updates", 1, "--json")
    status = json.loads(out[0])
    assert (status["kind"], status["shards"], status["packs"], status["fill_ratio"]) == ("stream", 1, 3, 1.0)
    assert (status["producers"], status["trainings"]) == ([], [])
    out, _ = run("inspect", tmp_path / "stream", "--json")
    assert json.loads(out[0])["packs"] == 3
    out, _ = run("inspect", tmp_path / "stream")
    assert out[0].startswith(f"stream         {tmp_path / 'stream'}: growing, ")


def test_a_stream_that_a_producer_left_is_shown(tmp_path: Path) -> None:
    """It grows, unlike the packs of a plan, whose job was stopped: those are refused."""
    producer(iter(texts([7, 4, 3] * 8)), tmp_path).run()
    out, _ = run("inspect", tmp_path)
    assert out[0].startswith(f"stream         {tmp_path}: growing, ")


def test_a_finished_stream_shows_its_store_and_its_producers(tmp_path: Path) -> None:
    """The end of a stream must not hide who fed it."""
    producer(iter(texts([7, 4, 3])), tmp_path).run(close=True)
    out, _ = run("inspect", tmp_path)
    assert any(line.startswith("packs          2 of 10 tokens in 1 shard") for line in out)
    assert "producer       producer: 3 samples read; 2 packs in 1 shard; closed" in out
    assert json.loads(run("inspect", tmp_path, "--json")[0][0])["stream"]["producers"][0]["samples_read"] == 3


def test_metrics_are_in_a_file_that_appears_whole(stream: ToyProducer, tmp_path: Path) -> None:
    """A collector that reads it while it is written must not see half of it."""
    file = tmp_path / "brimful.prom"
    run("inspect", tmp_path / "stream", "--prometheus-file", file)
    assert f'brimful_stream_packs_total{{stream="{tmp_path / "stream"}"}} 3\n' in file.read_text()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_look_that_fails_is_told_and_tried_again(
    stream: ToyProducer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watch for weeks must not end when a network is gone for a minute."""
    real, failures = StreamWatch.look, iter([False, True, False])

    def look(self: StreamWatch) -> object:
        if next(failures):
            raise TimeoutError("no answer (planted)")
        return real(self)

    monkeypatch.setattr(StreamWatch, "look", look)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    out, err = run("inspect", tmp_path / "stream", "--every", 10, "--updates", 3)
    assert (len(out), err) == (2, ["warning: no answer (planted)"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--every", "0"), "'--every': 0.0 is not in the range x>0"),
        (("--every", "1", "--updates", "0"), "'--updates': 0 is not in the range x>=1"),
    ],
)
def test_impossible_options_are_one_line(
    stream: ToyProducer, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    assert message in refused("inspect", tmp_path / "stream", *options)


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    code, _, errors = outcome("inspect", tmp_path, "--every", "1")
    assert code == 2
    assert "is not a pack store: it has no stream.json" in errors
