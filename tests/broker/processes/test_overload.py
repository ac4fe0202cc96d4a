"""Many flows on one replica next to floods: no lease ends.

How many flows a machine can serve is measured by the benchmark (`python -m benchmarks overload`).
Here the rates are so low that every flood exceeds them, however slow the machine is.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.overload import QUEUE, Flows, big_commits, flood
from benchmarks.wire import Caller
from tests.service import ServeProcess

pytestmark = [pytest.mark.xdist_group("processes"), pytest.mark.matrix(of="crowds")]

FLOWS = 500
LEASE_SECONDS = 16.0
# So long that a flow that is not served loses its lease twice.
FLOOD_SECONDS = 40.0
PARTITIONS = 4096


@pytest.mark.long
async def test_floods_cost_no_flow_its_lease(migrated_url: str, tmp_path: Path) -> None:
    arguments = ["--database-url", migrated_url]
    limits = {
        # One caller binds all of them.
        "COUNTERPOISE_ADDRESS_REQUESTS_PER_SECOND": "100",
        "COUNTERPOISE_FLOW_REQUESTS_PER_SECOND": "2",
    }
    with ServeProcess(tmp_path / "serve.log", arguments, limits) as service:
        async with Caller(service.url) as call, Caller(service.url) as other:
            await call("POST", "/queues", {"name": QUEUE, "partition_count": 1})
            flows = Flows(call, LEASE_SECONDS)
            await flows.bind(FLOWS)
            flows.failed.clear()
            flows.late.clear()
            one = flows.bound[0]
            path = f"/queues/{QUEUE}/flows/{one['flow_id']}/heartbeat"
            numbers = iter(range(10**9))
            commit, token, commits = await big_commits(call, PARTITIONS)
            floods: list[tuple[str, Callable[[], str | None], bytes | None]] = [
                (path, lambda: str(one["flow_token"]), None),
                (path, lambda: f"made-up-{next(numbers)}", None),
                (f"/queues/{QUEUE}", lambda: None, None),
                (commit, lambda: token, commits),
            ]
            answers: Counter[str] = Counter()
            for got in await asyncio.gather(
                *(flood(other, FLOOD_SECONDS, 20, path, told, body) for path, told, body in floods)
            ):
                answers += got
            assert answers["429"] > 100
            assert len(flows.late) > FLOWS, "the flows did not poll"
            assert set(flows.failed) <= {"429"}, "a flow is gone"
            assert flows.failed.total() <= 2 * FLOOD_SECONDS, "others than the flooding one"
            queue = await call("GET", f"/queues/{QUEUE}")
            assert queue["flow_count"] == FLOWS
            await flows.stop()
