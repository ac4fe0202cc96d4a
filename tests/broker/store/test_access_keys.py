"""Keys, sessions and the audit in each store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from broker.core import commands as c
from broker.core.access import digest
from broker.store.ports import Act, KeyRow, NewKey, Store
from broker.testing.database import MemoryKey
from tests.broker.store.support import (
    Ground,
    MemoryGround,
    PostgresGround,
    Replica,
    bind,
    token_hash,
)
from tests.world.store import picture

IDS = [f"{number:012x}" for number in range(6)]


async def make(
    ground: Ground,
    key_id: str,
    *,
    queues: Sequence[str] = ("*",),
    ends_in: float | None = None,
    revoked: bool = False,
) -> None:
    """A key as another program makes it; `ends_in` seconds."""
    now = (await (await ground.store()).pulse()).now
    ends_at = None if ends_in is None else now + ends_in
    hash, revoked_at = digest(key_id), now if revoked else None
    if isinstance(ground, MemoryGround):
        row = KeyRow(key_id, hash, "name", "viewer", [*queues], ends_at)
        ground.database.key_tables.keys[key_id] = MemoryKey(row, revoked_at)
    else:
        assert isinstance(ground, PostgresGround)
        ground.sql(
            "INSERT INTO counterpoise.keys"
            " (id, hash, name, role, queues, created_at, ends_at, revoked_at)"
            " VALUES (%s, %s, 'name', 'viewer', %s, %s, %s, %s)",
            *(key_id, hash, [*queues], now, ends_at, revoked_at),
        )


async def bound(
    orders: Replica, keys: Mapping[str, str | None], instance: str | None = None
) -> None:
    """Flows bind, each with a key."""
    commands = [replace(bind(flow, instance), key_id=key) for flow, key in keys.items()]
    await orders.do(*commands)


async def test_keys_count_until_they_are_revoked_or_end(ground: Ground, store: Store) -> None:
    looked = await store.keys.read(IDS)
    assert (looked.any_made, looked.counting) == (False, {})
    await make(ground, IDS[0], queues=("a*", "b"))
    await make(ground, IDS[1], ends_in=3600)
    await make(ground, IDS[2], ends_in=-1)
    await make(ground, IDS[3], revoked=True)
    looked = await store.keys.read(IDS)
    assert looked.any_made
    assert sorted(looked.counting) == IDS[:2]
    row = looked.counting[IDS[0]]
    assert (row.hash, row.role, list(row.queues)) == (digest(IDS[0]), "viewer", ["a*", "b"])
    assert (await store.keys.read([])).any_made


async def test_a_revoked_key_was_made_too(ground: Ground, store: Store) -> None:
    await make(ground, IDS[0], revoked=True)
    assert (await store.keys.read([])).any_made


async def test_bound_flows_of_ended_keys(ground: Ground, store: Store, orders: Replica) -> None:
    await make(ground, IDS[0])
    await make(ground, IDS[1], revoked=True)
    await make(ground, IDS[2], ends_in=-1.0)
    await bound(orders, {"A": None, "B": IDS[0], "C": IDS[1], "D": IDS[2], "E": IDS[1]})
    assert await store.keys.keyless(10) == [(orders.id, flow) for flow in ("C", "D", "E")]
    assert len(await store.keys.keyless(2)) == 2
    await orders.do(c.Unbind("C"))
    assert await store.keys.keyless(10) == [(orders.id, flow) for flow in ("D", "E")]


async def test_a_flow_by_its_token(store: Store, orders: Replica) -> None:
    await bound(orders, {"A": IDS[0], "B": None})
    assert await store.keys.flow_of_token(token_hash("A")) == (orders.id, "A", IDS[0])
    assert await store.keys.flow_of_token(token_hash("B")) == (orders.id, "B", None)
    assert await store.keys.flow_of_token(b"nobody's") is None
    await orders.do(c.Unbind("A"))
    assert await store.keys.flow_of_token(token_hash("A")) is None


async def test_the_same_instance_under_two_keys(store: Store, orders: Replica) -> None:
    """Two flows; and what is loaded is what was decided, also while they may come back."""
    await orders.do(c.Change({"rebalance_delay": 60.0}))
    await bound(orders, {"B": IDS[0], "A": None, "C": IDS[1]}, "same")
    assert sorted((await store.load(orders.id)).flows) == ["A", "B", "C"]
    await orders.do(c.Unbind("B"))
    loaded = await store.load(orders.id)
    assert picture(loaded) == picture(orders.queue)
    assert list(loaded.absent) == [(IDS[0], "same")]


async def test_sessions(ground: Ground, store: Store) -> None:
    await make(ground, IDS[0])
    await make(ground, IDS[1])
    for number in range(4):
        await store.keys.begin_session(b"%d" % number, IDS[0], 100.0, 2)
    await store.keys.begin_session(b"other", IDS[1], 100.0, 2)
    found = await store.keys.sessions([b"%d" % number for number in range(4)])
    assert {hash: session.key_id for hash, session in found.items()} == {b"2": IDS[0], b"3": IDS[0]}
    assert b"other" in await store.keys.sessions([b"other"])
    await store.keys.end_session(b"3")
    await store.keys.end_session(b"3")
    assert not await store.keys.sessions([b"3"])
    await store.keys.begin_session(b"over", IDS[1], -1.0, 9)
    assert not await store.keys.sessions([b"over"])
    await store.keys.purge(0.0)
    assert await store.keys.sessions([b"other"])


async def test_a_session_is_unlocked_alone_and_for_a_time(ground: Ground, store: Store) -> None:
    await make(ground, IDS[0])
    ends_at = await store.keys.begin_session(b"one", IDS[0], 100.0, 9)
    await store.keys.begin_session(b"other", IDS[0], 100.0, 9)
    act = Act("unlock_session", key_id=IDS[0])

    async def unlocked() -> dict[bytes, float | None]:
        found = await store.keys.sessions([b"one", b"other"])
        return {hash: session.unlocked_until for hash, session in found.items()}

    assert await unlocked() == {b"one": None, b"other": None}
    until = await store.keys.unlock_session(b"one", 10.0, act)
    assert until is not None
    assert until < ends_at
    assert await unlocked() == {b"one": until, b"other": None}
    # Not longer than the session itself.
    assert await store.keys.unlock_session(b"one", 1000.0, act) == ends_at
    await store.keys.lock_session(b"one")
    await store.keys.lock_session(b"one")
    await store.keys.lock_session(b"nobody's")
    assert await unlocked() == {b"one": None, b"other": None}
    # The time is over at once.
    await store.keys.unlock_session(b"one", 0.0, act)
    assert await unlocked() == {b"one": None, b"other": None}
    # A session that has ended, or never was, is not unlocked, and the audit has nothing of it.
    await store.keys.begin_session(b"over", IDS[0], -1.0, 9)
    for hash in (b"over", b"nobody's"):
        assert await store.keys.unlock_session(hash, 10.0, act) is None
    assert [row.act for row in await store.keys.audit(10, None, ["*"], None)] == [act] * 3


async def test_keys_that_ended_long_ago_are_forgotten(ground: Ground, store: Store) -> None:
    """But for the first one, so the service stays closed, and those that something refers to."""
    for key_id in IDS[:2]:
        await make(ground, key_id, revoked=True)
    await make(ground, IDS[2], ends_in=-5.0)
    await make(ground, IDS[3], ends_in=3600.0)
    await make(ground, IDS[4])
    await make(ground, IDS[5], revoked=True)
    orders = Replica(store)
    await orders.create(2)
    await bound(orders, {"A": IDS[5]}, "same")
    now = (await store.pulse()).now

    async def there() -> list[str]:
        return [key.id for key in await store.keys.page(9, None, everything=True)]

    await store.keys.purge(now - 60)
    assert await there() == IDS
    await store.keys.begin_session(b"s", IDS[2], 100.0, 2)
    await store.keys.purge(now + 60)
    assert await there() == [IDS[0], *IDS[2:]]
    await store.keys.end_session(b"s")
    await orders.do(c.Unbind("A"))
    await store.keys.purge(now + 60)
    assert await there() == [IDS[0], *IDS[3:5]]
    assert (await store.keys.read([])).any_made


async def test_the_audit_by_patterns(store: Store) -> None:
    acts = [Act("drain", queue) for queue in ("a_1", "ab1", "b.2", None, "a%1")]
    await store.keys.record(acts)
    await store.keys.record([])

    async def shown(*patterns: str, queue: str | None = None) -> list[str | None]:
        rows = await store.keys.audit(10, None, patterns, queue)
        return [row.act.queue for row in rows]

    assert await shown("*") == ["a%1", None, "b.2", "ab1", "a_1"]
    assert await shown("a_1") == ["a_1"]
    assert await shown("a?1") == ["a%1", "ab1", "a_1"]
    assert await shown("b*", "ab*") == ["b.2", "ab1"]
    assert await shown("*", queue="b.2") == ["b.2"]
    assert await shown("a*", queue="b.2") == []
    assert await shown("none") == []
    newest = await store.keys.audit(2, None, ("*",), None)
    older = await store.keys.audit(9, newest[-1].id, ("*",), None)
    assert [row.act.queue for row in older] == ["b.2", "ab1", "a_1"]
    now = (await store.pulse()).now
    assert all(abs(row.at - now) < 60 for row in older)


async def test_queues_by_patterns(store: Store) -> None:
    for name in ("a_1", "ab1", "b.2", "a-1"):
        await Replica(store).create(1, name)

    async def shown(*patterns: str) -> list[str]:
        return [row.queue.name for row in await store.list(10, None, patterns)]

    assert await shown("*") == ["a-1", "a_1", "ab1", "b.2"]
    assert await shown("a_1") == ["a_1"]
    assert await shown("a?1") == ["a-1", "a_1", "ab1"]
    assert await shown("b.?", "a_*") == ["a_1", "b.2"]
    assert await shown("A_1") == []
    [row] = await store.list(1, "a_1", ("a*",))
    assert row.queue.name == "ab1"


def new(key_id: str, ends_at: float | None = None) -> NewKey:
    return NewKey(key_id, digest(key_id), "etl", "consumer", ["team-a.*"], ends_at)


async def test_keys_are_made_listed_and_revoked(store: Store) -> None:
    """With their rows in the audit."""
    by = Act("create_key", key_id="0123456789ab", address="::1")
    first = await store.keys.make(new(IDS[0]), by, only_first=True)
    assert first is not None
    assert (first.id, first.role, [*first.queues]) == (IDS[0], "consumer", ["team-a.*"])
    assert (first.state, first.last_used_at) == ("valid", None)
    assert await store.keys.make(new(IDS[1]), by, only_first=True) is None
    ended = await store.keys.make(new(IDS[2], ends_at=first.created_at), by, only_first=False)
    assert ended is not None
    assert (await store.keys.read(IDS)).counting.keys() == {IDS[0]}
    for _ in range(2):
        revoked = await store.keys.revoke(IDS[0], replace(by, call="revoke_key"))
        assert revoked is not None
        assert revoked.state == "revoked"
    assert await store.keys.revoke(IDS[5], by) is None
    assert await store.keys.one(IDS[0]) == revoked
    assert await store.keys.one(IDS[5]) is None

    async def shown(limit: int, after: str | None, everything: bool = True) -> list[object]:
        found = await store.keys.page(limit, after, everything=everything)
        return [(key.id, key.state) for key in found]

    assert await shown(9, None) == [(IDS[0], "revoked"), (IDS[2], "ended")]
    assert await shown(1, None) == [(IDS[0], "revoked")]
    assert await shown(9, IDS[0]) == [(IDS[2], "ended")]
    assert await shown(9, IDS[5]) == await shown(9, IDS[2]) == []
    assert await shown(9, None, everything=False) == []
    acts = [row.act for row in reversed(await store.keys.audit(10, None, ["*"], None))]
    assert [act.call for act in acts] == ["create_key", "create_key", "revoke_key"]
    assert {act.key_id for act in acts} == {"0123456789ab"}
    assert acts[0].after == first.audited
    assert acts[2].before == first.audited
