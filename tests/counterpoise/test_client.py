"""The clients against the real service: every call arrives and its answer is read."""

import asyncio
import contextlib
import itertools
import os
import socket
import threading
from datetime import UTC, datetime

import pytest

from counterpoise.client import AsyncClient, Client
from counterpoise.errors import (
    FlowGone,
    FlowNotFound,
    Forbidden,
    Invalid,
    QueueExists,
    QueueInUse,
    QueueNotFound,
)
from counterpoise.wire import CommitItem, ReadyItem, ReleaseItem


@pytest.fixture
def client(service):
    with Client(service.url) as client:
        yield client


def test_queues_are_created_listed_changed_and_deleted(client):
    made = client.create_queue("a", 3, rebalance_delay=0, max_concurrent_handoffs=2)
    assert (made.name, made.partition_count, made.rebalance_delay) == ("a", 3, 0.0)
    assert made.max_concurrent_handoffs == 2
    assert made.created_at is not None
    client.create_queue("b", 1)
    assert [queue.name for queue in client.queues()] == ["a", "b"]
    assert [queue.name for queue in client.queues(max_items=1)] == ["a"]
    assert client.change_queue("a", rebalance_delay=7).rebalance_delay == 7.0
    assert client.change_queue("a", partition_count=5).partition_count == 5
    client.delete_queue("b")
    with pytest.raises(QueueNotFound, match="'b'"):
        client.queue("b")


def test_a_forked_child_uses_connections_of_its_own():
    """Of one that both use each would read answers to the other."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = Client(f"http://127.0.0.1:{server.getsockname()[1]}")

        asking = threading.Thread(target=client.queues)
        asking.start()
        before, _ = server.accept()
        before.recv(10_000)
        empty = b'{"items": [], "next_cursor": null}'
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        before.sendall(head % len(empty) + empty)
        asking.join()
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                client.queues()
            os._exit(0)
        connection, _ = server.accept()
        assert connection.recv(10_000).startswith(b"GET /v1/queues")
        for one in (connection, before):
            one.close()
        os.waitpid(child, 0)
        client.close()


@pytest.mark.long
def test_each_refusal_has_its_own_exception(client):
    client.create_queue("a", 1)
    with pytest.raises(QueueExists):
        client.create_queue("a", 2)
    with pytest.raises(Invalid, match="partition_count"):
        client.create_queue("c", 0)
    with pytest.raises(Invalid, match="colour"):
        client.create_queue("c", 1, colour="red")
    bound = client.bind("a", "me")
    with pytest.raises(QueueInUse, match="delete with force=True"):
        client.delete_queue("a")
    with pytest.raises(FlowNotFound):
        client.heartbeat("a", "00000000-0000-0000-0000-000000000000", bound.flow_token)
    other = client.bind("a", "other")
    with pytest.raises(Forbidden):
        client.heartbeat("a", bound.flow_id, other.flow_token)
    client.unbind("a", bound.flow_id, bound.flow_token)
    client.unbind("a", bound.flow_id, bound.flow_token)
    with pytest.raises(FlowGone) as gone:
        client.heartbeat("a", bound.flow_id, bound.flow_token)
    assert gone.value.reason == "unbound"
    client.delete_queue("a", force=True)


def test_a_flow_by_hand(client):
    client.create_queue("a", 2, rebalance_delay=0)
    bound = client.bind("a", "me", "instance", lease_seconds=500)
    assert bound.lease_seconds == 500.0
    assert bound.log == "builtin:a"
    flow = ("a", bound.flow_id, bound.flow_token)
    update = client.poll(*flow, after=0, wait_seconds=30)
    assert update is not None
    if not update.partitions:
        update = client.poll(*flow, after=update.revision, wait_seconds=30)
    assert [one.partition for one in update.partitions] == [0, 1]
    assert client.poll(*flow, after=update.revision, wait_seconds=0.1) is None
    assert client.heartbeat(*flow).revision == update.revision
    results = client.commit(*flow, [CommitItem(0, 1, "7"), CommitItem(9, 1, "7")], seq=1)
    assert [one.outcome for one in results.results] == ["ok", "no_such_partition"]
    results = client.release(*flow, [ReleaseItem(0, 1), ReleaseItem(1, 0)], seq=2)
    assert [one.outcome for one in results.results] == ["not_revoking", "stale_epoch"]
    assert results.results[1].current_epoch == 1
    results = client.ready(*flow, [ReadyItem(0, 1)])
    assert [one.outcome for one in results.results] == ["not_warming"]
    assert [flow.instance_id for flow in client.flows("a")] == ["instance"]
    assert [one.position for one in client.partitions("a")] == ["7", None]
    assert client.drain(*flow).draining
    status = client.rebalance_status("a")
    assert status.status == "Ready"
    assert client.rebalance_now("a").queue == "a"
    history = client.rebalances("a")
    assert history[-1].trigger == "bind"
    assert {move.partition for move in history[-1].moves} == {0, 1}


@pytest.mark.long
def test_positions_are_set_to_an_end_a_time_or_each(client):
    client.create_queue("a", 2)
    client.set_positions("a", {0: "0", 1: None})
    assert client.partitions("a")[0].position == "0"
    with pytest.raises(Invalid, match="partition 0 ends at 0"):
        client.set_positions("a", {0: "5"})
    client.set_positions("a", "earliest")
    client.set_positions("a", datetime.now(UTC))
    with pytest.raises(Invalid):
        client.set_positions("a", "somewhere")


def test_a_listing_follows_its_pages(client, monkeypatch):
    monkeypatch.setattr("counterpoise.calls.PAGE_SIZE", 2)
    client.create_queue("a", 5)
    assert [one.partition for one in client.partitions("a")] == [0, 1, 2, 3, 4]
    assert [one.partition for one in client.partitions("a", max_items=3)] == [0, 1, 2]


def test_access_to_the_log_is_given_and_never_shown(client):
    client.create_queue("a", 5)
    view = client.log_access("a", "publish")
    assert (view.log, view.log_name, view.partition_count) == ("builtin:a", "a", 5)
    assert view.access is not None
    password = view.access.url.split("@")[0].rpartition(":")[2]
    assert password
    assert password not in repr(view)


@contextlib.contextmanager
def changing_the_queue(client):
    """Change the queue repeatedly, so that the event stream has events."""
    told = threading.Event()

    def change():
        for delay in itertools.count():
            client.change_queue("a", max_handoff_time=5 + delay % 100)
            if told.wait(0.1):
                return

    changing = threading.Thread(target=change)
    changing.start()
    try:
        yield
    finally:
        told.set()
        changing.join()


@pytest.mark.long
def test_events_are_told_as_they_are_committed(client):
    client.create_queue("a", 1, rebalance_delay=0)
    events = client.events("a")
    # The stream begins with its opening, and only the stream knows when that is.
    with changing_the_queue(client), contextlib.closing(events):
        event = next(events)
    assert event.revision is not None
    assert event.revision > 1


def test_the_same_with_asyncio(service, client):
    blocking = client

    async def use():
        async with AsyncClient(service.url) as client:
            await client.create_queue("a", 3, rebalance_delay=0)
            assert [queue.name for queue in await client.queues()] == ["a"]
            bound = await client.bind("a", "me")
            flow = ("a", bound.flow_id, bound.flow_token)
            await client.heartbeat(*flow)
            assert len(await client.partitions("a")) == 3
            with changing_the_queue(blocking):
                async for event in client.events("a"):
                    assert event.data
                    break
            with pytest.raises(QueueNotFound):
                await client.queue("b")

    asyncio.run(use())
