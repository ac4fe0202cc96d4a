"""Plays steps on a queue of the core, event by event, in virtual time."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from broker.core import commands as c
from broker.core import records as r
from broker.core.draft import Decision
from broker.core.model import Settings
from broker.core.queue import Queue
from broker.core.rebalancer import decide
from broker.core.replay import replay_all
from broker.core.transitions import State, Status
from broker.simulate.scenarios import Step


@dataclass(frozen=True)
class ConsumerModel:
    """How consumers behave (see the package)."""

    finish_seconds: float = 0.5
    lease_seconds: float = 10.0
    warmup_seconds: float = 0.0
    seed: int = 1


@dataclass
class Phase:
    """What a step led to, until the next step came.

    `balanced_after`: seconds from the step until the queue was balanced for the last time; None if
    the next step came before that.
    `pauses`: how long each partition that moved was read by nobody, in seconds.
    """

    step: Step
    balanced_after: float | None = None
    handoffs: int = 0
    forced: int = 0
    granted: int = 0
    pauses: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Sample:
    """The queue at one moment. `paused`: partitions that no consumer reads: in `revoking`, without
    an owner, or of a consumer that crashed and whose lease still runs."""

    at: float
    flows: int
    paused: int
    warming: int
    status: str


@dataclass(frozen=True)
class Played:
    """The whole play. `settings`: as it began; `partition_count`: as it ended."""

    settings: Settings
    partition_count: int
    phases: tuple[Phase, ...]
    samples: tuple[Sample, ...]
    seconds: float


def play(
    settings: Settings,
    steps: Sequence[Step],
    consumers: ConsumerModel,
    tell: Callable[[float, str], None] = lambda at, said: None,
) -> Played:
    """Plays the steps until nothing is left to happen. `tell` hears of each step."""
    return _Play(settings, steps, consumers, tell).run()


class _Play:
    def __init__(
        self,
        settings: Settings,
        steps: Sequence[Step],
        consumers: ConsumerModel,
        tell: Callable[[float, str], None],
    ) -> None:
        # A step may change those of the queue.
        self._settings = settings
        self._queue = Queue("simulated", "simulated", replace(settings), 0.0)
        added = r.PartitionsAdded(0, settings.partition_count, 0.0)
        replay_all(self._queue, (added,), 1)
        self._queue.journal.forget()
        self._consumers = consumers
        self._random = random.Random(consumers.seed)
        self._tell = tell
        self._now = 0.0
        self._wake_at: float | None = None
        self._order = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._names = itertools.count(1)
        # Bound and alive, the earliest first.
        self._alive: dict[str, None] = {}
        self._draining: set[str] = set()
        # Crashed and bound still, and since when.
        self._silent_since: dict[str, float] = {}
        self._phases: list[Phase] = []
        self._samples: list[Sample] = []
        self._was_balanced = False
        for step in steps:
            self._at(step.at, lambda step=step: self._begin(step))  # type: ignore[misc]

    def run(self) -> Played:
        while self._events or self._wake_at is not None:
            due = self._events[0][0] if self._events else None
            if self._wake_at is not None and (due is None or self._wake_at <= due):
                self._now = max(self._now, self._wake_at)
                self._wake_at = None
                self._do(c.Advance(dict(self._silent_since)))
            else:
                at, _, act = heapq.heappop(self._events)
                self._now = max(self._now, at)
                act()
        self._sample()
        self._end_phase()
        return Played(
            self._settings,
            self._queue.settings.partition_count,
            tuple(self._phases),
            tuple(self._samples),
            self._now,
        )

    # Steps

    def _begin(self, step: Step) -> None:
        self._tell(self._now, step.label)
        self._end_phase()
        self._phases.append(Phase(step))
        if step.do == "resize":
            self._do(c.Change({"partition_count": step.count}))
            return
        acts = {
            "bind": self._bind,
            "unbind": self._unbind,
            "drain": self._drain,
            "crash": self._crash,
        }
        for place in range(step.count):
            self._at(self._now + place * step.over / step.count, acts[step.do])

    def _bind(self) -> None:
        number = next(self._names)
        name = f"consumer-{number}"
        self._alive[name] = None
        warm = self._consumers.warmup_seconds > 0
        self._do(c.Bind(name, name, name, self._consumers.lease_seconds, warm))

    def _unbind(self) -> None:
        if (name := self._earliest()) is not None:
            self._do(c.Unbind(name))

    def _drain(self) -> None:
        if (name := self._earliest()) is not None:
            self._draining.add(name)
            self._do(c.Drain(name))
            self._leave_if_drained([name])

    def _crash(self) -> None:
        if (name := self._earliest()) is not None:
            self._silent_since[name] = self._now
            # What it has is processed by no one until others have it.
            self._was_balanced = False
            self._sample()
            self._at(self._now + self._consumers.lease_seconds, lambda: self._expire(name))

    def _expire(self, name: str) -> None:
        self._do(c.Unbind(name, "lease_expired", self._silent_since.pop(name)))

    def _earliest(self) -> str | None:
        """The consumer that was bound first and has not been told to leave, which leaves now."""
        name = next(iter(self._alive), None)
        if name is not None:
            del self._alive[name]
        return name

    # The core

    def _do(self, command: c.Command) -> None:
        decision = decide(self._queue, command, self._now)
        self._queue.journal.forget()
        self._wake_at = decision.wake_at
        self._note(decision)
        self._sample()
        if self._draining:
            self._leave_if_drained(decision.notices & self._draining)

    def _note(self, decision: Decision) -> None:
        phase = self._phases[-1]
        for record in decision.records:
            match record:
                case r.Granted(grants, _):
                    for grant in grants:
                        phase.handoffs += grant.by_handoff
                        phase.forced += grant.by_force
                        phase.granted += not grant.by_handoff
                        if grant.seconds is not None:
                            phase.pauses.append(grant.seconds)
                    self._finish_retiring(grant.partition for grant in grants)
                case r.RevokesStarted(moves, _, _):
                    self._release(move.partition for move in moves)
                case r.WarmupsEnded(partitions, _, _, _):
                    self._release(partitions)
                case r.WarmupsStarted(moves, _, _):
                    self._warm_up((move.partition, move.successor) for move in moves)
                case r.HandoffsRedirected(redirects, float(), _):
                    self._warm_up(redirects)
                case r.PartitionsRetired(partitions):
                    self._finish_retiring(partitions)
        if self._is_balanced() and not self._was_balanced:
            phase.balanced_after = self._now - phase.step.at
        self._was_balanced = self._is_balanced()

    def _is_balanced(self) -> bool:
        ready = self._queue.status is Status.READY and not self._queue.unassigned
        return ready and not self._silent_since

    def _end_phase(self) -> None:
        if self._phases and self._phases[-1].balanced_after is None and self._is_balanced():
            self._phases[-1].balanced_after = 0.0

    # Consumers

    def _finish_time(self) -> float:
        return self._now + self._consumers.finish_seconds * self._random.uniform(0.5, 1.5)

    def _release(self, numbers: Iterable[int], finished: bool = False) -> None:
        """Each owner of these partitions finishes them, and releases them together."""
        by_owner: defaultdict[str, list[int]] = defaultdict(list)
        for number in numbers:
            owner = self._queue.partitions[number].owner
            if owner is not None:
                by_owner[owner.id].append(number)
        for owner_id, owned in by_owner.items():
            self._at(
                self._finish_time(),
                lambda owner_id=owner_id, owned=owned: self._let_go(owner_id, owned, finished),  # type: ignore[misc]
            )

    def _finish_retiring(self, numbers: Iterable[int]) -> None:
        if self._queue.retiring:
            retiring = [number for number in numbers if number in self._queue.retiring]
            self._release(retiring, finished=True)

    def _let_go(self, owner_id: str, numbers: Sequence[int], finished: bool) -> None:
        flow = self._queue.flows.get(owner_id)
        # A crashed consumer is bound, and silent.
        if flow is None or (owner_id not in self._alive and not flow.draining):
            return
        items = []
        for number in numbers:
            partition = self._queue.partitions[number]
            due = partition.retiring if finished else partition.state is State.REVOKING
            if partition.owner is flow and due:
                items.append(c.ReleaseItem(number, partition.epoch, finished=finished))
        if items:
            self._do(c.Release(owner_id, tuple(items)))

    def _warm_up(self, successors: Iterable[tuple[int, str | None]]) -> None:
        by_successor: defaultdict[str, list[int]] = defaultdict(list)
        for number, successor in successors:
            if successor is not None:
                by_successor[successor].append(number)
        for successor, numbers in by_successor.items():
            self._at(
                self._now + self._consumers.warmup_seconds,
                lambda successor=successor, numbers=numbers: self._ready(successor, numbers),  # type: ignore[misc]
            )

    def _ready(self, successor: str, numbers: Sequence[int]) -> None:
        if successor in self._alive:
            partitions = self._queue.partitions
            items = tuple(c.ReadyItem(number, partitions[number].epoch) for number in numbers)
            self._do(c.Ready(successor, items))

    def _leave_if_drained(self, names: Iterable[str]) -> None:
        for name in sorted(names):
            flow = self._queue.flows.get(name)
            if flow is not None and not flow.owned and name in self._draining:
                self._draining.discard(name)
                self._do(c.Unbind(name))

    # Time

    def _at(self, at: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at, next(self._order), act))

    def _sample(self) -> None:
        queue = self._queue
        warming = len(queue.handoffs.warming)
        silent = (queue.flows[name] for name in self._silent_since)
        unread = sum(
            queue.partitions[number].state is not State.REVOKING
            for flow in silent
            for number in flow.owned
        )
        sample = Sample(
            self._now,
            len(queue.flows),
            len(queue.handoffs) - warming + len(queue.unassigned) + unread,
            warming,
            queue.status.value,
        )
        if self._samples and self._samples[-1].at == sample.at:
            self._samples.pop()
        self._samples.append(sample)
