"""Lanes: one worker at a time, in order, without gaps, and with bounded memory."""

import random
import threading
import time
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from counterpoise.consumer.lanes import Chunk, Lanes
from counterpoise.consumer.reading import Reader, read_range
from counterpoise.flow.view import Owned
from counterpoise.logs import LogBehind, PositionAhead
from counterpoise.logs.errors import AHEAD_SECONDS
from counterpoise.logs.port import Bounds
from counterpoise.logs.rows import Columns, Rows
from counterpoise.waking import Waking
from counterpoise.wire import CommitItem, Pause
from tests.service import eventually

PAUSE = Pause(datetime(2026, 11, 20, tzinfo=UTC), None, None)


class View:
    """The partitions that a flow owns, changed by the test."""

    def __init__(self, *numbers):
        self.partitions: MappingProxyType[int, Owned] = MappingProxyType({})
        self.own(*numbers)

    def own(self, *numbers, epoch=1, state="owned", position="0"):
        given = {n: Owned(n, epoch, state, position, "initial") for n in numbers}
        self.partitions = MappingProxyType({**self.partitions, **given})

    def pause(self, number):
        paused = replace(self.partitions[number], paused=PAUSE)
        self.partitions = MappingProxyType({**self.partitions, number: paused})

    def lose(self, number):
        self.partitions = MappingProxyType(
            {n: owned for n, owned in self.partitions.items() if n != number}
        )

    def __call__(self):
        return self.partitions


def rows_of(partition, positions, value=b"x" * 10):
    count = len(positions)
    return Rows(Columns(partition, positions, [0] * count, None, [value] * count, [None] * count))


def positions_of(piece):
    return [int(one) for one in piece.chunk.rows.columns().positions]


def chunk_of(partition, start, end):
    return Chunk(rows_of(partition, range(start, end)), str(end))


def make(view, **options):
    lanes = Lanes(view, **{"max_messages": 10, "max_bytes": 10**6, **options})
    lanes.follow()
    return lanes


def fill(lanes, most=10**9):
    """Read into all lanes that want messages, like the reader."""
    for lane in lanes.wanting():
        start = int(lane.read_to)
        count = min(most, lanes.room(lane)[0])
        if count:
            read(lanes, lane, start, start + count)


def read(lanes, lane, start, end):
    """The result of a reader that began at `start`."""
    lanes.add(lane, str(start), [chunk_of(lane.partition, start, end)], str(end), more=True)


def handle(piece, count=None):
    """Move the position over the first `count` messages, like a worker; returns the count."""
    positions = piece.chunk.rows.columns().positions
    count = len(positions) if count is None else count
    ends = [*positions[1:], piece.chunk.end]
    if count:
        piece.lane.grant.done = ends[count - 1]
    return count


def test_a_piece_left_in_the_middle_goes_on_there():
    lanes = make(View(0))
    fill(lanes)
    piece = lanes.take(6, 0)
    assert len(piece.chunk.rows) == 6
    lanes.put_back(piece, handle(piece, 2))
    piece = lanes.take(None, 0)
    assert piece.chunk.start == "2" == piece.lane.position
    assert lanes.handled == 2
    assert lanes.to_commit() == (CommitItem(0, 1, "2"),)


def test_a_lane_with_messages_wakes_one_worker():
    lanes = make(View(0))
    pieces = []
    workers = [threading.Thread(target=lambda: pieces.append(lanes.take(3, 60))) for _ in range(8)]
    for worker in workers:
        worker.start()
    eventually(lambda: len(lanes._work._waiters) == 8)
    fill(lanes)
    assert len(lanes._work._waiters) == 7
    lanes.close()
    for worker in workers:
        worker.join(240)
    assert len(pieces) == 8


def test_a_lane_in_work_is_not_given_to_another_worker():
    lanes = make(View(0, 1))
    fill(lanes)
    first, second = lanes.take(3, 0), lanes.take(3, 0)
    assert {first.lane.partition, second.lane.partition} == {0, 1}
    assert lanes.take(3, 0) is None
    lanes.put_back(first, handle(first))
    assert lanes.take(3, 0).lane is first.lane


