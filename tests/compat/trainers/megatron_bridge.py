"""Megatron-Bridge: its reading of our batch; its attention for packs is Transformer Engine's."""

from tests.compat.trainer import Trainer

TRAINER = Trainer(
    name="Megatron-Bridge",
    package="megatron-bridge",
    page="megatron_bridge.md",
    ours=(
        "tests/integrations/trainers/test_real_readers.py",
        "tests/collate/test_real_libraries.py",
        "-k",
        "bridge",
    ),
    why_no_step="its attention for packs is Transformer Engine's, on a GPU",
)
