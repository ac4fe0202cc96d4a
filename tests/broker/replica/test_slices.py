"""A large decision is committed slice by slice: other calls come between, and no slice is lost."""

import asyncio
import gc
import itertools
import weakref
from contextlib import suppress
from typing import Any

import pytest

from broker.core import records as r
from broker.core.commands import ReleaseItem
from broker.core.errors import Unavailable
from broker.core.queue import Queue
from broker.replica.coordinator import Coordinator
from broker.replica.notifier import HOLD_SECONDS, ViewNotifier
from broker.replica.replica import SWEEP_SECONDS
from broker.testing.loop import running, settle, virtual
from broker.testing.store import Fault
from tests.broker.shell import Service, World, spec

PARTITIONS, SLICE = 43, 5


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.replica.transaction.SLICE", SLICE)
    monkeypatch.setattr("broker.replica.transaction.SLICES_AT_ONCE", 1)
    monkeypatch.setattr("broker.replica.transaction.SLICES_OF_A_REST", 1)


async def cut_off(one: Service) -> asyncio.Event:
    """A flow has bound, and the commit of the second slice of its grants waits at the gate."""
    await one.create_queue(spec(partitions=PARTITIONS))
    met, gate, commits = asyncio.Event(), asyncio.Event(), itertools.count()

    async def before(method: str) -> None:
        await running().sleep(0.001)
        if method == "commit" and next(commits) == 1:
            met.set()
            await gate.wait()

    one.net.before = before
    binding = asyncio.ensure_future(one.bind("orders", "first", "i-first", 60.0, False))
    await met.wait()
    binding.cancel()
    return gate


async def until_ready(world: World) -> float:
    """The seconds until the stored queue was Ready."""
    began, (queue_id, _) = world.now, world.stored("orders")
    while world.database.load(queue_id).status != "Ready":
        await running().sleep(0.05)
    return world.now - began


@virtual
async def test_each_slice_is_a_transaction() -> None:
    world = World()
    one = await world.replica()
    gate = await cut_off(one)
    assert len(world.stored("orders")[1].unassigned) == PARTITIONS - SLICE
    gate.set()
    await until_ready(world)
    entries = world.database.entries_after(world.check("orders").id, 0)
    grants = [
        len(record.grants)
        for entry in entries
        for record in entry.records
        if isinstance(record, r.Granted)
    ]
    assert grants == [*[5] * 8, 3]
    assert len({entry.commit_id for entry in entries}) >= 5


@virtual
async def test_calls_between_slices_do_not_wait_for_the_rest() -> None:
    world = World()
    one = await world.replica()
    gate = await cut_off(one)
    joining = asyncio.ensure_future(one.join("orders", "second", lease=60))
    await settle()
    gate.set()
    await joining
    await until_ready(world)
    entries = world.database.entries_after(world.check("orders").id, 0)
    kinds = [[type(record).__name__ for record in entry.records] for entry in entries]
    bound = kinds.index(["FlowBound", "Granted", "CutOff"])
    assert kinds[bound - 1] == kinds[bound + 1] == ["Granted", "CutOff"]
    queue = world.check("orders")
    assert sorted(len(flow.owned) for flow in queue.flows.values()) == [21, 22]


@virtual
async def test_another_replica_goes_on_when_one_dies_between_slices() -> None:
    world = World()
    one, two = await world.replica(), await world.replica()
    await cut_off(one)
    world.kill(one)
    assert await until_ready(world) <= 2 * SWEEP_SECONDS
    assert two.net.calls["commit"] >= PARTITIONS // SLICE
    world.check("orders")


@virtual
async def test_a_replica_without_the_queue_in_memory_continues_the_slices() -> None:
    world = World()
    one = await world.replica()
    await cut_off(one)
    world.kill(one)
    await world.replica()
    assert await until_ready(world) <= 2 * SWEEP_SECONDS
    world.check("orders")


