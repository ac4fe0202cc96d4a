"""`AsyncConsumer`: the promises of `Consumer`, in an event loop, whatever is cancelled."""

import asyncio
import contextvars
import os
import signal
import threading
from collections import Counter, defaultdict
from functools import partial
from typing import Any

import pytest

from counterpoise.consumer import (
    AsyncConsumer,
    Consumer,
    DeadLetter,
    Retry,
    stop_on_signals,
)
from counterpoise.consumer import (
    asyncio as shell,
)
from counterpoise.consumer.asyncio import Bell
from counterpoise.consumer.watchdog import Activity, Watchdog
from counterpoise.errors import QueueNotFound
from counterpoise.logs import Message as LogMessage
from counterpoise.testing import Killed
from counterpoise.testing.plugin import counterpoise_service

__all__ = ["counterpoise_service"]

LIMIT_SECONDS = 240.0


class Orders:
    """A queue of a service in memory, and what the consumers of a test have handled."""

    def __init__(self, service):
        self.service = service
        self.seen: list[Any] = []

    def publish(self, count):
        """Numbers in their order; the keys take turns."""
        numbers = (LogMessage(str(n).encode(), key=f"k{n % 8}") for n in range(count))
        self.service.publish("orders", *numbers)

    async def handle(self, message):
        self.seen.append(message)

    def consumer(self, each=None, **options):
        options = {"idle_seconds": 0.01, "commit_seconds": 0.0, "backoff_seconds": 0.0, **options}
        return AsyncConsumer("orders", each=each, **options)

    async def until(self, condition):
        """Wait in a thread, so that the loop goes on."""
        await asyncio.to_thread(self.service.wait_until, condition, LIMIT_SECONDS)

    async def rest(self, count):
        """Another consumer handles so many messages; their numbers."""
        rest: list[int] = []

        async def handle(message):
            rest.append(int(message.value))

        await self.consumer(handle, limit=count).run()
        return rest

    @property
    def numbers(self):
        return [int(message.value) for message in self.seen]

    @property
    def handled(self):
        """The positions up to which the partitions are committed, together."""
        return sum(int(one or 0) for one in self.service.committed("orders").values())

    @property
    def flows(self):
        return self.service.client.flows("orders")

    def in_order(self):
        by_partition = defaultdict(list)
        for message in self.seen:
            by_partition[message.partition].append(int(message.position))
        return all(found == sorted(found) for found in by_partition.values())


@pytest.fixture
def orders(counterpoise_service):
    counterpoise_service.create_queue("orders", partitions=4, max_handoff_time=600)
    return Orders(counterpoise_service)


@pytest.fixture
def one_partition(counterpoise_service):
    counterpoise_service.create_queue("orders", partitions=1, max_handoff_time=600)
    return Orders(counterpoise_service)


class Held:
    """A handler that waits in these messages (none named: in all) until the test goes on."""

    def __init__(self, orders, *numbers):
        self.orders, self.holds = orders, numbers
        self.begun: list[Any] = []
        self.entered, self.go_on = asyncio.Event(), asyncio.Event()

    async def __call__(self, message):
        self.begun.append(message)
        if not self.holds or int(message.value) in self.holds:
            self.entered.set()
            await self.go_on.wait()
        await self.orders.handle(message)


async def ended(task):
    """The task has ended; its error, if it has one."""
    await asyncio.wait([task], timeout=LIMIT_SECONDS)
    assert task.done()
    return "cancelled" if task.cancelled() else task.exception()


# -------------------------------------------------------------- order and concurrency


async def test_partitions_are_handled_at_once_and_each_in_its_order(orders):
    orders.publish(200)
    together = asyncio.Barrier(3)
    partitions: list[int] = []

    async def handle(message):
        if message.partition not in partitions:
            partitions.append(message.partition)
            if len(partitions) <= 3:
                await together.wait()  # Returns only if three handlers run at once.
        for _ in range(int(message.value) % 3):
            await asyncio.sleep(0)
        await orders.handle(message)

    await orders.consumer(handle, concurrency=3, limit=200).run()
    assert sorted(orders.numbers) == list(range(200))
    assert orders.in_order()
    assert orders.handled == 200
    assert orders.flows == []


