"""The long run: every few seconds a fault, while forty consumers work, publishers write and
partitions are resized. About half of the time one of the two replicas is dead, otherwise both
serve.

The seed determines the faults and their order, but not their effects, because these are real
processes. So a violation is real even if its seed does not reproduce it.
"""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.faults.proxy import Proxy
from tests.faults.result import COMPLETE_SECONDS, Done, Loss, Result
from tests.faults.stage import (
    HANG_SECONDS,
    LEASE_SECONDS,
    QUEUE,
    REACH_SECONDS,
    Stage,
    Worker,
)
from tests.judge.journal import SERVICE
from tests.service import ServeProcess, eventually

PROCESSES, CONSUMERS_EACH = 4, 10
PUBLISHERS, MESSAGES_PER_SECOND = 3, 40
COUNTS = (60, 48, 72, 50, 80, 60)
KILLED = "a replica killed"
LEAST = 4
"""A short run plays so many kinds of faults, one of them `KILLED`, however long it takes."""


class Kind(NamedTuple):
    """A kind of fault. `act` returns when it is over."""

    name: str
    act: Callable[[], None]
    # Whether one replica is dead meanwhile; None: every other time.
    amid_death: bool | None = None
    # Whether it hits all, and so may excuse any behaviour of the service.
    general: bool = True


