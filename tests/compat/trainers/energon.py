"""Energon: its own reader on our exports."""

from tests.compat.trainer import Trainer

TRAINER = Trainer(
    name="Megatron-Energon",
    package="megatron-energon",
    ours=("tests/integrations/export/test_energon.py", "-k", "not package_is_missing"),
    variable="BRIMFUL_ENERGON7",
    why_no_step="a loader, without training",
)
