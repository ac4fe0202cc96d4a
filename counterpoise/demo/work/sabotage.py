"""Ways to break the promises on purpose, to show that the verdict notices.

Each is done in the real run, by an application with a realistic error:

- `skip`: some messages are left out, and the application commits past them;
- `reorder`: the first micro-batches are put aside, and then processed with the last one first;
- `unfenced`: a zombie. When another application gets one of its partitions, it does not stop: it
  continues to read the partition from the log and writes to the sink under its old epoch, and its
  sink does not check epochs.

And where partitions are split and merged:

- `early`: while a new partition waits for its parents, the application reads it from the log and
  processes its messages;
- `twice`: when one of its partitions has ended, it processes the last batch of it once more.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal, get_args

from counterpoise.client import Client
from counterpoise.demo.work.flights import Flight
from counterpoise.demo.work.sink import Message, Slice
from counterpoise.logs import Log, open_log
from counterpoise.wire import Partition

Sabotage = Literal["unfenced", "skip", "reorder"]
SplitSabotage = Literal["early", "twice", "skip"]
SABOTAGES = get_args(Sabotage)
SPLIT_SABOTAGES = get_args(SplitSabotage)
ALL_SABOTAGES = tuple(dict.fromkeys(SABOTAGES + SPLIT_SABOTAGES))

SKIPPED_MESSAGES = 3
# On the first days of the data set few aircraft fly twice within fewer flights.
REORDERED_BATCHES = 6
MORE_MESSAGES = 50


class Damage:
    """Changes the micro-batches of an application."""

    def __init__(self, sabotage: str | None) -> None:
        self._sabotage = sabotage
        self._aside: list[Sequence[Slice]] = []

    def __call__(self, batch: int, slices: Sequence[Slice]) -> list[Slice]:
        """The slices to process now, in this order."""
        if self._sabotage == "skip" and batch % 5 == 2:
            return [replace(part, messages=part.messages[SKIPPED_MESSAGES:]) for part in slices]
        if self._sabotage == "reorder" and len(self._aside) < REORDERED_BATCHES:
            self._aside.append(slices)
            if len(self._aside) < REORDERED_BATCHES:
                return []
            return [part for aside in reversed(self._aside) for part in aside]
        return list(slices)


class _Further:
    """Reads messages of partitions that its application does not own."""

    def __init__(self, url: str, queue: str) -> None:
        self._client = Client(url)
        self._queue = queue
        self._log: Log | None = None

    def _partitions(self) -> list[Partition]:
        return self._client.partitions(self._queue)

    def _read(self, partition: int, epoch: int, start: int | None) -> Slice:
        """The next messages of the partition from this position, or from its first one."""
        if self._log is None:
            view = self._client.log_access(self._queue, "read")
            self._log = open_log(view.log, view.access)
        begin = self._log.bounds([partition]).starts[partition] if start is None else str(start)
        messages = [
            Message(int(row["position"]), Flight.of(row["value"]), row["published_at"].timestamp())
            for rows in self._log.read(partition, begin, None, max_messages=MORE_MESSAGES)
            for row in rows.to_pylist()
        ]
        return Slice(partition, epoch, messages)


class Zombie(_Further):
    """Continues with the partitions that its application has lost."""

    def __init__(self, url: str, queue: str) -> None:
        super().__init__(url, queue)
        self._held: dict[int, Slice] = {}
        """By partition: its last slice."""

    def __call__(self, slices: Iterable[Slice]) -> list[Slice]:
        """The next messages of the partitions that are no longer its own, under the old epoch."""
        self._held |= {part.partition: part for part in slices if part.messages}
        current = {p.partition: p.epoch for p in self._partitions()}
        lost = [part for part in self._held.values() if part.epoch < current[part.partition]]
        read = [self._read(p.partition, p.epoch, p.messages[-1].position + 1) for p in lost]
        further = [part for part in read if part.messages]
        self._held |= {part.partition: part for part in further}
        return further


class Impatient(_Further):
    """Does not wait for the parents of a partition."""

    def __init__(self, url: str, queue: str) -> None:
        super().__init__(url, queue)
        self._next: dict[int, int] = {}
        """By waiting partition: the position after the last message processed."""

    def __call__(self, slices: Iterable[Slice]) -> list[Slice]:
        """The next messages of all waiting partitions."""
        waiting = [one for one in self._partitions() if one.state == "waiting"]
        read = [self._read(p.partition, p.epoch, self._next.get(p.partition)) for p in waiting]
        further = [part for part in read if part.messages]
        self._next |= {part.partition: part.messages[-1].position + 1 for part in further}
        return further


class Repeater(_Further):
    """Takes an ended partition for one that it must finish still."""

    def __init__(self, url: str, queue: str) -> None:
        super().__init__(url, queue)
        self._held: dict[int, Slice] = {}

    def __call__(self, slices: Iterable[Slice]) -> list[Slice]:
        """The last slices of its partitions that have ended since the last call."""
        self._held |= {part.partition: part for part in slices if part.messages}
        going = {one.partition for one in self._partitions() if one.state != "finished"}
        return [self._held.pop(number) for number in sorted(self._held.keys() - going)]
