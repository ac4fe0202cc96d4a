"""Clients in other languages (docs/examples/clients) lose nothing and keep the order of each key.

They play joins, a kill -9, ordered resizes (before they start, and while they work) and drains.
All consumers of a run append to one file, so its lines are in the order in which messages were
processed and positions committed.

Two more plays: what an administrator does meanwhile, and a service that does not answer.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psycopg
import pytest

from tests.service import Service, eventually

KEYS = [f"k{n}" for n in range(12)]
# Of each key, each time that something is published.
MESSAGES = 60
pytestmark = pytest.mark.long


# What `make clients` has built.
BUILT = Path(__file__).parents[4] / ".venv" / "clients"
COMMANDS = {
    "go": [str(BUILT / "go-client")],
    "node": ["node", str(BUILT / "node" / "client.js")],
}
ENVIRONMENT = {"PATH": os.environ["PATH"], "LEASE_SECONDS": "2"}


class Run:
    """Clients of one queue."""

    def __init__(self, command: Sequence[str], service: Service, file: Path) -> None:
        self.command, self.url, self.file = command, service.url, file
        self.started: dict[str, subprocess.Popen[bytes]] = {}
        self.published = 0
        file.touch()

    def consume(self, name: str) -> None:
        with self.file.open("ab") as output:
            self.started[name] = subprocess.Popen(
                [*self.command, "consume", self.url, "q", name],
                stdout=output,
                env=ENVIRONMENT,
            )

    def publish(self) -> None:
        begin, self.published = self.published, self.published + MESSAGES
        self.send("".join(f"{key}\t{n}\n" for n in range(begin, self.published) for key in KEYS))

    def send(self, lines: str) -> None:
        publisher = [*self.command, "publish", self.url, "q", "publisher"]
        subprocess.run(publisher, input=lines.encode(), check=True, env=ENVIRONMENT)

    def texts(self) -> list[str]:
        return self.file.read_text().splitlines()

    def lines(self) -> Iterator[list[str]]:
        return (line.split() for line in self.texts())

    def processed(self) -> set[tuple[str, int]]:
        return {(line[3], int(line[4])) for line in self.lines() if line[0] == "message"}

    def all_processed(self) -> bool:
        return len(self.processed()) == self.published * len(KEYS)

    def end(self, names: Iterable[str], how: signal.Signals) -> list[int]:
        """Signal all, then wait. Returns their exit codes."""
        ending = [self.started.pop(name) for name in names]
        for one in ending:
            one.send_signal(how)
        return [one.wait(60) for one in ending]

    def check(self, *, repeats: bool) -> None:
        """`repeats`: a consumer was killed, so messages may come again from the last commit on."""
        last: dict[str, int] = defaultdict(lambda: -1)
        committed: dict[str, int] = defaultdict(int)
        for what, partition, position, *message in self.lines():
            if what != "message":
                committed[partition] = max(committed[partition], int(position))
                continue
            key, number = message[0], int(message[1])
            assert int(position) >= committed[partition], "it was committed before"
            assert number <= last[key] + 1, f"{key}: {number} came after {last[key]}"
            assert repeats or number == last[key] + 1, f"{key}: {number} came twice"
            last[key] = number
        assert last == dict.fromkeys(KEYS, self.published - 1)


@pytest.mark.matrix("language")
@pytest.mark.parametrize("language", COMMANDS)
def test_joins_kills_and_ordered_resizes(language: str, service: Service, tmp_path: Path) -> None:
    assert (BUILT / ".installed").exists(), "run `make clients` first"
    with service.http as http:
        settings = {"name": "q", "partition_count": 2, "rebalance_delay": 0, "max_handoff_time": 60}
        assert http.post("/queues", json=settings).status_code == 201

        def owners() -> set[str | None]:
            items = http.get("/queues/q/partitions").json()["items"]
            return {item["owner"] for item in items}

        run = Run(COMMANDS[language], service, tmp_path / "processed")
        try:
            run.publish()
            # Nobody has read up to the cut yet: who ignores it reads both its sides in one round.
            assert http.patch("/queues/q", json={"partition_count": 4}).status_code == 200
            run.publish()
            run.consume("a")
            run.consume("b")
            eventually(lambda: len(owners() - {None}) == 2)
            eventually(run.all_processed)
            run.publish()
            assert http.patch("/queues/q", json={"partition_count": 6}).status_code == 200
            run.publish()
            run.consume("c")
            eventually(lambda: len(owners() - {None}) == 3)
            eventually(run.all_processed)
            run.check(repeats=False)
            run.publish()
            run.end(["b"], signal.SIGKILL)
            eventually(run.all_processed)
            run.check(repeats=True)
            assert run.end(["c"], signal.SIGTERM) == [0]
            run.publish()
            eventually(run.all_processed)
            assert run.end(["a"], signal.SIGTERM) == [0]
            run.check(repeats=True)
            assert http.get("/queues/q/flows").json()["items"] == []
        finally:
            run.end(list(run.started), signal.SIGKILL)


@pytest.mark.matrix("language")
@pytest.mark.parametrize("language", COMMANDS)
def test_pauses_discards_and_a_log_that_is_older(
    language: str, service: Service, migrated_url: str, tmp_path: Path
) -> None:
    """Of a queue without ordered resizes: the cuts of its log stop nobody."""
    assert (BUILT / ".installed").exists(), "run `make clients` first"
    run = Run(COMMANDS[language], service, tmp_path / "processed")
    with service.http as http, psycopg.connect(migrated_url, autocommit=True) as database:
        settings = {"name": "q", "partition_count": 2, "rebalance_delay": 0}
        settings["ordered_resize"] = False
        assert http.post("/queues", json=settings).status_code == 201

        def seen() -> set[tuple[str, str]]:
            """Partition and position of what was processed."""
            return {(line[1], line[2]) for line in run.lines() if line[0] == "message"}

        try:
            run.publish()
            ends = [int(one["end"]) for one in http.get("/queues/q/partitions").json()["items"]]
            http.post("/queues/q/positions", json={"positions": {"1": "3"}}).raise_for_status()
            for change, count in (("?discard=true", 1), ("", 2)):
                answer = http.patch(f"/queues/q{change}", json={"partition_count": count})
                answer.raise_for_status()
            # Those before were discarded, and are passed.
            http.post("/queues/q/partitions/0/pause", json={}).raise_for_status()
            run.send("".join(f"{key}\tno number\ttwo tabs\n" for key in KEYS) + "no value\n")
            run.consume("a")
            eventually(lambda: ("1", str(ends[1])) in seen())
            owned = "/queues/q/partitions"
            eventually(
                lambda: (one := http.get(owned).json()["items"][1])["position"] == one["end"]
            )
            assert {partition for partition, _ in seen()} == {"1"}
            http.post("/queues/q/partitions/0/resume").raise_for_status()
            after = [int(one["end"]) for one in http.get(owned).json()["items"]]
            everything = {("0", str(at)) for at in range(after[0])}
            everything |= {("1", str(at)) for at in range(ends[1], after[1])}
            eventually(lambda: seen() == everything)
            assert sum("no number\ttwo tabs" in line for line in run.texts()) == len(KEYS)

            def bound() -> int:
                return len(http.get("/queues/q/flows").json()["items"])

            # Who is told to stop when its flow is over has nothing to drain.
            run.consume("b")
            eventually(lambda: bound() == 2)
            run.started["b"].send_signal(signal.SIGSTOP)
            eventually(lambda: bound() == 1)
            run.started["b"].send_signal(signal.SIGTERM)
            assert run.end(["b"], signal.SIGCONT) == [0]
            # As after a restore: what it passes over would never be processed.
            [a] = run.started.values()
            database.execute("UPDATE counterpoise_log.ends SET next_position = 1")
            assert a.wait(60) == 1
        finally:
            run.end(list(run.started), signal.SIGKILL)


@pytest.mark.matrix("language")
@pytest.mark.parametrize("language", COMMANDS)
def test_a_call_is_repeated_until_the_service_itself_answers(language: str) -> None:
    """The first connection ends at once, the first call has no answer, then a proxy answers, then
    the service cannot. A flow that is over is bound again."""
    assert (BUILT / ".installed").exists(), "run `make clients` first"
    page = "<html>no service</html>"
    answers: list[tuple[int, str | dict[str, object]]] = [
        (502, page),
        (504, page),
        (408, {"code": "body_timeout"}),
        (500, {"code": "internal"}),
        (409, {"code": "overtaken"}),
        (410, {"code": "flow_gone", "reason": "lease_expired"}),
        (201, {"flow_id": "f", "flow_token": "t", "update": {"revision": 1, "partitions": []}}),
        # To the call that asks for credentials: its token is that of no flow any more.
        (401, {"code": "unauthorized"}),
        (422, {"code": "invalid", "detail": "no such instance"}),
    ]
    asked: list[dict[str, object]] = []
    connections: list[object] = []
    ended = threading.Event()

    class Listener(ThreadingHTTPServer):
        def verify_request(self, request: object, _: object) -> bool:
            connections.append(request)
            return len(connections) > 1

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            asked.append(json.loads(body))
            if len(asked) == 1:
                ended.wait()
                self.close_connection = True
                return
            status, content = answers[len(asked) - 2]
            if isinstance(content, str):
                media_type, text = "text/html", content
            else:
                media_type, text = "application/problem+json", json.dumps(content)
            sent = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", media_type)
            self.send_header("Retry-After", "Wed, 21 Oct 2037 07:28:00 GMT")
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def do_GET(self) -> None:
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = Listener(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        consumer = subprocess.run(
            [*COMMANDS[language], "consume", f"http://127.0.0.1:{server.server_port}", "q", "a"],
            env={**ENVIRONMENT, "LEASE_SECONDS": "0.5"},
            capture_output=True,
            text=True,
            timeout=240,
        )
    finally:
        ended.set()
        server.shutdown()
        serving.join()
        server.server_close()
    assert consumer.returncode == 1
    assert "no such instance" in consumer.stderr
    assert "502" in consumer.stderr
    binds = [one for one in asked if "binder" in one]
    assert [one["attempt"] for one in binds] == [1, 1, 1, 1, 1, 1, 2, 3, 4]
    assert len({one["binder"] for one in binds}) == 1
