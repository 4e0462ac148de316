"""verl: micro-batches and rows of fine-tuning by its own functions."""

from tests.compat.trainer import Trainer

TRAINER = Trainer(
    name="verl",
    package="verl",
    page="verl.md",
    ours=("tests/integrations/trainers/test_verl.py", "tests/rl/compat"),
    needs=("uvicorn", "fastapi"),
    why_no_step="it has no platform for a CPU",
    why_no_own="its source distribution has none of micro-batches or fine-tuning",
)
