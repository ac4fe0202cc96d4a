"""Messages that cannot be handled: halt, quarantine, dead-letter, and crashes in between."""

import re
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from counterpoise import calls
from counterpoise import client as client_module
from counterpoise.consumer import Consumer, DeadLetter, Failure, Retry, WrongQueue
from counterpoise.consumer.letters import Origin
from counterpoise.consumer.message import Message, Ownership
from counterpoise.errors import QueueNotFound, Unreachable
from counterpoise.flow.view import Owned
from counterpoise.logs import Message as LogMessage
from counterpoise.publisher import Publisher
from counterpoise.publisher.delivery import Delivery
from counterpoise.testing import MemoryService
from tests.counterpoise.consumer.conftest import Running, in_order, positions
from tests.service import eventually

POISON = 23


class Picky:
    """Refuses one number so many times, and counts the attempts."""

    def __init__(self, number=POISON, times=10**9):
        self.number, self.times = number, times
        self.asked: Counter[int] = Counter()

    def __call__(self, message):
        number = int(message.value)
        self.asked[number] += 1
        if number == self.number and self.asked[number] <= self.times:
            raise ValueError(f"{number} is poison")


def place_of(one):
    return next(m for m in one.seen if int(m.value) == POISON)


@pytest.fixture
def dead(client):
    client.create_queue("dead", 2, rebalance_delay=0)

    def letters(count, service):
        return list(Consumer("dead", url=service.url, limit=count, idle_seconds=0.05))

    return letters


def test_halt_names_the_position_and_commits_nothing_from_there_on(client, running, publish):
    publish(range(60))
    one = running(Picky(), attempts=2, backoff_seconds=0.01)
    one.thread.start()
    one.join()
    assert isinstance(one.error, ValueError)
    (note,) = one.error.__notes__
    assert "could not be handled in 2 attempts" in note
    assert Failure("0", 1, ValueError()).tried == "1 attempt"
    with running() as two:
        eventually(lambda: len(one.seen) + len(two.seen) == 60)
    assert sorted(one.numbers + two.numbers) == list(range(60))
    message = place_of(two)
    assert f"partition {message.partition} epoch 1 position {message.position}" in note


def test_a_message_that_succeeds_in_the_end_is_not_poison(running, publish):
    publish(range(60))
    picky = Picky(times=2)
    with running(picky, attempts=3, backoff_seconds=0.01) as one:
        eventually(lambda: len(one.seen) == 60)
    assert picky.asked[POISON] == 3
    assert sum(picky.asked.values()) == 62
    assert in_order(one)


def test_the_others_go_on_while_a_message_waits_for_its_next_attempt(running, publish):
    publish(range(60))
    with running(Picky(), attempts=2, backoff_seconds=3600) as one:
        eventually(lambda: len(one.seen) >= 30 and all_others_done(one) and attempts(one))
        assert attempts(one) == [1]
    assert POISON not in one.numbers


def attempts(one):
    """Of the partitions that wait for another attempt, how many there were."""
    return [lane.attempts for lane in one.consumer.status().partitions.values() if lane.attempts]


def all_others_done(one):
    lanes = one.consumer.status().partitions.values()
    return sum(lane.waiting_messages > 0 or lane.in_hand > 0 for lane in lanes) == 1


def test_quarantine_stops_one_partition_until_a_retry_is_requested(
    client, running, publish, caplog
):
    publish(range(60))
    told = []
    picky = Picky()
    with running(
        picky, on_poison="quarantine", on_quarantined=lambda *what: told.append(what)
    ) as one:
        eventually(lambda: one.consumer.status().quarantined)
        ((number, error),) = one.consumer.status().quarantined.items()
        assert error == "ValueError('23 is poison')"
        # People see it where they see the queue, which is Ready.
        eventually(lambda: client.conditions("flights"))
        (told_to_service,) = client.conditions("flights")
        assert (told_to_service.kind, told_to_service.partition) == ("quarantined", number)
        assert told_to_service.text.endswith(" after 1 attempt: ValueError: 23 is poison")
        assert client.queue("flights").raw["conditions"] == {"quarantined": 1}
        assert "quarantined after 1 attempt," in caplog.text
        eventually(lambda: told)
        assert [(partition, failure.attempts) for partition, failure in told] == [(number, 1)]
        # The others continue, and this partition stays owned, with its position before the message.
        publish(range(60, 120))
        before = [m for m in one.seen if m.partition == number]
        eventually(lambda: positions(client)[number] == told[0][1].position)
        eventually(lambda: len([n for n in one.numbers if n >= 60 and n % 7 != 2]) > 30)
        assert [m for m in one.seen if m.partition == number] == before
        assert number in one.partitions
        # It is tried again here when it is resumed, or by the next owner.
        picky.number = -1
        assert one.consumer.resume(number)
        eventually(lambda: len(one.seen) == 120)
        eventually(lambda: not client.conditions("flights"))
    assert sorted(one.numbers) == list(range(120))
    assert in_order(one)


