"""Many flows on one replica next to floods: nobody's lease ends.

How many a machine carries is the benchmark's (`python -m benchmarks overload`); here the rates are
so low that every flood is above them, however slow the machine.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.overload import QUEUE, Flows, flood
from benchmarks.wire import Caller
from tests.service import ServeProcess

FLOWS = 1000
LEASE_SECONDS = 30.0
# All of them together last longer than a lease.
FLOOD_SECONDS = 11.0


@pytest.mark.long
@pytest.mark.timeout(180)
async def test_floods_cost_no_flow_its_lease(migrated_url: str, tmp_path: Path) -> None:
    arguments = ["--database-url", migrated_url]
    limits = {
        # One caller binds them all.
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
            floods: list[tuple[str, Callable[[], str | None]]] = [
                (path, lambda: str(one["flow_token"])),
                (path, lambda: f"made-up-{next(numbers)}"),
                (f"/queues/{QUEUE}", lambda: None),
            ]
            answers: Counter[str] = Counter()
            for address, token in floods:
                answers += await flood(other, FLOOD_SECONDS, 50, address, token)
            assert answers["429"] > 100
            assert len(flows.late) > FLOWS, "the flows did not poll"
            assert set(flows.failed) <= {"429"}, "a flow is gone"
            assert flows.failed.total() <= 3 * FLOOD_SECONDS, "others than the flooding one"
            queue = await call("GET", f"/queues/{QUEUE}")
            assert queue["flow_count"] == FLOWS
            await flows.stop()
