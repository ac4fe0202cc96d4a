"""Two logs read side by side: equal partition numbers of both have one consumer.

The join is that of docs/aligned.md: each consumer keeps what it has seen of both sides of a group,
drops it when the group goes, and reads it again when it comes.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from counterpoise.consumer import Consumer, Message
from counterpoise.errors import Refused
from counterpoise.logs.groups import place
from counterpoise.testing import MemoryService

KEYS = 60
SIDES = ("orders", "payments")


@pytest.fixture
def service() -> Iterator[MemoryService]:
    with MemoryService() as service:
        for side in SIDES:
            service.create_queue(side, 4)
        service.client.create_queue(
            "matching", rebalance_delay=0.0, log="builtin:orders", align_with="payments"
        )
        yield service


def publish(service: MemoryService, side: str, first: int = 0, last: int = KEYS) -> None:
    for number in range(first, last):
        service.publish(side, f"{side} {number}", key=f"k{number}")


def groups(service: MemoryService, name: str) -> set[int]:
    owned = [number for number, owner in service.owners("matching").items() if owner == name]
    pairs = {place(number, 2)[1] for number in owned}
    assert sorted(owned) == sorted(2 * pair + side for pair in pairs for side in (0, 1))
    return pairs


def test_equal_partition_numbers_of_both_logs_are_neighbours(service: MemoryService) -> None:
    for side in SIDES:
        publish(service, side)
    seen: list[Message] = []
    service.run(Consumer("matching", each=seen.append, url=service.url))
    assert len(seen) == 2 * KEYS
    for message in seen:
        which, partition = place(message.partition, 2)
        assert message.value.startswith(SIDES[which].encode())
        assert partition == zlib.crc32((message.key or "").encode()) % 4


class Join:
    """Pairs of one consumer: each message finds those of its key on the other side."""

    def __init__(self, service: MemoryService, name: str) -> None:
        self.name = name
        self.pairs: list[tuple[str, str]] = []
        self.sides: dict[int, dict[str, dict[int, str]]] = defaultdict(lambda: defaultdict(dict))
        self.consumer = Consumer(
            "matching", each=self.handle, url=service.url, client_name=name, idle_seconds=0.01
        )

    def handle(self, message: Message) -> None:
        which, pair = place(message.partition, 2)
        sides = self.sides[pair][message.key or ""]
        sides[which] = message.value.decode()
        if len(sides) == 2:
            self.pairs.append((sides[0], sides[1]))


def test_a_group_is_joined_by_one_consumer_whoever_comes_and_goes(service: MemoryService) -> None:
    first, second = Join(service, "first"), Join(service, "second")
    publish(service, "orders")
    with service.running(first.consumer):
        service.wait_until(lambda: service.lag("matching") == 0)
        with service.running(second.consumer):
            service.wait_until(lambda: len(groups(service, "second")) == 2)
            assert groups(service, "first") == {0, 1}
            # What the first has seen of groups 2 and 3 is read again by their new owner.
            moved = groups(service, "second")
            positions = {2 * pair: "0" for pair in moved}
            service.client.set_positions("matching", positions)
            publish(service, "payments")
            service.wait_until(lambda: service.lag("matching") == 0)
    pairs = first.pairs + second.pairs
    assert sorted(pairs) == sorted((f"orders {n}", f"payments {n}") for n in range(KEYS))
    assert {pair for pair, sides in second.sides.items() if sides} == moved


def test_a_consumer_that_is_killed_leaves_whole_groups(service: MemoryService) -> None:
    first, second = Join(service, "first"), Join(service, "second")
    with service.running(first.consumer, second.consumer):
        service.wait_until(lambda: len(groups(service, "second")) == 2)
        service.kill(first.consumer)
        service.expire(first.consumer)
        service.wait_until(lambda: len(groups(service, "second")) == 4)


def test_the_queue_has_the_partitions_of_both(service: MemoryService) -> None:
    queue = service.client.queue("matching")
    assert queue.partition_count == 8
    assert (queue.raw["log"], queue.raw["align_with"]) == ("builtin:orders+payments", "payments")
    assert "align_with" not in service.client.queue("orders").raw
    again = service.client.create_queue("again", log=queue.raw["log"], align_with="payments")
    assert again.raw["log"] == queue.raw["log"]


def run_until_resized(service: MemoryService, seen: list[Message]) -> None:
    """A consumer reads all there is, and then finishes the partitions that retire."""
    with service.running(Consumer("matching", each=seen.append, url=service.url)):
        service.wait_until(
            lambda: service.client.queue("matching").operational_partition_count == 4,
            timeout_seconds=240,
        )
        service.wait_until(lambda: service.lag("matching") == 0, timeout_seconds=240)


@pytest.mark.long
def test_it_follows_resizes_and_reads_everything_meanwhile(service: MemoryService) -> None:
    client = service.client
    publish(service, "payments")
    client.change_queue("orders", partition_count=6)
    assert client.queue("matching").partition_count == 12
    client.change_queue("payments", partition_count=6)
    for side in SIDES:
        publish(service, side, KEYS, 2 * KEYS)
    client.change_queue("orders", partition_count=2)
    assert client.queue("matching").partition_count == 12
    client.change_queue("payments", partition_count=2)
    assert client.queue("matching").partition_count == 4
    seen: list[Message] = []
    run_until_resized(service, seen)
    assert len(seen) == 3 * KEYS


@pytest.mark.long
@pytest.mark.parametrize("last", SIDES)
def test_a_discard_in_one_log_discards_nothing_of_the_other(
    service: MemoryService, last: str
) -> None:
    client = service.client
    seen: list[Message] = []
    for first, more in ((0, KEYS // 2), (KEYS // 2, KEYS)):
        for side in SIDES:
            publish(service, side, first, more)
        if not seen:
            service.run(Consumer("matching", each=seen.append, url=service.url))
    for side in sorted(SIDES, key=last.__eq__):
        client.change_queue(side, discard=side == "orders", partition_count=2)
    assert client.queue("matching").partition_count == 4
    run_until_resized(service, seen)
    paid = {message.key for message in seen if message.value.startswith(b"payments")}
    assert len(paid) == KEYS
    assert len(seen) < 2 * KEYS


@pytest.mark.long
def test_a_log_keeps_what_the_aligned_queue_has_not_processed(service: MemoryService) -> None:
    service.client.change_queue("orders", retention_seconds=0)
    publish(service, "orders")
    service.run(Consumer("orders", each=lambda message: None, url=service.url))
    service.advance(120)
    assert len(service.messages("orders")) == KEYS
    service.run(Consumer("matching", each=lambda message: None, url=service.url))
    service.advance(120)
    assert not service.messages("orders")


def test_it_starts_at_the_ends_of_both(service: MemoryService) -> None:
    for side in SIDES:
        publish(service, side)
    client = service.client
    client.create_queue("late", log="builtin:orders", align_with="payments", start="latest")
    assert service.lag("late") == 0
    client.set_positions("late", "earliest")
    assert service.lag("late") == 2 * KEYS


def refusal(service: MemoryService, **settings: Any) -> str:
    with pytest.raises(Refused) as refused:
        service.client.create_queue("other", **settings)
    return str(refused.value)


def test_what_does_not_fit_together_is_refused(service: MemoryService) -> None:
    aligned = {"log": "builtin:orders", "align_with": "payments"}
    assert "does not exist" in refusal(service, log="builtin:orders", align_with="refunds")
    assert "owns none" in refusal(service, align_with="payments")
    assert "leave it out" in refusal(service, partition_count=4, **aligned)
    assert "no cuts" in refusal(service, ordered_resize=True, **aligned)
    assert "fixed" in refusal(service, partitioning="dynamic", **aligned)
    assert "built-in" in refusal(service, log="redis://localhost:6379/0/x", align_with="orders")
    assert "twice" in refusal(service, log="builtin:orders", align_with="orders")


def test_it_is_resized_deleted_and_published_to_by_its_logs(service: MemoryService) -> None:
    with pytest.raises(Refused, match="resize each"):
        service.client.change_queue("matching", partition_count=16)
    with pytest.raises(Refused, match="reads the log"):
        service.client.delete_queue("payments")
    with pytest.raises(Refused, match="orders, payments"):
        service.publish("matching", b"whose?")
    service.client.delete_queue("matching")
    service.client.delete_queue("payments")
