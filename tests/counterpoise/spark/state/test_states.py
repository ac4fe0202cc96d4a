"""The state of a partition is brought exactly to a position, on the real log."""

from __future__ import annotations

import logging
import pickle
import time
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pytest

from counterpoise.logs.builtin.log import PostgresLog
from counterpoise.spark.state import states
from counterpoise.spark.state.snapshots import Snapshot, Snapshots
from counterpoise.spark.state.states import Cell, PartitionState, Restorer
from tests.log_support import append, log, log_url

__all__ = ["log", "log_url"]

TEXTS = [chr(ord("a") + n) for n in range(20)]


class Letters(PartitionState[list[str]]):
    """The state is the list of all messages, so that any error shows."""

    def __init__(self) -> None:
        self.loaded = 0
        self.fails = False
        self.applied: list[int] = []

    def empty(self, partition: int) -> list[str]:
        return []

    def apply(self, state: list[str], rows: pa.Table) -> None:
        if self.fails:
            state.append("half")
            raise RuntimeError("apply")
        self.applied.append(rows.num_rows)
        state.extend(value.decode() for value in rows["value"].to_pylist())

    def dump(self, state: list[str], file: BinaryIO) -> None:
        pickle.dump(state, file)

    def load(self, file: BinaryIO) -> list[str]:
        self.loaded += 1
        state: list[str] = pickle.load(file)
        return state


@pytest.fixture
def how() -> Letters:
    return Letters()


@pytest.fixture
def snapshots(tmp_path: Path) -> Snapshots:
    return Snapshots(tmp_path)


@pytest.fixture
def restorer(log: PostgresLog, how: Letters, snapshots: Snapshots) -> Restorer[list[str]]:
    append(log, *TEXTS)
    return Restorer(how, snapshots, "queue-1", lambda: log)


@pytest.fixture
def incarnation(log: PostgresLog) -> str:
    return log.bounds([]).incarnation


def at(restorer: Restorer[list[str]], position: str) -> Cell[list[str]]:
    cell: Cell[list[str]] = Cell(0)
    restorer.bring_to(cell, position)
    return cell


