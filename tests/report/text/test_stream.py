"""Lines and metrics of a stream, in full: golden, so that a changed word is seen."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from brimful.report.analysis.stream_status import ProducerStatus, RankStatus, Silence, StreamStatus, TrainingStatus
from brimful.report.text.prometheus import prometheus_text
from brimful.report.text.stream import describe_stream, stream_line

WEB = ProducerStatus(
    name="web",
    is_closed=False,
    samples_read=1204,
    packs=96,
    tokens=385_000,
    shards=12,
    dropped={"without_target": 3},
    waiting_for="",
    packs_per_second=3.2,
    tokens_per_second=12_900.0,
    silence=Silence(4.0, False, False),
)
RANK = RankStatus(
    dp_rank=0,
    dp_world_size=2,
    num_workers=1,
    epoch=0,
    step=17,
    steps_behind=7,
    packs=34,
    tokens=136_000,
    skipped=0,
    steps_per_second=1.1,
    packs_per_second=2.2,
    tokens_per_second=8_800.0,
    wait_share=0.012,
    waiting_for="",
    silence=Silence(8.0, False, False),
)
SECOND = replace(RANK, dp_rank=1, step=16, steps_behind=8, skipped=2, silence=Silence(75.0, True, False))
RUN = TrainingStatus(
    group="run-1",
    ranks=(RANK, SECOND),
    missing_ranks=(),
    steps_there_are=24,
    packs_per_step=4,
    is_ended=False,
    acked_packs=60,
    acked_step=15,
    checkpoint="checkpoint-15",
    first_needed_shard=7,
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
        "producer       web: 1,204 samples read, 3 without target; 96 packs in 12 shards; working, 3.2 packs/s",
        "training       run-1: step 16 of 24, 8 behind; 1.1 steps/s, 8,800 tokens/s, waiting 1.2 % of the time; runs dry in 0:26",
        "durable        run-1: step 15 (checkpoint-15); needs shards from 7 on",
        "          rank   epoch       step   behind   packs/s    tokens/s     wait  skipped   heard  state",
        "        0 of 2       0         17        7       2.2       8,800    1.2 %        0    0:08  reading",
        "        1 of 2       0         16        8       2.2       8,800    1.2 %        2    1:15  silent for 1:15",
    ]
    assert stream_line(STREAM) == (
        "12 shards, 96 packs; 3.2 packs/s, 12,900 tokens/s; last shard 0:04 ago; web 1,204 samples; "
        "run-1 step 16 of 24, 1.1 steps/s, wait 1.2 %, durable 15, 1 rank silent"
    )


def test_states_of_those_who_do_not_work():
    """Each of them asks for something else of a person."""

    def producer_line(**changes):
        return describe_stream(replace(STREAM, producers=(replace(WEB, **changes),)))[2].rpartition("; ")[2]

    assert producer_line(is_closed=True) == "closed"
    assert producer_line(silence=Silence(90.0, True, False)) == "silent for 1:30"
    assert producer_line(silence=Silence(90.0, False, True)) == "stopped"
    assert producer_line(silence=None) == "96 packs in 12 shards"
    assert producer_line(waiting_for="5 shards are ahead of training") == (
        "waiting: 5 shards are ahead of training, 3.2 packs/s"
    )
    unheard = replace(RUN, ranks=(), acked_packs=None, acked_step=None, steps_there_are=None, packs_per_step=None)
    assert describe_stream(replace(STREAM, trainings=(unheard,)))[3:] == [
        "training       run-1: no rank says how far it is",
        "durable        run-1: nothing acknowledged so far",
    ]
    assert describe_stream(replace(STREAM, trainings=(replace(RUN, missing_ranks=(5, 6)),)))[4] == (
        "               2 ranks not heard of: 5, 6"
    )


def test_ranks_that_need_a_look_come_first():
    """512 ranks on a screen of 24 lines: the one that hangs must be among those that are shown."""
    ranks = tuple(replace(RANK, dp_rank=rank, dp_world_size=512) for rank in range(512))
    ranks = (*ranks[:300], replace(ranks[300], silence=Silence(75.0, True, False)), *ranks[301:])
    lines = describe_stream(replace(STREAM, trainings=(replace(RUN, ranks=ranks),)), num_lines=24)
    assert len(lines) <= 24
    assert sum("silent for 1:15" in line for line in lines) == 1
    assert re.fullmatch(r" +and 49\d ranks more, all further or reading", lines[-1])
    assert len(describe_stream(replace(STREAM, trainings=(replace(RUN, ranks=ranks),)))) == 6 + 512


def test_metrics_of_a_stream():
    """A renamed metric breaks the dashboards of everybody."""
    text = prometheus_text(STREAM)
    for line in (
        '# TYPE brimful_stream_shards_total counter\nbrimful_stream_shards_total{stream="out"} 12\n',
        'brimful_stream_fill_ratio{stream="out"} 0.979105631510417\n',
        'brimful_producer_samples_dropped_total{stream="out",producer="web",reason="without_target"} 3\n',
        'brimful_training_seconds_until_dry{stream="out",group="run-1"} 26.6',
        'brimful_reader_silent{stream="out",group="run-1",dp_rank="1"} 1\n',
        'brimful_reader_steps_behind{stream="out",group="run-1",dp_rank="0"} 7\n',
        'brimful_watch_up{stream="out"} 1\n',
    ):
        assert line in text, line
    assert "brimful_training_eta_seconds" not in text
    assert 'brimful_watch_up{stream="out"} 0\n' in prometheus_text(STREAM, is_current=False)


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
    steps = {sample.labels["dp_rank"]: sample.value for sample in families["brimful_reader_step"].samples}
    assert steps == {"0": 17.0, "1": 16.0}
