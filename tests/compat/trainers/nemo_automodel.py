"""NeMo AutoModel: its loader and its reading of our batch; its attention for packs is Transformer Engine's."""

from tests.compat.trainer import Trainer

TRAINER = Trainer(
    name="NeMo AutoModel",
    package="nemo-automodel",
    page="nemo_automodel.md",
    ours=(
        "tests/integrations/trainers/test_real_readers.py",
        "tests/collate/test_real_libraries.py",
        "-k",
        "nemo_automodel",
    ),
    why_no_step="its attention for packs is Transformer Engine's, on a GPU",
)
