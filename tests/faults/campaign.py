"""The long run: a replica dies every few seconds, and other things break in between, while forty
consumers work, publishers write, and partitions are resized.

Which faults come in which order follows from the seed; what then happens does not, these are real
processes. So a violation is believed, and a seed is not a way to see it again.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.checker import Verdict, check
from tests.faults.journal import Handled, entries
from tests.faults.stage import QUEUE, Stage, Worker
from tests.service import eventually

LEASE_SECONDS = 4.0
PROCESSES, CONSUMERS_EACH = 4, 10
PUBLISHERS, MESSAGES_PER_SECOND = 3, 40
COUNTS = (60, 48, 72, 50, 80, 60)
SETTLE_SECONDS = 120.0


@dataclass
class Result:
    """What was done, how the promises fared, and how soon the killed lost what they had."""

    verdict: Verdict
    faults: dict[str, int] = field(default_factory=dict)
    lost_after_seconds: list[float] = field(default_factory=list)

    @property
    def slowest_seconds(self) -> float:
        return max(self.lost_after_seconds, default=0.0)

    def table(self) -> str:
        done = "\n".join(f"{count:>4} x {name}" for name, count in sorted(self.faults.items()))
        return (
            f"{done}\n\n{self.verdict.table()}\n\n"
            f"killed consumers lost their partitions within {self.slowest_seconds:.2f} s at most"
            f" (lease {LEASE_SECONDS:g} s, killed {len(self.lost_after_seconds)} times)"
        )


class Campaign:
    """One run on a stage of its own."""

    def __init__(self, stage: Stage, seed: int, say: Callable[[str], None]) -> None:
        self._stage = stage
        self._rng = random.Random(seed)
        self._say = say
        self._consumers: list[Worker] = []
        self._publishers: Worker | None = None
        self._counts = 0
        self._turn = 0
        self._guests = 0
        self.result = Result(Verdict())

    def run(self, seconds: float) -> Result:
        stage = self._stage
        stage.make_queues(COUNTS[0], rebalance_delay=0.5, max_handoff_time=2.0)
        self._consumers = [
            stage.consumers(f"c{number}", CONSUMERS_EACH, LEASE_SECONDS)
            for number in range(PROCESSES)
        ]
        self._publishers = stage.publishers("p", PUBLISHERS, MESSAGES_PER_SECOND)
        count = PROCESSES * CONSUMERS_EACH
        eventually(lambda: sum(map(bool, stage.owners().values())) == count, 60)
        self._say(f"{count} consumers own partitions")
        ends = time.monotonic() + seconds
        faults = self._faults()
        while time.monotonic() < ends:
            self._step(next(faults))
        self._settle()
        return self.result

    # Faults

    def _faults(self) -> Iterator[Callable[[], None]]:
        """Each once, in some order, and again."""
        each: list[Callable[[], None]] = [
            self._resize,
            self._kill_consumers,
            self._resize,
            self._restart_consumers,
            self._force,
            self._freeze_consumers,
            self._freeze_replica,
            self._kill_postgres,
            self._restart_postgres,
            self._kill_publishers,
            self._cut_door,
            self._stall_door,
            self._half_open_door,
            self._delay_everything,
            self._cut_back,
        ]
        while True:
            self._rng.shuffle(each)
            yield from each

    def _step(self, fault: Callable[[], None]) -> None:
        """A replica dies, something else happens meanwhile, the replica comes back."""
        victim = self._stage.replicas[self._turn % len(self._stage.replicas)]
        self._turn += 1
        victim.kill()
        self._count("a replica killed")
        self._pause(0.2, 0.6)
        fault()
        self._pause(0.2, 0.6)
        victim.start()
        self._pause(0.5, 1.5)

    def _count(self, name: str) -> None:
        self.result.faults[name] = self.result.faults.get(name, 0) + 1
        self._say(name)

    def _pause(self, least: float, most: float) -> None:
        time.sleep(self._rng.uniform(least, most))

    def _alive(self) -> int:
        """The index of the replica that is not being killed."""
        return self._turn % len(self._stage.replicas)

    def _resize(self) -> None:
        self._counts += 1
        count = COUNTS[self._counts % len(COUNTS)]
        self._count("partitions resized")
        self._stage.ask(lambda client: client.change_queue(QUEUE, partition_count=count))

    def _kill_consumers(self) -> None:
        """A process of ten consumers; when had the others what was theirs?"""
        index = self._rng.randrange(PROCESSES)
        worker, name = self._consumers[index], f"c{index}"
        eventually(lambda: self._held_by(name), 30)
        self._count("ten consumers killed")
        worker.end(signal.SIGKILL)
        killed = time.monotonic()
        eventually(lambda: not self._held_by(name), LEASE_SECONDS + 30)
        self.result.lost_after_seconds.append(time.monotonic() - killed)
        worker.start()

    def _held_by(self, name: str) -> int:
        """How many partitions the consumers of a process hold."""
        owners = self._stage.owners().items()
        return sum(len(held) for who, held in owners if who.startswith(f"{name}-"))

    def _force(self) -> None:
        """Others come, and who is to hand over to them is frozen: they are given it by force."""
        self._guests += 1
        name = f"guest{self._guests}"
        guests = self._stage.consumers(name, 5, LEASE_SECONDS)
        eventually(lambda: any(who.startswith(f"{name}-") for who in self._stage.owners()), 30)
        self._count("all consumers frozen while others joined")
        for worker in self._consumers:
            worker.send(signal.SIGSTOP)
        time.sleep(LEASE_SECONDS - 0.7)
        for worker in self._consumers:
            worker.send(signal.SIGCONT)
        self._pause(0.5, 1.0)
        guests.end()

    def _restart_consumers(self) -> None:
        """They hand over in order; nothing of what they had is repeated."""
        worker = self._rng.choice(self._consumers)
        self._count("ten consumers drained and started again")
        worker.end()
        worker.start()

    def _freeze_consumers(self) -> None:
        worker = self._rng.choice(self._consumers)
        self._count("ten consumers frozen for longer than their lease")
        worker.send(signal.SIGSTOP)
        time.sleep(LEASE_SECONDS * 1.5)
        worker.send(signal.SIGCONT)

    def _freeze_replica(self) -> None:
        process = self._stage.replicas[self._alive()].process
        assert process is not None
        self._count("the other replica frozen")
        process.send_signal(signal.SIGSTOP)
        time.sleep(self._rng.uniform(1.0, LEASE_SECONDS * 1.5))
        process.send_signal(signal.SIGCONT)

    def _kill_postgres(self) -> None:
        self._count("Postgres killed")
        self._stage.postgres.kill()
        self._pause(0.1, 2.0)
        self._stage.postgres.start()

    def _restart_postgres(self) -> None:
        self._count("Postgres restarted")
        self._stage.postgres.end()
        self._stage.postgres.start()

    def _kill_publishers(self) -> None:
        self._count("three publishers killed")
        assert self._publishers is not None
        self._publishers.end(signal.SIGKILL)
        self._publishers.start()

    def _cut_door(self) -> None:
        self._count("connections to the service cut")
        self._stage.door.cut()
        self._pause(0.2, 2.0)
        self._stage.door.mend()

    def _stall_door(self) -> None:
        self._count("connections to the service stalled")
        self._stage.door.stall()
        self._pause(1.0, LEASE_SECONDS * 1.5)
        self._stage.door.mend()

    def _half_open_door(self) -> None:
        self._count("connections to the service half open")
        self._stage.door.half_open()
        self._pause(1.0, 3.0)
        self._stage.door.mend()

    def _delay_everything(self) -> None:
        self._count("everything delayed by 0.1 s")
        for proxy in (self._stage.door, self._stage.back):
            proxy.delay(0.1)
        self._pause(2.0, 3.0)
        for proxy in (self._stage.door, self._stage.back):
            proxy.mend()

    def _cut_back(self) -> None:
        self._count("connections to Postgres cut")
        self._stage.back.cut()
        self._pause(0.2, 2.0)
        self._stage.back.mend()

    # The end

    def _settle(self) -> None:
        """All faults are over: sooner or later all that was published is handled."""
        self._say("faults are over")
        assert self._publishers is not None
        self._publishers.end()
        partitions = range(max(COUNTS))
        log = self._stage.log(partitions)
        wanted = {(n, one.position) for n, messages in log.items() for one in messages}
        give_up = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < give_up and not wanted <= self._handled():
            time.sleep(0.5)
        for worker in self._consumers:
            worker.end()
        self._say("everybody has left")
        self.result.verdict = check(log, entries(self._stage.journal_file))

    def _handled(self) -> set[tuple[int, int]]:
        sink = entries(self._stage.journal_file)
        return {(one.partition, one.position) for one in sink if isinstance(one, Handled)}


def run(directory: Path, seconds: float, seed: int, say: Callable[[str], None]) -> Result:
    """Set the stage in `directory`, play, and clear it. From the main thread."""
    with Stage(directory) as stage:
        return Campaign(stage, seed, say).run(seconds)
