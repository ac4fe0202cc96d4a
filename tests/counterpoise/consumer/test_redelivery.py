"""Delayed redelivery: what fails is set aside, the other keys go on, and no key is overtaken."""

import threading
from collections import Counter
from functools import partial

import pytest

from counterpoise.consumer import Consumer, DeadLetter, Retry, WrongQueue, retry_queue
from counterpoise.consumer.message import Message
from counterpoise.errors import QueueNotFound
from counterpoise.keys import partition_of
from counterpoise.logs import LogUnavailable
from counterpoise.publisher import Publisher
from tests.counterpoise.consumer.conftest import in_order, on_each_log, positions
from tests.counterpoise.consumer.test_poison import POISON, Picky
from tests.counterpoise.leases import LONG_SECONDS
from tests.service import eventually

LONG = 3600.0
# Never for the last time.
OFTEN = [0.5] * 100_000
# The numbers behind the poison that have its key.
BEHIND = [number for number in range(POISON + 1, 60) if number % 7 == POISON % 7]


@pytest.fixture
def running(running):
    """Consumers that wait for a slow service, and keep their leases."""
    return partial(running, lease_seconds=LONG_SECONDS, timeout_seconds=60)


@pytest.fixture
def retries(client, log_of, monkeypatch):
    """The retry queue, with another number of partitions, and swept often."""
    monkeypatch.setattr(retry_queue, "SWEEP_SECONDS", 0.5)
    monkeypatch.setattr(retry_queue, "CALL_SECONDS", 60)
    client.create_queue("retries", rebalance_delay=0, **log_of(3))
    return "retries"


def unswept(client):
    """How many records the keepers have not passed."""
    return sum(one.lag or 0 for one in client.partitions("retries"))


def at_end(client, count):
    return sum(int(position or 0) for position in positions(client).values()) == count


@on_each_log
def test_the_other_keys_go_on_and_the_key_waits(client, running, publish, retries):
    publish(range(60))
    with running(Picky(), on_poison=Retry(retries, after_seconds=[LONG])) as one:
        eventually(lambda: one.consumer.set_aside == 1 + len(BEHIND))
        eventually(lambda: at_end(client, 60))
        assert set(one.numbers) == set(range(60)) - {POISON, *BEHIND}
        (lane,) = (lane for lane in one.consumer.status().partitions.values() if lane.set_aside)
        assert lane.set_aside == 1 + len(BEHIND)
        # People see it in the lag of the retry queue.
        eventually(lambda: unswept(client) == 1 + len(BEHIND))
    assert one.consumer.handled == 60
    assert in_order(one)


@pytest.mark.long
@on_each_log
def test_a_message_that_succeeds_later_is_followed_by_its_key(client, running, publish, retries):
    publish(range(60))
    picky = Picky(times=2)
    with running(picky, on_poison=Retry(retries, after_seconds=[0.05, 0.05]), concurrency=2) as one:
        eventually(lambda: len(one.seen) == 60)
        eventually(lambda: one.consumer.set_aside == 0)
        # Nothing is held any more.
        publish(range(60, 120))
        eventually(lambda: len(one.seen) == 120)
        eventually(lambda: unswept(client) == 0)
    assert picky.asked[POISON] == 3
    assert sorted(one.numbers) == list(range(120))
    assert in_order(one)


@pytest.mark.long
@on_each_log
def test_what_comes_again_is_what_was_published(running, publish, retries):
    publish(range(60))
    failed: list[Message] = []

    def fail_once(message):
        if int(message.value) == POISON and not failed:
            failed.append(message)
            raise ValueError("not yet")

    with running(fail_once, on_poison=Retry(retries, after_seconds=[0])) as one:
        eventually(lambda: len(one.seen) == 60)
    (again,) = (message for message in one.seen if int(message.value) == POISON)
    assert again == failed[0]


@pytest.mark.long
@on_each_log
def test_after_the_last_delay_the_next_policy_decides(client, running, publish, retries):
    publish(range(60))
    letters = []
    picky = Picky()
    policy = Retry(
        retries,
        after_seconds=[0.01, 0.02, 0.03],
        then=DeadLetter(lambda *letter: letters.append(letter)),
    )
    with running(picky, on_poison=policy, attempts=2, backoff_seconds=0.01) as one:
        eventually(lambda: len(one.seen) == 59)
        eventually(lambda: one.consumer.set_aside == 0)
        assert one.consumer.status().dead_lettered == 1
    ((message, failure),) = letters
    assert (message.key, message.value) == (f"k{POISON % 7}", b"23")
    # Twice at once, and once after each delay.
    assert picky.asked[POISON] == failure.attempts == 5
    assert repr(failure.error) == "ValueError('23 is poison')"
    assert in_order(one)
    assert at_end(client, 60)


