"""Ordered resizes, from the log's cuts to the flows' views, on replicas in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from broker.core.access import RIGHTS, Caller, Role
from broker.core.commands import CommitItem, ReleaseItem
from broker.core.errors import Invalid, LogChanged, QueueExists, ResizeUnsettled, Unavailable
from broker.logs.ports import Bounds
from broker.store.ports import QueueDamaged, QueueTooNew
from broker.testing.loop import settle, virtual
from counterpoise import wire
from tests.broker.shell import Service, World, dynamic, spec, unreadable

LOG = "builtin:orders"


async def ordered(world: World, count: int = 2, **settings: Any) -> Service:
    """A replica with the queue `orders`, whose resizes are ordered."""
    replica = await world.replica()
    await replica.create_queue(spec(partitions=count, ordered_resize=True, **settings))
    return replica


async def bound(replica: Service, name: str = "A") -> str:
    return (await replica.bind("orders", name, name, 10.0, False)).flow_id


async def seen(replica: Service, flow_id: str) -> tuple[int | None, dict[int, Any]]:
    """The resize that the flow's view knows, and (cut, reached_cut, waits_for) by partition."""
    update = await replica.update("orders", flow_id)
    assert update is not None
    return update.resize, {
        one.partition: (one.cut, one.reached_cut, one.waits_for)
        for one in update.partitions
        if one.cut is not None
    }


async def commit(replica: Service, flow_id: str, **positions: str) -> None:
    update = await replica.update("orders", flow_id)
    assert update is not None
    epochs = {one.partition: one.epoch for one in update.partitions}
    items = [CommitItem(int(name[1:]), epochs[int(name[1:])], at) for name, at in positions.items()]
    results = await replica.commit("orders", flow_id, None, items)
    assert {one.outcome for one in results.results} == {"ok"}


def publish(replica: Service, partition: int, messages: int = 1) -> None:
    for _ in range(messages):
        replica.logs.the(LOG).append(partition)


@virtual
async def test_a_queue_that_was_never_resized_waits_for_nothing() -> None:
    world = World()
    replica = await ordered(world)
    flow = await bound(replica)
    publish(replica, 0, 3)
    assert await seen(replica, flow) == (0, {})
    assert (await replica.rebalance_status("orders")).resize is None


@virtual
async def test_a_new_partition_waits_for_the_old_one_of_its_class_alone() -> None:
    world = World()
    replica = await ordered(world)
    flow = await bound(replica)
    publish(replica, 0, 3)
    publish(replica, 1, 2)
    await replica.change_queue("orders", {"partition_count": 4}, False)
    assert await seen(replica, flow) == (
        1,
        {
            0: ("3", False, ()),
            1: ("2", False, ()),
            2: ("0", True, (0,)),
            3: ("0", True, (1,)),
        },
    )
    await commit(replica, flow, p0="2", p1="2")
    assert await seen(replica, flow) == (1, {0: ("3", False, ()), 2: ("0", True, (0,))})
    await commit(replica, flow, p0="3")
    assert await seen(replica, flow) == (1, {})
    assert (await replica.rebalance_status("orders")).resize is None


@virtual
async def test_the_partitions_say_which_one_waits_for_which_and_where() -> None:
    world = World()
    replica = await ordered(world)
    flow = await bound(replica)
    publish(replica, 0, 3)
    await replica.change_queue("orders", {"partition_count": 4}, False)
    page = await replica.partitions("orders", 10, None)
    assert [(one.cut, one.reached_cut, one.waits_for) for one in page.items] == [
        ("3", False, ()),
        (None, None, None),
        ("0", True, (0,)),
        (None, None, None),
    ]
    status = (await replica.rebalance_status("orders")).resize
    assert status == wire.UnsettledResize(2, 4, False, unreached=1, waiting=1)
    await commit(replica, flow, p0="3")


@virtual
async def test_a_pause_while_a_resize_is_not_settled_is_a_condition() -> None:
    """Although none retires."""
    world = World()
    replica = await ordered(world)
    flow = await bound(replica)
    publish(replica, 0, 3)
    await replica.calls.pauses.pause("orders", 0)
    assert (await replica.queue("orders")).conditions is None
    await replica.change_queue("orders", {"partition_count": 4}, False)
    assert (await replica.queue("orders")).conditions == {"resize_paused": 1}
    await commit(replica, flow, p0="3")
    assert (await replica.queue("orders")).conditions is None


