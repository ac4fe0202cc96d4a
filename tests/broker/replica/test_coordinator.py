"""The mailbox of a queue: decisions show only after their commit, and answers are current."""

import asyncio
import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
import pytest
from structlog.testing import capture_logs

from broker.core import commands as c
from broker.core.commands import CommitItem, ReadyItem, ReleaseItem
from broker.core.draft import Decision
from broker.core.errors import (
    FlowGone,
    FlowNotFound,
    QueueNotFound,
    QueueUnreadable,
    Unavailable,
)
from broker.core.queue import Queue
from broker.core.rebalancer import decide
from broker.replica.coordinator import WENT_BACK, Coordinator
from broker.replica.notifier import ViewNotifier
from broker.replica.renewals import Renewals
from broker.replica.transaction import Submission
from broker.store.ports import QueueDamaged
from broker.testing.loop import settle, virtual
from broker.testing.process import VirtualAlarms
from broker.testing.store import Fault
from tests.broker.shell import Service, World, spec
from tests.world.store import picture


async def waits(awaitable: Any) -> asyncio.Future[Any]:
    """Starts it and lets it run as far as possible."""
    future = asyncio.ensure_future(awaitable)
    await settle()
    return future


async def revoking(one: Service) -> tuple[str, str, dict[int, int]]:
    """Two flows on `orders`, of which the first must hand over: epoch by partition."""
    await one.create_queue(spec(max_handoff_time=30.0))
    first = await one.join("orders", "first", lease=60)
    second = await one.join("orders", "second", lease=60)
    view = await one.view("orders", first)
    return first, second, {n: epoch for n, (epoch, state) in view.items() if state == "revoking"}


class Noted(ViewNotifier):
    """Notes which flows it wakes."""

    def __init__(self) -> None:
        super().__init__()
        self.woken: list[frozenset[str] | None] = []

    def wake(self, flow_ids: frozenset[str] | None) -> None:
        self.woken.append(flow_ids)
        super().wake(flow_ids)


class NotedAlarms(VirtualAlarms):
    """Notes for when they are set, by the store's clock."""

    def __init__(self, service: Service) -> None:
        super().__init__(service.alarms._process)
        self.times: list[float] = []
        self._clock = service.replica.clock

    def set(self, key: str, delay_seconds: float | None, callback: Callable[[], None]) -> None:
        assert delay_seconds is not None
        self.times.append(self._clock.now() + delay_seconds)


class Alone:
    """A coordinator of `orders` beside that of a replica, and what it does."""

    def __init__(self, service: Service, queue_id: str) -> None:
        self.ours: list[bool] = []
        self.alarms = NotedAlarms(service)
        store = service.replica.store
        self.coordinator = Coordinator(
            queue_id,
            "orders",
            store,
            service.replica.clock,
            self.alarms,
            Renewals(store),
            lambda: "commit",
            lambda _, ours: self.ours.append(ours),
            lambda _, entries: None,
        )
        self.notices = self.coordinator.notifier = Noted()


