"""Media of several packs in one row."""

import numpy as np
import pytest

from brimful.collate import AttachedInputs, PackExtras, lay_out
from brimful.errors import CollateError
from brimful.testing.toys import toy_pack


def test_media_keep_their_owner():
    """Items of the second pack belong to segments after the first pack's, and a pack may have none."""
    image = AttachedInputs(
        "image", np.array([1, 1], dtype=np.int32), {"pixel_values": np.ones((6, 2)), "grid": np.ones((2, 3))}
    )
    sound = AttachedInputs("audio", np.array([0], dtype=np.int32), {"wave": np.ones((1, 4))})
    batch = lay_out(
        [toy_pack([2, 2]), toy_pack([3]), toy_pack([1, 1])],
        extras=[PackExtras(attached=(image,)), None, PackExtras(attached=(sound, image))],
    )
    assert [(item.kind, item.segments.tolist()) for item in batch.attached] == [("image", [1, 1, 4, 4]), ("audio", [3])]
    assert batch.attached[0].arrays["pixel_values"].shape == (12, 2)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_media_that_some_packs_lack(order):
    """Joined by the names of the first pack, pictures of the second would vanish."""
    pictures = {"image_grid_thw": np.array([[1, 2, 2]]), "pixel_values": np.ones((4, 6))}
    media = [AttachedInputs("image", np.zeros(1, np.int32), {"image_grid_thw": pictures["image_grid_thw"]}),
             AttachedInputs("image", np.zeros(1, np.int32), pictures)]  # fmt: skip
    extras = [PackExtras(attached=(media[place],)) for place in order]
    with pytest.raises(CollateError, match=f"at segment {2 * order.index(0)} have no 'pixel_values' and others"):
        lay_out([toy_pack([2, 2]), toy_pack([3])], extras=extras)
    other = AttachedInputs("image", np.zeros(1, np.int32), {**pictures, "pixel_values": np.ones((4, 8))})
    with pytest.raises(
        CollateError, match=r"'pixel_values' .* have the shapes \(…, 6\) and \(…, 8\), which do not join"
    ):
        lay_out([toy_pack([2]), toy_pack([3])], extras=[PackExtras(attached=(part,)) for part in (media[1], other)])
