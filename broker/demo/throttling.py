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
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

from broker.demo.work.flights import Flight
from counterpoise.keys import hash_of
from counterpoise.logs.ranges import HashRange
from counterpoise.publisher import Publisher

# The time of two applications at full rate for all flights.
THROTTLED_SECONDS = 60.0
APPLICATIONS = 2
# How long a micro-batch takes at full rate: the rhythm of the demo.
BATCH_SECONDS = 1.0
LEAD_SECONDS = 4.0
# After this fraction of the flights, the applications slow down.
SLOW_FROM = 0.45
LAST_ACT = 0.75
SLOWEST = 0.05

# So many of the flights that are published during a rush belong to its range.
RUSH_SHARE = 0.75

CHUNK_MESSAGES = 1000
CHECK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Plan:
    """The rates and limits for a demo with this many flights and partitions."""

    flights: int
    partitions: int
    throttled_seconds: float = THROTTLED_SECONDS

    @property
    def rate(self) -> float:
        """Flights a second of one application, before the last act."""
        return self.flights / self.throttled_seconds / APPLICATIONS

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


class Flights(Protocol):
    """The flights in the order in which they are published."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Flight]: ...


class Rush:
    """The flights, with a rush on a range of hashes while it lasts.

    The flights of the range and all others keep their order, so the order of each aircraft holds.
    Before and after the rush the two take turns in proportion to what is left of them.
    """

    def __init__(self, flights: Iterable[Flight]) -> None:
        self._others = deque(flights)
        self._hot: deque[Flight] = deque()
        self._count = len(self._others)
        self._credit = 0.0
        self._lock = threading.Lock()
        self.going_on = False

    def begin(self, hot: HashRange) -> None:
        """From now on most flights are those of this range. Call it once."""
        with self._lock:
            rest, self._others = self._others, deque()
            for flight in rest:
                own = flight.aircraft is not None and hash_of(flight.aircraft) in hot
                (self._hot if own else self._others).append(flight)
            self.going_on = True

    def end(self) -> None:
        """The rest comes evenly."""
        self.going_on = False

    def __len__(self) -> int:
        """How many flights there are in all."""
        return self._count

    def __iter__(self) -> Iterator[Flight]:
        while True:
            with self._lock:
                if not self._hot and not self._others:
                    return
                flight = self._next()
            yield flight

    def _next(self) -> Flight:
        hot, others = len(self._hot), len(self._others)
        share = RUSH_SHARE if self.going_on else hot / (hot + others)
        self._credit = min(2.0, self._credit + share)
        if hot and (not others or self._credit >= 1.0):
            self._credit -= 1.0
            return self._hot.popleft()
        return self._others.popleft()


class ThrottledPublisher:
    """Publishes the flights in their order, in a thread, `lead` ahead in every partition.

    `backlog` returns the number of waiting flights of each partition that counts. `release` lifts
    the limit.
    """

    def __init__(
        self,
        publisher: Publisher,
        flights: Flights,
        lead: int,
        backlog: Callable[[], Mapping[int, int]],
    ) -> None:
        self._publisher = publisher
        self._flights = iter(flights)
        self._count = len(flights)
        self._lead = lead
        self._backlog = backlog
        self.trickle = 0
        """So many flights are published each CHECK_SECONDS, however many wait."""
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
        return self.published == self._count

    def stop(self) -> None:
        """End, even if not everything is published."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self.done and not self._stopping.is_set():
                missing = CHUNK_MESSAGES if self._released.is_set() else self._missing()
                if missing or self.trickle:
                    self._publish(max(missing, self.trickle))
                if not missing:
                    self._stopping.wait(CHECK_SECONDS)
        except Exception as error:
            self.error = error

    def _missing(self) -> int:
        """Estimate how many flights to publish so that every partition has its lead."""
        backlog = self._backlog()
        if not backlog:
            return 0
        short = self._lead - min(backlog.values())
        return max(0, min(CHUNK_MESSAGES, short * len(backlog)))

    def _publish(self, count: int) -> None:
        for flight in islice(self._flights, count):
            self._publisher.publish(flight.value(), key=flight.aircraft)
        self._publisher.flush()
        self.published = min(self._count, self.published + count)
