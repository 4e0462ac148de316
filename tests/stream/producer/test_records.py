"""Recovery of a producer: patience with network mounts, and states that cannot be gone on from."""

import pytest

from brimful.errors import CorruptFileError, StateError
from brimful.stream.producer.records import late_looks
from tests.stream.producer.streams import HandClock, producer, records_of, texts


def test_pauses_double_up_to_five_seconds():
    """Twelve looks in half a minute: a file that a mount shows late is there by then."""
    clock = HandClock()
    pauses, before = [], 0.0
    for look in late_looks(clock):
        pauses.append(round(clock.seconds - before, 2))
        before = clock.seconds
        assert look == len(pauses) - 1
    assert pauses == [0.0, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.0, 5.0, 5.0]


def stopped(directory):
    """A producer that took samples and committed a shard that carries some over."""
    one = producer(texts([7, 6, 5, 4, 3, 2] * 4), directory, packs_per_shard=1)
    while not records_of(directory)[0]:
        one.step()
    return records_of(directory)[0][-1].state


def test_lost_samples_are_said_after_all_looks(tmp_path):
    state = stopped(tmp_path)
    file = state["carry_over"]["file"]
    (tmp_path / file).unlink()
    clock = HandClock()
    with pytest.raises(CorruptFileError) as refused:
        producer(texts([7, 6, 5, 4, 3, 2] * 4), tmp_path, packs_per_shard=1, clock=clock).close()
    assert f"{file} is missing: what producer producer has taken and not packed is lost; begin the stream again" in str(
        refused.value
    )
    assert clock.seconds == pytest.approx(20.1)


def test_a_state_of_another_version_is_refused(tmp_path, monkeypatch):
    stopped(tmp_path)
    monkeypatch.setattr("brimful.stream.producer.records.STATE_VERSION", 2)
    with pytest.raises(StateError, match="producer producer has state of version 1; this brimful reads 2"):
        producer(texts([7, 6, 5, 4, 3, 2] * 4), tmp_path, packs_per_shard=1).close()
