"""Consumers: processes that follow a flow, work, and write to a sink.

The flow is the real core with its real programs. `Shell` carries out their effects, like
`counterpoise.flow.blocking` and `.asyncio`. A consumer works like `counterpoise.consumer`: it takes
a few messages of each of its partitions, works for some time, writes them to the sink, then
releases revoked partitions and commits the others. It sees only its view and the log, so after a
freeze it continues with what it knew.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from counterpoise.calls import Call
from counterpoise.errors import CounterpoiseError, NotBound
from counterpoise.flow import programs
from counterpoise.flow.core import FlowCore, FlowSettings
from counterpoise.flow.programs import MayRenew, Pause, Program, Send, Sent
from counterpoise.flow.view import Granted
from counterpoise.wire import ReleaseItem
from tests.simulation.checker import Checker
from tests.simulation.plan import Config
from tests.simulation.service import QUEUE
from tests.world.log import Log
from tests.world.loop import VirtualLoop
from tests.world.process import Process

# A call of the program is given up after this time, and repeated in the next turn.
CALL_SECONDS = 3.0
AT_ONCE = 3
# A draining consumer without a successor leaves after this time.
PATIENCE_SECONDS = 3.0

Done = Callable[[Any, CounterpoiseError | None], None]


class Network(Protocol):
    """The connection of a process to the service."""

    def send(self, process: Client, call: Call[Any], done: Done) -> None:
        """`done(value, error)` is called with the answer, or when there was none in time."""


class Client(Process):
    """The process of an application, with its random numbers."""

    def __init__(self, name: str, rng: random.Random, loop: VirtualLoop, drift: float) -> None:
        self.name, self.rng = name, rng
        # Until then it cannot be expected to make progress.
        self.hindered_until = 0.0
        self.replica_choice = rng.randrange(100)
        origin_seconds = rng.random() * 1e6
        super().__init__(loop, origin_seconds, 1.0 + drift * (2 * rng.random() - 1))

    def thaw(self) -> None:
        if self.frozen:
            self.hindered_until = self.loop.now + 1.0
        super().thaw()


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


class Consumer(Client):
    """One application."""

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
        config: Config,
        trace: Callable[[str], None] | None,
    ) -> None:
        super().__init__(name, rng, loop, config.drift)
        self.instance, self.lease, self.warmup = instance, lease, warmup
        self.network, self.log, self.checker, self.config = network, log, checker, config
        self.trace = trace
        self.core = FlowCore(FlowSettings(QUEUE, name, instance, lease, warmup, binder=name))
        self.leaving = self.ended = False
        # How much longer than usual its next messages take, and its next warm-ups.
        self.stubborn = self.cold = 0.0
        self._lanes: dict[int, Lane] = {}
        self._over: set[tuple[int, int]] = set()
        self._warming: set[tuple[int, int]] = set()
        self._busy = self._poked = False
        self._patient_until: float | None = None
        self._version = 0

    # The shell

    def open(self) -> None:
        self.core.open()
        self._run(programs.keep_bound(self.core), self._unbound)

    def _unbound(self, _value: Any, error: CounterpoiseError | None) -> None:
        assert error is None
        self.ended = True

    def _run(self, program: Program[Any], done: Done) -> None:
        self._step(program, done, None)

    def _step(self, program: Program[Any], done: Done, sent: Sent | None) -> None:
        value, error = None, None
        try:
            effect = program.send(sent) if sent is not None else next(program)
        except StopIteration as end:
            value = end.value
        except CounterpoiseError as raised:
            error = raised
        else:
            self._perform(effect, program, done)
            self._noticed()
            return
        self._noticed()
        done(value, error)

    def _perform(self, effect: programs.Effect, program: Program[Any], done: Done) -> None:
        started = self.now()

        def back(value: Any = None, error: CounterpoiseError | None = None) -> None:
            sent = Sent(started, self.now(), self.rng.random(), value, error)
            self._step(program, done, sent)

        match effect:
            case Pause(seconds):
                self.later(seconds, back)
            case MayRenew():
                self.later(0.0, back, True)
            case Send(call):
                self.network.send(self, call, back)

    def _noticed(self) -> None:
        core = self.core
        for notice in core.notices.take():
            if isinstance(notice, Granted):
                owned = notice.owned
                self.checker.granted(self.name, owned.partition, owned.epoch)
        if core.version != self._version:
            self._version = core.version
            self._warm_up()
            self.poke()

    # Orders to it

    def leave(self) -> None:
        """Unbinds and ends."""
        if not self.leaving:
            self.leaving = True
            self._run(programs.leave(self.core, 5.0), lambda value, error: None)

    def drain(self, seconds: float | None) -> None:
        """Hands over in order, then leaves."""
        if self.ended or self.leaving or self.core.error is not None:
            return

        def drained(_value: Any, error: CounterpoiseError | None) -> None:
            if error is not None and self.core.error is None:
                self.later(0.3, self.drain, seconds)

        try:
            self._run(programs.drain(self.core, seconds, 5.0), drained)
        except NotBound:
            self.later(0.3, self.drain, seconds)

    def poke(self) -> None:
        """There may be something to do."""
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
            if self._patient_until is None:
                self._patient_until = self.now() + PATIENCE_SECONDS
                self.later(PATIENCE_SECONDS + 0.01, self.poke)
        items = self._to_release()
        if items:
            self._release(items)
            return
        batch = self._take()
        if batch:
            self._busy = True
            least, most = self.config.work
            took = least + (most - least) * self.rng.random() + self.stubborn
            if self.stubborn:
                self.stubborn = 0.0
                self.hindered_until = self.loop.now + took + 0.5
            self.later(took, self._wrote, batch)
            return
        due = [lane for lane in self._lanes.values() if lane.committed < lane.position]
        if due:
            self._commit(due)
        elif any(owned.state == "retiring" for owned in view.partitions.values()):
            self.later(0.3, self.poke)

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
                position = self._begin(number, owned.position, bound.start)
                lane = Lane(number, owned.epoch, bound.flow_id, position, position)
                self._lanes[number] = lane

    def _begin(self, number: int, position: str | None, start: str | None) -> int:
        """If there is no position, the first owner that asks the log decides what `start` means."""
        if position is None and start == "latest":
            return self.log.ends.get(number, 0)
        return int(position or 0)

    def _take(self) -> Sequence[tuple[Lane, int]]:
        """The next messages to process, a few of each lane: (lane, position)."""
        batch = []
        view = self.core.view.partitions
        for number, lane in self._lanes.items():
            if view[number].state == "revoking" or lane.released:
                continue
            lane.position = max(lane.position, self.log.firsts.get(number, 0))
            end = min(lane.position + AT_ONCE, self.log.ends.get(number, 0))
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
        due = [lane for lane in self._lanes.values() if lane.committed < lane.position]
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
                items.append(ReleaseItem(number, lane.epoch, position, finished))
        return items

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

        self._run(programs.release(self.core, items, CALL_SECONDS), released)

    def _commit(self, due: Sequence[Lane]) -> None:
        self._busy = True
        items = [(lane.partition, lane.epoch, str(lane.position)) for lane in due]
        bound = self.core.bound
        for number, epoch, position in items:
            flow_id = bound.flow_id if bound is not None else ""
            self.checker.sent("position", flow_id, number, epoch, int(position))

        def committed(outcomes: Any, error: CounterpoiseError | None) -> None:
            self._busy = False
            if error is not None:
                self.later(0.2, self.poke)
                return
            for lane, (number, epoch, position) in zip(due, items, strict=True):
                if outcomes[number] == "ok":
                    lane.committed = max(lane.committed, int(position))
                elif self._lanes.get(number) is lane:
                    del self._lanes[number]
                    self._over.add((number, epoch))
            self.poke()

        self._run(programs.commit(self.core, items, CALL_SECONDS), committed)

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

        self._run(programs.ready(self.core, number, epoch, CALL_SECONDS), said)