async def test_no_more_handlers_than_concurrency_and_one_of_a_partition(orders):
    orders.publish(200)
    working: Counter[int] = Counter()
    most: set[int] = set()
    met = asyncio.Event()

    async def handle(message):
        working[message.partition] += 1
        most.add(working.total())
        if working.total() == 2:
            met.set()
        await met.wait()
        await asyncio.sleep(0)
        assert working[message.partition] == 1
        working[message.partition] -= 1

    consumer = orders.consumer(handle, concurrency=2, limit=200)
    await consumer.run()
    assert consumer.handled == 200
    assert most == {1, 2}


async def test_each_message_has_context_variables_of_its_own(one_partition):
    one_partition.publish(5)
    caller = contextvars.ContextVar("caller", default="nobody")
    seen: list[str] = []

    async def handle(message):
        seen.append(caller.get())
        caller.set(message.value.decode())

    caller.set("main")
    await one_partition.consumer(handle, limit=5).run()
    assert seen == ["main"] * 5


async def test_batches_are_handled_by_an_async_function(orders):
    orders.publish(50)
    rows: list[bytes] = []

    async def handle(owned, batch):
        await asyncio.sleep(0)
        assert {*batch.column("partition").to_pylist()} == {owned.partition}
        rows.extend(batch.column("value").to_pylist())

    consumer = AsyncConsumer("orders", handle, concurrency=4, limit=50, idle_seconds=0.01)
    await consumer.run()
    assert sorted(map(int, rows)) == list(range(50))
    assert orders.handled == 50


async def test_several_consumers_share_a_queue_in_one_loop_and_drain(orders):
    """One drains while the other works: nothing is repeated, and no handoff is forced."""
    orders.publish(100)
    first, second = orders.consumer(orders.handle), orders.consumer(orders.handle)
    one = asyncio.create_task(first.run())
    await orders.until(lambda: len(orders.seen) == 100)
    two = asyncio.create_task(second.run())
    await orders.until(lambda: len(first.flow.partitions) == len(second.flow.partitions) == 2)
    orders.publish(100)
    first.stop()
    assert await ended(one) is None
    orders.publish(100)
    await orders.until(lambda: len(orders.seen) == 300)
    await second.close()
    assert await ended(two) is None
    assert Counter(orders.numbers) == dict.fromkeys(range(100), 3)
    assert orders.in_order()
    assert orders.handled == 300
    moves = [move for r in orders.service.client.rebalances("orders") for move in r.moves]
    assert {move.outcome for move in moves} == {"initial", "graceful"}


# -------------------------------------------------------------- what counts as handled


async def test_a_message_counts_when_its_handler_has_returned(one_partition):
    orders = one_partition
    orders.publish(5)
    held = Held(orders, 2)
    consumer = orders.consumer(held)
    running = asyncio.create_task(consumer.run())
    await held.entered.wait()
    await orders.until(lambda: orders.handled == 2)
    assert consumer.handled <= 2
    held.go_on.set()
    await orders.until(lambda: orders.handled == 5)
    consumer.stop(now=True)
    assert await ended(running) is None


async def test_in_a_loop_a_message_counts_when_the_next_one_is_asked_for(one_partition):
    orders = one_partition
    orders.publish(10)
    async with orders.consumer() as consumer:
        async for message in consumer:
            await orders.until(lambda: orders.handled == int(message.position))  # noqa: B023
            await orders.handle(message)
            if len(orders.seen) == 4:
                break
    assert orders.flows == []
    assert orders.handled == 3
    stopped = orders.consumer()
    async for message in stopped:
        await orders.handle(message)
        if len(orders.seen) == 8:
            stopped.stop(now=True)
    assert orders.numbers == [0, 1, 2, 3, 3, 4, 5, 6]
    assert orders.handled == 7
    assert orders.flows == []


async def test_an_exception_in_the_loop_leaves_the_message_in_hand(orders):
    orders.publish(30)

    async def loop():
        async with orders.consumer() as consumer:
            async for message in consumer:
                if len(orders.seen) == 7:
                    raise ValueError("seven")
                await orders.handle(message)

    with pytest.raises(ValueError, match="seven"):
        await loop()
    assert orders.flows == []
    assert orders.handled == 7
    assert sorted([*orders.numbers, *await orders.rest(23)]) == list(range(30))


async def test_a_body_that_awaits_nothing_lets_other_tasks_run(one_partition, monkeypatch):
    monkeypatch.setattr(shell, "TURN_SECONDS", -1.0)
    one_partition.publish(20)
    turns = 0

    async def other():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    before = []
    async for _ in one_partition.consumer(limit=20):
        before.append(turns)
    task.cancel()
    assert len({*before}) == 20