@pytest.mark.parametrize("fault", Fault)
@virtual
async def test_a_slice_that_fails_is_decided_again(fault: Fault) -> None:
    world = World()
    one = await world.replica()
    await one.create_queue(spec(partitions=PARTITIONS))
    faults = iter((None, None, fault, fault))

    async def before(method: str) -> Fault | None:
        return next(faults, None) if method == "commit" else None

    one.net.before = before
    await one.join("orders", "first", lease=60)
    assert await until_ready(world) <= 3 * SWEEP_SECONDS
    world.check("orders")


@virtual
async def test_only_one_of_two_replicas_goes_on() -> None:
    """The replica that follows the other's slices leaves the rest to it."""
    world = World()
    one, two = await world.replica(), await world.replica()
    await two.list_queues(10, None)
    gate = await cut_off(one)
    await two.rebalance_status("orders")
    await settle()
    before = two.net.calls["commit"]
    gate.set()
    assert await until_ready(world) < SWEEP_SECONDS
    assert two.net.calls["commit"] == before
    world.check("orders")


async def in_the_middle(one: Service, count: int, *, discard: bool = False) -> asyncio.Event:
    """The commit of the second slice of a resize waits at the gate."""
    met, gate, commits = asyncio.Event(), asyncio.Event(), itertools.count()

    async def before(method: str) -> None:
        await running().sleep(0.001)
        if method == "commit" and next(commits) == 1:
            met.set()
            await gate.wait()

    one.net.before = before
    changing = asyncio.ensure_future(
        one.change_queue("orders", {"partition_count": count}, discard)
    )
    await met.wait()
    gate.changing = changing  # type: ignore[attr-defined]
    return gate


async def until_resized(world: World, count: int) -> None:
    queue_id, _ = world.stored("orders")
    while (queue := world.database.load(queue_id)).is_resizing or queue.status != "Ready":
        await running().sleep(0.05)
    assert queue.settings.partition_count == count


@pytest.mark.parametrize("discard", [False, True])
@virtual
async def test_a_resize_is_answered_when_its_last_slice_is_committed(discard: bool) -> None:
    world = World()
    one = await world.replica()
    await one.create_queue(spec(partitions=PARTITIONS))
    for count in (2 * PARTITIONS, 7):
        before = one.net.calls["commit"]
        shown = await one.change_queue("orders", {"partition_count": count}, discard)
        assert one.net.calls["commit"] - before >= abs(count - PARTITIONS) // SLICE
        queue = world.check("orders")
        assert not queue.is_resizing
        assert shown.partition_count == count
        assert one.logs.the("builtin:orders").count == count
    existing = 7 if discard else 2 * PARTITIONS
    assert shown.operational_partition_count == existing


