"""Proof, on your model, collator and data, that packing changes nothing.

``reference_samples`` holds the samples, ``locate`` finds them in a batch, ``checks`` has one file
for each question, ``diagnosis`` tries what would repair a failure, and ``verify_report`` says it.
``models`` builds tiny models of real architectures. Batches are read, and models set, by ``doctor``.
"""

from brimful.verify.bench import verify_packing
from brimful.verify.sharded_rows import ContextParallelReport, verify_context_parallel
from brimful.verify.verify_report import CheckResult, Status, VerifyReport

__all__ = [
    "ContextParallelReport",
    "CheckResult",
    "Status",
    "VerifyReport",
    "verify_context_parallel",
    "verify_packing",
]
