"""How these tests wait: for an event, never for time to pass."""

from __future__ import annotations

from collections.abc import Callable

from tests.eventual import eventually


def until(condition: Callable[[], object], what: str, seconds: float = 900.0) -> None:
    """Wait until the condition holds; fail when it takes too long."""
    print(f"{eventually(condition, seconds, what):7.2f} s until {what}")
