"""Quality filters: they leave samples out before encoding; each reason is counted and listed.

They run in the order of ``FILTERS``, in any process, and the first reason counts. Their
settings are part of the settings of the lengths: other filters are another measurement.

>>> as_filters(["words=3:", "characters=50:3500"])
(Characters(least=50, most=3500), Words(least=3, most=None))
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from brimful.base.wings import FILTER_MODULES
from brimful.base.wording import setting
from brimful.errors import SettingsError
from brimful.measure.filters.duplicates import Duplicates
from brimful.measure.filters.filter import Filter
from brimful.measure.filters.text_filters import Characters, Refusals, Repetition, Words
from brimful.sources.sample import Sample

__all__ = [
    "FILTERS",
    "Characters",
    "Duplicates",
    "Filter",
    "Refusals",
    "Repetition",
    "Words",
    "as_filters",
    "register",
    "rejection",
]

FILTERS: dict[str, type[Filter]] = {
    filter_class.name: filter_class
    for filter_class in (Refusals, Repetition, Characters, Words, Duplicates)
}
"""All filters, in the order in which they run: cheap ones first."""


def register(*filter_classes: type[Filter]) -> None:
    """Add filters, in the order in which they run, before the one that compares samples."""
    last = FILTERS.pop(Duplicates.name)
    for filter_class in (*filter_classes, last):
        FILTERS[filter_class.name] = filter_class


for _module in FILTER_MODULES:
    import_module(_module)


def as_filters(filters: Sequence[Filter | str] | Filter | str | None) -> tuple[Filter, ...]:
    """Return filters in the order in which they run; texts are parsed.

    Args:
        filters: filters, or texts such as ``aspect-ratio=0.2:5``; at most one of each name.

    Raises:
        SettingsError: an unknown filter, a text that it cannot parse, or two filters of one name.
    """
    if filters is None:
        return ()
    given = [filters] if isinstance(filters, (str, Filter)) else list(filters)
    made = [item if isinstance(item, Filter) else _parsed(item) for item in given]
    names = [item.name for item in made]
    twin = next((name for name in names if names.count(name) > 1), None)
    if twin is not None:
        raise SettingsError(f"{setting('filters', [twin])} is given twice: give one of that name")
    order = list(FILTERS)
    # A user's own filter comes last.
    return tuple(
        sorted(made, key=lambda item: order.index(item.name) if item.name in order else len(order))
    )


def _parsed(text: Any) -> Filter:
    forms = ", ".join(filter_class.form for filter_class in FILTERS.values())
    if not isinstance(text, str):
        raise SettingsError(
            f"{setting('filters')} must hold filters, or texts, and holds {type(text).__name__}: "
            f"{forms}"
        )
    name, _, value = text.partition("=")
    filter_class = FILTERS.get(name.strip().replace("_", "-"))
    if filter_class is None:
        raise SettingsError(f"{setting('filters', [text])} is unknown: use {forms}")
    try:
        return filter_class.parse(value.strip())
    except SettingsError:
        raise
    except ValueError as error:
        raise SettingsError(f"{setting('filters', [text])} must be {filter_class.form}") from error


def rejection(filters: Sequence[Filter], sample: Sample) -> tuple[str, str] | None:
    """Return the name of the first filter that leaves a sample out, and its reason; None if all
    keep it.

    >>> rejection([Words(most=1)], Sample(0, text="two words"))
    ('words', 'its text has 2 words, more than 1')
    """
    for item in filters:
        reason = item.reason(sample)
        if reason is not None:
            return item.name, reason
    return None
