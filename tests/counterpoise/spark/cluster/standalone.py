"""A standalone cluster: Spark's own master and workers as processes on this machine."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

from tests.counterpoise.spark.small import SMALL_JAVA
from tests.counterpoise.spark.submitted import submit_environment
from tests.counterpoise.spark.waiting import until
from tests.processes import kill_family
from tests.service import free_port

MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"


class Standalone:
    """One master and some workers with a core each; in `home`, with logs."""

    def __init__(self, home: Path) -> None:
        home.mkdir()
        self.home = home
        self.environment = self._environment()
        self._processes: list[subprocess.Popen[bytes]] = []
        port, page = free_port(), free_port()
        self.url = f"spark://127.0.0.1:{port}"
        self._page = f"http://127.0.0.1:{page}/json/"
        self._ports = ("--port", str(port), "--webui-port", str(page))

    def start(self, workers: int) -> None:
        """Start the master, then the workers, and wait until they are registered."""
        self._start("master", MASTER, *self._ports)
        until(lambda: self._alive() == 0, "the master answers")
        for number in range(workers):
            name = f"worker-{number}"
            directory = ("--work-dir", str(self.home / name), "--webui-port", "0")
            size = ("--cores", "1", "--memory", "1g")
            # Each on a host of its own: Spark runs no second attempt of a task on the same one.
            self._start(name, WORKER, *directory, *size, self.url, host=f"127.0.0.{number + 1}")
        until(lambda: self._alive() == workers, "all workers are registered")

    def _environment(self) -> Mapping[str, str]:
        """Of the daemons and of spark-submit, with the Java that `counterpoise java-home` names."""
        command = Path(sys.executable).with_name("counterpoise")
        # No Java is installed, as far as it can see.
        bare = {"PATH": str(self.home), "XDG_CACHE_HOME": str(self.home)}
        java = subprocess.check_output([command, "java-home"], env=bare, text=True)
        return submit_environment(self.home, Path(java.strip())) | {
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": SMALL_JAVA,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }

    def _start(self, name: str, what: str, *arguments: str, host: str = "127.0.0.1") -> None:
        program = Path(self.environment["SPARK_HOME"], "bin", "spark-class")
        with (self.home / f"{name}.log").open("wb") as log:
            started = subprocess.Popen(
                [program, what, "--host", host, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(self.environment),
                cwd=self.home,
                start_new_session=True,
            )
        self._processes.append(started)

    def state(self) -> dict[str, Any]:
        """The master's own view: its workers and applications."""
        found: dict[str, Any] = httpx.get(self._page, timeout=60).json()
        return found

    def _alive(self) -> int | None:
        """The number of registered workers; None: the master's page is not there yet."""
        assert all(one.poll() is None for one in self._processes), self.said()
        with contextlib.suppress(httpx.HTTPError, ValueError):
            return sum(one["state"] == "ALIVE" for one in self.state()["workers"])
        return None

    def cores_of_applications(self) -> list[int]:
        """The cores that each running application has, the oldest first."""
        found = sorted(self.state()["activeapps"], key=lambda one: one["starttime"])
        return [one["cores"] for one in found]

    def said(self) -> str:
        """All the logs of the daemons."""
        return "\n".join(one.read_text(errors="replace") for one in self.home.glob("*.log"))

    def kill(self) -> None:
        """SIGKILL to all of them, and to the executors."""
        for process in self._processes:
            kill_family(process.pid)
            process.wait(150)


@contextlib.contextmanager
def standalone(home: Path, workers: int) -> Iterator[Standalone]:
    """A cluster that is up; killed at the end, with what is left of its executors."""
    cluster = Standalone(home)
    try:
        cluster.start(workers)
        yield cluster
    finally:
        cluster.kill()
        print(cluster.said())
