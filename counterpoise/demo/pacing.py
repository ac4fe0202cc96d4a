"""How fast the flights are published, and how fast the applications may process them.

Both follow from one wish: whatever happens to an application, flights must be waiting in the
partitions concerned, and there must be flights left when the last act comes. So

- the publisher runs ahead of the applications by at least `lead` flights in every partition,
- each application processes `pace` flights a second until the last act, with which two of them
  would take much longer for everything than the scenario does; and fewer when much of the data set
  has gone already, as on a machine that is busy.

All numbers are in proportion to the number of flights, so that a short demo has the same shape.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from counterpoise.demo.flights import Flight
from counterpoise.publisher import Publisher

# What two applications at full pace would take for all flights.
PACED_SECONDS = 75.0
APPLICATIONS = 2
# How long a micro-batch takes at full pace: the rhythm of the demo.
BATCH_SECONDS = 0.8
LEAD_SECONDS = 4.0
# From this part of the flights on, the applications slow down.
SLOW_FROM = 0.45
LAST_ACT = 0.75
SLOWEST = 0.05

CHUNK_MESSAGES = 1000
CHECK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Plan:
    """The numbers for a demo of so many flights over so many partitions."""

    flights: int
    partitions: int

    @property
    def pace(self) -> float:
        """Flights a second of one application, before the last act."""
        return self.flights / PACED_SECONDS / APPLICATIONS

    @property
    def batch_messages(self) -> int:
        """The most that a micro-batch may hold: at least one message of each partition."""
        return max(self.partitions, round(self.pace * BATCH_SECONDS))

    @property
    def lead(self) -> int:
        """Flights that are to wait in each partition."""
        return max(5, round(self.pace * APPLICATIONS * LEAD_SECONDS / self.partitions))

    def pace_after(self, processed: int) -> float:
        """The pace when so many flights have been processed."""
        left = (LAST_ACT - processed / self.flights) / (LAST_ACT - SLOW_FROM)
        return self.pace * min(1.0, max(SLOWEST, left))


class Pace:
    """The pace as the applications read it: a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.set(0.0)

    def set(self, flights_per_second: float) -> None:
        """0 is as fast as can be. Whoever reads sees the old number or the new one."""
        temporary = self.path.with_suffix(".new")
        temporary.write_text(f"{flights_per_second:.3f}")
        temporary.replace(self.path)


class PacedPublisher:
    """Publishes the flights in their order, in a thread, `lead` ahead in every partition.

    `backlog` says how many flights wait in each partition. `release` lifts the pace.
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
        """Publish all that is left without waiting for anybody."""
        self._released.set()

    @property
    def done(self) -> bool:
        return self.published == len(self._flights)

    def stop(self) -> None:
        """End, whether everything is published or not."""
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
        """How many flights to publish so that the emptiest partition has its lead, at a guess."""
        backlog = self._backlog()
        short = self._lead - min(backlog.values())
        return max(0, min(CHUNK_MESSAGES, short * len(backlog)))

    def _publish(self, count: int) -> None:
        for flight in self._flights[self.published : self.published + count]:
            self._publisher.publish(flight.value(), key=flight.aircraft)
        self._publisher.flush()
        self.published = min(len(self._flights), self.published + count)
