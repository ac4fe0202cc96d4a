"""The end of a consumer: how long it waits, and for what."""

import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from counterpoise.consumer import Consumer, Retry, base, settling
from counterpoise.consumer.retry_queue import RetryQueue
from counterpoise.consumer.settling import IN_HAND_SECONDS, Settler
from counterpoise.flow.blocking import Flow
from counterpoise.testing import MemoryService
from tests.eventual import eventually
from tests.interrupting import interrupted_when


class Ending:
    """A settler that is told to stop, by a virtual clock: 30 s pass between its turns."""

    def __init__(self, monkeypatch, ready_at):
        self.now, self.waited = 1000.0, []
        monkeypatch.setattr(settling, "lease_time", lambda: self.now)
        client = SimpleNamespace(rebalance_status=lambda _: SimpleNamespace(status=self.status()))
        self.ready_at = self.now + ready_at
        flow: Any = SimpleNamespace(
            queue="flights", status="bound", draining=False, drained=False, drain=lambda _: None
        )
        lanes: Any = SimpleNamespace(
            reached_limit=lambda: False,
            follow=lambda: None,
            call_due=lambda _: None,
            close=lambda: None,
            refused=lambda: (),
            wait_idle=self.wait_idle,
        )
        settler: Any = Settler(
            flow,
            lanes,
            SimpleNamespace(stuck=True, stuck_count=0),  # type: ignore[arg-type]
            SimpleNamespace(wait=self.wait),  # type: ignore[arg-type]
            client=lambda: nullcontext(client),  # type: ignore[arg-type, return-value]
            conditions=tuple,
            commit_seconds=1.0,
            drain_seconds=100.0,
        )
        settler._last_word, settler._let_go = True, lambda: None
        self.settler = settler

    def status(self):
        return "Ready" if self.now >= self.ready_at else "Rebalancing"

    def wait(self, _seconds):
        self.now += 30.0

    def wait_idle(self, seconds):
        self.waited.append(seconds)
        return True


@pytest.mark.parametrize(
    ("ready_at", "left"),
    [(45.0, 40.0), (1000.0, IN_HAND_SECONDS)],
    ids=["handed over", "not handed over"],
)
def test_a_drain_and_the_messages_in_hand_have_one_time_limit(monkeypatch, ready_at, left):
    ending = Ending(monkeypatch, ready_at)
    ending.settler.stopping = True
    ending.settler.run()
    assert ending.waited == [left]


def test_without_a_drain_the_messages_in_hand_have_all_of_it(monkeypatch):
    ending = Ending(monkeypatch, 0.0)
    ending.settler.stopping = ending.settler.abandoning = True
    ending.settler.run()
    assert ending.waited == [100.0]


def test_it_unbinds_before_it_waits_for_workers(monkeypatch):
    unbound, begun, before = threading.Event(), threading.Barrier(4), []
    close = Flow.close

    def closing(flow, **options):
        close(flow, **options)
        unbound.set()

    def each(_message):
        begun.wait(240)
        before.append(unbound.wait(30))

    monkeypatch.setattr(Flow, "close", closing)
    monkeypatch.setattr(base, "LEAVE_SECONDS", 240.0)
    with MemoryService() as service:
        service.create_queue("flights", 3)
        for key in "abcdefghijk":
            service.publish("flights", b"x", key=key)
        consumer = Consumer(
            "flights", each=each, url=service.url, concurrency=3, drain_seconds=0.01
        )
        thread = threading.Thread(target=consumer.run)
        thread.start()
        begun.wait(240)
        consumer.stop(now=True)
        thread.join(240)
    assert before == [True] * 3


def test_an_interrupt_commits_what_workers_have_handled(monkeypatch):
    unbound, begun = threading.Event(), []
    close = Flow.close

    def closing(flow, **options):
        unbound.set()
        close(flow, **options)

    def each(message):
        begun.append(message)
        if len(begun) == 10:
            eventually(lambda: consumer._lanes.closed)
            # The consumer is to wait for it.
            unbound.wait(0.5)

    monkeypatch.setattr(Flow, "close", closing)
    with MemoryService() as service:
        service.create_queue("flights", 2)
        service.publish("flights", *(b"%d" % number for number in range(10)))
        consumer = Consumer(
            "flights", each=each, url=service.url, concurrency=2, commit_seconds=1000
        )
        with (
            pytest.raises(KeyboardInterrupt),
            interrupted_when(lambda: len(begun) == 10),
        ):
            consumer.run()
        assert sum(int(one or 0) for one in service.committed("flights").values()) == 10


@pytest.mark.parametrize("now", [False, True])
def test_stopped_before_it_runs_it_does_not_bind(now):
    with MemoryService() as service:
        service.create_queue("flights", 1)
        before = service.client.rebalance_status("flights").revision
        consumer = Consumer("flights", each=print, url=service.url)
        consumer.stop(now=now)
        consumer.run()
        assert consumer.flow.status == "new"
        assert service.client.rebalance_status("flights").revision == before


def test_the_last_message_in_hand_leaves_no_connection_to_the_retry_queue(monkeypatch):
    calls = []
    for name in ("write", "close"):
        real = getattr(RetryQueue, name)

        def called(self, *given, name=name, real=real):
            calls.append(name)
            real(self, *given)

        monkeypatch.setattr(RetryQueue, name, called)

    def each(message):
        consumer.stop(now=True)
        # The other threads have seen it.
        eventually(lambda: not any("keeper" in one.name for one in threading.enumerate()))
        raise ValueError("not yet")

    with MemoryService() as service:
        service.create_queue("orders", partitions=1)
        service.create_queue("again", partitions=1)
        service.publish("orders", "first")
        retry = Retry("again", after_seconds=[60])
        consumer = Consumer("orders", each=each, url=service.url, on_poison=retry)
        consumer.run()
    assert calls == ["write", "close"]
