"""Writers killed, frozen and robbed of their partitions at random, as processes, on each target.

Three writers share six partitions of an `Authority`, and write through one target: Postgres,
MariaDB, Delta, Iceberg, or another queue (a chain), which is resized meanwhile. One after the other
is killed and started again, frozen until its partitions are ahead of it under other owners and then
woken (a zombie), or robbed amid its work. At the end the result must have each message once, and
nothing else.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from broker.postgres.embedded import EmbeddedPostgres
from tests.counterpoise.spark.sink.mariadb import running_mariadb
from tests.faults.chains import Chained
from tests.faults.writer import Authority, Owned, is_kept, place_of
from tests.log_support import migrate_log
from tests.service import eventually

WRITERS, PARTITIONS = 3, 6
FAULTS = ("killed", "frozen", "robbed")
KINDS = ("postgres", "mariadb", "delta", "iceberg", "queue")
FULL, SMALL = 25, 2
"""How often each fault comes."""
PUBLISHED = 3_000
"""So many messages come with each fault, at least."""
PATIENCE_SECONDS = 240.0


@dataclass
class Tortured:
    """What was done to one target, and what is wrong in its result."""

    kind: str
    messages: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    not_run: str | None = None
    """Why the target was not tried at all."""

    def table(self) -> str:
        if self.not_run is not None:
            return f"sink into {self.kind}: not run: {self.not_run}"
        done = ", ".join(f"{count} times {what}" for what, count in self.faults.items())
        ranges = ", ".join(f"{count:,} {what}" for what, count in sorted(self.outcomes.items()))
        return f"sink into {self.kind}: {self.messages:,} messages; {done}; ranges: {ranges}"

    def complaints(self) -> list[str]:
        """The reasons why the run does not pass; none: it passes."""
        if self.not_run is not None:
            return []
        found = [f"SINK INTO {self.kind.upper()}: {one}" for one in self.wrong]
        # A queue knows no epochs. What a stale writer brings is repeated, or its owner's is.
        shows = "repeated" if self.kind == "queue" else "superseded"
        if not self.outcomes[shows]:
            found.append(f"sink into {self.kind}: nothing was {shows}, so nobody knows")
        return found


class Torture:
    """One run on a target of its own."""

    def __init__(self, kind: str, where: str, directory: Path, seed: int) -> None:
        self._kind = kind
        self._where = where
        self._directory = directory
        self._rng = random.Random(f"{kind} {seed}")
        self._authority = Authority(directory / "authority.db")
        self._shared = [self._authority]
        """Files that one writer at a time may change."""
        if kind == "iceberg":
            self._shared.append(Authority(Path(where) / "catalog.db"))
        self._writers: dict[str, subprocess.Popen[bytes]] = {}
        self.result = Tortured(kind)

    def run(self, times: int) -> Tortured:
        try:
            self._torture(times)
        except AssertionError as error:
            self.result.wrong.append(str(error))
        else:
            self._judge()
        return self.result

    def _torture(self, times: int) -> None:
        self._authority.create(PARTITIONS)
        place = place_of(self._kind, self._where)
        names = [f"w{number}" for number in range(WRITERS)]
        faults = [*FAULTS] * times
        self._rng.shuffle(faults)
        with contextlib.ExitStack() as ending:
            ending.callback(self._end)
            for name in names:
                self._start(name)
            for one in range(PARTITIONS):
                self._authority.give(one, names[one % WRITERS])
            for fault in faults:
                self._publish()
                before = self._done()
                victim = self._rng.choice(names)
                self._until_more_than(before)
                time.sleep(self._rng.uniform(0.0, 0.1))
                getattr(self, f"_{fault}")(victim, [one for one in names if one != victim])
                self.result.faults[fault] += 1
                if isinstance(place, Chained):
                    place.disturb(self._rng)
            self._until(
                lambda: all(one.position == one.published for one in self._authority.owned()),
                "everything is written",
            )

    # ------------------------------------------------------------------ faults

    def _killed(self, victim: str, others: list[str]) -> None:
        self._kill(victim)
        self._rob(victim, others)
        self._start(victim)
        # Something for its next life.
        self._authority.give(self._rng.randrange(PARTITIONS), victim)

    def _frozen(self, victim: str, others: list[str]) -> None:
        writer = self._writers[victim]
        writer.send_signal(signal.SIGSTOP)
        while not all(one.free() for one in self._shared):
            writer.send_signal(signal.SIGCONT)
            time.sleep(0.05)
            writer.send_signal(signal.SIGSTOP)
        lost = self._rob(victim, others)
        self._publish()
        self._until(
            lambda: all(
                one.position > lost[one.partition].position
                for one in self._authority.owned()
                if one.partition in lost
            ),
            f"the partitions of {victim}, which is frozen, go on elsewhere",
        )
        writer.send_signal(signal.SIGCONT)
        self._authority.give(self._rng.randrange(PARTITIONS), victim)

    def _robbed(self, victim: str, others: list[str]) -> None:
        self._rob(victim, others)
        self._authority.give(self._rng.randrange(PARTITIONS), victim)

    def _rob(self, victim: str, others: list[str]) -> dict[int, Owned]:
        """Give all its partitions to others. Returns them as they were."""
        lost = {one.partition: one for one in self._authority.owned() if one.owner == victim}
        for partition in lost:
            self._authority.give(partition, self._rng.choice(others))
        return lost

    # ------------------------------------------------------------------ surroundings

    def _start(self, name: str) -> None:
        command = [sys.executable, "-m", "tests.faults.writer", self._kind, self._where]
        command += [str(self._authority.path), name, str(self._rng.random())]
        with self._output(name).open("ab") as output:
            self._writers[name] = subprocess.Popen(command, stdout=output, stderr=output)

    def _output(self, name: str) -> Path:
        return self._directory / f"{name}.out"

    def _end(self) -> None:
        for name in self._writers:
            self._kill(name)

    def _kill(self, name: str) -> None:
        """Kill a writer. One that has ended by itself has failed."""
        writer = self._writers[name]
        if writer.poll() is not None:
            self.result.wrong.append(self._end_of(name))
        writer.kill()
        writer.wait()

    def _end_of(self, name: str) -> str:
        *_, last = ["it wrote nothing", *self._output(name).read_text().splitlines()]
        return f"writer {name} has ended by itself: {last}"

    def _publish(self) -> None:
        for partition in range(PARTITIONS):
            count = PUBLISHED // PARTITIONS + self._rng.randrange(50)
            self._authority.publish(partition, count)

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for it as long as all writers live and write. Raises AssertionError."""

        def goes_on() -> bool:
            for name, writer in self._writers.items():
                assert writer.poll() is None, self._end_of(name)
            return condition() or self._done() > done

        while not condition():
            done = self._done()
            eventually(goes_on, PATIENCE_SECONDS, what)

    def _until_more_than(self, before: int) -> None:
        self._until(lambda: self._done() > before, "something is written")

    def _done(self) -> int:
        return sum(one.position for one in self._authority.owned())

    def _judge(self) -> None:
        result = self.result
        place = place_of(self._kind, self._where)
        found: Counter[tuple[int, int]] = Counter(
            (one["partition"], int(one["position"])) for one in place.rows()
        )
        published = {one.partition: one.published for one in self._authority.owned()}
        expected = {
            (partition, position)
            for partition, count in published.items()
            for position in range(count)
            if is_kept(partition, position)
        }
        result.messages = sum(published.values())
        for what, messages in {
            "missing": expected - found.keys(),
            "never published": found.keys() - expected,
            "twice": {one for one, count in found.items() if count > 1},
        }.items():
            if messages:
                result.wrong.append(f"{len(messages)} messages {what}, such as {min(messages)}")
        lines = [
            line for name in self._writers for line in self._output(name).read_text().splitlines()
        ]
        result.outcomes.update(one for one in lines if one in OUTCOMES)


OUTCOMES = ("written", "repeated", "superseded")


def run(
    directory: Path,
    seed: int,
    say: Callable[[str], None],
    times: int = FULL,
    kinds: Sequence[str] = KINDS,
) -> Iterator[Tortured]:
    """Each target in turn, with every fault so many times."""
    with contextlib.ExitStack() as ending:
        url = ending.enter_context(EmbeddedPostgres(directory / "server"))
        migrate_log(url)
        for kind in kinds:
            own = directory / kind
            own.mkdir(parents=True)
            where = url if kind in ("postgres", "queue") else str(own)
            if kind == "mariadb" and shutil.which("mariadbd") is None:
                result = Tortured(kind, not_run="needs Debian's mariadb-server-core")
                say(result.table())
                yield result
                continue
            if kind == "mariadb":
                where = ending.enter_context(running_mariadb()).new_database()
            result = Torture(kind, where, own, seed).run(times)
            say(result.table())
            yield result