@virtual
async def test_a_partition_without_messages_before_its_cut_is_not_waited_for() -> None:
    world = World()
    replica = await ordered(world)
    flow = await bound(replica)
    await replica.change_queue("orders", {"partition_count": 4}, False)
    assert await seen(replica, flow) == (1, {})


@virtual
async def test_what_is_committed_before_the_cuts_are_known_counts() -> None:
    world = World()
    replica = await ordered(world)
    flow = await bound(replica)
    publish(replica, 0, 3)
    await commit(replica, flow, p0="3")
    await replica.change_queue("orders", {"partition_count": 4}, False)
    assert await seen(replica, flow) == (1, {})


@virtual
async def test_shrinking_keeps_partitions_waiting_for_those_that_retire() -> None:
    world = World()
    replica = await ordered(world, 4)
    flow = await bound(replica)
    publish(replica, 2, 1)
    publish(replica, 3, 2)
    await replica.change_queue("orders", {"partition_count": 2}, False)
    assert (await seen(replica, flow))[1] == {
        0: ("0", True, (2,)),
        1: ("0", True, (3,)),
        2: ("1", False, ()),
        3: ("2", False, ()),
    }
    update = await replica.update("orders", flow)
    assert update is not None
    epoch = {one.partition: one.epoch for one in update.partitions}
    item = ReleaseItem(3, epoch[3], "2", finished=True)
    await replica.release("orders", flow, None, [item])
    assert (await seen(replica, flow))[1] == {0: ("0", True, (2,)), 2: ("1", False, ())}


@virtual
async def test_the_next_resize_is_refused_until_the_last_one_is_settled() -> None:
    world = World()
    replica = await ordered(world)
    flow = await bound(replica)
    publish(replica, 0, 3)
    await replica.change_queue("orders", {"partition_count": 3}, False)
    with pytest.raises(ResizeUnsettled, match="partitions 0"):
        await replica.change_queue("orders", {"partition_count": 5}, False)
    assert (await replica.queue("orders")).partition_count == 3
    # The same count again is no resize.
    await replica.change_queue("orders", {"partition_count": 3}, False)
    await commit(replica, flow, p0="3")
    assert (await replica.change_queue("orders", {"partition_count": 5}, False)).partition_count


@virtual
async def test_a_discard_is_refused() -> None:
    world = World()
    replica = await ordered(world, 4)
    with pytest.raises(Invalid, match="ordered resizes"):
        await replica.change_queue("orders", {"partition_count": 2}, True)
    changes = {"partition_count": 2, "ordered_resize": False}
    assert (await replica.change_queue("orders", changes, True)).partition_count == 2


@virtual
async def test_dynamic_queues_are_refused() -> None:
    """They have no resize, and it would only say that something is kept which is kept anyway."""
    world = World()
    replica = await world.replica()
    with pytest.raises(Invalid, match="leave ordered_resize out"):
        await replica.create_queue(dynamic("orders", "a", ordered_resize=True))
    await replica.create_queue(dynamic("orders", "a"))
    with pytest.raises(Invalid, match="leave ordered_resize out"):
        await replica.change_queue("orders", {"ordered_resize": True}, False)
    await replica.change_queue("orders", {"ordered_resize": False}, False)


@virtual
async def test_they_are_the_default_where_the_log_can() -> None:
    world = World()
    replica = await world.replica()
    for given, can in (
        (wire.QueueCreate("orders", 2), True),
        (wire.QueueCreate("copy", log=LOG), True),
        (wire.QueueCreate("stream", 2, log="redis://host:6379/0/orders"), False),
        (wire.QueueCreate("beside", log=LOG, align_with="orders-2"), False),
        (dynamic("dynamic", "a"), False),
    ):
        if given.name == "beside":
            await replica.create_queue(wire.QueueCreate("orders-2", 2))
        assert (await replica.create_queue(given)).ordered_resize is can, given.name
        assert (await replica.create_queue(given)).ordered_resize is can, "repeated"
        said = await replica.create_queue(replace(given, ordered_resize=can))
        assert said.ordered_resize is can
        with pytest.raises(QueueExists if can else Invalid):
            await replica.create_queue(replace(given, ordered_resize=not can))


@virtual
async def test_logs_without_cuts_are_refused() -> None:
    world = World()
    replica = await world.replica()
    log = "redis://host:6379/0/orders"
    with pytest.raises(Invalid, match="takes no cuts"):
        await replica.create_queue(wire.QueueCreate("orders", 4, log=log, ordered_resize=True))
    await replica.create_queue(wire.QueueCreate("orders", 4, log=log))
    with pytest.raises(Invalid, match="takes no cuts"):
        await replica.change_queue("orders", {"ordered_resize": True}, False)


