"""The calls of flows."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from broker.core.access import anybody
from broker.core.commands import ChildrenItem, CommitItem, ReadyItem, ReleaseItem
from broker.core.errors import (
    FlowGone,
    FlowNotFound,
    Forbidden,
    Invalid,
    QueueNotFound,
    Unauthorized,
    Unavailable,
)
from broker.replica.renewals import GATHER_SHARE
from broker.testing.loop import settle, virtual
from broker.testing.store import Fault
from tests.broker.shell import Service, World, dynamic, spec


class TestFollowing:
    @virtual
    async def test_a_poll_returns_an_existing_update_at_once(self) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(spec())
        flow = await one.join("orders", "first")
        began = world.now
        assert await one.wait_update("orders", flow, 0, 60) is not None
        assert world.now == began

    @pytest.mark.parametrize("after", [2, 1000, 2**62])
    @virtual
    async def test_without_news_a_poll_ends_after_half_the_lease(self, after: int) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(spec())
        flow = await one.join("orders", "first", lease=8)
        began = world.now
        assert await one.wait_update("orders", flow, after, 60) is None
        assert world.now - began == pytest.approx(4)
        assert await one.wait_update("orders", flow, after, 1.5) is None
        assert world.now - began == pytest.approx(5.5)
        assert await one.wait_update("orders", flow, after, 0) is None
        assert world.now - began == pytest.approx(5.5)

    @virtual
    async def test_a_third_poll_ends_the_first(self) -> None:
        """Its lease is renewed all the same. The others, and streams, go on."""
        world = World()
        one = await world.replica()
        await one.create_queue(spec())
        flow = await one.join("orders", "first", lease=8)
        stream = aiter(one.watch("orders", flow, 0))
        assert await anext(stream) is not None
        following = asyncio.ensure_future(anext(stream))
        await settle()
        polls = []
        for _ in range(3):
            polls.append(asyncio.ensure_future(one.wait_update("orders", flow, 1000, 60)))
            await settle()
        began = world.now
        assert await polls[0] is None
        assert world.now - began < 1
        assert not any(each.done() for each in (*polls[1:], following))
        assert await asyncio.gather(*polls[1:]) == [None, None]
        assert world.now - began == pytest.approx(4)
        following.cancel()

    @virtual
    async def test_also_where_the_queue_is_not_known_yet(self) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(spec())
        flow = await one.join("orders", "first", lease=8)
        two, began = await world.replica(), world.now
        assert await two.wait_update("orders", flow, 1000, 60) is None
        assert world.now - began == pytest.approx(4)

    @virtual
    async def test_each_call_of_the_client_renews(self) -> None:
        """Also one that changes nothing, as with no items or those of others."""
        world = World()
        one = await world.replica()
        await one.create_queue(dynamic("orders", "a", "b"))
        flow = await one.join("orders", "first", lease=3)
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "heartbeat": lambda: one.heartbeat("orders", flow),
            "poll": lambda: one.wait_update("orders", flow, 0, 0),
            "commit": lambda: one.commit("orders", flow, None, [CommitItem(0, 1, "x")]),
            "commit of none": lambda: one.commit("orders", flow, None, []),
            "commit too late": lambda: one.commit("orders", flow, None, [CommitItem(0, 0, "x")]),
            "release": lambda: one.release("orders", flow, None, [ReleaseItem(0, 1)]),
            "ready": lambda: one.ready("orders", flow, [ReadyItem(0, 1)]),
            "children": lambda: one.children("orders", flow, None, [ChildrenItem(9, 1)]),
            "drain": lambda: one.drain("orders", flow, None),
            "drain again": lambda: one.drain("orders", flow, None),
        }
        for name, call in calls.items():
            await asyncio.sleep(2)
            await call()
            [lease] = (await world.services[0].database.leases([flow])).values()
            assert lease - world.now == pytest.approx(3, abs=0.1), name

    @virtual
    async def test_polls_renew_and_open_streams_do_not(self) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(spec())
        polls = await one.join("orders", "polls", lease=4)
        streams = await one.join("orders", "streams", lease=4)

        async def follow() -> None:
            async for _ in one.watch("orders", streams, 0):
                pass

        told = asyncio.ensure_future(follow())
        for _ in range(10):
            await one.wait_update("orders", polls, 10**9, 2)
        with pytest.raises(FlowGone, match="expired"):
            await told
        assert len((await one.update("orders", polls)).partitions) == 4

    @virtual
    async def test_many_streams_of_a_flow_read_its_positions_together(self) -> None:
        """On the replica that commits, and on another."""
        world = World()
        one, two = await world.replica(), await world.replica()
        await one.create_queue(spec())
        flow = await one.join("orders", "first", lease=60)
        seen: list[list[int]] = []

        async def follow(service: Service) -> None:
            got: list[int] = []
            seen.append(got)
            async for view in service.watch("orders", flow, 0):
                got.append(view.revision)

        streams = [asyncio.ensure_future(follow(each)) for each in (one, two) for _ in range(50)]
        await settle()
        before = [each.net.calls["positions"] for each in (one, two)]
        await one.change_queue("orders", {"partition_count": 5}, False)
        await settle()
        after = [each.net.calls["positions"] for each in (one, two)]
        # The views of a change that is still being made may be outdated once.
        assert all(now - then <= 3 for now, then in zip(after, before, strict=True))
        revision = (await one.update("orders", flow)).revision
        assert {got[-1] for got in seen} == {revision}
        for each in streams:
            each.cancel()

    @virtual
    async def test_an_administrators_drain_renews_no_lease(self) -> None:
        """Only calls of the client itself renew: a frozen process loses its partitions."""
        world = World()
        one = await world.replica()
        await one.create_queue(spec())
        frozen = await one.join("orders", "frozen", lease=4)
        alive = await one.join("orders", "alive", lease=4)
        await asyncio.sleep(3)
        await one.drain("orders", frozen, None, anybody())
        await one.drain("orders", alive, None)
        await asyncio.sleep(2)
        assert (await one.update("orders", alive)).draining
        with pytest.raises(FlowGone, match="expired"):
            await one.drain("orders", frozen, None, anybody())

    @pytest.mark.parametrize("reason", ["unbound", "replaced", "lease_expired"])
    @virtual
    async def test_a_watcher_is_told_that_the_flow_is_gone(self, reason: str) -> None:
        """On any replica, at once."""
        world = World()
        one, two = await world.replica(), await world.replica()
        # Its handoffs outlast its lease.
        await one.create_queue(spec(max_handoff_time=60.0))
        flow = await one.join("orders", "first", lease=3)
        await one.join("orders", "other", lease=600)
        revision = (await one.update("orders", flow)).revision
        waits = [
            asyncio.ensure_future(call)
            for service in (one, two)
            for call in (
                anext(service.watch("orders", flow, revision)),
                service.wait_update("orders", flow, revision, 60),
            )
        ]
        await settle()
        began = world.now
        if reason == "unbound":
            await two.unbind("orders", flow)
        elif reason == "replaced":
            await two.join("orders", "first")
        else:
            two.net.before = one.net.before = None
            for poll in (waits[1], waits[3]):
                poll.cancel()
        for wait in waits:
            if reason != "lease_expired" or wait not in (waits[1], waits[3]):
                with pytest.raises(FlowGone) as error:
                    await wait
                assert error.value.reason == reason
        # The renewals of the polls may have been on their way already.
        late = 3 * (1 + GATHER_SHARE) if reason == "lease_expired" else 0.0
        assert world.now - began <= late + 0.01

    @virtual
    async def test_changes_between_polls_come_as_one_update(self) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(spec())
        first = await one.join("orders", "first", lease=60)
        stream = one.watch("orders", first, 0)
        seen = await anext(stream)
        for n in range(5):
            await one.join("orders", str(n), lease=60)
        latest = await anext(stream)
        assert latest == await one.update("orders", first)
        assert latest.revision > seen.revision
        more = asyncio.ensure_future(anext(stream))
        await settle()
        assert not more.done()
        more.cancel()

    @virtual
    async def test_positions_and_epochs_are_of_one_moment(self) -> None:
        """The other replica grants between the reading of the queue and the reading of the
        positions.
        """
        world = World()
        one, two = await world.replica(), await world.replica()
        await one.create_queue(spec(max_handoff_time=30.0))
        first = await one.join("orders", "first", lease=60)
        second = await one.join("orders", "second", lease=60)
        await two.update("orders", second)
        gate = two.net.hold("positions")
        reading = asyncio.ensure_future(two.update("orders", first))
        await two.net.met("positions")
        items = [ReleaseItem(n, 1, "9") for n in (2, 3)]
        await one.release("orders", first, 1, items)
        await one.unbind("orders", second)
        gate.set()
        seen = {p.partition: (p.epoch, p.position) for p in (await reading).partitions}
        assert seen == {0: (1, None), 1: (1, None), 2: (3, "9"), 3: (3, "9")}


class TestTokens:
    @virtual
    async def test_calls_need_the_flows_own_token(self) -> None:
        world = World()
        one, two = await world.replica(), await world.replica()
        await one.create_queue(spec())
        await one.create_queue(spec("other"))
        bound = await one.bind("orders", "client", None, 10, False)
        for service in (one, two, two):
            await service.authenticate("orders", bound.flow_id, bound.flow_token)
            with pytest.raises(Unauthorized):
                await service.authenticate("orders", bound.flow_id, "")
            with pytest.raises(Forbidden):
                await service.authenticate("orders", bound.flow_id, "guessed")
            with pytest.raises(FlowNotFound):
                await service.authenticate("other", bound.flow_id, bound.flow_token)
            with pytest.raises(FlowNotFound):
                await service.authenticate("orders", "nobody", bound.flow_token)
            with pytest.raises(QueueNotFound):
                await service.authenticate("nowhere", bound.flow_id, bound.flow_token)

    @virtual
    async def test_only_the_flows_own_client_learns_why_it_left(self) -> None:
        world = World()
        one, two = await world.replica(), await world.replica()
        await one.create_queue(spec())
        bound = await one.bind("orders", "client", None, 10, False)
        await one.unbind("orders", bound.flow_id)
        with pytest.raises(Forbidden):
            await two.authenticate("orders", bound.flow_id, "guessed")
        with pytest.raises(FlowGone) as error:
            await two.authenticate("orders", bound.flow_id, bound.flow_token)
        assert error.value.reason == "unbound"

    @virtual
    async def test_known_tokens_are_forgotten_when_they_are_many(self) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(spec())
        bound = await one.bind("orders", "client", None, 10, False)
        for n in range(100_001):
            one.calls.bound_flows.remember(f"f{n}", "queue", b"")
        assert len(one.calls.bound_flows._tokens) <= 100_000
        await one.authenticate("orders", bound.flow_id, bound.flow_token)


class TestWorking:
    @virtual
    async def test_commits_of_many_flows_go_out_together_and_in_order(self) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(spec(partitions=10))
        flow = await one.join("orders", "first", lease=60)
        one.net.calls.clear()
        await asyncio.gather(
            *(
                one.commit("orders", flow, seq, [CommitItem(seq % 10, 1, str(seq))])
                for seq in range(1, 41)
            )
        )
        assert one.net.calls["commit_positions"] <= 41
        seen = await one.update("orders", flow)
        assert [p.position for p in seen.partitions] == [
            str(n) for n in (40, 31, 32, 33, 34, 35, 36, 37, 38, 39)
        ]

    @virtual
    async def test_one_bad_item_does_not_affect_the_others(self) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(spec(max_handoff_time=30.0))
        flow = await one.join("orders", "first", lease=60)
        second = await one.join("orders", "second", lease=60)
        await one.release("orders", flow, 1, [ReleaseItem(3, 1)])
        items = [CommitItem(n, e, "5") for n, e in ((0, 1), (3, 1), (1, 2), (9, 1))]
        done = await one.commit("orders", flow, 2, items)
        assert [(result.outcome, result.current_epoch) for result in done.results] == [
            ("ok", None),
            ("stale_epoch", 2),
            ("not_owner", None),
            ("no_such_partition", None),
        ]
        done = await one.release(
            "orders", flow, 3, [ReleaseItem(0, 1, "7"), ReleaseItem(2, 1, "8")]
        )
        assert [result.outcome for result in done.results] == ["not_revoking", "ok"]
        assert done.update is not None
        assert {p.partition: p.position for p in done.update.partitions} == {0: "5", 1: None}
        assert (await one.update("orders", second)).partitions[0].position == "8"

    @virtual
    async def test_naming_a_partition_twice_is_refused(self) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(dynamic())
        flow = await one.join("orders", "first")
        for call in (
            one.commit("orders", flow, 1, [CommitItem(0, 1, "5")] * 2),
            one.release("orders", flow, 1, [ReleaseItem(0, 1, "5")] * 2),
            one.children("orders", flow, 1, [ChildrenItem(0, 1, position="5")] * 2),
            one.ready("orders", flow, [ReadyItem(0, 1)] * 2),
        ):
            with pytest.raises(Invalid, match="more than once"):
                await call
        [seen] = (await one.update("orders", flow)).partitions
        assert seen.position is None

    @virtual
    async def test_a_bind_that_cannot_be_answered_leaves_no_flow(self) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(spec())
        one.logs.error = Unavailable("the log's database is away")
        with pytest.raises(Unavailable):
            await one.join("orders", "first")
        assert (await one.queue("orders")).flow_count == 0

    @virtual
    async def test_unbind_can_be_repeated_however_the_flow_left(self) -> None:
        world = World()
        one, two = await world.replica(), await world.replica()
        await one.create_queue(spec())
        flow = await one.join("orders", "first", lease=3)
        await asyncio.sleep(5)
        for service in (one, two, one):
            await service.unbind("orders", flow)
        with pytest.raises(FlowNotFound):
            await two.unbind("orders", "nobody")

    @virtual
    async def test_a_flow_that_left_another_queue_is_unknown_here(self) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(spec())
        await one.create_queue(spec("other"))
        flow = await one.join("orders", "first", lease=60)
        await one.unbind("orders", flow)
        for call in (one.unbind("other", flow), one.drain("other", flow, None, anybody())):
            with pytest.raises(FlowNotFound):
                await call

    @virtual
    async def test_every_caller_of_a_failed_batch_is_told_and_the_next_batch_is_sent(self) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(spec())
        flow = await one.join("orders", "first", lease=60)
        one.net.fail("renew", Fault.LOST)
        answers = await asyncio.gather(
            *(one.heartbeat("orders", flow) for _ in range(5)), return_exceptions=True
        )
        assert any(isinstance(answer, Unavailable) for answer in answers)
        await one.heartbeat("orders", flow)
