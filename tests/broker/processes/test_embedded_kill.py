"""A service with a Postgres of its own is killed and started again on the same data directory."""

import asyncio
import signal
from pathlib import Path

import pytest

from counterpoise.client import AsyncClient
from tests.broker.processes.conftest import CrowdOf
from tests.broker.processes.test_two_services import peace
from tests.service import ServeProcess

pytestmark = [pytest.mark.xdist_group("processes"), pytest.mark.matrix(of="crowds")]


@pytest.mark.long
async def test_flows_keep_their_partitions(tmp_path: Path, crowd_of: CrowdOf) -> None:
    service = ServeProcess(tmp_path / "log", ["--data-dir", str(tmp_path / "data")])
    with service:
        async with AsyncClient(service.url) as client:
            await client.create_queue("orders", 24, rebalance_delay=0.2, max_handoff_time=20.0)
            crowd = crowd_of([service.url], "orders", 6)
            for _ in range(6):
                crowd.join(warmup=False)
            await peace([client], "orders", crowd)
            for away in (0.1, 5.0, 1.0):
                before = {
                    p.partition: (p.owner, p.epoch) for p in await client.partitions("orders")
                }
                # A flow joins, so that handoffs are under way at the kill.
                crowd.join(warmup=False)
                await asyncio.sleep(0.3 + 0.2 * crowd.rng.random())
                await asyncio.to_thread(service.end, signal.SIGKILL)
                await asyncio.sleep(away)
                await asyncio.to_thread(service.start)
                await peace([client], "orders", crowd)
                after = {p.partition: (p.owner, p.epoch) for p in await client.partitions("orders")}
                kept = [number for number in before if before[number] == after[number]]
                # One flow joined: no more than its share was handed off.
                share = -(-24 // len(crowd.consumers))
                assert len(before) - len(kept) <= share
            assert not crowd.notes.gone
            assert crowd.verdict().counts["commit ok"]
            await crowd.go_home()
