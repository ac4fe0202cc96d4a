"""Renewals of flows that wait go out together, and no answer comes before them.

Counted in statements, in virtual time.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from broker.calls.updates import NOT_RENEWED
from broker.core.errors import FlowGone, QueueNotFound, Unavailable
from broker.replica.renewals import GATHER_SECONDS, GATHER_SHARE
from broker.testing.loop import pass_time, settle, virtual
from broker.testing.store import Fault
from counterpoise import wire
from tests.broker.shell import Service, World, spec

LEASE_SECONDS = 60.0
WAIT_SECONDS = 20.0
MOMENT = 1e-6


async def bound(one: Service, flows: int, lease: float = LEASE_SECONDS) -> dict[str, int]:
    """Flows of a queue that is balanced, and the revisions of their views."""
    await one.create_queue(spec(partitions=flows, rebalance_delay=1.0))
    names = [await one.join("orders", f"f-{n}", lease=lease) for n in range(flows)]
    await asyncio.sleep(2)
    return {flow: (await one.update("orders", flow)).revision for flow in names}


def poll(
    one: Service, flow: str, after: int, seconds: float = WAIT_SECONDS
) -> asyncio.Task[wire.Update | None]:
    return asyncio.create_task(one.wait_update("orders", flow, after, seconds))


async def ends(world: World, flow: str) -> float:
    """When the lease ends, in seconds from now."""
    leases: dict[str, float] = dict(world.database.leases([flow]))
    return leases[flow] - world.now


async def all_renewed(world: World, flows: Iterable[str]) -> None:
    """Their leases were renewed at this moment."""
    for flow in flows:
        assert await ends(world, flow) == pytest.approx(LEASE_SECONDS, abs=MOMENT)


async def all_told(polls: Iterable[asyncio.Task[wire.Update | None]]) -> None:
    """The polls end with two partitions each."""
    for told in await asyncio.gather(*polls):
        assert told is not None
        assert len(told.partitions) == 2


@virtual
async def test_a_hundred_polls_of_a_moment_are_one_statement() -> None:
    world = World()
    one = await world.replica()
    flows = await bound(one, 100)
    before = one.net.calls["renew"]
    polls = []
    for flow, after in flows.items():
        polls.append(poll(one, flow, after))
        await asyncio.sleep(GATHER_SECONDS / 101)
    await asyncio.sleep(GATHER_SECONDS)
    assert one.net.calls["renew"] - before == 1
    assert all([await ends(world, flow) > LEASE_SECONDS - 2 * GATHER_SECONDS for flow in flows])
    assert await asyncio.gather(*polls) == [None] * 100
    assert one.net.calls["renew"] - before == 1
    assert not one.replica.renewals._under_way


@pytest.mark.parametrize("lease", [1.0, LEASE_SECONDS])
def test_the_lease_of_a_flow_that_waits_alone_is_renewed_within_a_moment(lease: float) -> None:
    @virtual
    async def played() -> None:
        world = World()
        one = await world.replica()
        [(flow, after)] = (await bound(one, 1, 10.0)).items()
        await one.unbind("orders", flow)
        flow = await one.join("orders", "again", lease=lease)
        after = (await one.update("orders", flow)).revision + 1
        within = min(GATHER_SECONDS, GATHER_SHARE * lease)
        before = one.net.calls["renew"]
        waiting = poll(one, flow, after, lease / 3)
        await asyncio.sleep(within - MOMENT)
        assert one.net.calls["renew"] == before
        await asyncio.sleep(2 * MOMENT)
        assert one.net.calls["renew"] == before + 1
        assert await ends(world, flow) == pytest.approx(lease, abs=3 * MOMENT)
        assert await waiting is None

    played()


@virtual
async def test_a_short_wait_ends_in_time_and_with_a_new_lease() -> None:
    world = World()
    one = await world.replica()
    [(flow, after)] = (await bound(one, 1)).items()
    began = world.now
    assert await one.wait_update("orders", flow, after, GATHER_SECONDS / 5) is None
    assert world.now - began == pytest.approx(GATHER_SECONDS / 5, abs=MOMENT)
    assert await ends(world, flow) == pytest.approx(LEASE_SECONDS, abs=MOMENT)


@virtual
async def test_a_commit_that_tells_flows_renews_their_leases() -> None:
    """So what they wait for costs them no statement of their own."""
    world = World()
    one = await world.replica()
    flows = await bound(one, 2)
    gate = one.net.hold("renew")
    polls = [poll(one, flow, after) for flow, after in flows.items()]
    await settle()
    began = world.now
    await one.change_queue("orders", {"partition_count": 4}, False)
    await all_told(polls)
    assert world.now - began < MOMENT
    await all_renewed(world, flows)
    before = one.net.calls["renew"]
    gate.set()
    await asyncio.sleep(2 * GATHER_SECONDS)
    assert one.net.calls["renew"] == before
    assert not one.replica.renewals._under_way


@virtual
async def test_a_commit_renews_only_the_flows_that_it_tells() -> None:
    world = World()
    one = await world.replica()
    flows = await bound(one, 2)
    told, other = flows
    polls = [poll(one, flow, after) for flow, after in flows.items()]
    await settle()
    before = one.net.calls["renew"]
    # Its second partition makes nobody else more or less loaded.
    await one.change_queue("orders", {"partition_count": 3}, False)
    done, waiting = await asyncio.wait(polls, timeout=GATHER_SECONDS / 2)
    assert len(done) == len(waiting) == 1
    assert one.net.calls["renew"] == before
    await asyncio.sleep(GATHER_SECONDS)
    assert one.net.calls["renew"] == before + 1
    for flow in (told, other):
        assert await ends(world, flow) > LEASE_SECONDS - 2 * GATHER_SECONDS
    for each in waiting:
        each.cancel()


@virtual
async def test_a_change_on_another_replica_is_told_after_the_renewal() -> None:
    world = World()
    one, two = await world.replica(), await world.replica()
    flows = await bound(one, 2)
    for flow in flows:
        await two.update("orders", flow)
    gate = two.net.hold("renew")
    polls = [poll(two, flow, after) for flow, after in flows.items()]
    await settle()
    began = world.now
    await one.change_queue("orders", {"partition_count": 4}, False)
    await settle()
    assert not any(each.done() for each in polls)
    gate.set()
    await all_told(polls)
    assert world.now - began < MOMENT
    await all_renewed(world, flows)


@virtual
async def test_if_the_commit_fails_the_renewals_go_out_by_themselves() -> None:
    world = World()
    one = await world.replica()
    flows = await bound(one, 2)
    polls = [poll(one, flow, after) for flow, after in flows.items()]
    await settle()
    before = one.net.calls["renew"]
    one.net.fail("commit", Fault.LOST)
    with pytest.raises(Unavailable):
        await one.change_queue("orders", {"partition_count": 4}, False)
    await settle()
    assert one.net.calls["renew"] == before + 1
    await all_renewed(world, flows)
    for each in polls:
        each.cancel()


@virtual
async def test_a_renewal_that_is_awaited_takes_the_others_along() -> None:
    world = World()
    one = await world.replica()
    flows = await bound(one, 3)
    *others, beats = flows
    before = one.net.calls["renew"]
    polls = [poll(one, flow, flows[flow]) for flow in others]
    await settle()
    await one.heartbeat("orders", beats)
    assert one.net.calls["renew"] - before == 1
    await all_renewed(world, flows)
    await asyncio.sleep(GATHER_SECONDS)
    assert one.net.calls["renew"] - before == 1
    for each in polls:
        each.cancel()


async def unheard() -> tuple[World, Service, Service, str, int]:
    """Two replicas; the second hears nothing of the first one's changes. A flow with its view."""
    world = World()
    one, two = await world.replica(), await world.replica()
    [(flow, after)] = (await bound(one, 1)).items()
    await two.update("orders", flow)
    two.database.deaf = True
    # Between two sweeps, which would find it.
    await asyncio.sleep(0.3)
    return world, one, two, flow, after


