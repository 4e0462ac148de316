"""``brimful watch`` and ``inspect`` of a stream: on a terminal, in a log, for machines, over HTTP and as a file."""

from __future__ import annotations

import io
import json
import os
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from brimful.cli import metrics_server, watch
from brimful.cli.metrics_server import MetricsServer, address_of
from brimful.cli.screen import Screen
from brimful.errors import SettingsError
from brimful.report.analysis.stream_watch import StreamWatch
from brimful.testing.toys import ToyProducer
from tests.cli.tools import outcome, refused, run
from tests.materialize.streams import producer, texts


@pytest.fixture
def stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ToyProducer:
    toy = ToyProducer(tmp_path / "stream")
    toy.append(3)
    return toy


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    served = MetricsServer("127.0.0.1", 0)
    yield served
    served.close()


def get(url: str) -> tuple[int, str, str]:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.status, answer.headers["Content-Type"], answer.read().decode()


def test_each_look_is_a_line(stream: ToyProducer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a log of Slurm a picture that is painted again would be a thousand pages."""
    # What another process does between two looks.
    monkeypatch.setattr("time.sleep", lambda seconds: stream.append(2))
    out, err = run("watch", tmp_path / "stream", "--updates", 3)
    assert err == []
    assert [line.split(" ", 1)[1].partition(";")[0] for line in out] == [
        "1 shard, 3 packs",
        "2 shards, 5 packs",
        "3 shards, 7 packs",
    ]


def test_each_look_is_a_line_of_json(stream: ToyProducer, tmp_path: Path) -> None:
    """For scripts: the numbers of the screen, by the names of Python."""
    out, _ = run("watch", tmp_path / "stream", "--updates", 1, "--json")
    status = json.loads(out[0])
    assert (status["kind"], status["shards"], status["packs"], status["fill_ratio"]) == ("stream", 1, 3, 1.0)
    assert (status["producers"], status["trainings"]) == ([], [])
    # Once, by the command that shows everything else.
    out, _ = run("inspect", tmp_path / "stream", "--json")
    assert json.loads(out[0])["packs"] == 3
    out, _ = run("inspect", tmp_path / "stream")
    assert out[0].startswith(f"stream         {tmp_path / 'stream'}: growing, ")


def test_a_stream_that_a_producer_left_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It grows, unlike the packs of a plan, whose job was stopped: those are refused."""
    producer(iter(texts([7, 4, 3] * 8)), tmp_path).run()
    out, _ = run("inspect", tmp_path)
    assert out[0].startswith(f"stream         {tmp_path}: growing, ")


def test_a_finished_stream_shows_its_store_and_its_producers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a stream must not hide who fed it."""
    producer(iter(texts([7, 4, 3])), tmp_path).run(close=True)
    out, _ = run("inspect", tmp_path)
    assert any(line.startswith("packs          2 of 10 tokens in 1 shard") for line in out)
    assert "producer       producer: 3 samples read; 2 packs in 1 shard; closed" in out
    assert json.loads(run("inspect", tmp_path, "--json")[0][0])["stream"]["producers"][0]["samples_read"] == 3


def test_collectors_get_the_last_look(server: MetricsServer) -> None:
    """A real request over loopback; what is served is what was set last."""
    server.text = "a 1\n"
    assert get(server.url) == (200, "text/plain; version=0.0.4; charset=utf-8", "a 1\n")
    server.text = "a 2\n"
    assert get(server.url + "?x=1")[2] == "a 2\n"
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get(server.url.replace("/metrics", "/secret"))
    port = int(server.url.rpartition(":")[2].partition("/")[0])
    with pytest.raises(SettingsError, match=r"cannot be listened on .*choose another port"):
        MetricsServer("127.0.0.1", port)


def test_the_whole_command_over_http(stream: ToyProducer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the stream to the client, on this machine alone unless asked otherwise."""
    servers, answers = [], []

    class Known(MetricsServer):
        def __init__(self, host: str, port: int) -> None:
            super().__init__(host, port)
            servers.append((self, host))

    monkeypatch.setattr(watch, "MetricsServer", Known)
    monkeypatch.setattr("time.sleep", lambda seconds: answers.append(get(servers[0][0].url)[2]))
    file = tmp_path / "brimful.prom"
    out, err = run("watch", tmp_path / "stream", "--updates", 2, "--prometheus", 0, "--prometheus-file", file)
    assert (len(out), servers[0][1]) == (2, "127.0.0.1")
    assert err == [f"metrics at {servers[0][0].url}"]
    assert f'brimful_stream_packs_total{{stream="{tmp_path / "stream"}"}} 3\n' in answers[0]
    assert f'brimful_stream_packs_total{{stream="{tmp_path / "stream"}"}} 3\n' in file.read_text()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", int(servers[0][0].url.rpartition(":")[2].partition("/")[0])), 1)


def test_a_look_that_fails_is_told_and_tried_again(
    stream: ToyProducer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who watches for weeks must not end when a network is gone for a minute, and must not show old numbers as new."""
    real, failures = StreamWatch.look, iter([False, True, False])

    def look(self: StreamWatch) -> object:
        if next(failures):
            raise TimeoutError("no answer (planted)")
        return real(self)

    monkeypatch.setattr(StreamWatch, "look", look)
    texts_served = []
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setattr(
        metrics_server.MetricsServer,
        "text",
        property(lambda self: "", lambda self, text: texts_served.append(text)),
        raising=False,
    )
    out, err = run("watch", tmp_path / "stream", "--updates", 3, "--prometheus", 0)
    assert len(out) == 2
    assert err[1:] == ["warning: no answer (planted)"]
    assert [
        "brimful_watch_up{" in text and text.split("brimful_watch_up{")[1].split("} ")[1][0]
        for text in texts_served[1:]
    ] == ["1", "0", "1"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--every", "0"), "--every must be a number of seconds above 0"),
        (("--updates", "0"), "--updates must be at least 1"),
        (("--prometheus", "localhost"), "--prometheus localhost is no [HOST:]PORT"),
        (("--prometheus", "99999"), "is no [HOST:]PORT"),
    ],
)
def test_impossible_options_are_one_line(
    stream: ToyProducer, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    assert message in refused("watch", tmp_path / "stream", *options)


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    code, _, errors = outcome("watch", tmp_path)
    assert code == 2
    assert "is no pack store: it has no stream.json" in errors


def test_addresses() -> None:
    assert address_of(":9464") == ("127.0.0.1", 9464)
    assert address_of("::1:9464") == ("::1", 9464)


def test_a_terminal_gets_one_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a second screen, so that nothing of a person's own is painted over; and the last picture stays."""
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_, **__: os.terminal_size((60, 10)))
    file = io.StringIO()
    screen = Screen(file)
    screen.paint(["produced       3 packs"])
    screen.paint([f"line {number}" for number in range(50)])
    pictures = file.getvalue().split("\x1b[H")
    assert pictures[0] == "\x1b[?1049h\x1b[?25l"
    assert pictures[1] == "produced       3 packs\x1b[K\n\x1b[J"
    assert pictures[2].count("\n") == 9  # the last line of the terminal stays free, or it would scroll
    file.truncate(0)
    file.seek(0)
    screen.close()
    screen.close()
    assert file.getvalue().startswith("\x1b[?25h\x1b[?1049lline 0\nline 1\n")
