"""Settings of a stream's reader check themselves, and are the same for every class that reads one."""

from __future__ import annotations

import dataclasses
import inspect
import pickle

import pytest

from brimful.errors import SettingsError
from brimful.stream import Assignment, StreamLoader, StreamSettings


def test_the_arguments_of_the_loader_are_the_fields_with_their_defaults():
    """An option that is a field and no argument could not be given; one with another default would be two options."""
    parameters = dict(list(inspect.signature(StreamLoader.__init__).parameters.items())[3:])
    fields = {field.name: field.default for field in dataclasses.fields(StreamSettings)}
    assert {name: parameter.default for name, parameter in parameters.items()} == fields


def test_each_value_has_one_form():
    """A name and its enum would be two settings, and a state of one be refused by the other."""
    settings = StreamSettings(assign="lane", tail="drop", lanes=8, dp_rank=1, dp_world_size=2)
    assert settings == StreamSettings(assign=Assignment.LANE, tail=settings.tail, lanes=8, dp_rank=1, dp_world_size=2)
    assert settings.of_stream(4) == dataclasses.replace(settings, packs_per_micro_batch=4)
    assert StreamSettings().of_stream(4) == StreamSettings(lanes=4, assign="lane", packs_per_micro_batch=4)
    assert StreamSettings().of_stream(1).assign is Assignment.PACK
    assert pickle.loads(pickle.dumps(settings)) == settings


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dp_rank": 2, "dp_world_size": 2}, "dp_rank must be from 0 to 1 and is 2"),
        ({"dp_world_size": 0}, "dp_world_size must be a whole number of at least 1"),
        ({"lanes": 0}, "lanes must be at least 1"),
        ({"packs_per_micro_batch": 0}, "packs_per_micro_batch must be a whole number of at least 1"),
        ({"tail": "repeat"}, 'tail="repeat" needs a finished store'),
        ({"on_corrupt": "ignore"}, "on_corrupt 'ignore' is unknown"),
        ({"timeout": -1}, "timeout must be a number of seconds"),
        ({"assign": "rank"}, "assign 'rank' is unknown"),
        ({"group": "run 1"}, "must be a name of letters, digits"),
        ({"group": 1}, "group must be the name of a training"),
    ],
)
def test_impossible_values_are_refused_before_anything_is_opened(values, message):
    """512 ranks should not read a log to learn about a typing error."""
    with pytest.raises((SettingsError, TypeError), match=message):
        StreamSettings(**values)
    with pytest.raises((SettingsError, TypeError), match=message):
        StreamLoader("/nowhere", **values)
