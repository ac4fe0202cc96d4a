"""Dry runs over HTTP: what they foresee, and that nothing is written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import psycopg
import pytest

from counterpoise.client import Client
from counterpoise.errors import Invalid, QueueInUse, QueueNotFound
from counterpoise.publisher import Publisher
from counterpoise.wire import Preview
from tests.api.consumer import bind, create_queue
from tests.api.test_problems import problem
from tests.service import Service

# What a replica writes by itself, also while nobody calls.
_OWN = ("service", "outages", "measurements", "commit_ages", "watches", "clients", "sessions")


def contents(url: str) -> dict[str, Any]:
    """Every row with the transaction that wrote it, by table."""
    with psycopg.connect(url) as connection:
        names = connection.execute(
            "SELECT format('%%I.%%I', schemaname, tablename) FROM pg_tables"
            " WHERE schemaname LIKE 'counterpoise%%' AND tablename <> ALL (%s) ORDER BY 1",
            (list(_OWN),),
        ).fetchall()
        return {
            name: connection.execute(
                f"SELECT xmin::text, row::text FROM {name} AS row ORDER BY 1, 2".encode()
            ).fetchall()
            for (name,) in names
        }


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.url) as client:
        yield client


def moves(found: Preview) -> dict[int, tuple[str | None, str | None]]:
    return {one.partition: (one.from_flow, one.to_flow) for one in found.moves}


def test_every_dry_run_writes_nothing_and_wakes_nobody(
    service: Service, migrated_url: str, api: httpx.Client
) -> None:
    create_queue(api, "q", 4, rebalance_delay=0)
    create_queue(api, "d", 1, partitioning="dynamic", rebalance_delay=0)
    with Publisher("q", url=service.url) as publisher:
        for number in range(8):
            publisher.publish(b"v", key=f"k{number}")
    merged = api.post("/queues/d/partitions/0/split", json={"at": "middle"}).json()["children"]
    one = bind(api, "q")
    one.until("owned", 0, 1, 2, 3)
    api.post("/queues/q/partitions/3/pause", json={})
    assert one.poll()
    revisions = [api.get(f"/queues/{name}").json()["revision"] for name in ("q", "d")]
    flow, first, second = one.flow_id, *(each["partition"] for each in merged)
    calls: list[tuple[str, str, Any]] = [
        ("PATCH", "/queues/q", {"partition_count": 6}),
        ("PATCH", "/queues/q?discard=true", {"partition_count": 2, "ordered_resize": False}),
        ("PATCH", "/queues/q", {"access_type": "exclusive", "retention_seconds": 5}),
        ("POST", "/queues/q/rebalance", None),
        ("POST", "/queues/q/pause", {"seconds": 60}),
        ("POST", "/queues/q/resume", None),
        ("POST", "/queues/q/partitions/0/pause", {}),
        ("POST", "/queues/q/partitions/3/resume", None),
        ("POST", f"/queues/q/flows/{flow}/drain", {}),
        ("DELETE", f"/queues/q/flows/{flow}", None),
        ("DELETE", "/queues/q?force=true", None),
        ("POST", f"/queues/d/partitions/{first}/split", {"at": "load"}),
        ("POST", f"/queues/d/partitions/{first}/merge", {"with": second}),
    ]
    before = contents(migrated_url)
    for method, path, body in calls:
        asked = f"{path}{'&' if '?' in path else '?'}dry_run=true"
        answer = api.request(method, asked, **({} if body is None else {"json": body}))
        assert answer.status_code == 200, (path, answer.text)
        assert answer.json()["queue"] == path.split("/")[2].partition("?")[0]
        assert contents(migrated_url) == before, path
    assert revisions == [api.get(f"/queues/{name}").json()["revision"] for name in ("q", "d")]
    # Nobody was woken, and the owner goes on under its epochs.
    assert not one.poll(0)
    assert one.outcomes("commit", one.item(0, position="0")) == ["ok"]
    assert {each["call"] for each in api.get("/audit").json()["items"]} == {
        "create_queue", "pause_partition", "split_partition",
    }  # fmt: skip


def test_a_resize_does_what_its_preview_says(api: httpx.Client, client: Client) -> None:
    create_queue(api, "q", 4, rebalance_delay=0, max_handoff_time=60)
    one, two = bind(api, "q"), bind(api, "q")
    one.until("revoking", 2, 3)
    one.outcomes("release", one.item(2), one.item(3))
    two.until("owned", 2, 3)
    grows = client.change_queue("q", partition_count=6, dry_run=True)
    assert grows.added == (4, 5)
    assert moves(grows) == {4: (None, one.flow_id), 5: (None, two.flow_id)}
    assert [(flow.before, flow.after) for flow in grows.flows] == [(2, 3), (2, 3)]
    assert [(each.name, each.before, each.after) for each in grows.settings] == [
        ("partition_count", 4, 6)
    ]
    assert grows.changes
    assert (grows.lost_messages, grows.holddown_until, grows.interrupted) == (0, None, ())
    client.change_queue("q", partition_count=6)
    one.until("owned", 0, 1, 4)
    two.until("owned", 2, 3, 5)
    same = client.change_queue("q", partition_count=6, dry_run=True)
    assert not same.changes


def test_a_drain_moves_and_an_unbind_interrupts(api: httpx.Client, client: Client) -> None:
    create_queue(api, "q", 2, rebalance_delay=5)
    one = bind(api, "q", at_once=True)
    one.until("owned", 0, 1)
    alone = client.drain("q", one.flow_id, dry_run=True)
    assert (alone.moves, alone.staying) == ((), (0, 1))
    two = bind(api, "q")
    drained = client.drain("q", one.flow_id, dry_run=True)
    assert moves(drained) == dict.fromkeys((0, 1), (one.flow_id, two.flow_id))
    # One of them goes there in any case.
    assert sorted(each.anyway for each in drained.moves) == [False, True]
    assert drained.interrupted == ()
    gone = client.unbind("q", one.flow_id, dry_run=True)
    assert gone.interrupted == (0, 1)
    assert [(flow.client_name, flow.before, flow.after) for flow in gone.flows] == [
        ("c", 2, None), ("c", 0, 2),
    ]  # fmt: skip
    # It may be repeated, and then changes nothing.
    api.delete(f"/queues/q/flows/{one.flow_id}").raise_for_status()
    assert not client.unbind("q", one.flow_id, dry_run=True).changes


def test_what_a_deletion_and_a_discard_would_lose(
    api: httpx.Client, client: Client, service: Service
) -> None:
    create_queue(api, "q", 2, rebalance_delay=0, ordered_resize=False)
    with Publisher("q", url=service.url) as publisher:
        for number in range(6):
            publisher.publish(b"v", key=f"k{number}")
    ends = [int(one.end or 0) for one in client.partitions("q")]
    assert sum(ends) == 6
    assert min(ends) > 0
    discarded = client.change_queue("q", True, partition_count=1, dry_run=True)
    assert (discarded.removed, discarded.lost_messages) == ((1,), ends[1])
    deleted = client.delete_queue("q", dry_run=True)
    assert (deleted.removed, deleted.lost_messages, deleted.deletes_log) == ((0, 1), 6, True)
    create_queue(api, "reader", 2, log="builtin:q")
    kept = client.delete_queue("reader", dry_run=True)
    assert (kept.lost_messages, kept.deletes_log) == (0, False)
    follows = client.change_queue("q", partition_count=3, dry_run=True)
    assert follows.followers == ("reader",)
    with pytest.raises(QueueInUse, match="reads the log"):
        client.delete_queue("q", dry_run=True)
    consumer = bind(api, "reader")
    with pytest.raises(QueueInUse, match="Flows are bound"):
        client.delete_queue("reader", dry_run=True)
    forced = client.delete_queue("reader", True, dry_run=True)
    assert [(flow.flow_id, flow.after) for flow in forced.flows] == [(consumer.flow_id, None)]


def test_pauses_splits_and_conditions(api: httpx.Client, client: Client) -> None:
    create_queue(api, "q", 3, rebalance_delay=0)
    client.pause_partition("q", 2)
    assert client.pause_queue("q", dry_run=True).paused == (0, 1)
    assert client.resume_partition("q", 2, dry_run=True).resumed == (2,)
    shrunk = client.change_queue("q", partition_count=2, dry_run=True)
    assert (shrunk.retiring, shrunk.conditions) == ((2,), {"resize_paused": 1})
    client.change_queue("q", partition_count=2)
    assert client.queue("q").conditions == {"resize_paused": 1}
    create_queue(api, "d", 1, partitioning="dynamic", rebalance_delay=0)
    split = client.split_partition("d", 0, "40000000", dry_run=True)
    assert (split.retiring, split.added, split.moves) == ((0,), (1, 2), ())
    done = client.split_partition("d", 0, "40000000")
    assert [each["partition"] for each in done["children"]] == [*split.added]
    assert not client.split_partition("d", 0, "40000000", dry_run=True).changes
    merged = client.merge_partitions("d", 1, 2, dry_run=True)
    assert (merged.retiring, merged.added) == ((1, 2), (3,))


def test_a_preview_is_refused_as_the_call_is(refusing: httpx.Client, service: Service) -> None:
    for path, body in (
        ("/queues/q?dry_run=true", {"partition_count": 0}),
        ("/queues/q?dry_run=true", {"max_weight": "much"}),
        ("/queues/q?dry_run=yes", {"partition_count": 2}),
        ("/queues/q?dry_run=true&discard=true", {}),
    ):
        problem(refusing.patch(path, json=body), 422, "invalid")
    problem(refusing.post("/queues/none/rebalance?dry_run=true"), 404, "queue_not_found")
    problem(refusing.post("/queues/q/partitions/7/pause?dry_run=true", json={}), 422, "invalid")
    unknown = "0198c0de-7f2a-7c31-9d2f-0c5d7a1b2e3f"
    drained = refusing.post(f"/queues/q/flows/{unknown}/drain?dry_run=true", json={})
    problem(drained, 404, "flow_not_found")
    problem(refusing.delete(f"/queues/q/flows/{unknown}?dry_run=true"), 404, "flow_not_found")
    with Client(service.url) as client:
        with pytest.raises(QueueNotFound):
            client.delete_queue("none", dry_run=True)
        with pytest.raises(Invalid):
            client.split_partition("none?", 0, dry_run=True)
