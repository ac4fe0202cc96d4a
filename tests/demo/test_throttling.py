"""The publisher stays ahead, and the flights last for the scenario."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.demo.throttling import LAST_ACT, SLOW_FROM, Plan, Rate, Rush, ThrottledPublisher
from broker.demo.work.flights import Flight
from counterpoise.keys import hash_of, partition_of
from counterpoise.logs.ranges import HASHES, HashRange
from tests.demo import sample

FLIGHTS = sample.flights(6_000)


@pytest.mark.parametrize("flights", [2_000, 20_000, 336_776])
def test_a_short_demo_has_the_shape_of_a_long_one(flights: int) -> None:
    plan = Plan(flights, 12)
    assert plan.batch_messages >= 12
    assert plan.lead * 12 < flights * 0.1
    assert plan.rate_after(0) == plan.rate
    assert plan.rate_after(round(flights * SLOW_FROM)) == pytest.approx(plan.rate, rel=0.01)
    assert plan.rate_after(round(flights * 0.65)) < plan.rate / 2
    assert 0 < plan.rate_after(round(flights * LAST_ACT) + 1) < plan.rate / 10


def test_the_rate_can_be_read_at_any_moment(tmp_path: Path) -> None:
    rate = Rate(tmp_path / "rate")
    stop = threading.Event()

    def change() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            rate.set(number)

    writer = threading.Thread(target=change)
    writer.start()
    try:
        numbers = [float(rate.path.read_text()) for _ in range(2_000)]
    finally:
        stop.set()
        writer.join()
    assert numbers == sorted(numbers)


class Queue:
    """Replaces the publisher, and counts the waiting messages of each partition."""

    def __init__(self) -> None:
        self.backlog: Counter[int] = Counter(dict.fromkeys(range(12), 0))
        self.flights: list[str] = []
        self.fail = False

    def publish(self, value: bytes, key: str | None) -> None:
        if self.fail:
            raise OSError("no service")
        self.flights.append(Flight.of(value).flight)
        self.backlog[partition_of(key, 12) if key else 0] += 1

    def flush(self) -> None:
        pass


@pytest.fixture
def queue() -> Queue:
    return Queue()


@pytest.fixture
def publisher(queue: Queue) -> Iterator[ThrottledPublisher]:
    publisher = ThrottledPublisher(queue, FLIGHTS, 50, lambda: queue.backlog)  # type: ignore[arg-type]
    yield publisher
    publisher.stop()


def wait_for(condition: Callable[[], bool], seconds: float = 240.0) -> None:
    tick = threading.Event()
    for _ in range(int(seconds / 0.01)):
        if condition():
            return
        tick.wait(0.01)
    raise AssertionError("it did not happen")


def test_the_publisher_is_ahead_in_every_partition_and_waits_there(
    queue: Queue, publisher: ThrottledPublisher
) -> None:
    publisher.start()
    # Between chunks, not within one.
    wait_for(
        lambda: min(queue.backlog.values()) >= 50 and publisher.published == len(queue.flights)
    )
    published = publisher.published
    assert not publisher.done
    threading.Event().wait(0.2)
    assert publisher.published == published
    emptiest = min(queue.backlog, key=lambda partition: queue.backlog[partition])
    queue.backlog[emptiest] -= 20
    wait_for(lambda: publisher.published > published and min(queue.backlog.values()) >= 50)


def test_a_released_publisher_publishes_all_in_order(
    queue: Queue, publisher: ThrottledPublisher
) -> None:
    publisher.release()
    publisher.start()
    wait_for(lambda: publisher.done)
    assert queue.flights == [flight.flight for flight in FLIGHTS]


def test_errors_are_reported(queue: Queue, publisher: ThrottledPublisher) -> None:
    queue.fail = True
    publisher.start()
    wait_for(lambda: publisher.error is not None)
    assert str(publisher.error) == "no service"


def test_a_rush_brings_its_range_first_and_keeps_the_order_of_each_aircraft() -> None:
    hot = HashRange(0, HASHES // 4 - 1, 0)
    rush = Rush(FLIGHTS)
    coming = iter(rush)

    def share(flights: list[Flight]) -> float:
        own = [one for one in flights if one.aircraft and hash_of(one.aircraft) in hot]
        return len(own) / len(flights)

    before = [next(coming) for _ in range(500)]
    rush.begin(hot)
    amid = [next(coming) for _ in range(1000)]
    rush.end()
    after = list(coming)
    assert before == FLIGHTS[:500]
    assert share(amid) == pytest.approx(0.75, abs=0.01)
    assert 0.05 < share(after[:1000]) < 0.25
    everything = before + amid + after
    assert sorted(everything, key=FLIGHTS.index) == FLIGHTS
    assert len(rush) == len(everything)
    for number in (7, 14, 21):
        own = [one.sequence for one in everything if one.aircraft == f"N{number:03}"]
        assert own == sorted(own, key=lambda sequence: sequence or 0)
        assert own