@virtual
async def test_a_change_that_this_replica_has_not_heard_of_is_told_with_the_renewal() -> None:
    world, one, two, flow, after = await unheard()
    await one.change_queue("orders", {"partition_count": 2}, False)
    await settle()
    began = world.now
    told = await two.wait_update("orders", flow, after, WAIT_SECONDS)
    assert told is not None
    assert len(told.partitions) == 2
    assert world.now - began <= GATHER_SECONDS + MOMENT


@pytest.mark.parametrize("gone", ["flow", "queue"])
def test_a_flow_that_is_gone_is_told_with_the_renewal(gone: str) -> None:
    @virtual
    async def played() -> None:
        world, one, two, flow, after = await unheard()
        if gone == "flow":
            await one.unbind("orders", flow)
        else:
            await one.delete_queue("orders", True)
        await settle()
        began = world.now
        with pytest.raises(FlowGone if gone == "flow" else QueueNotFound):
            await two.wait_update("orders", flow, after, WAIT_SECONDS)
        assert world.now - began <= GATHER_SECONDS + MOMENT
        assert not two.replica.renewals._under_way

    played()


@virtual
async def test_a_hundred_flows_that_wait_for_a_deleted_queue_are_few_statements() -> None:
    world = World()
    one = await world.replica()
    polls = [poll(one, flow, after) for flow, after in (await bound(one, 100)).items()]
    await asyncio.sleep(1)
    before = dict(one.net.calls)
    await one.delete_queue("orders", True)
    found = await asyncio.gather(*polls, return_exceptions=True)
    assert {type(each) for each in found} == {QueueNotFound}
    calls = {method: count - before.get(method, 0) for method, count in one.net.calls.items()}
    assert calls["flow_rows"] <= 2
    assert sum(calls.values()) < 20