# -------------------------------------------------------------- cancellation


async def test_cancelled_it_commits_what_is_handled_and_nothing_else(orders):
    orders.publish(40)
    held = Held(orders, *range(20, 40))
    consumer = orders.consumer(held, concurrency=4)
    running = asyncio.create_task(consumer.run())
    await held.entered.wait()
    await orders.until(lambda: orders.handled == 20)
    running.cancel()
    assert await ended(running) == "cancelled"
    assert orders.flows == []
    assert orders.handled == 20
    assert sorted([*orders.numbers, *await orders.rest(20)]) == list(range(40))


@pytest.mark.parametrize("ends", ["returns", "raises"])
async def test_a_handler_that_ends_otherwise_when_cancelled(one_partition, ends):
    """If it returns it has handled its message. If it raises, the message is not poison."""
    orders, entered = one_partition, asyncio.Event()
    orders.publish(5)
    orders.service.create_queue("dead", 1)

    async def handle(message):
        if message.value == b"3":
            entered.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if ends == "raises":
                    raise OSError("while it cleaned up") from None
        await orders.handle(message)

    running = asyncio.create_task(orders.consumer(handle, on_poison=DeadLetter("dead")).run())
    await entered.wait()
    running.cancel()
    assert await ended(running) == "cancelled"
    assert orders.flows == []
    assert orders.service.messages("dead") == []
    assert orders.numbers == ([0, 1, 2, 3] if ends == "returns" else [0, 1, 2])
    assert orders.handled == len(orders.seen)


async def test_all_tasks_cancelled_at_once_are_no_failure_of_a_message(one_partition):
    """As programs do that end, and `asyncio.run`."""
    orders = one_partition
    orders.publish(5)
    held, letters = Held(orders, 3), []

    async def store(message, failure):
        letters.append(message)

    async def main():
        await orders.consumer(held, on_poison=DeadLetter(store), attempts=1).run()

    before = asyncio.all_tasks()
    running = asyncio.create_task(main())
    await held.entered.wait()
    for task in asyncio.all_tasks() - before:
        task.cancel()
    assert await ended(running) == "cancelled"
    assert letters == []
    assert orders.handled == 3
    assert orders.flows == []


async def test_a_handler_that_is_cancelled_by_itself_has_failed(one_partition):
    orders = one_partition
    orders.publish(5)
    failures: list[Any] = []

    async def store(message, failure):
        failures.append((message.value, failure.error))

    async def handle(message):
        if message.value == b"3":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)
        await orders.handle(message)

    await orders.consumer(handle, on_poison=DeadLetter(store), limit=5).run()
    [(value, error)] = failures
    assert value == b"3"
    assert "was cancelled, and not by its consumer" in str(error)
    assert orders.numbers == [0, 1, 2, 4]
    assert orders.handled == 5


async def test_a_loop_whose_task_is_cancelled_commits_what_it_has_handled(one_partition):
    orders, entered = one_partition, asyncio.Event()
    orders.publish(5)

    async def loop():
        async with orders.consumer() as consumer:
            async for message in consumer:
                if message.value == b"3":
                    entered.set()
                    await asyncio.Event().wait()
                await orders.handle(message)

    running = asyncio.create_task(loop())
    await entered.wait()
    running.cancel()
    assert await ended(running) == "cancelled"
    assert orders.flows == []
    assert orders.handled == 3


@pytest.fixture
async def waiting_loop(one_partition):
    """A consumer whose loop waits for its first message, and the task of the loop."""

    async def loop():
        async for _ in consumer:
            raise AssertionError

    consumer = one_partition.consumer()
    running = asyncio.create_task(loop())
    await one_partition.until(lambda: consumer.flow.partitions)
    return consumer, running


async def test_a_loop_that_waits_for_a_message_can_be_cancelled(one_partition, waiting_loop):
    _, running = waiting_loop
    running.cancel()
    assert await ended(running) == "cancelled"
    assert one_partition.flows == []


async def test_a_loop_that_waits_for_its_first_message_can_be_closed(one_partition, waiting_loop):
    consumer, running = waiting_loop
    await consumer.close()
    assert one_partition.flows == []
    assert await ended(running) is None


