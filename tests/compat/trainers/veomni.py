"""VeOmni: what its collator and its meter find in our batch."""

from tests.compat.trainer import Trainer

TRAINER = Trainer(
    name="VeOmni",
    package="veomni",
    page="veomni.md",
    ours=(
        "tests/integrations/trainers/test_veomni.py",
        "tests/collate/test_real_libraries.py",
        "-k",
        "veomni",
    ),
    needs=("transformers==5.9.0",),
    why_no_step="its models were not tried on a CPU",
    remarks=(("0.1.11", "its batches with media have other keys"),),
)
