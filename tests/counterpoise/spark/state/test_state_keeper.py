"""The background thread of states: a failure with one partition does not delay others."""

from __future__ import annotations

import functools
import pickle
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pytest

from counterpoise.logs.builtin.log import PostgresLog
from counterpoise.spark import Snapshots
from counterpoise.spark.channel.channel import Channel, driver_home, make_home
from counterpoise.spark.errors import Unsupported
from counterpoise.spark.options import read_options
from counterpoise.spark.state.handler import StateKeeper
from counterpoise.spark.state.states import States
from tests.counterpoise.spark.state.test_states import TEXTS, Letters
from tests.log_support import append, log, log_url, until

__all__ = ["log", "log_url"]

OPTIONS = {"queue": "q", "instanceId": "tending", "warmup": "true", "warmupFrom": "snapshot"}


class Brittle(Letters):
    """Cannot apply, or dump, messages of these partitions."""

    def __init__(self) -> None:
        super().__init__()
        self.cannot_apply: set[int] = set()
        self.cannot_dump: set[str] = set()
        self.dumped = 0

    def apply(self, state: list[str], rows: pa.Table) -> None:
        if rows["partition"][0].as_py() in self.cannot_apply:
            raise RuntimeError("the user's apply")
        super().apply(state, rows)

    def dump(self, state: list[str], file: BinaryIO) -> None:
        self.dumped += 1
        if state[0] in self.cannot_dump:
            raise RuntimeError("the user's dump")
        pickle.dump(state, file)


