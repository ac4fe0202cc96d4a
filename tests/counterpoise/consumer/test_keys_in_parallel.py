"""Consumers with `order="key"`: on a service in memory, and killed on a real one."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections import defaultdict
from typing import Any

import pytest

from counterpoise import AsyncConsumer, Client, Consumer, DeadLetter, Message, Publisher, Retry
from counterpoise.flow.done_above import DoneAbove
from counterpoise.testing import MemoryService
from counterpoise.testing.plugin import counterpoise_service
from tests.service import eventually

__all__ = ["counterpoise_service"]


@pytest.fixture
def memory(counterpoise_service: MemoryService) -> MemoryService:
    """With a queue of one partition and a hundred messages of ten keys; two of a key a turn."""
    counterpoise_service.create_queue("flights", partitions=1, max_handoff_time=600)
    with Publisher("flights", client=counterpoise_service.client) as publisher:
        for number in range(100):
            publisher.publish(str(number).encode(), key=f"k{number % 10}")
    return counterpoise_service


class Handler:
    """What was handled, by key; messages of the keys in `held` wait until `go_on`."""

    def __init__(self, *held: str) -> None:
        self.held, self.go_on = set(held), threading.Event()
        self.by_key: dict[str | None, list[int]] = defaultdict(list)
        self.in_hand = self.most = 0
        self.lock = threading.Lock()

    def __call__(self, message: Message) -> None:
        with self.lock:
            self.in_hand += 1
            self.most = max(self.most, self.in_hand)
        if message.key in self.held:
            assert self.go_on.wait(60)
        with self.lock:
            self.in_hand -= 1
            self.by_key[message.key].append(int(message.value))

    @property
    def numbers(self) -> list[int]:
        with self.lock:
            return sorted(number for of in self.by_key.values() for number in of)

    @property
    def in_order(self) -> bool:
        return all(of == sorted(of) for of in self.by_key.values())


def stored(memory: MemoryService) -> tuple[str | None, str | None]:
    """The position of partition 0, and what is done above it."""
    (partition,) = memory.client.partitions("flights")
    return partition.position, partition.done_above


def consumer(memory: MemoryService, each: Any, **options: Any) -> Consumer:
    given = {"order": "key", "concurrency": 16, "commit_seconds": 0.01, **options}
    return Consumer("flights", each=each, url=memory.url, **given)


def test_the_keys_of_one_partition_are_handled_at_once_and_each_in_order(
    memory: MemoryService,
) -> None:
    handler = Handler(*(f"k{number}" for number in range(10)))
    one = consumer(memory, handler, limit=100)
    with memory.running(one):
        memory.wait_until(lambda: handler.in_hand == 10)
        handler.go_on.set()
        memory.wait_until(lambda: len(handler.numbers) == 100)
    assert handler.numbers == [*range(100)]
    assert handler.in_order
    assert handler.most == 10
    assert memory.committed("flights") == {0: "100"}


def test_no_more_are_in_hand_than_the_consumer_may_have(memory: MemoryService) -> None:
    handler = Handler(*(f"k{number}" for number in range(10)))
    with memory.running(consumer(memory, handler, concurrency=4, limit=100)):
        memory.wait_until(lambda: handler.in_hand == 4)
        handler.go_on.set()
        memory.wait_until(lambda: len(handler.numbers) == 100)
    assert handler.most == 4


def test_what_is_done_above_a_slow_message_is_committed_and_not_repeated(
    memory: MemoryService,
) -> None:
    slow = Handler("k3")
    killed = consumer(memory, slow)
    with memory.running(killed):
        memory.wait_until(lambda: len(slow.numbers) == 90)
        above = ",".join(["4+9", *["1+9"] * 8, "1+6"])
        memory.wait_until(lambda: stored(memory) == ("3", above))
        memory.kill(killed)
        memory.expire(killed)
        slow.go_on.set()
    after = Handler()
    memory.run(consumer(memory, after, limit=10))
    # Only the message in hand may have been handled before.
    assert after.numbers == [*range(3, 100, 10)]
    assert memory.committed("flights") == {0: "100"}


@pytest.mark.parametrize("order", ["key", "partition"])
def test_a_graceful_handoff_repeats_nothing_in_either_order(
    memory: MemoryService, order: str
) -> None:
    slow, after = Handler("k3"), Handler()
    first = consumer(memory, slow)
    second = consumer(memory, after, order=order, concurrency=1)
    with memory.running(first):
        memory.wait_until(lambda: len(slow.numbers) == 90)
        first.stop()
        memory.wait_until(lambda: first.flow.draining)
        with memory.running(second):
            memory.wait_until(
                lambda: any(one.state == "revoking" for one in first.flow.partitions.values())
            )
            # It begins no further message of the key.
            memory.wait_until(
                lambda: sum(s.waiting_messages for s in first.status().partitions.values()) == 0
            )
            slow.go_on.set()
            memory.wait_until(lambda: len(slow.numbers) + len(after.numbers) == 100)
    assert slow.by_key["k3"] == [3]
    assert after.by_key["k3"] == [*range(13, 100, 10)]
    assert sorted(slow.numbers + after.numbers) == [*range(100)]


def test_messages_without_a_key_are_alone(counterpoise_service: MemoryService) -> None:
    counterpoise_service.create_queue("flights", partitions=1)
    counterpoise_service.publish("flights", *map(str, range(6)))
    together = threading.Barrier(6)
    one = consumer(counterpoise_service, lambda _: together.wait(60), limit=6)
    counterpoise_service.run(one)
    assert one.handled == 6


def test_a_message_that_fails_is_tried_again_and_keeps_only_its_key_waiting(
    memory: MemoryService,
) -> None:
    tries = 0
    handler = Handler()

    def each(message: Message) -> None:
        nonlocal tries
        if message.value == b"3" and (tries := tries + 1) < 3:
            assert len(handler.by_key["k3"]) == 0
            raise ValueError("not yet")
        handler(message)

    memory.run(consumer(memory, each, attempts=3, backoff_seconds=0.01, limit=100))
    assert tries == 3
    assert handler.in_order
    assert handler.numbers == [*range(100)]


def test_a_quarantine_stops_one_key(memory: MemoryService) -> None:
    handler, told = Handler(), []
    healed = threading.Event()

    def each(message: Message) -> None:
        if message.value == b"3" and not healed.is_set():
            raise ValueError("poison")
        handler(message)

    one = consumer(
        memory, each, on_poison="quarantine", on_quarantined=lambda *said: told.append(said)
    )
    with memory.running(one):
        memory.wait_until(lambda: len(handler.numbers) == 90 and told)
        assert one.status().quarantined == {0: "ValueError('poison')"}
        memory.wait_until(lambda: memory.client.queue("flights").conditions == {"quarantined": 1})
        memory.wait_until(lambda: memory.committed("flights") == {0: "3"})
        healed.set()
        assert one.resume(0)
        memory.wait_until(lambda: len(handler.numbers) == 100)
    assert handler.in_order
    assert [(number, failure.position) for number, failure in told] == [(0, "3")]


def test_a_dead_letter_lets_its_key_go_on(memory: MemoryService) -> None:
    handler, letters = Handler(), []

    def each(message: Message) -> None:
        if message.key == "k3":
            raise ValueError("poison")
        handler(message)

    policy = DeadLetter(lambda message, _: letters.append(int(message.value)))
    memory.run(consumer(memory, each, on_poison=policy, limit=100))
    assert letters == [*range(3, 100, 10)]
    assert memory.committed("flights") == {0: "100"}


@pytest.mark.parametrize("then", ["halt", "quarantine", "letter"])
@pytest.mark.parametrize("kind", [Consumer, AsyncConsumer])
def test_after_the_last_delay_the_policy_decides_for_the_key(
    memory: MemoryService, kind: type[Consumer | AsyncConsumer], then: Any
) -> None:
    handler, tries, letters = Handler(), 0, list[int]()

    def fails(message: Message) -> None:
        nonlocal tries
        if message.value == b"3":
            tries += 1
            raise ValueError("poison")
        handler(message)

    async def fails_in_a_task(message: Message) -> None:
        fails(message)

    def letter(message: Message, _: object) -> None:
        letters.append(int(message.value))

    async def letter_in_a_task(message: Message, failure: object) -> None:
        letter(message, failure)

    waits = kind is AsyncConsumer
    to = letter_in_a_task if waits else letter
    policy = Retry(after_seconds=[0.01, 0.02], then=DeadLetter(to) if then == "letter" else then)
    one: Any = kind(
        "flights",
        each=fails_in_a_task if waits else fails,
        url=memory.url,
        order="key",
        concurrency=16,
        attempts=2,
        backoff_seconds=0.01,
        on_poison=policy,
    )
    if then == "halt":
        with pytest.raises(ValueError, match="poison"):
            memory.run(one)
        assert handler.by_key["k3"] == []
        assert stored(memory)[0] == "3"
    else:
        many, position = (99, "100") if then == "letter" else (90, "3")
        with memory.running(one):
            memory.wait_until(lambda: len(handler.numbers) == many)
            memory.wait_until(lambda: letters == [3] or one.status().quarantined != {})
            memory.wait_until(lambda: stored(memory)[0] == position)
        assert handler.in_order
    assert tries == 4


def test_while_a_message_waits_for_its_next_attempt_only_its_key_does(
    memory: MemoryService,
) -> None:
    failed = Handler()

    def away(message: Message) -> None:
        if message.value == b"3":
            raise ConnectionError("away")
        failed(message)

    retry = Retry(after_seconds=[3600])
    first = consumer(memory, away, on_poison=retry)
    with memory.running(first):
        memory.wait_until(lambda: len(failed.numbers) == 90)
        assert failed.by_key["k3"] == []
        assert first.set_aside == first.status().partitions[0].set_aside == 10
        above = ",".join(["4+9", *["1+9"] * 8, "1+6"])
        memory.wait_until(lambda: stored(memory) == ("3", above))
        first.stop(now=True)
    after = Handler()
    # The next owner tries it at once, and nothing comes again.
    memory.run(consumer(memory, after, on_poison=retry, limit=10))
    assert after.numbers == [*range(3, 100, 10)]
    assert memory.committed("flights") == {0: "100"}


def test_a_partition_waits_for_an_attempt_when_its_bound_is_full(
    memory: MemoryService, caplog: pytest.LogCaptureFixture
) -> None:
    handler = Handler()

    def away(message: Message) -> None:
        if message.key == "k3":
            raise ConnectionError("away")
        handler(message)

    one = consumer(memory, away, on_poison=Retry(after_seconds=[3600]), max_messages=4)
    with memory.running(one):
        memory.wait_until(lambda: "waits at 3 for a message that is tried again" in caplog.text)
        # The messages 3, 13 and 23 are more than half of what memory may have.
        assert handler.numbers == [n for n in range(handler.numbers[-1] + 1) if n % 10 != 3]
        assert one.set_aside == 3
        assert [
            record.levelname for record in caplog.records if "waits at 3" in record.message
        ] == ["ERROR"]


def test_async_handlers_of_different_keys_run_at_once(memory: MemoryService) -> None:
    by_key: dict[str | None, list[int]] = defaultdict(list)

    async def main() -> None:
        together, in_hand = asyncio.Event(), set[str | None]()

        async def each(message: Message) -> None:
            assert message.key not in in_hand
            in_hand.add(message.key)
            if len(in_hand) == 10:
                together.set()
            await together.wait()
            in_hand.remove(message.key)
            by_key[message.key].append(int(message.value))

        await AsyncConsumer(
            "flights", each=each, url=memory.url, order="key", concurrency=16, limit=100
        ).run()

    asyncio.run(main())
    assert {*by_key} == {f"k{number}" for number in range(10)}
    assert all(of == [*range(of[0], 100, 10)] for of in by_key.values())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"order": "keys", "each": print}, '"partition" or "key"'),
        ({"order": "key"}, "single messages"),
        ({"order": "key", "handle": print}, "single messages"),
        (
            {"order": "key", "each": print, "on_poison": Retry("later", after_seconds=[1])},
            "no retry queue",
        ),
        ({"each": print, "on_poison": Retry(after_seconds=[1])}, "without a retry queue"),
    ],
)
def test_what_does_not_go_with_key_order_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Consumer("flights", **options)


KILLED = """
import sys, threading
from counterpoise import Consumer

