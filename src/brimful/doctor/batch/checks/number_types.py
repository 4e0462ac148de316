"""Types of numbers: what kernels refuse, or round."""

from collections.abc import Iterator

from brimful.doctor.batch.checks.case import BatchCase, suspect, wrong
from brimful.doctor.batch.words import Role
from brimful.doctor.report import Finding

_OTHER_KERNELS = "linear_attn_"
"""Boundaries for kernels of linear attention, which take 64 bits."""


def check_types(case: BatchCase) -> Iterator[Finding]:
    """Check that boundaries have 32 bits, and that positions are exact."""
    for word in case.view.words_with(Role.BOUNDARIES):
        dtype = str(getattr(word.value, "dtype", ""))
        if dtype == "torch.int64" and not word.name.startswith(_OTHER_KERNELS):
            yield suspect(
                "isolation",
                "number_types",
                f"{word} is int64, and flash attention reads boundaries of 32 bits",
                f"{word}.to(torch.int32)",
            )
        elif "float" in dtype:
            yield wrong("isolation", "number_types", f"{word} is {dtype}", f"make {word} integers")
    for word in case.view.words_with(Role.POSITIONS):
        dtype = str(getattr(word.value, "dtype", "")).removeprefix("torch.")
        if dtype in ("float16", "bfloat16"):
            yield wrong(
                "positions",
                "number_types",
                f"{word} are {dtype}, which rounds positions above "
                f"{256 if dtype == 'bfloat16' else 2048:,}",
                f"{word}.to(torch.int64)",
            )