@virtual
async def test_without_the_database_a_poll_fails_with_the_renewal() -> None:
    world = World()
    one = await world.replica()
    flows = await bound(one, 3)
    one.net.fail("renew", Fault.LOST)
    began = world.now
    polls = [poll(one, flow, after) for flow, after in flows.items()]
    found = await asyncio.gather(*polls, return_exceptions=True)
    assert [type(each) for each in found] == [Unavailable] * 3
    assert len({id(each) for each in found}) == 3
    assert world.now - began <= GATHER_SECONDS + 1
    assert not one.replica.renewals._under_way


@virtual
async def test_a_defect_of_the_renewal_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    one = await world.replica()
    [(flow, after)] = (await bound(one, 1)).items()

    def defect(_: object) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(world.database, "renew", defect)
    with pytest.raises(ZeroDivisionError):
        await one.wait_update("orders", flow, after, WAIT_SECONDS)


@virtual
async def test_a_limit_of_the_caller_holds_for_the_renewal() -> None:
    world = World()
    one = await world.replica()
    [(flow, after)] = (await bound(one, 1)).items()
    one.net.hold("renew")

    async def limited(call: Any) -> Any:
        try:
            return await asyncio.wait_for(call, 6.5)
        except TimeoutError:
            raise Unavailable("no answer") from None

    began = world.now
    with pytest.raises(Unavailable):
        await one.wait_update("orders", flow, after, WAIT_SECONDS, asked=limited)
    assert world.now - began == pytest.approx(6.5 + GATHER_SECONDS, abs=MOMENT)


@virtual
async def test_a_flow_whose_renewal_is_gathered_is_not_expired() -> None:
    world = World()
    one = await world.replica()
    flows = await bound(one, 2, 10.0)
    polls, dies = flows
    await asyncio.sleep(await ends(world, polls) - GATHER_SECONDS / 2)
    waiting = poll(one, polls, flows[polls], 3.0)
    await settle()
    pass_time(GATHER_SECONDS * 0.75)
    coordinator = one.replica.coordinator_of(world.stored("orders")[0])
    coordinator.advance()
    await settle()
    with pytest.raises(FlowGone, match="expired"):
        await one.heartbeat("orders", dies)
    told = await waiting
    assert told is not None
    assert len((await one.update("orders", polls)).partitions) == 2


@virtual
async def test_a_renewal_whose_row_is_held_is_made_when_it_is_free() -> None:
    world = World()
    one = await world.replica()
    [(flow, after)] = (await bound(one, 1, 2.0)).items()
    world.database.held_flows = {flow}
    waiting = poll(one, flow, after, 1.0)
    await asyncio.sleep(4)
    assert not waiting.done()
    world.database.held_flows = set()
    assert await waiting is None
    assert await ends(world, flow) > 1.5
    assert not one.replica.renewals._under_way


@virtual
async def test_a_poll_that_is_cancelled_says_whether_it_has_renewed() -> None:
    world = World()
    one = await world.replica()
    [(flow, after)] = (await bound(one, 1)).items()
    for seconds, said in ((0.0, (NOT_RENEWED,)), (2 * GATHER_SECONDS, ())):
        waiting = poll(one, flow, after)
        await settle()
        await asyncio.sleep(seconds)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await waiting
        assert cancelled.value.args == said
