"""The running side of a query, with threads, on the real log; the flow is a double."""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest

from counterpoise.errors import CounterpoiseError, ServiceUnavailable
from counterpoise.flow import Flow
from counterpoise.flow.view import Owned, Warming
from counterpoise.logs import Log, LogUnavailable
from counterpoise.logs.builtin.log import PostgresLog
from counterpoise.spark.channel.channel import Channel
from counterpoise.spark.channel.running_batch import planned_of
from counterpoise.spark.errors import FlowEnded
from counterpoise.spark.offsets import Offset, Place, Range, Slice
from counterpoise.spark.options import DEFAULT_MESSAGES_PER_TRIGGER, SourceOptions
from counterpoise.spark.queue_log import QueueLog
from counterpoise.spark.source import query as consumption_module
from counterpoise.spark.source.leaving import Leaving
from counterpoise.spark.source.offset_planner import HELD_BACK_SECONDS
from counterpoise.spark.source.query import DRIVER_SECONDS, Consumption
from counterpoise.wire import ChildrenItem, CommitItem, Condition, LogAccess, ReleaseItem
from tests.counterpoise.spark.doubles import Queue
from tests.log_support import append, log, log_url, until

__all__ = ["log", "log_url"]

EMPTY = Offset("flights").to_json()


class FlowDouble:
    """A flow on a `Queue`, whose service can become unavailable."""

    def __init__(self, queue: Queue, wake: threading.Event, access: str) -> None:
        self.queue = queue
        self.wake = wake
        self.access = access
        self.status = "bound"
        self.gone_reason: str | None = None
        self.last_error: CounterpoiseError | None = None
        self.in_doubt = False
        self.draining = False
        self.drained_within: float | None = None
        self.instance_id = "me"
        self.queue_id = "queue-1"
        self.log = "builtin:flights"
        self.start = "earliest"
        self.away = False
        self.released: list[ReleaseItem] = []
        self.ready_told: list[tuple[int, int | None]] = []
        self.refreshed = 0
        self.reported: list[Condition] = []
        self.closed = False
        self._seen: Mapping[int, Owned] = {}
        self._warms: Mapping[int, Warming] = {}

    @property
    def flow_id(self) -> str | None:
        return "flow-1" if self.status == "bound" else None

    @property
    def warming(self) -> Mapping[int, Warming]:
        found = self.queue.warming("me") if self.status == "bound" else {}
        self._warms = self._warms if found == self._warms else found
        return self._warms

    def drain(self, timeout_seconds: float | None = None) -> None:
        self._check()
        self.draining = self.queue.draining = True
        self.drained_within = timeout_seconds

    @property
    def partitions(self) -> Mapping[int, Owned]:
        """Like a flow's: the same object as long as nothing changes."""
        found = self.queue.view("me") if self.status == "bound" else {}
        self._seen = self._seen if found == self._seen else found
        return self._seen

    def log_access(self, fresh: bool = False) -> LogAccess | None:
        return LogAccess(self.access)

    def ready(self, partition: int, epoch: int | None = None) -> str:
        self._check()
        self.ready_told.append((partition, epoch))
        return "ok"

    def refresh(self, *, timeout_seconds: float | None = None) -> None:
        self._check()
        self.refreshed += 1

    def commit(
        self, items: Iterable[CommitItem], *, timeout_seconds: float | None = None
    ) -> dict[int, str]:
        self._check()
        return {item.partition: self.queue.commit("me", item) for item in items}

    def release_many(
        self, items: Iterable[ReleaseItem], *, timeout_seconds: float | None = None
    ) -> dict[int, str]:
        self._check()
        items = list(items)
        self.released.extend(items)
        return {item.partition: self.queue.release("me", item) for item in items}

    def children_many(
        self, items: Iterable[ChildrenItem], *, timeout_seconds: float | None = None
    ) -> dict[int, str]:
        self._check()
        return {item.partition: self.queue.children("me", item) for item in items}

    def report(
        self, conditions: Iterable[Condition], *, timeout_seconds: float | None = None
    ) -> None:
        self._check()
        self.reported = list(conditions)

    def wait(self, timeout_seconds: float | None = None, after: int | None = None) -> bool:
        time.sleep(timeout_seconds or 0)
        return False

    def close(self, *, timeout_seconds: float = 5.0, reason: str | None = None) -> None:
        self.closed = True

    def grant(self, *numbers: int) -> None:
        for number in numbers:
            self.queue.partitions[number].grant("me")
        self.wake.set()

    def revoke(self, number: int) -> None:
        self.queue.partitions[number].state = "revoking"
        self.wake.set()

    def _check(self) -> None:
        if self.away:
            raise ServiceUnavailable("away")


