"""The driver's part while its queries leave. Queries are doubles; the channel is real."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from counterpoise.spark.channel.channel import Channel
from counterpoise.spark.driver import draining, driver
from counterpoise.spark.driver.draining import DrainTimedOut, drain, drain_on_sigterm
from counterpoise.spark.errors import Unsupported
from tests.log_support import until


class Query:
    """A query of one source, with the source's end of the channel."""

    def __init__(self, home: Path, name: str) -> None:
        self.channel = Channel(home, name)
        self.channels: list[Channel] | None = [self.channel]
        self.isActive = True
        self.failure: Exception | None = None
        self.stopped = threading.Event()
        self.hears = True
        self.say("bound", {"3": {"state": "owned"}, "4": {"state": "revoking"}})

    def say(self, status: str, partitions: dict[str, Any]) -> None:
        view = {"queue": "flights", "status": status, "partitions": partitions, "inFlight": [3]}
        self.channel.put("view", {**view, "report": {"lastError": ""}})

    name, id = "flights", "1"

    def stop(self) -> None:
        self.isActive = False
        self.stopped.set()

    def exception(self) -> Exception | None:
        return self.failure


def leaves(query: Query, after: Callable[[], object] = lambda: None) -> threading.Thread:
    """Its source: leaves when it gets the order."""

    def run() -> None:
        until(lambda: query.channel.get("drain") is not None)
        after()
        query.say("left", {})

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


@pytest.fixture
def query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Query:
    monkeypatch.setattr(draining, "channels_of", lambda query: query.channels)
    return Query(tmp_path, "one")


@pytest.fixture
def signalled() -> Iterator[signal.Signals]:
    before = signal.getsignal(signal.SIGUSR1)
    wakeup = signal.set_wakeup_fd(-1)
    yield signal.SIGUSR1
    signal.signal(signal.SIGUSR1, before)
    signal.set_wakeup_fd(wakeup)


def get_signals(*signals: signal.Signals) -> None:
    """A program that gets signals, and would run for long."""
    for one in signals:
        signal.raise_signal(one)
    threading.Event().wait(240)


def given(*queries: Query) -> Any:
    return list(queries)


def test_all_queries_are_told_at_once_and_stopped_when_they_have_left(
    query: Query, tmp_path: Path
) -> None:
    other = Query(tmp_path, "two")
    second = leaves(other)
    leaves(query, after=second.join)  # it would never leave if the orders came one after the other
    drain(given(query, other), 600)
    assert query.stopped.is_set()
    assert other.stopped.is_set()
    assert 300 < (query.channel.get("drain") or {})["timeout_seconds"] <= 600


def test_a_drain_reports_partitions_still_held_and_stops_the_query(query: Query) -> None:
    with pytest.raises(DrainTimedOut) as told:
        drain(given(query), 0.1)
    assert told.value.held == {"flights": {3: "owned", 4: "revoking"}}
    assert "partition 3 of 'flights' (in a micro-batch); partition 4" in str(told.value)
    assert query.stopped.is_set()


def test_a_query_that_begins_just_now_is_waited_for(query: Query) -> None:
    channels, query.channels = query.channels, None

    def begin() -> None:
        query.channels = channels

    threading.Timer(0.1, begin).start()
    leaves(query)
    drain(given(query), 600)
    query.isActive = True
    query.channels = None
    with pytest.raises(DrainTimedOut, match="had not begun to read"):
        drain(given(query), 0.1)


def test_a_query_of_others_is_refused_and_one_that_failed_says_so(query: Query) -> None:
    query.channels = []
    with pytest.raises(Unsupported, match=r"query\.stop"):
        drain(given(query), 600)
    query.isActive, query.failure = False, RuntimeError("the sink failed")
    with pytest.raises(RuntimeError, match="the sink failed"):
        drain(given(query), 600)
    query.failure = None
    drain(given(query), 600)


@pytest.mark.parametrize("failed_at", [0, 1])
def test_one_that_has_failed_before_does_not_keep_the_others_from_leaving(
    query: Query, tmp_path: Path, failed_at: int
) -> None:
    failed = Query(tmp_path, "failed")
    failed.isActive, failed.failure = False, RuntimeError("an hour ago")
    both = [query]
    both.insert(failed_at, failed)
    stopped_early: list[bool] = []
    leaves(query, after=lambda: stopped_early.append(query.stopped.wait(0.2)))
    with pytest.raises(RuntimeError, match="an hour ago"):
        drain(given(*both), 600)
    assert stopped_early == [False]
    assert query.stopped.is_set()


@pytest.mark.parametrize("other_at", [0, 1])
def test_one_of_others_is_refused_before_any_is_told_or_stopped(
    query: Query, tmp_path: Path, other_at: int
) -> None:
    other = Query(tmp_path, "other")
    other.channels = []
    both = [query]
    both.insert(other_at, other)
    with pytest.raises(Unsupported, match=r"query\.stop"):
        drain(given(*both), 600)
    assert query.channel.get("drain") is None
    assert not query.stopped.is_set()
    assert not other.stopped.is_set()