def test_a_new_grant_waits_until_the_hands_are_off_the_old_one():
    view = View(0)
    lanes = make(view)
    fill(lanes)
    old = lanes.take(3, 0)
    view.own(0, epoch=2, position="0")
    lanes.follow()
    fill(lanes)
    assert old.lane.grant.over
    assert lanes.take(3, 0) is None
    lanes.put_back(old, handle(old))
    new = lanes.take(3, 0)
    assert (new.lane.epoch, new.chunk.start) == (2, "0")


def test_a_revoked_lane_is_released_with_its_position_after_the_work():
    view = View(0)
    lanes = make(view)
    fill(lanes)
    piece = lanes.take(5, 0)
    view.own(0, state="revoking")
    lanes.follow()
    assert lanes.to_release() == ()
    assert piece.lane.waiting_messages == 0
    lanes.put_back(piece, handle(piece, 1))
    (item,) = lanes.to_release()
    assert (item.partition, item.epoch, item.position) == (0, 1, "1")
    assert lanes.take(5, 0) is None
    lanes.answered(item, "ok")
    lanes.follow()
    assert lanes.snapshot() == []  # The view still has it until the service has answered.


def test_waiting_messages_are_bounded_in_number_and_bytes():
    lanes = make(View(0, 1), max_messages=10, max_bytes=10**6)
    for _ in range(3):
        fill(lanes)
    assert [lane.waiting_messages for lane in lanes.snapshot()] == [10, 10]
    assert lanes.wanting() == []
    tight = make(View(0, 1), max_messages=10**6, max_bytes=2000)
    for _ in range(3):
        fill(tight, most=50)
    assert tight.wanting() == []
    assert all(lane.waiting_messages == 50 for lane in tight.snapshot())


def test_a_limit_counts_waiting_messages_and_those_in_work():
    view = View(0, 1)
    lanes = make(view, limit=15)
    fill(lanes)
    fill(lanes)
    assert [lane.waiting_messages for lane in lanes.snapshot()] == [10, 5]
    lanes.take(4, 0)
    assert lanes.room(lanes.snapshot()[0])[0] == 0
    view.lose(1)
    lanes.follow()
    assert lanes.room(lanes.snapshot()[0])[0] == 4  # 5 are given back; 6 wait already.


def test_a_pausing_lane_lets_the_others_go_first():
    lanes = make(View(0, 1))
    fill(lanes)
    first = lanes.take(1, 0)
    lanes.put_back(first, 0, not_before=100.0)
    other = lanes.take(1, 0)
    assert other.lane is not first.lane
    assert lanes.take(1, 0) is None
    assert lanes.call_due(99.0) == 100.0
    assert lanes.take(1, 0) is None
    assert lanes.call_due(100.0) is None
    assert lanes.take(1, 0).chunk.start == "0"


def test_a_quarantined_lane_keeps_its_position_and_can_be_resumed():
    lanes = make(View(0))
    fill(lanes)
    piece = lanes.take(5, 0)
    done = handle(piece, 2)
    lanes.quarantine(piece.lane)
    lanes.put_back(piece, done)
    assert lanes.wanting() == []
    assert lanes.to_commit() == (CommitItem(0, 1, "2"),)
    assert lanes.resume_lane(0)
    assert not lanes.resume_lane(0)
    fill(lanes)
    assert lanes.take(5, 0).chunk.start == "2"


def rest_of(lanes):
    """The positions that workers get from now on."""
    given = []
    while (piece := lanes.take(3, 0)) is not None:
        given += positions_of(piece)
        lanes.put_back(piece, handle(piece))
    return given