@virtual
async def test_the_readers_of_a_log_are_all_asked_and_each_has_its_own_barriers() -> None:
    world = World()
    replica = await ordered(world)
    flow = await bound(replica)
    await replica.create_queue(wire.QueueCreate("copy", log=LOG, ordered_resize=True))
    publish(replica, 0, 3)
    await replica.change_queue("orders", {"partition_count": 4}, False)
    await commit(replica, flow, p0="3")
    assert await seen(replica, flow) == (1, {})
    status = await replica.rebalance_status("copy")
    assert status.resize == wire.UnsettledResize(2, 4, False, unreached=1, waiting=1)
    with pytest.raises(ResizeUnsettled, match="'copy'"):
        await replica.change_queue("orders", {"partition_count": 8}, False)
    assert (await replica.queue("orders")).partition_count == 4
    await replica.change_queue("copy", {"ordered_resize": False}, False)
    assert (await replica.change_queue("orders", {"partition_count": 8}, False)).partition_count


@virtual
async def test_a_new_reader_keeps_the_order_of_the_last_resize() -> None:
    world = World()
    replica = await ordered(world)
    publish(replica, 0, 3)
    await replica.change_queue("orders", {"partition_count": 4}, False)
    await replica.create_queue(wire.QueueCreate("copy", log=LOG, ordered_resize=True))
    status = await replica.rebalance_status("copy")
    assert status.resize == wire.UnsettledResize(2, 4, False, unreached=1, waiting=1)


@virtual
async def test_switching_on_takes_up_the_last_resize_and_off_drops_it() -> None:
    world = World()
    replica = await world.replica()
    await replica.create_queue(spec(partitions=2))
    flow = await bound(replica)
    publish(replica, 0, 3)
    await replica.change_queue("orders", {"partition_count": 4}, False)
    assert await seen(replica, flow) == (None, {})
    changes = {"ordered_resize": True, "partition_count": 8}
    with pytest.raises(ResizeUnsettled, match="; switch them on first, and"):
        await replica.change_queue("orders", changes, False)
    await replica.change_queue("orders", {"ordered_resize": True}, False)
    assert await seen(replica, flow) == (1, {0: ("3", False, ()), 2: ("0", True, (0,))})
    await replica.change_queue("orders", {"ordered_resize": False}, False)
    assert await seen(replica, flow) == (None, {})


@virtual
async def test_positions_lift_barriers_and_bring_them_back() -> None:
    world = World()
    replica = await ordered(world)
    flow = await bound(replica)
    publish(replica, 0, 3)
    publish(replica, 1, 1)
    await replica.change_queue("orders", {"partition_count": 4}, False)
    await replica.set_positions("orders", {0: "3"})
    assert await seen(replica, flow) == (1, {1: ("1", False, ()), 3: ("0", True, (1,))})
    await commit(replica, flow, p1="1")
    assert await seen(replica, flow) == (1, {})
    await replica.set_positions("orders", "earliest")
    assert set((await seen(replica, flow))[1]) == {0, 1, 2, 3}
    with pytest.raises(ResizeUnsettled):
        await replica.change_queue("orders", {"partition_count": 8}, False)
    await commit(replica, flow, p0="3", p1="1")
    assert await seen(replica, flow) == (1, {})


@virtual
async def test_a_resize_while_positions_are_set_brings_its_barriers_back() -> None:
    """Found by the simulation: the cuts were those of before, and nothing waited."""
    world = World()
    one = await ordered(world)
    two = await world.replica()
    two.logs.by_name = one.logs.by_name
    flow = await bound(one)
    publish(one, 0, 4)
    await commit(one, flow, p0="4")
    gate = one.net.hold("commit")
    setting = asyncio.create_task(one.set_positions("orders", {0: "1"}))
    await one.net.met("commit")
    await two.change_queue("orders", {"partition_count": 4}, False)
    assert await seen(two, flow) == (1, {})
    gate.set()
    await setting
    assert await seen(one, flow) == (1, {0: ("4", False, ()), 2: ("0", True, (0,))})
    await commit(one, flow, p0="4")
    assert await seen(one, flow) == (1, {})


