"""Flows that wait cost little: counted in objects, not measured.

The application runs in virtual time, over a broker in memory and without sockets.
"""

import asyncio
import gc
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from starlette.requests import Request

from api.app import create_app
from broker.calls import flow_views
from broker.core.commands import ReleaseItem
from broker.replica.renewals import GATHER_SECONDS
from broker.settings import load
from broker.testing.database import MemoryDatabase
from broker.testing.loop import running, settle, virtual
from broker.testing.process import Process
from broker.testing.service import MemoryBroker
from counterpoise import wire
from counterpoise.logs.memory import MemoryLogs

FLOWS = 50
# A task, a future, a timer, some coroutines, and what this test keeps of each call. With the layers
# of a request it would be three times as many.
MOST_OBJECTS = 42
WAIT_SECONDS = 60
MOST_COROUTINES = 6


class Served:
    """The application, and what its callers get."""

    def __init__(self) -> None:
        loop = running()
        self.now = lambda: 1_795_168_800.0 + loop.now
        database = MemoryDatabase(self.now)
        settings = load(
            host="127.0.0.1", flow_requests_per_second=0.0, address_requests_per_second=0.0
        )
        logs = MemoryLogs(self.now)
        self.broker = MemoryBroker(settings, database, Process(loop), logs)
        self.app = create_app(self.broker, settings)

    async def start(self, partitions: int) -> None:
        await self.broker.start()
        spec = wire.QueueCreate("orders", partitions, rebalance_delay=0.0)
        await self.broker.queues.create(spec)

    async def bind(self, number: int, lease_seconds: float = 120.0) -> wire.Bound:
        return await self.broker.flows.bind(
            "orders", f"client-{number}", f"i-{number}", lease_seconds, False, None, 0, None
        )

    def poll(self, flow: wire.Bound, after: int) -> asyncio.Task[tuple[int, Any]]:
        """Begin a long poll; its result are the status and the document."""
        path = f"/v1/queues/orders/flows/{flow.flow_id}/updates"
        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"after=%d&wait=%d" % (after, WAIT_SECONDS),
            "headers": [
                (b"host", b"127.0.0.1"),
                (b"authorization", b"Bearer " + flow.flow_token.encode()),
            ],
            "client": ("127.0.0.1", 1),
            "scheme": "http",
            "server": ("127.0.0.1", 80),
        }
        return asyncio.create_task(self._call(scope))

    async def _call(self, scope: Mapping[str, Any]) -> tuple[int, Any]:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app(scope, _silence, send)  # type: ignore[arg-type]
        body = b"".join(message.get("body", b"") for message in sent[1:])
        return sent[0]["status"], json.loads(body) if body else None

    async def revision(self, flow: wire.Bound) -> int:
        return (await self.view(flow)).revision

    async def view(self, flow: wire.Bound) -> wire.Update:
        bound = await self.broker.bound_flows.of("orders", flow.flow_id)
        return await self.broker.flow_views.view(bound, fresh=True)

    def counted(self, status: int) -> float:
        """How many polls ended so, according to the metrics."""
        registry: CollectorRegistry = self.app.state.metrics.registry
        labels = {
            "method": "GET",
            "path": "/v1/queues/{queue}/flows/{flow}/updates",
            "status": str(status),
        }
        return registry.get_sample_value("counterpoise_http_requests_total", labels) or 0.0


async def _silence() -> Any:
    await asyncio.Event().wait()


async def served(flows: int) -> tuple[Served, list[wire.Bound]]:
    one = Served()
    await one.start(flows)
    bound = [await one.bind(number) for number in range(flows)]
    for flow in bound[:-1]:
        view = await one.view(flow)
        items = [
            ReleaseItem(each.partition, each.epoch)
            for each in view.partitions
            if each.state == "revoking"
        ]
        if items:
            releasing = await one.broker.bound_flows.of("orders", flow.flow_id)
            await one.broker.flows.release(releasing, None, items)
    await settle()
    return one, bound


async def polled(flows: int) -> tuple[Served, list[wire.Bound], asyncio.Task[tuple[int, Any]]]:
    """As `served`; the first flow waits in a long poll."""
    one, bound = await served(flows)
    poll = one.poll(bound[0], await one.revision(bound[0]))
    await settle()
    return one, bound, poll


def all_objects() -> list[object]:
    """All that the collector knows of, also what it is kept from (`tests/conftest.py`)."""
    gc.unfreeze()
    found: list[object] = gc.get_objects()
    gc.freeze()
    return found