def test_a_read_that_began_before_a_quarantine_adds_nothing_after_it():
    lanes = make(View(0))
    fill(lanes)
    piece = lanes.take(10, 0)
    lane, start = piece.lane, int(piece.lane.read_to)
    assert start == 10
    # The log is being read from 10 on when this happens.
    done = handle(piece, 4)
    lanes.quarantine(lane)
    lanes.put_back(piece, done)
    assert lanes.resume_lane(0)
    read(lanes, lane, start, 15)
    assert rest_of(lanes) == []
    fill(lanes)
    assert rest_of(lanes) == list(range(4, 14))


@pytest.mark.parametrize("read_meanwhile", [False, True])
def test_a_lane_can_be_resumed_before_the_hand_is_off(read_meanwhile):
    """As from `on_quarantined`, or by a program that sees it in `status`."""
    lanes = make(View(0))
    fill(lanes)
    piece = lanes.take(5, 0)
    done = handle(piece, 2)
    lanes.quarantine(piece.lane)
    assert lanes.resume_lane(0)
    if read_meanwhile:
        fill(lanes)
        assert lanes.take(5, 0) is None
    lanes.put_back(piece, done)
    fill(lanes)
    assert rest_of(lanes) == list(range(2, 12))


def test_a_retiring_lane_that_is_taken_back_is_read_on():
    view = View(0)
    lanes = make(view)
    view.own(0, state="retiring")
    lanes.follow()
    (lane,) = lanes.snapshot()
    lanes.came_to_end(lane, "0", "0")
    (item,) = lanes.to_release()
    assert item.finished
    assert lanes.wanting() == []
    view.own(0)
    lanes.follow()
    assert lanes.wanting() == []  # The service may have accepted the release before.
    (again,) = lanes.to_release()
    assert not again.finished
    lanes.answered(again, "not_revoking")
    assert lanes.to_release() == ()
    assert lanes.wanting() == [lane]


def test_a_retiring_lane_that_is_taken_back_before_its_end_was_reached_is_read_on():
    """Whether its end is known by then, or the log was asked before and answers now."""
    woken = []
    view = View(0, 1)
    lanes = make(view, wake_reader=lambda: woken.append(True))
    view.own(0, 1, state="retiring")
    lanes.follow()
    known, asked = lanes.snapshot()
    lanes.came_to_end(known, "0", "10")
    del woken[:]
    view.own(0, 1)
    lanes.follow()
    lanes.came_to_end(asked, "0", "0")
    assert lanes.wanting() == [known, asked]
    assert woken


def test_a_retiring_lane_is_released_when_its_last_message_is_handled():
    woken = []
    view = View(0)
    lanes = make(view, wake_settler=lambda: woken.append(True))
    fill(lanes)
    view.own(0, state="retiring")
    lanes.follow()
    (lane,) = lanes.snapshot()
    lanes.came_to_end(lane, "0", "10")
    assert lanes.to_release() == ()
    assert not woken
    piece = lanes.take(None, 0)
    lanes.put_back(piece, handle(piece))
    assert woken
    assert [(item.position, item.finished) for item in lanes.to_release()] == [("10", True)]


def test_a_lane_without_a_position_begins_where_the_log_or_a_view_says():
    view = View()
    view.own(0, 1, position=None)
    lanes = make(view)
    looked_up, named = lanes.wanting()
    lanes.begin_at(looked_up, "5")
    assert (looked_up.position, looked_up.read_to) == ("5", "5")
    view.own(1, position="7")
    lanes.follow()
    lanes.begin_at(named, "9")
    assert (named.position, named.read_to) == ("7", "7")


def test_a_stretch_without_messages_is_passed():
    lanes = make(View(0, 1))
    idle, other = lanes.snapshot()
    lanes.add(idle, "0", [], "7", more=False)
    lanes.add(other, "0", [chunk_of(1, 0, 3)], "9", more=False)
    assert (idle.position, idle.read_to) == ("7", "7")
    piece = lanes.take(None, 0)
    lanes.put_back(piece, handle(piece))
    assert other.position == "9"


