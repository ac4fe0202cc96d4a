"""What a call would do, found out on a copy of its queue (theory: docs/previews.md).

A preview plays the call itself: `decide` makes the decision of the call, and every further one that
follows from it, until the queue comes to rest. So a preview has no rules of its own, and cannot say
anything else than what the call does. It is played a second time without the call, and what happens
both times happens *anyway*.

What the players do: each successor is ready at once, each owner releases at once what it is to let
go, and time goes on to the end of each holddown. Nobody binds, leaves or reads a partition to its
end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from broker.core import commands as c
from broker.core.model import Flow
from broker.core.queue import Queue
from broker.core.rebalancer import decide
from broker.core.transitions import State


class _Seen(NamedTuple):
    """What is seen of a queue at one time: owners by partition (None: none), sets of partitions,
    and to which client each pinned one is pinned."""

    owners: dict[int, str | None]
    unassigned: frozenset[int]
    retiring: frozenset[int]
    paused: frozenset[int]
    pins: dict[int, str]


class ForeseenMove(NamedTuple):
    """A partition has another owner at the end. `anyway`: it would have it without the call."""

    partition: int
    previous: str | None
    flow_id: str | None
    anyway: bool


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What a call would do.

    `added`, `removed` and `retiring` are partitions that begin, end with what they hold, or end
    when they are read to their ends. `interrupted` lose an owner that has not released them.
    `staying` stay with a flow that drains, as no flow may take them. `flows` has the numbers of
    partitions before and after; None: the flow is unbound. `holddown_until`: when the rebalance
    that follows begins.
    """

    moves: tuple[ForeseenMove, ...] = ()
    added: tuple[int, ...] = ()
    retiring: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()
    unassigned: tuple[int, ...] = ()
    staying: tuple[int, ...] = ()
    interrupted: tuple[int, ...] = ()
    paused: tuple[int, ...] = ()
    resumed: tuple[int, ...] = ()
    pinned: tuple[int, ...] = ()
    unpinned: tuple[int, ...] = ()
    flows: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    settings: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    holddown_until: float | None = None