class Campaign:
    """One run with a stage of its own."""

    def __init__(self, stage: Stage, seconds: float, seed: int, say: Callable[[str], None]) -> None:
        self._stage = stage
        self._seconds = seconds
        self._rng = random.Random(seed)
        self._say = say
        self._consumers: list[Worker] = []
        self._publishers: Worker | None = None
        self._counts = 0
        self._victims = 0
        self._guests = 0
        self._kinds = [
            Kind("ten consumers killed", self._kill_consumers, general=False),
            Kind("ten consumers drained and started again", self._restart_consumers, general=False),
            Kind(
                "ten consumers frozen beyond their lease",
                self._freeze_consumers,
                general=False,
            ),
            Kind("all consumers frozen while others joined", self._force),
            Kind("three publishers killed", self._kill_publishers, general=False),
            Kind("partitions resized", self._resize, general=False),
            Kind("the only replica frozen", self._freeze_replica, amid_death=True),
            Kind("one replica frozen, then woken (zombie)", self._zombie, amid_death=False),
            Kind("Postgres killed", self._kill_postgres),
            Kind("Postgres restarted", self._restart_postgres),
            *self._network_faults("the service", stage.service_proxy),
            *self._network_faults("Postgres", stage.database_proxy),
            Kind("everything delayed by 0.1 s", self._delay_everything),
        ]
        self.result = Result(
            seconds, faults={KILLED: Done(), **{kind.name: Done() for kind in self._kinds}}
        )

    def run(self) -> Result:
        stage = self._stage
        stage.make_queues(COUNTS[0], ordered_resize=False)
        self._consumers = [
            stage.consumers(f"c{number}", CONSUMERS_EACH) for number in range(PROCESSES)
        ]
        self._publishers = stage.publishers("p", PUBLISHERS, MESSAGES_PER_SECOND)
        count = PROCESSES * CONSUMERS_EACH
        stage.until_each_has_owned(count)
        self._say(f"{count} consumers have owned partitions")
        ends = time.monotonic() + self._seconds
        turns = self._turns()
        while time.monotonic() < ends or self._goes_on(ends):
            self._play(*next(turns))
        self._say("faults are over")
        verdict = stage.settle(self._publishers, self._consumers, max(COUNTS))
        self.result.verdict = verdict
        self._say("everybody has left")
        return self.result

    def _goes_on(self, ends: float) -> bool:
        """Whether a run on a slow machine has not played enough in time: a long one all kinds of
        faults, a short one a few of them.
        """
        if self._seconds < COMPLETE_SECONDS:
            played = self.result.played
            return len(played) < LEAST or KILLED not in played
        return bool(self.result.missing) and time.monotonic() - ends < self._seconds

    # Turns

    def _turns(self) -> Iterator[tuple[Kind, bool]]:
        """Each kind once, in some order, and again; and whether a replica is dead meanwhile.

        Faults that hit a few come first. After a fault that hits all, there is for a while no way
        to tell whether the service took a partition from a consumer without a reason. So then there
        is a pause.
        """
        few = [kind for kind in self._kinds if not kind.general]
        everybody = [kind for kind in self._kinds if kind.general]
        for order in (few, everybody):
            self._rng.shuffle(order)
        # Even a short run must kill consumers, because that measures how soon they lose their
        # partitions.
        few.sort(key=lambda kind: kind.act != self._kill_consumers)
        turns = [*few, *everybody]
        amid_death = {kind.name: bool(number % 2) for number, kind in enumerate(turns)}
        while True:
            for kind in turns:
                chosen = kind.amid_death
                yield kind, amid_death[kind.name] if chosen is None else chosen
                amid_death[kind.name] ^= True
            self._say("a pause")
            time.sleep(REACH_SECONDS)
            for order in (few, everybody):
                self._rng.shuffle(order)
            turns = [*few, *few, *everybody]

    def _play(self, kind: Kind, amid_death: bool) -> None:
        """The fault. If `amid_death`, a replica dies before it and comes back after it."""
        with self._dead_replica(kind.general) if amid_death else contextlib.nullcontext():
            self._count(kind.name, all_up=not amid_death)
            kind.act()
        self._pause(0.5, 1.5)

    @contextlib.contextmanager
    def _dead_replica(self, general: bool) -> Iterator[None]:
        """`general`: the fault meanwhile hits all."""
        number = self._victims % len(self._stage.replicas)
        self._victims += 1
        replica, proxy = self._stage.replicas[number], self._stage.service_proxy
        with self._stage.fault(f"replica{number}", "killed"):
            self._count(KILLED, all_up=True)
            replica.kill()
            self._pause(0.2, 0.6)
            yield
            self._pause(0.2, 0.6)
            if general:
                # The replica accepts connections before it serves, and lets callers wait.
                with self._stage.fault(SERVICE, "a replica starts", from_seconds=HANG_SECONDS):
                    replica.start()
            else:
                # Like a proxy that asks `/readyz`.
                proxy.avoid(replica.url)
                replica.start()
                proxy.avoid(None)

    def _count(self, name: str, *, all_up: bool) -> None:
        done = self.result.faults.get(name, Done())
        self.result.faults[name] = Done(done.times + 1, done.all_up + all_up)
        self._say(name if name == KILLED or all_up else f"  {name}")

    def _pause(self, least: float, most: float) -> None:
        time.sleep(self._rng.uniform(least, most))

    # Faults of consumers and publishers

    def _resize(self) -> None:
        self._counts += 1
        count = COUNTS[self._counts % len(COUNTS)]
        self._stage.ask(lambda client: client.change_queue(QUEUE, partition_count=count))

    def _kill_consumers(self) -> None:
        """Kills a process of ten consumers, and measures when the others have its partitions."""
        worker = self._rng.choice(self._consumers)
        eventually(lambda: self._held_by(worker.name))
        with self._stage.fault(worker.name, "killed"):
            worker.end(signal.SIGKILL)
        killed = held = time.monotonic()

        def lost() -> bool:
            # What a look costs, and the pause after it, says nothing about the service.
            nonlocal held
            looked = time.monotonic()
            if not self._held_by(worker.name):
                return True
            held = looked
            return False

        eventually(lost)
        self.result.lost_after.append(Loss(held - killed, self._stage.overloaded(killed)))
        worker.start()

    def _held_by(self, name: str) -> int:
        """The number of partitions that the consumers of a process hold."""
        owners = self._stage.owners().items()
        return sum(len(held) for who, held in owners if who.startswith(f"{name}-"))

    def _force(self) -> None:
        """New consumers join while the owners are frozen, so they get partitions by force."""
        self._guests += 1
        name = f"guest{self._guests}"
        guests = self._stage.consumers(name, 5)
        eventually(lambda: any(who.startswith(f"{name}-") for who in self._stage.owners()))
        with contextlib.ExitStack() as frozen:
            for worker in self._consumers:
                frozen.enter_context(self._frozen(worker))
            time.sleep(LEASE_SECONDS - 0.7)
        self._pause(0.5, 1.0)
        guests.end()

    def _restart_consumers(self) -> None:
        """They hand over in order; nothing is repeated."""
        worker = self._rng.choice(self._consumers)
        worker.end()
        worker.start()

    def _freeze_consumers(self) -> None:
        with self._frozen(self._rng.choice(self._consumers)):
            time.sleep(LEASE_SECONDS * 1.5)

    @contextlib.contextmanager
    def _frozen(self, worker: Worker) -> Iterator[None]:
        with self._stage.fault(worker.name, "frozen"):
            worker.send(signal.SIGSTOP)
            yield
            worker.send(signal.SIGCONT)

    def _kill_publishers(self) -> None:
        assert self._publishers is not None
        self._publishers.end(signal.SIGKILL)
        self._publishers.start()

    # Faults of the service and of Postgres

    def _freeze_replica(self) -> None:
        """The only replica that is left, so that none serves."""
        (alive,) = [each for each in self._stage.replicas if each.process]
        self._freeze(alive, lambda: self._pause(1.0, LEASE_SECONDS * 1.5))

    def _zombie(self) -> None:
        """A replica is frozen for longer than the leases. When it wakes, its memory of the queue
        and the requests in it are older than its peer's state.
        """
        zombie, peer = self._rng.sample(self._stage.replicas, 2)
        self._counts += 1
        count = COUNTS[self._counts % len(COUNTS)]

        def meanwhile() -> None:
            self._pause(0.2, 1.0)
            self._stage.ask(
                lambda client: client.change_queue(QUEUE, partition_count=count), replicas=[peer]
            )
            time.sleep(LEASE_SECONDS * 1.5)

        self._freeze(zombie, meanwhile)

    def _freeze(self, replica: ServeProcess, meanwhile: Callable[[], None]) -> None:
        assert replica.process is not None
        with self._stage.fault(SERVICE, "a replica frozen"):
            replica.process.send_signal(signal.SIGSTOP)
            try:
                meanwhile()
            finally:
                replica.process.send_signal(signal.SIGCONT)

    def _kill_postgres(self) -> None:
        with self._stage.fault(SERVICE, "Postgres killed"):
            self._stage.postgres.kill()
            self._pause(0.1, 2.0)
            self._stage.postgres.start()

    def _restart_postgres(self) -> None:
        with self._stage.fault(SERVICE, "Postgres restarted"):
            self._stage.postgres.end()
            self._stage.postgres.start()

    # Faults of the network

    def _network_faults(self, where: str, way: Proxy) -> Iterator[Kind]:
        for how, harm, least_seconds, most_seconds in (
            ("cut", way.cut, 0.2, 2.0),
            ("stalled", way.stall, 1.0, LEASE_SECONDS * 1.5),
            ("half open", way.half_open, 1.0, 3.0),
        ):
            act = partial(self._break, harm, least_seconds, most_seconds)
            yield Kind(f"connections to {where} {how}", act)

    def _delay_everything(self) -> None:
        def delay() -> None:
            for proxy in (self._stage.service_proxy, self._stage.database_proxy):
                proxy.delay(0.1)

        self._break(delay, 2.0, 3.0)

    def _break(self, harm: Callable[[], None], least_seconds: float, most_seconds: float) -> None:
        """Break the network for a while."""
        with self._stage.fault(SERVICE, "network"):
            harm()
            self._pause(least_seconds, most_seconds)
            for proxy in (self._stage.service_proxy, self._stage.database_proxy):
                proxy.mend()


def run(directory: Path, seconds: float, seed: int, say: Callable[[str], None]) -> Result:
    """Set up the stage in `directory`, play, and take it down. From the main thread."""
    with Stage(directory) as stage:
        return Campaign(stage, seconds, seed, say).run()
