"""The producer of a stream that grows: settings, beginning, intake of samples, packing, commits, recovery, statistics.

A record of the log commits three things at once: a shard, the position in the source behind it, and what was taken from
the source and is in no shard yet. So whoever reads the last record knows how to go on: the same producer after a kill,
or another process that does the same work at the same time. Of two that write the next record one succeeds; the other
throws its shard away and goes on from that record.
"""

from brimful.materialize.producer.packing_producer import PackingProducer
from brimful.materialize.producer.statistics import ProducerStatistics

__all__ = ["PackingProducer", "ProducerStatistics"]
