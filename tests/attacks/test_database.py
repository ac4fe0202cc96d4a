"""A database that hangs, cannot write or is gone: callers are told soon, and the log says why."""

import contextlib
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest
import structlog

from broker.postgres import migrations
from broker.postgres.checks import REPORTER
from broker.postgres.embedded import EmbeddedPostgres
from broker.service import Broker
from tests.attacks.bystander import Bystander
from tests.databases import FAST
from tests.processes import Process, descendants
from tests.service import Service, eventually, running, settings_for

pytestmark = pytest.mark.long


class Ground:
    """A service and the Postgres that it has to itself."""

    def __init__(self, service: Service, url: str, data_dir: Path) -> None:
        self.service = service
        self.url = url
        self.data_dir = data_dir
        postmaster = int((data_dir / "postgres" / "postmaster.pid").read_text().splitlines()[0])
        self.postmaster = postmaster

    def signal(self, signum: int) -> None:
        """To Postgres with all its processes."""
        family: set[Process] = descendants(self.postmaster)
        for pid in (self.postmaster, *(process.pid for process in family)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    with EmbeddedPostgres(tmp_path, settings=FAST) as url:
        migrations.upgrade(url)
        settings = settings_for(url)
        with running(Broker(settings), settings) as service:
            yield Ground(service, url, tmp_path)


def test_a_database_that_hangs(ground: Ground) -> None:
    """Probes and calls say so, how soon is shown by `tests/api/test_patience.py`; who was bound
    stays bound.
    """
    url = ground.service.url
    somebody = Bystander(url, "q")
    with ground.service.http as http:
        settings = {"name": "held", "partition_count": 1, "rebalance_delay": 0}
        http.post("/queues", json=settings).raise_for_status()
        flow = http.post("/queues/held/flows", json={"client_name": "c", "lease_seconds": 600})
        token = {"Authorization": f"Bearer {flow.json()['flow_token']}"}
        path = f"{url}/v1/queues/held/flows/{flow.json()['flow_id']}"
    calls: dict[str, tuple[str, str, dict[str, object]]] = {
        "readyz": ("GET", f"{url}/readyz", {}),
        "readyz again": ("GET", f"{url}/readyz", {}),
        "metrics": ("GET", f"{url}/metrics", {}),
        "list": ("GET", f"{url}/v1/queues", {}),
        "create": ("POST", f"{url}/v1/queues", {"json": {"name": "n", "partition_count": 1}}),
        "bind": ("POST", f"{url}/v1/queues/held/flows", {"json": {"client_name": "d"}}),
        "heartbeat": ("POST", f"{path}/heartbeat", {"headers": token}),
        "poll": ("GET", f"{path}/updates?after={2**40}&wait=1", {"headers": token}),
        "drain": ("POST", f"{path}/drain", {"headers": token}),
    }
    answers: dict[str, int] = {}

    def ask(name: str) -> None:
        method, where, given = calls[name]
        answer = httpx.request(method, where, timeout=60, **given)  # type: ignore[arg-type]
        answers[name] = answer.status_code

    ground.signal(signal.SIGSTOP)
    try:
        threads = [threading.Thread(target=ask, args=(name,)) for name in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert httpx.get(f"{url}/healthz", timeout=60).status_code == 200
    finally:
        ground.signal(signal.SIGCONT)
    assert answers == {name: 200 if name == "metrics" else 503 for name in calls}
    eventually(lambda: httpx.get(f"{url}/readyz").status_code == 200)
    eventually(lambda: httpx.post(f"{path}/heartbeat", headers=token).status_code == 200)
    # He was told 503, and nothing worse.
    assert all("503" in fault for fault in somebody.faults)
    somebody.faults.clear()
    somebody.leave()
    assert not somebody.faults


def limit_temporary_files(ground: Ground, change: str) -> None:
    """Of new sessions, which the service has to begin."""
    with psycopg.connect(ground.url, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE counterpoise {change}".encode())
        connection.execute(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
            " WHERE application_name = 'counterpoise'"
        )


def test_a_database_that_cannot_write(ground: Ground) -> None:
    """Its disk is full for new files, though what is in memory still changes."""
    url = f"{ground.service.url}/readyz"
    limit_temporary_files(ground, "SET temp_file_limit = '64kB'")
    with structlog.testing.capture_logs() as logs:
        eventually(lambda: httpx.get(url).status_code == 503)
        answer = httpx.get(url)
        assert answer.json()["detail"] == "The database cannot write."
        said = [line for line in logs if line.get("code") == "53400"]
        assert len(said) == 1, "once, and not for every probe"
        assert "temporary file" in said[0]["error"]
    limit_temporary_files(ground, "RESET temp_file_limit")
    eventually(lambda: httpx.get(url).status_code == 200)


def test_a_data_directory_that_is_gone(ground: Ground) -> None:
    """The log has the database's words, also a moment after another outage."""
    url = f"{ground.service.url}/readyz"
    REPORTER.report("no answer in time", None)

    def is_said() -> bool:
        assert httpx.get(url).status_code == 503
        said = [one["error"] for one in logs if one["event"] == "the database cannot be reached"]
        return any("No such file" in one or "does not exist" in one for one in said)

    with structlog.testing.capture_logs() as logs:
        shutil.rmtree(ground.data_dir / "postgres" / "base")
        eventually(lambda: httpx.get(url).status_code == 503)
        # Lines of connections that end, or of a slow answer, may come first.
        eventually(is_said)
    # Where the database is, and what it says, is for the log alone.
    assert httpx.get(url).json()["detail"] == "The database cannot be reached."