@virtual
async def test_a_log_gets_no_count_of_a_resize_that_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its caller waits for the slices, while that of the resize before tells the log its own."""
    world = World()
    one = await world.replica()
    await one.create_queue(spec(partitions=PARTITIONS))
    set_count, read = one.logs.set_partition_count, Coordinator.read

    async def checked(log: str, count: int, *rest: Any) -> None:
        queue = world.stored("orders")[1]
        assert not (queue.is_resizing and queue.settings.partition_count == count)
        await set_count(log, count, *rest)

    async def slow(*given: Any, **more: Any) -> Any:
        await running().sleep(0.01)
        return await read(*given, **more)

    monkeypatch.setattr(one.logs, "set_partition_count", checked)
    monkeypatch.setattr(Coordinator, "read", slow)
    monkeypatch.setattr(one.net, "before", lambda _: running().sleep(0.03))
    changes = []
    for count in (7, 3 * PARTITIONS, 9, 4 * PARTITIONS, 8):
        changing = one.change_queue("orders", {"partition_count": count}, False)
        changes.append(asyncio.create_task(changing))
        await running().sleep(0.25)
    await asyncio.gather(*changes)
    assert one.logs.the("builtin:orders").count == 8


@pytest.mark.parametrize("discard", [False, True])
@virtual
async def test_another_replica_completes_a_resize(discard: bool) -> None:
    """One that has the queue in memory, and one that loads it."""
    for loaded in (False, True):
        world = World()
        one = await world.replica()
        two = None if loaded else await world.replica()
        await one.create_queue(spec(partitions=PARTITIONS))
        if two is not None:
            await two.rebalance_status("orders")
        gate = await in_the_middle(one, 7, discard=discard)
        gate.changing.cancel()  # type: ignore[attr-defined]
        world.kill(one)
        two = two or await world.replica()
        await until_resized(world, 7)
        queue = world.check("orders")
        assert queue.operational_partition_count == (7 if discard else PARTITIONS)


@pytest.mark.parametrize("discard", [False, True])
@pytest.mark.parametrize("count", [2 * PARTITIONS, 7])
@virtual
async def test_the_upkeep_leaves_a_log_alone_between_the_slices_of_a_resize(
    count: int, discard: bool
) -> None:
    """A message would go to a partition that the queue has not yet, or not be read to its end."""
    world = World()
    one, two = await world.replica(), await world.replica()
    await one.create_queue(spec(partitions=PARTITIONS))
    await two.keep_logs()
    await two.rebalance_status("orders")
    gate = await in_the_middle(one, count, discard=discard)
    await two.keep_logs()
    told = [told[2] for told in two.logs.told if told[0] == "maintain"]
    assert told == [PARTITIONS]
    assert two.logs.the("builtin:orders").count == PARTITIONS
    gate.set()
    await gate.changing  # type: ignore[attr-defined]
    await two.keep_logs()
    assert two.logs.the("builtin:orders").count == count


@virtual
async def test_positions_of_many_partitions_are_set_in_slices() -> None:
    world = World()
    one = await world.replica()
    await one.create_queue(spec(partitions=PARTITIONS, log="other://elsewhere"))
    await one.join("orders", "first", lease=60)
    await until_ready(world)
    before = one.net.calls["commit"]
    positions = {number: str(number) for number in range(PARTITIONS)}
    done = await one.set_positions("orders", positions)
    assert one.net.calls["commit"] - before == -(-PARTITIONS // SLICE)
    assert [item.epoch for item in done.partitions] == [2] * PARTITIONS
    shown = (await one.partitions("orders", 1000, None)).items
    assert {item.partition: item.position for item in shown} == positions


def looked_at(queue: Queue | None) -> int:
    """How many of the queue's partitions the garbage collector looks at."""
    assert queue is not None
    seen = {id(each) for each in gc.get_objects()}
    return sum(id(partition) in seen for partition in queue.partitions.values())


@pytest.mark.long
@virtual
async def test_the_garbage_collector_does_not_look_at_large_queues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither at one that was created here, nor at one that was loaded."""
    world = World()
    one, two = await world.replica(), await world.replica()
    monkeypatch.setattr("broker.replica.replica.LARGE", PARTITIONS)
    try:
        await one.create_queue(spec(partitions=PARTITIONS - 1))
        assert looked_at(one.memory(world.check("orders").id)) == PARTITIONS - 1
        await one.create_queue(spec("large", PARTITIONS))
        queue_id = world.check("large").id
        assert looked_at(one.memory(queue_id)) == 0
        await two.rebalance_status("large")
        assert looked_at(two.memory(queue_id)) == 0
        await one.change_queue("large", {"partition_count": 2 * PARTITIONS}, False)
        assert looked_at(one.memory(queue_id)) == 0
    finally:
        gc.unfreeze()


@virtual
async def test_garbage_is_not_kept_with_a_large_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """What closed streams leave is in cycles; out of the collector's sight it stays for ever."""

    class InACycle:
        def __init__(self) -> None:
            self.itself = self

    world = World()
    one = await world.replica()
    monkeypatch.setattr("broker.replica.replica.LARGE", PARTITIONS)
    gc.disable()
    try:
        left = weakref.ref(InACycle())
        await one.create_queue(spec(partitions=PARTITIONS))
        assert left() is None
    finally:
        gc.enable()
        gc.unfreeze()


