"""The store's time, known between two looks at it.

Deadlines are compared with the store's clock, never with a replica's (its wall clock may be wrong,
and replicas differ). Each look (`pulse`) tells the store's time; in between, the time that passed
here is added.
"""

from __future__ import annotations

from collections.abc import Callable


class StoreClock:
    """The store's time, as far as this replica can tell."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        """`monotonic` tells seconds from any point in the past, and never goes back."""
        self._monotonic = monotonic
        self._offset: float | None = None

    def observe(self, store_time: float) -> None:
        """Takes over what the store just said."""
        self._offset = store_time - self._monotonic()

    @property
    def known(self) -> bool:
        """Whether the store has told its time yet."""
        return self._offset is not None

    def now(self) -> float:
        """The store's time in Unix seconds."""
        assert self._offset is not None, "the store has not told its time yet"
        return self._monotonic() + self._offset
