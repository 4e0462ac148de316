"""Megatron-Core: its reading of our batch; its attention for packs is Transformer Engine's."""

from tests.compat.trainer import Trainer

TRAINER = Trainer(
    name="Megatron-LM (its Core)",
    package="megatron-core",
    page="megatron_lm.md",
    ours=(
        "tests/integrations/trainers/test_real_readers.py",
        "tests/collate/test_real_libraries.py",
        "-k",
        "megatron and not bridge",
    ),
    why_no_step="its attention for packs is Transformer Engine's, on a GPU",
)
