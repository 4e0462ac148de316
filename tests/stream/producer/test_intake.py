"""The intake of a producer: which samples are kept, and which are counted as what."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from brimful.errors import BadSampleError, EncodersDifferError
from brimful.sources.sample import Sample
from brimful.stream.producer.intake import Intake
from brimful.stream.producer.settings import ProducerSettings
from brimful.testing.toys import toy_chat_encoder


def intake(**settings: Any) -> Intake:
    return Intake(toy_chat_encoder(), ProducerSettings(**{"capacity": 3, **settings}), "rows")


@pytest.mark.parametrize(
    ("mask", "error", "truncate", "truncate_left"),
    [
        ("-++---", True, True, False),
        ("---+--", True, False, False),
        ("----+-", True, False, True),
        ("+-----", False, False, False),
        ("--+---", True, True, False),
        ("-----+", True, False, True),
        ("--", False, False, False),
        ("-+", True, True, True),
    ],
)
def test_a_target_behind_the_first_token_is_left_after_truncation(mask, error, truncate, truncate_left):
    """Of six tokens the first or the last three stay; the first of what stays is predicted from nothing."""
    flags = np.array([letter == "+" for letter in mask])
    found = [intake(overflow=name)._has_target(flags) for name in ("error", "truncate", "truncate_left")]
    assert found == [error, truncate, truncate_left]


def test_samples_are_counted_by_what_becomes_of_them(logged):
    """Ids go on from the first; samples that are left out are logged, ten of them."""
    one = intake(capacity=9, no_target="drop", on_bad_sample="skip")
    bad = [BadSampleError(f"fault {number}", sample_id=number) for number in range(11)]
    kept, counts = one.take(
        [Sample(0, text="ab"), Sample(1, text="a"), *bad, Sample(2, text=""), Sample(3, text="abc")], 100
    )
    assert [(sample_id, len(sample)) for sample_id, sample in kept.items()] == [(100, 2), (114, 3)]
    assert counts == {"samples_read": 15, "malformed": 12, "without_target": 1}
    assert [line.rpartition(": ")[2] for line in logged] == [f"fault {number}" for number in range(10)]
    kept, _ = intake(capacity=9, no_target="keep").take([Sample(1, text="a")], 5)
    assert list(kept) == [5]
    with pytest.raises(BadSampleError, match="sample 7: has no tokens"):
        intake().take([Sample(0, text="")], 7)


@pytest.mark.parametrize("engine_id", ["", "fast 1"])
def test_samples_are_compared_where_a_faster_library_encodes(engine_id):
    """Without it a wrong library spoils the stream in silence; an encoder that is its own reference would do its work twice."""
    other, asked, wrong = toy_chat_encoder(), [], [Sample(0, text="abd")]

    class Fast(type(other)):
        engine = SimpleNamespace(
            id=engine_id, name="fast", reference=SimpleNamespace(encode_batch=lambda _: other.encode_batch(wrong)),
            disable=lambda name, reason: asked.append((name, reason)),
        )  # fmt: skip

    one = Intake(Fast(), ProducerSettings(capacity=3), "the feed")
    if not engine_id:
        assert list(one.take([Sample(0, text="abc")], 0)[0]) == [0]
        return
    with pytest.raises(EncodersDifferError, match=r"the feed \(sample 0\): fast .* begin the stream again"):
        one.take([Sample(0, text="abc")], 0)
    assert asked == [("fast 1", "it differed from the reference on the feed")]
    wrong[0] = Sample(0, text="abc")
    assert list(one.take([Sample(0, text="abc")], 0)[0]) == [0]
