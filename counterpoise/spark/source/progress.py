"""The progress of one query: what Spark has done, and what the next micro-batch reads.

The ledger (`counterpoise.flow.ledger`) says what to commit and when a partition may be released.
`Progress` adds two rules of Spark, on what is done and how the source learns it:

1. A message is done when the sink has it. The source learns it from the start offset with which
   Spark asks for the next offset, or earlier from Spark's event of the micro-batch (`done`). Before
   Spark's first word nothing is committed or released. In flight are the ranges that the offset
   planned last has and the offset before it has not.
2. For each range the offset has the epoch under which it was planned. After a restart nothing else
   is known, so a range counts for a partition only if the grant continues that epoch. A slice that
   was skipped as superseded never counts.

Warm-up: the state of a partition at a position is *here* when this query restored or computed it.
Then the partition continues without history.

`Progress` has no clock, no I/O and no threads. `SharedProgress` is the way of the query's threads
to it: Spark's thread plans and learns what is done, the channel's thread learns it too, and the
settler's thread sends it to the service. Each works under one lock, and reads the flow's view only
while it holds the lock. So the progress sees the views in their order.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from counterpoise.flow import Flow
from counterpoise.flow.ledger import Grant, Item, Ledger, Todo
from counterpoise.flow.view import GrantId, Owned, Warming
from counterpoise.logs import Bounds
from counterpoise.spark.channel.status import Handoffs
from counterpoise.spark.offsets import Json, Offset, Place, Range, Replay, Slice, slices
from counterpoise.spark.source.history import Portions, Restore, restore_of
from counterpoise.spark.source.planning import Answer, View, is_untouched, plan


@dataclass(frozen=True, slots=True)
class LocalState:
    """The state of a partition that was last held under `epoch`: of `tenure`, at `position`."""

    epoch: int
    position: str
    tenure: int


@dataclass(frozen=True, slots=True)
class Lacking:
    """A partition that goes on at `position`, while this query has processed it up to `reached`
    (None: never). What is between is not in the state that the query keeps.
    """

    partition: int
    position: str | None
    reached: str | None


@dataclass
class Progress:
    """The state of one query's consumption.

    `start` is done; None until Spark has named it. `skipped` are slices that were not read.
    `keeps_state`: in Spark, which must be whole, so that nothing may be counted twice either
    (`_count`).
    """

    start: Offset | None = None
    ledger: Ledger = field(default_factory=Ledger)
    skipped: set[GrantId] = field(default_factory=set)
    bounds: Bounds | None = None
    # Warm-up: owners' positions that a portion of history should reach, and those that were reached
    # (both by the owner's epoch); gaps of chains, by tenure.
    aims: dict[GrantId, str] = field(default_factory=dict)
    near: set[GrantId] = field(default_factory=set)
    gaps: dict[GrantId, tuple[str, str]] = field(default_factory=dict)
    # Complete states by partition, except those of partitions that are in flight: after the query's
    # own range, or where the present epoch begins.
    here: dict[int, LocalState] = field(default_factory=dict)
    keeps_state: bool = False
    # The epoch of each partition that `lacking` has looked at last.
    _looked_at: dict[int, int] = field(default_factory=dict)

    @property
    def in_flight(self) -> frozenset[int]:
        """The partitions with messages in flight; a new object whenever that changes."""
        return self.ledger.in_flight

    # ------------------------------------------------------------------ from Spark

    def replaying(self, start: Offset, end: Offset) -> None:
        """Spark runs the batch from `start` to `end`. After a crash it does so without asking
        first.
        """
        if self.start is None:
            self.start = start
            self._count(start.ranges)
        self.ledger.begin(one.partition for one in slices(start, end))

    def finished(self, start: Offset, view: View) -> list[Slice]:
        """All of `start` is in the sink and nothing is in flight.

        Returns the slices that were read in vain: their partitions were taken over while in flight.
        """
        read = slices(self.start or start, start)
        self.start = start
        self.ledger.end()
        self._follow(view)
        counted = self._count(start.ranges)
        lost = [
            one
            for one in read
            if one.partition not in counted and (one.partition, one.epoch) not in self.skipped
        ]
        self._forget(view)
        return lost

    def skip(self, superseded: Iterable[Slice]) -> None:
        """These slices are not read although their batch will count as done."""
        self.skipped.update((one.partition, one.epoch) for one in superseded)

    def _follow(self, view: View) -> None:
        if view is self.ledger.view:
            return
        new = self.ledger.follow(view).new
        counted = self._count([grant.partition for grant in new])
        for grant in new:
            known = self.here.get(grant.partition)
            # It came back, and nobody has read since.
            if (
                known is not None
                and grant.partition not in counted
                and grant.epoch == known.epoch + 1
                and known.position == grant.owned.position
            ):
                self.here[grant.partition] = replace(known, epoch=grant.epoch)

    def _count(self, partitions: Iterable[int]) -> set[int]:
        """Tell the ledger what is done of these partitions. Returns those whose range counts.

        For a query that keeps state they count after the end of its lease, too.
        """
        ranges = self.start.ranges if self.start is not None else {}
        counted: set[int] = set()
        for number in partitions:
            one = ranges.get(number)
            if one is None or (number, one.epoch) in self.skipped:
                continue
            grant = self.ledger.done(number, one.epoch, one.end)
            if grant is None and self.keeps_state:
                grant = self._counted_after_expiry(number, one)
            if grant is not None:
                counted.add(number)
                if number not in self.in_flight:
                    self.here[number] = LocalState(grant.epoch, one.end, one.state_of)
        return counted

    def _counted_after_expiry(self, partition: int, one: Range) -> Grant | None:
        """Tell the ledger so if the lease has ended, and no other consumer has processed the
        partition in between.

        The last commits may not have reached the service. What is in the state must not be read
        again.
        """
        held = self.ledger.held(partition)
        if held is None or not is_untouched(one.epoch, one.start, held.owned):
            return None
        return self.ledger.done(partition, held.epoch, one.end)

    # ------------------------------------------------------------------ state in Spark

    def lacking(self, view: View) -> list[Lacking]:
        """New grants whose partitions others have processed since this query did; each once.

        Call it before anything of them is planned. No other consumer has held a partition between
        two epochs in a row. One that did, and has processed nothing, has left the position as it
        was.
        """
        assert self.start is not None
        self._follow(view)
        begins = not (self.start.ranges or self.here)
        found = []
        for grant in self.ledger.grants():
            number, owned = grant.partition, grant.owned
            before = self._looked_at.get(number)
            self._looked_at[number] = grant.epoch
            if before is not None and grant.epoch <= before + 1:
                continue
            own = self._processed(number)
            if own is not None:
                epoch, reached = own
                if grant.epoch > epoch + 1 and reached != owned.position:
                    found.append(Lacking(number, owned.position, reached))
            elif owned.position is not None and (
                begins if owned.handed_over == "replaced" else owned.handed_over != "initial"
            ):
                found.append(Lacking(number, owned.position, None))
        return found

    def _processed(self, partition: int) -> tuple[int, str] | None:
        """Under which epoch this query has processed the partition last, and up to where."""
        here = self.here.get(partition)
        if here is not None:
            return here.epoch, here.position
        assert self.start is not None
        one = self.start.ranges.get(partition)
        if one is None:
            return None
        return one.epoch, one.start if (partition, one.epoch) in self.skipped else one.end

    # ------------------------------------------------------------------ reading

    def wanted(self, view: View) -> dict[int, str | None]:
        """The partitions to read and their next positions; None: the queue's `start` decides.

        A partition that is being revoked or released takes no new messages.
        """
        assert self.start is not None
        self._follow(view)
        return {grant.partition: grant.done for grant in self.ledger.grants() if grant.open}

    def restores(self, view: View, warming: Mapping[int, Warming]) -> tuple[Restore, ...]:
        """The partitions whose state is restored from history: warming ones and new grants.

        No history is needed for a partition that continues after its own ranges, or that was never
        processed before.
        """
        assert self.start is not None
        found: list[Restore | None] = []
        self._follow(view)
        for grant in self.ledger.grants():
            if grant.open and self._here(grant.owned) is None:
                chain = self.start.replays.get(grant.partition)
                found.append(restore_of(grant.owned, chain, {}))
        for number, coming in sorted(warming.items()):
            if coming.position is None:
                self.near.add((number, coming.epoch))
            found.append(restore_of(coming, self.start.replays.get(number), self.aims))
        live = {(number, coming.epoch) for number, coming in warming.items()}
        self.near &= live
        self.aims = {grant: aim for grant, aim in self.aims.items() if grant in live}
        return tuple(one for one in found if one is not None)

    def plan(
        self,
        answer: Answer,
        asked: View,
        view: View,
        instance: str,
        warming: Mapping[int, Warming] | None = None,
        *,
        renews: bool = False,
    ) -> Offset | None:
        """The next offset, or None when there is nothing to read.

        `asked` is the view at the question, `view` the current one. Partitions whose owner, epoch
        or state changed in between are left out. `renews`: see `planning.plan`.
        """
        assert self.start is not None
        self._follow(view)
        self.bounds = answer.bounds
        self.ledger.learn_ends(answer.bounds, asked)
        begins: dict[int, str] = {}
        for number, begin in answer.begins.items():
            grant = self.ledger.held_open(number, asked[number].epoch)
            if grant is None:
                continue
            begins[number] = begin
        history = answer.history
        self.gaps.update(history.gaps)
        self.near |= history.near
        ranges = self.start.ranges
        # Without ranges that were not read: an empty range after one would count.
        read_before = {n: one for n, one in ranges.items() if (n, one.epoch) not in self.skipped}
        planned = plan(
            replace(self.start, ranges=read_before),
            view,
            begins,
            answer.ends,
            instance,
            answer.bounds.incarnation,
            tenures=self._tenures(begins, view, history),
            replays=self._replays(answer, asked, view, warming or {}),
            renews=renews,
        )
        if planned is not None:
            self.aims.update(history.aims)
            # Spark may ask again from the same start. Then the last answer counts.
            read = [one.partition for one in slices(self.start, planned)]
            self.ledger.end()
            self.ledger.begin(read)
            for number in read:
                self.here.pop(number, None)
        return planned

    def _tenures(self, begins: Iterable[int], view: View, history: Portions) -> Mapping[int, int]:
        """The tenures of the rows of these partitions, where the tenure is not the epoch."""
        tenures = dict(history.tenures)
        for number in begins:
            here = self._here(view[number])
            if here is not None:
                tenures[number] = here.tenure
        return tenures

    def _here(self, held: Owned) -> LocalState | None:
        """The state with which the partition continues, if it is here."""
        known = self.here.get(held.partition)
        return known if known is not None and known.epoch == held.epoch else None

    def _replays(
        self, answer: Answer, asked: View, view: View, warming: Mapping[int, Warming]
    ) -> dict[int, Replay]:
        """The history of the answer, without partitions that changed since the log was asked."""
        replays: dict[int, Replay] = {}
        for one in answer.question.restores:
            number, portion = one.partition, answer.history.replays.get(one.partition)
            coming = warming.get(number)
            still = (
                self.ledger.held_open(number, asked[number].epoch) is not None
                if one.granted
                else coming is not None and coming.epoch == one.epoch
            )
            if portion is not None and still:
                replays[number] = portion
        return replays

    # ------------------------------------------------------------------ to the service

    def todo(self, view: View, *, parting: bool = False) -> Todo:
        """Commits and releases that are due. The releases count as decided from now on.

        `parting`: for a draining flow, which may release every partition that is not in flight.
        """
        due = self.due(view, parting=parting)
        self.ledger.decide(due.releases)
        return due

    def due(self, view: View, *, parting: bool = False) -> Todo:
        """The same as `todo`, without deciding the releases."""
        if self.start is None:
            return Todo()
        self._follow(view)
        return self.ledger.due(parting=parting)

    def answered(self, item: Item, outcome: str) -> None:
        """The service's answer for one item."""
        self.ledger.answered(item, outcome)

    def awaits_view(self, view: View) -> bool:
        """Whether the view is about to change: the service has ended a grant that it still names,
        or is to be told that a sealed partition has ended.
        """
        self._follow(view)
        return any(grant.over or grant.ended for grant in self.ledger.grants())

    def positions(self, view: View) -> dict[int, str | None]:
        """The position up to which each partition is done, even if the service does not know it
        yet.
        """
        self._follow(view)
        return {grant.partition: grant.done for grant in self.ledger.grants()}

    def _forget(self, view: View) -> None:
        """Drop the memory of epochs that are over."""
        assert self.start is not None
        self.skipped &= {(number, one.epoch) for number, one in self.start.ranges.items()}