def test_a_stretch_without_messages_waits_for_those_in_work():
    """A position past messages in work would be committed, and a kill would lose them."""
    lanes = make(View(0))
    (lane,) = lanes.snapshot()
    lanes.add(lane, "0", [chunk_of(0, 0, 3)], "3", more=True)
    piece = lanes.take(None, 0)
    lanes.add(lane, "3", [], "7", more=False)
    assert lanes.to_commit() == ()
    lanes.put_back(piece, handle(piece))
    assert lanes.to_commit() == (CommitItem(0, 1, "3"),)
    lanes.add(lane, "3", [], "7", more=False)
    assert lanes.to_commit() == (CommitItem(0, 1, "7"),)


def test_nothing_is_begun_while_paused_or_after_the_end():
    lanes = make(View(0))
    fill(lanes)
    lanes.pause(True)
    assert lanes.take(1, 0) is None
    lanes.pause(False)
    piece = lanes.take(1, 0)
    lanes.close()
    assert not lanes.wait_idle(0)
    lanes.put_back(piece, 0)
    assert lanes.wait_idle(0)
    assert lanes.take(1, 0) is None


@pytest.mark.parametrize("seed", range(6))
def test_any_sequence_handles_each_partition_in_order_once_per_epoch(seed):
    """Workers, a reader, quarantines that end soon, and changing ownership."""
    rng = random.Random(seed)
    view = View(*range(4))
    lanes = make(view, max_messages=8)
    committed = dict.fromkeys(range(4), 0)
    handled = defaultdict(list)  # (partition, epoch): positions
    workers: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)
    wrong: list = []
    ended = threading.Event()

    def work(rng):
        while not lanes.closed:
            piece = lanes.take(rng.choice([None, 1, 3]), 0.01)
            if piece is None:
                continue
            if not workers[piece.lane.partition].acquire(blocking=False):
                wrong.append(f"two workers handle {piece.lane.partition}")
            done = 0
            positions = piece.chunk.rows.columns().positions
            for position, end in zip(positions, [*positions[1:], piece.chunk.end], strict=True):
                if not piece.lane.grant.open or rng.random() < 0.1:
                    break
                handled[piece.lane.grant.id].append(int(position))
                piece.lane.grant.done = end
                done += 1
            if rng.random() < 0.3:
                ended.wait(0.0005)
            if rng.random() < 0.1 and done < len(positions):
                lanes.quarantine(piece.lane)
                if rng.random() < 0.5:
                    lanes.resume_lane(piece.lane.partition)
            workers[piece.lane.partition].release()
            lanes.put_back(piece, done, split=rng.random() < 0.1)

    threads = [
        threading.Thread(target=work, args=(random.Random(seed * 10 + n),)) for n in range(4)
    ]
    for thread in threads:
        thread.start()
    epochs = dict.fromkeys(range(4), 1)
    try:
        until = time.monotonic() + 60
        while lanes.handled < 500 and time.monotonic() < until:
            fill(lanes, most=rng.randint(1, 8))
            lanes.resume_lane(rng.randrange(4))
            for lane in lanes.snapshot():
                if lane.waiting_messages + lane.in_hand > 16:
                    wrong.append(f"{lane.waiting_messages} wait, {lane.in_hand} are in hand")
            number, what = rng.randrange(4), rng.random()
            if what < 0.1:
                view.own(number, epoch=epochs[number], state="revoking")
            elif what < 0.15:
                epochs[number] += 1  # By force: from the committed position.
                view.own(number, epoch=epochs[number], position=str(committed[number]))
            lanes.follow()
            for item in lanes.to_commit():
                if item.epoch == epochs[item.partition]:
                    committed[item.partition] = int(item.position)
                    lanes.answered(item, "ok")
            for item in lanes.to_release():
                if item.epoch == epochs[item.partition]:
                    committed[item.partition] = int(item.position)
                lanes.answered(item, "ok")
                epochs[item.partition] += 1
                view.own(
                    item.partition,
                    epoch=epochs[item.partition],
                    position=str(committed[item.partition]),
                )
                lanes.follow()
    finally:
        lanes.close()
        ended.set()
        for thread in threads:
            thread.join(240)
    assert wrong == []
    assert sum(map(len, handled.values())) == lanes.handled >= 500
    for positions in handled.values():
        assert positions == list(range(positions[0], positions[0] + len(positions)))
    for partition in range(4):
        seen = {p for (number, _), some in handled.items() if number == partition for p in some}
        assert set(range(committed[partition])) <= seen  # No unhandled message is committed.