@pytest.mark.parametrize("steps", range(6))
async def test_cancelled_as_it_begins_it_leaves_nothing_behind(orders, steps):
    orders.publish(5)
    running = asyncio.create_task(orders.consumer(orders.handle).run())
    for _ in range(steps):
        await asyncio.sleep(0)
    running.cancel()
    assert await ended(running) == "cancelled"
    assert orders.flows == []
    assert orders.handled == len(orders.seen)


class Unbinding:
    """The flow's close waits until the test lets it go on."""

    def __init__(self, consumer, monkeypatch):
        self.begun, self.go_on = threading.Event(), threading.Event()
        close = consumer.flow.close

        def slow(**options):
            self.begun.set()
            assert self.go_on.wait(LIMIT_SECONDS)
            close(**options)

        monkeypatch.setattr(consumer.flow, "close", slow)


@pytest.mark.parametrize("cancelled", ["run", "close"])
async def test_cancelled_while_it_leaves_it_returns_and_leaves_all_the_same(
    one_partition, monkeypatch, cancelled
):
    orders = one_partition
    orders.publish(5)
    consumer = orders.consumer(orders.handle)
    unbinding = Unbinding(consumer, monkeypatch)
    running = asyncio.create_task(consumer.run())
    await orders.until(lambda: len(orders.seen) == 5)
    closing = asyncio.create_task(consumer.close())
    await asyncio.to_thread(unbinding.begun.wait, LIMIT_SECONDS)
    task = running if cancelled == "run" else closing
    task.cancel()
    if cancelled == "run":  # The first time it waits for the end.
        for _ in range(9):
            await asyncio.sleep(0)
        assert not task.done()
        task.cancel()
    assert await ended(task) == "cancelled"
    assert len(orders.flows) == 1
    unbinding.go_on.set()
    await orders.until(lambda: orders.flows == [])
    assert await ended(closing if cancelled == "run" else running) is None
    assert orders.handled == 5


async def test_cancelled_while_a_dead_letter_is_stored_it_stores_it_first(
    one_partition, monkeypatch
):
    """Else it could be stored after others had handled the message."""
    orders, storing, go_on = one_partition, threading.Event(), threading.Event()
    orders.service.create_queue("dead", 1)
    orders.publish(5)
    store = DeadLetter.store

    def slow(*arguments):
        storing.set()
        assert go_on.wait(LIMIT_SECONDS)
        store(*arguments)

    async def fail(message):
        if message.value == b"2":
            raise ValueError("poison")
        await orders.handle(message)

    monkeypatch.setattr(DeadLetter, "store", slow)
    running = asyncio.create_task(orders.consumer(fail, on_poison=DeadLetter("dead")).run())
    await asyncio.to_thread(storing.wait, LIMIT_SECONDS)
    running.cancel()
    done, _ = await asyncio.wait([running], timeout=0.05)
    assert not done
    assert len(orders.flows) == 1
    go_on.set()
    assert await ended(running) == "cancelled"
    assert orders.numbers == [0, 1]
    assert orders.handled == 3
    assert len(orders.service.messages("dead")) == 1
    assert orders.flows == []


# -------------------------------------------------------------- messages that cannot be handled


class Picky:
    """Refuses one number so many times, and counts the attempts."""

    def __init__(self, orders, number=23, times=10**9):
        self.orders, self.number, self.times = orders, number, times
        self.asked: Counter[int] = Counter()

    async def __call__(self, message):
        number = int(message.value)
        self.asked[number] += 1
        await asyncio.sleep(0)
        if number == self.number and self.asked[number] <= self.times:
            raise ValueError(f"{number} is poison")
        await self.orders.handle(message)


async def test_halt_raises_the_exception_and_commits_nothing_from_there_on(orders):
    orders.publish(60)
    picky = Picky(orders)
    with pytest.raises(ValueError, match="23 is poison") as raised:
        await orders.consumer(picky, attempts=2, concurrency=4).run()
    assert "could not be handled in 2 attempts" in raised.value.__notes__[0]
    assert picky.asked[23] == 2
    assert orders.flows == []
    assert sorted([*orders.numbers, *await orders.rest(60 - len(orders.seen))]) == list(range(60))


async def test_a_message_that_succeeds_in_the_end_is_not_poison(orders):
    orders.publish(60)
    picky = Picky(orders, times=2)
    await orders.consumer(picky, attempts=3, concurrency=2, limit=60).run()
    assert picky.asked[23] == 3
    assert sorted(orders.numbers) == list(range(60))
    assert orders.in_order()


