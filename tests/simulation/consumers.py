"""Consumers: processes that follow a flow, work, and write to a sink.

The flow is the real core with its real programs (`shell.py`). A consumer works like
`counterpoise.consumer`: it takes a few messages of each of its partitions, works for some time,
writes them to the sink, then releases revoked partitions and commits the others. It ends sealed
partitions, and stops at cuts. It sees only its view and the log, so after a freeze it continues
with what it knew.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from broker.testing.loop import VirtualLoop
from counterpoise.errors import CounterpoiseError
from counterpoise.flow import programs
from counterpoise.flow.barriers import is_at, within
from counterpoise.flow.view import Owned
from counterpoise.logs.port import Bounds
from counterpoise.wire import Child, ChildrenItem, CommitItem, ReleaseItem
from tests.simulation.checker import Checker
from tests.simulation.plan import Config
from tests.simulation.shell import FlowShell, Network
from tests.world.log import Log

# A call of the program is given up after this time, and repeated in the next turn.
CALL_SECONDS = 3.0
AT_ONCE = 3
# A draining consumer without a successor leaves after this time.
PATIENCE_SECONDS = 3.0
# Without anything to do it looks at the log again after this time, if partitions may end or stop.
IDLE_SECONDS = 0.6
# What a partition follows may be reported later, by another flow.
PARENT_SECONDS = 0.3
# How often it goes on with what it learned of the log before, and reports children before the end.
OFTEN = 0.3


@dataclass(slots=True)
class Lane:
    """One partition in work. `position` is the next message to process."""

    partition: int
    epoch: int
    flow_id: str
    position: int
    committed: int
    # A release was sent. Unless it is refused, no more messages may be taken: it may have taken
    # effect although the answer was lost.
    released: bool = False
    finished: bool = False
    # The service has confirmed, since this view, that the cut is reached.
    said: Owned | None = None
    # Its children are reported.
    reported: bool = False
    ends_not_before: float = 0.0

    def reaches(self, owned: Owned | None) -> bool:
        """Whether it is at its cut or past it, and the view does not say so."""
        if owned is None or owned is self.said or owned.cut is None or owned.reached_cut:
            return False
        return is_at(str(self.position), owned.cut)


class Application(FlowShell):
    """One application: what it has in common with others that work in another way."""

    def __init__(
        self,
        name: str,
        instance: str,
        lease: float,
        warmup: bool,
        rng: random.Random,
        loop: VirtualLoop,
        network: Network,
        log: Log,
        checker: Checker,
        queue: str,
        config: Config,
        trace: Callable[[str], None] | None,
    ) -> None:
        drift = config.drift
        place = int(instance[1:])
        weight = config.weights[place % len(config.weights)]
        most = config.maxima[place % len(config.maxima)]
        super().__init__(
            *(name, instance, lease, warmup, weight, most),
            *(rng, loop, network, checker, queue, drift),
        )
        self.log, self.config, self.trace = log, config, trace
        # How much longer than usual its next messages take, and its next warm-ups.
        self.stubborn = self.cold = 0.0
        self._warming: set[tuple[int, int]] = set()
        self._poked = False
        self._patient_until: float | None = None

    def changed(self) -> None:
        self._warm_up()
        self.poke()

    def poke(self) -> None:
        """There may be something to do."""

    def is_impatient(self) -> bool:
        """Whether it has drained for so long that it waits for no successor."""
        if self._patient_until is None:
            self._patient_until = self.now() + PATIENCE_SECONDS
            self.later(PATIENCE_SECONDS + 0.01, self.poke)
        return self.now() > self._patient_until

    # Warm-up

    def _warm_up(self) -> None:
        warming = {(number, warm.epoch) for number, warm in self.core.view.warming.items()}
        for key in sorted(warming - self._warming):
            took = 0.05 + 0.4 * self.rng.random() + self.cold
            self.later(took, self._warm, key)
        if warming - self._warming:
            self.cold = 0.0
        self._warming = warming

    def _warm(self, key: tuple[int, int]) -> None:
        number, epoch = key
        if key not in self._warming or self.core.bound is None or self.core.error is not None:
            return
        self.checker.sent("ready", self.core.bound.flow_id, number, epoch)

        def said(_outcome: Any, error: CounterpoiseError | None) -> None:
            if error is not None:
                self.later(0.2, self._warm, key)

        self._run(programs.ready(self.core, number, epoch, timeout_seconds=CALL_SECONDS), said)


class Consumer(Application):
    """One application that works on a few messages of each of its partitions at a time."""

    def __init__(self, *place: Any) -> None:
        super().__init__(*place)
        self._lanes: dict[int, Lane] = {}
        self._over: set[tuple[int, int]] = set()
        self._busy = self._looks_again = False
        self._bounds: Bounds | None = None

    def poke(self) -> None:
        if not self._busy and not self._poked:
            self._poked = True
            self.later(0.0, self._turn)

    # Work

    def _turn(self) -> None:
        self._poked = False
        if self._busy or self.leaving or self.core.error is not None:
            return
        self._follow()
        view = self.core.view
        if view.draining:
            if not view.active:
                self.leave()
                return
            self.is_impatient()
        items = self._to_release()
        if items:
            self._release(items)
            return
        ends = self._to_end()
        if ends:
            self._end(ends)
            return
        batch = self._take()
        if batch:
            self._busy = True
            for lane, position in batch:
                revision = view.revision
                self.checker.began_work(lane.flow_id, revision, lane.partition, position)
            least, most = self.config.work
            took = least + (most - least) * self.rng.random() + self.stubborn
            if self.stubborn:
                self.stubborn = 0.0
                self.hindered_until = self.loop.now + took + 0.5
            self.later(took, self._wrote, batch)
            return
        due = self._to_commit()
        if due:
            self._commit(due)
        elif any(owned.state == "retiring" for owned in view.partitions.values()):
            self.later(0.3, self.poke)
        elif self.config.reshapes and self._lanes and not self._looks_again:
            self._looks_again = True
            self.later(IDLE_SECONDS, self._look_again)

    def _look_again(self) -> None:
        self._looks_again = False
        self.poke()

    def _to_commit(self) -> list[Lane]:
        view = self.core.view.partitions
        return [
            lane
            for number, lane in self._lanes.items()
            if lane.committed < lane.position or lane.reaches(view.get(number))
        ]

    def _follow(self) -> None:
        """Takes over new grants, and drops those that are over."""
        view, bound = self.core.view.partitions, self.core.bound
        for lane in list(self._lanes.values()):
            owned = view.get(lane.partition)
            if owned is None or owned.epoch != lane.epoch:
                del self._lanes[lane.partition]
        held = {(number, owned.epoch) for number, owned in view.items()}
        self._over &= held
        for number, owned in view.items():
            if number not in self._lanes and (number, owned.epoch) not in self._over:
                assert bound is not None
                position = int(owned.position or 0)
                lane = Lane(number, owned.epoch, bound.flow_id, position, position)
                self._lanes[number] = lane

    def _take(self) -> Sequence[tuple[Lane, int]]:
        """The next messages to process, a few of each lane: (lane, position)."""
        if not self.config.reshapes:
            return self._take_up_to(self.log.ends)
        # It need not have asked the log just now.
        old = self._bounds if self.rng.random() < OFTEN else None
        batch = self._take_up_to(self._ends(old)) if old is not None else ()
        return batch or self._take_up_to(self._ends(self.log.bounds()))

    def _ends(self, bounds: Bounds) -> Mapping[int, int]:
        """How far each partition may be read, by the view of now."""
        self._bounds = bounds
        positions = {number: str(lane.position) for number, lane in self._lanes.items()}
        ends = within(bounds, self.core.view.partitions, positions).ends
        return {number: int(end) for number, end in ends.items()}

    def _take_up_to(self, ends: Mapping[int, int]) -> Sequence[tuple[Lane, int]]:
        batch = []
        view = self.core.view.partitions
        for number, lane in self._lanes.items():
            held = view[number]
            if held.state == "revoking" or lane.released or held.paused is not None:
                continue
            lane.position = max(lane.position, self.log.firsts.get(number, 0))
            end = min(lane.position + AT_ONCE, ends.get(number, 0))
            batch += [(lane, position) for position in range(lane.position, end)]
        return batch

    def _wrote(self, batch: Sequence[tuple[Lane, int]]) -> None:
        """The messages are processed, even if their lanes have changed meanwhile."""
        for lane, position in batch:
            if self.trace is not None:
                self.trace(f"{self.name} writes p{lane.partition} e{lane.epoch} m{position}")
            self.checker.wrote(lane.flow_id, lane.partition, lane.epoch, position)
            lane.position = position + 1
        self._busy = False
        self._follow()
        items = self._to_release()
        if items:
            self._release(items)
            return
        due = self._to_commit()
        if due and self.rng.random() < 0.7:
            self._commit(due)
        else:
            self.poke()

    def _to_release(self) -> list[ReleaseItem]:
        view = self.core.view
        impatient = self._patient_until is not None and self.now() > self._patient_until
        items = []
        for number, lane in self._lanes.items():
            owned = view.partitions.get(number)
            if owned is None or owned.epoch != lane.epoch:
                continue
            final = number >= self.log.count and lane.position >= self.log.ends.get(number, 0)
            finished = lane.finished if lane.released else owned.state == "retiring" and final
            if (
                lane.released
                or finished
                or owned.state == "revoking"
                or (impatient and view.draining)
            ):
                position = str(lane.position) if lane.position > 0 else None
                reaches = lane.reaches(owned)
                items.append(ReleaseItem(number, lane.epoch, position, finished, reaches))
        # The partitions of a group may be let go one after the other.
        apart = self.config.aligned > 1 and self.rng.random() < OFTEN
        return items[:1] if apart else items

    def _to_end(self) -> list[ChildrenItem]:
        """The ends of sealed partitions; what is revoked or let go is not ended."""
        view, ranges = self.core.view, self.log.ranges
        impatient = self._patient_until is not None and self.now() > self._patient_until
        if ranges is None or (impatient and view.draining):
            return []
        items = []
        for number, lane in self._lanes.items():
            owned, after = view.partitions.get(number), ranges.sealed.get(number)
            if owned is None or owned.epoch != lane.epoch or after is None or lane.released:
                continue
            if owned.state == "revoking" or lane.position < self.log.ends.get(number, 0):
                continue
            if lane.ends_not_before > self.now():
                continue
            children = tuple(Child(one.key, one.parents, one.partition) for one in after)
            finished = lane.reported or self.rng.random() > OFTEN
            position = str(lane.position)
            items.append(ChildrenItem(number, lane.epoch, position, finished, children))
        return items

    def _end(self, items: list[ChildrenItem]) -> None:
        self._busy = True
        assert self.core.bound is not None
        flow_id = self.core.bound.flow_id
        for item in items:
            assert item.position is not None
            position = int(item.position)
            if item.finished:
                self.checker.sent("finish", flow_id, item.partition, item.epoch)
            self.checker.sent("position", flow_id, item.partition, item.epoch, position)

        def ended(outcomes: Any, error: CounterpoiseError | None) -> None:
            self._busy = False
            if error is not None:
                self.later(0.2, self.poke)
                return
            for item in items:
                lane, outcome = self._lanes.get(item.partition), outcomes[item.partition]
                if lane is None or lane.epoch != item.epoch:
                    continue
                if outcome == "unknown_parent":
                    lane.ends_not_before = self.now() + PARENT_SECONDS
                    self.later(PARENT_SECONDS, self.poke)
                elif outcome == "ok" and not item.finished:
                    lane.reported = True
                    lane.committed = max(lane.committed, int(item.position or 0))
                else:
                    del self._lanes[item.partition]
                    self._over.add((item.partition, item.epoch))
            self.poke()

        self._run(programs.children_many(self.core, items, timeout_seconds=CALL_SECONDS), ended)

    def _release(self, items: list[ReleaseItem]) -> None:
        self._busy = True
        assert self.core.bound is not None
        flow_id = self.core.bound.flow_id
        for item in items:
            lane = self._lanes[item.partition]
            lane.released, lane.finished = True, item.finished
            self.checker.sent("release", flow_id, item.partition, item.epoch)
            if item.finished:
                self.checker.sent("finish", flow_id, item.partition, item.epoch)
            if item.position is not None:
                position = int(item.position)
                self.checker.sent("position", flow_id, item.partition, item.epoch, position)

        def released(outcomes: Any, error: CounterpoiseError | None) -> None:
            self._busy = False
            if error is not None:
                self.later(0.2, self.poke)
                return
            for item in items:
                lane = self._lanes.get(item.partition)
                if lane is None or lane.epoch != item.epoch:
                    continue
                if outcomes[item.partition] == "not_revoking":
                    lane.released = False
                else:
                    del self._lanes[item.partition]
                    self._over.add((item.partition, item.epoch))
            if "not_revoking" in outcomes.values():
                self.later(0.2, self.poke)
            else:
                self.poke()

        self._run(programs.release_many(self.core, items, timeout_seconds=CALL_SECONDS), released)

    def _commit(self, due: Sequence[Lane]) -> None:
        self._busy = True
        view = self.core.view.partitions
        held = {lane.partition: view.get(lane.partition) for lane in due}
        items = [
            CommitItem(
                lane.partition,
                lane.epoch,
                str(lane.position),
                lane.reaches(held[lane.partition]),
            )
            for lane in due
        ]
        bound = self.core.bound
        flow_id = bound.flow_id if bound is not None else ""
        for item in items:
            self.checker.sent("position", flow_id, item.partition, item.epoch, int(item.position))

        def committed(outcomes: Any, error: CounterpoiseError | None) -> None:
            self._busy = False
            if error is not None:
                self.later(0.2, self.poke)
                return
            for lane, item in zip(due, items, strict=True):
                number = lane.partition
                if outcomes[number] == "ok":
                    lane.committed = max(lane.committed, int(item.position))
                    if item.reached_cut:
                        lane.said = held[number]
                elif self._lanes.get(number) is lane:
                    del self._lanes[number]
                    self._over.add((number, item.epoch))
            self.poke()

        self._run(programs.commit(self.core, items, timeout_seconds=CALL_SECONDS), committed)