class Thought:
    """A queue, to be played to its end. `queue` must be a copy: it stays as it is at the end."""

    def __init__(self, queue: Queue, now: float) -> None:
        self.queue = queue
        self.now = now
        self.answer: Any = None
        self._interrupted: set[int] = set()
        self._holddown_until: float | None = None

    def play(self, commands: tuple[c.Command, ...]) -> Iterator[None]:
        """Plays the commands, in turn and with all that follows; others may get on after each
        decision. Raises what `decide` raises. At the end `preview` has what came of it.
        """
        queue = self.queue
        # As the call, which does first what is due.
        decide(queue, c.Advance(), self.now)
        before, settings, mark = _seen(queue), _settings(queue), queue.journal.mark()
        flows = sorted(queue.flows.values(), key=lambda flow: flow.bind_number)
        owned = {flow.id: len(flow.owned) for flow in flows}
        yield from self._rest()
        anyway = _owners(queue)
        queue.journal.undo(mark)
        self._interrupted.clear()
        for command in commands:
            self.answer = self._decide(command)
            yield
        self._holddown_until = queue.holddown_until
        called = _seen(queue)
        yield from self._rest()
        self.preview = self._compared(before, anyway, called, owned, settings)

    def _rest(self) -> Iterator[None]:
        """What follows until the queue is at rest."""
        queue, now, revision = self.queue, self.now, -1
        while queue.revision != revision:
            revision, due = queue.revision, queue.next_deadline()
            if due is not None and due <= self.now:
                # Who has no time to release at all is forced.
                self._decide(c.Advance())
                yield
            for command in _said(queue):
                decide(queue, command, self.now)
                yield
            if queue.revision == revision and queue.holddown_until is not None:
                self.now = max(self.now, queue.holddown_until)
                self._decide(c.Advance())
                yield
        self.now = now

    def _decide(self, command: c.Command) -> Any:
        """The answer of a command that is no release: who loses a partition by it has not let it
        go."""
        before = _owners(self.queue)
        answer = decide(self.queue, command, self.now).answer
        after = _owners(self.queue)
        for number, owner in before.items():
            if owner is not None and after.get(number) != owner:
                self._interrupted.add(number)
        return answer

    def _compared(
        self,
        before: _Seen,
        anyway: dict[int, str | None],
        called: _Seen,
        owned: dict[str, int],
        settings: dict[str, Any],
    ) -> Foreseen:
        queue, after, paused = self.queue, _seen(self.queue), called.paused
        moves = [
            ForeseenMove(number, had, owner, number in anyway and had != anyway[number] == owner)
            for number, owner in after.owners.items()
            if owner != (had := before.owners.get(number))
        ]
        new = _settings(queue)
        now = {flow.id: len(flow.owned) for flow in queue.flows.values()}
        staying = [n for flow in queue.flows.values() if flow.draining for n in flow.owned]
        return Foreseen(
            moves=tuple(moves),
            added=tuple(sorted(after.owners.keys() - before.owners.keys())),
            retiring=tuple(sorted(after.retiring - before.retiring)),
            removed=tuple(sorted(before.owners.keys() - after.owners.keys())),
            unassigned=tuple(sorted(queue.unassigned.keys() - before.unassigned)),
            staying=tuple(sorted(staying)),
            interrupted=tuple(sorted(self._interrupted)),
            paused=tuple(sorted(paused - before.paused)),
            resumed=tuple(sorted((before.paused - paused) & after.owners.keys())),
            pinned=tuple(n for n, name in called.pins.items() if before.pins.get(n) != name),
            unpinned=tuple(n for n in before.pins if n not in called.pins and n in after.owners),
            flows={id: (count, now.get(id)) for id, count in owned.items()},
            settings={name: (old, new[name]) for name, old in settings.items() if old != new[name]},
            holddown_until=self._holddown_until,
        )


def _owners(queue: Queue) -> dict[int, str | None]:
    """The owner of each partition that is there, by number."""
    return {one.number: one.owner.id if one.owner else None for one in queue.existing()}


def _seen(queue: Queue) -> _Seen:
    owners = _owners(queue)
    paused = frozenset(filter(queue.pauses.holding, owners))
    pins = {
        each: pin.client_name
        for number, pin in queue.pins.of.items()
        for each in queue.group(number)
    }
    return _Seen(
        owners,
        frozenset(queue.unassigned),
        frozenset(queue.retiring),
        paused,
        dict(sorted(pins.items())),
    )


def _settings(queue: Queue) -> dict[str, Any]:
    settings = queue.settings
    return {name: getattr(settings, name) for name in settings.__slots__}


def _said(queue: Queue) -> list[c.Release | c.Ready]:
    """What owners and successors say of handoffs as soon as they hear of them, in the order in
    which they have bound: first what is released, then what is ready.
    """
    released: dict[str, list[c.ReleaseItem]] = {flow_id: [] for flow_id in queue.flows}
    ready: dict[str, list[c.ReadyItem]] = {flow_id: [] for flow_id in queue.flows}
    for number in sorted(queue.handoffs):
        handoff, partition = queue.handoffs[number], queue.partitions[number]
        successor: Flow | None = handoff.successor
        if partition.state is State.REVOKING and partition.owner is not None:
            released[partition.owner.id].append(c.ReleaseItem(number, partition.epoch))
        elif partition.state is State.WARMING and successor is not None:
            ready[successor.id].append(c.ReadyItem(number, partition.epoch))
    return [
        *(c.Release(flow_id, tuple(items)) for flow_id, items in released.items() if items),
        *(c.Ready(flow_id, tuple(items)) for flow_id, items in ready.items() if items),
    ]
