"""Calls that are made once, before a query or a read starts, with a limited wait.

A running query survives an unavailable service or log. Before it runs, it tries only for
`startTimeoutSeconds`, because a wrong address looks the same as a service that is down.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from counterpoise.errors import CounterpoiseError, ServiceUnavailable
from counterpoise.logs import LogNotFound, LogUnavailable
from counterpoise.spark.errors import CannotStart, SourceError
from counterpoise.spark.plan.options import SourceOptions

T = TypeVar("T")

PAUSE_SECONDS = 0.25


def patiently(act: Callable[[], T], options: SourceOptions, give_up_at: float) -> T:
    """The result of `act`, once service and log are available.

    Raises CannotStart if that is not so by `give_up_at` (monotonic), and for permanent errors; a
    SourceError of `act` is raised unchanged.
    """
    where = f"queue {options.queue!r}"
    while True:
        try:
            return act()
        except (ServiceUnavailable, LogUnavailable, LogNotFound) as error:
            # Not found may pass: the service creates a queue's log just after the queue.
            if time.monotonic() + PAUSE_SECONDS > give_up_at:
                what = "service" if isinstance(error, ServiceUnavailable) else "log"
                raise CannotStart(
                    f"{where}: no {what} within {options.start_timeout_seconds:g} s: {error}. "
                    "Check the options 'url' and 'logUrl' (or COUNTERPOISE_URL and "
                    "COUNTERPOISE_LOG_URL), and that this machine reaches both"
                ) from None
        except SourceError:
            raise
        except CounterpoiseError as error:
            raise CannotStart(f"{where}: {error}") from None
        time.sleep(PAUSE_SECONDS)
