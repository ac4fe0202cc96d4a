"""The retry queue: records of what is set aside (`redelivery`), and the thread that keeps it.

A record is a message of the retry queue with the key of the message that it is of, so the records
of a key are in order, and `counterpoise peek` shows them by key. Headers `counterpoise-retry-…` say
the rest: `record` (`message`, `failed`, `done`), `queue`, `queue-id`, `incarnation`, `partition`,
`position`, `epoch`, and of the first two `attempts`, `delays`, `era`, `due` (seconds since 1970),
`error`, `published-at`. Only a `message` has a value, and the headers of its message. A message
that is no record is an error (`WrongQueue`): the queue may be another one's, whose messages would
be passed.

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
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from zlib import crc32

from counterpoise.calls import check_queue
from counterpoise.client import Client
from counterpoise.consumer.lanes import Lanes
from counterpoise.consumer.letters import (
    LONGEST_ERROR_CHARACTERS,
    RETRY_HEADER,
    Origin,
    number_in,
    time_in,
    without_ours,
)
from counterpoise.consumer.opening import QueueReading
from counterpoise.consumer.poison import Retry, WrongQueue
from counterpoise.consumer.redelivery import Compare, MessagePlace, Redelivery, SetAside
from counterpoise.consumer.throttling import Warnings
from counterpoise.errors import Invalid, ServiceUnavailable, reached_before
from counterpoise.flow.blocking import Flow
from counterpoise.flow.ledger import Item, Ledger
from counterpoise.keys import hash_of
from counterpoise.lease_time import lease_time
from counterpoise.logs import (
    Bounds,
    Log,
    LogNotFound,
    LogUnavailable,
    Message,
    PositionTrimmed,
    open_log,
)
from counterpoise.publisher.buffer import Batch
from counterpoise.publisher.delivery import Delivery
from counterpoise.waking import Waking
from counterpoise.wire import LogView

logger = logging.getLogger("counterpoise.consumer")

PREFIX = RETRY_HEADER
# Of a record that could have been written by one of us; later times are no reason to wait.
LATEST_DUE = 2.0**32
WRITE_SECONDS = 10.0
CALL_SECONDS = 5.0
READ_MESSAGES = 1000
READ_BYTES = 8 * 1024 * 1024
# How often the keeper looks how far the retry queue is done, and how long it pauses after an error.
SWEEP_SECONDS = 30.0
AGAIN_SECONDS = 0.5
# A log may be missing for a moment, and another consumer may commit, and so trim, what is read.
AWAY = (ServiceUnavailable, LogUnavailable, LogNotFound)
AGAIN = (*AWAY, PositionTrimmed)


def record(kind: str, one: SetAside, epoch: int, now: float, wall: float) -> Message:
    """A record of the owner in this epoch. `now`: `lease_time`; `wall`: seconds since 1970."""
    said = {
        "record": kind,
        "queue": one.place.queue,
        "queue-id": one.place.queue_id,
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
    return Message(one.value, one.key, {**without_ours(one.headers), **ours})


class _Said(NamedTuple):
    """What a `message` or `failed` says; `due` in seconds since 1970."""

    attempts: int
    delays: int
    due: float
    error: str
    published_at: datetime


@dataclass(slots=True)
class _Known:
    """What the records say of one place. What is done or not wanted has no `message`, no `said`."""

    message: dict[str, Any] | None = None
    key: str | None = None
    era: int = 0
    epoch: int = -1
    done_epoch: int = -1
    # The newest of `message` and `failed`: (epoch, attempts), and what it says.
    newest: tuple[int, int] = (-1, -1)
    said: _Said | None = None

    @property
    def is_set_aside(self) -> bool:
        return self.epoch > self.done_epoch


class Records:
    """What a set of records says; add them in any order."""

    def __init__(self, queue: str, wanted: Callable[[MessagePlace], bool]) -> None:
        """`queue` is the retry queue; `wanted`: of which places the messages are kept. It may raise
        InvalidPosition for one that cannot be.
        """
        self._queue = queue
        self._wanted = wanted
        self._known: dict[MessagePlace, _Known] = {}
        # Of each partition of the retry queue, the records `message`: position, place, epoch.
        self._messages: dict[int, list[tuple[str, MessagePlace, int]]] = {}

    def add(self, row: dict[str, Any]) -> None:
        """Take a row of the retry queue (`Rows.to_pylist`). Raises WrongQueue."""
        texts = _texts(row)
        try:
            place = _place(texts)
            kind, epoch = texts["record"], number_in(texts["epoch"])
            said = None if kind == "done" else _said(texts)
            era = 0 if said is None else number_in(texts["era"])
            wanted = self._wanted(place)
        except (KeyError, ValueError, Invalid) as error:
            raise WrongQueue(
                f"queue {self._queue!r} has a message that is no record of what is set aside, in "
                f"partition {row['partition']} at position {row['position']} ({error!r}): name a "
                "queue in Retry that nobody else publishes to or consumes. If it is the right one, "
                "look at the message (counterpoise peek), and move the position of that partition "
                "behind it (counterpoise positions set)"
            ) from error
        known = self._known.setdefault(place, _Known())
        if said is None:
            known.done_epoch = max(known.done_epoch, epoch)
        elif (epoch, said.attempts) >= known.newest:
            known.newest, known.said, known.era = (epoch, said.attempts), said, era
        if kind == "message":
            self._messages.setdefault(row["partition"], []).append((row["position"], place, epoch))
            known.epoch, known.key = max(known.epoch, epoch), row["key"]
            known.message = row
        if not wanted or known.epoch <= known.done_epoch:
            known.message = None
        if not wanted or known.newest[0] <= known.done_epoch:
            known.said = None

    def set_aside(self, now: float, wall: float) -> Iterator[SetAside]:
        """The wanted messages that are set aside. `now` and `wall` as for `record`."""
        for place, known in self._known.items():
            row, said = known.message, known.said
            if row is None or said is None or not known.is_set_aside:
                continue
            headers = without_ours(dict(row["headers"] or ()))
            yield SetAside(
                place,
                known.epoch,
                row["key"],
                row["value"],
                headers,
                said.published_at,
                said.attempts,
                said.delays,
                known.era,
                now + (said.due - wall) if said.due else 0.0,
                said.error,
            )

    def counts(self) -> Counter[str]:
        """How many messages of each queue are set aside."""
        return Counter(place.queue for place, known in self._known.items() if known.is_set_aside)

    def held_elsewhere(self, origin: Origin, partition: int) -> dict[str, int]:
        """The keys of which other partitions of the queue have messages set aside, and of which
        lowest era. Nobody may ever come to what is left of an earlier queue or log.
        """
        present = (origin.queue, origin.queue_id, origin.incarnation)
        held: dict[str, int] = {}
        for place, known in self._known.items():
            elsewhere = place[:3] == present and place.partition != partition
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


def is_record(row: dict[str, Any]) -> bool:
    """Whether a message has all headers of a record of what is set aside."""
    try:
        Records("", lambda _: False).add(row)
    except WrongQueue:
        return False
    return True


def _texts(row: dict[str, Any]) -> dict[str, str]:
    headers = row["headers"] or ()
    return {name.removeprefix(PREFIX): text for name, text in headers if name.startswith(PREFIX)}


def _place(texts: Mapping[str, str]) -> MessagePlace:
    """Raises KeyError, ValueError, Invalid for what none of us has written."""
    check_queue(texts["queue"])
    position = texts["position"]
    if not (position.isascii() and position.isprintable() and 1 <= len(position) <= 1000):
        raise ValueError(f"{position[:40]!r} is no position")
    return MessagePlace(
        texts["queue"],
        texts["queue-id"],
        texts["incarnation"],
        number_in(texts["partition"]),
        position,
    )


def _said(texts: Mapping[str, str]) -> _Said:
    """Raises KeyError, ValueError for what none of us has written."""
    if texts["record"] not in ("message", "failed"):
        raise ValueError(texts["record"])
    due = float(texts["due"])
    if not 0 <= due <= LATEST_DUE:
        raise ValueError(f"{due} is no time to come")
    return _Said(
        number_in(texts["attempts"]),
        number_in(texts["delays"]),
        due,
        texts["error"][:LONGEST_ERROR_CHARACTERS],
        time_in(texts["published-at"]),
    )


def rows(
    log: Log, positions: Mapping[int, str | None], bounds: Bounds
) -> Iterator[list[dict[str, Any]]]:
    """The rows from these positions (None: the first one) to the ends, some at a time."""
    for number, position in positions.items():
        start, end = bounds.starts[number], bounds.ends[number]
        if position is not None and log.compare(position, start) > 0:
            start = position
        while log.compare(start, end) < 0:
            upto = log.limit({number: start}, READ_MESSAGES, bounds, max_bytes=READ_BYTES)[number]
            for some in log.rows(number, start, upto, max_messages=READ_MESSAGES):
                yield some.to_pylist()
            start = upto


class RetryQueue:
    """The retry queue of a consumer: writes and reads its records. Thread-safe."""

    def __init__(self, policy: Retry, *, url: str | None, token: str | None) -> None:
        """`url` and `token` are those of the consumer. The policy has been checked."""
        assert policy.queue is not None, "of a policy without one the messages wait in their lanes"
        self.policy, self.queue = policy, policy.queue
        self._url, self._token = policy.url or url, token
        self._delivery = Delivery(
            self._access,
            open_log,
            log_url=policy.log_url,
            timeout_seconds=WRITE_SECONDS,
        )
        self._lock = threading.Lock()
        self._publisher, self._sequence = uuid.uuid4().hex, 0
        self._reading = QueueReading(self.queue, policy.log_url, CALL_SECONDS)

    def flow(self, **options: Any) -> Flow:
        """A flow of the retry queue, not bound yet."""
        return Flow(self.queue, url=self._url, token=self._token, **options)

    def write(
        self,
        kind: str,
        one: SetAside,
        epoch: int,
        may: Callable[[], bool] = lambda: True,
    ) -> None:
        """Return when the record is in the log. Raises ServiceUnavailable, LogNotFound,
        LogUnavailable after `WRITE_SECONDS`, and permanent errors at once. `may` is asked just
        before; False: LogUnavailable.
        """
        deadline = lease_time() + WRITE_SECONDS
        message = record(kind, one, epoch, lease_time(), time.time())
        message.size_bytes()
        number = hash_of(one.key) if one.key is not None else crc32(one.place.position.encode())
        # Others try to write meanwhile: the log may be away.
        if not self._lock.acquire(timeout=WRITE_SECONDS):
            raise LogUnavailable(f"the retry queue took no record in {WRITE_SECONDS:g} s")
        try:
            if not may():
                raise LogUnavailable("the partition is not owned any more")
            batch = Batch(
                [message],
                [number],
                publisher=self._publisher,
                first_sequence=self._sequence,
            )
            try:
                self._delivery.deliver(batch, timeout_seconds=deadline - lease_time())
            except BaseException:
                # The log may have it, and would take another one under its sequence for it.
                self._publisher, self._sequence = uuid.uuid4().hex, 0
                raise
            self._sequence += 1
        finally:
            self._lock.release()

    def read(
        self,
        wanted: Callable[[MessagePlace], bool] | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> tuple[Records, Bounds] | None:
        """What the retry queue says now; without `wanted` no messages are kept. None: `stop()` was
        true before the end. Raises ServiceUnavailable, LogError, WrongQueue.
        """
        with (
            reached_before(),
            self._client(self._token) as client,
            self._reading.opened(client) as log,
        ):
            positions = {one.partition: one.position for one in client.partitions(self.queue)}
            bounds = log.bounds([*positions])
            records = Records(self.queue, wanted or (lambda _: False))
            for some in rows(log, positions, bounds):
                if stop():
                    return None
                for row in some:
                    records.add(row)
            return records, bounds

    def close(self) -> None:
        """Close the connection for writing."""
        self._delivery.close()

    def _access(self, refused: bool) -> LogView:
        with reached_before(), self._client(self.policy.token or self._token) as client:
            return client.log_access(self.queue, "publish", refused=refused)

    def _client(self, token: str | None) -> Client:
        return Client(self._url, token=token, timeout_seconds=CALL_SECONDS)


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
                except AGAIN as error:
                    self._warnings.warn("the retry queue is unreachable, waiting", error)
                    pause = AGAIN_SECONDS
                self._waking.wait(pause)
        finally:
            self._flow.close()

    def _load(self) -> bool:
        """Returns whether a key is held that another partition has set aside: then load again."""
        lanes = self._lanes.loading()
        if not lanes:
            return False
        # An owner knows what it has set aside itself.
        numbers = {lane.partition for lane, _ in lanes if lane.redelivery is None}
        origin = self._origin()

        def wanted(place: MessagePlace) -> bool:
            if place.queue != self._queue or place.partition not in numbers:
                return False
            if (place.queue_id, place.incarnation) == (origin.queue_id, origin.incarnation):
                self._compare(place.position, place.position)  # it must be one of this log
            return True

        read = self._retries.read(wanted)
        assert read is not None, "nothing stops it"
        records, _ = read
        found: dict[int, list[SetAside]] = {number: [] for number in numbers}
        for one in records.set_aside(lease_time(), time.time()):
            found[one.place.partition].append(one)
        again = False
        for lane, loads in lanes:
            before, owned = lane.redelivery, lane.grant.owned
            table = before or Redelivery(
                origin.queue_id, origin.incarnation, self._compare, found[lane.partition]
            )
            elsewhere: Mapping[str, int] = {}
            if owned.resize is not None:
                elsewhere = records.held_elsewhere(origin, lane.partition)
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
        now, read = lease_time(), None
        if self._ledger.readable() and now - self._swept_at >= SWEEP_SECONDS:
            read = self._retries.read(stop=self._lanes.must_load)
        if read is not None:
            self._swept_at = now
            records, bounds = read
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
            self._answered(todo.commits, self._flow.commit(todo.commits))
        if todo.ends:
            self._answered(todo.ends, self._flow.children_many(todo.ends))

    def _answered(self, items: tuple[Item, ...], outcomes: Mapping[int, str]) -> None:
        for item in items:
            self._ledger.answered(item, outcomes[item.partition])
