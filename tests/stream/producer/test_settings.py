"""Settings of a producer: defaults that follow from others, and what it keeps for ever."""

import pytest

from brimful.errors import SettingsError
from brimful.plan import NoTarget, Overflow
from brimful.stream.producer.open_window import ProducerStatistics
from brimful.stream.producer.settings import ProducerSettings


def test_defaults_follow_from_capacity_and_window():
    """Shards of 64 MiB, at 4 bytes a token; a sample waits for four windows."""
    settings = ProducerSettings(capacity=4096)
    assert (settings.shard_packs, settings.max_wait, settings.lookahead) == (4096, 4096, 1024)
    assert (settings.overflow, settings.no_target, settings.lanes) == (Overflow.ERROR, NoTarget.ERROR, 1)
    assert ProducerSettings(capacity=1 << 26).shard_packs == 1
    assert ProducerSettings(capacity=1 << 23).shard_packs == 2
    given = ProducerSettings(capacity=8, packs_per_shard=3, max_wait=1, lookahead=2, overflow="drop", max_age=None)
    assert (given.shard_packs, given.max_wait, given.overflow, given.max_age) == (3, 1, Overflow.DROP, None)
    assert given.registered == {
        "capacity": 8,
        "size": 2,
        "max_wait": 1,
        "algorithm": "best_fit_decreasing",
        "min_fill": 1.0,
        "overflow": "drop",
        "packs_per_shard": 3,
        "no_target": "error",
        "on_bad_sample": "error",
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"capacity": 0}, "capacity must be from 1 to 2,147,483,647"),
        ({"capacity": 2**31}, "capacity must be from 1 to 2,147,483,647"),
        ({"on_bad_sample": "drop"}, "on_bad_sample 'drop' is unknown: use one of error, skip"),
        ({"packs_per_shard": 0}, "packs_per_shard must be at least 1"),
        ({"lanes": 0}, "lanes must be at least 1"),
        ({"lookahead": 0}, "lookahead must be at least 1"),
        *(
            ({"max_age": age}, f"max_age must be a number of seconds above 0 and is {age!r}")
            for age in (0, -1.0, "3", True)
        ),
    ],
)
def test_what_cannot_be_is_refused(settings, message):
    with pytest.raises(SettingsError, match=message):
        ProducerSettings(**{"capacity": 8, **settings})
    assert ProducerSettings(capacity=2**31 - 1).capacity == 2**31 - 1


def test_an_account_in_one_line():
    """Reasons without a sample are left out, and without packs it has no fill."""
    account = ProducerStatistics(
        samples_read=1200, samples_packed=1100, samples_waiting=90, dropped={"malformed": 10, "oversized": 0},
        packs=2, tokens=15, shards=1, capacity=10,
    )  # fmt: skip
    assert str(account) == (
        "1,200 samples read, 1,100 packed, 90 waiting, 10 malformed; 2 packs in 1 shard, 15 tokens, 75.0 % full"
    )
    assert account.as_dict()["fill_ratio"] == 0.75
    assert ProducerStatistics(0, 0, 0, {}, 0, 0, 0, 10).fill_ratio == 0.0
