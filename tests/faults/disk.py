"""A service whose data directory is on a small disk that is full for a while, twice.

The service runs in a mount namespace of its own, on a file system in memory that disappears with
it. This needs the right to mount, which normally only root has.

There are two parts in one run. First there is no room for new data, so publishers cannot append.
Then Postgres has no room for its own log, ends, and cannot be started again before there is room.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx
import psycopg

from tests.faults.proxy import Proxy
from tests.faults.stage import LEASE_SECONDS, Scene
from tests.judge.journal import SERVICE
from tests.judge.judge import Verdict
from tests.service import COUNTERPOISE, ServeProcess, eventually

KIND = "the disk of the data directory full"
NOT_RUN = "not run: needs root, to mount a small disk"
PARTITIONS, PROCESSES, CONSUMERS_EACH = 12, 2, 3
PUBLISHERS, MESSAGES_PER_SECOND = 2, 40
TIMES = 2

MOUNT = 'mount -t tmpfs -o size=160m,mode=755 tmpfs "$0"'
INSIDE = ("unshare", "--mount", "sh", "-c")
# Of Postgres's own log (WAL).
_MEGABYTE = "SELECT pg_logical_emit_message(true, '', repeat('x', 1000000))"


class SmallDisk:
    """A service with its data directory on a file system of 160 MB. A context manager.

    Raises PermissionError if mounting is not permitted.
    """

    def __init__(self, directory: Path) -> None:
        mounted = directory / "mounted"
        mounted.mkdir()
        try:
            subprocess.run([*INSIDE, MOUNT, str(mounted)], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise PermissionError("mounting a file system is not permitted here") from error
        self._mounted = mounted
        self.service = ServeProcess(
            directory / "serve.log",
            ["--data-dir", str(mounted / "data")],
            program=[*INSIDE, f'{MOUNT} && exec {COUNTERPOISE[0]} "$@"', str(mounted)],
        )

    def __enter__(self) -> SmallDisk:
        self.service.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.service.kill()

    @property
    def _root(self) -> Path:
        """The disk's directory as seen from outside of the namespace."""
        assert self.service.process is not None
        return Path(f"/proc/{self.service.process.pid}/root{self._mounted}")

    @property
    def database_url(self) -> str:
        password = (self._root / "data" / "password").read_text().strip()
        port = (self._root / "data" / "port").read_text().strip()
        return f"postgresql://counterpoise:{password}@127.0.0.1:{port}/counterpoise"

    def fill(self) -> None:
        """Write until nothing more fits."""
        ballast = self._root / "ballast"
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(1 << 16)):
                pass

    def end_postgres(self) -> None:
        """Let Postgres write its log on the full disk until it ends."""
        with contextlib.suppress(psycopg.Error):
            with psycopg.connect(self.database_url, autocommit=True) as connection:
                for _ in range(100):
                    connection.execute(_MEGABYTE)

    def make_room(self) -> None:
        (self._root / "ballast").unlink()

    def status(self, path: str) -> int:
        """The service's status for this request."""
        return httpx.get(f"{self.service.url}{path}", timeout=60).status_code

    def until_ready(self) -> None:
        """Wait until the service serves again. An error has what Postgres wrote: its log goes with
        the disk.
        """
        try:
            eventually(lambda: self.status("/readyz") == 200)
        except AssertionError as error:
            lines = (self._root / "data" / "postgres.log").read_text().splitlines()
            # One of these for each client that was refused.
            refusals = ("the database system is ", "Consistent recovery state")
            said = [line for line in lines if not any(each in line for each in refusals)]
            error.add_note("\n".join(said[-50:]))
            raise

    def starting_fails(self) -> bool:
        """Whether the log says that Postgres cannot be started for now."""
        return "cannot be started yet" in self.service.log_file.read_text()


class DiskScene(Scene):
    """One service on a small disk; consumers and publishers reach it through a proxy."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        with contextlib.ExitStack() as starting:
            starting.push(self._held)
            self.disk = starting.enter_context(SmallDisk(directory))
            self.replicas = [self.disk.service]
            self.service_proxy = starting.enter_context(Proxy(self.disk.service.url))
            self._held = starting.pop_all()

    @property
    def log_url(self) -> str:
        return self.disk.database_url


def run(directory: Path, seed: int, say: Callable[[str], None]) -> Verdict | None:
    """Fill the disk TIMES times under consumers and publishers at work. None: mounting is not
    permitted.

    From the main thread; `directory` must be new.
    """
    directory.mkdir(parents=True, exist_ok=True)
    try:
        scene = DiskScene(directory)
    except PermissionError:
        say(f"{KIND}: {NOT_RUN}")
        return None
    rng = random.Random(seed)
    with scene:
        scene.make_queues(PARTITIONS)
        consumers = [scene.consumers(f"d{number}", CONSUMERS_EACH) for number in range(PROCESSES)]
        publishers = scene.publishers("q", PUBLISHERS, MESSAGES_PER_SECOND)
        scene.until_each_has_owned(PROCESSES * CONSUMERS_EACH)
        disk = scene.disk
        for _ in range(TIMES):
            wanted = len(scene.handled()) + 100
            eventually(partial(_handled, scene, wanted))
            with scene.fault(SERVICE, KIND):
                say(KIND)
                disk.fill()
                time.sleep(rng.uniform(1.0, LEASE_SECONDS))
                disk.end_postgres()
                eventually(lambda: disk.status("/readyz") == 503)
                say("  Postgres has ended")
                time.sleep(rng.uniform(1.0, LEASE_SECONDS * 1.5))
                disk.make_room()
                disk.until_ready()
            say("  there is room again, and Postgres")
        return scene.settle(publishers, consumers, PARTITIONS)


def _handled(scene: Scene, count: int) -> bool:
    return len(scene.handled()) >= count