@pytest.mark.parametrize("is_async", [True, False])
async def test_quarantine_stops_one_partition_until_it_is_resumed(orders, is_async):
    orders.publish(60)
    picky, told = Picky(orders), []

    async def on_quarantined(partition, failure):
        told.append((partition, str(failure.error)))
        raise RuntimeError("it is logged")

    def plain(partition, failure):
        told.append((partition, str(failure.error)))

    consumer = orders.consumer(
        picky, on_poison="quarantine", on_quarantined=on_quarantined if is_async else plain
    )
    running = asyncio.create_task(consumer.run())
    await orders.until(lambda: told and consumer.status().quarantined)
    [(partition, error)] = told
    assert error == "23 is poison"
    assert [*consumer.status().quarantined] == [partition]
    there = sum(row["partition"] == partition for row in orders.service.messages("orders"))
    await orders.until(lambda: sum(m.partition != partition for m in orders.seen) == 60 - there)
    picky.number = -1
    assert consumer.resume(partition)
    await orders.until(lambda: orders.handled == 60)
    await consumer.close()
    assert await ended(running) is None
    assert sorted(orders.numbers) == list(range(60))
    assert orders.in_order()


async def test_dead_letters_go_to_a_queue(orders):
    orders.service.create_queue("dead", 1)
    orders.publish(60)
    picky = Picky(orders)
    consumer = orders.consumer(
        picky, on_poison=DeadLetter("dead"), attempts=2, concurrency=2, limit=60
    )
    await consumer.run()
    assert sorted(orders.numbers) == [number for number in range(60) if number != 23]
    [letter] = orders.service.messages("dead")
    assert letter["value"] == b"23"
    assert dict(letter["headers"])["counterpoise-dead-letter-attempts"] == "2"
    assert consumer.status().dead_lettered == 1
    assert orders.handled == 60


async def test_a_message_is_set_aside_and_tried_again_in_the_order_of_its_key(orders):
    orders.service.create_queue("retries", 1)
    orders.publish(60)
    picky = Picky(orders, times=2)
    consumer = orders.consumer(
        picky, on_poison=Retry("retries", after_seconds=[0.01, 0.01]), concurrency=2
    )
    await consumer.run(until=lambda: len(orders.seen) == 60 and not consumer.set_aside)
    assert picky.asked[23] == 3
    by_key = defaultdict(list)
    for message in orders.seen:
        by_key[message.key].append(int(message.value))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    assert sorted(orders.numbers) == list(range(60))
    assert orders.handled == 60


# -------------------------------------------------------------- ending


async def test_a_signal_drains_and_the_message_in_hand_is_finished(orders):
    orders.publish(20)
    kept = signal.getsignal(signal.SIGTERM)

    async def handle(message):
        if len(orders.seen) == 5:
            os.kill(os.getpid(), signal.SIGTERM)
            await orders.until(lambda: consumer.flow.draining)
        await orders.handle(message)

    consumer = orders.consumer(handle)
    with stop_on_signals(consumer):
        await consumer.run()
    assert signal.getsignal(signal.SIGTERM) is kept
    assert len(orders.seen) >= 6
    assert orders.handled == len(orders.seen)
    assert orders.flows == []


async def test_close_lets_handlers_finish(one_partition):
    orders = one_partition
    orders.publish(5)
    held = Held(orders, 2)
    async with orders.consumer(held) as consumer:
        running = asyncio.create_task(consumer.run())
        await held.entered.wait()
        closing = asyncio.create_task(consumer.close())
        await orders.until(lambda: consumer._lanes.closed)
        held.go_on.set()
        await closing
    assert await ended(running) is None
    assert orders.numbers == [0, 1, 2]
    assert orders.handled == 3
    assert orders.flows == []


async def test_a_handler_that_takes_longer_than_the_drain_is_cancelled(one_partition, monkeypatch):
    orders = one_partition
    orders.publish(5)
    monkeypatch.setattr(shell, "LEAVE_SECONDS", 0.0)
    held = Held(orders, 2)
    consumer = orders.consumer(held, drain_seconds=0.0)
    running = asyncio.create_task(consumer.run())
    await held.entered.wait()
    consumer.stop(now=True)
    assert await ended(running) is None
    assert orders.numbers == [0, 1]
    assert orders.handled == 2
    assert orders.flows == []


