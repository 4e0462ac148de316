"""Doctor: is packing right in the run that you have, with any trainer and any data?

Three depths, one report. ``config`` reads the configuration of a run and what is known about its
trainer, ``batch`` reads batches of any loader, ``probing`` runs the job's own forward with other
tokens in one segment. ``problems`` has the sentence and the thread of each fault that happened
before, ``trainers`` has the facts of each trainer, as data. Nothing here knows a pack: a batch is a
``BatchView`` of words and of what each claims.
"""

from brimful.base.optional import at_first_use
from brimful.doctor.report import DoctorReport, Evidence, Finding, Line

__all__ = [
    "DoctorReport",
    "Evidence",
    "Finding",
    "LightningProbe",
    "Line",
    "ProbeCallback",
    "diagnose",
    "examine",
    "probe",
]

__getattr__ = at_first_use(
    __name__,
    {
        "batch.diagnose": ["diagnose"],
        "config.examine": ["examine"],
        "probing.probe": ["probe"],
        "probing.trainer_callback": ["ProbeCallback"],
        "probing.lightning_callback": ["LightningProbe"],
    },
)
