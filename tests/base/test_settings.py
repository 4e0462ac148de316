"""Settings of calls: an object, keywords, or an object with changes."""

from dataclasses import MISSING, dataclass, field

import pytest

from brimful.base.settings import as_settings, option, settings_from
from brimful.errors import WrongTypeError


@dataclass(frozen=True)
class Box:
    width: int = option(MISSING, "Its width.", "CM")
    depth: int = option(3, "Its depth.", "CM", "--deep", minimum=1)
    volume: int = field(init=False, default=0)


def test_settings_are_an_object_or_keywords_or_both() -> None:
    """Without it a keyword next to an object of settings is ignored."""
    box = as_settings(Box, None, {"width": 2})
    assert (box, as_settings(Box, box, {})) == (Box(2, 3), box)
    assert as_settings(Box, box, {"depth": 5}) == Box(2, 5)


def test_a_required_setting_is_named() -> None:
    with pytest.raises(WrongTypeError, match=r"give width, or settings=Box\(width=…\)"):
        as_settings(Box, None, {"depth": 5})


def test_values_of_others_are_left_out() -> None:
    """Without it each command lists the names of the settings that it passes on."""
    assert settings_from(Box, {"width": 2, "volume": 9, "color": "red"}, depth=4) == Box(2, 4)


def test_the_help_of_a_field() -> None:
    (help,) = (
        item["help"]
        for name, item in ((f.name, f.metadata) for f in Box.__dataclass_fields__.values())
        if name == "depth"
    )
    assert (help.text, help.form, help.flags, help.minimum) == ("Its depth.", "CM", ("--deep",), 1)