async def test_close_in_a_handler_is_refused(one_partition):
    one_partition.publish(1)

    async def handle(message):
        await consumer.close()

    consumer = one_partition.consumer(handle)
    with pytest.raises(RuntimeError, match=r"call stop\(now=True\)"):
        await consumer.run()
    await consumer.close()
    assert one_partition.handled == 0


async def test_close_from_another_task_lets_the_body_finish(one_partition):
    orders, entered, go_on = one_partition, asyncio.Event(), asyncio.Event()
    orders.publish(5)

    async def loop():
        async for message in consumer:
            entered.set()
            await go_on.wait()
            await orders.handle(message)

    consumer = orders.consumer()
    running = asyncio.create_task(loop())
    await entered.wait()
    closing = asyncio.create_task(consumer.close())
    await orders.until(lambda: consumer._lanes.closed)
    go_on.set()
    await closing
    assert await ended(running) is None
    assert orders.numbers == [0]
    assert orders.handled == 1


async def test_an_exception_of_until_ends_it(one_partition):
    one_partition.publish(1)

    def until():
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        await one_partition.consumer(one_partition.handle).run(until)
    assert one_partition.flows == []


async def test_a_queue_that_does_not_exist_is_said(orders):
    with pytest.raises(QueueNotFound):
        await AsyncConsumer("nowhere", each=orders.handle).run()
    with pytest.raises(QueueNotFound):
        async for _ in AsyncConsumer("nowhere"):
            pass


async def test_it_runs_once(one_partition):
    one_partition.publish(1)
    consumer = one_partition.consumer(one_partition.handle, limit=1)
    await consumer.run()
    with pytest.raises(RuntimeError, match="make another AsyncConsumer"):
        await consumer.run()


# -------------------------------------------------------------- the loop


def test_a_loop_that_is_closed_costs_only_what_is_in_hand(one_partition, caplog):
    orders = one_partition
    orders.publish(5)
    loop = asyncio.new_event_loop()
    held: Any = None

    async def until_held():
        nonlocal held
        held = Held(orders, 3)
        running.append(asyncio.create_task(consumer.run()))
        consumer._each = held
        await held.entered.wait()

    running: list[Any] = []
    consumer = orders.consumer(orders.handle)
    loop.run_until_complete(until_held())
    assert len(orders.flows) == 1
    loop.close()
    orders.service.wait_until(lambda: orders.flows == [], LIMIT_SECONDS)
    assert orders.handled == 3
    assert "its event loop was closed before the consumer had ended" in caplog.text
    # What asyncio says of a task of a closed loop.
    running[0].get_coro().close()
    for task in [*running, *asyncio.all_tasks(loop)]:
        task._log_destroy_pending = False


def test_it_runs_in_the_loop_of_another_thread(orders):
    orders.publish(20)
    threads: set[int] = set()

    async def handle(message):
        threads.add(threading.get_ident())
        await orders.handle(message)

    consumer = orders.consumer(handle, limit=20)
    thread = threading.Thread(target=lambda: asyncio.run(consumer.run()))
    thread.start()
    thread.join(LIMIT_SECONDS)
    assert not thread.is_alive()
    assert threads == {thread.ident}
    assert orders.handled == 20


async def test_a_handler_that_blocks_the_loop_stops_no_commit_and_no_reading(one_partition):
    """Commits renew the lease, as the polls of the same threads do."""
    orders = one_partition
    orders.publish(3)

    async def handle(message):
        if message.position == "2":
            orders.publish(4)
            orders.service.wait_until(
                lambda: orders.handled == 2 and len(waiting(consumer)) == 4, LIMIT_SECONDS
            )
        await orders.handle(message)

    consumer = orders.consumer(handle, limit=7)
    await consumer.run()
    assert orders.numbers == [0, 1, 2, 0, 1, 2, 3]


def waiting(consumer):
    """The messages read ahead, as many of them."""
    return range(sum(lane.waiting_messages for lane in consumer.status().partitions.values()))


async def test_a_slow_handler_does_not_fill_the_memory(one_partition):
    orders = one_partition
    orders.publish(500)
    held = Held(orders, 0)
    consumer = orders.consumer(held, concurrency=50, max_messages=10)
    tasks = len(asyncio.all_tasks())
    running = asyncio.create_task(consumer.run())
    await held.entered.wait()
    await orders.until(lambda: len(waiting(consumer)) >= 10)
    assert len(waiting(consumer)) == 10
    assert len(asyncio.all_tasks()) <= tasks + 50 + 3
    held.go_on.set()
    await orders.until(lambda: orders.handled == 500)
    await consumer.close()
    assert await ended(running) is None
    assert orders.numbers == list(range(500))


