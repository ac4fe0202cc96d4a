"""Consumers of a dynamic queue whose partitions split and merge while they work.

Messages are published with numbers; a key's numbers must be seen in order, whoever sees them.
"""

from collections import defaultdict

import pytest

from counterpoise import Flow
from counterpoise.calls import Call
from counterpoise.client import Client
from counterpoise.errors import EndRefused, Invalid, Refused
from counterpoise.logs.ranges import HASHES
from counterpoise.publisher import Publisher
from tests.counterpoise.leases import LONG_SECONDS
from tests.service import eventually

WHOLE = f"00000000-{HASHES - 1:08x}.0"


@pytest.fixture
def client(service):
    """A service with a dynamic queue of one partition."""
    with Client(service.url) as client:
        client.create_queue(
            "flights", partitioning="dynamic", rebalance_delay=0, max_handoff_time=600
        )
        yield client


def listed(client, queue):
    return client.send(Call("GET", f"/queues/{queue}/partitions", lambda body: body))["items"]


def states(client, queue="flights"):
    """Of all partitions that are not finished; these are listed while one that follows is not."""
    known = {one["partition"]: one["state"] for one in listed(client, queue)}
    return {number: state for number, state in known.items() if state != "finished"}


def keys(client, queue="flights"):
    return {one["partition"]: one["key"] for one in listed(client, queue)}


def all_in_order(seen):
    """Whether each key's numbers were seen in order and once, over all consumers."""
    by_key = defaultdict(list)
    for message in seen:
        by_key[message.key].append(int(message.value))
    return all(numbers == sorted(set(numbers)) for numbers in by_key.values())


def test_a_dynamic_queue_begins_with_equal_hash_ranges(service):
    with Client(service.url) as client:
        client.create_queue("halves", 2, partitioning="dynamic")
        assert keys(client, "halves") == {0: "00000000-7fffffff.0", 1: "80000000-ffffffff.1"}
        client.create_queue("whole", partitioning="dynamic")
        assert keys(client, "whole") == {0: WHOLE}
        with pytest.raises(Invalid, match="leave partitions out"):
            client.create_queue("odd", partitioning="dynamic", partitions=[{"key": "root"}])
        with pytest.raises(Invalid, match="has dynamic partitions"):
            client.create_queue("fixed", log="builtin:whole")
        client.create_queue("plain", 2)
        with pytest.raises(Invalid, match="change partition_count"):
            client.split_partition("plain", 0)


def test_what_follows_a_sealed_partition_is_read_from_its_begin_whatever_start_becomes(client):
    """What is published to it came after messages that are still to be read."""
    with Publisher("flights", client=client) as publisher:
        publisher.publish(b"older")
        publisher.flush()
        client.split_partition("flights", 0)
        for _ in range(4):
            publisher.publish(b"newer")
    client.change_queue("flights", start="latest")
    assert {one["partition"]: one["position"] for one in listed(client, "flights")} == {
        0: "1",
        1: None,
        2: None,
    }


def test_waiting_children_are_seen_at_once_and_calls_may_be_repeated(client):
    first = client.split_partition("flights", 0)
    assert first["sealed"] == [{"partition": 0, "end": "0"}]
    assert [child["partition"] for child in first["children"]] == [1, 2]
    assert client.split_partition("flights", 0) == first
    assert client.split_partition("flights", 0, "load") == first
    assert states(client) == {0: "unassigned", 1: "waiting", 2: "waiting"}
    with pytest.raises(Refused, match="after it came 1 and 2") as refused:
        client.split_partition("flights", 0, "00000001")
    assert refused.value.code == "partition_ended"
    merged = client.merge_partitions("flights", 1, 2)
    assert client.merge_partitions("flights", 2, 1) == merged
    with pytest.raises(Invalid, match="side by side"):
        client.merge_partitions("flights", 3, 3)
    calls = [item.call for item in client.audit(queue="flights")]
    assert {"split_partition", "merge_partitions"} <= set(calls)


def test_a_partition_is_split_and_merged_while_consumers_run(client, publish, running):
    publish(range(100))
    with running(concurrency=2) as one, running(concurrency=2) as two:
        eventually(lambda: len(one.seen) + len(two.seen) == 100)
        client.split_partition("flights", 0)
        publish(range(100, 300))
        eventually(lambda: set(states(client)) == {1, 2})
        client.split_partition("flights", 1, "load")
        publish(range(300, 500))
        eventually(lambda: set(states(client)) == {2, 3, 4})
        client.merge_partitions("flights", 3, 4)
        publish(range(500, 600))
        eventually(lambda: set(states(client)) == {2, 5})
        eventually(lambda: len(one.seen) + len(two.seen) == 600)
        by_key = defaultdict(list)
        for consumer in (one, two):
            for message in consumer.seen:
                by_key[message.key].append((message.published_at, int(message.value)))
        assert all(
            [number for _, number in sorted(found)] == sorted({number for _, number in found})
            for found in by_key.values()
        )
        assert sorted(one.numbers + two.numbers) == list(range(600))


