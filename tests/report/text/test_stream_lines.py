"""Lines and metrics of a stream, in full: golden, so that a changed word is seen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brimful.report.analysis.stream_watch import ProducerStatus, RankStatus, StreamStatus, TrainingStatus
from brimful.report.text.stream_lines import describe_stream, prometheus_text, stream_line

WEB = ProducerStatus(
    name="web",
    is_closed=False,
    samples_read=1204,
    packs=96,
    tokens=385_000,
    shards=12,
    dropped={"without_target": 3},
)
RUN = TrainingStatus(
    group="run-1",
    packs=60,
    step=15,
    checkpoint="checkpoint-15",
    steps_there_are=24,
    packs_per_step=4,
    steps_behind=9,
    first_needed_shard=7,
    dp_world_size=2,
    ranks=(RankStatus(0, 15, 0, 0), RankStatus(1, 14, 1, 2)),
    seconds_ago=40.0,
    steps_per_second=1.1,
    eta_seconds=None,
    dry_seconds=30.0,
)
STREAM = StreamStatus(
    url="out",
    capacity=4096,
    shards=12,
    packs=96,
    tokens=385_000,
    bytes=1_700_000,
    removed_shards=5,
    kept_bytes=1_200_000,
    is_ended=False,
    seconds_without_shard=4.0,
    packs_per_second=3.2,
    tokens_per_second=12_900.0,
    producers=(WEB,),
    trainings=(RUN,),
)


def test_a_stream_in_full():
    """The page of the documentation shows these lines."""
    assert describe_stream(STREAM) == [
        "stream         out: growing, 1.20 MB, 5 shards removed",
        "produced       96 packs in 12 shards, 385,000 tokens, 97.9 % of 4,096; 3.2 packs/s, 12,900 tokens/s; last shard 0:04 ago",
        "producer       web: 1,204 samples read, 3 without target; 96 packs in 12 shards",
        "training       run-1: step 15 of 24 (checkpoint-15), acknowledged 0:40 ago, 1.1 steps/s, runs dry in 0:30; needs shards from 7 on",
        "ranks          2 of 2 acknowledge; rank 1 at step 14, 1 behind; 2 packs skipped",
    ]
    assert stream_line(STREAM) == (
        "12 shards, 96 packs; 3.2 packs/s, 12,900 tokens/s; last shard 0:04 ago; web 1,204 samples; "
        "run-1 step 15 of 24, 1.1 steps/s, runs dry in 0:30, a rank 1 step behind"
    )


def test_what_is_not_there_is_left_out():
    ended = replace(STREAM, is_ended=True, producers=(replace(WEB, is_closed=True),), trainings=())
    assert describe_stream(ended)[1:] == [
        "produced       96 packs in 12 shards, 385,000 tokens, 97.9 % of 4,096",
        "producer       web: 1,204 samples read, 3 without target; 96 packs in 12 shards; closed",
        'training       none has acknowledged a checkpoint: loader.ack("run-1")',
    ]
    first = replace(RUN, checkpoint="", ranks=(), steps_per_second=None, dry_seconds=None)
    assert describe_stream(replace(STREAM, trainings=(first,)))[3:] == [
        "training       run-1: step 15 of 24, acknowledged 0:40 ago; needs shards from 7 on"
    ]
    assert stream_line(replace(ended, trainings=(replace(first, eta_seconds=90.0),))) == (
        "12 shards, 96 packs; web 1,204 samples (closed); run-1 step 15 of 24, ETA 1:30"
    )


def test_ranks_that_need_a_look_come_first():
    """512 ranks in a line: the one that hangs must be among the named ranks."""
    ranks = tuple(RankStatus(rank, 14 - (rank == 300), 1 + (rank == 300), 0) for rank in range(512))
    line = describe_stream(replace(STREAM, trainings=(replace(RUN, dp_world_size=513, ranks=ranks),)))[-1]
    assert line.startswith(
        "ranks          512 of 513 acknowledge; rank 300 at step 13, 2 behind; rank 0 at step 14, 1 behind;"
    )
    assert line.endswith("; 504 more")
    even = tuple(RankStatus(rank, 15, 0, 0) for rank in range(2))
    assert describe_stream(replace(STREAM, trainings=(replace(RUN, ranks=even),)))[-1] == (
        "ranks          2 of 2 acknowledge; all at the same step"
    )


def test_metrics_of_a_stream():
    """A renamed metric breaks the dashboards of everybody."""
    text = prometheus_text(STREAM)
    for line in (
        '# TYPE brimful_stream_shards_total counter\nbrimful_stream_shards_total{stream="out"} 12\n',
        'brimful_stream_fill_ratio{stream="out"} 0.979105631510417\n',
        'brimful_producer_samples_dropped_total{stream="out",producer="web",reason="without_target"} 3\n',
        'brimful_training_dry_seconds{stream="out",group="run-1"} 30\n',
        'brimful_rank_step{stream="out",group="run-1",dp_rank="1"} 14\n',
        'brimful_rank_skipped_total{stream="out",group="run-1",dp_rank="1"} 2\n',
    ):
        assert line in text, line
    assert "brimful_training_eta_seconds" not in text


def test_the_parser_of_prometheus_reads_the_metrics():
    """Differential: names, types and labels as the library of Prometheus itself sees them, with a path that must be escaped."""
    parser = pytest.importorskip("prometheus_client.parser")
    url = 'a "b"\\c\nd'
    families = {
        family.name: family
        for family in parser.text_string_to_metric_families(prometheus_text(replace(STREAM, url=url)))
    }
    assert families["brimful_stream_shards"].type == "counter"
    assert families["brimful_stream_kept_bytes"].type == "gauge"
    assert all(family.documentation for family in families.values())
    samples = [sample for family in families.values() for sample in family.samples]
    assert {sample.labels["stream"] for sample in samples} == {url}
    steps = {sample.labels["dp_rank"]: sample.value for sample in families["brimful_rank_step"].samples}
    assert steps == {"0": 15.0, "1": 14.0}
