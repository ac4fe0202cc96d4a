"""The disk with the data directory is full for a while: 503, then all resumes without a restart.

The service runs in a mount namespace of its own, on a small file system in memory that is gone with
it. That takes the right to mount, so elsewhere than as root the test is skipped.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
from pathlib import Path

import httpx
import psycopg
import pytest

from counterpoise.client import Client
from counterpoise.flow import Flow, Owned
from tests.service import COUNTERPOISE, ServeProcess, eventually

pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]

LEASE_SECONDS = 3.0
# Of Postgres's own log (WAL).
MEGABYTE = "SELECT pg_logical_emit_message(true, '', repeat('x', 1000000))"
MOUNT = 'mount -t tmpfs -o size=160m,mode=755 tmpfs "$0"'


def test_a_full_disk_is_said_to_be_and_all_resumes(tmp_path: Path) -> None:
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    inside = ["unshare", "--mount", "sh", "-c"]
    try:
        subprocess.run([*inside, MOUNT, str(mounted)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting a file system is not permitted here")
    program = [*inside, f'{MOUNT} && exec {COUNTERPOISE[0]} "$@"', str(mounted)]
    service = ServeProcess(
        tmp_path / "serve.log", ["--data-dir", str(mounted / "data")], program=program
    )
    with service, contextlib.ExitStack() as stack:
        assert service.process is not None
        disk = Path(f"/proc/{service.process.pid}/root{mounted}")
        client = stack.enter_context(Client(service.url, timeout_seconds=15))
        client.create_queue("orders", 4, rebalance_delay=0.1)
        lost: list[Owned] = []
        flow = stack.enter_context(
            Flow("orders", url=service.url, lease_seconds=LEASE_SECONDS, on_lost=lost.append)
        )
        eventually(lambda: len(flow.partitions) == 4)
        assert set(_commit(flow, "1").values()) == {"ok"}

        fill(disk / "ballast")
        # Postgres crashes for want of a place for its log, and cannot recover either.
        with contextlib.suppress(psycopg.Error):
            with psycopg.connect(database_of(disk), autocommit=True) as connection:
                for _ in range(100):
                    connection.execute(
                        "SELECT pg_logical_emit_message(true, '', repeat('x', 1000000))"
                    )
        eventually(lambda: status(service, "/readyz") == 503, 30)
        assert status(service, "/v1/queues/orders") == 503
        eventually(lambda: "cannot be started yet" in service.log_file.read_text(), 30)
        assert status(service, "/healthz") == 200

        (disk / "ballast").unlink()
        eventually(lambda: status(service, "/readyz") == 200, 60)
        assert set(_commit(flow, "2").values()) == {"ok"}
        assert lost == []
        positions = {each.position for each in client.partitions("orders")}
        assert positions == {"2"}
        assert service.end(signal.SIGTERM) == 0


def _commit(flow: Flow, position: str) -> dict[int, str]:
    items = [(number, owned.epoch, position) for number, owned in flow.partitions.items()]
    return dict(flow.commit(items, timeout_seconds=20))


def status(service: ServeProcess, path: str) -> int:
    return httpx.get(f"{service.url}{path}", timeout=20).status_code


def database_of(disk: Path) -> str:
    password = (disk / "data" / "password").read_text().strip()
    port = (disk / "data" / "port").read_text().strip()
    return f"postgresql://counterpoise:{password}@127.0.0.1:{port}/counterpoise"


def fill(ballast: Path) -> None:
    """Write until nothing more fits."""
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(1 << 16)):
            pass
