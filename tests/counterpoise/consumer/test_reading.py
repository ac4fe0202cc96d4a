"""The reader: new lanes get their messages first, and with few calls."""

import time
from dataclasses import replace
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from counterpoise.consumer import reading
from counterpoise.consumer.reading import FIRST_MESSAGES, PREPARED_SECONDS, Reader
from counterpoise.flow.done_above import DoneAbove
from counterpoise.logs import LogError, LogNotFound, LogUnavailable
from counterpoise.logs.port import Bounds, Rest
from counterpoise.waking import Waking
from tests.counterpoise.consumer.test_lanes import View, make, rows_of

END = 1000


class CountingLog:
    """A log of `END` messages in each partition, which notes the calls."""

    def __init__(self):
        self.calls: list[Any] = []
        self.on_read = lambda: None
        self.closed = False

    def bounds(self, partitions, *, at_once=False):
        self.calls.append("bounds")
        numbers = list(partitions)
        return Bounds(100, "log-1", dict.fromkeys(numbers, "0"), dict.fromkeys(numbers, str(END)))

    def compare(self, a, b):
        return int(a) - int(b)

    def first(self, ranges, *, max_messages, max_bytes):
        self.calls.append(("first", *ranges))
        following = {n: int(start) + max_messages for n, (start, _) in ranges.items()}
        return {
            n: (rows_of(n, range(int(start), following[n])), str(following[n]))
            for n, (start, _) in ranges.items()
        }

    def rows(self, partition, start, end, *, max_messages, max_bytes=None):
        self.calls.append(partition)
        self.on_read()
        yield rows_of(partition, range(int(start), min(int(end), int(start) + max_messages)))

    def close(self):
        self.closed = True


def reader_of(lanes, log):
    flow = SimpleNamespace(queue="flights", start="earliest", log="builtin:flights")
    reader: Any = Reader(flow, lanes, Waking(), log_url=None, idle_seconds=1.0)  # type: ignore[arg-type]
    reader._log = log
    return reader


def positions_of(lane):
    return [int(p) for c in lane.waiting for p in c.rows.columns().positions]


def test_the_first_messages_of_new_lanes_come_with_one_call():
    lanes, log = make(View(*range(20)), max_messages=100), CountingLog()
    reader = reader_of(lanes, log)
    assert reader.turn()
    assert log.calls == ["bounds", ("first", *range(20))]
    assert all(lane.waiting_messages == FIRST_MESSAGES for lane in lanes.snapshot())
    # Then each gets as much as fits.
    assert reader.turn()
    assert log.calls[2:] == ["bounds", *range(20)]
    assert [positions_of(lane) for lane in lanes.snapshot()] == [list(range(100))] * 20


def test_lanes_that_have_been_read_are_filled_by_one_read_each():
    """A few messages at a time would make a fast consumer wait for the log."""
    lanes, log = make(View(0, 1), max_messages=100), CountingLog()
    reader = reader_of(lanes, log)
    reader.turn()
    while (piece := lanes.take(None, 0)) is not None:
        piece.lane.grant.done = piece.chunk.end
        lanes.put_back(piece, len(piece.chunk.rows))
    log.calls.clear()
    reader.turn()
    assert log.calls == ["bounds", 0, 1]


def test_a_new_lane_waits_for_one_read_of_the_others_at_most():
    view = View(*range(5))
    lanes, log = make(view, max_messages=100), CountingLog()
    reader = reader_of(lanes, log)
    reader.turn()

    def grant():
        view.own(9)
        lanes.follow()

    log.calls.clear()
    log.on_read = grant
    assert reader.turn()
    assert reader.turn()
    assert log.calls[:4] == ["bounds", 0, "bounds", ("first", 9)]


def test_a_lane_without_messages_goes_before_lanes_with_some():
    lanes, log = make(View(0, 1), max_messages=100), CountingLog()
    reader = reader_of(lanes, log)
    reader.turn()
    lanes.snapshot()[1].drop_waiting()
    log.calls.clear()
    reader.turn()
    assert log.calls == ["bounds", 1, 0]