@pytest.mark.long
def test_a_child_is_processed_after_all_its_parents(client, publish, running):
    """The merge of two partitions, one of which nobody has finished yet."""
    client.split_partition("flights", 0)
    publish(range(50))
    client.merge_partitions("flights", 1, 2)
    publish(range(50, 100))
    with running(concurrency=3) as one:
        eventually(lambda: len(one.seen) == 100)
        assert all_in_order(one.seen)
        eventually(lambda: states(client) == {3: "owned"})


@pytest.mark.long
def test_an_owner_that_dies_at_the_sealed_end_loses_no_child(service, client, publish, running):
    """It has committed the end of the parent and never reports what comes after it."""
    publish(range(20))
    client.split_partition("flights", 0)
    with Flow("flights", url=service.url, lease_seconds=LONG_SECONDS) as flow:
        eventually(lambda: 0 in flow.partitions)
        assert flow.commit({0: "20"}) == {0: "ok"}
        flow.close()
    publish(range(20, 40))
    with running() as one:
        eventually(lambda: sorted(one.numbers) == list(range(20, 40)))
        eventually(lambda: states(client) == {1: "owned", 2: "owned"})


@pytest.mark.long
def test_a_service_that_died_after_the_split_of_the_log_is_told_by_the_owner(
    service, client, publish, running, postgres_of
):
    """Only the log knows of the split; the owner reports it when it reaches the end."""
    publish(range(20))
    postgres_of(
        "UPDATE counterpoise_log.partitions SET successors = '["
        f'{{"partition": 1, "key": "00000000-7fffffff.1", "parents": ["{WHOLE}"]}},'
        f'{{"partition": 2, "key": "80000000-ffffffff.2", "parents": ["{WHOLE}"]}}]\''
    )
    postgres_of(
        "INSERT INTO counterpoise_log.partitions (log_id, partition, first_hash, last_hash)"
        " SELECT log_id, 1, 0, 2147483647 FROM counterpoise_log.logs UNION ALL"
        " SELECT log_id, 2, 2147483648, 4294967295 FROM counterpoise_log.logs"
    )
    publish(range(20, 40))
    with running() as one:
        eventually(lambda: sorted(one.numbers) == list(range(40)))
        eventually(lambda: states(client) == {1: "owned", 2: "owned"})
        assert all_in_order(one.seen)


@pytest.mark.long
def test_a_queue_that_reads_another_s_dynamic_log_follows_its_splits(client, publish, running):
    publish(range(20))
    client.split_partition("flights", 0)
    publish(range(20, 40))
    client.create_queue("all", log="builtin:flights", partitioning="dynamic", rebalance_delay=0)
    client.create_queue(
        "new", log="builtin:flights", partitioning="dynamic", rebalance_delay=0, start="latest"
    )
    assert (set(states(client, "all")), set(states(client, "new"))) == ({0}, {1, 2})
    with pytest.raises(Invalid, match="split and merge the partitions of that queue"):
        client.split_partition("all", 0)
    client.merge_partitions("flights", 1, 2)
    publish(range(40, 60))
    with running(queue="all") as every, running(queue="new") as new:
        eventually(lambda: sorted(every.numbers) == list(range(60)))
        eventually(lambda: sorted(new.numbers) == list(range(40, 60)))
        assert all_in_order(every.seen)


@pytest.mark.long
def test_an_end_that_the_service_refuses_is_an_error_that_people_see(
    client, publish, running, monkeypatch, caplog
):
    """Found from outside: the owner dropped the partition in silence, and the rest was not read."""
    publish(range(20))
    with monkeypatch.context() as full:
        full.setattr("broker.core.lineage.MOST_PARTITIONS", 1)
        full.setattr("broker.calls.lineage.room", lambda _: 2)
        with pytest.raises(Refused, match="No message is lost") as refused:
            client.split_partition("flights", 0)
        assert refused.value.code == "children_refused"
        publish(range(20, 40))
        one = running()
        one.thread.start()
        eventually(lambda: [held.kind for held in client.conditions("flights")] == ["end_refused"])
        assert states(client) == {0: "owned"}
        with pytest.raises(EndRefused, match="partition 0: too_many_partitions"):
            one.stop()
    told = [line for line in caplog.records if "have ended" in line.message]
    assert [line.levelname for line in told] == ["ERROR"]
    with running() as two:
        eventually(lambda: sorted(one.numbers + two.numbers) == list(range(40)))
        eventually(lambda: states(client) == {1: "owned", 2: "owned"})
    assert all_in_order(one.seen + two.seen)