@pytest.mark.long
def test_a_letter_that_cannot_be_stored_now_is_stored_later_and_not_tried_again(
    running, publish, retries
):
    publish(range(60))
    stored = []

    def store(message, failure):
        stored.append(message.value)
        if len(stored) < 3:
            raise LogUnavailable("not now")

    picky = Picky()
    policy = Retry(retries, after_seconds=[0.01], then=DeadLetter(store))
    with running(picky, on_poison=policy, backoff_seconds=0.01) as one:
        eventually(lambda: len(one.seen) == 59)
    assert stored == [b"23"] * 3
    assert picky.asked[POISON] == 2


@pytest.mark.long
def test_quarantine_after_the_last_delay_until_it_is_resumed(client, running, publish, retries):
    publish(range(60))
    picky = Picky()
    with running(picky, on_poison=Retry(retries, after_seconds=[0.01])) as one:
        eventually(lambda: one.consumer.status().quarantined)
        ((number, error),) = one.consumer.status().quarantined.items()
        assert error == "ValueError('23 is poison')"
        eventually(lambda: client.conditions("flights"))
        (told,) = client.conditions("flights")
        assert told.text.endswith(" after 2 attempts: ValueError: 23 is poison")
        picky.number = -1
        assert one.consumer.resume(number)
        eventually(lambda: len(one.seen) == 60)
        assert not one.consumer.status().quarantined
    assert in_order(one)


@pytest.mark.long
def test_halt_after_the_last_delay_leaves_the_message_to_the_next_run(running, publish, retries):
    publish(range(60))
    policy = Retry(retries, after_seconds=[0.01], then="halt")
    one = running(Picky(), on_poison=policy)
    one.thread.start()
    one.join()
    assert isinstance(one.error, ValueError)
    (note,) = one.error.__notes__
    assert "could not be handled in 2 attempts; it stays set aside" in note
    with running(on_poison=policy) as two:
        eventually(lambda: len(one.seen) + len(two.seen) == 60)
    assert sorted(one.numbers + two.numbers) == list(range(60))
    assert POISON in two.numbers
    assert in_order(one, two)


@on_each_log
def test_a_graceful_handoff_repeats_nothing_and_the_next_owner_holds_the_key(
    client, running, publish, retries
):
    publish(range(60))
    policy = Retry(retries, after_seconds=[LONG])
    with running(Picky(), on_poison=policy) as one:
        eventually(lambda: one.consumer.set_aside == 1 + len(BEHIND))
        with running(on_poison=policy) as two:
            eventually(lambda: two.consumer.flow.status == "bound")
            one.stop()
            eventually(lambda: two.consumer.set_aside == 1 + len(BEHIND))
            publish(range(60, 120))
            later = [number for number in range(60, 120) if number % 7 == POISON % 7]
            eventually(lambda: two.consumer.set_aside == 1 + len(BEHIND) + len(later))
            eventually(lambda: at_end(client, 120))
            held = {POISON, *BEHIND, *later}
            assert sorted(one.numbers + two.numbers) == sorted(set(range(120)) - held)
    outcomes = {move.outcome for r in client.rebalances("flights") for move in r.moves}
    assert outcomes == {"initial", "graceful"}


@pytest.mark.long
@on_each_log
def test_a_delay_that_has_begun_goes_on_at_the_next_owner(client, running, publish, retries):
    """Not begun anew: the tries are counted, and the last policy comes."""
    publish(range(60))
    letters = []
    policy = Retry(
        retries,
        after_seconds=[0, LONG, 0],
        then=DeadLetter(lambda message, failure: letters.append(failure.attempts)),
    )
    picky = Picky()
    with running(picky, on_poison=policy) as one:
        eventually(lambda: picky.asked[POISON] == 2)
    soon = Retry(retries, after_seconds=[0, 0], then=policy.then)
    with running(picky, on_poison=soon) as two:
        eventually(lambda: two.consumer.set_aside == 1 + len(BEHIND))
        assert not letters
        # As if the hour was over.
        (lane,) = (lane for lane in two.consumer._lanes.snapshot() if lane.set_aside)
        assert lane.redelivery is not None
        for first, *_ in lane.redelivery._by_key.values():
            first.due = 0.0
        lane.redelivery.plan()
        eventually(lambda: len(one.seen) + len(two.seen) == 59)
    assert letters == [3]
    assert in_order(two)


class Killed(BaseException):
    """The process is gone."""