def test_without_snapshots_it_is_built_from_the_log(
    restorer: Restorer[list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "counterpoise.spark"):
        cell = at(restorer, "7")
    assert (cell.state, cell.position) == (TEXTS[:7], "7")
    assert "no snapshot for partition 0 at 7" in caplog.text
    restorer.bring_to(cell, "12")
    assert cell.state == TEXTS[:12]


def test_large_messages_are_read_few_at_a_time(
    restorer: Restorer[list[str]], how: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them at once may not fit into the driver's memory."""
    monkeypatch.setattr(states, "PORTION_BYTES", 3)
    assert at(restorer, "7").state == TEXTS[:7]
    assert how.applied == [3, 3, 1]


def test_or_begins_empty_where_it_is(
    log: PostgresLog, how: Letters, snapshots: Snapshots, restorer: Restorer[list[str]]
) -> None:
    cell = at(Restorer(how, snapshots, "queue-1", lambda: log, "empty"), "7")
    assert (cell.state, cell.position) == ([], "7")


def test_from_the_newest_snapshot_that_is_not_ahead(
    restorer: Restorer[list[str]], incarnation: str, how: Letters
) -> None:
    for position in ("5", "9", "13"):
        assert restorer.publish(at(restorer, position), 1)
    for target, newest in (("12", "9"), ("13", "13")):
        how.loaded = 0
        cell = at(restorer, target)
        assert (cell.state, how.loaded) == (TEXTS[: int(target)], 1)
        assert cell.published == newest


def test_a_loaded_state_is_not_published_at_once(
    restorer: Restorer[list[str]], incarnation: str
) -> None:
    published = at(restorer, "5")
    assert published.published_at == 0.0  # built from the log, so no snapshot exists yet
    restorer.publish(published, 1)
    began = time.monotonic()
    assert at(restorer, "9").published_at >= began


def test_a_state_that_is_ahead_is_not_used(
    restorer: Restorer[list[str]], incarnation: str, how: Letters
) -> None:
    """The owner was ahead of its commit, and lost the partition."""
    restorer.publish(at(restorer, "5"), 1)
    cell = at(restorer, "9")
    restorer.bring_to(cell, "8")
    assert (cell.state, cell.position) == (TEXTS[:8], "8")


def test_a_damaged_snapshot_is_passed_over(
    restorer: Restorer[list[str]],
    incarnation: str,
    snapshots: Snapshots,
    caplog: pytest.LogCaptureFixture,
) -> None:
    restorer.publish(at(restorer, "5"), 1)
    restorer.publish(at(restorer, "9"), 1)
    (path,) = snapshots.directory.rglob("9_1.snapshot")
    path.write_bytes(path.read_bytes()[:-20])
    with caplog.at_level(logging.WARNING, "counterpoise.spark"):
        cell = at(restorer, "12")
    assert cell.state == TEXTS[:12]
    assert cell.published == "5"
    assert "trying an older snapshot" in caplog.text


def test_a_snapshot_of_another_log_or_queue_is_not_ours(
    restorer: Restorer[list[str]], snapshots: Snapshots, how: Letters
) -> None:
    for queue, of_log in (("queue-1", "another"), ("another", "log-1")):
        snapshot = Snapshot(queue, of_log, 0, 1, "5")
        snapshots.publish(snapshot, lambda file: pickle.dump(["no"], file))
    assert at(restorer, "7").state == TEXTS[:7]
    assert how.loaded == 0


def test_a_state_touched_by_a_failure_is_not_used(
    restorer: Restorer[list[str]], incarnation: str, how: Letters
) -> None:
    restorer.publish(at(restorer, "5"), 1)
    cell = at(restorer, "6")
    how.fails = True
    with pytest.raises(RuntimeError, match="apply"):
        restorer.bring_to(cell, "8")
    assert not cell.usable()
    assert not restorer.publish(cell, 1)
    how.fails = False
    restorer.bring_to(cell, "8")
    assert cell.state == TEXTS[:8]


def test_nothing_is_published_twice_and_few_are_kept(
    restorer: Restorer[list[str]], incarnation: str, snapshots: Snapshots
) -> None:
    cell: Cell[list[str]] = Cell(0)
    for position in range(5, 15):
        restorer.bring_to(cell, str(position))
        assert restorer.publish(cell, 1)
        assert not restorer.publish(cell, 1)
    kept = {one.position for one in snapshots.found("queue-1", incarnation, 0)}
    assert kept == {"12", "13", "14"}

    cell = at(restorer, "5")  # positions were set back
    for position in range(6, 10):
        restorer.bring_to(cell, str(position))
        assert restorer.publish(cell, 2)
    kept = {one.position for one in snapshots.found("queue-1", incarnation, 0)}
    assert kept == {"7", "8", "9", "12", "13", "14"}


def test_a_state_is_that_of_the_log_from_which_it_was_built(
    restorer: Restorer[list[str]],
    incarnation: str,
    snapshots: Snapshots,
    log: PostgresLog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log may be made anew, or restored from a backup, while its states are here."""
    cell, warmed = at(restorer, "5"), at(restorer, "5")
    bounds = log.bounds
    monkeypatch.setattr(log, "bounds", lambda n: replace(bounds(n), incarnation="another"))
    assert restorer.publish(cell, 1)
    assert not snapshots.found("queue-1", "another", 0)
    assert [one.position for one in snapshots.found("queue-1", incarnation, 0)] == ["5"]
    assert isinstance(warmed.state, list)
    warmed.state.append("of the old log")
    restorer.bring_to(warmed, "7")
    assert warmed.state == TEXTS[:7]
    assert restorer.publish(warmed, 2)
    assert [one.position for one in snapshots.found("queue-1", "another", 0)] == ["7"]


def test_trimmed_messages_are_missing_and_it_says_which(
    restorer: Restorer[list[str]],
    incarnation: str,
    log: PostgresLog,
    caplog: pytest.LogCaptureFixture,
) -> None:
    restorer.publish(at(restorer, "5"), 1)
    log.trim({0: "8"})
    with caplog.at_level(logging.WARNING, "counterpoise.spark"):
        cell = at(restorer, "12")
    assert cell.state == TEXTS[:5] + TEXTS[8:12]
    assert "without positions 5 to 8" in caplog.text


def test_so_are_those_of_a_log_that_is_trimmed_past_the_position(
    restorer: Restorer[list[str]], log: PostgresLog, caplog: pytest.LogCaptureFixture
) -> None:
    """As of a topic of Kafka that keeps messages for a time, with onTrimmed=earliest."""
    restorer.publish(at(restorer, "5"), 1)
    log.trim({0: "15"})
    with caplog.at_level(logging.WARNING, "counterpoise.spark"):
        cell = at(restorer, "12")
    assert (cell.state, cell.position) == (TEXTS[:5], "12")
    assert "without positions 5 to 12" in caplog.text
    restorer.bring_to(cell, "17")
    assert cell.state == TEXTS[:5] + TEXTS[15:17]
