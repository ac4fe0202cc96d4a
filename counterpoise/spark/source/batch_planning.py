"""Planning a batch read: its ranges, and their distribution among tasks.

The service is asked here for the queue's partitions and the access to its log. The ends of the
ranges are decided here too. So all tasks read the state of one moment, however long they take and
however often they are repeated.
"""

from __future__ import annotations

import time

from counterpoise.client import Client
from counterpoise.spark.plan.extent import Known, chosen, extents
from counterpoise.spark.plan.options import SourceOptions
from counterpoise.spark.plan.planning import pack
from counterpoise.spark.run.patience import patiently
from counterpoise.spark.run.probe import ask_bounds
from counterpoise.spark.tasks.executor import LogPartition, log_partition
from counterpoise.spark.tasks.log_connection import LogConnection, QueueAccess

_CALL_SECONDS = 10.0


def plan_batch(options: SourceOptions, cores: int) -> list[LogPartition]:
    """The slices of each task. Raises CannotStart and InvalidOption, which say what to do."""
    give_up_at = time.monotonic() + options.start_timeout_seconds
    timeout_seconds = max(0.1, min(_CALL_SECONDS, options.start_timeout_seconds))
    with Client(options.url, timeout_seconds=timeout_seconds) as client:
        return patiently(lambda: _plan(client, options, cores), options, give_up_at)


def _plan(client: Client, options: SourceOptions, cores: int) -> list[LogPartition]:
    access = QueueAccess(client, options.queue)
    known = Known(
        options.queue,
        {one.partition: one.position for one in client.partitions(options.queue)},
        access.view.start,
    )
    numbers = chosen(options.starting, options.ending, known)
    connection = LogConnection(access, options.log_url)
    try:
        bounds, log = ask_bounds(connection, numbers)
        slices = extents(options.starting, options.ending, known, log, bounds)
    finally:
        connection.close()
    most = options.max_input_partitions or cores
    return [log_partition(connection, options, group) for group in pack(slices, most)]