lock, never, begun = threading.Lock(), threading.Event(), 0

def handle(message):
    global begun
    if message.key == "slow":
        never.wait()
    with lock:
        begun += 1
        last = begun > 150
    if last:
        never.wait()
    with lock:
        print(message.value.decode(), flush=True)

Consumer(
    "one", each=handle, url=sys.argv[1], order="key", concurrency=8, instance_id="killed",
    commit_seconds=0.01,
).run()
"""


@pytest.mark.long
def test_after_a_kill_only_what_was_in_flight_comes_again(service: Any) -> None:
    with Client(service.url) as client, Publisher("one", url=service.url) as publisher:
        client.create_queue("one", 1, rebalance_delay=0)
        publisher.publish(b"0", key="slow")
        for number in range(1, 300):
            publisher.publish(str(number).encode(), key=f"k{number % 40}")
        publisher.flush()

        def are_stored(numbers: set[int]) -> bool:
            (partition,) = client.partitions("one")
            above = DoneAbove.of_text(partition.done_above)
            return partition.position == "0" and all(map(above.covers, numbers))

        with subprocess.Popen(
            [sys.executable, "-c", KILLED, service.url], stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                assert process.stdout is not None
                before = {int(next(process.stdout)) for _ in range(150)}
                eventually(lambda: are_stored(before))
            finally:
                process.kill()
        after = Handler()
        one = Consumer(
            "one", each=after, url=service.url, order="key", concurrency=8, instance_id="killed"
        )
        thread = threading.Thread(target=one.run)
        thread.start()
        eventually(lambda: {*after.numbers} | before == {*range(300)})
        one.stop(now=True)
        thread.join(240)
    assert after.in_order
    # The eight that were in flight, and those that had not begun; of the others none.
    assert after.numbers == sorted({*range(300)} - before)