# ------------------------------------------------------------------ reading ranges


class HoleyLog:
    """Messages at odd positions only, 100 bytes each, in batches of three."""

    def rows(self, partition, start, end, *, max_messages, max_bytes=None):
        positions = [n for n in range(int(start), int(end)) if n % 2][:max_messages]
        if max_bytes is not None:
            positions = positions[: -(-max_bytes // 100)]
        for first in range(0, len(positions), 3):
            yield rows_of(partition, positions[first : first + 3], b"v" * 100)


@pytest.mark.parametrize("max_messages", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("max_bytes", [1, 250, 10**6])
def test_a_range_with_holes_is_read_piece_by_piece_without_a_gap(max_messages, max_bytes):
    log: Any = HoleyLog()
    start, seen = "0", []
    while start != "40":
        chunks, end = read_range(log, 0, start, "40", max_messages, max_bytes)
        rows = [int(p) for c in chunks for p in c.rows.columns().positions]
        assert len(rows) <= max_messages
        assert int(end) > int(start)
        following = [*(int(chunk.start) for chunk in chunks[1:]), int(end)]
        assert [int(chunk.end) for chunk in chunks] == following
        seen += rows
        start = end
    assert seen == list(range(1, 40, 2))


def test_a_range_that_the_log_has_not_got_whole_is_not_taken_for_read():
    """Later messages would be skipped; so the reader asks again where the partition ends."""

    class Behind(HoleyLog):
        def rows(self, partition, start, end, *, max_messages, max_bytes=None):
            yield from super().rows(partition, start, "10", max_messages=max_messages)
            raise LogBehind(partition, "10", end)

    log: Any = Behind()
    with pytest.raises(LogBehind):
        read_range(log, 0, "0", "20", 100, 10**6)


def test_the_cut_of_a_retiring_partition_is_not_its_end():
    """Its barrier may come back after it began to retire. What is beyond must be read first."""
    view = View()
    held = Owned(0, 1, "retiring", "5", "initial", resize=1, cut="5", waits_for=(1,))
    view.partitions = MappingProxyType({0: held})
    lanes = make(view)
    flow = SimpleNamespace(queue="flights", start="earliest", commit=lambda *_, **__: {0: "ok"})
    reader: Any = Reader(flow, lanes, Waking(), log_url=None, idle_seconds=1.0)  # type: ignore[arg-type]
    starts, ends = {0: "0", 1: "0"}, {0: "9", 1: "9"}
    reader._log = SimpleNamespace(
        bounds=lambda _, at_once: Bounds(0, "log-1", starts, ends),
        compare=lambda a, b: int(a) - int(b),
    )
    assert reader.turn() is False
    assert not [item for item in lanes.to_release() if item.finished]


def test_a_log_that_has_caught_up_is_waited_for_anew_when_it_falls_short_again(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(
        "counterpoise.consumer.reading.time", SimpleNamespace(monotonic=lambda: now[0])
    )
    view = View()
    view.own(0, position="20")
    lanes = make(view)
    flow = SimpleNamespace(queue="flights", start="earliest", commit=lambda *_, **__: {0: "ok"})
    reader: Any = Reader(flow, lanes, Waking(), log_url=None, idle_seconds=1.0)  # type: ignore[arg-type]

    def look(end):
        ends = {0: str(end)}
        log: Any = SimpleNamespace(
            bounds=lambda _, at_once: Bounds(1, "log-1", {}, ends),
            compare=lambda a, b: int(a) - int(b),
        )
        reader._log = log
        assert reader.turn() is False

    look(5)
    now[0] = AHEAD_SECONDS - 1
    look(5)
    look(20)  # caught up: there is nothing to read, and nothing is missing
    now[0] = AHEAD_SECONDS + 1
    look(5)
    now[0] = 2 * AHEAD_SECONDS + 2
    with pytest.raises(PositionAhead):
        look(5)


# Pauses


def test_of_a_paused_lane_nothing_is_handed_out_and_nothing_is_read():
    view = View(0, 1)
    lanes = make(view)
    fill(lanes)
    piece = lanes.take(4, 0)
    assert piece.lane.partition == 0
    view.pause(0)
    lanes.follow()
    lanes.put_back(piece, handle(piece, 1))
    assert [lane.partition for lane in lanes.wanting()] == []
    assert lanes.take(None, 0).lane.partition == 1
    assert lanes.take(None, 0) is None
    assert lanes.to_commit() == (CommitItem(0, 1, "1"),)
    assert lanes.snapshot()[0].waiting_messages == 0


def test_a_resumed_lane_is_read_from_where_it_is_done():
    woken = []
    view = View(0)
    lanes = make(view, wake_reader=lambda: woken.append("reader"))
    fill(lanes)
    piece = lanes.take(4, 0)
    view.pause(0)
    lanes.follow()
    lanes.put_back(piece, handle(piece, 3))
    del woken[:]
    view.own(0)
    lanes.follow()
    assert woken
    fill(lanes)
    assert lanes.take(None, 0).chunk.start == "3"


@pytest.mark.parametrize("by_key", [False, True])
def test_a_lane_that_had_enough_calls_the_reader_when_it_has_room(by_key):
    """Even if the log had no more: the reader is woken by the messages of other lanes only."""
    woken = []
    lanes = make(View(0, 1), by_key=by_key, wake_reader=lambda: woken.append("reader"))
    lane = lanes.snapshot()[0]
    lanes.add(lane, "0", [chunk_of(0, 0, 7)], "7", more=False)
    assert [one.partition for one in lanes.wanting()] == [1]
    del woken[:]
    piece = lanes.take(1, 0)
    assert not woken
    if not by_key:
        lanes.put_back(piece, handle(piece))
    lanes.take(1, 0)
    assert woken == ["reader"]
    assert {one.partition for one in lanes.wanting()} == {0, 1}


def test_a_lane_that_is_resumed_while_a_worker_has_a_piece_hands_nothing_out_twice():
    """The pause has dropped what was read ahead, and the worker goes on meanwhile."""
    view = View(0)
    lanes = make(view)
    fill(lanes)
    piece = lanes.take(4, 0)
    handle(piece, 2)
    view.pause(0)
    lanes.follow()
    view.own(0)
    lanes.follow()
    fill(lanes)
    assert lanes.snapshot()[0].waiting_messages == 0, "where to read on is not known yet"
    lanes.put_back(piece, handle(piece))
    fill(lanes)
    assert lanes.take(None, 0).chunk.start == "4"


def test_a_lane_that_is_resumed_beside_a_piece_of_the_grant_before_is_read_on():
    """An administrator has set the positions, and paused the partition, while a message lasts."""
    view = View(0)
    lanes = make(view)
    fill(lanes)
    piece = lanes.take(4, 0)
    view.own(0, epoch=2)
    lanes.follow()
    view.pause(0)
    lanes.follow()
    view.own(0, epoch=2)
    lanes.follow()
    lanes.put_back(piece, handle(piece))
    fill(lanes)
    assert lanes.take(None, 0).chunk.start == "0"


def test_a_paused_lane_that_is_revoked_is_released_at_once():
    view = View(0)
    lanes = make(view)
    view.pause(0)
    lanes.follow()
    view.own(0, state="revoking")
    lanes.follow()
    assert [item.partition for item in lanes.to_release()] == [0]
