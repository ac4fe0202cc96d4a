"""The last hour of a queue: lag and rates, the same on all replicas."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from broker.calls import measurements
from broker.calls.measurements import with_rates
from broker.logs.ports import Positions, Span
from broker.replica.alarms import SchedulerAlarms
from broker.service import Broker
from broker.store.measurements import Measurement
from broker.testing.loop import virtual
from counterpoise.wire import QueueCreate
from tests.broker.shell import World, spec
from tests.service import settings_for

T = 1_700_000_000


@pytest.mark.parametrize(
    ("taken", "rates"),
    [
        ([], []),
        ([(0, 5, 10)], [(None, None)]),
        # 60 published in 30 s, and the lag grew by 15.
        ([(0, 5, 10), (30, 20, 70)], [(None, None), (2.0, 1.5)]),
        # Rounds that are missing: the mean over the time between.
        ([(0, 0, 0), (120, 0, 240)], [(None, None), (2.0, 2.0)]),
        # Positions were set back: only what was published is known.
        ([(0, 0, 90), (30, 90, 120)], [(None, None), (1.0, None)]),
        # A partition with its messages was removed.
        ([(0, 0, 90), (30, 0, 60)], [(None, None), (None, None)]),
        ([(0, 0, 90), (30, None, None), (60, 0, 90)], [(None, None)] * 3),
    ],
)
def test_rates_follow_from_ends_and_lags(
    taken: Sequence[tuple[int, int | None, int | None]],
    rates: Sequence[tuple[float | None, float | None]],
) -> None:
    views = with_rates([Measurement(T + at, lag, end) for at, lag, end in taken])
    assert [(one.published, one.processed) for one in views] == rates
    assert [one.lag for one in views] == [lag for _, lag, _ in taken]


class WithoutRounds(SchedulerAlarms):
    """A test begins each round itself, however long it takes."""

    def every(
        self, key: str, seconds: float, callback: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        if key not in ("measurements", "commit ages"):
            super().every(key, seconds, callback)


@asynccontextmanager
async def replica(url: str) -> AsyncIterator[Broker]:
    broker = Broker(settings_for(url), alarms=WithoutRounds())
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


def an_interval_passes(url: str) -> None:
    """As if all rounds had begun half a minute earlier."""
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE counterpoise.service SET measured_at = measured_at - 30")
        connection.execute("UPDATE counterpoise.measurements SET at = at - 30")


async def test_replicas_take_turns_and_show_the_same(migrated_url: str) -> None:
    async with replica(migrated_url) as one, replica(migrated_url) as other:
        await one.queues.create(QueueCreate("orders", 2))
        for each in (one, other):
            await each.measure()
            # Not twice in one interval, whichever replica tries.
            await one.measure()
            await other.measure()
            an_interval_passes(migrated_url)
        shown = await one.measurements.of_queue("orders")
        assert shown == await other.measurements.of_queue("orders")
    assert [one.lag for one in shown.items] == [0, 0]
    assert (shown.items[1].published, shown.items[1].processed) == (0.0, 0.0)
    async with replica(migrated_url) as restarted:
        assert await restarted.measurements.of_queue("orders") == shown


async def test_a_queue_made_again_has_no_past(migrated_url: str) -> None:
    async with replica(migrated_url) as broker:
        await broker.queues.create(QueueCreate("orders", 2))
        await broker.measure()
        assert len((await broker.measurements.of_queue("orders")).items) == 1
        await broker.queues.delete("orders", force=False)
        await broker.queues.create(QueueCreate("orders", 2))
        assert (await broker.measurements.of_queue("orders")).items == ()


async def test_a_log_that_does_not_say_its_end_has_no_lag(migrated_url: str) -> None:
    async with replica(migrated_url) as broker:
        await broker.queues.create(QueueCreate("orders", 2, log="pulsar://127.0.0.1/orders"))
        await broker.measure()
        [shown] = (await broker.measurements.of_queue("orders")).items
    assert (shown.lag, shown.published, shown.processed) == (None, None, None)


async def test_what_a_round_does_not_reach_comes_first_in_the_next(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a budget a round measures only as many queues as it does at once."""
    monkeypatch.setattr(measurements, "ROUND_BUDGET", 0.0)
    names = [f"q{number}" for number in range(measurements.AT_ONCE + 2)]
    async with replica(migrated_url) as broker:
        for name in names:
            await broker.queues.create(QueueCreate(name, 1))
        reached = []
        for _ in range(2):
            await broker.measure()
            counts = [len((await broker.measurements.of_queue(name)).items) for name in names]
            reached.append(counts)
            an_interval_passes(migrated_url)
    most = measurements.AT_ONCE
    assert reached == [[1] * most + [0] * 2, [2, 2] + [1] * most]


@virtual
async def test_a_round_does_not_ask_how_old_messages_are() -> None:
    """Some logs have to fetch a message of each partition to say it, and no row has it."""
    replica = await World().replica()
    await replica.create_queue(QueueCreate("orders", 2))
    asked: list[str] = []
    read = replica.logs.ages

    async def ages(log: str, positions: Mapping[int, str]) -> Mapping[int, float]:
        asked.append(log)
        return await read(log, positions)

    replica.logs.ages = ages  # type: ignore[method-assign]
    await replica.calls.measurements.take()
    assert len((await replica.calls.measurements.of_queue("orders")).items) == 1
    assert not asked
    await replica.calls.monitoring.lag("orders")
    assert len(asked) == 1


@virtual
async def test_what_is_paused_is_measured_and_no_lag_for_autoscalers_and_alerts() -> None:
    replica = await World().replica()
    await replica.create_queue(spec(partitions=2))

    async def spans(log: str, positions: Positions) -> Mapping[int, Span]:
        return {0: Span("0", "2", 2), 1: Span("0", "1", 1)}

    replica.logs.spans = spans  # type: ignore[method-assign]
    await replica.calls.pauses.pause("orders", 0)
    lag = await replica.calls.monitoring.lag("orders")
    assert (lag.messages, lag.partitions) == (1, {1: 1})
    await replica.calls.measurements.take()
    [measured] = (await replica.calls.measurements.of_queue("orders")).items
    assert measured.lag == 3
