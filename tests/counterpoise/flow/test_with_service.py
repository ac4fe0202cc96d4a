"""Flows against the real service: they share a queue, come and go, and survive failures."""

import asyncio
import time

import pytest

from counterpoise.client import Client
from counterpoise.errors import CounterpoiseError, FlowGone
from counterpoise.flow import AsyncFlow, Flow
from counterpoise.wire import Child
from tests.counterpoise.leases import LONG_SECONDS, Health
from tests.service import eventually


@pytest.fixture
def client(service):
    with Client(service.url) as client:
        yield client


@pytest.fixture
def flights(client):
    """A queue that rebalances at once."""
    client.create_queue(
        "flights", 4, rebalance_delay=0, max_handoff_time=3600, max_warmup_time=7200
    )
    return client


@pytest.fixture
def flow(service, flights):
    """`flow(...)` opens a flow on the queue; all are closed at the end."""
    opened = []

    def make(**options):
        one = Flow("flights", url=service.url, **options)
        opened.append(one)
        return one.open()

    yield make
    for one in opened:
        one.close()


def owns(flow, count):
    eventually(lambda: len(flow.partitions) == count)


@pytest.mark.long
def test_a_flow_that_joins_gets_its_share_in_order(flow):
    told = []

    def revoking(owned, left):
        told.append((owned.partition, left))
        first.release(owned.partition, f"{owned.partition}0", epoch=owned.epoch)

    first = flow(on_revoking=revoking)
    owns(first, 4)
    assert first.commit(dict.fromkeys(range(4), "1")) == dict.fromkeys(range(4), "ok")
    second = flow()
    owns(first, 2)
    owns(second, 2)
    assert sorted(partition for partition, _ in told) == [2, 3]
    assert all(3000 < left <= 3600 for _, left in told)
    assert {
        number: (owned.epoch, owned.position, owned.handed_over)
        for number, owned in second.partitions.items()
    } == {2: (2, "20", "graceful"), 3: (2, "30", "graceful")}
    # A call under an old epoch is refused, and does not affect the others.
    assert first.commit([(0, 1, "5"), (3, 1, "31")]) == {0: "ok", 3: "stale_epoch"}


@pytest.mark.long
def test_an_owner_that_does_not_release_loses_at_the_deadline(flow, flights):
    flights.change_queue("flights", max_handoff_time=0.3)
    lost: list = []
    first = flow(on_lost=lost.append)
    owns(first, 4)
    second = flow()
    owns(second, 2)
    assert {owned.handed_over for owned in second.partitions.values()} == {"forced"}
    eventually(lambda: sorted(owned.partition for owned in lost) == [2, 3])
    assert first.release(3) == "stale_epoch"


@pytest.mark.long
def test_a_successor_that_warms_up_is_told_and_says_ready(flow):
    warmed: list = []

    def revoking(owned, _):
        first.release(owned.partition, epoch=owned.epoch)

    first = flow(on_revoking=revoking)
    owns(first, 4)
    second = flow(warmup=True, on_warming=lambda *told: warmed.append(told))
    eventually(lambda: len(warmed) == 2)
    assert len(second.warming) == 2
    assert len(first.partitions) == 4
    for warming, seconds_left in warmed:
        assert 6600 < seconds_left <= 7200
        assert second.ready(warming.partition) == "ok"
    owns(second, 2)
    assert dict(second.warming) == {}


@pytest.mark.long
def test_a_flow_whose_renewals_stop_loses_and_comes_back(flow, flights, migrated_url):
    flights.change_queue("flights", max_handoff_time=0.3)
    health = Health()
    lost: list = []
    first = flow(lease_seconds=LONG_SECONDS, renew_while=health, on_lost=lost.append)
    owns(first, 4)
    old = first.flow_id
    second = flow(lease_seconds=LONG_SECONDS)
    owns(second, 2)
    health.end_lease(migrated_url, old)
    owns(second, 4)
    eventually(lambda: health.refused >= 3)
    assert [one.flow_id for one in flights.flows("flights")] == [second.flow_id]
    health.recover()
    eventually(lambda: first.status == "bound" and first.flow_id != old)
    eventually(lambda: {owned.partition for owned in lost} == {0, 1, 2, 3})
    owns(first, 2)


