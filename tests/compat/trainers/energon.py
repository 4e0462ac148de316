"""Energon: its own reader on our exports."""

from tests.compat.trainer import Trainer

TRAINER = Trainer(
    name="Megatron-Energon",
    package="megatron-energon",
    ours=("tests/integrations/export/test_energon.py", "tests/integrations/export/test_layouts.py", "-k", "energon"),
    why_no_step="a loader, without training",
)
