"""The queue that is written to, for the tasks that write."""

from __future__ import annotations

from counterpoise.client import Client
from counterpoise.logs.address import environment_access
from counterpoise.spark.writer.appender import TargetQueue
from counterpoise.spark.writer.options import WriteOptions


def target_of(options: WriteOptions) -> TargetQueue:
    """How tasks reach the log of the queue. Raises errors of the client."""
    with Client(options.url) as client:
        view = client.log_access(options.queue, "publish")
    log_url = options.log_url or environment_access(view.log)
    return TargetQueue(view, log_url, options.write_timeout_seconds)
