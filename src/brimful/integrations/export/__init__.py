"""Packs in the layouts of other projects: ``export_packs`` writes them, ``check_export`` reads them
back.
"""

from brimful.integrations.export.energon import energon_mix, select_samples_to_pack
from brimful.integrations.export.export_job import (
    LAYOUTS,
    ExportCheck,
    ExportSummary,
    check_export,
    export_packs,
)

__all__ = [
    "LAYOUTS",
    "ExportCheck",
    "ExportSummary",
    "check_export",
    "energon_mix",
    "export_packs",
    "select_samples_to_pack",
]
