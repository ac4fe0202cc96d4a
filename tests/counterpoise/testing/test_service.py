"""What `counterpoise.testing` promises to those who test their own consumers with it."""

import asyncio
import contextlib
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from counterpoise import AsyncClient, AsyncFlow, Client, Consumer, Flow, Publisher
from counterpoise.consumer import Retry
from counterpoise.errors import FlowGone, Invalid, ServiceUnavailable, Unreachable
from counterpoise.logs import Message, open_log
from counterpoise.logs.memory import MemoryLog
from counterpoise.testing import Killed, MemoryService
from counterpoise.testing.plugin import counterpoise_service
from counterpoise.waking import Waking
from counterpoise.wire import CommitItem

__all__ = ["counterpoise_service"]


@pytest.fixture
def service(counterpoise_service: MemoryService) -> MemoryService:
    counterpoise_service.create_queue("orders", partitions=4)
    return counterpoise_service


def test_a_consumer_handles_and_commits_what_is_in_the_queue(service):
    service.publish("orders", *map(str, range(100)), key="c1")
    seen: list[bytes] = []
    service.run(Consumer("orders", each=lambda message: seen.append(message.value)))
    assert seen == [str(number).encode() for number in range(100)]
    assert service.lag("orders") == 0
    assert service.owners("orders") == dict.fromkeys(range(4))


def test_a_test_with_a_consumer_waits_for_no_time_to_pass(service, monkeypatch):
    """It takes milliseconds, because each wait is ended by what it waits for."""
    passed: list[float] = []

    def longer(wait):
        def wait_longer(self, timeout=None, *sockets):
            notified = wait(self, timeout and max(timeout, 10.0), *sockets)
            if not notified and not sockets:
                passed.append(timeout)
            return notified

        return wait_longer

    for kind in (threading.Condition, Waking):
        monkeypatch.setattr(kind, "wait", longer(kind.wait))
    for _ in range(5):
        service.publish("orders", *map(str, range(10)))
        service.run(Consumer("orders", each=lambda message: None))
    assert not passed


def test_what_the_handler_raises_reaches_the_test(service):
    service.publish("orders", "poison")

    def fail(message):
        raise ValueError("cannot be handled")

    with pytest.raises(ValueError, match="cannot be handled"):
        service.run(Consumer("orders", each=fail))
    assert service.lag("orders") == 1


def test_a_consumer_runs_once(service):
    consumer = Consumer("orders", each=print)
    service.run(consumer)
    with pytest.raises(RuntimeError, match="make another Consumer"):
        consumer.run()


def test_the_last_consumer_does_not_wait_for_the_end_of_a_holddown(service):
    """Nobody would take its partitions then. Time stands still here."""
    service.create_queue("flights", partitions=2, rebalance_delay=60.0)
    service.publish("flights", "1", "2")
    last = Consumer("flights", each=print, drain_seconds=300.0)
    ended = threading.Thread(target=last.run, daemon=True)
    ended.start()
    service.wait_until(lambda: last.flow.status == "bound")
    service.advance(60.0)
    service.wait_until(lambda: last.handled == 2)
    last.stop()
    ended.join(240)
    assert not ended.is_alive()
    assert service.lag("flights") == 0


def test_a_running_client_renews_its_lease_before_its_first_poll_already(service):
    """Else time that passes between its bind and its poll would end its lease."""
    bound = service.client.bind("orders", "running", lease_seconds=10.0, binder="b1", attempt=1)
    calls_alone = service.client.bind("orders", "calls alone", lease_seconds=10.0)
    service.advance(60.0)
    assert [flow.flow_id for flow in service.client.flows("orders")] == [bound.flow_id]
    assert calls_alone.flow_id != bound.flow_id
    service.kill(bound.flow_id)
    service.advance(60.0)
    assert service.client.flows("orders") == []


def test_what_the_calls_return_is_what_the_page_says(service):
    """The table of docs/testing.md, *What a test can do*."""
    service.create_queue("flights", partitions=2)
    assert service.committed("flights") == {0: None, 1: None}
    service.publish("flights", b"3 screws", key="c1")
    service.run(Consumer("flights", each=print, client_name="host:4711"))
    [row] = service.messages("flights")
    assert row == {
        "partition": (number := row["partition"]),
        "position": "0",
        "key": "c1",
        "value": b"3 screws",
        "headers": None,
        "published_at": row["published_at"],
    }
    assert isinstance(row["published_at"], datetime)
    assert service.committed("flights") == {number: "1", 1 - number: "0"}
    assert service.owners("flights") == {0: None, 1: None}
    assert service.lag("flights") == 0
    assert service.now.tzinfo is UTC


