"""The seam between the line and what travels with its samples."""

import re

import pytest

from brimful.base.attachment import BadAttachmentError, attachment_store, attachments_of_segment
from brimful.media import BadMediumError, MediaKind, Medium, PlacedMedium, store


def test_the_store_of_media_is_the_store_of_attachments():
    """Each name of the seam is there; without it a missing one is found by a user's job."""
    assert attachment_store() is store
    names = set(re.findall(r"``(\w+)(?:\(.*?\))?``[:;]", attachment_store.__doc__ or "")) - {"length"}
    assert {"COLUMNS", "cells_of", "stored", "check_of"} <= names
    assert [name for name in names if not hasattr(store, name)] == []


def test_an_attachment_is_whole_or_in_another_segment():
    """Half of an image would be trained on as if it were the whole; the error is of the seam, and of media too."""
    image = PlacedMedium(Medium(MediaKind.IMAGE, "a"), start=5, length=4, num_tokens=4)
    assert list(attachments_of_segment([image], start=0, length=5)) == []
    (moved,) = attachments_of_segment([image], start=5, length=4, segment=2, offset=10)
    assert (moved.start, moved.segment) == (10, 2)
    for start, length in ((0, 6), (6, 4)):
        with pytest.raises(BadAttachmentError, match=r"^the sample was cut within image 'a'$"):
            list(attachments_of_segment([image], start=start, length=length))
    assert issubclass(BadMediumError, BadAttachmentError)
