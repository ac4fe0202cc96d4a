"""Stuck and suspended consumers: others take over, and no stale work begins afterwards."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from counterpoise.publisher import Publisher
from tests.counterpoise.consumer.conftest import positions
from tests.counterpoise.leases import LONG_SECONDS, expire, sleeping
from tests.service import eventually


@pytest.fixture
def one_partition(service, client):
    client.create_queue("one", 1, rebalance_delay=0)
    with Publisher("one", url=service.url) as publisher:
        for number in range(10):
            publisher.publish(str(number).encode())


@pytest.mark.long
def test_others_take_over_from_a_stuck_consumer_without_stale_writes(
    client, running, publish, caplog, migrated_url
):
    publish(range(200))
    stuck, go_on = threading.Event(), threading.Event()

    def act(message):
        if message.value == b"100" and not stuck.is_set():
            stuck.set()
            go_on.wait(300)

    with running(
        act,
        concurrency=2,
        lease_seconds=LONG_SECONDS,
        max_processing_seconds=2,
        commit_seconds=3600,
    ) as one:
        assert stuck.wait(240)
        with running(lease_seconds=LONG_SECONDS) as two:
            eventually(lambda: "the lease is not renewed any more" in caplog.text)
            assert "go_on.wait" in caplog.text  # It reports where it is stuck.
            expire(migrated_url, one.consumer.flow.flow_id)
            assert one.consumer.status().stuck
            seen = len(one.seen)
            eventually(lambda: len(two.partitions) == 4)
            eventually(lambda: sum(int(p or 0) for p in positions(client).values()) == 200)
            assert len(one.seen) == seen
            go_on.set()
            # It binds again and gets its share; earlier messages in work or read ahead are dropped.
            eventually(lambda: len(one.partitions) == 2)
            eventually(lambda: not one.consumer.status().stuck)
            publish(range(200, 300))
            eventually(lambda: {*one.numbers, *two.numbers} == set(range(300)))
    before = one.numbers[: seen + 1]
    assert before[-1] == 100
    # Only the message in work came twice: all others had been committed.
    taken_over = [number for number in [*one.numbers, *two.numbers] if number < 200]
    assert sorted(taken_over) == sorted([*range(200), 100])
    outcomes = {move.outcome for r in client.rebalances("flights") for move in r.moves}
    assert "orphaned" in outcomes


def test_a_handler_that_ends_in_time_continues_normally(client, one_partition, running, caplog):
    go_on = threading.Event()

    def act(message):
        if message.value == b"3":
            go_on.wait(240)

    with running(act, queue="one", lease_seconds=LONG_SECONDS, max_processing_seconds=0.2) as one:
        eventually(lambda: one.consumer.status().stuck)
        go_on.set()
        eventually(lambda: len(one.seen) == 10)
    assert one.numbers == list(range(10))
    assert [flow.partitions for flow in client.flows("one")] == []
    assert positions(client, "one") == {0: "10"}
    assert "continuing with the partitions owned now" in caplog.text


@pytest.mark.long
def test_a_machine_that_has_slept_begins_no_message_of_lost_partitions(
    client, one_partition, running, migrated_url, monkeypatch
):
    sleep, slept = sleeping(monkeypatch), threading.Event()

    def act(message):
        if message.value == b"3":
            expire(migrated_url, one.consumer.flow.flow_id)
            sleep(LONG_SECONDS)
            slept.set()

    def binds_and_no_more():
        """No thread of the flow hears of the end of its lease before the handler returns."""
        return one.consumer.flow.status == "binding" and not slept.is_set()

    with running(
        act,
        queue="one",
        lease_seconds=LONG_SECONDS,
        renew_while=binds_and_no_more,
        commit_seconds=3600,
    ) as one:
        assert slept.wait(240)
        eventually(lambda: one.consumer.flow.status == "binding")
        assert one.numbers == [0, 1, 2, 3]
        with running(queue="one", lease_seconds=LONG_SECONDS) as two:
            eventually(lambda: two.numbers == list(range(10)))
    assert one.numbers == [0, 1, 2, 3]


STOPPED = """
import sys
from counterpoise.consumer import Consumer

def handle(message):
    print(message.value.decode(), flush=True)
    if message.value == b"9":
        sys.stdin.readline()

Consumer("one", each=handle, url=sys.argv[1], lease_seconds=4, commit_seconds=0).run()
"""


@pytest.mark.long
def test_a_suspended_process_begins_no_message_of_lost_partitions(service, client, running):
    client.create_queue("one", 1, rebalance_delay=0)
    with Publisher("one", url=service.url) as publisher:
        for number in range(400):
            publisher.publish(str(number).encode())
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED, service.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        # It is handling message 9, and would continue with 10.
        assert any(line == "9\n" for line in process.stdout)
        os.kill(process.pid, signal.SIGSTOP)
        with running(queue="one", lease_seconds=LONG_SECONDS) as two:
            eventually(lambda: positions(client, "one") == {0: "400"})
            process.stdin.write("go on\n")
            process.stdin.flush()
            os.kill(process.pid, signal.SIGCONT)
            # Bound again: so it has learned that it owns nothing.
            eventually(lambda: len(client.flows("one")) == 2)
            process.kill()
            begun = process.stdout.read()
    finally:
        process.kill()
        process.communicate()
    assert begun == "", "begun after it had stood still"
    assert {*range(10), *two.numbers} == set(range(400))
