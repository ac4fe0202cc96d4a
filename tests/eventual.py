"""How tests wait for what comes about.

A module of its own: a Spark driver of the tests waits too, and importing the service takes it two
seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable

# Of a wait for something that is cheap to look at.
MOST_PAUSE_SECONDS = 0.25


def eventually(
    condition: Callable[[], object], seconds: float = 500.0, what: str = "it came about"
) -> float:
    """Wait until the condition holds; fail if it does not in time. Returns how long that took.

    The test looks often at first, and less often the longer it waits and the longer a look takes:
    what it waits for needs the processors too.
    """
    began = time.monotonic()
    while True:
        looked = time.monotonic()
        if condition():
            return time.monotonic() - began
        now = time.monotonic()
        assert now < began + seconds, f"not in time: {what}"
        cost = now - looked
        pause = max(0.01, 4 * cost, (now - began) / 20)
        time.sleep(min(pause, max(MOST_PAUSE_SECONDS, 4 * cost)))
