"""Probe as a callback: ``ProbeCallback`` of Transformers and TRL, ``LightningProbe`` of Lightning.

Each library is imported when its callback is.
"""

from brimful.base.optional import at_first_use

__all__ = ["LightningProbe", "ProbeCallback"]  # noqa: F822, see __getattr__

__getattr__ = at_first_use(
    __name__,
    {
        "brimful.doctor.probing.trainer_callback": ["ProbeCallback"],
        "brimful.doctor.probing.lightning_callback": ["LightningProbe"],
    },
)
