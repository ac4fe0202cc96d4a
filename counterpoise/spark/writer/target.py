"""The queue that is written to, for the tasks that write."""

from __future__ import annotations

import logging
import random
import time
from typing import TYPE_CHECKING

from counterpoise.backoff import Backoff, Pauses
from counterpoise.client import Client
from counterpoise.errors import ServiceUnavailable
from counterpoise.logs.address import environment_access
from counterpoise.spark.writer.appender import TargetQueue
from counterpoise.spark.writer.options import WriteOptions

if TYPE_CHECKING:
    from counterpoise.wire import LogView

logger = logging.getLogger("counterpoise.spark")

_BACKOFF = Backoff(0.2, 5.0)


def target_of(options: WriteOptions, *, waits: bool) -> TargetQueue:
    """How tasks reach the log of the queue. Raises errors of the client.

    A stream `waits` for a service that is away as long as for a log: each micro-batch asks it, and
    a restart of the service must not end the query.
    """
    with Client(options.url) as client:
        view = _view(client, options, options.write_timeout_seconds if waits else 0.0)
    log_url = options.log_url or environment_access(view.log)
    return TargetQueue(view, log_url, options.write_timeout_seconds)


def _view(client: Client, options: WriteOptions, seconds: float) -> LogView:
    give_up_at = time.monotonic() + seconds
    pauses = Pauses(_BACKOFF)
    while True:
        try:
            return client.log_access(options.queue, "publish")
        except ServiceUnavailable as error:
            pause = max(pauses.failed(random.random()), error.retry_after or 0.0)
            if time.monotonic() + pause >= give_up_at:
                raise
            logger.warning("counterpoise: queue %s is not written yet: %s", options.queue, error)
        time.sleep(pause)
