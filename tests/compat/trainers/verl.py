"""verl: micro-batches and rows of fine-tuning by its own functions; its workers need a GPU or Ray."""

from tests.compat.trainer import Trainer

TRAINER = Trainer(
    name="verl",
    package="verl",
    page="verl.md",
    ours=("tests/integrations/trainers/test_verl.py", "tests/rl/compat"),
    own=("tests/utils/test_seqlen_balancing.py", "tests/test_protocol_on_cpu.py"),
    needs=("uvicorn", "fastapi"),
    why_no_step="its workers train on a GPU",
)