class BrokenLog:
    """A log that is unavailable while `away` is set, and tells how often it was asked for ends."""

    def __init__(self, log: PostgresLog) -> None:
        self._log = log
        self.away = False
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        if self.away:
            raise LogUnavailable("away")
        self.asked += name == "bounds"
        return getattr(self._log, name)

    def close(self) -> None:
        pass


@pytest.fixture
def flow(log_url: str) -> FlowDouble:
    return FlowDouble(Queue.of(4), threading.Event(), log_url)


@pytest.fixture
def broken(log: PostgresLog, log_url: str) -> Iterator[BrokenLog]:
    # A connection of its own: that of a publisher is not woken by what it appends.
    own = PostgresLog("flights", log_url, timeout_seconds=10)
    yield BrokenLog(own)
    own.close()


@pytest.fixture
def consumption(flow: FlowDouble, log: PostgresLog, broken: BrokenLog) -> Iterator[Consumption]:
    with running(SourceOptions("flights"), flow, log, broken) as consumption:
        yield consumption


@contextmanager
def running(
    options: SourceOptions, flow: FlowDouble, log: PostgresLog, broken: BrokenLog, **more: Any
) -> Iterator[Consumption]:
    def opener(name: str, access: object) -> Log:
        return broken

    consumption = Consumption(
        options,
        cast(Flow, flow),
        QueueLog(flow, None, opener),
        Place("flights", log.bounds([]).incarnation),
        wake=flow.wake,
        cores=2,
        **more,
    )
    consumption.start()
    yield consumption
    stop(consumption)


def stop(consumption: Consumption) -> None:
    """Stop it, and wait for its probe: it may still use a connection that a fixture closes next."""
    consumption.stop()
    consumption._probe._thread.join()


