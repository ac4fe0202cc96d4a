"""Clients in other languages (docs/examples/clients) lose nothing and keep the order of each key.

They play joins, a kill -9, ordered resizes (before they start, and while they work) and drains.
All consumers of a run append to one file, so its lines are in the order in which messages were
processed and positions committed.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

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
        lines = "".join(f"{key}\t{n}\n" for n in range(begin, self.published) for key in KEYS)
        publisher = [*self.command, "publish", self.url, "q", "publisher"]
        subprocess.run(publisher, input=lines.encode(), check=True, env=ENVIRONMENT)

    def lines(self) -> Iterator[list[str]]:
        return (line.split() for line in self.file.read_text().splitlines())

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