def test_new_lanes_that_are_read_one_by_one_keep_the_others_waiting_for_a_moment_only(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(reading, "time", SimpleNamespace(monotonic=lambda: now[0]))
    view, log = View(5), CountingLog()
    lanes = make(view, max_messages=100)
    reader = reader_of(lanes, log)
    reader.turn()
    lanes.snapshot()[0].drop_waiting()
    view.own(1, 2, 3, 4, 6, 7)
    lanes.follow()
    give = log.first
    log.first = lambda ranges, **limits: give({4: ranges[4]}, **limits)  # type: ignore[method-assign]

    def take():
        now[0] += reading.NEW_LANES_SECONDS / 2

    log.on_read = take
    log.calls.clear()
    assert reader.turn()
    assert log.calls == ["bounds", ("first", 4), 5, 1, 2, 3]


def test_new_lanes_do_not_wait_for_lanes_that_have_messages():
    view = View(0, 1)
    lanes, log = make(view, max_messages=100), CountingLog()
    reader = reader_of(lanes, log)
    reader.turn()
    view.own(2, 3)
    lanes.follow()
    log.first = lambda ranges, **_: {}  # type: ignore[method-assign]
    log.calls.clear()
    reader.turn()
    assert log.calls == ["bounds", 2, 3, 0, 1]


def test_what_the_log_does_not_give_at_once_is_read():
    lanes, log = make(View(0, 1, 2), max_messages=100), CountingLog()
    give = log.first
    log.first = lambda ranges, **limits: {0: give(ranges, **limits)[0]}  # type: ignore[method-assign]
    reader_of(lanes, log).turn()
    assert log.calls == ["bounds", ("first", 0, 1, 2), 1, 2]
    assert all(positions_of(lane)[:16] == list(range(16)) for lane in lanes.snapshot())


@pytest.mark.parametrize("error", [LogError("one of them"), LogUnavailable("all")])
def test_an_error_of_the_call_for_all_is_none_of_a_partition(error):
    lanes, log = make(View(0, 1), max_messages=100), CountingLog()

    def first(ranges, **_limits):
        raise error

    log.first = first  # type: ignore[method-assign]
    reader = reader_of(lanes, log)
    if isinstance(error, LogUnavailable):
        with pytest.raises(LogUnavailable):
            reader.turn()
    else:
        assert reader.turn()
        assert log.calls == ["bounds", 0, 1]


def test_a_limit_holds_for_the_first_messages_of_several_lanes():
    lanes, log = make(View(0, 1), max_messages=100, limit=20), CountingLog()
    reader_of(lanes, log).turn()
    assert sum(lane.waiting_messages for lane in lanes.snapshot()) == 20


def test_the_log_is_opened_before_the_first_grant_and_given_back_by_a_standby(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(reading, "time", SimpleNamespace(monotonic=lambda: now[0]))
    view, log = View(), CountingLog()
    lanes = make(view)
    reader = reader_of(lanes, log)
    reader._prepare()
    assert log.calls == ["bounds", ("first", 0)]
    now[0] = PREPARED_SECONDS - 1
    assert not reader.turn()
    assert not log.closed
    now[0] = PREPARED_SECONDS + 1
    assert not reader.turn()
    assert log.closed


def test_a_consumer_with_partitions_keeps_its_log(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(reading, "time", SimpleNamespace(monotonic=lambda: now[0]))
    view, log = View(), CountingLog()
    lanes = make(view)
    reader = reader_of(lanes, log)
    reader._prepare()
    view.own(0)
    lanes.follow()
    assert reader.turn()
    now[0] = PREPARED_SECONDS + 1
    assert not reader.turn()
    assert not log.closed


def test_a_log_that_is_away_before_the_first_grant_is_met_when_it_is_needed():
    lanes, log = make(View()), CountingLog()

    def away(_partitions, *, at_once=False):
        raise LogUnavailable("away")

    log.bounds = away  # type: ignore[method-assign]
    reader = reader_of(lanes, log)
    reader._prepare()
    assert log.closed
    assert not reader.away
    assert not reader.turn()


# ------------------------------------------------------------------ resting


class RestingLog(CountingLog):
    """Its partitions end at 0; `rests` are the answers to a reader that waits."""

    def __init__(self, *rests):
        super().__init__()
        self.rests = list(rests)
        self.watched: list[Any] = []

    def bounds(self, partitions, *, at_once=False):
        numbers = list(partitions)
        return Bounds(100, "log-1", dict.fromkeys(numbers, "0"), dict.fromkeys(numbers, "0"))

    def watch(self, ends):
        self.watched.append(dict(ends))
        return self.rests.pop(0)


class Waits:
    """In place of a `Waking`: notes how long the reader would wait; woken at the end."""

    def __init__(self, *woken):
        self.seconds: list[float] = []
        self.woken = list(woken)

    def wait(self, seconds, descriptors=()):
        self.seconds.append(seconds)
        return self.woken.pop(0) if self.woken else False


def resting(log, waits, *lanes):
    reader = reader_of(make(View(*lanes)), log)
    reader._waking = waits
    assert not reader.turn()
    return reader


def test_a_reader_at_all_ends_rests_until_the_log_or_a_thread_calls_it():
    log, waits = RestingLog(Rest(5.0, (7,)), Rest(3.0, (7,)), Rest(9.0, (7,))), Waits(False, True)
    resting(log, waits, 0, 1)._rest()
    assert log.watched == [{0: "0", 1: "0"}] * 2
    assert waits.seconds == [5.0, 3.0]


def test_a_reader_of_a_log_that_wakes_nobody_asks_now_and_then():
    log, waits = RestingLog(None), Waits()
    resting(log, waits, 0)._rest()
    assert waits.seconds == [1.0]


def test_a_reader_that_is_called_in_vain_rests_longer_and_longer():
    log, waits = RestingLog(*[Rest(0.0)] * 12), Waits()
    reader = resting(log, waits, 0)
    for _ in range(12):
        reader._called_at = time.monotonic()
        reader._rest()
    assert waits.seconds == [0.0] + [0.001 * 2**n for n in range(8)] + [0.2] * 3


def test_a_reader_asks_now_and_then_while_a_lane_waits_for_something_else_than_a_message():
    log, waits = RestingLog(), Waits()
    view = View(0, 1)
    lanes = make(view)
    reader = reader_of(lanes, log)
    reader._waking = waits
    view.own(1, state="retiring")
    lanes.follow()
    assert not reader.turn()
    reader._rest()
    assert (log.watched, waits.seconds) == ([], [1.0])


class GrowingLog(CountingLog):
    """Its partitions end where the test says; it knows where a reader's messages are, and how far
    if it `says_how_far`.
    """

    says_how_far = False

    def __init__(self, *partitions):
        super().__init__()
        self.ends = dict.fromkeys(partitions, 0)
        self.sealed: dict[int, Any] = {}
        self.resize, self.cuts = 0, {}

    def bounds(self, partitions, *, at_once=False):
        self.calls.append(("bounds", *partitions))
        ends = {one: str(self.ends[one]) for one in partitions}
        cuts = {one: self.cuts[one] for one in ends if one in self.cuts}
        return Bounds(
            100,
            "log-1",
            dict.fromkeys(ends, "0"),
            ends,
            sealed=self.sealed,
            resize=self.resize,
            cuts=cuts,
        )

    def first(self, ranges, **_limits):
        return {}

    def watch(self, ends):
        self.calls.append("watch")
        moved = {
            one: str(self.ends[one]) if self.says_how_far else None
            for one, end in ends.items()
            if self.ends[one] > int(end)
        }
        return Rest(0.0, moved=moved) if moved else Rest(5.0)

    glance = watch


def growing(monkeypatch, *numbers, view=None):
    """A log, a reader of these partitions that rests at their ends, its lanes, and its clock."""
    now = [0.0]
    monkeypatch.setattr(reading, "time", SimpleNamespace(monotonic=lambda: now[0]))
    log, lanes = GrowingLog(*numbers), make(view or View(*numbers), max_messages=10)
    reader = reader_of(lanes, log)
    reader._waking = Waits()
    assert not reader.turn()
    return log, reader, lanes, now


def woken(reader, log, *, by_a_thread=False):
    """What the log was asked for by a rest, which it or another thread ends, and the turn then."""
    log.calls.clear()
    reader._waking.woken = [by_a_thread]
    reader._rest()
    reader.turn()
    return log.calls


def test_a_turn_asks_only_for_the_partitions_that_the_log_has_named(monkeypatch):
    log, reader, lanes, _ = growing(monkeypatch, *range(50))
    log.ends[7] += 1
    assert woken(reader, log) == ["watch", ("bounds", 7), 7]
    log.ends[8] += 2
    log.ends[30] += 1
    assert woken(reader, log) == ["watch", ("bounds", 8, 30), 8, 30]
    assert [positions_of(lanes.snapshot()[n]) for n in (7, 8, 30, 31)] == [[0], [0, 1], [0], []]


def test_a_turn_asks_for_nothing_if_the_log_has_said_how_far_there_are_messages(monkeypatch):
    log, reader, lanes, _ = growing(monkeypatch, *range(50))
    log.says_how_far = True
    log.ends[7] += 25
    assert woken(reader, log) == ["watch", 7], "up to what the lane holds"
    lanes.take(10, 0)
    log.calls.clear()
    assert reader.turn()
    assert log.calls == [7], "the rest is known"
    assert not reader._at_ends


def test_how_far_there_are_messages_is_not_enough_behind_what_another_owner_has_done(monkeypatch):
    log, reader, lanes, _ = growing(monkeypatch, 0, 1)
    log.says_how_far = True
    log.ends[0] += 3
    lanes.snapshot()[0].grant.above = DoneAbove.of_text("2+1")
    assert woken(reader, log) == ["watch", ("bounds", 0), 0]


def test_what_is_known_is_not_read_where_a_resize_may_have_set_a_cut(monkeypatch):
    """The log says the cuts of those that are asked for, and the view may not know the resize."""
    view = View(0, 1)
    ordered = replace(view()[0], resize=1)
    view.partitions = MappingProxyType({**view(), 0: ordered})
    log, reader, lanes, _ = growing(monkeypatch, 0, 1, view=view)
    log.ends[0], log.resize, log.cuts[0] = 8, 2, "5"
    assert woken(reader, log) == ["watch", ("bounds", 0), 0]
    log.calls.clear()
    reader._glance()
    reader.turn()
    assert ("bounds", 0) in log.calls
    assert lanes.snapshot()[0].read_to == "5"


def test_a_partition_that_begins_to_retire_during_a_turn_is_asked_for_before_it_ends(monkeypatch):
    view = View(0, 1)
    log, reader, lanes, _ = growing(monkeypatch, 0, 1, view=view)
    log.ends[1] += 1

    def bounds(partitions, *, at_once=False):
        view.own(0, state="retiring")
        lanes.follow()
        log.ends[0] = 3
        return replace(GrowingLog.bounds(log, partitions), partition_count=0)

    log.bounds = bounds
    assert woken(reader, log) == ["watch", ("bounds", 1), 1]
    del log.bounds
    log.calls.clear()
    reader.turn()
    assert log.calls[0] == ("bounds", 0)
    assert positions_of(lanes.snapshot()[0]) == [0, 1, 2]


def test_all_partitions_are_asked_for_now_and_then(monkeypatch):
    log, reader, _, now = growing(monkeypatch, 0, 1)
    log.ends[1] += 1
    now[0] += reading.ALL_SECONDS
    assert woken(reader, log) == ["watch", ("bounds", 0, 1), 1]


def test_all_partitions_are_asked_for_if_the_log_does_not_say_where_it_has_messages(monkeypatch):
    log, reader, _, _ = growing(monkeypatch, 0, 1)
    for answer in (Rest(0.0), None):
        log.watch = lambda _ends, answer=answer: answer
        assert woken(reader, log) == [("bounds", 0, 1)]


def test_a_reader_that_another_thread_calls_asks_for_no_lane_for_which_the_log_waits(monkeypatch):
    log, reader, _, _ = growing(monkeypatch, 0, 1)
    assert woken(reader, log, by_a_thread=True) == ["watch"]
    log.ends[0] += 1
    assert woken(reader, log) == ["watch", ("bounds", 0), 0], "it hears of the messages next"


def test_a_lane_that_is_full_keeps_no_other_from_resting_at_its_end(monkeypatch):
    log, reader, lanes, _ = growing(monkeypatch, 0, 1)
    log.ends[0] += 8
    assert woken(reader, log) == ["watch", ("bounds", 0), 0]
    log.ends[0] += 8
    assert woken(reader, log) == ["watch"]
    assert [lane.partition for lane in lanes.wanting()] == [1]
    log.ends[1] += 1
    assert woken(reader, log) == ["watch", ("bounds", 1), 1]


def test_a_lane_that_comes_is_asked_for_alone(monkeypatch):
    """It has no position."""
    view = View(0, 1)
    log, reader, lanes, _ = growing(monkeypatch, 0, 1, view=view)
    log.ends[2] = 1
    view.own(2, position=None)
    lanes.follow()
    assert woken(reader, log, by_a_thread=True) == ["watch", ("bounds", 2), 2]
    assert positions_of(lanes.snapshot()[2]) == [0]
    assert len(reader._at_ends) == 3


def test_while_a_lane_is_read_the_log_is_asked_for_messages_in_those_that_wait(monkeypatch):
    view = View(0, 1)
    log, reader, lanes, _ = growing(monkeypatch, 0, 1, view=view)
    log.ends[2] = 25
    view.own(2)
    lanes.follow()
    assert woken(reader, log, by_a_thread=True) == ["watch", ("bounds", 2), 2]
    assert not reader._at_ends, "it holds no more of them"
    log.ends[1] += 1
    log.calls.clear()
    reader._glance()
    reader.turn()
    assert log.calls == ["watch", ("bounds", 1), 1]


def test_a_lane_that_was_lost_and_came_again_is_asked_for(monkeypatch):
    view = View(0, 1)
    log, reader, lanes, _ = growing(monkeypatch, 0, 1, view=view)
    view.lose(1)
    lanes.follow()
    view.own(1, epoch=7)
    lanes.follow()
    assert woken(reader, log, by_a_thread=True) == ["watch", ("bounds", 1)]


def test_a_range_without_messages_behind_a_message_in_work_is_no_work(monkeypatch):
    log, reader, lanes, _ = growing(monkeypatch, 0)
    log.ends[0] += 1
    woken(reader, log)
    lanes.take(1, 0)
    log.ends[0] += 1
    log.rows = lambda *_, **__: iter(())
    assert not reader.turn()


@pytest.mark.parametrize("case", ["is read in parts", "ends for good"])
def test_a_reader_does_not_rest_at_the_end_of_a_partition_that(case, monkeypatch):
    log, reader, _, _ = growing(monkeypatch, 0, 1)
    log.ends[0] += 25 if case == "is read in parts" else 1
    if case == "ends for good":
        log.sealed[0] = 0
    assert woken(reader, log) == ["watch", ("bounds", 0), 0]
    assert not reader._at_ends


# ------------------------------------------------------------------ partitions without a leader


class Leaderless(CountingLog):
    """Some of its partitions cannot be asked for now, unless the reader waits for them."""

    def __init__(self, *missing):
        super().__init__()
        self.missing = set(missing)

    def bounds(self, partitions, *, at_once=False):
        assert at_once
        known = super().bounds([one for one in partitions if one not in self.missing])
        return replace(known, unanswered=frozenset(self.missing & {*partitions}))


def test_partitions_without_a_leader_keep_no_other_waiting(monkeypatch):
    monkeypatch.setattr(reading, "APART_SECONDS", 1000.0)
    lanes, log = make(View(0, 1, 2), max_messages=FIRST_MESSAGES), Leaderless(1)
    reader = reader_of(lanes, log)
    assert reader.turn()
    assert log.calls == ["bounds", ("first", 0, 2)], "the others follow without another question"
    assert [len(positions_of(lane)) for lane in lanes.snapshot()] == [
        FIRST_MESSAGES,
        0,
        FIRST_MESSAGES,
    ]
    assert not reader.turn(), "nothing is asked for again and again"
    assert not reader.away, "the log itself is there"
    assert reader.away_for(3600.0) is None
    assert "partition 1 has no leader" in str(reader.away_for(0.0))


def test_a_partition_that_was_set_apart_is_asked_for_again_and_read(monkeypatch):
    monkeypatch.setattr(reading, "APART_SECONDS", 0.0)
    lanes, log = make(View(0, 1), max_messages=FIRST_MESSAGES), Leaderless(1)
    reader = reader_of(lanes, log)
    reader.turn()
    log.missing.clear()
    assert reader.turn()
    assert [len(positions_of(lane)) for lane in lanes.snapshot()] == [FIRST_MESSAGES] * 2
    assert reader.away_for(0.0) is None


def test_what_is_set_apart_and_revoked_is_no_trouble_any_more(monkeypatch):
    monkeypatch.setattr(reading, "APART_SECONDS", 1000.0)
    view = View(1)
    lanes, log = make(view, max_messages=FIRST_MESSAGES), Leaderless(1)
    reader = reader_of(lanes, log)
    assert not reader.turn(), "there is nothing to read"
    assert reader.away_for(0.0) is not None
    view.lose(1)
    lanes.follow()
    assert not reader.turn()
    assert reader.away_for(0.0) is None


def test_a_reader_rests_until_what_is_set_apart_is_to_be_asked_for(monkeypatch):
    log, reader, _, now = growing(monkeypatch, 0)
    reader._apart = {1: (now[0], now[0] + 0.25)}
    reader._rest()
    assert reader._waking.seconds == [0.25], "the log would wake it for the other one only"
    assert log.calls[-1] == "watch"


def test_partitions_without_a_leader_are_asked_for_less_and_less_often(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(reading, "time", SimpleNamespace(monotonic=lambda: now[0]))
    reader = reader_of(make(View(0, 1)), Leaderless(1))
    pauses = []
    for _ in range(9):
        reader.turn()
        pauses.append(reader._apart_seconds())
        now[0] += pauses[-1]
    assert pauses[:2] == [0.1, 0.1]
    assert pauses == sorted(pauses)
    assert pauses[-1] == pytest.approx(1.0)


def test_a_log_that_was_away_may_be_missing_as_long_as_any_other(monkeypatch):
    """It came up empty, and is made anew in a minute; so does a partition that lost its end."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    lanes = make(View(0))
    reader = reader_of(lanes, CountingLog())
    lanes.snapshot()[0].ahead_since = now[0]
    reader._failed(LogNotFound("missing"))
    now[0] += reading.LOG_APPEARS_SECONDS - 1
    reader._failed(LogUnavailable("away"))
    assert lanes.snapshot()[0].ahead_since is None
    now[0] += 10
    reader._failed(LogNotFound("missing"))
    now[0] += reading.LOG_APPEARS_SECONDS + 1
    with pytest.raises(LogNotFound):
        reader._failed(LogNotFound("missing"))