@pytest.mark.long
def test_a_quarantine_can_be_ended_by_its_own_alarm(running, publish):
    publish(range(60))
    told = []

    def resume(number, failure):
        told.append(one.consumer.resume(number))

    with running(Picky(times=2), on_poison="quarantine", on_quarantined=resume) as one:
        eventually(lambda: len(set(one.numbers)) == 60)
    assert told == [True, True]
    assert sorted(one.numbers) == list(range(60))
    assert in_order(one)


@pytest.mark.long
def test_a_quarantined_partition_is_handed_over_at_its_poison(client, running, publish):
    publish(range(60))
    with running(Picky(), on_poison="quarantine") as one:
        eventually(lambda: one.consumer.status().quarantined)
        with running() as two:
            eventually(lambda: two.consumer.flow.status == "bound")
            one.stop()
            eventually(lambda: len(one.seen) + len(two.seen) == 60)
    assert sorted(one.numbers + two.numbers) == list(range(60))
    assert in_order(one, two)


def test_a_dead_letter_says_where_it_comes_from(service, client, running, publish, dead):
    publish(range(60))
    with running(
        Picky(), on_poison=DeadLetter("dead"), attempts=2, backoff_seconds=0.01, concurrency=2
    ) as one:
        eventually(lambda: len(one.seen) == 59)
        eventually(lambda: one.consumer.handled == 60)
        assert one.consumer.status().dead_lettered == 1
    assert sum(int(p or 0) for p in positions(client).values()) == 60
    (letter,) = dead(1, service)
    assert (letter.key, letter.value) == (f"k{POISON % 7}", b"23")
    prefix = "counterpoise-dead-letter-"
    said = {name.removeprefix(prefix): text for name, text in letter.headers.items()}
    assert said.pop("published-at") < letter.published_at.isoformat()
    assert int(said.pop("position")) >= 0
    assert int(said.pop("partition")) in range(4)
    assert said == {
        "number": "23",
        "queue": "flights",
        "epoch": "1",
        "attempts": "2",
        "error": "ValueError: 23 is poison",
    }


@pytest.mark.long
def test_a_function_can_take_dead_letters_and_is_tried_again_when_it_cannot_now(running, publish):
    publish(range(60))
    stored = []

    def store(message, failure):
        stored.append((message.value, failure.attempts))
        if len(stored) < 3:
            raise Unreachable("not now")

    picky = Picky()
    with running(picky, on_poison=DeadLetter(store), backoff_seconds=0.01) as one:
        eventually(lambda: one.consumer.handled == 60)
    assert stored == [(b"23", 1)] * 3
    assert picky.asked[POISON] == 1


@pytest.mark.long
def test_a_message_that_cannot_be_stored_is_not_passed(client, running, publish):
    publish(range(60))

    def store(message, failure):
        raise OSError("disk full")

    one = running(Picky(), on_poison=DeadLetter(store))
    one.thread.start()
    one.join()
    assert isinstance(one.error, OSError)
    with running() as two:
        eventually(lambda: len(one.seen) + len(two.seen) == 60)
    assert POISON in two.numbers


@pytest.mark.long
def test_a_storage_error_names_the_position_and_the_failure(running, publish):
    publish(range(60))

    def store(message, failure):
        raise OSError("disk full")

    one = running(Picky(), on_poison=DeadLetter(store), attempts=2, backoff_seconds=0.01)
    one.thread.start()
    one.join()
    assert isinstance(one.error, OSError)
    (note,) = one.error.__notes__
    assert re.search(r"partition \d epoch 1 position \d+", note)
    assert "could not be stored as a dead letter" in note
    assert "ValueError('23 is poison')" in note