def ends(offset: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    return {n: (one["from"], one["to"]) for n, one in offset["partitions"].items()}


def next_offset(
    consumption: Consumption, start: dict[str, Any], limit: int | None = None
) -> dict[str, Any]:
    """Ask like an idle query, until there is something to read."""
    found: list[dict[str, Any]] = []

    def ask() -> bool:
        found[:] = [consumption.next_offset(start, limit)]
        return found[0] != start

    until(ask)
    return found[0]


def test_it_reads_what_it_owns_and_commits_when_asked_again(
    consumption: Consumption, flow: FlowDouble, log: PostgresLog
) -> None:
    append(log, "a", "b", "c")
    append(log, "x", partition=1, first=10)
    flow.grant(0)
    first = next_offset(consumption, EMPTY, limit=2)
    assert ends(first) == {"0": ("0", "2")}
    (group,) = consumption.partitions(EMPTY, first)
    assert [one.epoch for one in group.slices] == [1]
    assert flow.queue.partitions[0].position is None
    second = next_offset(consumption, first, limit=2)
    assert ends(second) == {"0": ("2", "3")}
    until(lambda: flow.queue.partitions[0].position == "2")
    # Nothing new: the start comes back unchanged, and the rest is committed.
    assert consumption.next_offset(second, 2) is second
    until(lambda: flow.queue.partitions[0].position == "3")
    assert consumption.report()["ends"] == {"0": "3"}


def test_a_replay_with_state_waits_while_the_flow_is_bound_again(
    flow: FlowDouble, log: PostgresLog, broken: BrokenLog
) -> None:
    """The end of its lease is no handoff to another consumer."""
    append(log, "a", "b")
    replayed = Offset("flights", {0: Range(1, "0", "2")}, "me").to_json()
    flow.grant(0)
    flow.queue.partitions[0].leave("orphaned")
    with running(SourceOptions("flights"), flow, log, broken, keeps_state=True) as consumption:
        found: list[Any] = []
        replay = threading.Thread(
            target=lambda: found.extend(consumption.partitions(EMPTY, replayed)), daemon=True
        )
        replay.start()
        replay.join(0.1)
        flow.status = "binding"
        replay.join(1)
        assert replay.is_alive()
        flow.queue.partitions[0].grant("me")
        flow.status = "bound"
        replay.join(60)
    (group,) = found
    assert [(one.epoch, one.start, one.end) for one in group.slices] == [(2, "0", "2")]


def test_a_replay_with_state_says_for_which_partitions_it_waits(
    flow: FlowDouble, log: PostgresLog, broken: BrokenLog, caplog: pytest.LogCaptureFixture
) -> None:
    append(log, "a", "b")
    replayed = Offset("flights", {0: Range(1, "0", "2"), 1: Range(1, "0", "0")}, "me").to_json()
    minutes = itertools.count()
    told = {"clock": lambda: 60.0 * next(minutes), "keeps_state": True}
    with running(SourceOptions("flights"), flow, log, broken, **told) as consumption:
        replay = threading.Thread(
            target=lambda: consumption.partitions(EMPTY, replayed), daemon=True
        )
        replay.start()
        until(lambda: "waits for its partitions [0]" in caplog.text)
        flow.grant(0)
        replay.join(60)
    assert not replay.is_alive()


def test_a_replay_with_state_ends_with_its_flow(
    flow: FlowDouble, log: PostgresLog, broken: BrokenLog
) -> None:
    replayed = Offset("flights", {0: Range(1, "0", "2")}, "me").to_json()
    flow.status, flow.gone_reason = "gone", "replaced"
    with (
        running(SourceOptions("flights"), flow, log, broken, keeps_state=True) as consumption,
        pytest.raises(FlowEnded, match="the same instanceId"),
    ):
        consumption.partitions(EMPTY, replayed)


def test_while_it_waits_for_partitions_it_runs_one_micro_batch_that_reads_nothing(
    consumption: Consumption, flow: FlowDouble, log: PostgresLog
) -> None:
    append(log, "a")
    prepared = consumption.next_offset(EMPTY, None)
    assert prepared != EMPTY
    assert ends(prepared) == {}
    # A task for each core, so that each has a worker that is ready.
    assert [one.slices for one in consumption.partitions(EMPTY, prepared)] == [(), ()]
    assert consumption.next_offset(prepared, None) is prepared
    flow.grant(0)
    first = next_offset(consumption, prepared)
    assert ends(first) == {"0": ("0", "1")}
    assert "prepared" not in first
    # Only at its start: it is warm now.
    flow.queue.partitions[0].leave("graceful")
    flow.wake.set()
    assert consumption.next_offset(first, None) is first


def test_a_restarted_query_that_waits_remembers_what_it_has_done(
    consumption: Consumption, flow: FlowDouble, log: PostgresLog
) -> None:
    append(log, "a", "b", "c")
    place = log.bounds([]).incarnation
    done = Offset("flights", {0: Range(1, "0", "2")}, "me", place, prepared=1).to_json()
    prepared = consumption.next_offset(done, None)
    assert prepared != done
    assert ends(prepared) == {"0": ("0", "2")}
    assert all(one.slices == () for one in consumption.partitions(done, prepared))
    # Its instance gets the partition back before the service has heard of the last micro-batch.
    flow.queue.partitions[0].epoch = 1
    flow.queue.partitions[0].grant("me", "replaced")
    flow.wake.set()
    assert ends(next_offset(consumption, prepared)) == {"0": ("2", "3")}


def test_a_query_with_partitions_or_that_drains_has_nothing_to_prepare(
    consumption: Consumption, flow: FlowDouble, log: PostgresLog
) -> None:
    flow.draining = True
    assert consumption.next_offset(EMPTY, None) is EMPTY
    flow.draining = False
    flow.grant(0)
    assert consumption.next_offset(EMPTY, None) is EMPTY


def idle(consumption: Consumption, flow: FlowDouble, log: PostgresLog) -> dict[str, Any]:
    """The offset after which there is nothing to read, once the log is not asked any more."""
    append(log, "a")
    append(log, "x", partition=1, first=10)
    flow.grant(0, 1)
    offset = next_offset(consumption, EMPTY)
    until(lambda: consumption.next_offset(offset, None) is offset and waits(consumption))
    return offset


def waits(consumption: Consumption) -> bool:
    return consumption._planner._is_idle()


def test_an_idle_query_does_not_ask_the_log_and_is_woken(
    consumption: Consumption, flow: FlowDouble, log: PostgresLog, broken: BrokenLog
) -> None:
    offset = idle(consumption, flow, log)

    def asks_nothing() -> bool:
        asked = broken.asked
        for _ in range(1000):
            assert consumption.next_offset(offset, None) is offset
        return broken.asked == asked

    # The notice of a message that was read already may come late, once.
    until(asks_nothing)
    asked = broken.asked
    append(log, "b", first=20)
    # The log is asked once, before Spark asks.
    until(lambda: not waits(consumption))
    until(lambda: consumption._probe._given is False)
    assert broken.asked == asked + 1
    assert ends(next_offset(consumption, offset)) == {"0": ("1", "2"), "1": ("0", "1")}


@pytest.mark.parametrize("change", ["granted", "revoked", "taken over", "retiring"])
def test_an_idle_query_follows_its_flow(
    change: str, consumption: Consumption, flow: FlowDouble, log: PostgresLog, broken: BrokenLog
) -> None:
    append(log, "p", partition=2, publisher="q")
    offset = idle(consumption, flow, log)
    asked, partitions = broken.asked, flow.queue.partitions
    if change == "granted":
        flow.grant(2)
        assert ends(next_offset(consumption, offset))["2"] == ("0", "1")
    elif change == "revoked":
        flow.revoke(0)
        until(lambda: consumption.next_offset(offset, None) is offset and broken.asked > asked)
        until(lambda: [one.partition for one in flow.released] == [0])
    elif change == "taken over":
        # It comes back under another epoch, and the service knows another position.
        partitions[0].leave("forced")
        partitions[0].position = "0"
        flow.grant(0)
        assert ends(next_offset(consumption, offset))["0"] == ("0", "1")
    else:
        # That a partition has ended need not be told by the log.
        partitions[0].state = "retiring"
        until(lambda: consumption.next_offset(offset, None) is offset and broken.asked > asked + 3)
        assert not waits(consumption)


def test_an_idle_query_survives_the_end_of_its_connection(
    consumption: Consumption, flow: FlowDouble, log: PostgresLog, log_url: str
) -> None:
    """As after a failover of the log's server, which has forgotten who waits."""
    offset = idle(consumption, flow, log)
    log.close()
    with psycopg.connect(log_url, autocommit=True) as database:
        database.execute("DELETE FROM counterpoise_log.watches")
        database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'counterpoise-log' AND datname = current_database()"
        )
    append(log, "b", first=20)
    until(lambda: not waits(consumption))
    assert ends(next_offset(consumption, offset))["0"] == ("1", "2")