async def test_a_message_of_a_partition_that_was_taken_does_not_count(counterpoise_service):
    counterpoise_service.create_queue("orders", partitions=2, max_handoff_time=5)
    orders = Orders(counterpoise_service)
    orders.publish(20)
    held, lost = Held(orders), asyncio.Event()

    async def on_lost(owned):
        lost.set()

    consumer = orders.consumer(held, concurrency=2, on_lost=on_lost)
    running = asyncio.create_task(consumer.run())
    await orders.until(lambda: len(held.begun) == 2)
    rival = await asyncio.to_thread(counterpoise_service.revoke, "orders")
    await orders.until(lambda: any(m.time_left() is not None for m in held.begun))
    await asyncio.to_thread(counterpoise_service.advance, 6)
    await asyncio.wait_for(lost.wait(), LIMIT_SECONDS)
    [taken] = rival.partitions
    held.go_on.set()
    kept = sum(row["partition"] != taken for row in counterpoise_service.messages("orders"))
    await orders.until(lambda: orders.handled == kept)
    assert Counter(m.partition for m in orders.seen)[taken] == 1
    assert [m.owned.state for m in held.begun if m.partition == taken] == ["lost"]
    await consumer.close()
    assert await ended(running) is None
    assert counterpoise_service.committed("orders")[taken] in (None, "0")


async def test_a_lease_that_ran_out_is_bound_again_and_the_message_comes_again(one_partition):
    orders = one_partition
    orders.publish(5)
    held = Held(orders, 2)
    consumer = orders.consumer(held, max_processing_seconds=None)
    running = asyncio.create_task(consumer.run())
    await held.entered.wait()
    await orders.until(lambda: orders.handled == 2)
    await asyncio.to_thread(orders.service.expire, consumer)
    await orders.until(lambda: held.begun[-1].owned.lost)
    held.go_on.set()
    await orders.until(lambda: orders.handled == 5)
    await consumer.close()
    assert await ended(running) is None
    assert orders.numbers == [0, 1, 2, 2, 3, 4]


async def test_callbacks_run_in_the_loop_whether_async_or_not(orders):
    threads: list[tuple[str, int]] = []

    async def on_granted(owned):
        await asyncio.sleep(0)
        threads.append(("granted", threading.get_ident()))

    def on_revoking(owned, seconds_left):
        threads.append(("revoking", threading.get_ident()))

    consumer = orders.consumer(orders.handle, on_granted=on_granted, on_revoking=on_revoking)
    running = asyncio.create_task(consumer.run())
    await orders.until(lambda: len(threads) == 4)
    await asyncio.to_thread(orders.service.revoke, "orders")
    await orders.until(lambda: len(threads) == 6)
    await consumer.close()
    assert await ended(running) is None
    here = threading.get_ident()
    assert threads == [("granted", here)] * 4 + [("revoking", here)] * 2


# -------------------------------------------------------------- the watchdog


async def test_the_watchdog_shows_where_a_coroutine_waits():
    async def deep_inside():
        await asyncio.Event().wait()

    async def handle():
        await deep_inside()

    started = handle()
    task = asyncio.ensure_future(started)
    await asyncio.sleep(0)
    report = Activity(since=1.0, place=(3, 2, "17"), coroutine=started).report(301.0)
    assert "partition 3 epoch 2 position 17 has been handled for 300.0 s" in report
    assert "in handle\n    await deep_inside()\n" in report
    assert "in deep_inside\n    await asyncio.Event().wait()" in report
    task.cancel()


async def test_a_loop_that_hears_no_bell_loses_its_lease(monkeypatch):
    now = 1000.0
    monkeypatch.setattr(shell, "lease_time", lambda: now)
    watchdog = Watchdog(lambda: False, 300.0)
    bell = Bell(asyncio.get_running_loop(), watchdog.activity())
    worker = asyncio.create_task(bell.wait())
    await asyncio.sleep(0)
    bell.ring()
    assert not watchdog.may_renew(1300.5)
    stuck = watchdog.look(1300.5)
    assert stuck is not None
    report = stuck.report(1300.5)
    assert "messages have waited for the event loop for 300.5 s" in report
    assert "test_a_loop_that_hears_no_bell" in report
    await worker
    assert watchdog.may_renew(1300.5)
    bell.ring()
    bell.ring()
    await asyncio.sleep(0)  # Nobody waits: the workers are busy, and watched themselves.
    await asyncio.sleep(0)
    assert watchdog.may_renew(9999.0)
    await bell.wait()  # And the next one that waits is told.


