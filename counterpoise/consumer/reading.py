"""The reader: a thread that fills the lanes from the log, and waits while the log is unavailable.

Before the flow is bound, `reach` opens the log with credentials that the service gives without a
flow: a consumer that cannot reach its log takes no partition from others.

A turn asks the log once for the ends of the lanes that want messages, then reads into each as much
as fits, into lanes without messages first. One call gets the first few messages of all new lanes,
so that after a rebalance no partition waits until the others are full. What it has not got, as from
partitions that a log has yet to be connected to, comes last, and other lanes wait for it only for a
moment.

The log may have holes between positions, so the end of a range is only known from the next message:
the reader reads one message more than fits, and its position is the end of those before it.

The partitions by which a topic of Kafka has grown have no leader for a while. They are set apart
for a moment, longer each time, and the turn goes on with the others (`Bounds.unanswered`).

A turn that finds nothing is followed by a rest. If all lanes that want messages are at the ends of
their partitions, the log is asked to wake the reader (`Log.watch`), and other threads wake it, too:
for a new view, a stop, or a worker that wants more. Where the log cannot do that, and while a lane
waits for something else than a message, the reader asks every `idle_seconds`.

A lane at whose end the log waits need not be asked for. So after a rest a turn asks only for the
others, which are new or want more again, and for those of which the log says that they have
messages; if it says how far, not even for these. So the work for a message does not grow with the
partitions, and partitions that come do not hold the others up. While there is more to read, the log
is asked after each turn whether messages have come for those that wait. A turn for all is due every
`ALL_SECONDS`, as a log may not hear of everything, and when the log does not say where it has
messages.

A missing log can be temporary: if a service was stopped between storing a queue and creating its
log, it creates the log when it comes back, at the latest a minute later. The same is mostly true of
a partition that ends before the next position to read (`counterpoise.logs.errors`): it waits, and
the other partitions continue.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cmp_to_key
from math import inf

from counterpoise import tracing
from counterpoise.backoff import Backoff
from counterpoise.client import Client
from counterpoise.consumer.lanes import Chunk, Lane, Lanes
from counterpoise.consumer.opening import QueueReading
from counterpoise.consumer.throttling import Warnings
from counterpoise.errors import CounterpoiseError, QueueNotFound, ServiceUnavailable
from counterpoise.flow.barriers import within
from counterpoise.flow.blocking import Flow
from counterpoise.logs import (
    Bounds,
    InvalidPosition,
    Log,
    LogAccessRefused,
    LogError,
    LogNotFound,
    LogUnavailable,
    PositionAhead,
    PositionTrimmed,
    open_log,
)
from counterpoise.logs.address import environment_access
from counterpoise.logs.errors import AHEAD_SECONDS
from counterpoise.logs.port import Rest
from counterpoise.logs.rows import Rows
from counterpoise.waking import Waking
from counterpoise.wire import CommitItem, LogAccess

logger = logging.getLogger("counterpoise.consumer")
AWAY = Backoff(0.2, 2.0)
# How long to rest at least after so many calls of the log, one after the other, for which there was
# nothing to read.
IN_VAIN = Backoff(0.001, 0.2)
CALM_SECONDS = 1.0
# How long other lanes wait in a turn while new ones get their first messages one by one.
NEW_LANES_SECONDS = 0.05
# How often a turn asks for all lanes.
ALL_SECONDS = 5.0
LOG_APPEARS_SECONDS = 75.0
# How long a partition is set apart: half as long as it has been already.
APART_SECONDS = 0.1
APART_SHARE, LONGEST_APART_SECONDS = 0.5, 1.0
MOST_NAMED = 8
CONFIRM_SECONDS = 5.0
# Before the bind the reader waits for an unavailable service as long as `Flow.open`. `stop` waits
# for a call to the log, so such a call is short.
BIND_SECONDS = 30.0
REACH_SECONDS = 5.0
LOOK_SECONDS = 0.1
# Of each lane in a call for several.
FIRST_MESSAGES = 16
# How long a consumer without partitions keeps its connection to the log.
PREPARED_SECONDS = 30.0


@dataclass(frozen=True)
class LaneRange:
    """What a turn reads into a lane: messages from `start` up to `end` at most."""

    lane: Lane
    start: str
    end: str


def read_range(
    log: Log, partition: int, start: str, end: str, max_messages: int, max_bytes: int
) -> tuple[list[Chunk], str]:
    """At most `max_messages` of [start, end), and the position up to which they are complete.

    Not much more than `max_bytes` in memory, but at least one message if there is any.
    """
    parts: list[Rows] = []
    memory_bytes = 0
    try:
        for rows in log.rows(
            partition, start, end, max_messages=max_messages + 1, max_bytes=max_bytes
        ):
            parts.append(rows)
            # Keys and headers take memory too, and may be larger than values.
            memory_bytes += rows.nbytes
            if memory_bytes >= max_bytes:
                break
    except PositionTrimmed as gone:
        # Messages before the gap are handled first. Reading at the gap then raises again.
        if not parts:
            raise
        return _chunks(parts, gone.position), gone.position
    count = sum(map(len, parts))
    if count <= max_messages and memory_bytes < max_bytes:
        return _chunks(parts, end), end
    if count == 1:  # one large message: what is the position after it?
        parts = list(log.rows(partition, start, end, max_messages=2))
        count = sum(map(len, parts))
        if count == 1:
            return _chunks(parts, end), end
    last = parts.pop()
    following = last.position(-1)
    if len(last) > 1:
        parts.append(last.slice(0, -1))
    return _chunks(parts, following), following


def _places(ends: Mapping[Lane, str]) -> dict[int, str]:
    return {lane.partition: end for lane, end in ends.items()}


def _without_leader(numbers: list[int]) -> LogUnavailable:
    named = ", ".join(map(str, numbers[:MOST_NAMED]))
    if len(numbers) == 1:
        return LogUnavailable(f"partition {named} has no leader yet")
    more = ", …" if len(numbers) > MOST_NAMED else ""
    return LogUnavailable(f"partitions {named}{more} have no leader yet")


def _chunks(parts: list[Rows], end: str) -> list[Chunk]:
    chunks: list[Chunk] = []
    for rows in reversed(parts):
        chunk = Chunk(rows, end)
        chunks.append(chunk)
        end = chunk.start
    chunks.reverse()
    return chunks


class Reader:
    """Reads ahead until closed. One thread calls `run`."""

    def __init__(
        self,
        flow: Flow,
        lanes: Lanes,
        waking: Waking,
        *,
        log_url: str | None,
        idle_seconds: float,
        ends: Mapping[int, str] | None = None,
        log_appears_seconds: float = LOG_APPEARS_SECONDS,
    ) -> None:
        """`log_url` replaces the access that the service gives. `ends`: see `Consumer`."""
        self._flow = flow
        self._lanes = lanes
        self._waking = waking
        self._log_url = log_url
        self._idle_seconds = idle_seconds
        self._ends = ends
        self._log_appears_seconds = log_appears_seconds
        self._log: Log | None = None
        self._access_refused = False
        self._missing_since: float | None = None
        # While it has had no lane yet.
        self._prepared_at: float | None = None
        # The ends at which all lanes wait that want messages, else nothing; and how often the log
        # has called without a message since the last one.
        self._at_ends: dict[Lane, str] = {}
        self._in_vain, self._called_at = 0, 0.0
        # Up to where there are messages in lanes that need not be asked for, and at which ends
        # lanes have waited last. A turn for all is due now and then.
        self._known: dict[Lane, str] = {}
        self._waited_at: dict[Lane, str] = {}
        self._all_at = 0.0
        # Since when and until when a partition is set apart; since when there was always one, and
        # why.
        self._apart: dict[int, tuple[float, float]] = {}
        self._apart_since = 0.0
        self._apart_with: LogUnavailable | None = None
        self._failures = 0
        self._away_since = 0.0
        self._warnings = Warnings(logger, flow.queue)
        self._away_with: CounterpoiseError | None = None
        # Of the log; known once it was reached.
        self.incarnation = ""
        self.compare: Callable[[str, str], int] | None = None

    def reach(self, client: Callable[[], Client], over: Callable[[], bool]) -> bool:
        """Wait until the log has answered once; False if `over` returns True meanwhile.

        The flow is not bound yet; `client` makes a client of the service. Raises ServiceUnavailable
        if the service has not answered for as long as a bind would wait, and permanent errors:
        QueueNotFound, LogNotFound after `log_appears_seconds`, LogError.
        """
        reading = QueueReading(self._flow.queue, self._log_url, REACH_SECONDS)
        unheard_since = time.monotonic()
        while True:
            try:
                with client() as service, reading.opened(service) as log:
                    unheard_since = time.monotonic()
                    self.incarnation, self.compare = log.bounds([]).incarnation, log.compare
            except ServiceUnavailable:
                if time.monotonic() - unheard_since > BIND_SECONDS:
                    raise
            except (LogUnavailable, LogNotFound) as error:
                self._failed(error)
            else:
                self._failures, self._missing_since, self._access_refused = 0, None, False
                return not over()
            until = time.monotonic() + AWAY.after(max(1, self._failures))
            while (left := until - time.monotonic()) > 0:
                if over():
                    return False
                self._waking.wait(min(left, LOOK_SECONDS))

    def run(self) -> None:
        """Raises permanent errors of the log."""
        try:
            self._prepare()
            while not self._lanes.closed:
                try:
                    busy = self.turn()
                    self._failures, self._missing_since = 0, None
                    if busy:
                        self._in_vain = 0
                    if self._at_ends or not busy:
                        self._rest()
                    else:
                        self._glance()
                except (LogUnavailable, ServiceUnavailable, LogNotFound) as error:
                    self._failed(error)
                    self._waking.wait(AWAY.after(self._failures))
                except QueueNotFound:
                    # Its queue was deleted: the flow hears it by its own call, and ends all.
                    self._waking.wait(self._idle_seconds)
        finally:
            self._close()
            self._waking.close()

    def _rest(self) -> None:
        """Wait until there may be something to read."""
        ends, log = self._at_ends, self._log
        if ends and log is not None:
            self._waited_at, self._known = ends, {**ends}
            while (rest := log.watch(_places(ends))) is not None:
                if rest.seconds <= 0.0:
                    now = time.monotonic()
                    calm = now - self._called_at > CALM_SECONDS
                    self._in_vain, self._called_at = 0 if calm else self._in_vain + 1, now
                    self._heard(rest)
                    self._waking.wait(IN_VAIN.after(self._in_vain - 1) if self._in_vain > 1 else 0)
                    return
                seconds = min(rest.seconds, self._apart_seconds())
                if self._waking.wait(seconds, rest.descriptors) or seconds < rest.seconds:
                    return
        self._known = {}
        self._waking.wait(min(self._idle_seconds, self._apart_seconds()))

    def _glance(self) -> None:
        """Whether messages have come for lanes that wait while others are read."""
        waiting = {lane: end for lane, end in self._known.items() if lane.read_to == end}
        if waiting and self._log is not None:
            self._waited_at = waiting
            rest = self._log.glance(_places(waiting))
            if rest is None:
                self._known = {}
            elif rest.seconds <= 0.0:
                self._heard(rest)

    def _heard(self, rest: Rest) -> None:
        """There may be messages behind the ends at which lanes wait."""
        if rest.moved is None:
            self._known = {}
            return
        for lane in self._waited_at:
            if lane.partition in rest.moved:
                end = rest.moved[lane.partition]
                if end is None:
                    del self._known[lane]
                else:
                    self._known[lane] = end

    def _prepare(self) -> None:
        """Connect before the first grant, and ask once what a turn asks: the first time it takes
        both sides several times as long, and partitions that are handed over would wait for it.
        """
        try:
            log = self._opened()
            bounds = log.bounds([0])
            log.first({0: (bounds.starts[0], bounds.ends[0])}, max_messages=1, max_bytes=1)
            self._prepared_at = time.monotonic()
        except CounterpoiseError as error:
            logger.debug("queue %s: the log is not open yet: %s", self._flow.queue, error)
            self._close()

    def _give_back(self) -> None:
        """A standby keeps no connection for long."""
        at = self._prepared_at
        if at is not None and time.monotonic() - at > PREPARED_SECONDS:
            self._prepared_at = None
            self._close()

    def _close(self) -> None:
        self._known = {}
        if self._log is not None:
            self._log.close()
            self._log = None

    def turn(self) -> bool:
        """Read into all lanes that want messages; False if there was nothing to read.

        If a lane comes meanwhile, those that have messages wait for the next turn.
        """
        known, self._known, self._at_ends = self._known, {}, {}
        wanting = self._askable(self._lanes.wanting())
        if not wanting:
            self._give_back()
            return False
        self._prepared_at = None
        log = self._opened()
        if (now := time.monotonic()) >= self._all_at:
            known = {}
        known = {
            lane: known[lane]
            for lane in wanting
            if lane in known and self._need_not_ask(log, lane, known[lane])
        }
        if not known:
            self._all_at = now + ALL_SECONDS
        resting = {lane: end for lane, end in known.items() if lane.read_to == end}
        called = [lane for lane in wanting if lane not in resting]
        bounds = self._bounds(log, called, known)
        lanes = [lane for lane in called if lane.partition not in bounds.unanswered]
        ranges = self._ranges(log, bounds, lanes)
        first = self._first(log, [found for found in ranges if self._is_first(found)])
        self._waited_at = {}
        others_wait = any(not lane.is_new for lane in wanting)
        filled = self._fill_all(log, ranges, first, briefly=others_wait)
        if known:
            ends = {
                lane: bounds.ends[lane.partition]
                for lane in lanes
                if lane.partition not in bounds.sealed and lane.grant.owned.state != "retiring"
            }
            self._known = {**resting, **ends}
            at_ends = all(lane in ends and lane.read_to == ends[lane] for lane in lanes)
            self._at_ends = self._known if at_ends else {}
        return filled

    def _need_not_ask(self, log: Log, lane: Lane, end: str) -> bool:
        """Whether an end will do up to which there are messages in the lane.

        Where a resize is ordered it will not: the log says the cuts of those that are asked for.
        """
        start, grant = lane.read_to, lane.grant
        if start is None or grant.above or grant.owned.state == "retiring":
            return False
        return start == end or (grant.owned.resize is None and log.compare(start, end) <= 0)

    def _bounds(self, log: Log, lanes: list[Lane], known: Mapping[Lane, str]) -> Bounds:
        """The bounds of these lanes. Of those with known ends there are only these."""
        bounds = Bounds(0, self.incarnation, {}, {})
        if asked := [lane.partition for lane in lanes if lane not in known]:
            bounds = log.bounds(asked, at_once=True)
            self._set_apart(bounds)
            self.incarnation = bounds.incarnation
        ends = {lane.partition: known[lane] for lane in lanes if lane in known}
        return replace(bounds, ends={**ends, **bounds.ends})

    def _fill_all(
        self,
        log: Log,
        ranges: list[LaneRange],
        first: Mapping[int, tuple[Rows, str]],
        *,
        briefly: bool,
    ) -> bool:
        """Read into these lanes, first what is there already; into new ones only for a moment if
        `briefly`, and after the others that have no message. Returns whether there was something
        to read, or is.
        """

        def waits_for_log(found: LaneRange) -> bool:
            return found.lane.is_new and found.lane.partition not in first

        def order(found: LaneRange) -> tuple[bool, bool, bool]:
            lane = found.lane
            return lane.supplied, lane.partition not in first, lane.is_new

        filled, until = False, None
        for found in sorted(ranges, key=order):
            if found.lane.supplied and self._lanes.has_new:
                return True
            if briefly and waits_for_log(found):
                now = time.monotonic()
                until = now + NEW_LANES_SECONDS if until is None else until
                if now > until:
                    return True
            filled = self._fill(log, found, first.get(found.lane.partition)) or filled
        return filled

    def _askable(self, wanting: list[Lane]) -> list[Lane]:
        """Those that are not set apart now. What nobody wants is set apart no longer."""
        if not self._apart:
            return wanting
        now, numbers = time.monotonic(), {lane.partition for lane in wanting}
        self._apart = {one: times for one, times in self._apart.items() if one in numbers}
        return [lane for lane in wanting if self._apart.get(lane.partition, (0.0, 0.0))[1] <= now]

    def _apart_seconds(self) -> float:
        """How long at most to rest for the sake of partitions that are set apart."""
        until = min((until for _, until in self._apart.values()), default=inf)
        return max(0.0, until - time.monotonic())

    def _set_apart(self, bounds: Bounds) -> None:
        """Those that have not answered, until they do."""
        if not (self._apart or bounds.unanswered):
            return
        now = time.monotonic()
        if not self._apart:
            self._apart_since, self._apart_with = now, _without_leader(sorted(bounds.unanswered))
        for number in bounds.ends:
            self._apart.pop(number, None)
        for number in bounds.unanswered:
            since, _ = self._apart.get(number, (now, 0.0))
            share = min(APART_SHARE * (now - since), LONGEST_APART_SECONDS)
            self._apart[number] = since, now + max(APART_SECONDS, share)

    def _is_first(self, found: LaneRange) -> bool:
        """Whether its messages are the first of a lane, or have ended a rest: mostly few, and a log
        may have them already.
        """
        return found.lane.is_new or self._waited_at.get(found.lane) == found.start

    def _ranges(self, log: Log, bounds: Bounds, lanes: list[Lane]) -> list[LaneRange]:
        """What there is to read, lane by lane. The other lanes are at their end, or wait."""
        places: list[tuple[Lane, str]] = []
        for lane in lanes:
            if lane.read_to is None:
                self._lanes.begin_at(lane, bounds.starts[lane.partition])
            # Read once: the lane may be dropped at any time.
            if (start := lane.read_to) is not None and lane.grant.open:
                places.append((lane, start))
        view = {lane.partition: lane.grant.owned for lane, _ in places}
        # How far an ordered resize lets a lane be read need not be the end of its partition.
        ends = within(bounds, view, {lane.partition: start for lane, start in places}).ends
        ranges: list[LaneRange] = []
        at_ends: dict[Lane, str] = {}
        by_position = cmp_to_key(log.compare)
        for lane, start in places:
            end = ends[lane.partition]
            try:
                ahead = 0 if start == end else log.compare(start, end)
                if ahead > 0:
                    raise PositionAhead(lane.partition, start, end)
                if (above := lane.grant.above) and above.end > int(bounds.ends[lane.partition]):
                    raise PositionAhead(lane.partition, str(above.end), end)
            except LogError as error:
                self._refused(lane, start, error)
                continue
            if ahead < 0:
                if self._ends is not None:
                    end = min(end, self._ends.get(lane.partition, start), key=by_position)
                if log.compare(start, end) < 0:
                    ranges.append(LaneRange(lane, start, end))
                continue
            lane.ahead_since = None
            if end == bounds.ends[lane.partition] and not self._at_end(lane, bounds, end):
                at_ends[lane] = end
        if len(at_ends) == len(lanes):
            self._at_ends = at_ends
        return ranges

    def _at_end(self, lane: Lane, bounds: Bounds, end: str) -> bool:
        """All of the partition has been read; returns whether that may be for good."""
        after = bounds.sealed.get(lane.partition)
        ends = after is not None or lane.grant.owned.state == "retiring"
        # One that was not asked for in this turn may have more messages than was known.
        if ends and lane.partition in bounds.starts and bounds.is_final(lane.partition):
            self._lanes.came_to_end(lane, bounds.starts[lane.partition], end, after)
        return ends

    def _first(self, log: Log, ranges: list[LaneRange]) -> Mapping[int, tuple[Rows, str]]:
        """The first messages of lanes, of all in one call."""
        if not ranges:
            return {}
        places = {found.lane.partition: (found.start, found.end) for found in ranges}
        max_bytes = sum(self._lanes.room(found.lane)[1] for found in ranges)
        try:
            return log.first(places, max_messages=FIRST_MESSAGES, max_bytes=max_bytes)
        except LogUnavailable:
            raise
        except LogError:
            return {}  # `_fill` finds out of which lane

    def _fill(self, log: Log, found: LaneRange, first: tuple[Rows, str] | None) -> bool:
        """Read into a lane as much as fits; `first` are the messages that are known already."""
        lane, start, end = found.lane, found.start, found.end
        if not lane.grant.open:
            return False
        messages, size = self._lanes.room(lane)
        if messages == 0:
            return False
        try:
            with tracing.reading(self._flow.queue, lane.partition, start) as span:
                if first is not None and len(first[0]) <= messages:
                    chunks, reached = [Chunk(*first)], first[1]
                else:
                    chunks, reached = read_range(log, lane.partition, start, end, messages, size)
                span.found(sum(len(chunk.rows) for chunk in chunks), reached)
        except LogError as error:
            self._refused(lane, start, error)
            return False
        lane.ahead_since = None
        return self._lanes.add(lane, start, chunks, reached, more=reached != end)

    def _refused(self, lane: Lane, start: str, error: LogError) -> None:
        """The log has nothing to read at `start`. Raises what must end the consumer."""
        if isinstance(error, LogUnavailable):
            raise error
        if isinstance(error, InvalidPosition):
            # The next owner could read no further either, so this must not end the consumer.
            logger.error(
                "queue %s, partition %d: %s. Nothing of this partition is read until an "
                "administrator sets its position",
                self._flow.queue,
                lane.partition,
                error,
            )
            self._lanes.quarantine(lane)
        elif isinstance(error, PositionAhead) and self._may_pass(lane, error):
            pass
        elif self._is_ours(lane):
            error.add_note(
                f"queue {self._flow.queue}, partition {lane.partition}, position {start}"
            )
            raise error

    def _may_pass(self, lane: Lane, error: PositionAhead) -> bool:
        now = time.monotonic()
        if lane.ahead_since is None:
            lane.ahead_since = now
            self._warnings.warn("waiting for the log", error)
        return now - lane.ahead_since < AHEAD_SECONDS

    def _is_ours(self, lane: Lane) -> bool:
        """Ask the service: a successor may have continued, and the next messages may be trimmed."""
        done = lane.grant.done
        if done is None or lane.grant.over:
            return not lane.grant.over
        item = CommitItem(*lane.grant.id, done, done_above=lane.grant.done_above(done))
        outcomes = self._flow.commit([item], timeout_seconds=CONFIRM_SECONDS)
        self._lanes.answered(item, outcomes[lane.partition])
        return outcomes[lane.partition] == "ok"

    def _opened(self) -> Log:
        if self._log is None:
            name = self._flow.log
            if name is None:
                raise LogUnavailable("the flow is being bound again")
            access: str | LogAccess | None = self._log_url or environment_access(name)
            if access is None:
                access = self._flow.log_access(fresh=self._access_refused)
                self._access_refused = False
            self._log = open_log(name, access)
        return self._log

    def _failed(self, error: CounterpoiseError) -> None:
        """The log is unavailable, or the service that would give access to it."""
        if isinstance(error, LogNotFound):
            now = time.monotonic()
            self._missing_since = now if self._missing_since is None else self._missing_since
            if now - self._missing_since > self._log_appears_seconds:
                raise error
        else:
            # What it said before it was away says nothing of now.
            self._missing_since = None
            for lane in self._lanes.snapshot():
                lane.ahead_since = None
        # Again every minute: before the bind there is no other sign of it.
        self._warnings.warn("the log is unreachable, waiting", error)
        if self._failures == 0:
            self._away_since, self._away_with = time.monotonic(), error
        self._failures += 1
        self._access_refused = isinstance(error, LogAccessRefused)
        self._close()

    @property
    def away(self) -> bool:
        """Whether the log was unreachable at the last attempt."""
        return self._failures > 0

    def away_for(self, seconds: float) -> CounterpoiseError | None:
        """The first error of a log that, or a partition of which, has been unreachable for so long;
        None if it has not.
        """
        before = time.monotonic() - seconds
        if self.away and self._away_since <= before:
            return self._away_with
        return self._apart_with if self._apart and self._apart_since <= before else None
