"""Producer of a growing stream: settings, beginning, intake of samples, packing, commits, recovery,
statistics.

A record of the log commits three things at once: a shard, the position in the source after it, and
the samples that were taken from the source and are in no shard yet. So a process that reads the
last record can resume: the same producer after a kill, or a concurrent process that does the same
work. If two write the next record, one succeeds; the other discards its shard and resumes from that
record.
"""

from brimful.stream.producer.open_window import ProducerStatistics
from brimful.stream.producer.packing_producer import PackingProducer
from brimful.stream.producer.settings import ProducerSettings

__all__ = ["PackingProducer", "ProducerSettings", "ProducerStatistics"]
