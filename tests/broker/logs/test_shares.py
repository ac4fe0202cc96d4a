"""Connections to the log that run short are divided among keys, however many flows each has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.logs.credentials import ClientCredentials
from broker.logs.ports import Holder
from broker.logs.roles import LogSession, share_out, surplus_of
from counterpoise.logs.builtin.log import PostgresLog
from tests.broker.logs.test_credentials import async_engine
from tests.databases import is_ended
from tests.log_support import log, log_url, until

__all__ = ["log", "log_url"]


def sessions(**counts: int) -> list[LogSession]:
    """So many sessions of each key, each of another role; those of the first key are the oldest."""
    keys = [key for key, count in counts.items() for _ in range(count)]
    return [LogSession(pid, f"{key}-{pid}", key) for pid, key in enumerate(keys)]


def left(found: list[LogSession], room: int) -> dict[str, int]:
    ended = surplus_of(found, room).sessions
    return dict(Counter(one.key for one in found if one not in ended))


def test_the_greedy_key_gets_what_the_others_leave() -> None:
    assert left(sessions(greedy=90, small=3, other=5), 40) == {"greedy": 32, "small": 3, "other": 5}


def test_two_greedy_keys_get_the_same() -> None:
    assert left(sessions(a=90, b=50, small=2), 42) == {"a": 20, "b": 20, "small": 2}


def test_the_latest_sessions_are_ended_and_their_roles_keep_none() -> None:
    surplus = surplus_of(sessions(a=4), 2)
    assert [one.pid for one in surplus.sessions] == [2, 3]
    assert surplus.kept == {"a-0": 1, "a-1": 1, "a-2": 0, "a-3": 0}


@given(st.lists(st.sampled_from("abcd"), max_size=60), st.integers(-5, 70))
def test_no_more_than_there_is_room_for_and_each_key_has_one(keys: list[str], room: int) -> None:
    found = [LogSession(pid, key, key) for pid, key in enumerate(keys)]
    counts, kept = Counter(keys), left(found, room)
    assert kept.keys() == counts.keys()
    assert sum(kept.values()) <= max(room, len(counts))
    assert len(keys) > room or kept == counts
    fewest = min((kept[key] for key in kept if kept[key] < counts[key]), default=0)
    assert all(count <= fewest + 1 for count in kept.values()) or kept == counts


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


async def test_a_key_with_many_flows_leaves_room_for_others(
    log: PostgresLog, log_url: str, stack: ExitStack
) -> None:
    engine = async_engine(log_url)
    credentials = ClientCredentials(engine, log_url, connections=8)

    async def urls(key: str, flows: int) -> list[str]:
        found = []
        for number in range(flows):
            holder = Holder.flow(f"{key}-{number}", "q1", key)
            access = await credentials.get("flights", "read", holder)
            assert access is not None
            found.append(access.url)
        return found

    def connect(url: str) -> psycopg.Connection[Any]:
        return stack.enter_context(closing(psycopg.connect(url, autocommit=True)))

    greedy, modest = await urls("greedy", 5), await urls("modest", 1)
    own = [connect(modest[0])]
    taken = [connect(url) for url in greedy for _ in range(8)]
    with psycopg.connect(log_url) as looking:
        counted = looking.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
        ).fetchone()
    assert counted is not None
    # Room for 20 sessions fewer than there are.
    capacity = (counted[0] - 20) * 8 // 7
    try:
        assert await share_out(engine, counted[0] * 2) == 0
        assert 15 <= await share_out(engine, capacity) <= 25
        until(lambda: 15 <= sum(map(is_ended, taken)) <= 25)
        assert not any(map(is_ended, own))
        connect(modest[0])
        with pytest.raises(psycopg.OperationalError, match="too many connections for role"):
            [connect(url) for url in greedy for _ in range(8)]
    finally:
        await engine.dispose()