def test_a_killed_consumer_has_not_committed_so_the_message_comes_again(service):
    service.publish("orders", "once more", key="c1")
    seen: list[bytes] = []
    victim: list[Consumer] = []

    def handle(message):
        seen.append(message.value)
        service.kill(victim[0])

    victim.append(Consumer("orders", each=handle, client_name="victim"))
    with pytest.raises(Killed):
        victim[0].run()
    assert set(service.owners("orders").values()) == {"victim"}
    service.expire(victim[0])
    service.run(Consumer("orders", each=lambda message: seen.append(message.value)))
    assert seen == [b"once more"] * 2


def test_a_consumer_of_any_queue_can_be_killed(service):
    service.create_queue("flows", partitions=1)
    service.publish("flows", "first")
    victim = Consumer("flows", each=lambda message: service.kill(victim))
    with pytest.raises(Killed):
        victim.run()
    assert service.lag("flows") == 1


def test_the_lease_of_a_killed_consumer_ends_when_its_time_has_passed(service):
    stays, goes = (
        Consumer("orders", each=print, client_name=name, lease_seconds=10.0)
        for name in ("stays", "goes")
    )
    with service.running(stays, goes):
        service.wait_until(lambda: set(service.owners("orders").values()) == {"stays", "goes"})
        service.kill(goes)
        service.advance(9.0)
        assert set(service.owners("orders").values()) == {"stays", "goes"}
        service.advance(5.0)
        assert set(service.owners("orders").values()) == {"stays"}


def test_live_consumers_keep_their_partitions_over_any_time(service):
    with Flow("orders", client_name="stays") as flow:
        before, began = flow.flow_id, service.now
        service.advance(7200.0)
        assert (service.now - began).total_seconds() == 7200.0
        flow.commit({0: "0"})
        assert flow.flow_id == before
        assert set(service.owners("orders").values()) == {"stays"}


def test_a_flow_learns_that_partitions_are_revoked_and_hands_them_over(service):
    revoked: list[int] = []
    flow = Flow("orders", on_revoking=lambda owned, deadline: revoked.append(owned.partition))
    with flow:
        with service.revoke("orders") as rival:
            service.wait_until(lambda: len(revoked) == 2)
            assert rival.partitions == frozenset()
            flow.release_many([(partition, None, False) for partition in revoked])
            assert rival.partitions == frozenset(revoked)
        service.wait_until(lambda: len(flow.partitions) == 4)


def test_a_flow_that_does_not_hand_over_loses_its_partitions_at_the_deadline(service):
    service.create_queue("slow", partitions=2, max_handoff_time=30.0)
    lost: list[int] = []
    with Flow("slow", on_lost=lambda owned: lost.append(owned.partition)):
        with service.revoke("slow") as rival:
            service.advance(29.0)
            assert rival.partitions == frozenset()
            service.advance(2.0)
            service.wait_until(lambda: len(lost) == 1)
            assert rival.partitions == frozenset(lost)


def test_a_flow_whose_lease_runs_out_binds_again(service):
    with Flow("orders") as flow:
        before = flow.flow_id
        service.expire(flow)
        service.wait_until(lambda: flow.flow_id not in (None, before))
        service.wait_until(lambda: len(flow.partitions) == 4)


def test_no_poll_renews_a_lease_that_runs_out(service):
    for _ in range(20):
        bound = service.client.bind("orders", "polls")
        polls = threading.Event()

        def poll(bound=bound, polls=polls):
            with contextlib.suppress(FlowGone):
                while True:
                    service.client.poll(
                        "orders", bound.flow_id, bound.flow_token, after=2**31, wait_seconds=0
                    )
                    polls.set()

        thread = threading.Thread(target=poll, daemon=True)
        thread.start()
        assert polls.wait(60)
        service.expire(bound.flow_id)
        assert not [*service.client.flows("orders")]
        thread.join(60)


async def test_an_asyncio_flow_works_and_can_be_killed(service):
    async with AsyncFlow("orders", client_name="async") as flow:
        assert len(flow.partitions) == 4
        assert await flow.commit({0: "0"}) == {0: "ok"}
        rival = service.revoke("orders")
        await flow.wait(60)
        rival.close()
    killed = AsyncFlow("orders", client_name="killed")
    await killed.open()
    service.kill(killed)
    with pytest.raises(asyncio.CancelledError):
        await killed.commit({0: "0"})
    service.expire(killed)
    assert set(service.owners("orders").values()) == {None}
    with pytest.raises(asyncio.CancelledError):
        await killed.close()


