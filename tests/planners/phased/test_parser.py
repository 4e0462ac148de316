"""Recipes as text: errors name the word and the choices."""

import pytest

from brimful.errors import SettingsError
from brimful.planners.phased import (
    Recipe,
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "phases: '' is not a phase: write name or name(setting=value, …), with some of powers_of_two"),
        ("half;;finish", "phases: '' is not a phase"),
        (
            "hlaf; finish",
            "phases: 'hlaf' is not a phase: write name or name(setting=value, …), with some of powers_of_two, half, top_n, size_range, capacity_ratio, lengths, finish",
        ),
        ("half(; finish", "phases: 'half(' is not a phase"),
        ("half(min_items); finish", "phases: 'min_items' in half(…) is not a setting: write setting=value"),
        ("half(min_items=); finish", "phases: 'min_items=' in half(…) is not a setting"),
        ("powers_of_two(n=3); finish", "phases: powers_of_two has no setting 'n': use some of diversity, min_length"),
        (
            "top_n(by=half); finish",
            "phases: top_n has no setting 'by': use some of n, min_items, min_fill, max_items, rounds, min_placed, only_over",
        ),
        ("top_n(n=3,n=4); finish", "phases: top_n has n twice: keep one"),
        ("top_n(n=0); finish", "phases top_n(n=…) must be a whole number of at least 1 and is 0"),
        ("top_n(n=2.5); finish", "phases top_n(n=…) must be a whole number of at least 1 and is 2.5"),
        ("half(threshold=median); finish", "phases half(threshold=…) must be a length or mean and is 'median'"),
        ("half(min_fill=96); finish", "phases half(min_fill=…) must be from 0 to 1 and is 96"),
        ("half(min_items=5,max_items=4); finish", "phases half(max_items=…) must be at least min_items=5 and is 4"),
        ("size_range(least=9,most=3); finish", "phases size_range(least=…) must be at most most=3 and is 9"),
        ("powers_of_two(diversity=1); finish", "phases powers_of_two(diversity=…) must be true or false and is 1"),
        ("lengths; finish", "phases lengths(lengths=…) must be lengths of at least 1, such as 300 400 500"),
        ("lengths(lengths=a); finish", "phases lengths(lengths=…) must be lengths of at least 1"),
        ("lengths(lengths=0 4); finish", "phases lengths(lengths=…) must be lengths of at least 1"),
        (
            "half",
            "phases must end with finish, and have it only there, or items would be left without a pack, and is half",
        ),
        ("finish; half; finish", "phases must end with finish, and have it only there"),
    ],
)
def test_errors_name_the_word_and_the_choices(text, message):
    """One line, from text that a user typed."""
    with pytest.raises(SettingsError) as caught:
        Recipe.parse(text)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
