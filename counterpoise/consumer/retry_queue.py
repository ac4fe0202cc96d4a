"""The retry queue: records of what is set aside (`redelivery`), and the thread that keeps it.

A record is a message of the retry queue with the key of the message that it is of, so the records
of a key are in order, and `counterpoise peek` shows them by key. Headers `counterpoise-retry-…` say
the rest: `record` (`message`, `failed`, `done`), `queue`, `incarnation`, `partition`, `position`,
`epoch`, and of the first two `attempts`, `delays`, `era`, `due` (seconds since 1970), `error`,
`published-at`. Only a `message` has a value, and the headers of its message.

The *keeper* is a thread of the consumer. It reads the retry queue for partitions that were granted,
so that the reader waits for no other log, and a worker begins nothing before. It also holds a flow
of the retry queue, and commits how far all records are of messages that are done. It needs no
order between the owners of the two queues: what is done is done, whoever reads that.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from zlib import crc32

from counterpoise.client import Client
from counterpoise.consumer.lanes import Lanes
from counterpoise.consumer.poison import Origin, Retry
from counterpoise.consumer.redelivery import Compare, MessagePlace, Redelivery, SetAside
from counterpoise.consumer.throttling import Warnings
from counterpoise.consumer.waking import Waking
from counterpoise.errors import ServiceUnavailable
from counterpoise.flow.blocking import Flow
from counterpoise.flow.ledger import Item, Ledger
from counterpoise.keys import hash_of
from counterpoise.logs import Bounds, Log, LogUnavailable, Message, open_log
from counterpoise.logs.address import environment_access
from counterpoise.publisher.buffer import Batch
from counterpoise.publisher.delivery import Delivery
from counterpoise.wire import LogView

logger = logging.getLogger("counterpoise.consumer")

PREFIX = "counterpoise-retry-"
WRITE_SECONDS = 10.0
CALL_SECONDS = 5.0
READ_MESSAGES = 1000
READ_BYTES = 8 * 1024 * 1024
COLUMNS = ("partition", "position", "key", "value", "headers")
# How often the keeper looks how far the retry queue is done, and how long it pauses after an error.
SWEEP_SECONDS = 30.0
AGAIN_SECONDS = 0.5


def record(kind: str, one: SetAside, epoch: int, now: float, wall: float) -> Message:
    """A record of the owner in this epoch. `now` and `wall`: monotonic, and seconds since 1970."""
    said = {
        "record": kind,
        "queue": one.place.queue,
        "incarnation": one.place.incarnation,
        "partition": str(one.place.partition),
        "position": one.place.position,
        "epoch": str(epoch),
    }
    if kind != "done":
        said["attempts"], said["delays"] = str(one.attempts), str(one.delays)
        said["era"] = str(one.era)
        said["due"] = repr(wall + (one.due - now) if one.due else 0.0)
        said["error"] = one.error
        said["published-at"] = one.published_at.isoformat()
    ours = {PREFIX + name: text for name, text in said.items()}
    if kind != "message":
        return Message(b"", one.key, ours)
    return Message(one.value, one.key, {**one.headers, **ours})


@dataclass
class _Known:
    """What the records say of one place."""

    message: dict[str, Any] | None = None
    key: str | None = None
    era: int = 0
    epoch: int = -1
    done_epoch: int = -1
    # The newest of `message` and `failed`: (epoch, attempts), and what it says.
    newest: tuple[int, int] = (-1, -1)
    said: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_set_aside(self) -> bool:
        return self.epoch > self.done_epoch


class Records:
    """What a set of records says; add them in any order."""

    def __init__(self, wanted: Callable[[MessagePlace], bool]) -> None:
        """`wanted`: of which places the messages are kept."""
        self._wanted = wanted
        self._known: dict[MessagePlace, _Known] = {}
        # Of each partition of the retry queue, the records `message`: position, place, epoch.
        self._messages: dict[int, list[tuple[str, MessagePlace, int]]] = {}

    def add(self, row: dict[str, Any]) -> None:
        """Take a row of the retry queue (`COLUMNS`); one that is no record says nothing."""
        said = _said(row)
        try:
            place = MessagePlace(
                said["queue"], said["incarnation"], int(said["partition"]), said["position"]
            )
            kind, epoch = said["record"], int(said["epoch"])
            attempts, era = int(said.get("attempts", 0)), int(said.get("era", 0))
        except (KeyError, ValueError):
            return
        known = self._known.setdefault(place, _Known())
        if kind == "done":
            known.done_epoch = max(known.done_epoch, epoch)
            return
        if (epoch, attempts) >= known.newest:
            known.newest, known.said, known.era = (epoch, attempts), said, era
        if kind == "message":
            self._messages.setdefault(row["partition"], []).append((row["position"], place, epoch))
            known.epoch, known.key = max(known.epoch, epoch), row["key"]
            if self._wanted(place):
                known.message = row

    def set_aside(self, now: float, wall: float) -> Iterator[SetAside]:
        """The wanted messages that are set aside. `now` and `wall` as for `record`."""
        for place, known in self._known.items():
            row, said = known.message, known.said
            if row is None or not known.is_set_aside:
                continue
            due = float(said["due"])
            headers = {
                name: text for name, text in row["headers"] or () if not name.startswith(PREFIX)
            }
            yield SetAside(
                place,
                known.epoch,
                row["key"],
                row["value"],
                headers,
                datetime.fromisoformat(said["published-at"]),
                int(said["attempts"]),
                int(said["delays"]),
                known.era,
                now + (due - wall) if due else 0.0,
                said["error"],
            )

    def held_elsewhere(self, queue: str, partition: int) -> dict[str, int]:
        """The keys of which other partitions of the queue have messages set aside, and of which
        lowest era.
        """
        held: dict[str, int] = {}
        for place, known in self._known.items():
            elsewhere = place.queue == queue and place.partition != partition
            if elsewhere and known.key is not None and known.is_set_aside:
                held[known.key] = min(known.era, held.get(known.key, known.era))
        return held

    def oldest(self, partition: int) -> str | None:
        """The position of the oldest record in a partition of the retry queue whose message is set
        aside; None: there is none.
        """
        for position, place, epoch in self._messages.get(partition, ()):
            if epoch > self._known[place].done_epoch:
                return position
        return None


def _said(row: dict[str, Any]) -> dict[str, str]:
    headers = row["headers"] or ()
    return {name.removeprefix(PREFIX): text for name, text in headers if name.startswith(PREFIX)}


def rows(log: Log, positions: Mapping[int, str | None], bounds: Bounds) -> Iterator[dict[str, Any]]:
    """The rows from these positions (None: the first one) to the ends, with `COLUMNS`."""
    for number, position in positions.items():
        start, end = bounds.starts[number], bounds.ends[number]
        if position is not None and log.compare(position, start) > 0:
            start = position
        while log.compare(start, end) < 0:
            upto = log.limit({number: start}, READ_MESSAGES, bounds, max_bytes=READ_BYTES)[number]
            for batch in log.read(number, start, upto, max_messages=READ_MESSAGES):
                # Without the times: they would load pandas (`counterpoise.logs.columns`).
                yield from batch.select(COLUMNS).to_pylist()
            start = upto


class RetryQueue:
    """The retry queue of a consumer: writes and reads its records. Thread-safe."""

    def __init__(self, policy: Retry, *, url: str | None, token: str | None) -> None:
        """`url` and `token` are those of the consumer."""
        self.policy = policy
        self._url, self._token = policy.url or url, token
        self._delivery = Delivery(
            self._access,
            open_log,
            log_url=policy.log_url,
            timeout_seconds=WRITE_SECONDS,
        )
        self._lock = threading.Lock()
        self._publisher, self._sequence = uuid.uuid4().hex, 0

    def flow(self, **options: Any) -> Flow:
        """A flow of the retry queue, not bound yet."""
        return Flow(self.policy.queue, url=self._url, token=self._token, **options)

    def write(self, kind: str, one: SetAside, epoch: int) -> None:
        """Return when the record is in the log. Raises ServiceUnavailable, LogUnavailable after
        `WRITE_SECONDS`, and permanent errors at once.
        """
        message = record(kind, one, epoch, time.monotonic(), time.time())
        message.size_bytes()
        number = hash_of(one.key) if one.key is not None else crc32(one.place.position.encode())
        with self._lock:
            batch = Batch([message], [number], 0, set(), self._publisher, self._sequence)
            try:
                self._delivery.deliver(batch)
            except BaseException:
                # The log may have it, and would take another one under its sequence for it.
                self._publisher, self._sequence = uuid.uuid4().hex, 0
                raise
            self._sequence += 1

    def read(self, wanted: Callable[[MessagePlace], bool]) -> tuple[Records, Bounds]:
        """What the retry queue says now. Raises ServiceUnavailable, LogUnavailable, LogError."""
        with Client(self._url, token=self._token, timeout_seconds=CALL_SECONDS) as client:
            view = client.log_access(self.policy.queue, "read")
            positions = {
                one.partition: one.position for one in client.partitions(self.policy.queue)
            }
        access = self.policy.log_url or environment_access(view.log) or view.access
        with closing(open_log(view.log, access, timeout_seconds=CALL_SECONDS)) as log:
            bounds = log.bounds([*positions])
            records = Records(wanted)
            for row in rows(log, positions, bounds):
                records.add(row)
            return records, bounds

    def close(self) -> None:
        """Close the connection for writing."""
        self._delivery.close()

    def _access(self, refused: bool) -> LogView:
        token = self.policy.token or self._token
        with Client(self._url, token=token, timeout_seconds=CALL_SECONDS) as client:
            if refused:
                return client.log_access(self.policy.queue, "publish", refused=True)
            return client.log_access(self.policy.queue, "publish")


class Keeper:
    """Gives lanes what is set aside, and keeps the retry queue short. One thread calls `run`."""

    def __init__(
        self,
        origin: Callable[[], Origin],
        retries: RetryQueue,
        lanes: Lanes,
        waking: Waking,
        compare: Compare,
        *,
        client_name: str,
        lease_seconds: float,
    ) -> None:
        """`origin` is the consumer's queue, whose log compares positions."""
        self._origin = origin
        self._queue = queue = origin().queue
        self._retries = retries
        self._lanes = lanes
        self._waking = waking
        self._compare = compare
        self._ledger = Ledger()
        self._warnings = Warnings(logger, queue)
        self._swept_at = float("-inf")
        self._flow = retries.flow(
            client_name=client_name,
            lease_seconds=lease_seconds,
            on_granted=self._wake,
            on_revoking=self._wake,
            on_retiring=self._wake,
        )

    def _wake(self, *_: object) -> None:
        self._waking.wake()

    def run(self) -> None:
        """Run until the lanes are closed. Raises permanent errors of the retry queue."""
        self._flow.open(wait_seconds=0)
        try:
            while not self._lanes.closed:
                pause = SWEEP_SECONDS
                try:
                    self._flow.check()
                    if self._load():
                        pause = AGAIN_SECONDS
                    self._sweep()
                except (ServiceUnavailable, LogUnavailable) as error:
                    self._warnings.warn("the retry queue is unreachable, waiting", error)
                    pause = AGAIN_SECONDS
                self._waking.wait(pause)
        finally:
            self._flow.close()
            self._retries.close()

    def _load(self) -> bool:
        """Returns whether a key is held that another partition has set aside: then load again."""
        lanes = self._lanes.loading()
        if not lanes:
            return False
        numbers = {lane.partition for lane, _ in lanes}
        records, _ = self._retries.read(
            lambda place: place.queue == self._queue and place.partition in numbers
        )
        found: dict[int, list[SetAside]] = {number: [] for number in numbers}
        for one in records.set_aside(time.monotonic(), time.time()):
            found[one.place.partition].append(one)
        incarnation, again = self._origin().incarnation, False
        for lane, loads in lanes:
            before, owned = lane.redelivery, lane.grant.owned
            # An owner knows what it has set aside itself.
            table = before or Redelivery(incarnation, self._compare, found[lane.partition])
            elsewhere: Mapping[str, int] = {}
            if owned.resize is not None:
                elsewhere = records.held_elsewhere(self._queue, lane.partition)
            again = again or bool(elsewhere)
            if before is None and table.count:
                logger.info(
                    "queue %s: partition %d epoch %d: %d messages are set aside",
                    self._queue,
                    lane.partition,
                    lane.epoch,
                    table.count,
                )
            self._lanes.loaded(lane, loads, table, elsewhere)
        return again

    def _sweep(self) -> None:
        """Commit how far all is done; release what is revoked."""
        view = self._flow.partitions
        self._ledger.follow(view)
        now = time.monotonic()
        if self._ledger.readable() and now - self._swept_at >= SWEEP_SECONDS:
            self._swept_at = now
            records, bounds = self._retries.read(lambda _: False)
            for grant in self._ledger.readable():
                number = grant.partition
                if number in bounds.ends:
                    position = records.oldest(number) or bounds.ends[number]
                    self._ledger.done(number, grant.epoch, position)
            self._ledger.learn_ends(bounds, view)
        todo = self._ledger.due(parting=self._flow.draining)
        self._ledger.decide(todo.releases)
        if todo.releases:
            self._answered(todo.releases, self._flow.release_many(todo.releases))
        if todo.commits:
            self._answered(todo.commits, self._flow.commit([one.fields for one in todo.commits]))
        if todo.ends:
            self._answered(todo.ends, self._flow.children_many(todo.ends))

    def _answered(self, items: tuple[Item, ...], outcomes: Mapping[int, str]) -> None:
        for item in items:
            self._ledger.answered(item, outcomes[item.partition])
