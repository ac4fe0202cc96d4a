"""How long messages take from `publish` to their commit: samples of commits, asked of the log."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from random import Random
from typing import NamedTuple

import pytest

from broker.calls import commit_ages
from broker.calls.commit_ages import MOST_NOTED, MOST_PARTITIONS, REST, CommitAges, committed_after
from broker.core.commands import CommitItem
from broker.core.errors import Unavailable
from broker.replica.events import AGE_SECONDS, MOST_QUEUES
from broker.store.ports import PositionCommit
from broker.testing.loop import virtual
from counterpoise.logs import AppendBatch, Message
from counterpoise.logs.builtin.log import PostgresLog
from counterpoise.wire import QueueCreate
from tests.broker.calls.test_measurements import replica
from tests.broker.shell import Service, World, spec

ADDED = "counterpoise_publish_to_committed_seconds"


class Answered(NamedTuple):
    """A replica with a queue, what its log was asked, and the age that it answers."""

    service: Service
    flow: str
    asked: list[Mapping[int, str]]

    async def commit(self, *positions: str, seq: int | None = None, first: int = 0) -> None:
        items = [CommitItem(first + place, 1, each) for place, each in enumerate(positions)]
        await self.service.commit("orders", self.flow, seq, items)

    @property
    def seen(self) -> dict[str, float]:
        """The samples of the histogram, by the ends of their names."""
        [family] = self.service.replica.tally.publish_to_committed.collect()
        return {
            one.name.removeprefix(ADDED) + one.labels.get("le", ""): one.value
            for one in family.samples
            if not one.name.endswith("_created")
        }


async def answered(
    ages: float | BaseException = 10.0, partitions: int = 4, seconds: float = 0.0
) -> Answered:
    """Its log says of each message that it is so old, after so many seconds."""
    service = await World().replica()
    await service.create_queue(spec("orders", partitions))
    asked: list[Mapping[int, str]] = []

    async def answer(_log: str, positions: Mapping[int, str]) -> Mapping[int, float]:
        asked.append(dict(positions))
        await asyncio.sleep(seconds)
        if isinstance(ages, BaseException):
            raise ages
        return dict.fromkeys(positions, ages)

    service.logs.ages = answer  # type: ignore[assignment,method-assign]
    return Answered(service, await service.join("orders", "A"), asked)


@virtual
async def test_the_age_is_that_at_the_commit_not_at_the_look() -> None:
    one = await answered(10.0)
    await one.commit("7", "9")
    assert not one.asked, "a commit asks no log"
    await asyncio.sleep(3.0)
    await one.service.calls.commit_ages.look()
    # Before there was no position: the last messages.
    assert one.asked == [{0: "6", 1: "8"}]
    assert one.seen["_sum"] == pytest.approx(2 * 7.0)
    assert (one.seen["_bucket5.0"], one.seen["_bucket10.0"]) == (0, 2)
    await one.service.calls.commit_ages.look()
    assert len(one.asked) == 1, "each sample is looked at once"


@virtual
async def test_a_message_is_one_that_the_commit_has_passed() -> None:
    one = await answered()
    await one.commit("7")
    await one.service.calls.commit_ages.look()
    for end in (8, 9, 109):
        await one.commit(str(end))
        await one.service.calls.commit_ages.look()
    [first], [second], [third] = ([*asked.values()] for asked in one.asked[1:])
    assert (first, second) == ("7", "8")
    assert 9 <= int(third) < 109


@virtual
async def test_what_changes_nothing_is_no_sample() -> None:
    one = await answered()
    await one.commit("7", seq=2)
    await one.service.calls.commit_ages.look()
    await one.commit("9", seq=1)
    await one.commit("7", seq=3)
    await one.commit("3", seq=4)
    await one.service.commit("orders", one.flow, 5, [CommitItem(0, 0, "20")])
    await one.service.calls.commit_ages.look()
    assert len(one.asked) == 1
    # Read again from 3 on.
    await one.commit("4", seq=6)
    await one.service.calls.commit_ages.look()
    assert one.asked[1:] == [{0: "3"}]


@virtual
async def test_positions_that_are_no_numbers_and_an_empty_partition_are_no_samples() -> None:
    one = await answered()
    ages = one.service.calls.commit_ages
    commits = [
        PositionCommit("id", "f", None, number, 1, position)
        for number, position in enumerate(("token-7", "0", "5", "5", "5"))
    ]
    ages.note(commits, {0: "token-5", 1: None, 2: "token", 3: "5", 4: "4"})
    assert [*ages._samples["id"]] == [4]


@virtual
async def test_a_log_that_does_not_say_the_age_is_asked_for_others_the_next_time() -> None:
    one = await answered(Unavailable("away"))
    await one.commit("7")
    await one.service.calls.commit_ages.look()
    assert one.seen == {}
    await one.commit("8")
    await one.service.calls.commit_ages.look()
    assert one.asked == [{0: "6"}, {0: "7"}]


@virtual
async def test_looks_take_a_twentieth_of_the_time() -> None:
    one = await answered(seconds=1.0)
    look = one.service.calls.commit_ages.look
    await one.commit("1")
    await look()
    await one.commit("2")
    await asyncio.sleep(REST - 0.1)
    await look()
    assert len(one.asked) == 1
    await asyncio.sleep(0.2)
    await look()
    assert len(one.asked) == 2


@virtual
async def test_a_look_begins_nothing_after_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_ages, "AT_ONCE", 1)
    monkeypatch.setattr(commit_ages, "LOOK_BUDGET", 0.5)
    one = await answered(seconds=1.0)
    await one.service.create_queue(spec("payments", 1))
    other = await one.service.join("payments", "A")
    await one.commit("1")
    await one.service.commit("payments", other, None, [CommitItem(0, 1, "1")])
    await one.service.calls.commit_ages.look()
    assert len(one.asked) == 1


@virtual
async def test_what_is_noted_is_bounded() -> None:
    one = await answered(partitions=1)
    ages = one.service.calls.commit_ages
    many = [
        PositionCommit("id", "f", None, number, 1, "7") for number in range(3 * MOST_PARTITIONS)
    ]
    ages.note(many, dict.fromkeys(range(len(many)), "3"))
    assert len(ages._samples["id"]) == MOST_PARTITIONS < MOST_NOTED
    for number in range(MOST_QUEUES + 5):
        queue = PositionCommit(f"q{number}", "f", None, 0, 1, "7")
        ages.note([queue], {0: "3"})
    assert len(ages._samples) == MOST_QUEUES


@virtual
async def test_each_message_since_the_last_look_has_the_same_chance() -> None:
    """Of commits of 1, 9 and 90 messages: whichever comes first, as often as it has messages."""
    service = await World().replica()
    found: Counter[int] = Counter()
    for seed in range(2000):
        ages = CommitAges(service.calls.queues._queues, service.logs, Random(seed))
        start = 0
        for count in (1, 9, 90)[:: -1 if seed % 2 else 1]:
            commit = PositionCommit("id", "f", None, 0, 1, str(start + count))
            ages.note([commit], {0: str(start)})
            start += count
        found[ages._samples["id"][0].position] += 1
    # 20 of each are expected.
    assert len(found) == 100
    assert 5 <= min(found.values()) <= max(found.values()) <= 40


async def test_it_is_the_time_between_publish_and_commit(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the log's own times; of the commits of all replicas, which all answer the same."""
    monkeypatch.setattr(commit_ages, "REST", 0.0)
    published = datetime.now(UTC) - timedelta(seconds=100)
    async with replica(migrated_url) as one, replica(migrated_url) as other:
        await one.queues.create(QueueCreate("orders", 1, rebalance_delay=0.0))
        log = PostgresLog("orders", migrated_url)
        old, new = Message(b"old", published_at=published), Message(b"new")
        log.append(AppendBatch("p", 0, 1, [0, 0], [old, new]))
        log.close()
        flow = (await one.flows.bind("orders", "etl-1", None, 60.0, False)).flow_id
        for broker, position in ((one, "1"), (other, "2"), (one, "3")):
            bound = await broker.bound_flows.of("orders", flow)
            await broker.commits.commit(bound, None, [CommitItem(0, 1, position)])
            await broker.commit_ages.look()
            await broker.measure()
        shown = (await one.measurements.of_queue("orders")).committed_after
        assert shown == (await other.measurements.of_queue("orders")).committed_after
    assert shown is not None
    # There is no message at the position 2.
    assert shown.sampled == 2
    assert shown.median <= 60.0 < shown.p99 <= 300.0


@pytest.mark.parametrize(
    ("counts", "median", "p99"),
    [
        ({0: 1}, 0.0025, 0.00495),
        # Half of a hundred in each: to the end of the first, and nearly to that of the other.
        ({4: 50, 7: 50}, 0.1, 0.99),
        ({8: 98, 9: 2}, 1.0 + 1.5 * 50 / 98, 3.75),
        ({16: 5}, 7200.0, 7200.0),
    ],
)
def test_quantiles_are_those_of_prometheus(
    counts: Mapping[int, int], median: float, p99: float
) -> None:
    shown = committed_after([counts.get(at, 0) for at in range(len(AGE_SECONDS) + 1)])
    assert shown is not None
    assert shown.sampled == sum(counts.values())
    assert [shown.median, shown.p99] == pytest.approx([median, p99])


def test_without_samples_there_is_no_figure() -> None:
    assert committed_after([]) is None
    assert committed_after([0] * (len(AGE_SECONDS) + 1)) is None
