"""A flow's shell: it carries out the effects of the real core's programs.

`counterpoise.flow.blocking` and `.asyncio` do the same with threads and tasks.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Protocol

from broker.testing.loop import VirtualLoop
from broker.testing.process import Process
from counterpoise.calls import Call
from counterpoise.errors import CounterpoiseError, NotBound
from counterpoise.flow import programs
from counterpoise.flow.core import FlowCore, FlowSettings
from counterpoise.flow.programs import MayRenew, Pause, Program, Send, Sent
from counterpoise.flow.view import Granted
from tests.simulation.checker import Checker

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
            self.hindered_until = max(self.hindered_until, self.loop.now + 1.0)
        super().thaw()


class FlowShell(Client):
    """A process with one flow. What it does with its view is its subclass's part."""

    def __init__(
        self,
        name: str,
        instance: str,
        lease: float,
        warmup: bool,
        weight: int,
        most: int | None,
        rng: random.Random,
        loop: VirtualLoop,
        network: Network,
        checker: Checker,
        queue: str,
        drift: float,
    ) -> None:
        super().__init__(name, rng, loop, drift)
        self.instance, self.lease, self.warmup = instance, lease, warmup
        self.network, self.checker, self.queue = network, checker, queue
        self.core = FlowCore(
            FlowSettings(
                *(queue, name, instance, lease, warmup),
                weight=weight,
                max_partitions=most,
                binder=name,
                timeout_seconds=5.0,
            )
        )
        self.leaving = self.ended = False
        self._version = 0

    def changed(self) -> None:
        """The view is another."""

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
            self.changed()

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
            self._run(programs.drain(self.core, seconds), drained)
        except NotBound:
            self.later(0.3, self.drain, seconds)
