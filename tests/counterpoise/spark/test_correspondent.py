"""A consumption that gets its driver's documents: done batches, and the order to leave.

The flow is a double.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from counterpoise.errors import Forbidden, ServiceUnavailable
from counterpoise.flow import Flow
from counterpoise.flow.view import Owned
from counterpoise.logs.builtin.log import PostgresLog
from counterpoise.spark.channel.channel import Channel
from counterpoise.spark.errors import FlowEnded
from counterpoise.spark.offsets import Place
from counterpoise.spark.options import SourceOptions
from counterpoise.spark.queue_log import QueueLog
from counterpoise.spark.source.query import Consumption, QueueState
from tests.counterpoise.spark.doubles import Queue
from tests.counterpoise.spark.source.test_query import EMPTY, FlowDouble, next_offset
from tests.log_support import append, log, log_url, until

__all__ = ["log", "log_url"]


PLAIN = SourceOptions("flights")


class Talk:
    """A consumption and the driver's end of its channel."""

    def __init__(
        self, log: PostgresLog, url: str, home: Path, options: SourceOptions = PLAIN
    ) -> None:
        self.flow = FlowDouble(Queue.of(4), threading.Event(), url)
        self.driver = Channel(home, "me")
        self.alone = True
        self.nobody_else: Callable[[], bool] = self._is_alone
        self.consumption = Consumption(
            options,
            cast(Flow, self.flow),
            QueueLog(self.flow, url),
            Place("flights", log.bounds([]).incarnation),
            wake=self.flow.wake,
            cores=2,
            channel=Channel(home, "me"),
            queue=QueueState(nobody_else=lambda: self.nobody_else()),
        )
        self.consumption.start()

    def _is_alone(self) -> bool:
        self.flow._check()
        return self.alone

    def done(self, end: dict[str, Any], ended: bool = False) -> None:
        self.driver.put("done", {"offset": end, "batch": 0, "ended": ended})

    def view(self) -> dict[str, Any]:
        return self.driver.get("view") or {"partitions": {}, "status": None}

    def position(self, number: int = 0) -> str | None:
        return self.flow.queue.partitions[number].position

    def owner(self, number: int = 0) -> str | None:
        return self.flow.queue.partitions[number].owner


@pytest.fixture
def talk(log: PostgresLog, log_url: str, tmp_path: Path) -> Iterator[Talk]:
    talk = Talk(log, log_url, tmp_path)
    yield talk
    talk.consumption.stop()


@pytest.fixture
def warming_talk(log: PostgresLog, log_url: str, tmp_path: Path) -> Iterator[Talk]:
    talk = Talk(log, log_url, tmp_path, replace(PLAIN, warmup=True))
    yield talk
    talk.consumption.stop()


def test_it_says_what_it_holds_as_it_changes(talk: Talk, log: PostgresLog) -> None:
    append(log, "a", "b")
    talk.consumption.next_offset(EMPTY, None)
    talk.flow.grant(0, 1)
    until(lambda: len(talk.view()["partitions"]) == 2)
    talk.flow.revoke(1)
    until(lambda: talk.view()["partitions"].keys() == {"0"})
    next_offset(talk.consumption, EMPTY)
    until(lambda: talk.view()["inFlight"] == [0])
    view = talk.view()
    assert (view["queue"], view["instance"]) == ("flights", "me")
    assert view["partitions"]["0"]["state"] == "owned"
    until(lambda: talk.view().get("report", {}).get("handoffsGraceful") == 1)
    talk.consumption.stop()
    assert talk.driver.get("view") is None, "nothing is said of a query that is over"


def test_rows_that_the_watermark_drops_after_a_handoff_are_a_condition(
    talk: Talk, log: PostgresLog
) -> None:
    append(log, "a")
    talk.flow.grant(0)
    end = next_offset(talk.consumption, EMPTY)
    dropped = {"offset": end, "batch": 0, "ended": False, "dropped": 2}
    talk.driver.put("done", dropped)
    until(lambda: talk.position() == end["partitions"]["0"]["to"])
    assert talk.flow.reported == []
    talk.consumption._shared.handoffs.granted(Owned(1, 2, "owned", "0", "graceful"))
    talk.driver.put("done", {**dropped, "dropped": 7})
    until(lambda: talk.view().get("report", {}).get("rowsDroppedAtLeast") == 5)
    talk.flow.wake.set()
    until(lambda: [one.kind for one in talk.flow.reported] == ["rows_dropped"])


def test_batches_in_the_commit_log_are_committed_and_released_before_spark_asks(
    talk: Talk, log: PostgresLog
) -> None:
    append(log, "a", "b", "c")
    talk.flow.grant(0)
    first = next_offset(talk.consumption, EMPTY, limit=1)
    talk.done(first)
    until(lambda: talk.position() == "1")
    second = next_offset(talk.consumption, first, limit=1)
    talk.flow.revoke(0)
    # A late document, or one that is not about the last planned micro-batch, proves nothing.
    assert not talk.consumption.batch_done(first)
    assert not talk.consumption.batch_done({**second, "queue": "other"})
    assert talk.owner() == "me"
    talk.done(second)
    until(lambda: talk.owner() is None)
    assert talk.position() == "2"
    assert not talk.consumption.batch_done(second), "once is enough"


def test_a_query_that_is_stopped_waits_to_hear_what_is_done(talk: Talk, log: PostgresLog) -> None:
    append(log, "a")
    talk.flow.grant(0)
    first = next_offset(talk.consumption, EMPTY)
    stopping = threading.Thread(target=talk.consumption.stop)
    stopping.start()
    talk.done(first, ended=True)
    stopping.join(240)
    assert talk.flow.closed
    assert talk.position() == "1"