@pytest.mark.long
@pytest.mark.matrix("record")
@on_each_log
@pytest.mark.parametrize(
    ("record", "when"),
    [("message", "before"), ("message", "after"), ("done", "before"), ("done", "after")],
)
def test_a_kill_around_a_record_loses_nothing(client, running, publish, retries, record, when):
    publish(range(60))
    policy = Retry(retries, after_seconds=[0])
    one = running(Picky(times=1), on_poison=policy, commit_seconds=LONG)
    write = one.consumer._retries.write

    def killed(kind, *arguments):
        if kind == record and when == "before":
            one.consumer.flow.close()
            raise Killed
        write(kind, *arguments)
        if kind == record:
            one.consumer.flow.close()
            raise Killed

    one.consumer._retries.write = killed
    one.thread.start()
    one.join()
    assert isinstance(one.error, Killed)
    two = running(on_poison=policy)
    with two:
        eventually(lambda: set(one.numbers + two.numbers) == set(range(60)))
        eventually(lambda: two.consumer.set_aside == 0 and at_end(client, 60))
        eventually(lambda: unswept(client) == 0)
    assert in_order(two)
    if (record, when) == ("done", "after"):
        assert Counter(two.numbers)[POISON] <= 1


@pytest.mark.long
def test_nothing_passes_while_a_message_cannot_be_set_aside(client, running, publish, retries):
    publish(range(60))
    tried = []
    policy = Retry(retries, after_seconds=[LONG])
    one = running(Picky(), on_poison=policy)
    write = one.consumer._retries.write

    def unavailable(kind, *arguments):
        tried.append(kind)
        if len(tried) < 3:
            raise LogUnavailable("not now")
        write(kind, *arguments)

    one.consumer._retries.write = unavailable
    with one:
        eventually(lambda: at_end(client, 60))
        assert tried == ["message"] * (3 + len(BEHIND))
        assert one.consumer.set_aside == 1 + len(BEHIND)


@pytest.mark.long
def test_a_partition_waits_when_memory_has_no_room(client, running, publish, retries, caplog):
    publish(range(60))
    picky = Picky()
    with running(picky, on_poison=Retry(retries, after_seconds=[LONG]), max_messages=3) as one:
        eventually(lambda: "the partition waits, because 3 of its messages" in caplog.text)
        held = {POISON, *BEHIND[:2]}
        assert one.consumer.set_aside == len(held)
        number = next(lane for lane in one.consumer._lanes.snapshot() if lane.set_aside).partition
        eventually(lambda: {m.partition for m in one.seen} >= set(range(4)) - {number})
        assert not at_end(client, 60)
    assert in_order(one)


@pytest.mark.long
def test_of_a_batch_only_the_keys_that_are_held_wait(service, client, publish, retries):
    publish(range(60))
    passed: list[int] = []
    failing = [True]
    several = []

    def handle(owned, batch):
        numbers = [int(value) for value in batch.column("value").to_pylist()]
        if POISON in numbers and failing:
            raise ValueError("somewhere in here")
        several.append(len(numbers) > 1)
        passed.extend(numbers)

    consumer = Consumer(
        "flights",
        handle,
        url=service.url,
        on_poison=Retry(retries, after_seconds=OFTEN),
        lease_seconds=LONG_SECONDS,
        timeout_seconds=60,
    )
    thread = threading.Thread(target=consumer.run)
    thread.start()
    try:
        eventually(lambda: len(passed) == 60 - 1 - len(BEHIND))
        publish(range(60, 300))
        later = [number for number in range(60, 300) if number % 7 == POISON % 7]
        several.clear()
        eventually(lambda: len(passed) == 300 - 1 - len(BEHIND) - len(later))
        assert any(several)
        failing.clear()
        eventually(lambda: len(passed) == 300)
    finally:
        consumer.stop(now=True)
        thread.join(240)
    assert sorted(passed) == list(range(300))
    for key in range(7):
        of_key = [number for number in passed if number % 7 == key]
        assert of_key == sorted(of_key)


@pytest.mark.long
def test_messages_without_a_key_do_not_wait_for_each_other(service, client, running, retries):
    with Publisher("flights", url=service.url) as publisher:
        for number in range(60):
            publisher.publish(str(number).encode())
    picky = Picky(times=2)
    with running(picky, on_poison=Retry(retries, after_seconds=[0.01, LONG])) as one:
        eventually(lambda: len(one.seen) == 59 and picky.asked[POISON] == 2)
        assert one.consumer.set_aside == 1


