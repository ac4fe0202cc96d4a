"""The rates of publishing flights and of processing them.

Both serve one goal: whatever happens to an application, flights must wait in its partitions, and
flights must be left for the last act. So

- the publisher runs ahead of the applications by at least `lead` flights in every partition,
- each application processes `rate` flights a second until the last act. At this rate two
  applications would need much longer for all flights than the scenario takes. The rate falls when
  much of the data set is processed already, as on a busy machine.

All numbers are proportional to the number of flights, so that a short demo has the same shape.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from counterpoise.demo.work.flights import Flight
from counterpoise.publisher import Publisher

# The time of two applications at full rate for all flights.
THROTTLED_SECONDS = 75.0
APPLICATIONS = 2
# How long a micro-batch takes at full rate: the rhythm of the demo.
BATCH_SECONDS = 0.8
LEAD_SECONDS = 4.0
# After this fraction of the flights, the applications slow down.
SLOW_FROM = 0.45
LAST_ACT = 0.75
SLOWEST = 0.05

CHUNK_MESSAGES = 1000
CHECK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Plan:
    """The rates and limits for a demo with this many flights and partitions."""

    flights: int
    partitions: int

    @property
    def rate(self) -> float:
        """Flights a second of one application, before the last act."""
        return self.flights / THROTTLED_SECONDS / APPLICATIONS

    @property
    def batch_messages(self) -> int:
        """The most messages of a micro-batch: at least one of each partition."""
        return max(self.partitions, round(self.rate * BATCH_SECONDS))

    @property
    def lead(self) -> int:
        """Flights that are to wait in each partition."""
        return max(5, round(self.rate * APPLICATIONS * LEAD_SECONDS / self.partitions))

    def rate_after(self, processed: int) -> float:
        """The rate after this many processed flights."""
        left = (LAST_ACT - processed / self.flights) / (LAST_ACT - SLOW_FROM)
        return self.rate * min(1.0, max(SLOWEST, left))


class Rate:
    """The file from which the applications read their rate."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.set(0.0)

    def set(self, flights_per_second: float) -> None:
        """0 is as fast as possible. A reader sees either the old number or the new one."""
        temporary = self.path.with_suffix(".new")
        temporary.write_text(f"{flights_per_second:.3f}")
        temporary.replace(self.path)


class ThrottledPublisher:
    """Publishes the flights in their order, in a thread, `lead` ahead in every partition.

    `backlog` returns the number of waiting flights of each partition. `release` lifts the limit.
    """

    def __init__(
        self,
        publisher: Publisher,
        flights: Sequence[Flight],
        lead: int,
        backlog: Callable[[], Mapping[int, int]],
    ) -> None:
        self._publisher = publisher
        self._flights = flights
        self._lead = lead
        self._backlog = backlog
        self._released = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.published = 0
        self.error: Exception | None = None

    def start(self) -> None:
        self._thread.start()

    def release(self) -> None:
        """Publish the rest without waiting."""
        self._released.set()

    @property
    def done(self) -> bool:
        return self.published == len(self._flights)

    def stop(self) -> None:
        """End, even if not everything is published."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self.done and not self._stopping.is_set():
                ahead = self._released.is_set() or self._missing() > 0
                if ahead:
                    self._publish(CHUNK_MESSAGES if self._released.is_set() else self._missing())
                else:
                    self._stopping.wait(CHECK_SECONDS)
        except Exception as error:
            self.error = error

    def _missing(self) -> int:
        """Estimate how many flights to publish so that every partition has its lead."""
        backlog = self._backlog()
        short = self._lead - min(backlog.values())
        return max(0, min(CHUNK_MESSAGES, short * len(backlog)))

    def _publish(self, count: int) -> None:
        for flight in self._flights[self.published : self.published + count]:
            self._publisher.publish(flight.value(), key=flight.aircraft)
        self._publisher.flush()
        self.published = min(len(self._flights), self.published + count)
