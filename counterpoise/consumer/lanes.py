"""Lanes: the messages read ahead of each owned partition, and the worker that handles them.

A lane is one grant of the ledger (`counterpoise.flow.ledger`), which says how far it is done, what
to commit and when to release it. The ledger leaves *reading* to its caller, and that is here. The
places in a partition are always in this order:

    committed  <=  done       <=  start of what waits  <=  read_to
                   (handled)      (read ahead)             (next to be read)

1. **One at a time, in order.** At most one worker handles a lane, and it takes a piece from the
   front. So `done` moves over each message once, in order, and only after the message was handled.
   This holds for the *partition*: a later grant of the same partition waits until nothing is in
   flight under the earlier one.
2. **Handled messages are a prefix.** A piece that is left in the middle (it failed, its turn was
   over, the partition was revoked) goes back to the front of its lane from `done` on. If the lane
   has dropped its waiting messages meanwhile, it is read again from `done`: then a piece that was
   taken before does not go back, and a read that began before adds nothing.
3. **Lanes are independent.** Lanes with work stand in a queue. A worker takes the first, and puts
   it back at the end when its turn is over. A lane that fails waits alone, as long as its policy
   says.
4. **A lane whose grant is no longer open drops its waiting messages at once.** One that is open
   again, after a pause, is read from `done` on: while a worker still has a piece of it, not before
   that is put back.
5. **With delayed redelivery a lane loads before it begins.** A worker gets no message of it before
   `loaded` says what the owners before have set aside, and that is read only while no message of
   the partition is in flight (`counterpoise.consumer.redelivery`). A message that is due is a piece
   of its own.
6. **In key order a lane is no queue but a window** (`counterpoise.consumer.key_order`). Then
   several workers have messages of one lane in hand, each of another key. `done` is the position of
   the lowest message that is not done. The other rules hold as they are: while a message is in
   hand, nothing of another grant begins, and what was dropped is not read again.
7. **What an earlier owner has done above the position is left out**, in either order.

Memory is bounded: a lane is read when less than half of `max_messages` waits, up to `max_messages`,
or up to the lane's share of `max_bytes` if that is less (one message is always allowed). The piece
in work comes on top, so each partition never has more than twice as many.

All methods may be called by any thread. Nothing here reads a log or calls the service; the clock is
an argument.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from counterpoise.consumer.key_order import Keyed, KeyWindow
from counterpoise.consumer.message import Failure, Ownership, messages_of
from counterpoise.consumer.redelivery import Redelivery
from counterpoise.flow.done_above import DoneAbove
from counterpoise.flow.ledger import Grant, Item, Ledger
from counterpoise.flow.view import GrantId, Owned
from counterpoise.logs import Successor
from counterpoise.logs.rows import Rows
from counterpoise.wire import ChildrenItem, CommitItem, ReleaseItem

# Ranges above the position of a partition, and of all partitions (`key_order`, rule 4).
MOST_RANGES = 256
MOST_RANGES_IN_ALL = 16_000


@dataclass(frozen=True)
class Chunk:
    """Consecutive messages of a partition; `end` is the position after the last one."""

    rows: Rows
    end: str

    @property
    def start(self) -> str:
        """The position of the first one."""
        return self.rows.position(0)

    def split(self, count: int) -> tuple[Chunk, Chunk]:
        """The first `count` messages and the others; 0 < count < number of messages."""
        rest = Chunk(self.rows.slice(count), self.end)
        return Chunk(self.rows.slice(0, count), rest.start), rest

    def not_in(self, above: DoneAbove) -> list[Chunk]:
        """The messages that are not done yet; each part ends where the next one begins."""
        places = [int(self.rows.position(place)) for place in range(len(self.rows))]
        left = [place for place, at in enumerate(places) if not above.covers(at)]
        if len(left) == len(places):
            return [self]
        parts: list[Chunk] = []
        while left:
            begin, count = left[0], 1
            while count < len(left) and left[count] == begin + count:
                count += 1
            left = left[count:]
            end = str(places[left[0]]) if left else self.end
            parts.append(Chunk(self.rows.slice(begin, begin + count), end))
        return parts

    def one_by_one(self) -> list[Chunk]:
        """Chunks of one message each."""
        chunks, rest = [], self
        while len(rest.rows) > 1:
            first, rest = rest.split(1)
            chunks.append(first)
        return [*chunks, rest]


@dataclass(eq=False)
class Lane:
    """One grant, and its messages read ahead. Guarded by `Lanes`.

    `grant.done` is the exception: the worker that handles the lane moves it. `partition` and
    `epoch` are those of the grant.
    """

    grant: Grant
    owned: Ownership
    partition: int = field(init=False)
    epoch: int = field(init=False)
    read_to: str | None = None
    waiting: deque[Chunk] = field(default_factory=deque)
    # In key order: the messages that wait or are in hand. `waiting` is empty then.
    window: KeyWindow | None = None
    waiting_messages: int = 0
    waiting_bytes: int = 0
    in_hand: int = 0
    # Whether the log had more messages at the last read.
    more: bool = False
    # Whether the reader has left it out because it had enough: it is not woken by its messages.
    left_out: bool = False
    # Whether nothing was read into it yet.
    is_new: bool = True
    # How often waiting messages were dropped: a piece taken before is not put back.
    drops: int = 0
    # They were dropped while a worker had a piece, so where to read on is not known yet.
    unplaced: bool = False
    queued: bool = False
    failure: Failure | None = None
    not_before: float = 0.0
    quarantined: bool = False
    # In key order: it is known that a bound is full behind a message that is to be tried again.
    is_full: bool = False
    # Since when the log has ended before the next position to read.
    ahead_since: float | None = None
    # What is set aside of it; None without delayed redelivery, and before it is loaded.
    redelivery: Redelivery | None = None
    loading: bool = False
    # How often it was to be loaded: what was read before the last time does not do. And for what:
    # the last resize, and the partitions that it waited for.
    loads: int = 0
    loads_for: tuple[int | None, tuple[int, ...]] = (None, ())
    # Whether a message that is set aside is to be tried now, and `Redelivery.next_due` as the
    # settler knows it.
    due: bool = False
    next_due: float | None = None

    def __post_init__(self) -> None:
        self.partition, self.epoch = self.grant.id

    @property
    def supplied(self) -> bool:
        """Whether a worker has messages of it, or finds some."""
        return self.waiting_messages > 0 or self.in_hand > 0

    @property
    def quarantine(self) -> Failure | None:
        """The failure for which the lane, or a key of it, is in quarantine; None: it is not."""
        if self.window is not None and self.window.quarantined:
            return self.window.quarantined[0].failure
        return self.failure if self.quarantined else None

    @property
    def is_quarantined(self) -> bool:
        """Whether the lane, or a key of it, is in quarantine."""
        return self.quarantined or (self.window is not None and bool(self.window.quarantined))

    @property
    def position(self) -> str | None:
        """The position up to which it is handled; None: the queue's `start` decides."""
        return self.grant.done

    @property
    def set_aside(self) -> int:
        """How many of its messages wait to be tried again, or behind such a one."""
        if self.window is not None:
            return self.window.set_aside
        return 0 if self.redelivery is None else self.redelivery.count

    def load(self) -> None:
        """Begin no message before the retry queue was read (again)."""
        self.loading = True
        self.loads += 1
        self.loads_for = self.barrier

    @property
    def barrier(self) -> tuple[int | None, tuple[int, ...]]:
        """The last resize, and the partitions that it waits for."""
        return self.grant.owned.resize, self.grant.owned.waits_for

    def drop_waiting(self) -> None:
        """Drop the messages read ahead; they can be read again."""
        self.waiting.clear()
        if self.window is not None:
            self.window.clear()
        self.waiting_messages = self.waiting_bytes = 0
        self.drops += 1
        self.more = False
        self.read_to = self.grant.done

    def read_again(self) -> None:
        """Drop the messages read ahead, and read on when none is in hand."""
        self.drop_waiting()
        self.unplaced = self.in_hand > 0