@pytest.mark.long
def test_a_letter_that_another_consumer_stores_at_the_same_time_is_stored(
    service, client, dead, monkeypatch
):
    """After a forced handoff both consumers may be handling the message."""
    both_have_asked = threading.Barrier(2)
    asked = Delivery.next_sequence

    def next_sequence(self, publisher):
        found = asked(self, publisher)
        both_have_asked.wait(240)
        return found

    monkeypatch.setattr(Delivery, "next_sequence", next_sequence)
    owned = Ownership(Owned(0, 1, "owned", "7", "initial"), dict)
    message = Message(0, 1, "7", "k", b"v", {}, datetime.now(UTC), owned)
    policy = DeadLetter("dead", url=service.url)

    def store(attempts):
        failure = Failure("7", attempts, ValueError("poison"))
        policy.store(message, failure, Origin("flights", "builtin:flights", "i"))

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(store, (1, 2))) == [None, None]
    ends = (int(one.end) for one in client.partitions("dead"))
    assert sum(ends) == 1


def test_a_queue_for_dead_letters_is_looked_for_before_anything_is_handled(service, client):
    elsewhere = service.url.replace("127.0.0.1", "localhost")
    for policy, error in (
        (DeadLetter("dead"), QueueNotFound),
        (DeadLetter("flights"), WrongQueue),
        (DeadLetter("flights", url=f"{service.url}/"), WrongQueue),
        (DeadLetter("flights", url=elsewhere), WrongQueue),
    ):
        with pytest.raises(error):
            Consumer("flights", print, url=service.url, on_poison=policy).run()
    assert client.flows("flights") == []


@pytest.fixture
def memory():
    with MemoryService() as service:
        yield service


@pytest.mark.parametrize("policy", [DeadLetter("flights"), Retry("flights", after_seconds=[1])])
@pytest.mark.parametrize("consumed", ["view", "joined"])
def test_what_comes_back_by_a_log_in_common_is_refused(memory, policy, consumed):
    """A queue over the same log, and one that reads it beside another."""
    memory.create_queue("flights", 1)
    memory.create_queue("seats", 1)
    memory.client.create_queue("view", log="builtin:flights")
    memory.client.create_queue("joined", log="builtin:flights", align_with="seats")
    with pytest.raises(WrongQueue):
        Consumer(consumed, each=print, url=memory.url, on_poison=policy).run()


def test_letters_do_not_go_into_the_log_of_the_retry_queue(memory):
    for name in ("flights", "retries"):
        memory.create_queue(name, 1)
    memory.client.create_queue("view", log="builtin:retries")
    with pytest.raises(WrongQueue):
        Retry("retries", after_seconds=[1], then=DeadLetter("view")).check(
            "flights", memory.url, None
        )


@pytest.mark.long
@pytest.mark.parametrize(
    "policy", [DeadLetter("dead"), Retry("retries", after_seconds=[0], then=DeadLetter("dead"))]
)
def test_one_policy_serves_consumers_of_several_services(policy):
    for _ in range(2):
        with MemoryService() as service:
            for name in ("flights", "dead", "retries"):
                service.create_queue(name, 1)
            service.publish("flights", b"23")
            consumer = Consumer(
                "flights", each=Picky(), url=service.url, on_poison=policy, at_once=True
            )
            consumer.run(lambda: bool(service.messages("dead")))


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("a defect of the program's")

    __repr__ = __str__


@pytest.mark.long
@pytest.mark.parametrize(
    "policy", ["quarantine", DeadLetter("dead"), Retry("retries", after_seconds=[0])]
)
def test_an_error_without_a_text_is_an_error_like_others(memory, policy):
    for name in ("dead", "retries"):
        memory.create_queue(name, 1)
    memory.create_queue("flights", 2)
    # Both partitions have some.
    memory.publish("flights", *(LogMessage(str(n).encode(), f"k{n}") for n in range(9)))

    def refuse(message):
        if message.value == b"0":
            raise Unspeakable

    quarantined = []
    one = Running(
        memory.url,
        refuse,
        on_poison=policy,
        attempts=2,
        backoff_seconds=0.01,
        on_quarantined=lambda *_: quarantined.append(one.consumer.status().quarantined),  # type: ignore[has-type]
    )
    with one:
        if isinstance(policy, DeadLetter):
            eventually(lambda: memory.messages("dead") and len(one.seen) == 8)
        else:
            eventually(lambda: quarantined)
            assert list(quarantined[0].values()) == ["<Unspeakable without a text>"]