def kept_by(polls: Iterable[asyncio.Task[Any]], before: list[object]) -> Counter[str]:
    """The types of all objects that these calls keep alive and that were not there before.

    What a service of another test does meanwhile in this process is not counted.
    """
    found = {id(one) for one in before}
    types: Counter[str] = Counter()
    rest: list[object] = list(polls)
    while rest:
        one = rest.pop()
        if gc.is_tracked(one) and id(one) not in found:
            found.add(id(one))
            types[type(one).__name__] += 1
            rest += gc.get_referents(one)
    return types


@virtual
async def test_a_flow_that_waits_keeps_few_objects() -> None:
    one, flows = await served(FLOWS)
    warm = one.poll(flows[0], await one.revision(flows[0]))
    await settle()
    afters = [await one.revision(flow) for flow in flows[1:]]
    before = all_objects()
    polls = [one.poll(flow, after) for flow, after in zip(flows[1:], afters, strict=True)]
    await settle()
    assert len(one.app.state.open_calls) == FLOWS
    kept = kept_by(polls, before)
    for poll in (warm, *polls):
        poll.cancel()
    assert kept[Request.__name__] == 0
    assert kept["Task"] == len(polls)
    assert kept["coroutine"] <= MOST_COROUTINES * len(polls)
    assert sum(kept.values()) <= MOST_OBJECTS * len(polls)


@pytest.mark.long
@virtual
async def test_a_flow_that_renews_its_lease_keeps_no_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, flows = await served(2)
    renewed = asyncio.Event()

    async def begin(*_: object) -> None:
        await renewed.wait()

    monkeypatch.setattr(one.broker.updates, "_begin", begin)
    before = all_objects()
    poll = one.poll(flows[0], 0)
    await settle()
    kept = kept_by([poll], before)
    assert len(one.app.state.open_calls) == 1
    assert kept["Task"] > 0
    assert kept[Request.__name__] == 0
    renewed.set()
    assert await poll == (204, None)


@virtual
async def test_a_flow_that_waits_is_told_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    one, flows = await served(2)
    # The commit tells all that the view needs.
    monkeypatch.delattr(type(one.broker.updates), "_newer")
    poll = one.poll(flows[0], await one.revision(flows[0]))
    await settle()
    assert one.counted(200) == 0
    await one.broker.queues.change("orders", {"partition_count": 4}, False)
    status, view = await poll
    assert status == 200
    assert len(view["partitions"]) == 2
    assert one.counted(200) == 1


@virtual
async def test_nothing_newer_is_counted_when_the_wait_is_over() -> None:
    one, flows = await served(1)
    began = running().time()
    assert await one.poll(flows[0], await one.revision(flows[0])) == (204, None)
    assert running().time() - began == WAIT_SECONDS
    assert one.counted(204) == 1


@virtual
async def test_a_poll_waits_at_most_half_the_lease() -> None:
    one = Served()
    await one.start(1)
    flow = await one.bind(1, lease_seconds=4.0)
    await settle()
    began = running().time()
    assert await one.poll(flow, await one.revision(flow)) == (204, None)
    assert running().time() - began == 2.0


@virtual
async def test_a_flow_that_leaves_while_it_waits_is_told() -> None:
    one, flows, poll = await polled(2)
    await one.broker.flows.unbind("orders", flows[0].flow_id)
    status, document = await poll
    assert (status, document["code"], document["reason"]) == (410, "flow_gone", "unbound")
    assert one.counted(410) == 1


@virtual
async def test_a_queue_that_is_deleted_while_a_flow_waits() -> None:
    one, _, poll = await polled(1)
    await one.broker.queues.delete("orders", True)
    status, document = await poll
    assert (status, document["code"]) == (404, "queue_not_found")


@virtual
async def test_a_defect_while_a_flow_waits_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    one, _, poll = await polled(1)

    def defect(_: object) -> None:
        raise ZeroDivisionError

    # The mailbox, in which the view is made, does not notice.
    monkeypatch.setattr(flow_views, "needed_positions", defect)
    await one.broker.queues.change("orders", {"partition_count": 2}, False)
    status, document = await poll
    assert (status, document["code"]) == (500, "internal")
    assert one.counted(500) == 1


@virtual
async def test_a_flow_that_waits_is_answered_when_the_service_stops() -> None:
    one, flows, poll = await polled(2)
    await asyncio.sleep(GATHER_SECONDS)
    await settle()
    early = one.poll(flows[1], await one.revision(flows[1]))
    await settle()
    one.app.state.open_calls.end()
    late = one.poll(flows[1], 0)
    assert await poll == (204, None)
    # Nothing new may only be said to a flow whose lease is renewed.
    for one_poll in (early, late):
        status, document = await one_poll
        assert (status, document["code"]) == (503, "unavailable")