def test_one_that_turns_out_to_be_of_others_does_not_keep_the_others_from_leaving(
    query: Query, tmp_path: Path
) -> None:
    other = Query(tmp_path, "other")
    other.channels = None

    def turn_out() -> None:
        other.channels = []
        assert not query.stopped.wait(0.2)

    thread = leaves(query, after=turn_out)
    with pytest.raises(Unsupported):
        drain(given(other, query), 600)
    thread.join()
    assert (query.channel.get("view") or {})["status"] == "left"


def test_a_sink_that_never_returns_does_not_hold_the_program(
    query: Query, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(draining, "_STOP_SECONDS", 0.05)
    never = threading.Event()
    monkeypatch.setattr(query, "stop", never.wait)
    draining.stop_all(given(query), 0.05)
    assert "its sink has not returned" in caplog.text
    never.set()


def test_a_signal_drains_and_ends_the_program_with_0(
    query: Query, signalled: signal.Signals
) -> None:
    plain = Query(query.channel.directory, "another source's")
    plain.channels = []
    drain_on_sigterm(given(query, plain), 600, [signalled], end_seconds=0.05)
    leaves(query)
    with pytest.raises(SystemExit) as end:
        get_signals(signalled)
    assert end.value.code == 0
    assert query.stopped.is_set()
    assert plain.stopped.is_set()


@pytest.mark.parametrize("failed_at", [0, 1])
def test_a_signal_drains_what_runs_beside_one_that_has_failed(
    query: Query, signalled: signal.Signals, failed_at: int
) -> None:
    failed = Query(query.channel.directory, "failed")
    failed.isActive, failed.failure = False, RuntimeError("an hour ago")
    both = [query]
    both.insert(failed_at, failed)
    stopped_early: list[bool] = []
    leaves(query, after=lambda: stopped_early.append(query.stopped.wait(0.2)))
    drain_on_sigterm(given(*both), 600, [signalled], end_seconds=0.05)
    with pytest.raises(SystemExit) as end:
        get_signals(signalled)
    assert end.value.code == 1
    assert stopped_early == [False]


def test_a_signal_that_another_thread_gets_drains_as_well(
    query: Query, signalled: signal.Signals
) -> None:
    """As when the process was stopped; the main thread waits for the query meanwhile."""
    ended = threading.Event()
    other = threading.Thread(target=ended.wait)
    other.start()

    def wait_for_the_query() -> None:
        assert other.ident is not None
        signal.pthread_kill(other.ident, signalled)
        assert query.stopped.wait(240)
        threading.Event().wait(240)

    drain_on_sigterm(given(query), 600, [signalled], end_seconds=0)
    leaves(query)
    with pytest.raises(SystemExit) as end:
        wait_for_the_query()
    ended.set()
    assert end.value.code == 0


def test_a_signal_whose_drain_times_out_ends_it_with_1(
    query: Query, signalled: signal.Signals
) -> None:
    drain_on_sigterm(given(query), 0.05, [signalled])
    with pytest.raises(SystemExit) as end:
        get_signals(signalled)
    assert end.value.code == 1
    assert query.stopped.wait(240)


def test_a_main_thread_that_has_just_begun_to_wait_is_told_again(
    query: Query, signalled: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first signal came between its last look for signals and its wait."""
    send = draining._signal_main_thread
    sent: list[int] = []

    def lose_the_first(number: int) -> None:
        sent.append(number)
        if len(sent) > 1:
            send(number)

    monkeypatch.setattr(draining, "_signal_main_thread", lose_the_first)
    drain_on_sigterm(given(query), 0.05, [signalled])
    with pytest.raises(SystemExit):
        get_signals(signalled)
    assert len(sent) >= 2


def test_a_second_signal_ends_it_at_once(query: Query, signalled: signal.Signals) -> None:
    drain_on_sigterm(given(query), 600, [signalled])
    with pytest.raises(SystemExit) as end:
        get_signals(signalled, signalled)
    assert end.value.code == 128 + signalled
    assert query.stopped.wait(240)


# ------------------------------------------------------------------ drained by an administrator


def test_a_query_that_could_not_be_stopped_is_stopped_at_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one ended at that moment, and Spark said so by an error."""
    monkeypatch.setattr(driver, "channels_of", lambda query: query.channels)
    one, two = queries = Query(tmp_path, "one"), Query(tmp_path, "two")
    for query in queries:
        query.channel.put("left", {})

    def fails() -> None:
        one.stop = lambda: None  # type: ignore[method-assign]
        raise OSError("the JVM does not answer")

    one.stop = fails  # type: ignore[method-assign]
    spark: Any = SimpleNamespace(streams=SimpleNamespace(active=queries))
    departures = driver.Departures(spark, tmp_path)
    with pytest.raises(OSError, match="does not answer"):
        departures.look()
    departures.look()
    assert two.stopped.is_set()