def test_a_publisher_publishes_once_and_in_order(service):
    with Publisher("orders", publisher_id="p") as publisher:
        for number in range(10):
            publisher.publish(str(number).encode(), key="c1")
    with Publisher("orders", publisher_id="p") as publisher:
        assert publisher.next_sequence == 10
    rows = service.messages("orders")
    assert [row["value"] for row in rows] == [str(number).encode() for number in range(10)]
    assert {row["published_at"] for row in rows} == {service.now}


def test_messages_may_have_keys_headers_and_times_of_their_own(service):
    service.publish("orders", Message(b"x", "k", {"h": "1"}, service.now))
    (row,) = service.messages("orders")
    assert (row["key"], dict(row["headers"])) == ("k", {"h": "1"})


def test_two_consumers_share_the_queue(service):
    seen: list[str] = []

    def consumer(name):
        def note(message):
            seen.append(name)

        return Consumer("orders", each=note, client_name=name, commit_seconds=0)

    both = [consumer("one"), consumer("two")]
    with service.running(*both):
        service.wait_until(lambda: set(service.owners("orders").values()) == {"one", "two"})
        service.publish("orders", *(Message(b"", f"c{number}") for number in range(40)))
        service.wait_until(lambda: service.lag("orders") == 0)
    assert set(seen) == {"one", "two"}
    assert len(seen) == 40


@pytest.mark.parametrize("and_then", [lambda: None, lambda: 1 / 0])
def test_an_error_of_a_running_consumer_is_raised_at_the_end(service, and_then):
    """Also if the block fails, which may follow from it."""

    def fail(message):
        raise ValueError("cannot be handled")

    def play():
        with service.running(consumer := Consumer("orders", each=fail, idle_seconds=0.01)):
            service.publish("orders", "poison")
            service.wait_until(lambda: consumer.flow.status == "gone")
            and_then()

    with pytest.raises(ValueError, match="cannot be handled"):
        play()


def test_a_running_consumer_that_does_not_end_is_an_error(service, monkeypatch):
    monkeypatch.setattr("counterpoise.testing.service.JOIN_SECONDS", 0.01)
    inside, go_on = threading.Event(), threading.Event()

    def wait(message):
        inside.set()
        go_on.wait()

    def play():
        with service.running(Consumer("orders", each=wait, idle_seconds=0.01)):
            service.publish("orders", "slow")
            assert inside.wait(60)

    with pytest.raises(TimeoutError, match="1 of 1 consumers"):
        play()
    go_on.set()


def test_a_run_that_has_handled_all_is_not_too_late(service, monkeypatch):
    service.publish("orders", "slow")

    def handle(message):
        later = SimpleNamespace(monotonic=lambda: math.inf)
        monkeypatch.setattr("counterpoise.testing.service.time", later)

    service.run(Consumer("orders", each=handle))
    assert service.lag("orders") == 0


def test_a_run_ends_behind_what_was_set_aside(service):
    service.create_queue("again", partitions=1)
    service.publish("orders", "first", "second", key="k")
    seen = []

    def fail_once(message):
        seen.append(message.value)
        if len(seen) == 1:
            raise ValueError("not yet")

    retry = Retry("again", after_seconds=[0.01], url=service.url)
    service.run(Consumer("orders", each=fail_once, on_poison=retry))
    assert sorted(seen) == [b"first", b"first", b"second"]
    assert service.lag("orders") == 0


def test_a_run_does_not_wait_for_what_is_done_above_the_position(service):
    service.create_queue("keyed", partitions=1)
    service.publish("keyed", "first", "second", "third")
    with Flow("keyed") as flow:
        service.wait_until(lambda: flow.partitions)
        flow.commit([CommitItem(0, flow.partitions[0].epoch, "0", done_above="1+1")])
    seen = []
    service.run(Consumer("keyed", each=lambda message: seen.append(message.value), order="key"))
    assert seen == [b"first", b"third"]
    assert service.lag("keyed") == 0


def test_a_resize_and_a_trim_work_as_in_production(service):
    service.publish("orders", *map(str, range(8)))
    service.client.change_queue("orders", partition_count=6)
    service.publish("orders", *map(str, range(8)))
    assert service.lag("orders") == 16
    service.run(Consumer("orders", each=lambda message: None))
    service.advance(120.0)
    assert len(service.messages("orders")) == 16
    service.client.change_queue("orders", retention_seconds=60)
    service.advance(120.0)
    assert service.messages("orders") == []


def test_the_event_stream_tells_what_happens(service):
    events = service.client.events("orders")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(next, events)
        service.wait_until(lambda: len(service._server.app.state.open_calls))
        with Flow("orders"):
            assert first.result(240).name == "change"
    events.close()


