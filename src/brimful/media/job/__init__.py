"""Media of jobs that write packs: surveyed, laid out in containers, written; and the media of a
producer as they arrive.
"""

from brimful.media.job.media_job import job_of
from brimful.media.job.producer import ArrivedMedia, CarriedMedia, ShardContainer
from brimful.media.job.writer import ShardMediaWriter

__all__ = ["ArrivedMedia", "CarriedMedia", "ShardContainer", "ShardMediaWriter", "job_of"]