def test_an_idle_query_tells_that_its_log_is_away(
    consumption: Consumption, flow: FlowDouble, log: PostgresLog, broken: BrokenLog
) -> None:
    offset = idle(consumption, flow, log)
    broken.away = True
    append(log, "b", first=20)
    until(lambda: consumption.report()["lastError"] == "away")
    assert consumption.next_offset(offset, None) is offset
    broken.away = False
    assert ends(next_offset(consumption, offset))["0"] == ("1", "2")


def test_while_a_backlog_is_read_the_log_is_asked_before_spark_asks(
    consumption: Consumption, flow: FlowDouble, log: PostgresLog, broken: BrokenLog
) -> None:
    append(log, *"abcdef")
    append(log, *"uvw", partition=1, first=10)
    flow.grant(0, 1)
    first = next_offset(consumption, EMPTY, limit=4)
    assert ends(first) == {"0": ("0", "2"), "1": ("0", "2")}
    until(lambda: consumption._probe._given is False)
    # The answer is there already, so Spark gets the next micro-batch at once. The limit may have
    # grown.
    broken.away = True
    second = consumption.next_offset(first, 8)
    assert ends(second) == {"0": ("2", "5"), "1": ("2", "3")}
    broken.away = False
    assert ends(next_offset(consumption, second, limit=8))["0"] == ("5", "6")


