"""The short way of a long poll: nobody can tell it from the usual way.

The application runs in virtual time, over a broker in memory and without sockets.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from api.app import create_app
from api.routes.polls import Polls
from broker.settings import load
from broker.testing.loop import settle, virtual
from counterpoise import wire
from tests.api.test_waiting import Served


class Called(Served):
    """The application with rates, and which of its polls went the short way."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        given = load(host="127.0.0.1", **{"flow_requests_per_second": 100.0, **settings})
        self.app = create_app(self.broker, given)
        self.short: list[bool] = []
        begin = Polls.begin
        polls = self.app.state.polls

        def noted(scope: Any) -> Any:
            found = begin(polls, scope)
            self.short.append(found is not None)
            return found

        polls.begin = noted

    async def bound(self, admitted: bool = True) -> wire.Bound:
        flow = await self.bind(1)
        await settle()
        if admitted:
            self.app.state.rates.admit(flow.flow_token)
        return flow

    async def call(
        self, flow: wire.Bound, query: str, headers: Mapping[str, str], method: str = "GET"
    ) -> tuple[int, Mapping[bytes, bytes], bytes]:
        """Status, head and body of a poll of the flow."""
        path = f"/v1/queues/orders/flows/{flow.flow_id}/updates"
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 1),
            "scheme": "http",
            "server": ("127.0.0.1", 80),
        }
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        await self.app(scope, receive, send)
        body = b"".join(message.get("body", b"") for message in sent[1:])
        return sent[0]["status"], dict(sent[0]["headers"]), body


def head(flow: wire.Bound, **more: str) -> dict[str, str]:
    return {"host": "127.0.0.1", "authorization": f"Bearer {flow.flow_token}", **more}


async def started(**settings: Any) -> Called:
    one = Called(**settings)
    await one.start(2)
    return one


@pytest.mark.parametrize("after", ["old", "present"])
def test_both_ways_answer_the_same(after: str) -> None:
    @virtual
    async def played() -> None:
        one = await started()
        flow = await one.bound()
        revision = 0 if after == "old" else await one.revision(flow)
        answers = []
        # The order of the query makes the difference.
        for query in (f"after={revision}&wait=20.0", f"wait=20.0&after={revision}"):
            began = one.now()
            status, fields, body = await one.call(flow, query, head(flow))
            waited = one.now() - began
            answers.append((status, fields, body[:80], waited))
            assert one.counted(status) == len(answers)
        assert one.short == [True, False]
        assert answers[0] == answers[1]
        assert answers[0][0] == (200 if after == "old" else 204)
        assert len(one.app.state.rates.flows) == 1

    played()


@pytest.mark.parametrize(
    ("query", "fields", "method", "status"),
    [
        ("after=1&wait=61", {}, "GET", 422),
        ("after=-1&wait=1", {}, "GET", 422),
        ("after=1&wait=1&x=1", {}, "GET", 422),
        ("after=1&wait=1&wait=1", {}, "GET", 422),
        ("after=9223372036854775808&wait=1", {}, "GET", 422),
        ("after=1&wait=1", {"authorization": "Bearer nobody"}, "GET", 403),
        ("after=1&wait=1", {"authorization": "Basic nobody"}, "GET", 401),
        ("after=1&wait=1", {"content-length": "5"}, "GET", 415),
        ("after=1&wait=1", {}, "POST", 405),
        ("after=1&wait=1", {"host": "elsewhere.example"}, "GET", 403),
    ],
)
def test_what_is_not_certain_goes_the_usual_way(
    query: str, fields: dict[str, str], method: str, status: int
) -> None:
    @virtual
    async def played() -> None:
        one = await started(allowed_hosts="service.example")
        flow = await one.bound()
        found, _, _ = await one.call(flow, query, {**head(flow), **fields}, method)
        assert found == status
        assert one.short == [False]

    played()


@virtual
async def test_a_flow_that_this_replica_does_not_know_goes_the_usual_way_once() -> None:
    one = await started()
    flow = await one.bound(admitted=False)
    for _ in range(2):
        assert (await one.call(flow, "after=0&wait=1", head(flow)))[0] == 200
    assert one.short == [False, True]


@virtual
async def test_a_flow_over_its_rate_is_refused_on_the_usual_way() -> None:
    one = await started(flow_requests_per_second=1.0)
    flow = await one.bound()
    one.app.state.rates._monotonic = one.now
    statuses = [(await one.call(flow, "after=0&wait=1", head(flow)))[0] for _ in range(11)]
    assert statuses == [200] * 10 + [429]
    assert one.short == [True] * 10 + [False]
    refused = one.app.state.metrics.registry.get_sample_value(
        "counterpoise_http_refused_total", {"limit": "flow"}
    )
    assert refused == 1


@virtual
async def test_a_flow_that_is_gone_is_told() -> None:
    one = await started()
    flow = await one.bound()
    revision = await one.revision(flow)
    poll = asyncio.create_task(one.call(flow, f"after={revision}&wait=20", head(flow)))
    await settle()
    await one.broker.flows.unbind("orders", flow.flow_id)
    assert (await poll)[0] == 410
    assert (await one.call(flow, f"after={revision}&wait=20", head(flow)))[0] == 410
    assert one.short == [True, False]
    assert one.counted(410) == 2


@virtual
async def test_another_flows_token_does_not_do() -> None:
    one = await started()
    flow = await one.bound()
    other = await one.bind(2)
    one.app.state.rates.admit(other.flow_token)
    assert (await one.call(flow, "after=0&wait=1", head(other)))[0] == 403
    assert one.short == [False]