@virtual
async def test_a_forced_handoff_keeps_the_barrier() -> None:
    world = World()
    replica = await ordered(world, max_handoff_time=1)
    first = await bound(replica)
    publish(replica, 0, 3)
    await replica.change_queue("orders", {"partition_count": 4}, False)
    second = await bound(replica, "B")
    await asyncio.sleep(3)
    both = (await seen(replica, first))[1] | (await seen(replica, second))[1]
    assert both == {0: ("3", False, ()), 2: ("0", True, (0,))}


@virtual
async def test_another_replica_asks_for_the_cuts_if_the_first_one_dies_before() -> None:
    world = World()
    replica = await ordered(world)
    other = await world.replica()
    flow = await bound(other)
    publish(replica, 0, 3)
    other.logs.by_name = replica.logs.by_name
    replica.logs.error = Unavailable("away")  # the log does not say its cuts
    await replica.change_queue("orders", {"partition_count": 4}, False)
    assert await seen(other, flow) == (0, {})
    assert (await other.rebalance_status("orders")).resize == wire.UnsettledResize(
        None, 4, True, 0, 0
    )
    with pytest.raises(ResizeUnsettled, match="has not said yet"):
        await other.change_queue("orders", {"partition_count": 8}, False)
    world.kill(replica)
    await asyncio.sleep(4)
    await settle()
    assert await seen(other, flow) == (1, {0: ("3", False, ()), 2: ("0", True, (0,))})


@virtual
async def test_a_delayed_word_of_the_resize_before_lifts_nothing() -> None:
    world = World()
    replica = await ordered(world)
    flow = await bound(replica)
    publish(replica, 0, 3)
    await replica.change_queue("orders", {"partition_count": 4}, False)
    await commit(replica, flow, p0="3")
    publish(replica, 0, 2)
    await replica.change_queue("orders", {"partition_count": 8}, False)
    epoch = (await replica.partitions("orders", 1, None)).items[0].epoch
    late = CommitItem(0, epoch, "3", reached_cut=True)
    await replica.commit("orders", flow, None, [late])
    assert await seen(replica, flow) == (2, {0: ("5", False, ()), 4: ("0", True, (0,))})


@virtual
async def test_the_barriers_of_many_partitions_come_together() -> None:
    world = World()
    replica = await ordered(world, 600)
    flow = await bound(replica)
    await settle()
    for number in range(600):
        publish(replica, number)
    await replica.change_queue("orders", {"partition_count": 601}, False)
    await asyncio.sleep(5)
    await settle()
    status = (await replica.rebalance_status("orders")).resize
    assert status == wire.UnsettledResize(600, 601, False, unreached=600, waiting=601)
    barriers = (await seen(replica, flow))[1]
    assert barriers[600] == ("0", True, tuple(range(10)))


async def two_replicas(world: World, count: int = 2) -> tuple[Service, Service]:
    """On the same log, both with the queue in memory."""
    one = await ordered(world, count)
    two = await world.replica()
    two.logs.by_name = one.logs.by_name
    await two.queue("orders")
    return one, two


BARRIERS = {0: ("3", False, ()), 2: ("0", True, (0,))}


@pytest.mark.parametrize("says", [False, True])
@virtual
async def test_a_cut_that_is_reached_where_nothing_is_known_of_it_yet(says: bool) -> None:
    """The barrier goes at once if the owner says so; else, as of a consumer that knows no cuts,
    with the next upkeep."""
    world = World()
    one, two = await two_replicas(world)
    flow = await bound(one)
    update = await two.update("orders", flow)
    publish(one, 0, 3)
    two.database.deaf = True
    await one.change_queue("orders", {"partition_count": 4}, False)
    assert await seen(one, flow) == (1, BARRIERS)
    [epoch] = [each.epoch for each in update.partitions if each.partition == 0]
    await two.commit("orders", flow, None, [CommitItem(0, epoch, "3", says)])
    assert (await seen(one, flow) == (1, {})) is says
    await one.keep_logs()
    assert await seen(one, flow) == (1, {})


@virtual
async def test_the_upkeep_finds_a_resize_by_a_replica_that_knows_no_cuts() -> None:
    world = World()
    one = await ordered(world)
    flow = await bound(one)
    publish(one, 0, 3)
    with pytest.MonkeyPatch.context() as older:
        older.setattr("broker.core.cuts.await_cuts", lambda draft: None)
        older.setattr("broker.calls.cuts.CutCalls.settle", _nothing)
        await one.change_queue("orders", {"partition_count": 4}, False)
    assert await seen(one, flow) == (0, {})
    await one.keep_logs()
    assert await seen(one, flow) == (1, BARRIERS)


async def _nothing(*_: object) -> None:
    """Nothing is asked."""


