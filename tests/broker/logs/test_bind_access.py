"""Credentials beside the commit of a bind, on replicas in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.core.errors import Unavailable
from broker.logs.ports import LogAccess
from broker.testing.loop import settle, virtual
from counterpoise import wire
from tests.broker.shell import Service, World


class Gate:
    """Stands before the credentials of a replica: closed, or passed with an error."""

    def __init__(self, replica: Service, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = 0
        self.open = asyncio.Event()
        self.error: Exception | None = None
        self.cancelled = False
        access: Any = type(replica.logs).access

        async def gated(*args: Any, **named: Any) -> LogAccess | None:
            self.asked += 1
            try:
                await self.open.wait()
            except asyncio.CancelledError:
                self.cancelled = True
                raise
            if self.error is not None:
                raise self.error
            given: LogAccess | None = await access(*args, **named)
            return given

        monkeypatch.setattr(type(replica.logs), "access", gated)


async def ready(world: World) -> Service:
    replica = await world.replica()
    await replica.create_queue(wire.QueueCreate("orders", 2, rebalance_delay=0))
    return replica


async def flows(replica: Service) -> list[str]:
    return [flow.client_name for flow in (await replica.flows("orders", 10, None)).items]


async def bind(replica: Service, name: str) -> Any:
    return await replica.bind("orders", name, name, 10.0, False)


@virtual
async def test_the_first_bind_waits_for_its_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = await ready(World())
    gate = Gate(replica, monkeypatch)
    binding = asyncio.create_task(bind(replica, "A"))
    await settle()
    assert gate.asked == 1
    assert await flows(replica) == []
    gate.open.set()
    await binding
    assert await flows(replica) == ["A"]


@virtual
async def test_later_ones_are_committed_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = await ready(World())
    await bind(replica, "A")
    gate = Gate(replica, monkeypatch)
    binding = asyncio.create_task(bind(replica, "B"))
    await settle()
    assert await flows(replica) == ["A", "B"]
    assert not binding.done()
    gate.open.set()
    assert (await binding).flow_id


@virtual
async def test_without_credentials_a_flow_is_unbound_and_the_next_one_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replica = await ready(World())
    await bind(replica, "A")
    gate = Gate(replica, monkeypatch)
    gate.error = Unavailable("no roles today")
    gate.open.set()
    for _ in range(2):
        with pytest.raises(Unavailable, match="no roles"):
            await bind(replica, "B")
        assert await flows(replica) == ["A"]
    revision = (await replica.queue("orders")).revision
    with pytest.raises(Unavailable, match="no roles"):
        await bind(replica, "B")
    assert (await replica.queue("orders")).revision == revision


@virtual
async def test_a_bind_that_fails_leaves_its_credentials_unmade(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replica = await ready(World())
    await bind(replica, "A")
    gate = Gate(replica, monkeypatch)
    held = replica.net.hold("commit")
    binding = asyncio.create_task(bind(replica, "B"))
    await replica.net.met("commit")
    binding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await binding
    held.set()
    await settle()
    assert gate.cancelled
