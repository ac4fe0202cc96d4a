"""The batch reader: `spark.read.format("counterpoise")`, a snapshot of a queue's log.

It only reads: it binds no flow, does not take part in the balance and commits nothing. The ranges
are decided while Spark plans the read (`batch_planning`). The tasks are those of streams
(`executor`). Their rows have no epoch (null), because there was no grant.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from counterpoise.spark.plan.options import SourceOptions
from counterpoise.spark.tasks.ahead import ahead
from counterpoise.spark.tasks.executor import LogPartition, read_slices


class CounterpoiseBatchReader(DataSourceReader):
    """Reads the chosen ranges of a queue's log."""

    def __init__(self, options: SourceOptions, cores: int) -> None:
        """Raises InvalidOption for an option that only a stream has. Does nothing else."""
        self._options = options.for_batch()
        self._cores = cores

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the read. Raises CannotStart and InvalidOption, which say what to do."""
        # The tasks load this module too, and never call the service.
        from counterpoise.spark.source.batch_planning import plan_batch

        return plan_batch(self._options, self._cores)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LogPartition)
        return ahead(lambda pause: read_slices(partition, sleep=pause))

    def __getstate__(self) -> dict[str, Any]:
        """For the tasks: only options, and no secret."""
        return {"_options": self._options.for_tasks(), "_cores": self._cores}
