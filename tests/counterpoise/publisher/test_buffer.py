"""What waits and what is on its way: which batches may be on their way together, and when."""

import itertools
from collections import defaultdict

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from counterpoise.keys import hash_of, partition_of
from counterpoise.logs import Message
from counterpoise.logs.ranges import HASHES, HashRange, Ranges, equal_ranges
from counterpoise.publisher.buffer import Buffer, Routing

LINGER = 5.0


def buffer_with(*keys, stripes=1, batch_messages=4, batch_bytes=1000, routing=None):
    buffer = Buffer(batch_messages, batch_bytes)
    buffer.arrange(routing or Routing(2), stripes)
    for key in keys:
        buffer.put(Message(key.encode(), key), 10, 0.0)
    return buffer


def key_of(partition):
    return next(key for key in map(str, itertools.count()) if partition_of(key, 2) == partition)


def take(buffer, now=0.0, *, urgent_below=0):
    return buffer.take(now, LINGER, urgent_below)


def keys_in(batch):
    return [message.key for message in batch.messages]


EVEN, ODD = key_of(0), key_of(1)


def test_a_batch_is_due_when_it_is_full_or_has_waited_or_is_urgent():
    buffer = buffer_with("a", "b", "c")
    assert take(buffer) is None
    assert buffer.due_in(1.0, LINGER, 0) == 4.0
    assert buffer.due_in(9.0, LINGER, 0) == 0.0
    assert buffer.due_in(0.0, LINGER, urgent_below=1) == 0.0
    assert buffer.put(Message(b"d", "d"), 10, 1.0)
    assert keys_in(take(buffer)) == ["a", "b", "c", "d"]
    assert buffer.due_in(0.0, LINGER, 0) is None


def test_a_batch_has_no_more_bytes_than_it_may_but_a_message_of_any_size_gets_through():
    buffer = buffer_with(batch_bytes=100)
    for number, size in enumerate((60, 60, 500, 10)):
        buffer.put(Message(b"", str(number)), size, 0.0)
    batches = []
    while (batch := take(buffer, urgent_below=4)) is not None:
        buffer.delivered(batch)
        batches.append(keys_in(batch))
    assert batches == [["0"], ["1"], ["2"], ["3"]]
    assert (buffer.messages, buffer.size_bytes, buffer.unconfirmed) == (0, 0, 0)


def test_with_one_stripe_one_batch_is_on_its_way():
    buffer = buffer_with(*"abcdefgh")
    first = take(buffer)
    assert take(buffer) is None
    assert buffer.due_in(0.0, LINGER, 0) is None
    buffer.delivered(first)
    assert keys_in(take(buffer)) == list("efgh")


def test_with_two_stripes_two_batches_of_different_partitions_are_on_their_way():
    buffer = buffer_with(*[EVEN, ODD] * 4, stripes=2)
    first, second = take(buffer), take(buffer)
    assert {*keys_in(first)} | {*keys_in(second)} == {EVEN, ODD}
    assert len({*keys_in(first)}) == len({*keys_in(second)}) == 1
    buffer.put(Message(b"", EVEN), 10, 0.0)
    assert take(buffer, now=9.0) is None


def test_what_fits_into_one_batch_is_taken_from_all_stripes_in_the_order_of_publish():
    buffer = buffer_with(EVEN, ODD, EVEN, stripes=2)
    batch = take(buffer, now=9.0)
    assert keys_in(batch) == [EVEN, ODD, EVEN]
    buffer.put(Message(b"", ODD), 10, 0.0)
    assert take(buffer, now=99.0) is None


def test_beside_a_batch_on_its_way_only_other_stripes_are_taken():
    buffer = buffer_with(*[EVEN] * 5, stripes=2)
    take(buffer)
    for key in (EVEN, ODD):
        buffer.put(Message(b"", key), 10, 0.0)
    assert keys_in(take(buffer, now=9.0)) == [ODD]


def test_a_stripe_is_full_with_its_share_of_a_batch():
    """Else the stripe that the other one leaves idle would wait for twice as many messages."""
    buffer = buffer_with(*[EVEN] * 8, stripes=2)
    assert keys_in(take(buffer)) == [EVEN] * 4
    assert not buffer.put(Message(b"", EVEN), 10, 0.0)
    assert buffer.put(Message(b"", ODD), 10, 0.0)
    assert take(buffer) is None
    assert buffer.put(Message(b"", ODD), 10, 0.0)
    assert keys_in(take(buffer)) == [ODD, ODD]


def test_the_stripe_that_has_waited_longest_is_taken_first():
    buffer = buffer_with(stripes=2, batch_messages=2)
    for key, now in ((EVEN, 0.0), (ODD, 1.0), (EVEN, 2.0), (ODD, 3.0)):
        buffer.put(Message(b"", key), 10, now)
    first = take(buffer, now=4.0)
    assert set(keys_in(first)) == {EVEN}
    buffer.put(Message(b"", EVEN), 10, 5.0)
    buffer.put(Message(b"", EVEN), 10, 5.0)
    buffer.delivered(first)
    assert set(keys_in(take(buffer, now=6.0))) == {ODD}


def test_after_a_change_of_partitions_a_batch_on_its_way_holds_all_stripes():
    """A key of it may be in the other stripe now."""
    moves = next(k for k in map(str, range(99)) if partition_of(k, 2) != partition_of(k, 3) % 2)
    buffer = buffer_with(*[moves] * 5, stripes=2)
    batch = take(buffer)
    buffer.arrange(Routing(3), 2)
    buffer.put(Message(b"", moves), 10, 0.0)
    assert take(buffer, now=9.0) is None
    buffer.delivered(batch)
    assert keys_in(take(buffer, now=9.0)) == [moves, moves]


