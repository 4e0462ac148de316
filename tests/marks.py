"""Marks of tests: which cases of a long test belong to ``make test``."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def long_but(short: Collection[Any], cases: Iterable[Any]) -> list[Any]:
    """Return cases for ``parametrize``, all but the ones in ``short`` marked ``long``: ``make test-all`` runs them.

    A case of several arguments is found by its first as well.
    """
    return [case if _is_in(case, short) else _long(case) for case in cases]


def _is_in(case: Any, short: Collection[Any]) -> bool:
    return case in short or (isinstance(case, tuple) and case[0] in short)


def _long(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.long)
