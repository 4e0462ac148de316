"""Checks of arguments: each refuses in one line that names the argument, what it must be and what
it is.
"""

import math
import numbers
import operator
import os
import stat
from enum import Enum
from typing import Any, TypeGuard, TypeVar

from brimful.base.wording import setting
from brimful.errors import SettingsError, WrongTypeError

Choice = TypeVar("Choice", bound=Enum)


class MalformedRowError(ValueError):
    """A row that a format cannot read; a source turns it into ``BadSampleError`` with file and
    line.
    """


def is_whole_number(value: object) -> TypeGuard[int]:
    """Return true for integers of Python and NumPy, without booleans.

    >>> is_whole_number(3), is_whole_number(True), is_whole_number(3.0)
    (True, False, False)
    """
    # NumPy registers its types, so this does not import NumPy, which would be loaded before the
    # first worker process. Python's own integers first: checking the abstract type takes ten times
    # as long.
    return type(value) is int or (
        isinstance(value, numbers.Integral) and not isinstance(value, bool)
    )


def is_number(value: object) -> TypeGuard[float]:
    """Return true for integers and floats of Python and NumPy, without booleans."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def whole_number(name: str, value: object, *, minimum: int | None = None) -> int:
    """Return a whole number as Python's integer.

    Args:
        name: the argument, for the message; ``messages.setting(…)`` if it has a flag.
        value: what the caller passed.
        minimum: smallest number that is allowed; None allows all.

    Raises:
        SettingsError: another type, a boolean, or below the minimum.

    >>> whole_number("dp_world_size", 0, minimum=1)
    Traceback (most recent call last):
        ...
    brimful.errors.SettingsError: dp_world_size must be a whole number of at least 1 and is 0
    """
    if is_whole_number(value):
        result = int(value)
        if minimum is None or result >= minimum:
            return result
    bound = "" if minimum is None else f" of at least {minimum}"
    raise SettingsError(f"{name} must be a whole number{bound} and is {value!r}")


def setting_number(
    name: str, value: object, *, minimum: int | None = None, maximum: int | None = None
) -> int:
    """Return a whole number that is a setting.

    Args:
        name: the setting, as Python calls it.
        value: the value that the caller passed.
        minimum: smallest number that is allowed; None allows all.
        maximum: largest number that is allowed; needs a minimum.

    Raises:
        SettingsError: another type, a boolean, or outside the bounds.

    >>> setting_number("capacity", 0, minimum=1, maximum=4096)
    Traceback (most recent call last):
        ...
    brimful.errors.SettingsError: capacity must be from 1 to 4,096 and is 0
    """
    if not is_whole_number(value):
        raise SettingsError(f"{setting(name)} must be a whole number and is {value!r}")
    result = int(value)
    if (minimum is not None and result < minimum) or (maximum is not None and result > maximum):
        bounds = f"at least {minimum}" if maximum is None else f"from {minimum} to {maximum:,}"
        raise SettingsError(f"{setting(name)} must be {bounds} and is {result:,}")
    return result


def check_rank(dp_rank: object, dp_world_size: object) -> tuple[int, int]:
    """Return a data-parallel rank and the number of ranks, as Python's integers.

    Raises:
        SettingsError: not whole numbers, or a rank out of range.

    >>> check_rank(2, 2)
    Traceback (most recent call last):
        ...
    brimful.errors.SettingsError: dp_rank must be from 0 to 1 and is 2
    """
    world_size = whole_number("dp_world_size", dp_world_size, minimum=1)
    return setting_number("dp_rank", dp_rank, minimum=0, maximum=world_size - 1), world_size


def check_share(name: str, value: object) -> float:
    """Return a number from 0 to 1 as Python's float.

    Raises:
        SettingsError: not a number, or outside 0 to 1.

    >>> check_share("min_fill", 96)
    Traceback (most recent call last):
        ...
    brimful.errors.SettingsError: min_fill must be from 0 to 1 and is 96
    """
    if is_number(value) and 0 <= value <= 1:
        return float(value)
    raise SettingsError(f"{name} must be from 0 to 1 and is {value!r}")


def check_factor(name: str, value: object) -> None:
    """Refuse a factor or a divisor that is not a finite number above 0.

    Raises:
        SettingsError: NaN, infinite, 0 or negative: a loss would become NaN, 0 or its opposite.

    >>> check_factor("scale", float("nan"))
    Traceback (most recent call last):
        ...
    brimful.errors.SettingsError: scale must be a number above 0 and is nan
    """
    if not (is_number(value) and 0 < value < math.inf):
        raise SettingsError(f"{setting(name)} must be a number above 0 and is {value!r}")


def choice_of(
    choices: type[Choice], name: Choice | str, *, argument: str, instead: str = ""
) -> Choice:
    """Return the member of an enum by its name.

    Args:
        choices: an enum whose values are names.
        name: a member, or its name.
        argument: name of the setting, as Python calls it.
        instead: further words for the message, such as another way to set it.

    Raises:
        SettingsError: no member has that name; lists the names.

    >>> Tail = Enum("Tail", {"PAD": "pad", "DROP": "drop"})
    >>> choice_of(Tail, "pad", argument="tail").name
    'PAD'
    >>> choice_of(Tail, "fill", argument="tail")
    Traceback (most recent call last):
        ...
    brimful.errors.SettingsError: tail 'fill' is unknown: use one of pad, drop
    """
    try:
        return choices(name)
    except ValueError as error:
        names = ", ".join(str(member.value) for member in choices)
        raise SettingsError(
            f"{setting(argument)} {name!r} is unknown: use one of {names}{instead}"
        ) from error


def check_type(
    argument: str, value: Any, types: type | tuple[type, ...], expected_type: str, way_out: str = ""
) -> None:
    """Refuse an argument of a type that a call cannot take.

    Args:
        argument: its name.
        value: what the caller passed.
        types: the types that the call can take.
        expected_type: these types in words.
        way_out: advice for the caller, in words.

    Raises:
        WrongTypeError: it is of another type; describes the value.

    >>> check_type("plan", "plan.arrow", (), "a Plan", "open it by Plan.open")
    Traceback (most recent call last):
        ...
    brimful.errors.WrongTypeError: plan must be a Plan and is 'plan.arrow': open it by Plan.open
    """
    if not isinstance(value, types):
        way_out = f": {way_out}" if way_out else ""
        raise WrongTypeError(
            f"{argument} must be {expected_type} and is {describe(value)}{way_out}"
        )


def path_of(argument: str, value: Any, expected_type: str = "a path") -> str:
    """Return a path as text.

    Raises:
        WrongTypeError: the value is not a path.

    >>> path_of("directory", None, "the path of a pack store")
    Traceback (most recent call last):
        ...
    brimful.errors.WrongTypeError: directory must be the path of a pack store and is None
    """
    check_type(argument, value, (str, os.PathLike), expected_type)
    path = os.fspath(value)
    check_type(argument, path, str, f"{expected_type}, as text")
    return str(path)


def local_path(value: Any) -> str:
    """Return the path of a file to write as text.

    Raises:
        SettingsError: it is a URL: only packs, streams and exports are written there.

    >>> local_path("s3://bucket/plan.arrow")
    Traceback (most recent call last):
        ...
    brimful.errors.SettingsError: path="s3://bucket/plan.arrow" is a URL: name a local file
    """
    path = path_of("path", value)
    if "://" in path:
        raise SettingsError(f"{setting('path', path)} is a URL: name a local file")
    return path


def index_of(noun: str, value: Any) -> int:
    """Return an index as Python's integer; NumPy's and torch's are taken too.

    Raises:
        WrongTypeError: the value is not a whole number but, for example, a slice or a text.

    >>> index_of("pack", slice(0, 2))
    Traceback (most recent call last):
        ...
    brimful.errors.WrongTypeError: pack must be named by its number and is slice(0, 2, None)
    """
    try:
        return operator.index(value)
    except TypeError:
        text = repr(value) if isinstance(value, slice) else describe(value)
        raise WrongTypeError(f"{noun} must be named by its number and is {text}") from None


def describe(value: Any) -> str:
    """Describe the value that a caller passed in a few words.

    >>> describe("text"), describe([1, 2]), describe(int), describe(print)
    ("'text'", 'a list of 2', 'the class int', 'a builtin_function_or_method')
    """
    if value is None or isinstance(value, (str, bytes, int, float)):
        text = repr(value)
        return text if len(text) <= 60 else f"{text[:57]}…{text[-1]}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, (list, tuple, dict)):
        return f"a {type(value).__name__} of {len(value)}"
    name = type(value).__name__.lstrip("_")
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def position(index: Any, size: int, noun: str) -> int:
    """Return the position, counted from 0, that an index means; negative indices count from the
    end.

    Args:
        index: any whole number, NumPy's too.
        size: length of the sequence.
        noun: one element of the sequence, for the message.

    Raises:
        IndexError: the sequence has no such position.
        WrongTypeError: the index is not a whole number.

    >>> position(-1, 5, "pack")
    4
    """
    # The fast path: every pack that is read comes through here.
    if type(index) is int and 0 <= index < size:
        return index
    relative_index = index_of(f"a {noun}", index)
    if -size <= relative_index < size:
        return relative_index % size
    raise IndexError(
        f"{noun} {relative_index} is not in 0 … {size - 1}"
        if size
        else f"no {noun} {relative_index}: the sequence is empty"
    )


def special_file(mode: int) -> str:
    """Return what a path is if neither a file nor a directory, so that reading it may never end;
    empty for these two.

    Args:
        mode: ``st_mode`` of the path.

    >>> special_file(os.stat(os.curdir).st_mode), special_file(os.stat(os.devnull).st_mode)
    ('', 'a device')
    """
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return ""
    return (
        "a named pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
    )
