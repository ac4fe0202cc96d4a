"""All attacks at once, for as long as wanted, beside twenty honest consumers: `make soak`.

    python -m tests.attacks.soak [--seconds 3600] [--keep DIRECTORY]

One service with keys and its own Postgres. The honest team publishes to `orders` and consumes it.
The attackers are strangers, and holders of keys for `team-a.*`; one of them may consume `orders`,
too. Each works in a thread and from an address of its own, and repeats its attack until the end.

The run fails if an honest consumer lost its lease, if a promise was broken (`tests.judge`), or if
an attack did not run. It prints what the service and its database hold before the attacks, at their
end, and after a while without them.

It fails, too, if rows of the attackers' queues are left (`KEPT`), or if an autovacuum was
cancelled: only a statement of the service that waits for it does that, and if that goes on, the
files grow without a bound. The files themselves are only printed. After the attacks they are nearly
as large as amid them, because Postgres keeps the room of deleted rows for new ones.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg

from broker import access_keys
from broker.core.access import Role
from broker.core.model import MOST_PARTITIONS
from broker.postgres import migrations
from tests.attacks.test_chunks import ATTACKS as CHUNKS
from tests.attacks.test_chunks import HEAD, endless, sent
from tests.attacks.wire import Wire
from tests.faults.stage import QUEUE, Postgres, Scene, Worker
from tests.rows import rows
from tests.service import ServeProcess

CONSUMERS, PARTITIONS = 20, 40
LEASE_SECONDS = 10.0
PUBLISHERS, MESSAGES_PER_SECOND = 2, 40
CHURNING, STREAMS, SILENT, GUESSES = 12, 300, 100, 200
LARGE_PARTITIONS = MOST_PARTITIONS
# Long enough for all that the service ends and deletes by itself in under a minute or two.
AFTER_SECONDS = 150.0
# Tables whose rows stay for a time, or as long as their queue, and why.
KEPT = {
    "counterpoise.audit": "COUNTERPOISE_AUDIT_DAYS",
    "counterpoise.conditions": "of flows, until these are forgotten",
    "counterpoise.flows": "for a day, so that their clients learn why they left",
    "counterpoise.measurements": "an hour",
    "counterpoise.commit_ages": "an hour",
    "counterpoise.outages": "COUNTERPOISE_HISTORY_DAYS",
    "counterpoise.records": "COUNTERPOISE_HISTORY_DAYS",
    "counterpoise_log.clients": "credentials, until they expire",
    "counterpoise_log.messages": "the honest ones, which nothing commits in the queue `audit`",
    "counterpoise_log.publishers": "30 days",
    "counterpoise_log.sequences": "as long as their publishers",
}
# Of these, rows of deleted queues may be left.
OUTLIVE_QUEUES = ("measurements", "commit_ages")
CANCELLED = "canceling autovacuum task"
EVIL_STATEMENTS = (
    "SELECT '" + "x" * 2_000_000 + "'::integer",
    "SELECT count(*) FROM generate_series(1, 3000000) a",
    "DECLARE c CURSOR WITH HOLD FOR SELECT repeat('x', 1000) FROM generate_series(1, 50000)",
    "LISTEN counterpoise",
    "NOTIFY counterpoise, 'nothing'",
    "BEGIN; LOCK TABLE counterpoise_log.partitions IN ACCESS SHARE MODE; SELECT pg_sleep(2)",
    "SET debug_print_plan = on; SELECT 1 / 0",
)


class Guarded(Scene):
    """A service with keys. The processes of the honest team find their key in the environment."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        with contextlib.ExitStack() as starting:
            starting.push(self._held)
            self.database = directory / "postgres"
            self.postgres = Postgres(self.database)
            starting.callback(self.postgres.end)
            migrations.upgrade(self.postgres.url)
            self.honest = self.key(Role.ADMIN, QUEUE, "audit")
            os.environ["COUNTERPOISE_TOKEN"] = self.honest
            self.service = ServeProcess(
                directory / "service.log", ["--database-url", self.postgres.url]
            )
            self.replicas = [starting.enter_context(self.service)]
            self._held = starting.pop_all()

    @property
    def log_url(self) -> str:
        return self.postgres.url

    def key(self, role: Role, *queues: str) -> str:
        return access_keys.create(self.postgres.url, role, queues, "soak").text

    def workers(self, role: str, name: str, count: int, figure: float) -> Worker:
        arguments = (self.service.url, QUEUE, self.journal_file, name, count, figure)
        worker = Worker(self.directory / f"{name}.log", name, role, *arguments).start()
        self._held.callback(worker.end)
        return worker

    def orphans(self) -> dict[str, int]:
        """By table, the rows of queues that were deleted."""
        with psycopg.connect(self.postgres.url) as connection:
            tables = connection.execute(
                "SELECT relname FROM pg_attribute JOIN pg_class AS c ON c.oid = attrelid"
                " WHERE relnamespace = 'counterpoise'::regnamespace AND relkind = 'r'"
                " AND attname = 'queue_id' AND relname <> ALL (%s)",
                [list(OUTLIVE_QUEUES)],
            ).fetchall()
            counts = " UNION ALL ".join(
                f"SELECT '{name}', count(*) FROM counterpoise.{name} WHERE queue_id NOT IN"
                " (SELECT id FROM counterpoise.queues)"
                for (name,) in tables
            )
            return {name: count for name, count in connection.execute(counts.encode()) if count}

    def vacuums_cancelled(self) -> int:
        """How often Postgres had to cancel an autovacuum."""
        return sum(log.read_text().count(CANCELLED) for log in self.database.rglob("postgres.log*"))

    def held(self) -> dict[str, int]:
        """What the service and its database hold now."""
        assert self.service.process is not None
        pid = self.service.process.pid
        status = Path(f"/proc/{pid}/status").read_text()
        resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        with psycopg.connect(self.postgres.url) as connection:
            sizes = connection.execute(
                "SELECT nspname, sum(pg_total_relation_size(c.oid))::bigint FROM pg_class AS c"
                " JOIN pg_namespace AS n ON n.oid = relnamespace WHERE relkind = 'r'"
                " AND nspname LIKE 'counterpoise%' GROUP BY nspname"
            ).fetchall()
            more = connection.execute(
                "SELECT (SELECT count(*) FROM pg_roles WHERE rolcanlogin),"
                " (SELECT count(*) FROM pg_stat_activity),"
                " (SELECT coalesce(sum(size), 0)::bigint FROM pg_ls_tmpdir())"
            ).fetchone()
        assert more is not None
        return {
            "memory of the service, KiB": int(resident.split()[1]),
            "its open files": len(os.listdir(f"/proc/{pid}/fd")),
            **{f"tables of {name}, KiB": size // 1024 for name, size in sorted(sizes)},
            "login roles": more[0],
            "sessions": more[1],
            "temporary files, KiB": more[2] // 1024,
            "log files, KiB": sum(f.stat().st_size for f in self.database.rglob("*.log*")) // 1024,
            "autovacuums cancelled": self.vacuums_cancelled(),
            **{f"rows of {name}": count for name, count in rows(self.postgres.url).items()},
        }


class Attackers:
    """The attacks. `rounds` counts how often each was made; `answers` the status codes."""

    def __init__(self, scene: Guarded) -> None:
        self._url = scene.service.url
        self._viewer = scene.key(Role.VIEWER, "team-a.*")
        self._consumer = scene.key(Role.CONSUMER, "team-a.*", QUEUE)
        self._admin = scene.key(Role.ADMIN, "team-a.*")
        self._over = threading.Event()
        self._addresses = iter(range(10, 250))
        self.rounds: Counter[str] = Counter()
        self.answers: Counter[int] = Counter()
        self._threads = [
            threading.Thread(target=self._repeat, args=(act, f"127.0.0.{next(self._addresses)}"))
            for act in (
                self._chunks,
                self._silence,
                self._streams,
                self._churn,
                self._guess,
                self._large,
                self._rubbish,
                self._statements,
            )
        ]

    def make_queue(self) -> None:
        with self._http("127.0.0.9", self._admin) as http:
            made = http.post("/queues", json={"name": "team-a.q", "partition_count": 4})
            made.raise_for_status()

    def begin(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Also deletes the large queues whose deletion was not answered."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        with self._http("127.0.0.9", self._admin) as http:
            for queue in http.get("/queues?limit=1000").raise_for_status().json()["items"]:
                if queue["name"].startswith("team-a.large-"):
                    http.delete(f"/queues/{queue['name']}?force=true").raise_for_status()

    def _repeat(self, act: Callable[[str], None], address: str) -> None:
        while not self._over.is_set():
            # Whatever the service does to them.
            with contextlib.suppress(OSError, httpx.HTTPError, psycopg.Error):
                act(address)
                self.rounds[act.__name__.strip("_")] += 1
            self._over.wait(0.1)

    def _http(self, address: str, key: str = "") -> httpx.Client:
        def count(answer: httpx.Response) -> None:
            self.answers[answer.status_code] += 1

        return httpx.Client(
            base_url=f"{self._url}/v1",
            timeout=30,
            transport=httpx.HTTPTransport(local_address=address),
            headers={"Authorization": f"Bearer {key}"} if key else {},
            event_hooks={"response": [count]},
        )

    # Strangers

    def _chunks(self, address: str) -> None:
        for first, again in CHUNKS.values():
            with Wire(self._url, address) as wire:
                wire.send(HEAD + first)
                sent(wire, endless(again))

    def _silence(self, address: str) -> None:
        """Connections on which half a request comes."""
        with contextlib.ExitStack() as stack:
            for number in range(SILENT):
                wire = stack.enter_context(Wire(self._url, address))
                wire.send(HEAD if number % 2 else HEAD[:20])
            self._over.wait(12)

    def _guess(self, address: str) -> None:
        with self._http(address) as http:
            for number in range(GUESSES):
                token = f"cp_{number:012x}_{number:064x}"
                http.get("/queues", headers={"Authorization": f"Bearer {token}"})

    # Holders of keys

    def _streams(self, address: str) -> None:
        with contextlib.ExitStack() as stack:
            for _ in range(STREAMS):
                wire = stack.enter_context(Wire(self._url, address))
                wire.request(
                    "GET",
                    "/v1/queues/team-a.q/events",
                    accept="text/event-stream",
                    authorization=f"Bearer {self._viewer}",
                )
            self._over.wait(10)

    def _churn(self, address: str) -> None:
        """Flows of another key on the honest queue, which come and go and do no work."""
        with self._http(address, self._consumer) as http:
            # One whose unbind gets no answer keeps its partitions, unread, until its lease ends:
            # before the promises are judged.
            bound, lease_seconds = [], AFTER_SECONDS / 2
            for number in range(CHURNING):
                body = {"client_name": f"churn-{number}", "lease_seconds": lease_seconds}
                answer = http.post(f"/queues/{QUEUE}/flows", json=body)
                if answer.status_code == 201:
                    bound.append(answer.json())
            self._over.wait(3)
            for flow in bound:
                token = {"Authorization": f"Bearer {flow['flow_token']}"}
                http.delete(f"/queues/{QUEUE}/flows/{flow['flow_id']}", headers=token)

    def _large(self, address: str) -> None:
        """A large queue, changed and forgotten."""
        name = f"team-a.large-{self.rounds['large']}"
        with self._http(address, self._admin) as http:
            settings = {"partition_count": LARGE_PARTITIONS, "rebalance_delay": 0}
            settings["ordered_resize"] = False
            http.post("/queues", json={"name": name, **settings})
            http.post(f"/queues/{name}/flows", json={"client_name": "large"})
            for count in (LARGE_PARTITIONS // 2, LARGE_PARTITIONS, 1):
                http.patch(f"/queues/{name}?discard=true", json={"partition_count": count})
                http.get(f"/queues/{name}/rebalances?limit=1000")
                http.get(f"/queues/{name}/partitions?limit=1000")
            http.delete(f"/queues/{name}?force=true")

    def _rubbish(self, address: str) -> None:
        rubbish: list[Any] = [
            "[" * 30_000 + "]" * 30_000,
            json.dumps({"partitions": [{"partition": 0, "epoch": 1}] * 1000}),
            json.dumps({"name": "\u202e" * 100, "partition_count": 1e308}),
            "\0" * 60_000,
        ]
        with self._http(address, self._admin) as http:
            for body in rubbish:
                for path in ("/queues", "/queues/team-a.q/flows", "/queues/team-a.q/positions"):
                    headers = {"content-type": "application/json"}
                    http.post(path, content=body.encode(), headers=headers)

    def _statements(self, address: str) -> None:
        """Whoever may read the log can send its database any SQL."""
        with self._http(address, self._consumer) as http:
            answer = http.post("/queues/team-a.q/flows", json={"client_name": "sql"})
            answer.raise_for_status()
            url = answer.json()["log_access"]["url"]
        for statement in EVIL_STATEMENTS:
            if self._over.is_set():
                break
            with (
                contextlib.suppress(psycopg.Error),
                psycopg.connect(url, autocommit=True) as connection,
            ):
                connection.execute(statement.encode())


def run(directory: Path, seconds: float, say: Callable[[str], None]) -> Iterator[str]:
    """Plays it; yields what was wrong."""
    with Guarded(directory) as scene:
        scene.make_queues(PARTITIONS)
        consumers = scene.workers("consume", "honest", CONSUMERS, LEASE_SECONDS)
        scene.until_each_has_owned(CONSUMERS)
        publishers = scene.workers("publish", "writer", PUBLISHERS, MESSAGES_PER_SECOND)
        time.sleep(min(60.0, seconds / 4))
        bound = {flow.flow_id for flow in scene.ask(lambda client: client.flows(QUEUE))}
        attackers = Attackers(scene)
        attackers.make_queue()
        figures = [scene.held()]
        attackers.begin()
        say(f"{len(attackers._threads)} attackers have begun")
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(60.0, left))
            flows = {flow.flow_id for flow in scene.ask(lambda client: client.flows(QUEUE))}
            say(f"{len(bound & flows)} of {len(bound)} honest flows; rounds {attackers.rounds}")
        figures.append(scene.held())
        attackers.end()
        say("the attackers are gone")
        time.sleep(min(AFTER_SECONDS, seconds))
        figures.append(scene.held())
        still = {flow.flow_id for flow in scene.ask(lambda client: client.flows(QUEUE))}
        if lost := bound - still:
            yield f"{len(lost)} of {len(bound)} honest consumers lost their leases"
        verdict = scene.settle(publishers, [consumers], PARTITIONS)
        say(f"the promises:\n{verdict.table()}")
        if not verdict.kept:
            yield f"PROMISES BROKEN\n{verdict.examples()}"
        say(f"rounds: {dict(attackers.rounds)}\nanswers: {dict(attackers.answers)}")
        if len(attackers.rounds) < len(attackers._threads):
            yield f"some attacks were never made: {dict(attackers.rounds)}"
        yield from _left(figures[0], figures[2], scene.orphans())
        print(f"{'':36}{'before':>12}{'amid':>12}{'after':>12}")
        for name in figures[0]:
            print(f"{name:36}" + "".join(f"{each.get(name, 0):>12,}" for each in figures))


def _left(before: dict[str, int], after: dict[str, int], orphans: dict[str, int]) -> Iterator[str]:
    """What the attackers have left in the database, and should not have."""
    if orphans:
        yield f"rows of deleted queues: {orphans}"
    ended = {f"rows of {name}" for name in KEPT}
    for name in after:
        if name.startswith("rows of ") and name not in ended and after[name] != before.get(name):
            yield f"{name}: {before.get(name)} before the attacks, {after[name]} after them"
    if cancelled := after["autovacuums cancelled"]:
        yield f"{cancelled} autovacuums were cancelled"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.attacks.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=3600.0, help="how long they attack")
    parser.add_argument("--keep", type=Path, help="where journal and logs are left")
    given = parser.parse_args()
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:7.1f}  {line}", flush=True)

    with tempfile.TemporaryDirectory(prefix="counterpoise-soak-") as temporary:
        directory = given.keep or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        complaints = list(run(directory, given.seconds, say))
    for complaint in complaints:
        print(f"\n{complaint}")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
