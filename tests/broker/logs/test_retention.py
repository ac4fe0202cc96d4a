"""What stays of processed messages, in the built-in log and in the one in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.ext.asyncio import create_async_engine

from broker.logs.builtin import BuiltinLogs
from broker.logs.by_kind import BuiltinKind, LogsByKind
from broker.logs.external import ExternalLogs
from broker.logs.ports import LogOwner
from broker.logs.retention import Retention, Young, beyond, kept_bytes
from broker.testing.logs import MemoryLogKind
from counterpoise.logs import AppendBatch, Log, Message, open_log
from counterpoise.logs.memory import MemoryLogs
from tests.log_support import log, log_url

__all__ = ["log", "log_url"]

HOUR = 3600.0
OWNER = LogOwner("q-1", "flights", 0.0)


@given(
    st.dictionaries(
        st.integers(0, 20),
        st.tuples(st.integers(0, 1000), st.integers(1, 1000), st.floats(0, 1000)),
        max_size=8,
    ),
    st.integers(1, 100_000),
)
def test_the_newest_of_what_is_young_enough_stays(
    drawn: dict[int, tuple[int, int, float]], most_bytes: int
) -> None:
    floor = {number: at + count for number, (at, count, _) in drawn.items()}
    young = {number: Young(at, mean) for number, (at, _, mean) in drawn.items()}
    floor[99] = 7  # has nothing that is young enough
    kept = kept_bytes(floor, young)
    trimmed = beyond(floor, young, min(1.0, most_bytes / kept) if kept else 1.0)
    assert trimmed.pop(99) == 7
    left = {one: Young(trimmed[one], mean) for one, (_, _, mean) in drawn.items()}
    assert all(young[one].position <= at <= floor[one] for one, at in trimmed.items())
    assert kept_bytes(floor, left) <= most_bytes * 1.0001
    if kept <= most_bytes:
        assert {one: at.position for one, at in young.items()} == trimmed


@pytest.fixture(params=["builtin", "memory"])
def url(request: pytest.FixtureRequest) -> str | None:
    """The database of the built-in log; None for the one in memory."""
    if request.param == "memory":
        return None
    request.getfixturevalue("log")
    return str(request.getfixturevalue("log_url"))


@pytest.fixture
async def kind_and_log(url: str | None) -> AsyncIterator[tuple[BuiltinKind, Callable[[], Log]]]:
    """The kind of log, and how to open a log of it."""
    if url is None:
        logs = MemoryLogs()
        yield MemoryLogKind(logs), lambda: open_log("builtin:flights", logs.access)
        return
    engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"))
    yield BuiltinLogs(engine, url), lambda: open_log("builtin:flights", url)
    await engine.dispose()


async def test_time_and_size_decide(
    kind_and_log: tuple[BuiltinKind, Callable[[], Log]],
) -> None:
    kind, opened = kind_and_log
    logs = LogsByKind(kind, ExternalLogs())
    await kind.ensure("builtin:flights", 4, OWNER)
    now = datetime.now(UTC)
    # By partition: how many hours ago. In partition 1 an old message comes behind a young one.
    ages = {0: [9, 8, 2, 1, 1], 1: [9, 2, 8, 1], 2: [9, 9]}
    with closing(opened()) as it:
        for partition, hours in ages.items():
            times = [now - timedelta(hours=one) for one in hours]
            messages = [Message(b"x" * 100, published_at=at) for at in times]
            numbers = [partition] * len(messages)
            it.append(AppendBatch(f"p{partition}", 0, 4, numbers, messages))

    async def below(seconds: float, most_bytes: int, **committed: str) -> dict[int, str]:
        positions = {int(name[1:]): at for name, at in committed.items()}
        retention = Retention(seconds, most_bytes)
        found = await logs.maintain(
            "builtin:flights", 4, 1, OWNER, [positions], retention=retention
        )
        return dict(found)

    assert await below(5 * HOUR, 10_000, p0="5", p1="4", p2="2") == {0: "2", 1: "1", 2: "2"}
    # What is not processed counts for nothing.
    assert await below(5 * HOUR, 10_000, p0="1", p1="1") == {0: "1", 1: "1"}
    assert await below(5 * HOUR, 10_000) == {}
    assert await below(99 * HOUR, 10_000, p0="5", p1="4", p2="2") == {}
    # 11 messages of 100 bytes are too many: half of each partition stays.
    assert await below(99 * HOUR, 550, p0="5", p1="4", p2="2") == {0: "3", 1: "2", 2: "1"}
    everything = {0: "5", 1: "4", 2: "2"}
    assert await below(0, 10_000, p0="5", p1="4", p2="2") == everything
    assert await below(5 * HOUR, 0, p0="5", p1="4", p2="2") == everything


async def test_very_much_old_data_goes_in_several_turns(
    kind_and_log: tuple[BuiltinKind, Callable[[], Log]], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, opened = kind_and_log
    if not isinstance(kind, BuiltinLogs):
        return  # the one in memory has little
    await kind.ensure("builtin:flights", 4, OWNER)
    now = datetime.now(UTC)
    with closing(opened()) as it:
        for partition, hours in enumerate([[9, 9, 9, 9, 9, 1, 1], [9, 9, 9, 9, 9, 9], [9, 1]]):
            messages = [Message(b"x", published_at=now - timedelta(hours=one)) for one in hours]
            numbers = [partition] * len(messages)
            it.append(AppendBatch(f"p{partition}", 0, 4, numbers, messages))
    monkeypatch.setattr("broker.logs.builtin.SEARCHED", 6)
    ends = {0: 7, 1: 6, 2: 2}
    found = await kind.young("builtin:flights", ends, 5 * HOUR)
    assert found == {0: Young(5, 1.0), 2: Young(1, 1.0)}, "one search after the other"
    monkeypatch.setattr("broker.logs.builtin.SEARCH_SECONDS", -1.0)
    found = await kind.young("builtin:flights", ends, 5 * HOUR)
    assert found == {0: Young(2, 0.0), 1: Young(2, 0.0), 2: Young(1, 1.0)}
    # What is not searched yet is not taken for young when the size is estimated.
    assert kept_bytes(ends, found) == 1.0