def test_a_proxy_in_the_service_s_place_ends_no_consumer(memory, monkeypatch):
    """It answers a letter, a report of what was set aside, and a question while draining."""
    for name in ("flights", "dead"):
        memory.create_queue(name, 1)
    memory.publish("flights", b"23", b"24")
    answered, real = [], calls.read_answer

    def read_answer(call, status, headers, content):
        verb = call.path.partition("?")[0].rpartition("/")[2]
        if verb in wanted:
            wanted.remove(verb)
            answered.append(verb)
            return real(call, 404, {}, b"<html>default backend - 404</html>")
        return real(call, status, headers, content)

    monkeypatch.setattr(client_module, "read_answer", read_answer)
    wanted: set[str] = set()

    def refuse(message):
        if message.value == b"23":
            wanted.update({"log-access", "commit", "rebalance"})
            raise ValueError("poison")

    one = Running(memory.url, refuse, on_poison=DeadLetter("dead"), backoff_seconds=0.01)
    with one:
        eventually(lambda: memory.committed("flights") == {0: "2"})
        one.stop()
    assert sorted(answered) == ["commit", "log-access", "rebalance"]
    assert len(memory.messages("dead")) == 1


@pytest.mark.long
def test_of_a_batch_that_fails_only_the_poison_is_put_aside(service, client, publish, dead):
    publish(range(60))
    passed: Counter[int] = Counter()

    def handle(owned, batch):
        numbers = [int(value) for value in batch.column("value").to_pylist()]
        if POISON in numbers:
            raise ValueError("somewhere in here")
        passed.update(numbers)

    consumer = Consumer("flights", handle, url=service.url, on_poison=DeadLetter("dead"), limit=60)
    consumer.run()
    assert sorted(passed.elements()) == sorted(set(range(60)) - {POISON})
    (letter,) = dead(1, service)
    assert letter.value == b"23"


KILLED = """
import os, signal, sys
from counterpoise import calls
from counterpoise import client as client_module
from counterpoise.consumer import Consumer, DeadLetter

def handle(message):
    if message.value == b"1":
        raise ValueError("poison")
    if message.value == b"2":  # The poison has been passed, and nothing is committed.
        os.kill(os.getpid(), signal.SIGKILL)

Consumer(
    "one", each=handle, url=sys.argv[1], on_poison=DeadLetter("dead"), commit_seconds=3600,
    instance_id="killed",
).run()
"""


@pytest.mark.long
def test_a_kill_between_dead_letter_and_commit_loses_and_doubles_nothing(
    service, client, running, dead
):
    client.create_queue("one", 1, rebalance_delay=0)
    with Publisher("one", url=service.url) as publisher:
        for number in range(5):
            publisher.publish(str(number).encode())
    killed = subprocess.run([sys.executable, "-c", KILLED, service.url], timeout=60, check=False)
    assert killed.returncode == -9
    assert positions(client, "one") == {0: None}
    with running(Picky(1), queue="one", on_poison=DeadLetter("dead"), instance_id="killed") as one:
        eventually(lambda: one.numbers == [0, 2, 3, 4])
        eventually(lambda: positions(client, "one") == {0: "5"})
    (letter,) = dead(1, service)
    assert letter.value == b"1"
    # And there is no second letter after it.
    with Publisher("dead", url=service.url) as publisher:
        for key in ("a", "b", "c", "d"):
            publisher.publish(b"last", key=key)
    assert {letter.value for letter in dead(4, service)} == {b"last"}


@pytest.mark.long
def test_a_failing_message_is_let_go_when_its_partition_is_revoked(client, running, publish):
    publish(range(60))
    failed = threading.Event()

    def fail(message):
        if int(message.value) == POISON:
            failed.set()
            raise ValueError("not here")

    with running(fail, attempts=2, backoff_seconds=3600) as one:
        assert failed.wait(240)
        with running() as two:
            eventually(lambda: two.consumer.flow.status == "bound")
            one.stop()
            eventually(lambda: len(one.seen) + len(two.seen) == 60)
    assert POISON in two.numbers
    assert sorted(one.numbers + two.numbers) == list(range(60))
    outcomes = {move.outcome for r in client.rebalances("flights") for move in r.moves}
    assert outcomes == {"initial", "graceful"}
