"""How a replica keeps its queues up to date: notifications, alarms, the sweep."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from broker.core.commands import CommitItem
from broker.core.errors import FlowNotFound, QueueNotFound
from broker.replica.replica import IDLE_SECONDS
from broker.testing.loop import settle, virtual
from broker.testing.store import Fault
from tests.broker.shell import Service, World, spec


def counted(service: Service) -> set[str]:
    """The queues that a replica counts by name."""
    families = (family for each in service.replica.tally.collectors for family in each.collect())
    labels = (one.labels for family in families for one in family.samples)
    return {each["queue"] for each in labels if "queue" in each}


class TestNews:
    @virtual
    async def test_a_change_is_told_on_the_other_replica_at_once(self) -> None:
        world = World()
        one, two = await world.replica(), await world.replica()
        await one.create_queue(spec())
        first = await one.join("orders", "first", lease=60)
        revision = (await two.update("orders", first)).revision
        told = asyncio.ensure_future(two.wait_update("orders", first, revision, 20))
        began = world.now
        await settle()
        await one.join("orders", "second", lease=60)
        assert (await told) is not None
        assert world.now - began < 0.01

    @virtual
    async def test_a_lost_notification_is_made_up_for_by_the_sweep(self) -> None:
        world = World()
        one, two = await world.replica(), await world.replica()
        two.database.deaf = True
        await one.create_queue(spec())
        first = await one.join("orders", "first", lease=60)
        revision = (await two.update("orders", first)).revision
        watch = two.watch("orders", first, revision)
        told = asyncio.ensure_future(anext(watch))
        await settle()
        await one.join("orders", "second", lease=60)
        began = world.now
        await told
        assert world.now - began <= 1.01

    @virtual
    async def test_a_commit_of_many_entries_is_told_on_the_other_replica_as_a_whole(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("broker.replica.coordinator.FOLLOWED_AT_ONCE", 2)
        world = World()
        one, two = await world.replica(), await world.replica()
        await one.create_queue(spec(partitions=40, max_concurrent_handoffs=1))
        first = await one.join("orders", "first", lease=60)
        revision = (await two.update("orders", first)).revision
        gate = one.net.hold("commit")
        calls: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(one.join("orders", "second", lease=60))
        ]
        await one.net.met("commit")
        # These are decided together, each in an entry of its own that begins a handoff.
        for most in range(2, 20):
            changes = {"max_concurrent_handoffs": most}
            calls.append(asyncio.ensure_future(one.change_queue("orders", changes, False)))
        await settle()

        async def slow(method: str) -> None:
            await asyncio.sleep(0.001)

        two.net.before = slow
        two.database.deaf = True
        told = asyncio.ensure_future(two.wait_update("orders", first, revision + 1, 20.0))
        await asyncio.sleep(0.01)
        gate.set()
        await asyncio.gather(*calls)
        await two.replica.sweep()
        stored = world.check("orders")
        entries = world.database.entries_after(stored.id, stored.revision - 18)
        assert len({entry.commit_id for entry in entries}) == 1
        view = await told
        assert view is not None
        assert view.revision == stored.revision

    @virtual
    async def test_watchers_of_a_reloaded_queue_are_woken(self) -> None:
        world = World()
        one, two = await world.replica(), await world.replica()
        two.database.deaf = True
        await one.create_queue(spec())
        first = await one.join("orders", "first", lease=60)
        revision = (await two.update("orders", first)).revision
        told = asyncio.ensure_future(anext(two.watch("orders", first, revision)))
        await settle()

        async def broken(method: str) -> None:
            if method == "commit":
                raise ZeroDivisionError

        two.net.before = broken
        with pytest.raises(ZeroDivisionError):
            await two.join("orders", "never")
        await one.join("orders", "second", lease=60)
        await told

    @virtual
    async def test_an_interrupted_connection_is_caught_up_with(self) -> None:
        world = World()
        one, two = await world.replica(), await world.replica()
        two.net.fail("revisions", Fault.LOST, times=100)
        await one.create_queue(spec())
        first = await one.join("orders", "first", lease=60)
        revision = (await two.update("orders", first)).revision
        told = asyncio.ensure_future(two.wait_update("orders", first, revision, 20))
        await settle()
        two.database.deaf = True
        await one.join("orders", "second", lease=60)
        await settle()
        assert not told.done()
        two.database.deaf = False
        two.database.interrupt()
        await settle()
        assert told.done()

    @virtual
    async def test_notifications_are_coalesced(self) -> None:
        world = World()
        one = await world.replica()
        names = [f"q{n}" for n in range(20)]
        for name in names:
            await one.create_queue(spec(name))
        one.net.calls.clear()
        await asyncio.gather(*(one.join(name, "first") for name in names))
        await settle()
        assert one.net.calls["notify"] <= 3


class TestNames:
    @virtual
    async def test_a_name_that_is_used_again_means_the_new_queue_everywhere(self) -> None:
        world = World()
        one, two = await world.replica(), await world.replica()
        two.database.deaf = True
        two.net.fail("revisions", Fault.LOST, times=100)
        await one.create_queue(spec())
        old = await two.join("orders", "old")
        await one.delete_queue("orders", force=True)
        made = await one.create_queue(spec(partitions=2))
        new = await two.join("orders", "new", lease=60)
        assert (await two.queue("orders")).id == made.id
        for service in (one, two):
            with pytest.raises(FlowNotFound):
                await service.heartbeat("orders", old)
            assert set(await service.view("orders", new)) == {0, 1}

    @virtual
    async def test_a_flow_of_the_new_queue_is_known_where_only_the_old_one_was(self) -> None:
        world = World()
        one, two = await world.replica(), await world.replica()
        two.database.deaf = True
        two.net.fail("revisions", Fault.LOST, times=100)
        await one.create_queue(spec())
        await two.queue("orders")
        await one.delete_queue("orders", force=False)
        await one.create_queue(spec())
        bound = await one.bind("orders", "client", "i-new", 60, False)
        await two.authenticate("orders", bound.flow_id, bound.flow_token)
        assert await two.wait_update("orders", bound.flow_id, 0, 1) is not None
        assert (await two.rebalances("orders", 5, None)).items
        assert len((await two.partitions("orders", 10, None)).items) == 4

    @virtual
    async def test_no_queue_of_that_name(self) -> None:
        world = World()
        one = await world.replica()
        for call in (one.queue("none"), one.join("none", "x"), one.delete_queue("none", True)):
            with pytest.raises(QueueNotFound):
                await call


class TestMemory:
    @virtual
    async def test_a_deleted_queue_is_no_longer_counted_by_name(self) -> None:
        """On no replica: the names that are counted are bounded."""
        world = World()
        one, two = await world.replica(), await world.replica()
        for _ in range(2):
            await one.create_queue(spec())
            await one.join("orders", "first")
            await two.join("orders", "second")
            await settle()
            assert counted(one) == counted(two) == {"orders"}
            await one.delete_queue("orders", force=True)
            await settle()
            assert counted(one) == counted(two) == set()
        await one.create_queue(spec())
        await one.join("orders", "first")
        await settle()
        await one.delete_queue("orders", force=True)
        await one.create_queue(spec())
        await one.join("orders", "first")
        await settle()
        assert counted(one) == {"orders"}

    @virtual
    async def test_an_unused_queue_leaves_the_memory_and_is_still_served(self) -> None:
        world = World()
        one = await world.replica()
        made = await one.create_queue(spec())
        flow = await one.join("orders", "first", lease=3600)
        await asyncio.sleep(IDLE_SECONDS + 5)
        assert one.memory(made.id) is None
        assert made.id not in one.alarms.waiting
        await asyncio.sleep(3600)
        _, stored = world.stored("orders")
        assert flow not in stored.flows

    @virtual
    async def test_a_queue_that_waits_for_something_is_kept(self) -> None:
        world = World()
        one = await world.replica()
        made = await one.create_queue(spec(rebalance_delay=3000.0))
        await one.join("orders", "first", lease=3600)
        await asyncio.sleep(2990)
        assert one.memory(made.id) is not None
        await asyncio.sleep(10.1)
        _, stored = world.stored("orders")
        assert stored.last_rebalance is not None

    @virtual
    async def test_a_watched_queue_is_kept(self) -> None:
        world = World()
        one = await world.replica()
        made = await one.create_queue(spec())
        flow = await one.join("orders", "first", lease=3600)
        revision = (await one.update("orders", flow)).revision
        told = asyncio.ensure_future(anext(one.watch("orders", flow, revision)))
        await asyncio.sleep(IDLE_SECONDS * 2)
        assert one.memory(made.id) is not None
        told.cancel()
        await settle()
        assert not one.replica.coordinator_of(made.id).notifier.watches


class TestAlarms:
    @virtual
    async def test_a_holddown_ends_in_time(self) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(spec(rebalance_delay=2.5))
        flow = await one.join("orders", "first", lease=60)
        began = world.now
        view = await one.wait_update("orders", flow, 2, 20)
        assert view is not None
        assert 2.5 <= world.now - began < 2.52

    @virtual
    async def test_without_alarms_the_sweep_does_it_within_a_second(self) -> None:
        world = World()
        one = await world.replica()
        one.alarms.on = False
        await one.create_queue(spec(rebalance_delay=2.5))
        flow = await one.join("orders", "first", lease=60)
        began = world.now
        assert await one.wait_update("orders", flow, 2, 20)
        assert world.now - began < 3.6

    @virtual
    async def test_a_quiet_queue_costs_nothing(self) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(spec())
        await one.join("orders", "first", lease=3600)
        await asyncio.sleep(2)
        one.net.calls.clear()
        one.alarms.rung.clear()
        await asyncio.sleep(60)
        assert not one.alarms.rung
        assert set(one.net.calls) == {"pulse", "due", "revisions"}
        assert max(one.net.calls.values()) <= 61

    @virtual
    async def test_the_sweep_goes_on_when_the_store_was_away(self) -> None:
        world = World()
        one = await world.replica()
        one.net.away = True
        await asyncio.sleep(10)
        one.net.away = False
        before = one.net.calls["due"]
        await asyncio.sleep(5)
        assert one.net.calls["due"] - before >= 4


class TestStop:
    @virtual
    async def test_a_stop_finishes_calls_under_way_and_ends_waits(self) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(spec())
        flow = await one.join("orders", "first", lease=60)
        revision = (await one.update("orders", flow)).revision
        poll = asyncio.ensure_future(one.wait_update("orders", flow, revision, 20))
        watch = asyncio.ensure_future(anext(one.watch("orders", flow, revision), "ended"))
        events = asyncio.ensure_future(anext(one.events("orders", None), "ended"))
        gate = one.net.hold("commit")
        await settle()
        joining = asyncio.ensure_future(one.join("orders", "second", lease=60))
        await one.net.met("commit")
        stopping = asyncio.ensure_future(one.replica.stop())
        await settle()
        assert not stopping.done()
        gate.set()
        await stopping
        assert await joining in world.stored("orders")[1].flows
        assert await poll is None
        assert await watch == "ended"
        assert await events == "ended"

    @virtual
    @pytest.mark.parametrize("method", ["renew", "commit_positions", "find"])
    async def test_a_stop_finishes_calls_of_the_store_whose_callers_have_given_up(
        self, method: str
    ) -> None:
        world = World()
        one, two = await world.replica(), await world.replica()
        await two.create_queue(spec())
        flow = await two.join("orders", "first", lease=60)
        if method != "find":
            await one.update("orders", flow)
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "renew": lambda: one.heartbeat("orders", flow),
            "commit_positions": lambda: one.commit("orders", flow, 1, [CommitItem(0, 1, "5")]),
            "find": lambda: one.queue("orders"),
        }
        gate = one.net.hold(method)
        calling = asyncio.ensure_future(calls[method]())
        await one.net.met(method)
        calling.cancel()
        stopping = asyncio.ensure_future(one.replica.stop())
        await settle()
        assert not stopping.done()
        gate.set()
        await stopping
        calls_before = one.net.calls.copy()
        await asyncio.sleep(30)
        assert one.net.calls == calls_before

    @virtual
    async def test_a_stop_sends_the_renewals_that_wait_for_others(self) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(spec())
        flow = await one.join("orders", "first", lease=60)
        revision = (await one.update("orders", flow)).revision
        poll = asyncio.ensure_future(one.wait_update("orders", flow, revision, 20))
        await settle()
        poll.cancel()
        assert flow in one.replica.renewals.gathered
        await one.replica.stop()
        calls_before = one.net.calls.copy()
        assert calls_before["renew"] == 1
        await asyncio.sleep(30)
        assert one.net.calls == calls_before

    @virtual
    async def test_nothing_is_left_running(self) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(spec(rebalance_delay=100.0))
        await one.join("orders", "first")
        await one.replica.stop()
        await settle()
        assert asyncio.all_tasks() == {asyncio.current_task()}