class SharedProgress:
    """`wake` is set when there may be something to tell the service."""

    def __init__(
        self,
        flow: Flow,
        place: Place,
        wake: threading.Event,
        handoffs: Handoffs,
        progress: Progress | None = None,
    ) -> None:
        self._flow = flow
        self._lock = threading.Lock()
        self._progress = progress or Progress()
        self.place = place
        self.wake = wake
        self.handoffs = handoffs
        # The offset that Spark got last: `done` of an older one is ignored.
        self.planned: Json | None = None
        # The offset from which Spark asked last, because an idle query asks often from the same.
        self._parsed: tuple[Json, Offset] | None = None
        self._closing = False

    @contextmanager
    def locked(self) -> Iterator[Progress]:
        """The progress, for one thread at a time."""
        with self._lock:
            yield self._progress

    @property
    def in_flight(self) -> frozenset[int]:
        """The partitions in flight; a new object whenever that changes. Needs no lock."""
        return self._progress.in_flight

    def plan(self, planned: Offset) -> Json:
        """Give this offset to Spark. Call it with the lock."""
        self.planned = replace(planned, queue_id=self.place.queue_id).to_json()
        return self.planned

    def refused(self) -> Mapping[tuple[int, int], str]:
        """Why the service refuses the ends of partitions, by partition and epoch."""
        with self._lock:
            return self._progress.ledger.refused()

    def take_nothing_new(self) -> None:
        """Plan no micro-batch from now on."""
        with self._lock:
            self._closing = True

    def is_closing(self) -> bool:
        """Whether no more micro-batches are planned."""
        return self._closing

    # ------------------------------------------------------------------ what is done

    def asked_from(self, start: Json) -> Offset:
        """Spark asks for the offset after `start`: all of `start` is in the sink.

        Returns `start` parsed. Raises InvalidOffset.
        """
        if self._parsed is None or self._parsed[0] != start:
            self._parsed = start, self.place.offset(start)
        offset = self._parsed[1]
        lost: Sequence[Slice] = ()
        with self._lock:
            bound = self._flow.status == "bound"
            if offset is not self._progress.start or self._progress.in_flight:
                lost = self._progress.finished(offset, self._flow.partitions)
                self.wake.set()
        if bound:
            self._report(lost)
        return offset

    def batch_done(self, end: Json) -> bool:
        """The micro-batch up to `end` is in Spark's commit log. It may come late.

        It counts only for the micro-batch planned last; otherwise Spark's own question is newer.
        """
        with self._lock:
            if not self._progress.in_flight or end != self.planned:
                return False
            offset = self.place.offset(end)
            lost = self._progress.finished(offset, self._flow.partitions)
        if self._flow.status == "bound":
            self._report(lost)
        self.wake.set()
        return True

    def _report(self, lost: Sequence[Slice]) -> None:
        for one in lost:
            self.handoffs.taken_over(one.partition, one.epoch, one.end)
