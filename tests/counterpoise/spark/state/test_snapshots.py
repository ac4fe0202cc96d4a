"""Snapshots in a directory: all or nothing, and damage is detected."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import BinaryIO

import pytest

from counterpoise.spark.state.snapshots import Snapshot, Snapshots

ONE = Snapshot("queue-1", "log-1", 3, 2, "100")


@pytest.fixture
def snapshots(tmp_path: Path) -> Snapshots:
    return Snapshots(tmp_path / "made" / "when needed")


def put(snapshots: Snapshots, snapshot: Snapshot, state: object) -> None:
    snapshots.publish(snapshot, lambda file: pickle.dump(state, file))


def file_of(snapshots: Snapshots) -> Path:
    (path,) = snapshots.directory.rglob("*.snapshot")
    return path


def test_a_published_snapshot_is_found_and_loads(snapshots: Snapshots) -> None:
    assert snapshots.found("queue-1", "log-1", 3) == []
    state = {"a": os.urandom(5_000_000), "b": list(range(1000))}
    put(snapshots, ONE, state)
    assert snapshots.found("queue-1", "log-1", 3) == [ONE]
    assert snapshots.load(ONE, pickle.load) == state
    for other in (("queue-2", "log-1", 3), ("queue-1", "log-2", 3), ("queue-1", "log-1", 4)):
        assert snapshots.found(*other) == []


def test_any_position_makes_a_name(snapshots: Snapshots) -> None:
    odd = Snapshot("q", "l", 0, 1, "a_b/../c 1")
    put(snapshots, odd, 1)
    assert snapshots.found("q", "l", 0) == [odd]
    assert snapshots.load(odd, pickle.load) == 1
    assert file_of(snapshots).parent.name == "0"


@pytest.mark.parametrize("state", [b"", b"x" * 3_000_000])
def test_a_state_need_not_be_read_to_its_end(snapshots: Snapshots, state: bytes) -> None:
    def write(file: BinaryIO) -> None:
        file.write(state)

    snapshots.publish(ONE, write)
    assert snapshots.load(ONE, lambda file: file.read(1)) == state[:1]


@pytest.mark.parametrize("at", [5, 200, -1])
def test_a_changed_byte_is_noticed(snapshots: Snapshots, at: int) -> None:
    put(snapshots, ONE, list(range(100)))
    path = file_of(snapshots)
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    with pytest.raises(OSError, match=r"header|truncated|checksum"):
        snapshots.load(ONE, pickle.load)


@pytest.mark.parametrize("left", [0, 10, 120, -1])
def test_a_file_that_was_cut_off_is_noticed(snapshots: Snapshots, left: int) -> None:
    put(snapshots, ONE, list(range(100)))
    path = file_of(snapshots)
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(OSError, match=r"header|truncated|checksum"):
        snapshots.load(ONE, pickle.load)


def test_a_snapshot_that_cannot_be_loaded_counts_as_damaged(snapshots: Snapshots) -> None:
    def write(file: BinaryIO) -> None:
        file.write(b"no pickle")

    snapshots.publish(ONE, write)
    with pytest.raises(OSError, match="cannot be loaded"):
        snapshots.load(ONE, pickle.load)


def test_a_snapshot_that_fails_half_way_is_never_seen(snapshots: Snapshots) -> None:
    put(snapshots, ONE, "before")

    def write(file: BinaryIO) -> None:
        file.write(b"x" * 3_000_000)
        raise RuntimeError("a state that cannot be written")

    with pytest.raises(RuntimeError, match="cannot be written"):
        snapshots.publish(Snapshot("queue-1", "log-1", 3, 2, "200"), write)
    assert snapshots.found("queue-1", "log-1", 3) == [ONE]
    assert list(snapshots.directory.rglob(".new-*")) == []


def test_old_snapshots_and_files_of_dead_processes_are_deleted(snapshots: Snapshots) -> None:
    put(snapshots, ONE, 1)
    left = file_of(snapshots).parent / ".new-left"
    left.touch()
    os.utime(left, (0, 0))
    two = Snapshot("queue-1", "log-1", 3, 2, "200")
    put(snapshots, two, 2)
    assert not left.exists()
    snapshots.prune("queue-1", "log-1", 3, [two])
    assert snapshots.found("queue-1", "log-1", 3) == [two]
    with pytest.raises(FileNotFoundError):
        snapshots.load(ONE, pickle.load)