def test_a_query_that_is_stopped_amid_a_micro_batch_commits_nothing_of_it(
    talk: Talk, log: PostgresLog
) -> None:
    append(log, "a", "b")
    talk.flow.grant(0)
    first = next_offset(talk.consumption, EMPTY, limit=1)
    talk.done(first)
    until(lambda: talk.position() == "1")
    next_offset(talk.consumption, first, limit=1)
    talk.done(first, ended=True)
    talk.consumption.stop()
    assert talk.position() == "1"


def test_told_to_leave_it_finishes_hands_over_and_unbinds(talk: Talk, log: PostgresLog) -> None:
    append(log, "a", "b")
    append(log, "x", partition=1, first=10)
    talk.flow.grant(0, 2)
    first = next_offset(talk.consumption, EMPTY, limit=1)
    talk.driver.put("drain", {"timeout_seconds": 60})
    until(lambda: talk.owner(2) is None)
    assert talk.owner(0) == "me"
    assert not talk.flow.closed
    talk.done(first)
    until(lambda: talk.view()["status"] == "left")
    assert talk.flow.closed
    assert (talk.owner(0), talk.position(0)) == (None, "1")
    # The flow is over, and the query finds nothing to read: it does not fail.
    talk.flow.status, talk.flow.gone_reason = "gone", "unbound"
    assert talk.consumption.next_offset(first, None) is first


def test_when_spark_has_stopped_the_flow_leaves_with_what_is_done(
    talk: Talk, log: PostgresLog
) -> None:
    append(log, "a", "b")
    talk.flow.grant(0)
    first = next_offset(talk.consumption, EMPTY, limit=1)
    second = next_offset(talk.consumption, first, limit=1)
    talk.driver.put("stopped", {})
    until(lambda: talk.flow.closed)
    assert talk.position(0) == "1"
    # Spark goes on asking: a query without messages has not noticed.
    with pytest.raises(FlowEnded, match="Spark's context has stopped"):
        talk.consumption.next_offset(second, None)
    talk.consumption.stop()


def test_while_others_are_there_it_works_until_they_take_over(talk: Talk, log: PostgresLog) -> None:
    talk.alone = False
    append(log, "a", "b")
    talk.flow.grant(0, 1)
    talk.driver.put("drain", {"timeout_seconds": 60})
    until(lambda: talk.flow.draining)
    first = next_offset(talk.consumption, EMPTY, limit=1)
    talk.flow.revoke(1)
    until(lambda: talk.owner(1) is None)
    assert next_offset(talk.consumption, first, limit=1) != first, "partition 0 is still worked"
    # The last call: half of the time is over, and no other flow has taken it.
    leaving = talk.consumption._leaving
    assert leaving is not None
    leaving._last_call_at = 0.0
    until(talk.consumption._shared.is_closing)
    second = talk.consumption._shared.planned
    assert second is not None
    assert talk.owner(0) == "me"
    talk.done(second)
    until(lambda: talk.view()["status"] == "left")
    assert talk.position(0) == "2"


def test_a_service_that_is_away_is_told_of_the_drain_again(talk: Talk, log: PostgresLog) -> None:
    talk.flow.grant(0)
    talk.consumption.next_offset(EMPTY, None)
    talk.flow.away = True
    talk.driver.put("drain", {"timeout_seconds": 60})
    until(lambda: talk.consumption._leaving is not None)
    assert not talk.flow.draining
    with pytest.raises(ServiceUnavailable):
        talk.nobody_else()
    talk.flow.away = False
    until(lambda: talk.view()["status"] == "left")
    assert talk.owner(0) is None


def test_without_the_right_to_list_flows_leaving_takes_half_of_the_time(
    talk: Talk, log: PostgresLog
) -> None:
    def refused() -> bool:
        raise Forbidden("this token may not read queues")

    talk.nobody_else = refused
    talk.flow.grant(0)
    talk.consumption.next_offset(EMPTY, None)
    began = time.monotonic()
    talk.driver.put("drain", {"timeout_seconds": 1.0})
    until(lambda: talk.view()["status"] == "left")
    assert time.monotonic() - began >= 0.5
    assert talk.owner(0) is None


def _replaced_by_a_file(channel: Channel) -> bool:
    """Has the effect of a full disk; the source may be about to write."""
    channel.clear()
    try:
        channel.directory.write_text("")
    except OSError:
        return False
    return channel.directory.is_file()


def test_a_channel_that_cannot_be_used_costs_the_query_nothing(
    talk: Talk, log: PostgresLog, caplog: pytest.LogCaptureFixture
) -> None:
    append(log, "a")
    talk.flow.grant(0)
    until(lambda: _replaced_by_a_file(talk.driver))
    first = next_offset(talk.consumption, EMPTY)
    until(lambda: "the channel to the driver fails" in caplog.text)
    talk.consumption.next_offset(first, None)
    until(lambda: talk.position() == "1")


def test_each_way_in_which_the_channel_fails_is_logged_once(
    warming_talk: Talk, caplog: pytest.LogCaptureFixture
) -> None:
    talk = warming_talk
    talk.driver.put("ready", {"partitions": "none"})
    until(lambda: "'str' object has no attribute 'items'" in caplog.text)
    talk.driver.put("ready", {"partitions": {"0": {}}})
    until(lambda: "KeyError: 'epoch'" in caplog.text)
    talk.driver.put("ready", {"partitions": {"1": {}}})
    talk.driver.put("done", {"offset": {"partitions": 0}, "ended": True})
    talk.driver.put("drain", {"timeout_seconds": "soon"})
    until(lambda: "could not convert string to float" in caplog.text)
    assert caplog.text.count("KeyError: 'epoch'") == 1
