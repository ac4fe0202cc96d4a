"""A decision in the making, and what it is in the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import groupby
from typing import Any

from broker.core import records as r
from broker.core.errors import FlowNotFound
from broker.core.model import Flow, HandedOver, Handoff, Partition
from broker.core.queue import Queue
from broker.core.replay import begin, replay
from broker.core.transitions import State, Status


@dataclass(frozen=True, slots=True)
class Effects:
    """What a store has to know of a decision beside its entries.

    - `partitions` (numbers) and `flows`: of which the rows change. A flow that was bound and left
      within the decision is among them.
    - `left`: the flows that left, with the reason.
    - `raised`: the partitions that have a higher epoch.
    - `revokes`: whether owners are to let go, for whom a deadline runs from `now` on.
    - `children`: partitions that were added to the graph of a dynamic queue; `begins`: the
      positions at which some of them begin, as reported.
    - `removed`: the partitions of a dynamic queue of which only the key is remembered, with it.
    """

    partitions: frozenset[int] = frozenset()
    flows: tuple[Flow, ...] = field(default=(), compare=False)
    left: Mapping[str, str] = field(default_factory=dict)
    raised: frozenset[int] = frozenset()
    revokes: bool = False
    children: tuple[r.Child, ...] = ()
    begins: Mapping[int, str] = field(default_factory=dict)
    removed: Mapping[int, str] = field(default_factory=dict)


NO_EFFECTS = Effects()
# The records that may name several partitions, and where.
_LISTS: dict[type[Any], str] = {
    r.Granted: "grants",
    r.WarmupsStarted: "moves",
    r.RevokesStarted: "moves",
    r.WarmupsEnded: "partitions",
    r.WarmupsReady: "partitions",
    r.HandoffsRedirected: "redirects",
    r.HandoffsCalledOff: "partitions",
    r.CutsTaken: "cuts",
    r.CutsReached: "partitions",
    r.ChildrenAdded: "children",
    r.WaitsEnded: "partitions",
    r.FinishedRemoved: "partitions",
}
# What each of them says of all its partitions.
_SHARED = {
    kind: tuple(field.name for field in fields(kind) if field.name != name)
    for kind, name in _LISTS.items()
}


@dataclass(frozen=True, slots=True)
class Decision:
    """What a command leads to, in the order in which it must happen.

    - `entries` are to be committed together, with their `effects`; none: nothing changes.
    - `notices`: the flows whose views change; they are notified after that.
    - `wake_at`: when the queue is to be advanced (Unix seconds; None: nothing will be due). It
      holds until the next decision, and replaces what the one before said.
    - `answer` is for the caller, last.
    """

    entries: tuple[r.Entry, ...]
    notices: frozenset[str]
    wake_at: float | None
    effects: Effects = NO_EFFECTS
    answer: Any = None

    @property
    def records(self) -> tuple[r.Record, ...]:
        """The records of all entries."""
        return tuple(record for entry in self.entries for record in entry.records)


class Draft:
    """A decision in the making: the queue with the records so far applied.

    `records` are those of the entry that is being written. Grants outside of a rebalance and the
    beginning of a rebalance each begin an entry of the history, and there may be several in one
    decision (rules 12 and 7); so each of them begins an entry under a revision of its own.

    `begins` has the positions at which partitions begin that were reported with one.

    `seen_at`: the last renewals of flows that may be silent, by id.
    """

    def __init__(self, queue: Queue, now: float) -> None:
        self.queue = queue
        self.now = now
        self.records: list[r.Record] = []
        self.seen_at: Mapping[str, float] = {}
        # The trigger of the grants outside of a rebalance that are being made.
        self._granting: str | None = None
        self._mark = queue.journal.mark()
        self._entries: list[r.Entry] = []
        self._in_history = False
        # As of `Effects`.
        self.left: dict[str, str] = {}
        self.raised: set[int] = set()
        self.revokes = False
        self.children: list[r.Child] = []
        self.begins: dict[int, str] = {}
        self.removed: dict[int, str] = {}
        self._begin_entry()

    def emit(self, record: r.Record) -> None:
        """Adds a record and applies it."""
        if isinstance(record, _BEGINS_IN_HISTORY):
            if self._in_history:
                self._end_entry()
                self._begin_entry()
            self._in_history = True
        note = _NOTES.get(type(record))
        if note is not None:
            note(self, record)
        self.records.append(record)
        replay(self.queue, record)

    def take_back(self) -> None:
        """Leaves the queue as it was."""
        self.queue.journal.undo(self._mark)

    def finish(self, answer: Any) -> Decision:
        """The decision; the queue is as before if it changes nothing."""
        queue = self.queue
        if not self.records and not self._entries:
            self.take_back()
            return Decision((), frozenset(), queue.next_deadline(), answer=answer)
        self._end_entry()
        effects, notices = self._effects(), frozenset(queue.touched)
        queue.journal.set(queue, touched=set())
        return Decision(tuple(self._entries), notices, queue.next_deadline(), effects, answer)

    def _begin_entry(self) -> None:
        begin(self.queue, self.queue.revision + 1)
        self._last_rebalance = self.queue.last_rebalance

    def _end_entry(self) -> None:
        queue = self.queue
        rebalance = queue.rebalance
        if rebalance is None and queue.last_rebalance is not self._last_rebalance:
            rebalance = queue.last_rebalance
        records = tuple(merged(self.records) if len(self.records) > 1 else self.records)
        rebalance_id = rebalance.id if rebalance else None
        self._entries.append(r.Entry(queue.revision, self.now, records, rebalance_id))
        self.records = []

    def _effects(self) -> Effects:
        partitions: set[int] = set()
        flows: dict[str, Flow] = {}
        for changed in self.queue.journal.changed_since(self._mark):
            if isinstance(changed, _OF_PARTITION):
                partitions.add(changed.number)
            elif isinstance(changed, Flow):
                flows[changed.id] = changed
        return Effects(
            frozenset(partitions),
            tuple(flows.values()),
            self.left,
            frozenset(self.raised),
            self.revokes,
            tuple(self.children),
            self.begins,
            self.removed,
        )

    def flow(self, flow_id: str) -> Flow:
        """The bound flow of this id; raises FlowNotFound."""
        flow = self.queue.flows.get(flow_id)
        if flow is None:
            raise FlowNotFound(flow_id)
        return flow

    def grant_all(self, grants: Iterable[r.Grant]) -> None:
        """Makes these grants, if there are any: one record of many is applied sooner than many."""
        if granted := tuple(grants):
            self.emit(r.Granted(granted, self.now))

    def drawn_up(
        self, partition: Partition, flow: Flow, handed_over: str, *, by_handoff: bool = False
    ) -> r.Grant:
        """The grant of the partition to the flow, under the next epoch."""
        queue, number, owner = self.queue, partition.number, partition.owner
        if owner is None:
            since = queue.unassigned.get(number)
        else:
            is_asked = partition.state is State.REVOKING
            since = queue.handoffs[number].since if is_asked else self.now
            since = min(since, self.seen_at.get(owner.id, since))
        # The clock may have gone back meanwhile.
        seconds = None if since is None else max(0.0, round(self.now - since, 6))
        previous = owner.id if owner else partition.released_by
        if owner is None and handed_over == HandedOver.INITIAL:
            previous = None  # The number was used before.
        return r.Grant(
            number, previous, flow.id, partition.epoch + 1, handed_over, seconds, by_handoff
        )

    def outside(self, trigger: str) -> None:
        """Opens an entry of the history for grants outside of a rebalance, until `granted`.

        Inside a rebalance this does nothing, nor where the entry is open already.
        """
        if self.queue.status is Status.REBALANCING or self._granting == trigger:
            return
        self._granting = trigger
        self.emit(r.GrantedOutside(self.queue.next_rebalance_id, trigger, self.now))

    def granted(self) -> None:
        """The grants outside of a rebalance are made."""
        self._granting = None


_OF_PARTITION = (Partition, Handoff)
_BEGINS_IN_HISTORY = (r.GrantedOutside, r.RebalanceStarted)


# What the store has to know of a record that is about to be applied, by its kind.


def _note_left(draft: Draft, record: r.FlowLeft) -> None:
    draft.left[record.flow_id] = record.reason


def _note_grants(draft: Draft, record: r.Granted) -> None:
    draft.raised.update(grant.partition for grant in record.grants)


def _note_epochs(draft: Draft, record: r.EpochsRaised) -> None:
    draft.raised.update(record.partitions)


def _note_revokes(draft: Draft, _record: r.Record) -> None:
    draft.revokes = True


def _note_children(draft: Draft, record: r.ChildrenAdded) -> None:
    draft.children += record.children


def _note_removed(draft: Draft, record: r.FinishedRemoved) -> None:
    assert draft.queue.lineage is not None
    nodes = draft.queue.lineage.nodes
    draft.removed.update((number, nodes[number].key) for number in record.partitions)


_NOTES: dict[type[r.Record], Callable[[Draft, Any], None]] = {
    r.FlowLeft: _note_left,
    r.Granted: _note_grants,
    r.EpochsRaised: _note_epochs,
    r.RevokesStarted: _note_revokes,
    r.WarmupsEnded: _note_revokes,
    r.ChildrenAdded: _note_children,
    r.FinishedRemoved: _note_removed,
}


def merged(records: Iterable[r.Record]) -> list[r.Record]:
    """The same records, neighbours that say the same of several partitions made one."""
    result: list[Any] = []
    for _, alike in groupby(records, _shared):
        first, *others = alike
        if others:
            name = _LISTS[type(first)]
            items = tuple(item for record in (first, *others) for item in getattr(record, name))
            result.append(replace(first, **{name: items}))  # type: ignore[arg-type]
        else:
            result.append(first)
    return result


def _shared(record: r.Record) -> object:
    """What a record says of all its partitions; equal to no other if it is not of several."""
    names = _SHARED.get(type(record))
    return object() if names is None else (type(record), *(getattr(record, n) for n in names))
