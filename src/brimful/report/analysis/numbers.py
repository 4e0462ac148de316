"""Counts and ratios as people read them."""

from __future__ import annotations


def percent(ratio: float, digits: int = 1) -> str:
    """Return a ratio as a percentage, never rounded up to all or down to nothing.

    >>> percent(0.5), percent(0.99999), percent(0.00001), percent(1.0), percent(0.0)
    ('50.0 %', '> 99.9 %', '< 0.1 %', '100.0 %', '0.0 %')
    """
    # A share that would round to nothing or to all is given as a bound: one sample in a million is not none.
    unit = 10.0**-digits
    value = 100 * ratio
    if 0 < value < unit / 2:
        return f"< {unit:.{digits}f} %"
    if 100 - unit / 2 <= value < 100:
        return f"> {100 - unit:.{digits}f} %"
    return f"{value:,.{digits}f} %"


def whole(number: float) -> str:
    """Format a count with separators of thousands.

    >>> whole(1234567.4)
    '1,234,567'
    """
    return f"{number:,.0f}"
