"""unsloth: installed only; importing it asks for a GPU."""

from tests.compat.trainer import Trainer

TRAINER = Trainer(name="unsloth", package="unsloth", why_no_step="importing it needs a GPU")
