"""What is asked once, before a query or a read starts, and may have to wait for its turn.

Once started, a query outlives a service or a log that is away for a while. Before that it tries for
`startTimeoutSeconds` only: a wrong address looks the same as a service that is down.
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
    """What `act` returns, once neither the service nor the log is away any more.

    Raises CannotStart when that does not come by `give_up_at` (monotonic), and for what no waiting
    will mend; a SourceError of `act` is left as it is.
    """
    where = f"queue {options.queue!r}"
    while True:
        try:
            return act()
        except (ServiceUnavailable, LogUnavailable, LogNotFound) as error:
            # Not found: the service makes a queue's log just after the queue.
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