class TestCommit:
    @virtual
    async def test_waiting_commands_are_committed_together(self) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(spec(partitions=50, rebalance_delay=1.0))
        before = one.net.calls["commit"]
        flows = await asyncio.gather(*(one.join("orders", str(n)) for n in range(500)))
        assert len(set(flows)) == 500
        assert one.net.calls["commit"] - before <= 3
        world.check("orders")

    @pytest.mark.parametrize("fault", [None, *Fault])
    @virtual
    async def test_commands_beyond_a_turns_time_wait_for_the_next_turn(
        self, fault: Fault | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("broker.replica.transaction.DECIDING_SECONDS", -1)
        world = World()
        one = await world.replica()
        await one.create_queue(spec(rebalance_delay=1.0))
        coordinator = await one.replica.coordinator("orders")
        if fault is not None:
            one.net.fail("commit", fault)
        asks = [Submission(c.Change({"max_handoff_time": float(n)})) for n in range(20)]
        answers = await asyncio.gather(*map(coordinator.submit, asks), return_exceptions=True)
        assert len({type(answer) for answer in answers}) == 1
        if fault is None:
            assert (await one.queue("orders")).max_handoff_time == 19.0
            assert one.net.calls["commit"] >= 20
        world.check("orders")

    @virtual
    async def test_commands_are_decided_in_the_order_in_which_they_came(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also those that a turn had no time for, before what has come since."""
        monkeypatch.setattr("broker.replica.transaction.DECIDING_SECONDS", -1)
        world = World()
        one = await world.replica()
        await one.create_queue(spec(rebalance_delay=1.0))
        coordinator = await one.replica.coordinator("orders")

        def bind(name: str) -> asyncio.Future[Any]:
            command = c.Bind(name, f"i-{name}", "client", 60)
            return coordinator.enqueue(Submission(command, token_hash=name.encode()))

        gate = one.net.hold("commit")
        early = [bind("A"), bind("B")]
        await one.net.met("commit")
        late = bind("C")
        gate.set()
        await asyncio.gather(*early, late)
        flows = (await one.flows("orders", 9, None)).items
        assert [flow.flow_id for flow in flows] == ["A", "B", "C"]

    @virtual
    async def test_uncommitted_decisions_are_not_visible(self) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(spec(max_handoff_time=30.0))
        first = await one.join("orders", "first", lease=60)
        revision = (await one.update("orders", first)).revision
        told = await waits(one.wait_update("orders", first, revision, 20))
        gate = one.net.hold("commit")
        joining = await waits(one.join("orders", "second", lease=60))
        await one.net.met("commit")
        status = await waits(one.rebalance_status("orders"))
        seen = await waits(one.update("orders", first))
        assert not any(call.done() for call in (told, joining, status, seen))
        gate.set()
        await joining
        assert (await status).status == "Rebalancing"
        assert (await told).revision == (await seen).revision > revision

    @virtual
    async def test_nothing_remains_of_a_commit_that_was_lost(self) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(spec())
        first = await one.join("orders", "first")
        before = await one.update("orders", first)
        told = await waits(one.wait_update("orders", first, before.revision, 4))
        one.net.fail("commit", Fault.LOST)
        with pytest.raises(Unavailable):
            await one.join("orders", "second")
        await settle()
        assert not told.done()
        assert (await one.update("orders", first)).partitions == before.partitions
        assert (await one.queue("orders")).flow_count == 1
        world.check("orders")

    @virtual
    async def test_a_commit_of_which_the_answer_was_lost_is_found(self) -> None:
        world = World()
        one, two = await world.replica(), await world.replica()
        await one.create_queue(spec(max_handoff_time=30.0))
        first = await one.join("orders", "first", lease=60)
        before = await one.update("orders", first)
        there = await waits(two.wait_update("orders", first, before.revision, 20))
        here = await waits(one.wait_update("orders", first, before.revision, 20))
        one.net.fail("commit", Fault.UNKNOWN)
        with pytest.raises(Unavailable):
            await one.join("orders", "second", lease=60)
        # No replica was notified, but the sweep of both finds it.
        for told in (await here, await there):
            assert [p.state for p in told.partitions].count("revoking") == 2
        # The client repeats the unanswered call: no second flow remains.
        second = await one.join("orders", "second", lease=60)
        assert {flow.flow_id for flow in (await one.flows("orders", 10, None)).items} == {
            first,
            second,
        }
        world.check("orders")

    @virtual
    async def test_a_defect_is_told_and_does_not_spin(self) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(spec())
        flow = await one.join("orders", "first", lease=60)

        async def broken(method: str) -> None:
            if method == "commit":
                raise ZeroDivisionError

        one.net.before = broken
        with pytest.raises(ZeroDivisionError):
            await one.join("orders", "second")
        loads = one.net.calls["load"]
        with pytest.raises(ZeroDivisionError):
            await one.unbind("orders", flow)
        await asyncio.sleep(30)
        assert one.net.calls["load"] - loads < 5
        one.net.before = None
        await one.join("orders", "second")
        assert (await one.queue("orders")).flow_count == 2
        world.check("orders")


class TestObedience:
    """The coordinator obeys the decision and looks at nothing else."""

    @virtual
    async def test_the_coordinator_notifies_and_sets_the_alarm_as_decided(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(spec())
        queue_id, _ = world.stored("orders")

        def decided(queue: Queue, command: c.Command, now: float) -> Decision:
            decision = decide(queue, command, now)
            return replace(decision, notices=frozenset({type(command).__name__}), wake_at=now + 99)

        monkeypatch.setattr("broker.replica.transaction.decide", decided)
        alone = Alone(one, queue_id)
        bind = c.Bind("A", "i-A", "client", 200)
        await alone.coordinator.submit(Submission(bind, token_hash=b"A"))
        # None: the queue was loaded, so all watchers are woken.
        assert alone.notices.woken == [None, frozenset({"Advance", "Bind"})]
        assert alone.ours == [False, True]
        deadline = world.database.queues[queue_id].row["next_deadline"]
        assert deadline == pytest.approx(one.replica.clock.now() + 99, abs=1)
        assert alone.alarms.times == [pytest.approx(deadline)]
        assert alone.coordinator.waits

    @virtual
    async def test_decisions_of_another_replica_notify_and_set_the_alarm(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world = World()
        one, two = await world.replica(), await world.replica()
        await one.create_queue(spec(rebalance_delay=5.0))
        queue_id, _ = world.stored("orders")
        alone = Alone(two, queue_id)
        await alone.coordinator.read(lambda queue: queue.revision)
        flow = await one.join("orders", "first", lease=200)
        alone.coordinator.catch_up()
        await settle()
        assert (alone.notices.woken[-1], alone.ours[-1]) == (frozenset({flow}), False)
        assert alone.alarms.times == [pytest.approx(two.replica.clock.now() + 5, abs=1)]


class TestAnswersFromThePresent:
    """What one replica told a flow, the other one knows when the flow asks it."""

    @virtual
    async def test_a_release_of_what_another_replica_revoked(self) -> None:
        world = World()
        one, two = await world.replica(), await world.replica()
        two.database.deaf = True
        await one.create_queue(spec(max_handoff_time=30.0))
        first = await one.join("orders", "first", lease=60)
        await two.update("orders", first)
        await one.join("orders", "second", lease=60)
        view = await one.view("orders", first)
        items = [
            ReleaseItem(n, epoch, "7") for n, (epoch, state) in view.items() if state == "revoking"
        ]
        done = await two.release("orders", first, 1, items)
        assert [result.outcome for result in done.results] == ["ok", "ok"]

    @pytest.mark.parametrize("call", ["drain", "release", "ready", "poll", "update", "unbind"])
    @virtual
    async def test_a_flow_that_another_replica_bound(self, call: str) -> None:
        world = World()
        one, two = await world.replica(), await world.replica()
        two.database.deaf = True
        await one.create_queue(spec())
        await two.queue("orders")
        flow = await one.join("orders", "first")
        calls = {
            "drain": lambda: two.drain("orders", flow, None),
            "release": lambda: two.release("orders", flow, 1, [ReleaseItem(9, 1)]),
            "ready": lambda: two.ready("orders", flow, [ReadyItem(9, 1)]),
            "poll": lambda: two.wait_update("orders", flow, 0, 1),
            "update": lambda: two.update("orders", flow),
            "unbind": lambda: two.unbind("orders", flow),
        }
        await calls[call]()
        assert (await one.queue("orders")).flow_count == (0 if call == "unbind" else 1)

    @virtual
    async def test_a_flow_that_another_replica_unbound_is_gone(self) -> None:
        world = World()
        one, two = await world.replica(), await world.replica()
        two.database.deaf = True
        await one.create_queue(spec())
        flow = await one.join("orders", "first")
        await two.update("orders", flow)
        await one.unbind("orders", flow)
        for call in (
            two.release("orders", flow, 1, []),
            two.ready("orders", flow, [ReadyItem(0, 1)]),
            two.commit("orders", flow, 1, [CommitItem(0, 1, "5")]),
            two.heartbeat("orders", flow),
            two.wait_update("orders", flow, 0, 5),
            two.drain("orders", flow, None),
        ):
            with pytest.raises(FlowGone) as error:
                await call
            assert error.value.reason == "unbound"
        await two.unbind("orders", flow)

    @virtual
    async def test_an_unknown_flow_does_not_cost_the_queue_in_memory(self) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(spec())
        flow = await one.join("orders", "first")
        loads = one.net.calls["load"]
        for _ in range(5):
            with pytest.raises(FlowNotFound):
                await one.heartbeat("orders", "nobody")
            with pytest.raises(FlowNotFound):
                await one.release("orders", "nobody", 1, [])
        await one.heartbeat("orders", flow)
        assert one.net.calls["load"] == loads


class TestConflicts:
    @virtual
    async def test_the_second_of_two_commits_is_decided_again(self) -> None:
        world = World()
        one, two = await world.replica(), await world.replica()
        for service in (one, two):
            service.database.deaf = True
        await one.create_queue(spec(partitions=100))
        await two.queue("orders")
        binds = [
            service.join("orders", f"{n}-{place}")
            for n in range(50)
            for place, service in enumerate((one, two))
        ]
        flows = await asyncio.gather(*binds)
        page = await one.flows("orders", 200, None)
        assert sorted(flow.flow_id for flow in page.items) == sorted(flows)
        await two.queue("orders")
        world.check("orders")

    @virtual
    async def test_two_replicas_that_always_conflict_both_make_progress(self) -> None:
        """Each waits a while in every call, so nearly every commit conflicts."""
        world = World()
        services = [await world.replica() for _ in range(2)]
        await services[0].create_queue(spec(max_handoff_time=1.0))
        done = [0, 0]

        async def slow(method: str) -> None:
            await asyncio.sleep(0.003 + 0.002 * (next(world.numbers) % 7))

        async def work(place: int) -> None:
            service = services[place]
            while world.now < ends:
                flow = await service.join("orders", f"{place}-{next(world.numbers)}", lease=60)
                await service.unbind("orders", flow)
                done[place] += 1

        for service in services:
            service.net.before = slow
        ends = world.now + 5
        await asyncio.gather(*(work(n % 2) for n in range(6)))
        assert min(done) > max(done) / 4 > 5
        await asyncio.sleep(5)
        assert (await services[0].queue("orders")).flow_count == 0
        world.check("orders")


class TestReleases:
    @virtual
    async def test_a_release_behind_a_later_commit_changes_nothing(self) -> None:
        world = World()
        one = await world.replica()
        first, _, epochs = await revoking(one)
        number, epoch = max(epochs.items())
        await one.commit("orders", first, 7, [CommitItem(number, epoch, "70")])
        late = await one.release("orders", first, 6, [ReleaseItem(number, epoch, "60")])
        assert [result.outcome for result in late.results] == ["ok"]
        assert late.update is not None
        [seen] = [p for p in late.update.partitions if p.partition == number]
        assert (seen.state, seen.position) == ("revoking", "70")

    @virtual
    async def test_a_late_release_does_not_undo_a_later_one(self) -> None:
        world = World()
        one = await world.replica()
        first, second, epochs = await revoking(one)
        number, epoch = max(epochs.items())
        await one.commit("orders", first, 5, [CommitItem(number, epoch, "50")])
        calls = [
            one.release("orders", first, seq, [ReleaseItem(number, epoch, str(seq * 10))])
            for seq in (4, 6)
        ]
        for answer in await asyncio.gather(*calls):
            assert [result.outcome for result in answer.results] == ["ok"]
        view = await one.update("orders", second)
        assert [(p.partition, p.position) for p in view.partitions] == [(number, "60")]

    @virtual
    async def test_a_repeated_release_is_ok_and_changes_nothing(self) -> None:
        world = World()
        one, two = await world.replica(), await world.replica()
        first, second, epochs = await revoking(one)
        items = [ReleaseItem(n, epoch, "9") for n, epoch in epochs.items()]
        await one.release("orders", first, 1, items)
        revision = (await one.queue("orders")).revision
        for service in (one, two):
            again = await service.release("orders", first, 1, items)
            assert {result.outcome for result in again.results} == {"ok"}
        assert (await one.queue("orders")).revision == revision
        assert {p.position for p in (await two.update("orders", second)).partitions} == {"9"}

    @virtual
    async def test_an_epoch_that_no_flow_was_told_of_is_refused(self) -> None:
        """A flow guesses the epoch after its first release, in the same turn."""
        world = World()
        one = await world.replica()
        await one.create_queue(spec(partitions=2, max_handoff_time=30.0))
        first = await one.join("orders", "first", lease=60)
        second = await one.join("orders", "second", lease=60)
        await one.unbind("orders", second)
        # Partition 1 is revoking and no other flow can take it: the owner gets it under epoch 2.
        assert await one.view("orders", first) == {0: (1, "owned"), 1: (1, "revoking")}
        coordinator = await one.replica.coordinator("orders")
        asks = [
            Submission(c.Release(first, (c.ReleaseItem(1, 1),)), renews=first),
            Submission(c.Bind("third", "i-third", "third", 60), token_hash=b"-"),
            Submission(c.Release(first, (c.ReleaseItem(1, 2),)), renews=first),
        ]
        answers = await asyncio.wait_for(asyncio.gather(*map(coordinator.submit, asks)), 5)
        assert answers[0][0].outcome == "ok"
        assert answers[2][0].outcome == "not_owner"
        world.check("orders")


class TestLeases:
    @virtual
    async def test_a_lease_that_is_renewed_while_it_expires(self) -> None:
        world = World()
        one, two = await world.replica(), await world.replica()
        await one.create_queue(spec())
        first = await one.join("orders", "first", lease=10)
        gate = one.net.hold("commit")
        # Only the first replica acts when the lease ends; before it commits, the flow calls.
        two.alarms.on = False
        two.net.fail("due", Fault.LOST, times=100)
        await one.net.met("commit")
        await two.heartbeat("orders", first)
        gate.set()
        await asyncio.sleep(5)
        assert set(await two.view("orders", first)) == {0, 1, 2, 3}
        # The flow ends when its new lease is over.
        await asyncio.sleep(8)
        with pytest.raises(FlowGone, match="expired"):
            await one.update("orders", first)

    @virtual
    async def test_a_call_at_the_last_moment_keeps_the_flow_bound(self) -> None:
        world = World()
        one = await world.replica()
        first, _, epochs = await revoking(one)
        one.alarms.on = False
        one.net.fail("due", Fault.LOST, times=100)
        await asyncio.sleep(65)
        items = [ReleaseItem(n, epoch, "9") for n, epoch in epochs.items()]
        late = await one.release("orders", first, 1, items)
        # It came too late for the handoffs, but the flow is still bound.
        assert {result.outcome for result in late.results} == {"stale_epoch"}
        assert (await one.flows("orders", 5, None)).items[0].flow_id == first

    @virtual
    async def test_the_second_of_two_equal_binds_replaces_the_first(self) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(spec())
        coordinator = await one.replica.coordinator("orders")
        asks = [
            Submission(c.Bind(flow, "same", "client", 10), token_hash=flow.encode())
            for flow in ("ghost", "real")
        ]
        await asyncio.gather(*map(coordinator.submit, asks))
        with pytest.raises(FlowGone) as error:
            await one.update("orders", "ghost")
        assert error.value.reason == "replaced"
        assert set(await one.view("orders", "real")) == {0, 1, 2, 3}
        world.check("orders")


class TestCatchingUp:
    @virtual
    async def test_a_replica_whose_records_are_gone_loads_anew(self) -> None:
        world = World()
        one, two = await world.replica(), await world.replica()
        two.database.deaf = True
        two.net.fail("revisions", Fault.LOST, times=1000)
        await one.create_queue(spec())
        await two.queue("orders")
        for n in range(3):
            flow = await one.join("orders", str(n), lease=60)
        await asyncio.sleep(1)
        await one.replica.store.purge(0, world.now)
        await two.update("orders", flow)
        assert picture(world.check("orders")) == picture(world.stored("orders")[1])

    @virtual
    async def test_a_replica_that_cannot_read_a_newer_ones_records_loads_anew(self) -> None:
        world = World()
        one, two = await world.replica(), await world.replica()
        two.database.deaf = True
        two.net.fail("revisions", Fault.LOST, times=1000)
        await one.create_queue(spec())
        await two.queue("orders")
        flow = await one.join("orders", "first", lease=60)
        queue_id, _ = world.stored("orders")
        entries = world.database.queues[queue_id].entries
        entry, records = entries[-1]
        newer = [record | {"new_field": 1} for record in orjson.loads(records)]
        entries[-1] = entry, orjson.dumps(newer)
        await two.update("orders", flow)
        await two.unbind("orders", flow)
        world.check("orders")

    @virtual
    async def test_a_queue_that_cannot_be_read_is_logged_each_time_that_it_breaks(self) -> None:
        world = World()
        one, two = await world.replica(), await world.replica()
        await one.create_queue(spec())
        load = two.replica.store.load

        async def fails(queue_id: str) -> Queue:
            raise QueueDamaged("p7 has no key")

        with capture_logs() as logged:
            for _ in range(2):
                two.replica.store.load = fails  # type: ignore[method-assign]
                for _ in range(3):
                    with pytest.raises(QueueUnreadable, match="p7 has no key"):
                        await two.queue("orders")
                two.replica.store.load = load  # type: ignore[method-assign]
                assert (await two.queue("orders")).partition_count == 4
                (coordinator,) = two.replica._coordinators.values()
                coordinator.queue = None
        errors = [line["error"] for line in logged if line["log_level"] == "error"]
        assert errors == ["p7 has no key"] * 2

    @virtual
    async def test_after_a_restore_of_the_database_the_queue_is_loaded_once(self) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(spec())
        tables = (world.database.queues, world.database.flows)
        backup = copy.deepcopy(tables)
        await one.join("orders", "first", lease=60)
        world.database.queues, world.database.flows = backup
        with pytest.raises(Unavailable):
            await asyncio.wait_for(one.join("orders", "second", lease=60), 60)
        await one.join("orders", "third", lease=60)
        (flow,) = world.check("orders").flows.values()
        assert flow.client_name == "client third"

    @virtual
    async def test_a_database_that_has_lost_commits_is_noticed_without_a_call(self) -> None:
        """A failover to a standby that was behind."""
        world = World()
        one = await world.replica()
        await one.create_queue(spec())
        backup = copy.deepcopy((world.database.queues, world.database.flows))
        await one.join("orders", "first", lease=60)
        world.database.queues, world.database.flows = backup
        with capture_logs() as logged:
            await asyncio.sleep(3)
        errors = [line["event"] for line in logged if line["log_level"] == "error"]
        assert errors == [WENT_BACK]
        queue_id, stored = world.stored("orders")
        memory = one.memory(queue_id)
        assert memory is not None
        assert picture(memory) == picture(stored)

    @virtual
    async def test_a_queue_deleted_on_another_replica_ends_waiting_calls(self) -> None:
        world = World()
        one, two = await world.replica(), await world.replica()
        await one.create_queue(spec())
        flow = await one.join("orders", "first")
        revision = (await two.update("orders", flow)).revision
        waiting = await waits(two.wait_update("orders", flow, revision, 5))
        watching = await waits(anext(two.watch("orders", flow, revision)))
        events = await waits(anext(two.events("orders", None)))
        await one.delete_queue("orders", force=True)
        for call in (waiting, watching, events):
            with pytest.raises(QueueNotFound):
                await call
        assert "orders" not in two.replica._ids
