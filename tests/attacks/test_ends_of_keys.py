"""The end of a key takes effect on all replicas within 5 s: in virtual time.

`test_keys` shows on real services that everything ends, whenever that is.
"""

from __future__ import annotations

import asyncio

import pytest

from broker.calls import views
from broker.core.access import Role, digest, key_of
from broker.core.errors import FlowGone, Unauthorized
from broker.settings import load
from broker.store.ports import KeyRow
from broker.testing.database import MemoryDatabase, MemoryKey
from broker.testing.loop import running, settle, virtual
from broker.testing.process import Process
from broker.testing.service import MemoryBroker
from counterpoise.logs.memory import MemoryLogs

# The contract, *Who may call what*.
END_SECONDS = 5.0
ID = "0123456789ab"
TOKEN = key_of(ID, "0" * 64)


class Replicas:
    """Two replicas that began at different times, on a database with one key."""

    def __init__(self) -> None:
        loop = running()
        self.now = lambda: 1_795_168_800.0 + loop.now
        self.database = MemoryDatabase(self.now)
        row = KeyRow(ID, digest(TOKEN), "etl", Role.CONSUMER.value, ["*"], None)
        self.key = self.database.key_tables.keys[ID] = MemoryKey(row)
        logs = MemoryLogs(self.now)
        settings = load(host="127.0.0.1")
        self.both = [MemoryBroker(settings, self.database, Process(loop), logs) for _ in range(2)]

    async def start(self) -> None:
        for broker in self.both:
            await broker.start()
            await asyncio.sleep(0.7)


def end(replicas: Replicas, how: str) -> None:
    """The key is revoked, or its end has come."""
    if how == "revoked":
        replicas.key.revoked_at = replicas.now()
    else:
        replicas.key.row = replicas.key.row._replace(ends_at=replicas.now())


@pytest.mark.parametrize("how", ["revoked", "ends_at"])
@pytest.mark.parametrize("moment", [0.0, 0.4, 0.9])
@virtual
async def test_a_key_ends_everywhere_within_5_s(how: str, moment: float) -> None:
    replicas = Replicas()
    await replicas.start()
    one = replicas.both[0]
    await one.queues.create(views.QueueSpec("orders", 2, rebalance_delay=0.0))
    flow = await one.flows.bind("orders", "etl", None, 60.0, False, key_id=ID)
    callers = [await broker.keys.by_key(TOKEN) for broker in replicas.both]
    streams = [
        asyncio.create_task(broker.keys.until_ended(caller))
        for broker, caller in zip(replicas.both, callers, strict=True)
    ]
    await asyncio.sleep(10.0 + moment)
    assert not any(stream.done() for stream in streams)
    end(replicas, how)
    await asyncio.sleep(END_SECONDS)
    await settle()
    assert all(stream.done() for stream in streams)
    for broker in replicas.both:
        with pytest.raises(Unauthorized):
            await broker.keys.by_key(TOKEN)
        with pytest.raises(FlowGone) as gone:
            await broker.flows.heartbeat(await broker.bound_flows.of("orders", flow.flow_id))
        assert gone.value.reason == "key_ended"
