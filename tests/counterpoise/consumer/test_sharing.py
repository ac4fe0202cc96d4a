"""Workers and consumers share a queue: in parallel, in order, with timely or forced handoffs."""

import threading
from collections import Counter
from typing import Any

import pytest

from counterpoise.client import Client
from counterpoise.consumer import Consumer
from counterpoise.logs import LogNotFound, PositionAhead, open_log
from counterpoise.publisher import Publisher
from tests.counterpoise.consumer.conftest import in_order, positions
from tests.service import eventually


def test_workers_work_in_parallel_and_keep_the_order(running, publish):
    publish(range(400))
    together = threading.Barrier(3, timeout=60)
    first = threading.local()

    def act(message):
        if not hasattr(first, "met"):
            first.met = together.wait()  # Returns only if three workers handle messages at once.

    with running(act, concurrency=3) as one:
        eventually(lambda: len(one.seen) == 400)
        one.stop()
    assert sorted(one.numbers) == list(range(400))
    assert in_order(one)


@pytest.mark.long
def test_a_slow_partition_stops_no_other_and_does_not_fill_the_memory(service, running, publish):
    publish(range(2000))
    block = threading.Event()
    counts: Counter[int] = Counter()

    def act(message):
        counts[message.partition] += 1
        if message.partition == slow:
            block.wait(240)

    by_partition = count_by_partition(service)
    slow = max(by_partition, key=by_partition.get)
    with running(act, concurrency=2, max_messages=40) as one:
        others = sum(by_partition.values()) - by_partition[slow]
        eventually(lambda: len(one.seen) == others)
        lane = one.consumer.status().partitions[slow]
        assert counts[slow] == 1
        assert 0 < lane.waiting_messages <= 40
        assert lane.in_hand <= 40
        block.set()
        eventually(lambda: len(one.seen) == 2000)
    assert in_order(one)


def count_by_partition(service, queue="flights"):
    """The number of messages in each partition of the log."""
    with Client(service.url) as client:
        view = client.log_access(queue, "read")
    log = open_log(view.log, view.access)
    try:
        ends = log.bounds(range(view.partition_count)).ends
    finally:
        log.close()
    return {number: int(end) for number, end in ends.items()}


def test_two_consumers_share_and_nothing_comes_twice(client, running, publish):
    publish(range(300))
    told: list[tuple[str, int]] = []
    with running(concurrency=2, commit_seconds=0.1) as one:
        eventually(lambda: len(one.partitions) == 4)
        with running(
            on_granted=lambda owned: told.append(("granted", owned.partition)),
            on_lost=lambda owned: told.append(("lost", owned.partition)),
        ) as two:
            eventually(lambda: len(two.partitions) == 2 and len(one.partitions) == 2)
            publish(range(300, 600))
            eventually(lambda: len(one.seen) + len(two.seen) == 600)
            one.stop()
            eventually(lambda: len(two.partitions) == 4)
    assert sorted(one.numbers + two.numbers) == list(range(600))
    assert in_order(one, two)
    assert sorted(told) == [("granted", n) for n in range(4)]
    outcomes = {move.outcome for r in client.rebalances("flights") for move in r.moves}
    assert outcomes == {"initial", "graceful"}


def drain_from_outside(client):
    """As an administrator does, who has no token of the flow; the earliest flow."""
    client.drain("flights", client.flows("flights")[0].flow_id)


@pytest.mark.long
def test_a_consumer_that_is_drained_from_outside_hands_over_and_ends(
    client, running, publish, caplog
):
    publish(range(100))
    with running() as one:
        eventually(lambda: len(one.seen) == 100)
        with running() as two:
            eventually(lambda: len(two.partitions) == 2 and len(one.partitions) == 2)
            drain_from_outside(client)
            one.join()
            assert one.error is None
            publish(range(100, 200))
            eventually(lambda: len(two.seen) == 100)
            assert len(client.flows("flights")) == 1
    assert sorted(one.numbers + two.numbers) == list(range(200))
    assert in_order(one, two)
    outcomes = {move.outcome for r in client.rebalances("flights") for move in r.moves}
    assert outcomes == {"initial", "graceful"}
    assert caplog.text.count("drained by an administrator") == 1