@pytest.mark.long
def test_the_same_instance_elsewhere_takes_over_and_the_first_stops(flow):
    first = flow(instance_id="one")
    owns(first, 4)
    first.commit({0: "5"})
    second = flow(instance_id="one")
    assert {owned.handed_over for owned in second.partitions.values()} == {"replaced"}
    assert second.partitions[0].position == "5"
    eventually(lambda: first.status == "gone")
    assert first.gone_reason == "replaced"
    with pytest.raises(FlowGone):
        first.commit({0: "6"})
    second.wait(0.3)
    assert second.status == "bound"


def test_an_administrator_removes_a_flow_and_it_stays_away(flow, flights):
    first = flow()
    flights.unbind("flights", first.flow_id)
    eventually(lambda: first.status == "gone")
    assert first.gone_reason == "unbound"
    assert flights.flows("flights") == []


@pytest.mark.long
def test_the_queue_is_deleted_under_a_flow(flow, flights):
    first = flow()
    flights.delete_queue("flights", force=True)
    eventually(lambda: first.status == "gone")
    with pytest.raises(CounterpoiseError):
        first.commit({0: "5"})


@pytest.mark.long
def test_a_flow_does_not_take_a_queue_made_again_for_its_own(flow, flights, migrated_url):
    """It slept beyond its lease; epoch 1 of the new queue is not epoch 1 of the old one."""
    health = Health()
    granted: list = []
    first = flow(lease_seconds=LONG_SECONDS, renew_while=health, on_granted=granted.append)
    owns(first, 4)
    eventually(lambda: len(granted) == 4)  # the callbacks come after the view
    assert first.queue_id == flights.queue("flights").id
    health.end_lease(migrated_url, first.flow_id)
    flights.delete_queue("flights")
    flights.create_queue("flights", 4, rebalance_delay=0)
    assert first.commit([(0, 1, "5")]) == {0: "flow_gone"}
    health.recover()
    eventually(lambda: first.status == "gone")
    with pytest.raises(FlowGone, match="deleted and made again"):
        first.commit([(0, 1, "5")])
    assert first.gone_reason == "queue_recreated"
    eventually(lambda: flights.flows("flights") == [])
    assert {one.position for one in flights.partitions("flights")} == {None}
    assert len(granted) == 4
    # A new one consumes the new queue.
    owns(flow(), 4)


def test_a_flow_drains_and_the_others_take_over(flow):
    first = flow()
    owns(first, 4)
    second = flow(on_revoking=lambda owned, _: None)
    first.drain()
    assert first.draining
    while not first.drained:
        for number, owned in first.partitions.items():
            if owned.state == "revoking":
                first.release(number, epoch=owned.epoch)
        first.wait(1)
    owns(second, 4)


def test_the_last_flow_can_release_in_order_too(flow, flights):
    first = flow()
    owns(first, 4)
    first.drain()
    assert set(first.release_many([(n, "7", False) for n in range(4)]).values()) == {"ok"}
    eventually(lambda: first.drained)
    assert {one.position for one in flights.partitions("flights")} == {"7"}


def test_retiring_partitions_are_drained_and_released_as_finished(flow, flights):
    retiring: list = []
    first = flow(on_retiring=retiring.append)
    owns(first, 4)
    flights.change_queue("flights", partition_count=2)
    eventually(lambda: sorted(owned.partition for owned in retiring) == [2, 3])
    assert flights.queue("flights").scale_status == "ScalingDown"
    for owned in retiring:
        assert first.release(owned.partition, "0", finished=True, epoch=owned.epoch) == "ok"
    owns(first, 2)
    assert flights.queue("flights").operational_partition_count == 2


def test_growing_brings_new_partitions_to_flows_that_are_bound(flow, flights):
    first = flow()
    owns(first, 4)
    flights.change_queue("flights", partition_count=6)
    owns(first, 6)


def test_two_services_share_one_queue(services):
    first_service, second_service = services(2)
    with Client(first_service.url) as client:
        client.create_queue("flights", 4, rebalance_delay=0, max_handoff_time=600)
    with Flow("flights", url=first_service.url) as first:
        release = first.release
        first_released = []
        owns(first, 4)
        with Flow("flights", url=second_service.url) as second:
            while len(second.partitions) < 2:
                for number, owned in first.partitions.items():
                    if owned.state == "revoking":
                        first_released.append(release(number, epoch=owned.epoch))
                first.wait(0.2)
            assert set(first_released) == {"ok"}
            assert second.commit({3: "9"}) == {3: "ok"}
        owns(first, 4)
        assert first.partitions[3].position == "9"