@pytest.mark.long
def test_a_partition_that_is_removed_is_finished_after_what_it_has_set_aside(
    client, running, publish, retries
):
    publish(range(60))
    gate = threading.Event()

    def fail(message):
        if int(message.value) == POISON and not gate.is_set():
            raise ValueError("not yet")

    with running(fail, on_poison=Retry(retries, after_seconds=OFTEN)) as one:
        eventually(lambda: one.consumer.set_aside == 1 + len(BEHIND))
        (lane,) = (lane for lane in one.consumer._lanes.snapshot() if lane.set_aside)
        client.change_queue("flights", partition_count=lane.partition or 1)
        eventually(
            lambda: (
                {one.partition for one in client.partitions("flights")}
                == set(range(lane.partition + 1))
            )
        )
        eventually(lambda: lane.grant.final is not None or lane.partition == 0)
        gate.set()
        eventually(lambda: len(one.seen) == 60)
        eventually(lambda: len(client.partitions("flights")) == (lane.partition or 1))
    assert in_order(one)


@pytest.mark.long
def test_what_comes_after_a_split_waits_for_what_is_set_aside(
    service, client, running, publish, retries
):
    client.create_queue("split", partitioning="dynamic", rebalance_delay=0)
    publish(range(60), "split")
    gate = threading.Event()

    def fail(message):
        if int(message.value) == POISON and not gate.is_set():
            raise ValueError("not yet")

    policy = Retry(retries, after_seconds=OFTEN)
    with running(fail, queue="split", on_poison=policy) as one:
        eventually(lambda: one.consumer.set_aside == 1 + len(BEHIND))
        client.split_partition("split", 0)
        publish(range(60, 120), "split")
        (lane,) = one.consumer._lanes.snapshot()
        # It is at its end, and asks the log again and again.
        eventually(lambda: lane.grant.successors is not None and lane.position == "60")
        reads = Counter[str]()
        turn = one.consumer._reader.turn

        def counted():
            reads["turns"] += 1
            return turn()

        one.consumer._reader.turn = counted
        eventually(lambda: reads["turns"] > 3)
        assert one.partitions == {0}
        gate.set()
        eventually(lambda: len(one.seen) == 120)
        assert one.partitions == {1, 2}
    assert in_order(one)


@pytest.mark.long
@pytest.mark.matrix("guarded")
@pytest.mark.parametrize("guarded", [True, False])
def test_an_ordered_resize_does_not_take_a_key_past_what_is_set_aside(
    client, running, publish, retries, monkeypatch, guarded
):
    """Without the guard the owner of the new partition begins at once, and is found."""
    if not guarded:
        monkeypatch.setattr(retry_queue.Records, "held_elsewhere", lambda *_: {})
    client.change_queue("flights", ordered_resize=True)
    publish(range(60))
    gate = threading.Event()

    def fail(message):
        if int(message.value) == POISON and not gate.is_set():
            raise ValueError("not yet")

    policy = Retry(retries, after_seconds=OFTEN)
    one, two = running(fail, on_poison=policy), running(fail, on_poison=policy)
    one.seen = two.seen  # in the order of both
    with one, two:
        eventually(lambda: len(one.seen) == 60 - 1 - len(BEHIND) and at_end(client, 60))
        key = f"k{POISON % 7}"
        target = next(n for n in range(5, 9) if partition_of(key, n) != partition_of(key, 4))
        client.change_queue("flights", partition_count=target)
        publish(range(60, 120))
        later = [number for number in range(60, 120) if number % 7 == POISON % 7]
        held = 1 + len(BEHIND) + (len(later) if guarded else 0)
        eventually(lambda: len(one.seen) == 120 - held)
        eventually(lambda: one.consumer.set_aside + two.consumer.set_aside == held)
        gate.set()
        eventually(lambda: len(one.seen) == 120)
    assert in_order(one) == guarded


def test_the_retry_queue_is_looked_for_before_anything_is_handled(service, client):
    client.create_queue("retries", 1)
    for policy, error in (
        (Retry("none", after_seconds=[1]), QueueNotFound),
        (Retry("flights", after_seconds=[1]), WrongQueue),
        (Retry("retries", after_seconds=[1], then=DeadLetter("flights")), WrongQueue),
        (Retry("retries", after_seconds=[1], then=DeadLetter("retries")), WrongQueue),
        (Retry("retries", after_seconds=[1], then=DeadLetter("none")), QueueNotFound),
    ):
        with pytest.raises(error):
            Consumer("flights", print, url=service.url, on_poison=policy).run()
    assert client.flows("flights") == []


@pytest.mark.parametrize("delays", [[], [-1], [float("nan")], [float("inf")]])
def test_delays_that_cannot_be(delays):
    with pytest.raises(ValueError, match="after_seconds must "):
        Retry("retries", after_seconds=delays)


def test_a_last_policy_that_cannot_be():
    with pytest.raises(ValueError, match="then must be"):
        Retry("retries", after_seconds=[1], then="retry")  # type: ignore[arg-type]