@virtual
async def test_the_readers_follow_where_another_replica_completes_a_resize() -> None:
    """Before the owner knows the cuts: it could be resized again, and theirs would be lost."""
    world = World()
    one, two = await two_replicas(world)
    await one.create_queue(wire.QueueCreate("copy", log=LOG, ordered_resize=True))
    publish(one, 0, 3)

    async def dies(*_: object) -> None:
        world.kill(one)
        await asyncio.Event().wait()

    one.logs.set_partition_count = dies  # type: ignore[assignment, method-assign]
    resizing = asyncio.create_task(one.change_queue("orders", {"partition_count": 4}, False))
    await asyncio.sleep(4)
    resizing.cancel()
    assert (await two.queue("copy")).partition_count == 4
    for name in ("orders", "copy"):
        status = await two.rebalance_status(name)
        assert status.resize == wire.UnsettledResize(2, 4, False, unreached=1, waiting=1)


async def with_a_follower(world: World) -> tuple[Service, Service]:
    """Two replicas; the queue `copy` follows `orders`."""
    one, two = await two_replicas(world)
    await one.create_queue(wire.QueueCreate("copy", log=LOG, ordered_resize=True))
    await two.queue("copy")
    return one, two


@virtual
async def test_a_follower_keeps_the_newest_count_if_an_older_one_comes_late() -> None:
    """Found by the simulation: it went back to the older count, and awaited cuts for ever."""
    world = World()
    one, two = await with_a_follower(world)
    gate = one.net.hold("list")
    late = asyncio.create_task(one.change_queue("orders", {"partition_count": 2}, False))
    await one.net.met("list")  # the first replica is about to lead the followers
    await two.change_queue("orders", {"partition_count": 4}, False)
    gate.set()
    await late
    assert (await one.queue("copy")).partition_count == 4
    assert (await one.rebalance_status("copy")).resize is None
    await one.change_queue("orders", {"partition_count": 8}, False)
    assert (await one.queue("copy")).partition_count == 8


@virtual
async def test_a_follower_does_not_go_back_to_what_its_log_was_before() -> None:
    """A replica reads the log, and another one resizes it before the first one goes on."""
    world = World()
    one, two = await with_a_follower(world)
    read, met, gate = one.logs.bounds, asyncio.Event(), asyncio.Event()

    async def held(log: str, partitions: Sequence[int] | None = None) -> Bounds | None:
        bounds = await read(log, partitions)
        met.set()
        await gate.wait()
        return bounds

    one.logs.bounds = held  # type: ignore[method-assign]
    late = asyncio.create_task(one.change_queue("orders", {"partition_count": 3}, False))
    await met.wait()
    # The second replica completes the first resize, and then there is another one.
    for count in (3, 4):
        await two.change_queue("orders", {"partition_count": count}, False)
    gate.set()
    await late
    assert (await one.queue("copy")).partition_count == 4
    assert (await one.rebalance_status("copy")).resize is None


@virtual
async def test_two_resizes_at_once_leave_a_follower_the_cuts_of_the_first_one() -> None:
    """The second one has found the follower settled, but of the resize before."""
    world = World()
    one, two = await with_a_follower(world)
    flow = await bound(two)
    publish(one, 0, 3)
    await commit(two, flow, p0="3")
    gate = one.net.hold("commit")
    second = asyncio.create_task(one.change_queue("orders", {"partition_count": 8}, False))
    await one.net.met("commit")
    await two.change_queue("orders", {"partition_count": 4}, False)
    gate.set()
    with pytest.raises(LogChanged, match="resized"):
        await second
    assert (await one.queue("orders")).partition_count == 4
    status = (await one.rebalance_status("copy")).resize
    assert status == wire.UnsettledResize(2, 4, False, unreached=1, waiting=1)
    with pytest.raises(ResizeUnsettled, match="'copy'"):
        await one.change_queue("orders", {"partition_count": 8}, False)


@virtual
async def test_a_log_of_which_a_follower_does_not_know_yet_is_not_resized_again() -> None:
    """The owner has no ordered resizes, so it does not wait for anything itself."""
    world = World()
    one = await world.replica()
    await one.create_queue(spec(partitions=2))
    await one.create_queue(wire.QueueCreate("copy", log=LOG, ordered_resize=True))
    publish(one, 0, 3)
    one.logs.error = Unavailable("away")
    with pytest.raises(Unavailable):
        await one.change_queue("orders", {"partition_count": 4}, False)
    one.logs.error = None
    with pytest.raises(ResizeUnsettled, match="has not followed its log"):
        await one.change_queue("orders", {"partition_count": 8}, False)
    await one.keep_logs()
    status = (await one.rebalance_status("copy")).resize
    assert status == wire.UnsettledResize(2, 4, False, unreached=1, waiting=1)