@dataclass(frozen=True)
class Piece:
    """Some messages of a lane that a worker handles, taken when the lane had so many `drops`."""

    lane: Lane
    chunk: Chunk
    drops: int


@dataclass(frozen=True)
class KeyedPiece:
    """A message of a lane in key order, taken when the lane had so many `drops`."""

    lane: Lane
    one: Keyed
    drops: int


@dataclass(frozen=True)
class Due:
    """A lane of which a worker tries again what is set aside and due (`Lane.redelivery`)."""

    lane: Lane


class Lanes:
    """The lanes of one consumer. The functions that wake others are called with a lock held."""

    def __init__(
        self,
        look: Callable[[], Mapping[int, Owned]],
        *,
        max_messages: int,
        max_bytes: int,
        limit: int | None = None,
        commit_messages: int = 1000,
        by_key: bool = False,
        wake_reader: Callable[[], None] = lambda: None,
        wake_settler: Callable[[], None] = lambda: None,
        wake_keeper: Callable[[], None] | None = None,
        wake_workers: Callable[[], None] = lambda: None,
    ) -> None:
        """`by_key`: in key order. `wake_keeper`: with delayed redelivery, wakes the one that calls
        `loading`. `wake_workers`: wakes workers that do not wait in `take`.
        """
        self._look = look
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._limit = limit
        self._commit_messages = commit_messages
        self._by_key = by_key
        self._wake_reader = wake_reader
        self._wake_settler = wake_settler
        self._wake_keeper = wake_keeper
        self._wake_workers = wake_workers
        lock = threading.RLock()
        self._changed = threading.Condition(lock)
        # For the workers. A lane that can be worked on wakes one of them: with many, the others
        # would only take the processor from it.
        self._work = threading.Condition(lock)
        self._ledger = Ledger()
        self._lanes: dict[int, Lane] = {}
        # They may have been lost or resumed since.
        self._quarantined: set[int] = set()
        self._line: deque[Lane] = deque()
        self._uncommitted = 0
        # Pieces that workers have.
        self._taken = 0
        self.handled = 0
        # Whether lanes have come since the reader last asked what to read.
        self.has_new = False
        self.paused = False
        self.closed = False
        # No worker comes back to what it has in hand.
        self.deserted = False

    # -------------------------------------------------------------- what the flow owns

    def follow(self) -> None:
        """Take over new grants, stop revoked lanes, drop lanes that are over."""
        with self._changed:
            changes = self._ledger.follow(self._look())
            for grant in changes.gone:
                self._drop(grant)
            for grant in changes.stopped:
                lane = self._lane_of(grant)
                if lane is not None:
                    lane.read_again()
            for grant in changes.opened:
                lane = self._lane_of(grant)
                if lane is not None:
                    self._stand(lane)
                    self._wake_reader()
            for grant in changes.new:
                owned = Ownership(grant.owned, self._look)
                lane = self._lanes[grant.partition] = Lane(grant, owned, read_to=grant.done)
                grant.above = DoneAbove.of_text(grant.owned.done_above)
                if self._by_key:
                    lane.window = KeyWindow(grant.above)
                if self._wake_keeper is not None:
                    grant.holds_back = True
                    lane.load()
                    self._wake_keeper()
                self.has_new = True
                self._wake_reader()
            if changes.ending:
                self._wake_reader()
            if changes.moved:
                if self._wake_keeper is not None:
                    for lane in self._lanes.values():
                        if lane.barrier != lane.loads_for:
                            lane.load()
                            self._wake_keeper()
                # A barrier may be gone, and a cut that was reached before it was known is to be
                # said.
                self._wake_reader()
                self._wake_settler()

    def _lane_of(self, grant: Grant) -> Lane | None:
        lane = self._lanes.get(grant.partition)
        return lane if lane is not None and lane.grant is grant else None

    def _drop(self, grant: Grant) -> None:
        lane = self._lane_of(grant)
        if lane is None:
            return
        del self._lanes[lane.partition]
        lane.drop_waiting()
        # There is more room for the others.
        self._wake_reader()

    # -------------------------------------------------------------- what is set aside

    def loading(self) -> list[tuple[Lane, int]]:
        """The lanes that wait for `loaded`, and may be loaded now, each with its `loads`. And those
        with keys held that another partition has set aside: they go on meanwhile, because such keys
        only become free.
        """
        with self._changed:
            return [
                (lane, lane.loads)
                for lane in self._lanes.values()
                if self._may_load(lane)
                or (
                    not lane.loading
                    and lane.redelivery is not None
                    and lane.redelivery.held_elsewhere
                )
            ]

    def must_load(self) -> bool:
        """Whether lanes wait for `loaded`, and may be loaded now."""
        with self._changed:
            return self.closed or any(map(self._may_load, self._lanes.values()))

    def _may_load(self, lane: Lane) -> bool:
        return lane.loading and lane.partition not in self._ledger.in_flight

    def loaded(
        self, lane: Lane, loads: int, redelivery: Redelivery, elsewhere: Mapping[str, int]
    ) -> None:
        """The owners before have set this aside, and other partitions these keys
        (`Redelivery.held_elsewhere`). Work on the lane may begin, unless it is to be loaded again
        since.
        """
        with self._changed:
            lane.redelivery, lane.loading = redelivery, lane.loads != loads
            redelivery.held_elsewhere = elsewhere
            if lane.partition not in self._ledger.in_flight:  # else when its turn ends
                redelivery.plan(lane.grant.done)
            self._hold_back(lane)
            self._stand(lane)
            self._wake_settler()

    def _hold_back(self, lane: Lane) -> None:
        table = lane.redelivery
        lane.grant.holds_back = lane.loading or (table is not None and table.count > 0)

    def may_set_aside(self, lane: Lane, size_bytes: int) -> bool:
        """Whether memory has room for one more message of this size that is set aside."""
        with self._changed:
            table = lane.redelivery
            assert table is not None
            if (
                table.count < self._max_messages
                and table.size_bytes + size_bytes <= self._share_bytes()
            ):
                return True
            # Of what another owner has set aside, perhaps nothing is tried before more is read.
            table.plan(lane.grant.done)
            return not table.has_passed()

    def give_back(self, due: Due) -> None:
        """The worker is done with what was due, or its turn is over."""
        with self._changed:
            due.lane.in_hand = 0
            self._end_work(due.lane)
            self._wake_settler()  # it knows what is due next

    # -------------------------------------------------------------- reading ahead

    def wanting(self) -> list[Lane]:
        """The lanes that need more messages: first those without any, each in the order of
        partitions.
        """
        with self._changed:
            self.has_new = False
            lanes = [self._lanes[grant.partition] for grant in self._ledger.readable()]
            for lane in lanes:
                lane.left_out = not self._wants(lane)
            wanting = (lane for lane in lanes if not lane.left_out)
            return sorted(wanting, key=attrgetter("supplied"))

    def _wants(self, lane: Lane) -> bool:
        return not (
            self.closed
            or lane.quarantined
            or lane.unplaced
            or lane.waiting_messages > self._max_messages // 2
            or 2 * lane.waiting_bytes * len(self._lanes) > self._max_bytes
        )

    def _share_bytes(self) -> int:
        return self._max_bytes // max(1, len(self._lanes))

    def room(self, lane: Lane) -> tuple[int, int]:
        """How many messages and bytes may be read into the lane."""
        with self._changed:
            messages = self._max_messages - lane.waiting_messages
            if self._limit is not None:
                waiting = sum(map(_to_come, self._lanes.values()))
                messages = min(messages, self._limit - self.handled - waiting)
            return max(0, messages), max(1, self._share_bytes() - lane.waiting_bytes)

    def begin_at(self, lane: Lane, position: str) -> None:
        """The lane had no position, and the log says where it starts."""
        with self._changed:
            if self._ledger.starts_at(lane.partition, lane.epoch, position):
                lane.read_to = position
            elif lane.read_to is None:
                lane.read_to = lane.grant.done  # a view has named it since

    def add(
        self, lane: Lane, start: str, chunks: Iterable[Chunk], read_to: str, *, more: bool
    ) -> bool:
        """Add the messages read from `start`, which was `lane.read_to` then, up to `read_to`.

        Returns False if they have to be read again: the lane has dropped its waiting messages
        since, so there is a hole before `start`; or there are none, and a worker has the last ones.
        """
        if lane.window is not None:
            return self._add_keyed(lane, lane.window, start, chunks, read_to, more=more)
        above = lane.grant.above
        with self._changed:
            if not lane.grant.open or lane.quarantined or lane.read_to != start:
                return False
            if above:
                above.forget(start if lane.grant.done is None else lane.grant.done)
                chunks = [part for chunk in chunks for part in chunk.not_in(above)]
            for chunk in chunks:
                lane.waiting.append(chunk)
                self._count(lane, chunk, 1)
            # The range after the last message may have no messages.
            if lane.waiting:
                lane.waiting[-1] = Chunk(lane.waiting[-1].rows, read_to)
            elif lane.partition in self._ledger.in_flight:
                return False
            else:
                lane.grant.done = read_to
            lane.read_to, lane.more, lane.is_new = read_to, more, False
            self._stand(lane)
            return True

    def _add_keyed(
        self,
        lane: Lane,
        window: KeyWindow,
        start: str,
        chunks: Iterable[Chunk],
        read_to: str,
        *,
        more: bool,
    ) -> bool:
        messages = [
            (message, chunk.rows.nbytes // len(chunk.rows))
            for chunk in chunks
            for message in messages_of(chunk.rows, lane.owned)
        ]
        with self._changed:
            if not lane.grant.open or lane.quarantined or lane.read_to != start:
                return False
            for one in window.add(start, messages, read_to):
                lane.waiting_messages += 1
                lane.waiting_bytes += one.size_bytes
            assert window.position is not None
            lane.grant.done = str(window.position)
            # What is done above may reach further than what was read.
            lane.read_to = str(max(int(read_to), window.position))
            lane.more, lane.is_new = more, False
            self._stand(lane)
            return True

    def came_to_end(
        self,
        lane: Lane,
        start: str,
        end: str,
        successors: tuple[Successor, ...] | None = None,
    ) -> None:
        """The log ends at `end` for good, and `successors` come after it if the log has sealed it.

        When all before the end is handled, the lane is finished. Not if it has been taken back
        since the log was asked.
        """
        with self._changed:
            retires = lane.grant.owned.state == "retiring"
            if lane.grant.open and (retires or successors is not None):
                self._ledger.ends_at(lane.partition, start, end, successors)
                if lane.grant.at_end:
                    self._wake_settler()

    # -------------------------------------------------------------- working

    def take(self, most: int | None, wait_seconds: float) -> Piece | KeyedPiece | Due | None:
        """A piece of the next lane in the queue, at most `most` messages, or what is due of it; in
        key order one message. None if there is none.
        """
        with self._changed:
            self._work.wait_for(
                lambda: self.closed or (self._line and not self.paused), wait_seconds
            )
            while self._line and not self.paused and not self.closed:
                lane = self._line.popleft()
                lane.queued = False
                if self._can_work(lane):
                    if lane.window is not None:
                        return self._keyed(lane, lane.window)
                    return self._due(lane) if lane.due else self._piece(lane, most)
            return None

    def _can_work(self, lane: Lane) -> bool:
        if lane.window is not None:
            return (
                lane.window.may_begin(self._most_ranges())
                and lane.grant.open
                and not lane.quarantined
                # Perhaps of an earlier grant.
                and (lane.in_hand > 0 or lane.partition not in self._ledger.in_flight)
            )
        return (
            (lane.due or (bool(lane.waiting) and not lane.not_before))
            and lane.grant.open
            and not (lane.quarantined or lane.loading)
            and lane.partition not in self._ledger.in_flight
        )

    def _stand(self, lane: Lane, *, wake: bool = True) -> None:
        """Put the lane into the queue if there is something to do. `wake`: a worker for it."""
        if not lane.queued and self._can_work(lane):
            lane.queued = True
            self._line.append(lane)
            if wake:
                self._work.notify()
                self._wake_workers()

    def _most_ranges(self) -> int:
        """How many ranges may be done above the position of a lane; those of all fit into a call
        of the service.
        """
        return min(MOST_RANGES, MOST_RANGES_IN_ALL // max(1, len(self._lanes)))

    def _keyed(self, lane: Lane, window: KeyWindow) -> KeyedPiece:
        one = window.take()
        lane.waiting_messages -= 1
        lane.waiting_bytes -= one.size_bytes
        self._begin_work(lane, lane.in_hand + 1)
        self._stand(lane)
        self._call_reader(lane)
        return KeyedPiece(lane, one, lane.drops)

    def _begin_work(self, lane: Lane, in_hand: int) -> None:
        if not lane.in_hand:
            self._ledger.begin([lane.partition])
        lane.in_hand = in_hand
        self._taken += 1

    def _due(self, lane: Lane) -> Due:
        lane.due = False
        self._begin_work(lane, 1)
        return Due(lane)

    def _piece(self, lane: Lane, most: int | None) -> Piece:
        chunk = lane.waiting.popleft()
        if most is not None and len(chunk.rows) > most:
            chunk, rest = chunk.split(most)
            lane.waiting.appendleft(rest)
        self._count(lane, chunk, -1)
        self._begin_work(lane, len(chunk.rows))
        self._call_reader(lane)
        return Piece(lane, chunk, lane.drops)

    def _call_reader(self, lane: Lane) -> None:
        """After messages were taken from the lane."""
        if (lane.more or lane.left_out) and self._wants(lane):
            self._wake_reader()

    def _count(self, lane: Lane, chunk: Chunk, sign: int) -> None:
        lane.waiting_messages += sign * len(chunk.rows)
        lane.waiting_bytes = max(0, lane.waiting_bytes + sign * chunk.rows.nbytes)

    def put_back(
        self, piece: Piece, handled: int, *, split: bool = False, not_before: float = 0.0
    ) -> None:
        """The worker is done with the piece: its first `handled` messages are done, as `done` says.

        The others go back to the front, with `split` one by one. The lane then pauses until
        `not_before` (`lease_time`; see `call_due`).
        """
        lane, rows = piece.lane, len(piece.chunk.rows)
        with self._changed:
            lane.in_hand, lane.not_before = 0, not_before
            self.handled += handled
            self._uncommitted += handled
            if not lane.grant.open or lane.quarantined or lane.unplaced:
                lane.drop_waiting()
            elif handled < rows and piece.drops == lane.drops:  # otherwise it is read again
                rest = piece.chunk if handled == 0 else piece.chunk.split(handled)[1]
                for chunk in reversed(rest.one_by_one() if split else [rest]):
                    lane.waiting.appendleft(chunk)
                    self._count(lane, chunk, 1)
            self._end_work(lane)

    def finish(self, piece: KeyedPiece, *, handled: bool, not_before: float = 0.0) -> None:
        """The worker is done with a message in key order. One that is not handled is ready again at
        `not_before` (`lease_time`).
        """
        lane, one, window = piece.lane, piece.one, piece.lane.window
        assert window is not None
        with self._changed:
            lane.in_hand -= 1
            is_there = piece.drops == lane.drops  # otherwise it is read again
            if handled:
                self.handled += 1
                self._uncommitted += 1
                lane.grant.done = str(window.done(one.begin, one.end))
                if is_there:
                    window.finish(one)
            elif is_there:
                window.give_back(one, not_before)
                lane.waiting_messages += 1
                lane.waiting_bytes += one.size_bytes
            if not lane.grant.open or lane.unplaced:
                lane.drop_waiting()
            self._end_work(lane)

    def _end_work(self, lane: Lane) -> None:
        # First, whatever fails below.
        self._taken -= 1
        if not lane.in_hand:
            self._ledger.end([lane.partition])
        if lane.unplaced and not lane.in_hand:
            lane.unplaced = False
            self._wake_reader()
        table = lane.redelivery
        if table is not None and table.count:
            table.plan(lane.grant.done)
        is_planned = table is not None and table.next_due != lane.next_due
        self._hold_back(lane)
        current = self._lanes.get(lane.partition)
        if current is not None:
            # In key order that is the next of the same key: its worker comes for it.
            self._stand(current, wake=lane.window is None)
            if current.loading and self._wake_keeper is not None:
                self._wake_keeper()
        reached = self._limit is not None and self.handled >= self._limit
        may_go = lane.grant.at_end or not lane.grant.open or lane.grant.reached_cut
        if may_go or reached or is_planned or self._uncommitted >= self._commit_messages:
            self._wake_settler()
        self._changed.notify_all()

    def quarantine(self, lane: Lane, one: Keyed | None = None) -> None:
        """Begin no more messages of the lane, or of the key of this message, but keep it. Called by
        the worker that handles it.
        """
        with self._changed:
            self._quarantined.add(lane.partition)
            if one is not None:
                assert lane.window is not None
                lane.window.quarantine(one)
            else:
                lane.quarantined = True
                lane.drop_waiting()
                lane.unplaced = lane.window is not None and lane.in_hand > 0
            self._wake_settler()

    def quarantined(self) -> list[Lane]:
        """The lanes in quarantine, in the order of partitions."""
        with self._changed:
            lanes = (self._lanes.get(number) for number in sorted(self._quarantined))
            found = [lane for lane in lanes if lane is not None and lane.is_quarantined]
            self._quarantined = {lane.partition for lane in found}
            return found

    def resume_lane(self, partition: int) -> bool:
        """Work on a quarantined partition again, from its position, or on its quarantined keys;
        False if it is not in quarantine.

        The worker that quarantined it may still handle it, and the reader may be reading it.
        """
        with self._changed:
            lane = self._lanes.get(partition)
            if lane is None or not lane.is_quarantined:
                return False
            if lane.window is not None and lane.window.resume():
                if self._limit is not None:
                    # They may be more than it has room for: `room` has not counted them.
                    lane.read_again()
                self._stand(lane)
            lane.quarantined, lane.failure, lane.not_before = False, None, 0.0
            self._wake_reader()
            self._wake_settler()
            return True

    def call_due(self, now: float) -> float | None:
        """Put lanes whose pause is over, or that have a message due, into the queue.

        Returns when the next pause ends, or the next message is due.
        """
        with self._changed:
            pausing = []
            for lane in self._lanes.values():
                next_due = lane.redelivery.next_due if lane.redelivery is not None else None
                lane.next_due = next_due
                if next_due is not None and next_due > now:
                    pausing.append(next_due)
                elif next_due is not None:
                    lane.due = True
                    self._stand(lane)
                if lane.window is not None:
                    if (next_ready := lane.window.call_due(now)) is not None:
                        pausing.append(next_ready)
                    self._stand(lane)
                if lane.not_before > now:
                    pausing.append(lane.not_before)
                elif lane.not_before:
                    lane.not_before = 0.0
                    self._stand(lane)
            return min(pausing, default=None)

    def filled(self) -> list[Lane]:
        """The lanes in key order that have come to wait for a message that is to be tried again,
        because a bound is full: nothing else of them may begin, and nothing more is read.
        """
        if not self._by_key:
            return []
        with self._changed:
            filled = []
            for lane in self._lanes.values():
                window, was_full = lane.window, lane.is_full
                lane.is_full = (
                    window is not None
                    and window.set_aside > 0
                    and lane.grant.open
                    and not (lane.in_hand or self.closed)
                    and not window.may_begin(self._most_ranges())
                    and (len(window.above) >= self._most_ranges() or not self._wants(lane))
                )
                if lane.is_full and not was_full:
                    filled.append(lane)
            return filled

    def pause(self, paused: bool) -> None:
        """Begin no message at all, or continue."""
        with self._changed:
            self.paused = paused
            self._work.notify_all()
            self._wake_workers()

    def close(self) -> None:
        """Give out no more pieces. Pieces in work may be finished."""
        with self._changed:
            self.closed = True
            self._work.notify_all()
            self._wake_workers()

    def desert(self) -> None:
        """Give out no more pieces, and wait for none: the workers are gone, in the middle of their
        pieces. What was handled before counts.
        """
        with self._changed:
            self.closed = self.deserted = True
            self._changed.notify_all()

    def in_work(self) -> int:
        """How many workers have something in hand."""
        return self._taken

    def wait_idle(self, timeout_seconds: float) -> bool:
        """Wait until no worker handles a lane; False if one does, or never ends."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.deserted or not self._ledger.in_flight, timeout_seconds
            )
            return not self._ledger.in_flight

    # -------------------------------------------------------------- calls to the service

    def enough_to_commit(self) -> bool:
        """Whether enough messages for a commit have been handled since the last one."""
        return self._uncommitted >= self._commit_messages

    def reached_limit(self) -> bool:
        return self._limit is not None and self.handled >= self._limit

    def must_say(self) -> bool:
        """Whether a commit must not wait: a lane has reached a cut for which others wait."""
        with self._changed:
            return any(lane.grant.reached_cut for lane in self._lanes.values())

    def to_commit(self, *, everything: bool = False) -> tuple[CommitItem, ...]:
        """New positions to commit; `everything`: also repeat commits."""
        with self._changed:
            self._uncommitted = 0
            return self._ledger.commits(everything=everything)

    def to_release(self, *, parting: bool = False) -> tuple[ReleaseItem, ...]:
        """Partitions to release; `parting`: all that a draining flow may release."""
        with self._changed:
            items = self._ledger.releases(parting=parting)
            self._ledger.decide(items)
            return items

    def to_end(self) -> tuple[ChildrenItem, ...]:
        """The ends of sealed partitions to report."""
        with self._changed:
            return self._ledger.ends()

    def answered(self, item: Item, outcome: str) -> None:
        """The service's answer for the item."""
        with self._changed:
            grant = self._ledger.answered(item, outcome)
            lane = None if grant is None else self._lane_of(grant)
            if lane is None:
                return
            if lane.grant.over:
                self._drop(lane.grant)
            elif outcome == "not_revoking":
                self._wake_reader()

    def refused(self) -> Mapping[GrantId, str]:
        """Why the service refuses the ends of partitions, by partition and epoch."""
        with self._changed:
            return self._ledger.refused()

    def snapshot(self) -> list[Lane]:
        """The present lanes, in the order of partitions, for display."""
        with self._changed:
            return [self._lanes[number] for number in sorted(self._lanes)]


def _to_come(lane: Lane) -> int:
    """How many of its messages are being handled or will be, unless it is resumed."""
    stopped = 0 if lane.window is None else lane.window.stopped
    return lane.waiting_messages + lane.in_hand - stopped
