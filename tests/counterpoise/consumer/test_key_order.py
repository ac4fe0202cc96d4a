"""Lanes in key order: each key in order, different keys at once, and nothing done twice."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from counterpoise.consumer.key_order import KeyWindow
from counterpoise.consumer.lanes import MOST_RANGES, Chunk, KeyedPiece, Lane, Lanes
from counterpoise.flow.done_above import DoneAbove
from counterpoise.flow.view import Owned
from counterpoise.logs import LogError
from counterpoise.logs.rows import Columns, Rows
from counterpoise.wire import CommitItem
from tests.counterpoise.consumer.test_lanes import View


class Partition:
    """The messages of a partition: keys by position. Positions have holes."""

    def __init__(self, keys: dict[int, str | None], end: int) -> None:
        self.keys, self.end = keys, end

    @classmethod
    def of(cls, keys: list[str | None]) -> Partition:
        return cls(dict(enumerate(keys)), len(keys))

    def read(self, lanes: Lanes, lane: Lane, most: int) -> None:
        """As the reader reads the next messages into a lane."""
        start = int(lane.read_to or 0)
        places = [at for at in sorted(self.keys) if at >= start]
        some, rest = places[:most], places[most:]
        read_to = rest[0] if rest else self.end
        if read_to == start:
            return
        columns = Columns(
            lane.partition,
            some,
            [0] * len(some),
            [None if (key := self.keys[at]) is None else key.encode() for at in some],
            [b"x"] * len(some),
            [None] * len(some),
        )
        chunks = [Chunk(Rows(columns), str(read_to))] if some else []
        lanes.add(lane, str(start), chunks, str(read_to), more=bool(rest))


def made(partition: Partition, owned: Owned | None = None, **options: Any) -> Lanes:
    """Lanes that own partition 0, with what they want of it read."""
    view = View(0)
    if owned is not None:
        view.partitions = {0: owned}  # type: ignore[assignment]
    given = {"max_messages": 1000, "max_bytes": 10**6, "by_key": True, **options}
    lanes = Lanes(view, **given)
    lanes.view = view  # type: ignore[attr-defined]
    lanes.follow()
    read(lanes, partition)
    return lanes


def read(lanes: Lanes, partition: Partition) -> None:
    for lane in lanes.wanting():
        partition.read(lanes, lane, lanes.room(lane)[0])


def take(lanes: Lanes) -> KeyedPiece | None:
    piece = lanes.take(100, 0)
    assert piece is None or isinstance(piece, KeyedPiece)
    return piece


def take_all(lanes: Lanes) -> dict[int, KeyedPiece]:
    """All that may be in work at once, by position."""
    taken: dict[int, KeyedPiece] = {}
    while (piece := take(lanes)) is not None:
        taken[int(piece.one.message.position)] = piece
    return taken


def committed(lanes: Lanes) -> CommitItem:
    (item,) = lanes.to_commit(everything=True)
    return item


def test_the_first_message_of_each_key_may_begin() -> None:
    lanes = made(Partition.of(["a", "a", "b", None, None, "b", "c"]))
    assert [*take_all(lanes)] == [0, 2, 3, 4, 6]


def test_the_next_of_a_key_begins_when_the_one_before_is_done() -> None:
    lanes = made(Partition.of(["a", "a", "b", "a"]))
    taken = take_all(lanes)
    lanes.finish(taken[0], handled=True)
    after = take_all(lanes)
    assert [*after] == [1]
    assert committed(lanes) == CommitItem(0, 1, "1")
    lanes.finish(taken[2], handled=True)
    assert committed(lanes) == CommitItem(0, 1, "1", done_above="2+1")
    lanes.finish(after[1], handled=True)
    assert committed(lanes) == CommitItem(0, 1, "3")


def test_what_is_done_above_is_due_for_a_commit_although_the_position_stays() -> None:
    lanes = made(Partition.of(["a", "b", "c"]))
    taken = take_all(lanes)
    assert lanes.to_commit() == ()
    lanes.finish(taken[1], handled=True)
    (item,) = lanes.to_commit()
    assert item == CommitItem(0, 1, "0", done_above="1+1")
    lanes.answered(item, "ok")
    assert lanes.to_commit() == ()


def test_holes_belong_to_the_message_before_them() -> None:
    lanes = made(Partition({3: "a", 7: "b", 9: "c"}, 20))
    taken = take_all(lanes)
    lanes.finish(taken[7], handled=True)
    lanes.finish(taken[9], handled=True)
    assert committed(lanes) == CommitItem(0, 1, "0", done_above="7+13")
    lanes.finish(taken[3], handled=True)
    assert committed(lanes) == CommitItem(0, 1, "20")


def test_the_next_owner_begins_nothing_that_is_done() -> None:
    partition = Partition.of(["a", "b", "a", "d", "c"])
    owned = Owned(0, 2, "owned", "1", "orphaned", done_above="2+1,1+1")
    assert [*take_all(made(partition, owned))] == [1, 3]
    in_order = made(partition, owned, by_key=False)
    seen: list[str] = []
    while (piece := in_order.take(100, 0)) is not None:
        rows = piece.chunk.rows  # type: ignore[union-attr]
        seen += rows.columns().positions
        piece.lane.grant.done = piece.chunk.end  # type: ignore[union-attr]
        in_order.put_back(piece, len(rows))  # type: ignore[arg-type]
        if seen == ["1"]:
            assert committed(in_order) == CommitItem(0, 2, "3", done_above="4+1")
    assert seen == ["1", "3"]
    assert committed(in_order) == CommitItem(0, 2, "5")


def test_a_failed_message_keeps_only_its_key_waiting() -> None:
    lanes = made(Partition.of(["a", "b", "a", "b"]))
    taken = take_all(lanes)
    lanes.finish(taken[0], handled=False, not_before=10.0)
    lanes.finish(taken[1], handled=True)
    assert [*take_all(lanes)] == [3]
    assert lanes.call_due(9.0) == 10.0
    assert take(lanes) is None
    assert lanes.call_due(10.0) is None
    assert [*take_all(lanes)] == [0]


@pytest.mark.parametrize("by", ["messages", "ranges"])
def test_a_lane_that_a_waiting_message_fills_is_told_once(by: str) -> None:
    """Every other message is of one key, whose first one has failed."""
    count, most = (4 * MOST_RANGES, 10**4) if by == "ranges" else (8, 4)
    keys = ["away" if number % 2 == 0 else f"k{number}" for number in range(count)]
    partition = Partition.of([*keys])
    lanes = made(partition, max_messages=most)
    failed = take(lanes)
    assert failed is not None
    lanes.finish(failed, handled=False, not_before=10.0)
    (lane,) = lanes.snapshot()
    assert lanes.filled() == []
    while (piece := take(lanes)) is not None:
        lanes.finish(piece, handled=True)
        read(lanes, partition)
    # Of the key all that was read: 0, 2 and 4, or every other one.
    assert lane.set_aside == (3 if by == "messages" else count // 2)
    assert lanes.filled() == [lane]
    assert lanes.filled() == []
    lanes.call_due(10.0)
    assert lanes.filled() == []
    (again,) = take_all(lanes).values()
    lanes.finish(again, handled=False, not_before=20.0)
    assert lanes.filled() == [lane]
    # A key in quarantine is told in its own way.
    lanes.call_due(20.0)
    (again,) = take_all(lanes).values()
    assert lanes.filled() == []
    lanes.quarantine(lane, again.one)
    lanes.finish(again, handled=False)
    assert lanes.filled() == []


def test_a_quarantined_key_stops_alone_until_it_is_resumed() -> None:
    lanes = made(Partition.of(["a", "b", "a", "b"]))
    taken = take_all(lanes)
    (lane,) = lanes.snapshot()
    lanes.quarantine(lane, taken[0].one)
    lanes.finish(taken[0], handled=False, not_before=1.0)
    assert lanes.quarantined() == [lane]
    lanes.finish(taken[1], handled=True)
    after = take_all(lanes)
    assert [*after] == [3]
    lanes.finish(after[3], handled=True)
    assert take(lanes) is None
    assert lanes.resume_lane(0)
    assert lanes.quarantined() == []
    assert [*take_all(lanes)] == [0]
    assert not lanes.resume_lane(0)


def test_a_key_resumed_while_its_message_is_in_hand_is_tried_again() -> None:
    lanes = made(Partition.of(["a"]))
    taken = take_all(lanes)
    (lane,) = lanes.snapshot()
    lanes.quarantine(lane, taken[0].one)
    assert lanes.resume_lane(0)
    lanes.finish(taken[0], handled=False)
    assert [*take_all(lanes)] == [0]


def test_a_quarantined_key_takes_nothing_of_the_limit() -> None:
    """Else a consumer with a limit would wait for what it does not handle."""
    partition = Partition.of(["a", "a", "b", "c", "d", "e"])
    lanes = made(partition, limit=3)
    taken = take_all(lanes)
    (lane,) = lanes.snapshot()
    lanes.quarantine(lane, taken[0].one)
    lanes.finish(taken[0], handled=False)
    lanes.finish(taken[2], handled=True)
    read(lanes, partition)
    other = take(lanes)
    assert other is not None
    assert other.one.begin == 3
    # With those of the key there would be more than the limit.
    assert lanes.resume_lane(0)
    read(lanes, partition)
    assert take(lanes) is None
    lanes.finish(other, handled=True)
    read(lanes, partition)
    assert [*take_all(lanes)] == [0]


def test_a_slow_key_holds_its_partition_only_at_the_bound() -> None:
    """Every other message is of one key, whose first one is in hand for ever."""
    keys = ["slow" if number % 2 == 0 else f"k{number}" for number in range(4 * MOST_RANGES)]
    lanes = made(Partition.of([*keys]), max_messages=10**4)
    slow = take(lanes)
    assert slow is not None
    count = 0
    while (piece := take(lanes)) is not None:
        lanes.finish(piece, handled=True)
        count += 1
    assert count == MOST_RANGES
    # The lowest may always begin, also again.
    lanes.finish(slow, handled=False)
    again = take_all(lanes)
    assert [*again] == [0]
    lanes.finish(again[0], handled=True)
    assert 2 in take_all(lanes)


def test_ranges_of_many_partitions_fit_into_one_call() -> None:
    lanes = Lanes(View(*range(4000)), max_messages=100, max_bytes=10**6, by_key=True)
    lanes.follow()
    partition = Partition.of(["slow", *(f"k{number % 9}" for number in range(60)), "slow"])
    lane = lanes.snapshot()[0]
    partition.keys |= dict.fromkeys(range(0, 60, 2), "slow")
    partition.read(lanes, lane, 100)
    assert take(lanes) is not None
    while (piece := take(lanes)) is not None:
        lanes.finish(piece, handled=True)
    assert len(lane.grant.above or ()) == 4


def test_what_is_dropped_is_read_again_once_nothing_is_in_hand() -> None:
    partition = Partition.of(["a", "b", "a", "b", "c"])
    lanes = made(partition)
    view: View = lanes.view  # type: ignore[attr-defined]
    taken = take_all(lanes)
    view.pause(0)
    lanes.follow()
    lanes.finish(taken[1], handled=True)
    lanes.finish(taken[4], handled=False)
    view.own(0)
    lanes.follow()
    assert lanes.wanting() == [], "the message at 0 is in hand"
    lanes.finish(taken[0], handled=False)
    read(lanes, partition)
    assert [*take_all(lanes)] == [0, 3, 4]


def test_a_release_waits_for_all_in_hand_and_brings_what_is_done_above() -> None:
    lanes = made(Partition.of(["a", "b", "a"]))
    view: View = lanes.view  # type: ignore[attr-defined]
    taken = take_all(lanes)
    view.own(0, state="revoking")
    lanes.follow()
    lanes.finish(taken[1], handled=True)
    assert lanes.to_release() == ()
    assert lanes.in_work() == 1
    lanes.finish(taken[0], handled=False)
    (item,) = lanes.to_release()
    assert (item.position, item.done_above) == ("0", "1+1")


def test_a_later_grant_waits_for_what_is_in_hand_of_the_earlier_one() -> None:
    partition = Partition.of(["a", "b"])
    lanes = made(partition)
    view: View = lanes.view  # type: ignore[attr-defined]
    first = take_all(lanes)
    view.lose(0)
    lanes.follow()
    view.own(0, epoch=3)
    lanes.follow()
    read(lanes, partition)
    lanes.finish(first[0], handled=True)
    assert take(lanes) is None
    lanes.finish(first[1], handled=True)
    assert [*take_all(lanes)] == [0, 1]


def test_other_positions_end_the_consumer_with_a_clear_error() -> None:
    with pytest.raises(LogError, match='order="key" needs positions that are whole numbers'):
        KeyWindow(DoneAbove()).add("shard-7:a", [], "shard-7:b")


def some_messages(rng: random.Random) -> Partition:
    keys, end, count = dict[int, str | None](), 0, rng.choice((1, 4, 30))
    for _ in range(rng.randint(1, 120)):
        end += rng.choice((0, 0, 0, 3))
        keys[end] = rng.choice((None, *(f"k{number}" for number in range(count))))
        end += 1
    return Partition(keys, end)


class Life:
    """One owner after another, each killed at any moment but the last. Checks what is begun."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.partition = some_messages(self.rng)
        self.done: set[int] = set()
        # What may come again: it was in flight at the kill, or done after the last commit.
        self.repeatable: set[int] = set()
        self.owned = Owned(0, 1, "owned", None, "initial")

    def own(self, steps: int) -> bool:
        """An owner for so many steps; returns whether it came to the end."""
        rng, done = self.rng, set(self.done)
        lanes = made(self.partition, self.owned, max_messages=rng.choice((4, 20)))
        view: View = lanes.view  # type: ignore[attr-defined]
        (lane,) = lanes.snapshot()
        if lane.read_to is None:
            lanes.begin_at(lane, "0")
        said = CommitItem(
            0, self.owned.epoch, lane.grant.done or "0", done_above=self.owned.done_above
        )
        hand: dict[int, KeyedPiece] = {}
        mine: set[int] = set()
        since: set[int] = set()
        for _ in range(steps):
            match rng.choices(
                ("read", "begin", "end", "pauses", "commit", "pause", "resume"),
                (30, 30, 25, 5, 5, 2, 3),
            ):
                case ["read"]:
                    read(lanes, self.partition)
                case ["begin"] if (piece := take(lanes)) is not None:
                    at = int(piece.one.message.position)
                    self._check(at, mine, done, hand)
                    hand[at] = piece
                case ["end"] if hand:
                    at = rng.choice([*hand])
                    handled = rng.random() < 0.8
                    lanes.finish(hand.pop(at), handled=handled, not_before=rng.choice((0.0, 5.0)))
                    if handled:
                        mine.add(at)
                        since.add(at)
                        self.done.add(at)
                case ["pauses"]:
                    lanes.call_due(10.0)
                case ["commit"]:
                    said, since = committed(lanes), set()
                    lanes.answered(said, "ok")
                case ["pause"]:
                    view.pause(0)
                    lanes.follow()
                case ["resume"]:
                    view.partitions = {0: replace(self.owned)}  # type: ignore[assignment]
                    lanes.follow()
            if lane.grant.done == str(self.partition.end):
                return True
        self.repeatable = (self.repeatable - mine) | set(hand) | since
        self.owned = Owned(
            0,
            self.owned.epoch + 1,
            "owned",
            said.position,
            "orphaned",
            done_above=said.done_above,
        )
        return False

    def _check(
        self, at: int, mine: set[int], before: set[int], hand: dict[int, KeyedPiece]
    ) -> None:
        key = self.partition.keys[at]
        assert at not in hand
        assert at not in mine, "nothing twice"
        assert at not in before or at in self.repeatable, "only what was in flight comes again"
        if key is not None:
            assert key not in [one.one.message.key for one in hand.values()]
            earlier = {p for p, of in self.partition.keys.items() if of == key and p < at}
            assert earlier <= self.done, "each key in order"


@pytest.mark.parametrize("seed", range(60))
def test_any_interleaving_keeps_each_key_in_order_and_repeats_only_what_was_in_flight(
    seed: int,
) -> None:
    life = Life(seed)
    while not life.own(life.rng.choice((40, 400, 10**5))):
        pass
    assert life.done == {*life.partition.keys}
