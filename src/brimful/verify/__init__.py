"""Proof, on your model, collator and data, that packing changes nothing.

``reference_samples`` holds the samples, ``locate`` finds them in a batch, ``checks`` has one file for each question,
``diagnosis`` tries what would repair a failure, and ``report`` says it. ``models`` builds tiny models of real
architectures.
"""

from brimful.verify.context_parallel import ContextParallelReport, verify_context_parallel
from brimful.verify.report import Finding, Status, VerifyReport
from brimful.verify.run import verify_packing

__all__ = ["ContextParallelReport", "Finding", "Status", "VerifyReport", "verify_context_parallel", "verify_packing"]