@virtual
async def test_handoffs_that_are_due_end_before_the_rest_of_a_decision() -> None:
    world = World()
    one = await world.replica()
    await one.create_queue(spec(partitions=PARTITIONS, rebalance_delay=0.0, max_handoff_time=1.0))
    await one.join("orders", "first", lease=60)
    await until_ready(world)
    second = await one.join("orders", "second", lease=60)
    await until_ready(world)
    await one.join("orders", "third", lease=60)

    async def before(method: str) -> None:
        await running().sleep(0.3 if method == "commit" else 0.001)

    one.net.before = before
    seen = world.check("orders").revision
    await one.unbind("orders", second)
    await until_ready(world)
    entries = world.database.entries_after(world.check("orders").id, seen)
    granted = [
        "owed" if grant.by_handoff and grant.handed_over == "forced" else "rest"
        for entry in entries
        for record in entry.records
        if isinstance(record, r.Granted)
        for grant in record.grants
        if grant.handed_over == "forced" or not grant.by_handoff
    ]
    assert granted == sorted(granted)
    assert set(granted) == {"owed", "rest"}


@virtual
async def test_two_slices_of_a_release_are_one_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.replica.transaction.SLICES_AT_ONCE", 2)
    world = World()
    one = await world.replica()
    await one.create_queue(spec(partitions=2 * SLICE + 6, max_handoff_time=60.0))
    first = await one.join("orders", "first", lease=60)
    await one.join("orders", "second", lease=60)
    await until_revoking(world, SLICE + 3)
    items = [
        ReleaseItem(number, epoch, "1")
        for number, (epoch, state) in (await one.view("orders", first)).items()
        if state == "revoking"
    ]
    before = one.net.calls["commit"]
    done = await one.release("orders", first, 1, items)
    assert [result.outcome for result in done.results] == ["ok"] * (SLICE + 3)
    assert one.net.calls["commit"] == before + 1


async def until_revoking(world: World, handoffs: int) -> None:
    """All that the second flow is to get is being handed over."""
    while len(world.stored("orders")[1].handoffs) < handoffs:
        await running().sleep(0.05)


async def wait_in_polls(one: Service, flows: int) -> dict[str, asyncio.Task[Any]]:
    """Long polls of so many flows, each with a partition."""
    await one.create_queue(spec(partitions=flows))
    async with asyncio.TaskGroup() as group:
        binds = [group.create_task(one.join("orders", str(n), lease=60.0)) for n in range(flows)]
    await running().sleep(1.0)
    found = {}
    for flow_id in (bind.result() for bind in binds):
        revision = (await one.update("orders", flow_id)).revision
        poll = one.wait_update("orders", flow_id, revision, 30.0)
        found[flow_id] = asyncio.ensure_future(poll)
    await settle()
    return found


@virtual
async def test_flows_that_have_their_share_are_told_before_the_last_slice() -> None:
    world = World()
    one = await world.replica()
    polls = await wait_in_polls(one, 20)
    answered: list[int] = []

    async def before(method: str) -> None:
        if method == "commit":
            # A flow that was told is answered while the store commits what comes next.
            await running().sleep(0.001)
            answered.append(sum(poll.done() for poll in polls.values()))

    one.net.before = before
    one.net.calls.clear()
    await one.change_queue("orders", {"partition_count": 40}, False)
    await asyncio.gather(*polls.values())
    # Four slices add partitions, and four grant them.
    assert answered == [0, 0, 0, 0, 0, 5, 10, 15]
    assert one.net.calls["positions"] == 0
    for poll in polls.values():
        assert len(poll.result().partitions) == 2