def reach(states: States[Any], log: PostgresLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the states this log, without a service."""
    monkeypatch.setattr(states, "_queue_id", "queue-1")
    monkeypatch.setattr(states, "_log", lambda: log)


@pytest.fixture
def how() -> Brittle:
    return Brittle()


@pytest.fixture
def snapshots(tmp_path: Path) -> Snapshots:
    return Snapshots(tmp_path)


@pytest.fixture
def states(
    how: Brittle, snapshots: Snapshots, log: PostgresLog, monkeypatch: pytest.MonkeyPatch
) -> Iterator[States[list[str]]]:
    states = States(read_options(OPTIONS), how, snapshots, "replay")
    reach(states, log, monkeypatch)
    yield states
    states.close()


@pytest.fixture
def channel() -> Iterator[Channel]:
    channel = Channel(driver_home(), "tending")
    channel.clear()
    yield channel
    channel.clear()


@pytest.fixture
def tending(states: States[list[str]], channel: Channel) -> StateKeeper[list[str]]:
    """Not started: the tests call it, one step at a time."""
    tending = StateKeeper(read_options(OPTIONS), states, publish_seconds=3600.0)
    tending.channel = channel
    return tending


def one(state: str, position: str, epoch: int = 1) -> dict[str, Any]:
    return {"epoch": epoch, "state": state, "position": position, "handed_over": "graceful"}


def view(**partitions: dict[str, Any]) -> dict[str, Any]:
    return {
        "status": "bound",
        "partitions": {number[1:]: said for number, said in partitions.items()},
    }


def test_a_partition_whose_history_cannot_be_applied_holds_up_no_other(
    tending: StateKeeper[list[str]], how: Brittle, log: PostgresLog, channel: Channel
) -> None:
    for partition in (0, 1):
        append(log, *TEXTS, partition=partition, publisher=f"p{partition}")
    how.cannot_apply = {0}
    coming = view(p0=one("warming", "3"), p1=one("warming", "3"))
    tending.follow(coming)
    assert channel.get("ready") == {"partitions": {"1": {"epoch": 1}}}

    how.cannot_apply = set()

    def healed() -> bool:
        tending.follow(coming)
        ready: Any = channel.get("ready")
        return sorted(ready["partitions"]) == ["0", "1"]

    until(healed)


def test_a_state_that_cannot_be_dumped_holds_up_no_other(
    tending: StateKeeper[list[str]],
    states: States[list[str]],
    how: Brittle,
    snapshots: Snapshots,
    log: PostgresLog,
) -> None:
    append(log, *TEXTS, partition=0, publisher="p0")
    append(log, *reversed(TEXTS), partition=1, publisher="p1")
    for partition in (0, 1):
        cell = states.cell(partition)
        states.bring_to(cell, "3")
        cell.epoch = 1
    how.cannot_dump = {TEXTS[0]}
    tending.follow(view(p0=one("revoking", "3"), p1=one("revoking", "3")))
    incarnation = log.bounds([]).incarnation
    assert not list(snapshots.found("queue-1", incarnation, 0))
    assert [found.position for found in snapshots.found("queue-1", incarnation, 1)] == ["3"]

    for _ in range(3):  # at once again: the failed one pauses, the other has nothing new
        tending.follow(view(p0=one("revoking", "3"), p1=one("revoking", "3")))
    assert how.dumped == 2

    states.let_go(states.cell(0))
    assert [cell.partition for cell in states.all()] == [1]


def test_a_query_that_begins_again_as_another_instance_is_followed(
    states: States[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has another checkpoint. While it only warms up, no micro-batch leads to it."""
    homes = functools.cache(make_home)
    monkeypatch.setattr("counterpoise.spark.channel.channel.driver_home", homes)
    queue = {**view(p3=one("warming", "0")), "queue": "q"}
    keeper = StateKeeper(read_options({"queue": "q"}), states, 60.0)
    former, present = (Channel(homes(), name) for name in ("former", "present"))
    keeper.channel = former
    former.put("view", {**queue, "instance": "former"})
    assert keeper._view() == former.get("view")
    former.drop("view")
    present.put("view", {**queue, "instance": "present"})
    assert keeper._view() == present.get("view")


class HeldLock:
    """The lock of a cell that a micro-batch holds. The micro-batch ends as the keeper gets it."""

    def __init__(self, ends: Callable[[], None]) -> None:
        self._ends: Callable[[], None] | None = ends

    def __enter__(self) -> None:
        ends, self._ends = self._ends, None
        if ends is not None:
            ends()

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("state", ["owned", "warming"])
def test_a_state_that_a_micro_batch_has_brought_past_the_view_stays(
    tending: StateKeeper[list[str]],
    states: States[list[str]],
    log: PostgresLog,
    channel: Channel,
    monkeypatch: pytest.MonkeyPatch,
    state: str,
) -> None:
    append(log, *TEXTS)
    cell = states.cell(0)
    states.bring_to(cell, "10")
    if state == "owned":
        cell.epoch, cell.clean, cell.published_at = 2, False, time.monotonic()

    def ends() -> None:
        assert cell.state is not None
        cell.state.extend(TEXTS[10:15])
        cell.epoch, cell.position, cell.clean = 2, "15", True

    monkeypatch.setattr(cell, "lock", HeldLock(ends))
    tending.follow(view(p0=one(state, "10")))
    assert (cell.position, cell.state) == ("15", TEXTS[:15])
    assert channel.get("ready") == {"partitions": {}}


def test_nothing_is_published_of_a_log_that_was_never_reached(
    how: Brittle, snapshots: Snapshots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A micro-batch that did not reach the log has made a cell without a state."""
    states = States(read_options(OPTIONS), how, snapshots, "replay")
    monkeypatch.setattr(states, "_queue_id", "queue-1")
    states.cell(0).epoch = 1
    states.close()
    assert states._client._http.is_closed
    assert not list(tmp_path.iterdir())


def test_it_makes_no_directory_before_a_session_is_registered(
    states: States[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a query whose source does not know this driver would fail with another reason."""
    homes = functools.cache(make_home)
    monkeypatch.setattr("counterpoise.spark.channel.channel.driver_home", homes)
    keeper = StateKeeper(read_options({"queue": "q"}), states, 60.0)
    with pytest.raises(Unsupported, match="register"):
        keeper._find_channel()
    assert not homes.cache_info().currsize
