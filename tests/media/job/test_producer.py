"""Media that arrive: a share of their samples is compared with the model's own processor."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from brimful.errors import BadSampleError, ProcessorDiffersError
from brimful.media import MediaKind, Medium, PlacedMedium
from brimful.media.job.producer import ArrivedMedia, read_again

Stub: Any = SimpleNamespace
"""An object of which only some attributes are asked."""

PICTURE, SOUND = (Stub(kind=kind) for kind in (MediaKind.IMAGE, MediaKind.AUDIO))


class Reference:
    """A processor that answers from a table, and notes what it was asked."""

    def __init__(self, answers=(), obstacle=""):
        self.answers, self.obstacle, self.asked = dict(answers), obstacle, []

    def difference(self, sample, length):
        self.asked.append((sample.sample_id, length))
        answer = self.answers.get(sample.sample_id, "")
        if isinstance(answer, Exception):
            raise answer
        return answer


def compare(reference, *samples):
    """Compare samples, each an id with its media; the encoder gave sample ``n`` a length of ``n``."""
    arrived = ArrivedMedia(Stub(attachment_reference=reference), "rows")
    rows = [Stub(sample_id=number, attachments=media) for number, *media in samples]
    arrived.compare(rows, [np.zeros(row.sample_id) for row in rows])
    return arrived


def test_the_first_of_each_kind_and_then_a_share():
    """Sample 610 is one of the samples compared in every run; a text has nothing to compare."""
    reference = Reference()
    samples = [(1,), (2, PICTURE), (3, PICTURE), (4, SOUND), (5, SOUND, PICTURE), (6, PICTURE, SOUND), (610, SOUND)]
    arrived = compare(reference, *samples)
    assert reference.asked == [(2, 2), (4, 4), (5, 5), (610, 610)]
    arrived.compare([Stub(sample_id=7, attachments=[PICTURE])], [np.zeros(7)])
    assert len(reference.asked) == 4
    assert compare(None, (1, PICTURE))


def test_a_sample_that_was_refused_is_not_compared():
    """Neither is its kind seen by it."""
    reference = Reference()
    arrived = ArrivedMedia(Stub(attachment_reference=reference), "rows")
    rows = [Stub(sample_id=number, attachments=[PICTURE]) for number in (1, 2)]
    results: list[Any] = [BadSampleError("no picture", sample_id=1), np.zeros(2)]
    arrived.compare(rows, results)
    assert reference.asked == [(2, 2)]


def test_a_difference_stops_the_stream():
    with pytest.raises(ProcessorDiffersError, match=r"^rows \(sample 3\): 9 tokens there\. Nothing is packed"):
        compare(Reference({3: "9 tokens there"}), (2, SOUND), (3, PICTURE))


def test_a_sample_that_the_processor_refuses_is_a_warning(logged):
    reference = Reference({1: BadSampleError("too small", sample_id=1)})
    compare(reference, (1, PICTURE), (2, SOUND))
    assert logged == ["rows (sample 1): too small"]
    assert reference.asked == [(1, 1), (2, 2)]


def test_a_processor_that_cannot_be_loaded_is_one_warning(logged):
    reference = Reference(obstacle="no torchvision")
    compare(reference, (0, PICTURE), (1, SOUND))
    assert logged == ["media are not compared with the processor of the model, which cannot be loaded (no torchvision)"]
    assert reference.asked == []


def test_a_file_that_is_gone_is_named(tmp_path):
    """With its place and the way out: it was there when its sample was taken."""
    missing = Medium(kind=MediaKind.IMAGE, name="a.png", path=str(tmp_path / "a.png"))
    (tmp_path / "b.png").write_bytes(b"b")
    present = Medium(kind=MediaKind.IMAGE, name="b.png", path=str(tmp_path / "b.png"))
    with pytest.raises(
        BadSampleError, match=r"sample 4: image 'a.png' at '.*a.png' does not exist.*; it is in no shard yet: bring it"
    ):
        read_again(PlacedMedium(missing, 0, 1, num_tokens=1), 4)
    assert read_again(PlacedMedium(present, 0, 1, num_tokens=1), 4) == b"b"