def test_a_stopped_service_is_unreachable(monkeypatch):
    with MemoryService() as service:
        client = Client(service.url)
        client.create_queue("orders", 1)
        bound = client.bind("orders", "c")
    other = Client(service.url, timeout_seconds=1.0)
    with pytest.raises(Unreachable):
        other.queues()
    other.close()
    # Nor is there nothing new for ever for one that it has bound.
    with pytest.raises(Unreachable, match="hung up"):
        client.poll("orders", bound.flow_id, bound.flow_token, after=99, wait_seconds=1)
    client.close()


def test_a_call_beyond_a_limit_is_refused_as_in_production():
    """The refusal is not delayed by time that does not pass."""
    with MemoryService(address_requests_per_second=1) as service:
        client = Client(service.url, timeout_seconds=1.0)
        with pytest.raises(ServiceUnavailable, match="over its rate"):
            [client.queues() for _ in range(20)]
        client.close()


def test_services_do_not_share_anything():
    with MemoryService() as one, MemoryService() as two:
        one.create_queue("orders")
        assert two.client.queues() == []
        assert one.url != two.url


def test_what_the_environment_has_for_a_real_service_changes_nothing(monkeypatch):
    monkeypatch.setenv("COUNTERPOISE_LOG_KEEP_MESSAGES", "1000")
    monkeypatch.setenv("COUNTERPOISE_TLS_KEY", "/nowhere/key.pem")
    with MemoryService() as service:
        service.create_queue("orders", retention_seconds=60)
        service.publish("orders", *map(str, range(8)))
        service.run(Consumer("orders", each=lambda message: None, url=service.url))
        service.advance(180.0)
        assert service.messages("orders") == []


def test_a_message_is_published_while_a_reader_that_waits_ends(service):
    """Amid its `close`: it hears nothing any more, and is not forgotten yet."""
    view = service.client.log_access("orders", "read")
    log = open_log(view.log, view.access)
    assert log.watch(dict.fromkeys(range(4), "0"))
    assert isinstance(log, MemoryLog)
    assert log._bell is not None
    log._bell[0].close()
    service.publish("orders", "first")
    assert service.lag("orders") == 1
    log.close()


def test_an_answer_for_a_loop_that_was_closed_disturbs_nobody(service, monkeypatch):
    answers: list[Callable[[object], None]] = []
    monkeypatch.setattr(service._server, "exchange", lambda scope, body, sent: answers.append(sent))
    monkeypatch.setattr(service._server, "hang_up", lambda exchange: None)

    async def gives_up():
        client = AsyncClient(service.url, timeout_seconds=0.2)
        with pytest.raises(Unreachable):
            await client.queues()

    asyncio.run(gives_up())
    # The loop was closed just after it was asked whether it is.
    monkeypatch.setattr("asyncio.BaseEventLoop.is_closed", lambda loop: False)
    for answer in answers:
        answer(None)


def test_a_queue_on_redis_needs_its_server_as_in_production(service, redis_server):
    with pytest.raises(Invalid, match="cannot be reached"):
        service.create_queue("away", 2, log="redis://127.0.0.1:1/0/away")
    queue = service.create_queue("flights", 2, log=redis_server.log("flights"))
    assert queue.log == redis_server.log("flights")
    assert [one.end for one in service.client.partitions("flights")] == ["0", "0"]
    service.client.delete_queue("flights")


@pytest.mark.parametrize("after", ["before the start", "after the end"])
def test_a_service_that_does_not_run_says_so_and_keeps_nobody_waiting(after):
    service = MemoryService()
    if after == "after the end":
        service.start()
        service.close()
    for use in (
        lambda: service.client,
        lambda: service.create_queue("orders"),
        lambda: service.advance(1),
        lambda: service.expire("f1"),
    ):
        with pytest.raises(RuntimeError, match="this service does not run: use it in its with"):
            use()


def test_a_consumer_of_another_service_is_refused_at_once(service, monkeypatch):
    monkeypatch.delenv("COUNTERPOISE_URL")
    consumer = Consumer("orders", each=print)
    with pytest.raises(ValueError, match=r"give it url=service\.url"):
        service.run(consumer)
    with pytest.raises(ValueError, match=r"give it url=service\.url"), service.running(consumer):
        pass


@pytest.mark.parametrize("nonsense", [-1, math.nan, True, "5"])
def test_time_passes_forwards(service, nonsense):
    with pytest.raises((TypeError, ValueError), match="seconds must be "):
        service.advance(nonsense)
