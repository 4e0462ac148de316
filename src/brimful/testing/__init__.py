"""For your tests: toys, strategies, contracts, the kit of resuming, and one line that checks
packing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import brimful
from brimful.store.shards import Pack

__all__ = ["assert_packing_is_right"]


def assert_packing_is_right(
    model: Any,
    collator: Callable[[list[Any]], Mapping[str, Any]],
    samples: Sequence[Pack | Mapping[str, Any]] | None = None,
    **options: Any,
) -> brimful.verify.VerifyReport:
    """Fail unless ``verify_packing`` finds nothing wrong and shows isolation at least once.

    Needs no fixture and no plugin::

        def test_packing():
            assert_packing_is_right(tiny_model("qwen2"), MyCollator(), samples, attention="sdpa")

    Args:
        model, collator, samples, options: as for ``verify_packing``, such as ``attention``.

    Returns:
        The report, for further assertions.

    Raises:
        AssertionError: a check failed, or nothing could be shown; the message is the table.
    """
    report = brimful.verify_packing(model, collator, samples, **options)
    if not report.ok:
        raise AssertionError(f"{report.verdict}\n{report}")
    return report