def test_the_micro_batches_of_a_backlog_grow_although_their_ends_are_looked_up_ahead(
    flow: FlowDouble, log: PostgresLog, broken: BrokenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(log, *"abcdefghij" * 10)
    flow.grant(0)
    monkeypatch.setattr(consumption_module, "DEFAULT_MESSAGES_PER_TRIGGER", 2)
    options = SourceOptions("flights")
    start, sizes = EMPTY, []
    with running(options, flow, log, broken, clock=lambda: 0.0) as consumption:
        for _ in range(3):
            end = next_offset(consumption, start, options.max_messages_per_trigger)
            ((begin, last),) = ends(end).values()
            sizes.append(int(last) - int(begin))
            # The answer to the next question is there when Spark asks.
            until(lambda: consumption._probe._given is False)
            start = end
    # The first is not typical. What was looked up ahead with a much lower limit is not used.
    assert sizes == [2, 2, 20]


def test_a_partition_that_was_revoked_meanwhile_is_asked_about_anew(
    consumption: Consumption, flow: FlowDouble, log: PostgresLog
) -> None:
    append(log, *"abcdef")
    append(log, *"uvwxyz", partition=1, first=10)
    flow.grant(0, 1)
    first = next_offset(consumption, EMPTY, limit=4)
    until(lambda: consumption._probe._given is False)
    flow.revoke(1)
    second = next_offset(consumption, first, limit=4)
    assert ends(second)["0"] == ("2", "6")
    assert ends(second).get("1") in (None, ("0", "2"))


def test_an_end_that_was_looked_up_ahead_is_of_the_epochs_of_that_time(
    consumption: Consumption,
    flow: FlowDouble,
    log: PostgresLog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A partition retires, a resize takes it back, it grows, and retires again."""
    append(log, *"abcdefghij")
    append(log, *"xy", partition=3, first=10)
    bounds = log.bounds
    monkeypatch.setattr(log, "bounds", lambda numbers: replace(bounds(numbers), partition_count=3))
    flow.grant(0, 3)
    retiring = flow.queue.partitions[3]
    retiring.state = "retiring"
    first = next_offset(consumption, EMPTY, limit=4)
    assert ends(first) == {"0": ("0", "2"), "3": ("0", "2")}
    until(lambda: consumption._probe._given is False)
    append(log, "z", partition=3, first=12)
    # The service hears what is done only after the next micro-batch was planned.
    flow.away = True
    retiring.grant("me", "replaced")
    retiring.state = "retiring"
    second = consumption.next_offset(first, 4)
    assert ends(second)["0"] == ("2", "6")
    flow.away = False
    until(lambda: flow.queue.partitions[0].position == "2")
    assert flow.released == []
    assert ends(next_offset(consumption, second, limit=8))["3"] == ("2", "3")


@pytest.mark.parametrize(
    ("options", "limit", "end"),
    [
        (SourceOptions("flights"), DEFAULT_MESSAGES_PER_TRIGGER, "2"),
        (SourceOptions("flights"), 3, "3"),
        (SourceOptions("flights", max_messages_per_trigger=5), 5, "5"),
        (SourceOptions("flights", max_messages_per_trigger=None), None, "6"),
    ],
)
def test_the_limit_that_grows_replaces_the_default_and_no_other(
    options: SourceOptions,
    limit: int | None,
    end: str,
    flow: FlowDouble,
    log: PostgresLog,
    broken: BrokenLog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    append(log, *"abcdef")
    flow.grant(0)
    monkeypatch.setattr(consumption_module, "DEFAULT_MESSAGES_PER_TRIGGER", 2)
    with running(options, flow, log, broken) as consumption:
        assert ends(next_offset(consumption, EMPTY, limit=limit)) == {"0": ("0", end)}


def test_messages_wait_for_more_of_them_but_not_for_ever(
    flow: FlowDouble, log: PostgresLog, broken: BrokenLog
) -> None:
    """minOffsetsPerTrigger: the first micro-batch does not wait."""
    append(log, "a")
    flow.grant(0)
    now = [100.0]
    options = SourceOptions(
        "flights", min_offsets_per_trigger=3, max_trigger_delay_seconds=60, lease_seconds=60
    )

    def asks(start: dict[str, Any], times: int = 3) -> dict[str, Any]:
        """As time passes, and with an answer of the log each time."""
        for _ in range(times):
            now[0] += HELD_BACK_SECONDS
            found = query.next_offset(start, None)
            if found is not start:
                break
        return found

    with running(options, flow, log, broken, clock=lambda: now[0]) as query:
        first = next_offset(query, EMPTY)
        assert ends(first) == {"0": ("0", "1")}
        append(log, "b", "c", first=1)
        until(lambda: (asks(first), query.report()["lagTotal"])[1] == 2)
        assert asks(first) is first
        asked = broken.asked
        assert query.next_offset(first, None) is first
        assert broken.asked == asked, "within the pause the log is not asked"
        append(log, "d", first=3)
        second = first
        while second is first:
            second = asks(first)
        assert ends(second) == {"0": ("1", "4")}
        append(log, "e", first=4)
        until(lambda: (asks(second), query.report()["lagTotal"])[1] == 1)
        assert asks(second) is second
        now[0] += 60
        assert ends(next_offset(query, second)) == {"0": ("4", "5")}


def test_what_waits_for_more_messages_is_released_at_once(
    flow: FlowDouble, log: PostgresLog, broken: BrokenLog
) -> None:
    append(log, "a")
    flow.grant(0)
    options = SourceOptions("flights", min_offsets_per_trigger=3)
    with running(options, flow, log, broken) as consumption:
        first = next_offset(consumption, EMPTY)
        append(log, "b", first=1)
        until(lambda: (consumption.next_offset(first, None), consumption.report()["lagTotal"])[1])
        flow.revoke(0)
        until(lambda: flow.queue.partitions[0].owner is None)
        assert flow.queue.partitions[0].position == "1"


def test_a_partition_may_be_divided_among_tasks_and_is_one_range_of_the_plan(
    flow: FlowDouble, log: PostgresLog, broken: BrokenLog, tmp_path: Path
) -> None:
    append(log, *"abcdefgh")
    flow.grant(0, 1)
    channel = Channel(tmp_path, "one")
    options = SourceOptions("flights", min_partitions=4)
    with running(options, flow, log, broken, channel=channel) as consumption:
        end = next_offset(consumption, EMPTY)
        groups = consumption.partitions(EMPTY, end)
        document = channel.get("plan")
    found = sorted((one.start, one.end) for group in groups for one in group.slices)
    assert found == [("0", "2"), ("2", "4"), ("4", "6"), ("6", "8")]
    assert document is not None
    planned = planned_of(document)
    assert planned.read == (Slice(0, 1, "0", "8"),)
    assert planned.tasks == ((0,),) * 4
    assert planned.divides


def test_a_revoked_partition_is_released_when_its_batch_is_done(
    consumption: Consumption, flow: FlowDouble, log: PostgresLog
) -> None:
    append(log, "a", "b", "c")
    flow.grant(0, 1)
    first = next_offset(consumption, EMPTY)
    flow.revoke(0)
    flow.revoke(1)
    # No message of partition 1 is in flight, so it is released at once, without a question of
    # Spark.
    until(lambda: flow.queue.partitions[1].owner is None)
    assert flow.queue.partitions[0].owner == "me"
    append(log, "d", first=3)
    assert consumption.next_offset(first, None) is first
    until(lambda: flow.queue.partitions[0].owner is None)
    assert flow.queue.partitions[0].position == "3"
    assert [item.partition for item in flow.released] == [1, 0]


def test_while_the_service_is_away_it_goes_on_and_tells_it_afterwards(
    consumption: Consumption, flow: FlowDouble, log: PostgresLog
) -> None:
    append(log, "a")
    flow.grant(0)
    first = next_offset(consumption, EMPTY)
    flow.away = True
    assert consumption.next_offset(first, None) is first
    until(lambda: consumption.report()["lastError"] == "away")
    append(log, "b", first=1)
    second = next_offset(consumption, first)
    flow.away = False
    until(lambda: flow.queue.partitions[0].position == "1")
    consumption.next_offset(second, None)
    until(lambda: flow.queue.partitions[0].position == "2")
    until(lambda: consumption.report()["lastError"] == "")


def test_while_the_log_is_away_there_is_nothing_to_read(
    consumption: Consumption, flow: FlowDouble, log: PostgresLog, broken: BrokenLog
) -> None:
    append(log, "a")
    flow.grant(0)
    broken.away = True
    for _ in range(20):
        assert consumption.next_offset(EMPTY, None) is EMPTY
    until(lambda: consumption.report()["lastError"] == "away")
    took_seconds = []
    for _ in range(5):
        started = time.monotonic()
        consumption.next_offset(EMPTY, None)
        took_seconds.append(time.monotonic() - started)
    # It waits so at each call.
    assert min(took_seconds) < 0.2, "a log that is away must not be waited for each time"
    broken.away = False
    assert ends(next_offset(consumption, EMPTY)) == {"0": ("0", "1")}


def test_a_slice_lost_since_planning_is_skipped_and_reported(
    consumption: Consumption,
    flow: FlowDouble,
    log: PostgresLog,
    caplog: pytest.LogCaptureFixture,
) -> None:
    append(log, "a")
    flow.grant(0)
    first = next_offset(consumption, EMPTY)
    flow.queue.partitions[0].grant("other", "forced")
    with caplog.at_level(logging.WARNING, "counterpoise.spark"):
        assert consumption.partitions(EMPTY, first) == []
    assert "skipped partition 0 [0, 1) of epoch 1" in caplog.text
    assert consumption.report()["skippedSlices"] == 1
    # The same batch planned again reads the same, whatever has changed.
    flow.queue.partitions[0].grant("me", "replaced")
    assert consumption.partitions(EMPTY, first) == []


def test_while_it_binds_again_planned_slices_are_read(
    consumption: Consumption, flow: FlowDouble, log: PostgresLog
) -> None:
    append(log, "a")
    flow.grant(0)
    first = next_offset(consumption, EMPTY)
    flow.status = "binding"
    (group,) = consumption.partitions(EMPTY, first)
    assert [one.partition for one in group.slices] == [0]


def test_a_suspended_process_plans_nothing_before_it_has_renewed(
    consumption: Consumption, flow: FlowDouble, log: PostgresLog
) -> None:
    append(log, "a")
    flow.grant(0)
    flow.in_doubt = True
    assert consumption.next_offset(EMPTY, None) is EMPTY
    flow.in_doubt = False
    assert next_offset(consumption, EMPTY)


def test_stopping_commits_what_is_done_and_not_what_is_in_flight(
    consumption: Consumption, flow: FlowDouble, log: PostgresLog
) -> None:
    append(log, "a", "b")
    flow.grant(0)
    first = next_offset(consumption, EMPTY, limit=1)
    flow.away = True
    second = next_offset(consumption, first, limit=1)
    assert ends(second) == {"0": ("1", "2")}
    flow.away = False
    consumption.stop()
    assert flow.queue.partitions[0].position == "1"
    assert flow.closed


def test_a_query_that_starts_again_has_not_done_what_spark_asks_it_about_first(
    consumption: Consumption, flow: FlowDouble, log: PostgresLog
) -> None:
    """Spark first asks for the micro-batch from the end to the end, then for that to the end."""
    append(log, "a", "b")
    flow.grant(0)
    planned = Offset("flights", {0: Range(1, "0", "2")}, "me").to_json()
    assert consumption.partitions(planned, planned) == []
    consumption.stop()
    assert flow.queue.partitions[0].position is None


def test_a_draining_flow_hands_over_when_it_stops(
    consumption: Consumption, flow: FlowDouble, log: PostgresLog
) -> None:
    append(log, "a")
    flow.grant(0)
    first = next_offset(consumption, EMPTY)
    flow.draining = flow.queue.draining = True
    consumption.next_offset(first, None)
    consumption.stop()
    assert [item.position for item in flow.released] == ["1"]


def test_a_flow_drained_from_outside_finishes_lets_go_and_ends_the_query(
    consumption: Consumption, flow: FlowDouble, log: PostgresLog
) -> None:
    append(log, "a", "b")
    append(log, "x", partition=1)
    flow.grant(0)
    first = next_offset(consumption, EMPTY, limit=1)
    flow.grant(1)
    flow.draining = flow.queue.draining = True  # an administrator's doing
    flow.wake.set()
    # What is not in flight is released at once, the micro-batch is waited for.
    until(lambda: flow.queue.partitions[1].owner is None)
    assert flow.queue.partitions[0].owner == "me"
    assert consumption.next_offset(first, None) is first
    until(lambda: flow.closed)
    assert flow.queue.partitions[0].position == "1"
    assert flow.queue.partitions[0].let_go == "graceful"
    with pytest.raises(FlowEnded, match="an administrator has drained this consumer"):
        consumption.next_offset(first, None)


def test_a_driver_that_is_told_of_a_drain_has_time_to_stop_the_query(
    flow: FlowDouble, log: PostgresLog, broken: BrokenLog, tmp_path: Path
) -> None:
    append(log, "a")
    channel = Channel(tmp_path, "me")
    later = [0.0]
    told = {"channel": channel, "clock": lambda: time.monotonic() + later[0]}
    with running(SourceOptions("flights"), flow, log, broken, **told) as consumption:
        flow.grant(0)
        first = next_offset(consumption, EMPTY)
        flow.draining = flow.queue.draining = True
        flow.wake.set()
        assert consumption.next_offset(first, None) is first
        until(lambda: channel.stamp("left") is not None)
        assert consumption.next_offset(first, None) is first
        later[0] = DRIVER_SECONDS + 1.0
        with pytest.raises(FlowEnded, match="an administrator has drained this consumer"):
            # The driver is told a moment before its time begins.
            until(lambda: consumption.next_offset(first, None) is not first)


def test_a_query_that_ends_by_itself_does_not_take_a_drain_for_its_end(
    consumption: Consumption, flow: FlowDouble, log: PostgresLog
) -> None:
    append(log, "a", "b")
    flow.grant(0)
    consumption.available_now(lambda numbers: log.bounds(numbers).ends)
    first = next_offset(consumption, EMPTY, limit=1)
    flow.draining = flow.queue.draining = True
    flow.wake.set()

    def is_ended() -> bool:
        try:
            assert consumption.next_offset(first, None) is not first
        except FlowEnded:
            return True
        return False

    until(is_ended)


def test_a_driver_that_drains_too_ends_the_query_itself(
    consumption: Consumption, flow: FlowDouble, log: PostgresLog
) -> None:
    append(log, "a")
    flow.grant(0)
    first = next_offset(consumption, EMPTY)
    flow.draining = flow.queue.draining = True
    flow.wake.set()
    until(lambda: consumption.next_offset(first, None) is first and flow.closed is False)
    consumption.leave(30)
    until(lambda: flow.closed)
    until(lambda: consumption.status().status == "left")
    assert consumption.next_offset(first, None) is first


def test_the_service_is_told_no_longer_time_than_it_takes() -> None:
    class Leaver:
        gone = threading.Event()

        def take_nothing_new(self) -> None:
            pass

        def left(self) -> None:
            self.gone.set()

    flow, leaver = FlowDouble(Queue.of(1), threading.Event(), ""), Leaver()
    Leaving(leaver, cast(Flow, flow), lambda: True, math.inf).start()
    until(leaver.gone.is_set)
    assert flow.drained_within == 86_400


@pytest.mark.parametrize(
    ("reason", "said"), [("replaced", "instanceId"), ("queue_not_found", "deleted")]
)
def test_a_flow_that_is_over_ends_the_query(
    consumption: Consumption, flow: FlowDouble, reason: str, said: str
) -> None:
    flow.status, flow.gone_reason = "gone", reason
    with pytest.raises(FlowEnded, match=said):
        consumption.next_offset(EMPTY, None)
