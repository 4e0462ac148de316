"""One pack, and many as flat columns."""

from brimful.testing.toys import toy_pack


def test_the_first_label_of_every_segment_is_ignored():
    """Its only predictor would be the last token of the sample before it."""
    assert toy_pack([3, 2, 1]).loss_mask.tolist() == [False, True, True, False, True, False]