@pytest.mark.long
def test_a_restart_of_the_service_costs_nothing(served):
    with Client(served.url) as client:
        client.create_queue("flights", 4, rebalance_delay=0)
        lost: list = []
        with Flow("flights", url=served.url, lease_seconds=6, on_lost=lost.append) as flow:
            owns(flow, 4)
            flow.commit({0: "5"})
            flow_id, epochs = flow.flow_id, {n: o.epoch for n, o in flow.partitions.items()}
            served.kill()
            eventually(lambda: flow.last_error is not None)
            assert len(flow.partitions) == 4
            with pytest.raises(CounterpoiseError):
                flow.commit({0: "6"}, timeout_seconds=0.3)
            eventually(lambda: time.monotonic() > (flow.lease_expires_at or 0))
            served.start()
            eventually(lambda: flow.last_error is None)
            assert flow.commit({0: "7"}) == {0: "ok"}
            assert flow.flow_id == flow_id
            assert {n: o.epoch for n, o in flow.partitions.items()} == epochs
            assert lost == []
            assert client.partitions("flights")[0].position == "7"


async def test_the_same_with_asyncio(service, flights):
    granted: list = []

    async def revoking(owned, left):
        await first.release(owned.partition, "7", epoch=owned.epoch)

    first = AsyncFlow("flights", url=service.url, on_revoking=revoking)
    async with first:
        async with asyncio.timeout(240):
            while len(first.partitions) < 4:
                await first.wait()
        async with AsyncFlow("flights", url=service.url, on_granted=granted.append) as second:
            async with asyncio.timeout(240):
                while len(second.partitions) < 2:
                    await second.wait()
            assert {owned.position for owned in second.partitions.values()} == {"7"}
            assert await second.commit({3: "9"}) == {3: "ok"}
            assert await second.log_access() is not None


# ------------------------------------------------------------------ dynamic queues


@pytest.fixture
def tokens(client):
    """A dynamic queue with one root."""
    roots = [{"key": "root"}]
    client.create_queue(
        "tokens", log="stream://x", partitioning="dynamic", partitions=roots, rebalance_delay=0
    )
    return client


def test_a_flow_follows_splits_and_merges(service, tokens):
    lost = []
    with Flow("tokens", url=service.url, on_lost=lambda owned: lost.append(owned.key)) as flow:
        owns(flow, 1)
        assert (flow.partitions[0].key, flow.partitions[0].parents) == ("root", ())
        halves = [Child("low", position="5"), Child("high", partition=7)]
        assert flow.children(0, halves, position="20") == "ok"
        assert flow.partitions[0].position == "20"
        assert flow.finish(0, "41", halves) == "ok"
        owns(flow, 2)
        assert {
            number: (owned.key, owned.parents, owned.position)
            for number, owned in flow.partitions.items()
        } == {1: ("low", ("root",), "5"), 7: ("high", ("root",), None)}
        whole = Child("whole", ("low", "high"))
        unknown = Child("more", ("low", "nobody"))
        assert flow.children(1, [unknown], finished=True) == "unknown_parent"
        assert flow.finish(1, children=[whole]) == "ok"
        [waiting] = [node for node in tokens.lineage("tokens") if node.state == "waiting"]
        assert (waiting.key, waiting.parents, waiting.waits_for) == ("whole", ("low", "high"), (7,))
        assert flow.finish(7, children=[whole]) == "ok"
        eventually(lambda: [owned.key for owned in flow.partitions.values()] == ["whole"])
        assert flow.finish(8) == "ok"
        assert flow.finish(8) in ("no_such_partition", "not_owner")
        # What the program finished by itself is not reported as lost.
        assert lost == []


def test_an_asyncio_flow_finishes_a_partition(service, tokens):
    async def run():
        async with AsyncFlow("tokens", url=service.url) as flow:
            while not flow.partitions:
                await flow.wait(60)
            assert await flow.children(0, [Child("next")]) == "ok"
            assert await flow.finish(0, "9", [Child("next")], epoch=1) == "ok"
            assert await flow.finish(0, epoch=9) == "not_owner"

    asyncio.run(run())
    assert [node.key for node in tokens.lineage("tokens")] == ["root", "next"]
