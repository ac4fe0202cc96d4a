"""The disk with the data directory is full for a while: 503, then all resumes without a restart.

These tests need the right to mount (`tests.faults.disk`); without it, as usual for other users than
root, they are skipped.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from counterpoise.client import Client
from counterpoise.flow import Flow, Owned
from tests.faults import disk
from tests.faults.disk import SmallDisk
from tests.service import eventually

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("processes")]

# An outage of up to 3 s is not noticed as one (`broker.store.leases`), and a flow renews its lease
# every third of it: both together have to fit.
LEASE_SECONDS = 6.0


@pytest.fixture
def small(tmp_path: Path) -> Iterator[SmallDisk]:
    try:
        small = SmallDisk(tmp_path)
    except PermissionError as error:
        pytest.skip(str(error))
    with small:
        yield small


def test_a_full_disk_is_reported_and_all_resumes(small: SmallDisk) -> None:
    url = small.service.url
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(Client(url, timeout_seconds=60))
        client.create_queue("orders", 4, rebalance_delay=0.1)
        lost: list[Owned] = []
        flow = stack.enter_context(
            Flow("orders", url=url, lease_seconds=LEASE_SECONDS, on_lost=lost.append)
        )
        eventually(lambda: len(flow.partitions) == 4)
        assert set(_commit(flow, "1").values()) == {"ok"}

        # Postgres crashes because there is no room for its log, and cannot recover either.
        small.fill()
        small.end_postgres()
        eventually(lambda: small.status("/readyz") == 503)
        assert small.status("/v1/queues/orders") == 503
        eventually(small.starting_fails)
        assert small.status("/healthz") == 200

        small.make_room()
        small.until_ready()
        assert set(_commit(flow, "2").values()) == {"ok"}
        assert lost == []
        positions = {each.position for each in client.partitions("orders")}
        assert positions == {"2"}
        assert small.service.end(signal.SIGTERM) == 0


def _commit(flow: Flow, position: str) -> dict[int, str]:
    items = [(number, owned.epoch, position) for number, owned in flow.partitions.items()]
    return dict(flow.commit(items, timeout_seconds=150))


@pytest.mark.matrix(of="campaigns of faults")
def test_all_promises_hold_while_the_disk_is_full_under_load(tmp_path: Path) -> None:
    """The second act of `make faults`."""
    verdict = disk.run(tmp_path, 11, print)
    if verdict is None:
        pytest.skip(disk.NOT_RUN)
    print(verdict.table())
    assert verdict.kept, verdict.examples()
