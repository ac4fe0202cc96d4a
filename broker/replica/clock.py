"""The store's time, known between two reads of it.

Deadlines are compared with the store's clock, never with a replica's (its wall clock may be wrong,
and replicas differ). Each read (`pulse`) gives the store's time; in between, the time that passed
here is added.

A replica may have been frozen, or cut off from the store, or its machine has slept, and it does not
know. Then nobody may have served meanwhile, and leases and deadlines have to be moved before
anything is decided (the contract, *Flow*). So what this replica knows counts only while it is
`fresh`: a replica that has read the time less than `FRESH_SECONDS` ago, by a clock that goes on in
a sleep (`counterpoise.lease_time`), cannot have missed an outage, which takes longer.

The store's clock may be set at any time (`broker.store.leases`), and nobody here can know before
the next read, a second later. What is decided by the old time until then does no harm: it moves
with the clock, like all that was decided before, when the queue's next transaction finds the step
among the outages that it has not seen. But once a queue has moved, the old time must not be used on
it. So time and outage come from the same read, one without the step never counts after one with it,
and if a queue has seen an outage of which this replica does not know, it reads the time again
(`Coordinator`).
"""

from __future__ import annotations

from collections.abc import Callable

from broker.store.ports import Outage, Pulse, Store

FRESH_SECONDS = 2.0


class StoreClock:
    """The store's time, as far as this replica knows it."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        """`monotonic` gives seconds from any point in the past, and never goes back."""
        self._monotonic = monotonic
        self._read_at: float | None = None
        self._offset = 0.0
        self.outage: Outage | None = None

    async def read(self, store: Store) -> Pulse:
        """Reads the time, which stamps that this replica serves.

        Raises StoreUnavailable.
        """
        while True:
            known = self.outage_id
            # The answer may lie around while this process is frozen, so only the call has a time.
            read_at = self._monotonic()
            pulse = await store.pulse()
            found = 0 if pulse.outage is None else pulse.outage.id
            if not known <= found < self.outage_id:
                break
            # Another read has found meanwhile what came after this answer.
        # A database that was restored from a backup knows less than it knew.
        if self._read_at is None or found != self.outage_id or read_at >= self._read_at:
            self._read_at, self._offset = read_at, pulse.now - read_at
            self.outage = pulse.outage
        return pulse

    @property
    def outage_id(self) -> int:
        """The id of the latest outage that is known; 0: there was none."""
        return 0 if self.outage is None else self.outage.id

    @property
    def fresh(self) -> bool:
        """Whether the store was read so lately that no outage can have passed unnoticed."""
        return self._read_at is not None and self._monotonic() - self._read_at <= FRESH_SECONDS

    def fresh_now(self) -> float | None:
        """The store's time in Unix seconds; None unless it is `fresh`."""
        return self.now() if self.fresh else None

    def now(self) -> float:
        """The store's time in Unix seconds."""
        assert self._read_at is not None, "the store's time was not read yet"
        return self._monotonic() + self._offset
