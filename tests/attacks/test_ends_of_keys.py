"""The end of a key takes effect on all replicas within 5 s: in virtual time.

`test_keys` shows on real services that everything ends, whenever that is.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.calls.callers import IDLE_SECONDS, MOST_SESSIONS, REFRESH_SECONDS
from broker.core.access import Role, anybody, digest, key_of
from broker.core.errors import FlowGone, Unauthorized, Unavailable
from broker.settings import load
from broker.store.ports import KeyRow
from broker.testing.database import MemoryDatabase, MemoryKey
from broker.testing.loop import running, settle, virtual
from broker.testing.process import Process
from broker.testing.service import MemoryBroker
from broker.testing.store import Fault
from counterpoise import wire
from counterpoise.logs.memory import MemoryLogs

pytestmark = pytest.mark.long

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


def cut_off(broker: MemoryBroker) -> None:
    """The database answers this replica nothing more."""

    async def lost(_: str) -> Fault:
        return Fault.LOST

    store: Any = broker.replica.store
    store.hook = lost


async def ends(stream: asyncio.Task[None]) -> bool:
    """Whether a stream ends in time."""
    await asyncio.wait([stream], timeout=END_SECONDS)
    return stream.done()


@pytest.mark.parametrize("how", ["revoked", "ends_at"])
@pytest.mark.parametrize("moment", [0.0, 0.4, 0.9])
@virtual
async def test_a_key_ends_everywhere_within_5_s(how: str, moment: float) -> None:
    replicas = Replicas()
    await replicas.start()
    one = replicas.both[0]
    await one.queues.create(wire.QueueCreate("orders", 2, rebalance_delay=0.0))
    flow = await one.flows.bind("orders", "etl", None, 60.0, False, key_id=ID)
    callers = [await broker.callers.by_key(TOKEN) for broker in replicas.both]
    streams = [
        asyncio.create_task(broker.callers.until_ended(caller))
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
            await broker.callers.by_key(TOKEN)
        with pytest.raises(FlowGone) as gone:
            await broker.flows.heartbeat(await broker.bound_flows.of("orders", flow.flow_id))
        assert gone.value.reason == "key_ended"


@pytest.mark.parametrize("how", ["revoked", "ends_at"])
@virtual
async def test_a_stream_that_begins_when_its_key_has_just_ended_ends_too(how: str) -> None:
    """Its caller was let in, then the replica found out, and then the stream was there."""
    replicas = Replicas()
    await replicas.start()
    broker = replicas.both[0]
    caller = await broker.callers.by_key(TOKEN)
    end(replicas, how)
    await asyncio.sleep(2 * REFRESH_SECONDS)
    assert await ends(asyncio.create_task(broker.callers.until_ended(caller)))


@virtual
async def test_a_stream_of_a_key_that_was_not_used_for_long_ends_with_it() -> None:
    replicas = Replicas()
    await replicas.start()
    broker = replicas.both[0]
    caller = await broker.callers.by_key(TOKEN)
    stream = asyncio.create_task(broker.callers.until_ended(caller))
    await asyncio.sleep(3 * IDLE_SECONDS)
    assert not stream.done()
    end(replicas, "revoked")
    assert await ends(stream)


@pytest.mark.parametrize("how", ["logged out", "logged out elsewhere", "too many sessions"])
@virtual
async def test_the_streams_of_a_session_end_with_it(how: str) -> None:
    """And no others of its key."""
    replicas = Replicas()
    await replicas.start()
    keys = replicas.both[0].callers
    token, caller = await keys.log_in(TOKEN, None)
    _, other = await replicas.both[1].callers.log_in(TOKEN, None)
    others = [
        asyncio.create_task(keys.until_ended(each)) for each in (other, await keys.by_key(TOKEN))
    ]
    stream = asyncio.create_task(keys.until_ended(caller))
    await asyncio.sleep(3 * REFRESH_SECONDS)
    assert not stream.done()
    if how == "too many sessions":
        # The oldest of them ends.
        for _ in range(MOST_SESSIONS - 1):
            await replicas.both[1].callers.log_in(TOKEN, None)
    else:
        await replicas.both["elsewhere" in how].callers.log_out(token)
    assert await ends(stream)
    await asyncio.sleep(END_SECONDS)
    assert not any(each.done() for each in others)
    with pytest.raises(Unauthorized):
        await keys.by_session(token)


@virtual
async def test_a_stream_without_a_key_ends_though_it_begins_when_the_first_was_just_made() -> None:
    replicas = Replicas()
    made = replicas.database.key_tables.keys.pop(ID)
    await replicas.start()
    broker = replicas.both[0]
    early = asyncio.create_task(broker.callers.until_ended(anybody()))
    assert not await broker.callers.any_made()
    assert not await ends(early)
    replicas.database.key_tables.keys[ID] = made
    assert await ends(early)
    assert await ends(asyncio.create_task(broker.callers.until_ended(anybody())))


@virtual
async def test_a_replica_without_its_database_takes_no_key_for_valid_for_longer() -> None:
    replicas = Replicas()
    await replicas.start()
    one, other = replicas.both
    for broker in replicas.both:
        await broker.callers.by_key(TOKEN)
    cut_off(one)
    end(replicas, "revoked")
    await one.callers.by_key(TOKEN)
    await asyncio.sleep(END_SECONDS)
    with pytest.raises(Unavailable):
        await one.callers.by_key(TOKEN)
    with pytest.raises(Unauthorized):
        await other.callers.by_key(TOKEN)


@virtual
async def test_a_replica_without_its_database_lets_nobody_in_without_a_key_for_longer() -> None:
    replicas = Replicas()
    made = replicas.database.key_tables.keys.pop(ID)
    await replicas.start()
    one, other = replicas.both
    cut_off(one)
    replicas.database.key_tables.keys[ID] = made
    assert not await one.callers.any_made()
    await asyncio.sleep(END_SECONDS)
    with pytest.raises(Unavailable):
        await one.callers.any_made()
    assert await other.callers.any_made()