@pytest.mark.long
def test_the_only_consumer_that_is_drained_from_outside_finishes_and_leaves(
    client, running, publish
):
    publish(range(20))
    begun, go_on = threading.Event(), threading.Event()

    def act(message):
        begun.set()
        assert go_on.wait(240)

    with running(act) as one:
        assert begun.wait(240)
        drain_from_outside(client)
        eventually(lambda: one.consumer.flow.draining)
        # The message in hand is finished first: it counts, and does not come again.
        go_on.set()
        one.join()
    assert client.flows("flights") == []
    assert one.numbers
    with running() as two:
        eventually(lambda: len(two.partitions) == 4)
        eventually(lambda: len(one.seen) + len(two.seen) == 20)
    assert sorted(one.numbers + two.numbers) == list(range(20))
    outcomes = {move.outcome for r in client.rebalances("flights") for move in r.moves}
    assert outcomes == {"initial", "graceful"}


class Slow:
    """Handles the first message until the test releases it, and notes the remaining time."""

    def __init__(self):
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.message: Any = None
        self.left_before = self.left_after = -1.0

    def __call__(self, message):
        if self.begun.is_set():
            return
        self.message, self.left_before = message, message.time_left()
        self.begun.set()
        self.go_on.wait(240)
        self.left_after = message.time_left()


@pytest.fixture
def one_partition(service, client):
    client.create_queue("one", 1, rebalance_delay=0, max_handoff_time=600)
    with Publisher("one", url=service.url) as publisher:
        for number in range(10):
            publisher.publish(str(number).encode())


def test_a_slow_message_that_is_done_in_time_is_handed_over_in_order(
    client, one_partition, running
):
    slow = Slow()
    revoked = threading.Event()
    left: list[float] = []

    def revoking(owned, seconds_left):
        left.append(seconds_left)
        revoked.set()

    with running(slow, queue="one", on_revoking=revoking) as one:
        assert slow.begun.wait(240)
        assert slow.left_before is None
        with running(queue="one") as two:
            eventually(lambda: two.consumer.flow.status == "bound")
            one.consumer.stop()
            assert revoked.wait(240)
            eventually(lambda: slow.message.time_left() is not None)
            slow.go_on.set()
            eventually(lambda: len(one.seen) + len(two.seen) == 10)
            one.join()
    assert 0 < slow.left_after <= 600
    assert 0 < left[0] <= 600
    assert one.numbers + two.numbers == list(range(10))
    outcomes = [move.outcome for r in client.rebalances("one") for move in r.moves]
    assert sorted(outcomes) == ["graceful", "initial"]


@pytest.mark.long
def test_a_slow_message_that_is_done_too_late_is_not_committed(client, one_partition, running):
    client.change_queue("one", max_handoff_time=0.3)
    slow = Slow()
    lost = threading.Event()
    with running(slow, queue="one", on_lost=lambda owned: lost.set()) as one:
        assert slow.begun.wait(240)
        with running(queue="one") as two:
            eventually(lambda: two.consumer.flow.status == "bound")
            one.consumer.stop()
            assert lost.wait(240)
            eventually(lambda: len(two.seen) == 10)
            assert slow.message.owned.lost
            slow.go_on.set()
            one.join()
            eventually(lambda: positions(client, "one") == {0: "10"})
    assert slow.left_after == 0.0
    assert one.numbers == [0]
    assert two.numbers == list(range(10))
    assert "forced" in [move.outcome for r in client.rebalances("one") for move in r.moves]


@pytest.mark.long
def test_it_commits_by_number_and_by_time(client, running, publish):
    publish(range(100))
    with running(commit_seconds=3600, commit_messages=50) as one:
        eventually(lambda: len(one.seen) == 100)
        eventually(lambda: sum(int(p or 0) for p in positions(client).values()) >= 50)
    assert sum(int(p or 0) for p in positions(client).values()) == 100
    publish(range(100, 110))
    with running(commit_seconds=0.05, commit_messages=10**9) as one:
        eventually(lambda: sum(int(p or 0) for p in positions(client).values()) == 110)