@virtual
async def test_a_position_that_is_set_while_the_cuts_are_taken_has_not_reached_its_cut() -> None:
    world = World()
    one, two = await two_replicas(world)
    flow = await bound(one)
    publish(one, 0, 3)
    await commit(one, flow, p0="3")
    met, gate = asyncio.Event(), asyncio.Event()
    commits = one.net.calls["commit"]

    async def before(method: str) -> None:
        if method == "commit" and one.net.calls["commit"] == commits + 2:
            met.set()
            await gate.wait()

    one.net.before = before
    resizing = asyncio.create_task(one.change_queue("orders", {"partition_count": 4}, False))
    # What was committed was read, and the cuts are on their way to the queue.
    await met.wait()
    assert world.stored("orders")[1].settings.partition_count == 4
    await two.set_positions("orders", {0: "1"})
    gate.set()
    await resizing
    assert await seen(one, flow) == (1, BARRIERS)


@virtual
async def test_a_key_hears_nothing_of_queues_that_it_may_not_see() -> None:
    world = World()
    one = await ordered(world)
    await one.create_queue(wire.QueueCreate("secret", log=LOG, rebalance_delay=0.0))
    caller = Caller(RIGHTS[Role.ADMIN], ("orders",), Role.ADMIN, key_id="key", key_name="team")
    publish(one, 0, 3)

    async def refusal(changes: Mapping[str, object], discard: bool, caller: Caller | None) -> str:
        with pytest.raises((Invalid, ResizeUnsettled)) as caught:
            await one.change_queue("orders", changes, discard, caller)
        return f"{caught.value} {getattr(caught.value, 'errors', '')}"

    unordered = {"partition_count": 4, "ordered_resize": False}
    told = await refusal(unordered, True, caller)
    assert "Another queue has ordered resizes" in told
    assert "secret" not in told
    assert "queue 'secret' has ordered resizes" in await refusal(unordered, True, None)
    await one.change_queue("orders", {"partition_count": 4}, False, caller)
    await one.change_queue("orders", {"ordered_resize": False}, False, caller)
    told = await refusal({"partition_count": 8}, False, caller)
    assert "resize of another queue is not settled" in told
    assert "secret" not in told
    assert "queue 'secret' is not settled" in await refusal({"partition_count": 8}, False, None)


@virtual
async def test_a_follower_that_cannot_follow_holds_up_no_other_queue() -> None:
    """In the call that resizes, and in the upkeep."""
    world = World()
    one = await ordered(world)
    audit = await one.create_queue(spec("audit", None, log=LOG))
    await asyncio.sleep(1)
    await one.create_queue(spec("later", None, log=LOG))
    unreadable(one, audit, QueueDamaged("its rows do not fit"))
    await one.change_queue("orders", {"partition_count": 4}, False)
    assert (await one.rebalance_status("orders")).resize is None
    assert (await one.queue("later")).partition_count == 4
    with pytest.MonkeyPatch.context() as dies:
        dies.setattr("broker.calls.cuts.CutCalls.lead", _nothing_led)
        await one.change_queue("orders", {"partition_count": 6}, False)
    assert (await one.queue("later")).partition_count == 4
    await one.keep_logs()
    assert (await one.queue("later")).partition_count == 6


async def _nothing_led(*_: object, **__: object) -> None:
    """No follower is told of the resize."""


@virtual
async def test_a_discard_that_does_not_reach_a_follower_is_to_be_repeated() -> None:
    """The upkeep would follow without it."""
    world = World()
    one = await world.replica()
    await one.create_queue(spec())
    audit = await one.create_queue(spec("audit", None, log=LOG))
    unreadable(one, audit, QueueTooNew("of a later release"))
    await one.change_queue("orders", {"partition_count": 6}, False)
    with pytest.raises(Unavailable):
        await one.change_queue("orders", {"partition_count": 2}, True)


@virtual
async def test_cuts_that_cannot_be_taken_raise_nothing() -> None:
    """The queue is due again later, and a sweep goes on with others."""
    one = await ordered(World())

    async def fails(*_: object) -> None:
        raise AssertionError

    one.logs.set_partition_count = fails  # type: ignore[assignment, method-assign]
    await one.replica.settle_cuts("orders")