# -------------------------------------------------------------- slips


def plain(message):
    raise AssertionError("it is not called")


async def generator(message):
    yield message


class Handlers:
    def plain(self, message):
        raise AssertionError("it is not called")

    async def method(self, message):
        pass

    async def __call__(self, message):
        pass


@pytest.mark.parametrize("handler", [plain, partial(plain), Handlers().plain, print, generator])
@pytest.mark.parametrize("how", ["each", "handle"])
def test_a_function_that_is_not_async_is_refused_at_once(handler, how):
    with pytest.raises(TypeError, match=r"write async def .* or take Consumer"):
        AsyncConsumer("orders", **{how: handler})


@pytest.mark.parametrize("handler", [Handlers(), Handlers().method, partial(Handlers().method)])
async def test_whatever_makes_a_coroutine_is_a_handler(one_partition, handler):
    one_partition.publish(2)
    await one_partition.consumer(handler, limit=2).run()
    await one_partition.consumer(lambda message: handler(message), limit=0).run()
    assert one_partition.handled == 2


@pytest.mark.parametrize("policy", ["halt", "quarantine"])
async def test_a_function_that_has_not_awaited_ends_it_whatever_the_policy(one_partition, policy):
    one_partition.publish(2)
    with pytest.raises(TypeError, match="must be an async function"):
        await one_partition.consumer(lambda message: None, on_poison=policy).run()
    assert one_partition.handled == 0
    assert one_partition.flows == []


async def test_an_async_function_for_consumer_is_told_of_this_one():
    async def handle(message):
        raise AssertionError

    async def of_batches(owned, batch):
        raise AssertionError

    with pytest.raises(TypeError, match="AsyncConsumer"):
        Consumer("orders", each=handle)
    with pytest.raises(TypeError, match="AsyncConsumer"):
        Consumer("orders", of_batches)


@pytest.mark.parametrize(
    ("concurrency", "error", "says"),
    [
        (0, ValueError, "concurrency must be at least 1, not 0"),
        (-3, ValueError, "at least 1"),
        (1.5, TypeError, "a whole number, not 1.5"),
        (True, TypeError, "a whole number, not True"),
        (None, TypeError, "a whole number, not None"),
        ("4", TypeError, "a whole number, not '4'"),
    ],
)
def test_a_concurrency_without_sense_is_refused(concurrency, error, says):
    with pytest.raises(error, match=says):
        AsyncConsumer("orders", concurrency=concurrency)


async def test_options_that_iteration_does_not_support_are_refused():
    for options in ({"concurrency": 2}, {"on_poison": DeadLetter("dead")}, {"attempts": 2}):
        with pytest.raises(ValueError, match="give each=function"):
            aiter(AsyncConsumer("orders", **options))
    with pytest.raises(TypeError, match=r"call run\(\)"):
        aiter(AsyncConsumer("orders", each=Handlers()))
    with pytest.raises(TypeError, match="iterate over it"):
        await AsyncConsumer("orders").run()


# -------------------------------------------------------------- counterpoise.testing


def test_the_testing_helper_runs_it_and_many_of_it(orders):
    orders.publish(20)
    orders.service.run(orders.consumer(orders.handle))
    assert sorted(orders.numbers) == list(range(20))
    assert orders.handled == 20
    others = [orders.consumer(orders.handle) for _ in range(2)]
    with orders.service.running(*others):
        orders.publish(20)
        orders.service.wait_until(lambda: orders.handled == 40)
    assert Counter(orders.numbers) == dict.fromkeys(range(20), 2)
    assert orders.flows == []


def test_a_killed_one_commits_nothing_more(one_partition):
    orders = one_partition
    orders.publish(3)

    async def handle(message):
        await orders.handle(message)
        if message.value == b"1":
            orders.service.kill(consumer)

    consumer = orders.consumer(handle, commit_seconds=3600)
    with pytest.raises(Killed):
        asyncio.run(consumer.run())
    orders.service.expire(consumer)
    assert orders.handled == 0
    orders.service.run(orders.consumer(orders.handle))
    assert orders.numbers == [0, 1, 0, 1, 2]
