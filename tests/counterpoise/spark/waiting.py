"""How these tests wait: for an event, never for time to pass."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(condition: Callable[[], object], what: str, seconds: float = 90.0) -> None:
    """Wait until the condition holds; fail when it takes too long."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.02)
    print(f"{time.monotonic() - deadline + seconds:7.2f} s until {what}")
