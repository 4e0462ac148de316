"""What a kind of draw must bring."""

import pytest

from brimful.plan.policies.draw import Draw


def test_a_draw_without_its_parts_is_refused():
    """A wing that forgets the line of the summary hears of it before an epoch is planned, not after."""
    with pytest.raises(TypeError, match=r"as_dict.*check.*describe"):
        Draw()  # type: ignore[abstract]
