"""Consumers that work on different keys of a partition at once, and remember what is done above.

What is begun, what is committed and what is released is decided by the product: `Lanes`, with its
ledger and its windows. Here is what its threads do around it: read the log, handle messages, call
the service. Every third consumer handles the messages of a partition one after the other, and
leaves out what others have done above its position.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from counterpoise.consumer.lanes import Chunk, Due, KeyedPiece, Lane, Lanes, Piece
from counterpoise.errors import CounterpoiseError
from counterpoise.flow import programs
from counterpoise.flow.barriers import within
from counterpoise.flow.ledger import Item
from counterpoise.flow.programs import Program
from counterpoise.logs.port import Bounds
from counterpoise.logs.rows import Columns, Rows
from counterpoise.wire import ChildrenItem
from tests.simulation.consumers import (
    CALL_SECONDS,
    IDLE_SECONDS,
    OFTEN,
    PARENT_SECONDS,
    Application,
)

WORKERS = 4
# Of a partition, in memory; one window may be full of messages of one key.
MOST_WAITING = 8
MOST_BYTES = 1_000_000
# A message fails with this probability, and is tried again after this time.
FAILS, AGAIN_SECONDS = 0.3, 0.6
# The longest time until something done is committed.
COMMIT_SECONDS = 0.4


@dataclass(frozen=True)
class Begun:
    """What a worker has in hand, and the flow for which it was begun."""

    flow_id: str
    piece: Piece | KeyedPiece

    @property
    def positions(self) -> Sequence[int]:
        if isinstance(self.piece, KeyedPiece):
            return [int(self.piece.one.message.position)]
        return [int(position) for position in self.piece.chunk.rows.columns().positions]


class ByKey(Application):
    """One application."""

    def __init__(self, *place: Any) -> None:
        super().__init__(*place)
        self._lanes = Lanes(
            lambda: self.core.view.partitions,
            max_messages=MOST_WAITING,
            max_bytes=MOST_BYTES,
            by_key=int(self.instance[1:]) % 3 != 0,
        )
        self._workers = 0
        self._calls = self._commits = self._looks_again = False
        self._ends_not_before = 0.0
        self._bounds: Bounds | None = None

    def poke(self) -> None:
        if not self._poked:
            self._poked = True
            self.later(0.0, self._turn)

    def _turn(self) -> None:
        self._poked = False
        if self.leaving or self.core.error is not None:
            return
        self._lanes.follow()
        view = self.core.view
        if view.draining and not view.active:
            self.leave()
            return
        impatient = view.draining and self.is_impatient()
        if not self._calls:
            self._tell(impatient)
        if not impatient:
            self._read()
            self._begin()
        if not self._workers and view.partitions and not self._looks_again:
            self._looks_again = True
            self.later(IDLE_SECONDS, self._look_again)

    def _look_again(self) -> None:
        self._looks_again = False
        self.poke()

    # Reading

    def _read(self) -> None:
        lanes, bounds = self._lanes.wanting(), self.log.bounds()
        for lane in lanes:
            if lane.read_to is None:
                self._lanes.begin_at(lane, bounds.starts.get(lane.partition, "0"))
        # It need not have asked the log just now.
        old = self._bounds if self.rng.random() < OFTEN else None
        self._bounds = bounds
        for lane in lanes:
            self._fill(lane, bounds, bounds if old is None else old)

    def _fill(self, lane: Lane, bounds: Bounds, seen: Bounds) -> None:
        """`seen`: what is known of the log to read by; it may be older than `bounds`."""
        number, start = lane.partition, lane.read_to
        if start is None:
            return
        # The log of this world does not name partitions that never had a message.
        first, last = bounds.starts.get(number, "0"), bounds.ends.get(number, "0")
        if int(start) < int(first):
            self._lanes.add(lane, start, [], first, more=True)
            return
        if start == last:
            after = bounds.sealed.get(number)
            if bounds.is_final(number) and (after or lane.grant.owned.state == "retiring"):
                self._lanes.came_to_end(lane, first, start, after)
            return
        ends = within(seen, {number: lane.grant.owned}, {number: start}).ends
        end = min(int(ends.get(number, start)), int(start) + self._lanes.room(lane)[0])
        if int(start) < end:
            rows = self._rows(number, range(int(start), end))
            more = str(end) != ends[number]
            self._lanes.add(lane, start, [Chunk(rows, str(end))], str(end), more=more)

    def _rows(self, number: int, positions: Sequence[int]) -> Rows:
        keys = [self.log.keys.get((number, at)) for at in positions]
        count = len(positions)
        columns = Columns(
            number,
            positions,
            [0] * count,
            [None if key is None else str(key).encode() for key in keys],
            [b""] * count,
            [None] * count,
        )
        return Rows(columns)

    # Handling

    def _begin(self) -> None:
        due = self._lanes.call_due(self.now())
        if due is not None:
            self.later(max(0.0, due - self.now()) + 0.001, self.poke)
        bound = self.core.bound
        while bound is not None and self._workers < WORKERS:
            piece = self._lanes.take(3, 0.0)
            if piece is None:
                return
            assert not isinstance(piece, Due)
            begun = Begun(bound.flow_id, piece)
            revision = self.core.view.revision
            for position in begun.positions:
                self.checker.began_work(bound.flow_id, revision, piece.lane.partition, position)
            self._workers += 1
            least, most = self.config.work
            took = least + (most - least) * self.rng.random() + self.stubborn
            if self.stubborn:
                self.stubborn = 0.0
                self.hindered_until = self.loop.now + took + 0.5
            self.later(took, self._handled, begun)

    def _handled(self, begun: Begun) -> None:
        """The messages are processed, even if their lanes have changed meanwhile."""
        piece, lane = begun.piece, begun.piece.lane
        self._workers -= 1
        if isinstance(piece, KeyedPiece):
            fails = self.rng.random() < FAILS
            if fails:
                self.checker.failed(lane.partition)
            else:
                self._wrote(begun, int(piece.one.message.position))
            again = self.now() + AGAIN_SECONDS if fails else 0.0
            self._lanes.finish(piece, handled=not fails, not_before=again)
        else:
            following = [str(at) for at in begun.positions[1:]] + [piece.chunk.end]
            for position, after in zip(begun.positions, following, strict=True):
                self._wrote(begun, position)
                lane.grant.done = after
            self._lanes.put_back(piece, len(following))
        if not self._commits:
            self._commits = True
            self.later(COMMIT_SECONDS * self.rng.random(), self.poke)
        self.poke()

    def _wrote(self, begun: Begun, position: int) -> None:
        lane = begun.piece.lane
        if self.trace is not None:
            self.trace(f"{self.name} writes p{lane.partition} e{lane.epoch} m{position}")
        self.checker.wrote(begun.flow_id, lane.partition, lane.epoch, position)

    # Calls

    def _tell(self, impatient: bool) -> None:
        releases = self._lanes.to_release(parting=impatient)
        if releases:
            for item in releases:
                self._sent("release", item)
                if item.finished:
                    self._sent("finish", item)
            program = programs.release_many(self.core, releases, timeout_seconds=CALL_SECONDS)
            self._call(program, releases)
            return
        ends = self._lanes.to_end() if self._ends_not_before <= self.now() else ()
        if ends:
            for end in ends:
                self._sent("finish", end)
            program = programs.children_many(self.core, ends, timeout_seconds=CALL_SECONDS)
            self._call(program, ends)
            return
        if not (self._commits or self._lanes.must_say() or not self._workers):
            return
        commits = self._lanes.to_commit()
        self._commits = False
        if commits:
            self._call(programs.commit(self.core, commits, timeout_seconds=CALL_SECONDS), commits)

    def _sent(self, kind: str, item: Item) -> None:
        assert self.core.bound is not None
        self.checker.sent(kind, self.core.bound.flow_id, item.partition, item.epoch)

    def _call(self, program: Program[Any], items: Iterable[Item]) -> None:
        self._calls = True
        assert self.core.bound is not None
        for item in items:
            if item.position is not None:
                place = self.core.bound.flow_id, item.partition, item.epoch, int(item.position)
                self.checker.sent("position", *place)
                text = None if isinstance(item, ChildrenItem) else item.done_above
                self.checker.sent("above", *place, text)

        def answered(outcomes: Any, error: CounterpoiseError | None) -> None:
            self._calls = False
            if error is not None:
                self._commits = True
                self.later(0.2, self.poke)
                return
            for item in items:
                self._lanes.answered(item, outcomes[item.partition])
            if "unknown_parent" in outcomes.values():
                self._ends_not_before = self.now() + PARENT_SECONDS
                self.later(PARENT_SECONDS, self.poke)
            elif "not_revoking" in outcomes.values():
                self.later(0.2, self.poke)
            else:
                self.poke()

        self._run(program, answered)