@pytest.mark.long
def test_a_worker_that_fails_ends_all_and_keeps_what_the_others_did(client, running, publish):
    publish(range(200))

    def act(message):
        if message.value == b"150":
            raise RuntimeError("no")

    one = running(act, concurrency=3)
    one.thread.start()
    one.join()
    assert isinstance(one.error, RuntimeError)
    assert client.flows("flights") == []
    handled = one.numbers
    with running() as two:
        eventually(lambda: len(handled) + len(two.seen) == 200)
    assert sorted(handled + two.numbers) == list(range(200))


@pytest.mark.long
def test_a_consumer_that_may_not_read_waits_and_reports_why(
    client, running, publish, postgres_of, monkeypatch
):
    monkeypatch.setattr("counterpoise.conditions.AWAY_SECONDS", 0)
    with running() as one:
        eventually(lambda: len(one.partitions) == 4)
        postgres_of("REVOKE SELECT ON counterpoise_log.messages FROM counterpoise_log_client")
        publish(range(1))
        eventually(lambda: client.conditions("flights"))
        (condition,) = client.conditions("flights")
        assert condition.kind == "log_away"
        assert "permission denied for table messages" in condition.text
        postgres_of("GRANT SELECT ON counterpoise_log.messages TO counterpoise_log_client")
        eventually(lambda: one.numbers == [0] and not client.conditions("flights"))


@pytest.mark.long
def test_the_log_of_a_new_queue_is_waited_for(service, client, running, publish, postgres_of):
    publish(range(3))
    postgres_of("UPDATE counterpoise_log.logs SET name = 'elsewhere' WHERE name = 'flights'")
    with running() as one:
        eventually(lambda: one.consumer.status().log_away)
        postgres_of("UPDATE counterpoise_log.logs SET name = 'flights' WHERE name = 'elsewhere'")
        eventually(lambda: len(one.seen) == 3)
    postgres_of("UPDATE counterpoise_log.logs SET name = 'elsewhere' WHERE name = 'flights'")
    with pytest.raises(LogNotFound, match="no log"):
        Consumer("flights", print, url=service.url, log_appears_seconds=0.1).run()


@pytest.mark.long
def test_a_partition_whose_log_ends_too_early_waits_and_the_others_go_on(
    service, client, running, publish, postgres_of, monkeypatch
):
    """As after a Redis has lost its last messages: the log lacks processed messages."""
    postgres_of("UPDATE counterpoise.partitions SET position = '20' WHERE number = 0")
    publish(range(70))
    ends = {one.partition: int(one.end) for one in client.partitions("flights")}
    assert 0 < ends[0] < 20 < sum(ends.values())
    with running() as one:
        eventually(lambda: len(one.seen) == sum(ends.values()) - ends[0])
        assert one.error is None
        publish(range(70, 140))
        eventually(lambda: len(one.seen) == 140 - 20)
    monkeypatch.setattr("counterpoise.consumer.reading.AHEAD_SECONDS", 0.1)
    postgres_of("UPDATE counterpoise.partitions SET position = '2000' WHERE number = 0")
    with pytest.raises(PositionAhead, match="reset the queue's positions"):
        Consumer("flights", print, url=service.url).run()


@pytest.mark.long
def test_partitions_come_and_go_while_the_settler_waits_for_an_answer(
    client, running, publish, monkeypatch
):
    """A commit that takes long must not keep a new partition from being read."""
    publish(range(200))
    commits, go_on = threading.Event(), threading.Event()
    with running(commit_seconds=0.05) as one, running(commit_seconds=0.05) as two:
        eventually(lambda: len(one.partitions) == len(two.partitions) == 2)
        eventually(lambda: len(one.seen) + len(two.seen) == 200)
        commit = two.consumer.flow.commit

        def slow(*arguments, **options):
            commits.set()
            assert go_on.wait(240)
            return commit(*arguments, **options)

        monkeypatch.setattr(two.consumer.flow, "commit", slow)
        publish(range(200, 300))
        assert commits.wait(240)
        one.stop()
        eventually(lambda: len(two.consumer.status().partitions) == 4)
        publish(range(300, 400))
        eventually(lambda: len(one.seen) + len(two.seen) == 400)
        go_on.set()
    assert sorted(one.numbers + two.numbers) == list(range(400))
