"""A consumer of partitions that are paused and resumed, on a real service and log."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from counterpoise.client import Client
from tests.counterpoise.consumer.conftest import in_order
from tests.service import ServeProcess, eventually


def paused(running: Any) -> set[int]:
    """The partitions that are paused in the consumer's view."""
    held = running.consumer.flow.partitions
    return {number for number, one in held.items() if one.paused is not None}


def committed(client: Client) -> int:
    return sum(int(one.position or 0) for one in client.partitions("flights"))


def lag(client: Client) -> dict[int, int | None]:
    return {one.partition: one.lag for one in client.partitions("flights")}


def test_a_paused_partition_stops_after_the_message_in_hand_and_goes_on_there(
    client: Client, running: Any, publish: Any
) -> None:
    began, go_on = threading.Event(), threading.Event()

    def act(_message: Any) -> None:
        began.set()
        assert go_on.wait(240)

    with running(act) as one:
        publish(range(200))
        assert began.wait(240)
        client.pause_queue("flights", reason="the sink is away")
        eventually(lambda: paused(one) == {0, 1, 2, 3})
        go_on.set()
        # What was begun is finished and committed, and nothing is begun after it.
        eventually(lambda: committed(client) == 1)
        assert len(one.seen) == 1
        assert {lane.waiting_messages for lane in one.consumer.status().partitions.values()} == {0}
        client.pause_partition("flights", 0)
        client.resume_queue("flights")
        eventually(lambda: sum(n or 0 for p, n in lag(client).items() if p) == 0)
        assert paused(one) == {0}
        left = lag(client)[0]
        assert len(one.seen) + (left or 0) == 200
        client.resume_partition("flights", 0)
        eventually(lambda: len(one.seen) == 200)
    assert in_order(one)
    assert sorted(one.numbers) == [*range(200)]


@pytest.mark.long
def test_the_successor_of_a_paused_partition_waits_too(
    client: Client, running: Any, publish: Any
) -> None:
    client.pause_queue("flights")
    publish(range(40))
    with running(lambda _: None) as one:
        eventually(lambda: paused(one) == {0, 1, 2, 3})
        with running(lambda _: None) as other:
            eventually(lambda: len(one.partitions) == len(other.partitions) == 2)
            assert len(paused(one)) == len(paused(other)) == 2
            assert not one.seen
            assert not other.seen
            client.resume_queue("flights")
            eventually(lambda: len(one.seen) + len(other.seen) == 40)


@pytest.mark.long
def test_a_restart_of_the_service_keeps_a_pause(served: ServeProcess) -> None:
    with Client(served.url) as client:
        client.create_queue("flights", 2, rebalance_delay=0)
        client.pause_partition("flights", 1, reason="wrong prices")
    for end in (served.end, served.kill):
        end()
        served.start()
        with Client(served.url) as client:
            first, second = client.partitions("flights")
            assert first.paused is None
            assert second.paused is not None
            assert second.paused.reason == "wrong prices"
            assert client.queue("flights").paused_partition_count == 1