def test_stripes_can_be_more_or_fewer_again():
    buffer = buffer_with(*[EVEN, ODD] * 4)
    assert buffer.stripes == 1
    buffer.arrange(Routing(2), 2)
    first, second = take(buffer), take(buffer)
    assert first is not None
    assert second is not None
    buffer.put(Message(b"", ODD), 10, 0.0)
    buffer.arrange(Routing(2), 1)
    buffer.delivered(first)
    assert take(buffer, now=9.0) is None
    buffer.delivered(second)
    assert keys_in(take(buffer, now=9.0)) == [ODD]


def test_there_is_one_stripe_while_no_partitions_are_known():
    buffer = buffer_with(*[EVEN, ODD] * 4)
    buffer.arrange(None, 2)
    assert buffer.stripes == 1


@pytest.mark.parametrize("routing", [Routing(3), Routing(0, Ranges(equal_ranges(3)))])
def test_messages_without_a_key_take_turns(routing):
    buffer = Buffer(100, 1000, first_turn=7)
    buffer.arrange(routing, 1)
    for _ in range(6):
        buffer.put(Message(b""), 1, 0.0)
    batch = take(buffer, now=9.0)
    partitions = map(routing.partition, batch.messages, batch.numbers)
    assert list(partitions) == [1, 2, 0, 1, 2, 0]


def test_confirmed_is_what_no_earlier_message_is_missing_before():
    buffer = buffer_with(*[EVEN, EVEN, ODD, ODD], EVEN, stripes=2, batch_messages=2)
    first, second = take(buffer), take(buffer)
    assert (buffer.confirmed_below, buffer.unconfirmed) == (0, 5)
    buffer.delivered(second)
    assert (buffer.confirmed_below, buffer.unconfirmed) == (0, 3)
    buffer.delivered(first)
    assert (buffer.confirmed_below, buffer.unconfirmed) == (4, 1)
    buffer.delivered(take(buffer, now=9.0))
    assert (buffer.confirmed_below, buffer.unconfirmed) == (5, 0)


def halves(number):
    """The ranges of a log after its first partition was split at `number`."""
    edge = HASHES // (number + 1)
    return Ranges([HashRange(0, edge - 1, 2), HashRange(edge, HASHES - 1, 1)])


routings = st.one_of(
    st.builds(Routing, st.integers(1, 5)),
    st.builds(lambda number: Routing(0, halves(number)), st.integers(1, 4)),
)


class Machine(RuleBasedStateMachine):
    """Any order of calls: each message once, each key's in order and in one batch at a time."""

    on_their_way = Bundle("batches")

    def __init__(self):
        super().__init__()
        self.buffer = Buffer(5, 100)
        self.published = defaultdict(list)
        self.taken = defaultdict(list)
        self.flying = []
        self.open = set()
        self.now = 0.0
        self.ordinal = 0

    @initialize(routing=routings, stripes=st.integers(1, 3))
    def begin(self, routing, stripes):
        self.buffer.arrange(routing, stripes)

    @rule(keys=st.lists(st.one_of(st.none(), st.sampled_from("abcdefgh")), max_size=12))
    def put(self, keys):
        for key in keys:
            self.published[key].append(self.ordinal)
            self.open.add(self.ordinal)
            self.buffer.put(Message(str(self.ordinal).encode(), key), 7, self.now)
            self.ordinal += 1

    @rule(target=on_their_way, seconds=st.sampled_from([0.0, 3.0, 6.0]), all_at_once=st.booleans())
    def take(self, seconds, all_at_once):
        self.now += seconds
        urgent_below = self.ordinal if all_at_once else 0
        due = self.buffer.due_in(self.now, LINGER, urgent_below)
        batch = self.buffer.take(self.now, LINGER, urgent_below)
        assert (batch is not None) == (due == 0.0)
        if batch is None:
            return multiple()
        assert 1 <= len(batch.messages) <= 5
        keys = {message.key for message in batch.messages} - {None}
        for other in self.flying:
            assert keys.isdisjoint(message.key for message in other.messages)
        for message, number in zip(batch.messages, batch.numbers, strict=True):
            assert message.key is None or number == hash_of(message.key)
            self.taken[message.key].append(int(message.value))
        self.flying.append(batch)
        return batch

    @rule(batch=consumes(on_their_way))
    def deliver(self, batch):
        self.buffer.delivered(batch)
        self.flying.remove(batch)
        self.open -= {int(message.value) for message in batch.messages}

    @rule(routing=st.one_of(st.none(), routings), stripes=st.integers(1, 3))
    def arrange(self, routing, stripes):
        self.buffer.arrange(routing, stripes)

    @invariant()
    def each_key_is_in_order(self):
        for key, taken in self.taken.items():
            if key is not None:
                assert taken == self.published[key][: len(taken)]
        assert len({*self.taken[None]}) == len(self.taken[None])

    @invariant()
    def it_counts(self):
        assert self.buffer.unconfirmed == len(self.open)
        assert self.buffer.confirmed_below == min(self.open, default=self.ordinal)
        flying = sum(len(batch.messages) for batch in self.flying)
        assert self.buffer.messages == len(self.open) - flying
        assert self.buffer.size_bytes == 7 * self.buffer.messages
        assert self.buffer.accepted == self.ordinal

    @invariant()
    def something_can_be_taken_once_nothing_is_on_its_way(self):
        if not self.flying and self.buffer.messages:
            assert self.buffer.due_in(self.now, LINGER, self.ordinal) == 0.0


TestMachine = Machine.TestCase