async def poll_amid_a_commit(
    one: Service, changes: dict[str, Any], fault: Fault | None = None
) -> asyncio.Task[Any]:
    """The poll of a flow without partitions that came while this change was committed, once that is
    over."""
    await one.create_queue(spec(partitions=1))
    await one.join("orders", "first", lease=60.0)
    flow_id = await one.join("orders", "second", lease=60.0)
    revision = (await one.update("orders", flow_id)).revision
    gate = one.net.hold("commit")
    if fault is not None:
        one.net.fail("commit", fault)
    changing = asyncio.ensure_future(one.change_queue("orders", changes, False))
    await one.net.met("commit")
    one.net.calls.clear()
    poll = asyncio.ensure_future(one.wait_update("orders", flow_id, revision, 30.0))
    await settle()
    assert not poll.done()
    gate.set()
    with suppress(Unavailable):
        await changing
    await settle()
    return poll


@virtual
async def test_a_poll_that_comes_amid_a_commit_is_told_with_it() -> None:
    world = World()
    one = await world.replica()
    poll = await poll_amid_a_commit(one, {"partition_count": 2})
    # Those of the commit may be older than the poll.
    assert one.net.calls["positions"] == 1
    assert len((await poll).partitions) == 1


@virtual
async def test_who_comes_amid_a_commit_does_not_look_with_its_positions() -> None:
    """Found by the simulation: a flow committed a position, polled, and was told an older one."""
    told = ViewNotifier()
    watch = told.watch("A", lambda: told.of([0]))
    with told.committing():
        told.begins(watch)
        waiting = asyncio.ensure_future(watch.wait())
        await settle()
    told.keep({0: (1, "7")}, holds=False)
    told.wake(frozenset("A"))
    told.forget_soon()
    assert not watch.is_set()
    await waiting
    assert watch.seen is None
    assert told.of([0]) is None


@virtual
async def test_a_poll_waits_on_after_a_commit_that_does_not_concern_it() -> None:
    world = World()
    one = await world.replica()
    poll = await poll_amid_a_commit(one, {"max_handoff_time": 9.0})
    assert not poll.done()
    await one.change_queue("orders", {"partition_count": 2}, False)
    assert len((await poll).partitions) == 1


@virtual
async def test_a_poll_that_comes_amid_a_commit_that_fails_waits_on() -> None:
    world = World()
    one = await world.replica()
    poll = await poll_amid_a_commit(one, {"partition_count": 2}, Fault.LOST)
    assert not poll.done()
    await one.change_queue("orders", {"partition_count": 4}, False)
    assert len((await poll).partitions) == 2


@virtual
async def test_flows_that_are_told_do_not_wait_for_a_commit_that_does_not_come() -> None:
    told, view = ViewNotifier(), object()
    sees, asks = told.watch("A", lambda: view), told.watch("B", lambda: None)
    told.keep({}, holds=True)
    told.wake(frozenset("A"))
    # Nobody waits for it yet.
    assert sees.is_set()
    assert sees.seen is None
    sees.clear()
    waiting = asyncio.gather(sees.wait(), asks.wait())
    await settle()
    told.wake(frozenset("AB"))
    assert asks.is_set()
    assert not sees.is_set()
    await running().sleep(HOLD_SECONDS)
    assert all(await waiting)
    assert sees.seen is view


@virtual
async def test_a_sweep_amid_slices_leaves_the_flows_what_they_are_told() -> None:
    world = World()
    one = await world.replica()
    polls = await wait_in_polls(one, 20)
    commits = itertools.count(1)

    async def before(method: str) -> None:
        if method == "commit" and next(commits) == 5:
            # The sweep finds the rest of the decision due, which is being committed.
            await one.replica.sweep()

    one.net.before = before
    one.net.calls.clear()
    await one.change_queue("orders", {"partition_count": 40}, False)
    await asyncio.gather(*polls.values())
    assert one.net.calls["positions"] == 0
