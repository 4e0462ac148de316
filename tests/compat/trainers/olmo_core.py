"""OLMo-core: its loader contract; its attention that isolates documents needs a GPU."""

from tests.compat.trainer import Trainer

TRAINER = Trainer(
    name="OLMo-core",
    package="ai2-olmo-core",
    page="olmo_core.md",
    ours=("tests/integrations/trainers/test_olmo_core.py",),
    why_no_step="its attention that isolates documents is flash attention, on a GPU",
    remarks=(("2.6.0", "its packed data set reads no boundaries from files"),),
)
