"""Ways to break the promises on purpose, to show that the verdict notices.

Each is done in the real run, by an application with a realistic error:

- `skip`: some messages are left out, and the application commits past them;
- `reorder`: the first micro-batches are put aside, and then processed with the last one first;
- `unfenced`: a zombie. When another application gets one of its partitions, it does not stop: it
  continues to read the partition from the log and writes to the sink under its old epoch, and its
  sink does not check epochs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal, get_args

from counterpoise.client import Client
from counterpoise.demo.work.flights import Flight
from counterpoise.demo.work.sink import Message, Slice
from counterpoise.logs import Log, open_log

Sabotage = Literal["unfenced", "skip", "reorder"]
SABOTAGES = get_args(Sabotage)

SKIPPED_MESSAGES = 3
# On the first days of the data set few aircraft fly twice within fewer flights.
REORDERED_BATCHES = 6
ZOMBIE_MESSAGES = 50


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


class Zombie:
    """Continues with the partitions that its application has lost."""

    def __init__(self, url: str, queue: str) -> None:
        self._client = Client(url)
        self._queue = queue
        self._log: Log | None = None
        self._held: dict[int, Slice] = {}
        """By partition: its last slice."""

    def more(self, slices: Iterable[Slice]) -> list[Slice]:
        """The next messages of the partitions that are no longer its own."""
        self._held |= {part.partition: part for part in slices if part.messages}
        current = {p.partition: p.epoch for p in self._client.partitions(self._queue)}
        lost = [part for part in self._held.values() if part.epoch < current[part.partition]]
        further = [part for part in map(self._read_on, lost) if part.messages]
        self._held |= {part.partition: part for part in further}
        return further

    def _read_on(self, part: Slice) -> Slice:
        """The messages after this slice in the log, under the old epoch."""
        if self._log is None:
            view = self._client.log_access(self._queue, "read")
            self._log = open_log(view.log, view.access)
        start = str(part.messages[-1].position + 1)
        messages = [
            Message(int(row["position"]), Flight.of(row["value"]), row["published_at"].timestamp())
            for rows in self._log.read(part.partition, start, None, max_messages=ZOMBIE_MESSAGES)
            for row in rows.to_pylist()
        ]
        return replace(part, messages=messages)
