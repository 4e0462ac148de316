"""unsloth: installed only."""

from tests.compat.trainer import Trainer

TRAINER = Trainer(name="unsloth", package="unsloth", why_no_step="it was only installed")
