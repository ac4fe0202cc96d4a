"""The calls of administrators."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace

from broker.calls import readers, views
from broker.calls.monitoring import EVENTS_AT_ONCE
from broker.calls.upkeep import OUTSIDE_AT_ONCE
from broker.core.access import RIGHTS, Caller, Role
from broker.core.commands import CommitItem, ReleaseItem
from broker.core.errors import (
    BrokerError,
    Forbidden,
    Invalid,
    QueueExists,
    QueueInUse,
    QueueNotFound,
    Unavailable,
)
from broker.logs.ports import Positions, Span
from broker.store.ports import Stored
from broker.testing.loop import settle, virtual
from broker.testing.store import Fault
from counterpoise import wire
from tests.broker.shell import Service, World, dynamic, spec


class TestDeleting:
    @virtual
    async def test_flows_keep_a_queue_unless_forced(self) -> None:
        world = World()
        one, two = await world.replica(), await world.replica()
        await one.create_queue(spec())
        flow = await one.join("orders", "first")
        await two.update("orders", flow)
        with pytest.raises(QueueInUse):
            await two.delete_queue("orders", force=False)
        assert not any(told[0] == "drop" for told in two.logs.told)
        await two.delete_queue("orders", force=True)
        assert ("drop", "builtin:orders") in two.logs.told
        for service in (one, two):
            for call in (service.queue("orders"), service.heartbeat("orders", flow)):
                with pytest.raises(QueueNotFound):
                    await call
        with pytest.raises(QueueNotFound):
            await one.delete_queue("orders", force=True)

    @virtual
    async def test_a_log_that_others_read_stays(self) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(spec())
        await one.create_queue(spec("copy", None, log="builtin:orders"))
        with pytest.raises(QueueInUse):
            await one.delete_queue("orders", force=True)
        await one.delete_queue("copy", force=False)
        await one.delete_queue("orders", force=False)
        dropped = [told for told in one.logs.told if told[0] == "drop"]
        assert dropped == [("drop", "builtin:orders")]

    @virtual
    async def test_a_log_that_hangs_keeps_no_other_from_its_upkeep(self) -> None:
        world = World()
        one = await world.replica()
        logs = [f"redis://host/0/q{n}" for n in range(OUTSIDE_AT_ONCE)]
        for n, log in enumerate(logs):
            await one.create_queue(replace(spec(f"q{n}"), log=log))
        maintain, others = one.logs.maintain, asyncio.Semaphore(0)

        async def hanging(log: str, *told: Any) -> None:
            if log == logs[0]:
                for _ in logs[1:]:
                    await others.acquire()
            await maintain(log, *told)
            others.release()

        one.logs.maintain = hanging  # type: ignore[assignment,method-assign]
        async with asyncio.timeout(240):
            await one.keep_logs()
        maintained = [log for what, log, *_ in one.logs.told if what == "maintain"]
        assert maintained == [*logs[1:], logs[0]]

    @virtual
    async def test_a_log_is_not_made_again_for_a_queue_that_is_deleted_meanwhile(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("broker.calls.upkeep.OUTSIDE_AT_ONCE", 1)
        world = World()
        one, two = await world.replica(), await world.replica()
        logs = {name: f"redis://host/0/{name}" for name in ("first", "second", "third")}
        for name, log in logs.items():
            await one.create_queue(replace(spec(name), log=log))
        maintain = two.logs.maintain

        async def slowly(log: str, *told: Any) -> None:
            # All three were known to exist when the upkeep began.
            if log == logs["first"]:
                await one.delete_queue("first", force=False)
                await one.delete_queue("second", force=False)
            await maintain(log, *told)

        two.logs.maintain = slowly  # type: ignore[assignment,method-assign]
        await two.keep_logs()
        assert [(what, log) for what, log, *_ in two.logs.told] == [
            ("maintain", logs["first"]),
            ("drop", logs["first"]),
            ("maintain", logs["third"]),
        ]

    @pytest.mark.parametrize("error", [RuntimeError, asyncio.CancelledError])
    @virtual
    async def test_a_queue_whose_log_cannot_be_created_is_not_created(
        self, error: type[BaseException]
    ) -> None:
        world = World()
        one = await world.replica()

        async def fails(*told: Any) -> None:
            raise error

        one.logs.ensure = fails  # type: ignore[assignment,method-assign]
        with pytest.raises(error):
            await one.create_queue(spec())
        with pytest.raises(QueueNotFound):
            await one.queue("orders")

    @virtual
    async def test_a_queue_whose_log_is_away_stays_for_a_repeated_call(self) -> None:
        """That call may have been answered before the first one knows that it has failed."""
        world = World()
        one = await world.replica()
        ensure, gate = one.logs.ensure, asyncio.Event()

        async def fails(*told: Any) -> None:
            await gate.wait()
            raise Unavailable("away")

        one.logs.ensure = fails  # type: ignore[assignment,method-assign]
        first = asyncio.create_task(one.create_queue(spec()))
        await settle()
        one.logs.ensure = ensure  # type: ignore[method-assign]
        made = await one.create_queue(spec())
        gate.set()
        with pytest.raises(Unavailable):
            await first
        assert await one.queue("orders") == made

    @pytest.mark.parametrize("used", ["bound", "changed", "followed"])
    @virtual
    async def test_a_queue_that_is_used_stays_if_a_call_that_created_it_fails(
        self, used: str
    ) -> None:
        world = World()
        one = await world.replica()
        ensure = one.logs.ensure

        async def fails(*told: Any) -> None:
            one.logs.ensure = ensure  # type: ignore[method-assign]
            await one.create_queue(spec())
            if used == "bound":
                await one.join("orders", "first")
            elif used == "changed":
                await one.change_queue("orders", {"rebalance_delay": 1.0}, False)
            else:
                await one.create_queue(spec("copy", None, log="builtin:orders"))
            raise RuntimeError

        one.logs.ensure = fails  # type: ignore[assignment,method-assign]
        with pytest.raises(RuntimeError):
            await one.create_queue(spec())
        assert (await one.queue("orders")).name == "orders"
        assert not any(told[0] == "drop" for told in one.logs.told)

    @virtual
    async def test_a_new_queue_is_at_hand_where_it_was_made(self) -> None:
        world = World()
        one, two = await world.replica(), await world.replica()
        await one.create_queue(spec())
        await one.join("orders", "first", lease=60)
        assert not one.net.calls["load"]
        await two.join("orders", "second", lease=60)
        assert two.net.calls["load"] == 1
        await one.queue("orders")
        world.check("orders")

    @virtual
    async def test_names_are_taken_once(self) -> None:
        world = World()
        one, two = await world.replica(), await world.replica()
        made = await asyncio.gather(
            *(
                service.create_queue(spec(partitions=4 + number))
                for number, service in enumerate((one, two) * 3)
            ),
            return_exceptions=True,
        )
        assert sum(isinstance(queue, wire.Queue) for queue in made) == 1
        assert sum(isinstance(queue, QueueExists) for queue in made) == 5

    @pytest.mark.parametrize(
        ("given", "others"),
        [
            (
                spec(),
                [
                    spec(partitions=5),
                    spec(ordered_resize=True),
                    spec(max_handoff_time=9),
                    spec(retention_seconds=60),
                    spec(log="stream://elsewhere"),
                    dynamic(),
                ],
            ),
            (dynamic(), [dynamic("orders", "a", "b"), spec()]),
            (
                spec("orders", None, log="builtin:other", positions={"1": "0"}),
                [spec("orders", None, log="builtin:other", positions={"0": "0"})],
            ),
        ],
        ids=["fixed", "dynamic", "with positions"],
    )
    @virtual
    async def test_a_call_whose_answer_was_lost_may_be_repeated(
        self, given: wire.QueueCreate, others: list[wire.QueueCreate]
    ) -> None:
        world = World()
        one, two = await world.replica(), await world.replica()
        await one.create_queue(spec("other"))
        made = await one.create_queue(given)
        assert await two.create_queue(given) == made
        again = await asyncio.gather(*(two.create_queue(given) for _ in range(2)))
        assert {one.id for one in again} == {made.id}
        for other in others:
            with pytest.raises(QueueExists, match="with other settings"):
                await two.create_queue(other)
        await one.change_queue("orders", {"rebalance_delay": 77}, False)
        with pytest.raises(QueueExists):
            await two.create_queue(given)
        world.check("orders")


class TestResizing:
    @virtual
    async def test_the_log_and_its_readers_follow(self) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(spec())
        await one.create_queue(spec("copy", None, log="builtin:orders"))
        assert (await one.change_queue("orders", {"partition_count": 6}, False)).revision
        assert ("set_partition_count", "builtin:orders", 6, []) in one.logs.told
        assert (await one.queue("copy")).partition_count == 6
        await one.change_queue("orders", {"partition_count": 3}, True)
        assert ("set_partition_count", "builtin:orders", 3, [3, 4, 5]) in one.logs.told
        assert (await one.queue("copy")).operational_partition_count == 3
        with pytest.raises(Invalid):
            await one.change_queue("copy", {"partition_count": 9}, False)

    @virtual
    async def test_the_last_of_two_resizes_leads_the_readers(self) -> None:
        """Whichever replica comes to them last."""
        world = World()
        one, two = await world.replica(), await world.replica()
        await one.create_queue(spec())
        await one.create_queue(spec("copy", None, log="builtin:orders"))
        met, gate = asyncio.Event(), asyncio.Event()

        async def slowly(method: str) -> None:
            # It lists the readers of the log before it resizes the queue, and after that.
            if method == "list" and one.net.calls[method] == lists + 2:
                met.set()
                await gate.wait()

        lists, one.net.before = one.net.calls["list"], slowly
        resizing = asyncio.create_task(one.change_queue("orders", {"partition_count": 6}, False))
        await met.wait()
        await two.change_queue("orders", {"partition_count": 5}, False)
        assert (await two.queue("copy")).partition_count == 5
        gate.set()
        await resizing
        assert (await two.queue("copy")).partition_count == 5

    @virtual
    async def test_only_a_resize_discards(self) -> None:
        """Another queue may still be draining partitions that this one has finished."""
        world = World()
        one = await world.replica()
        await one.create_queue(spec(partitions=2))
        await one.create_queue(spec("copy", None, log="builtin:orders"))
        await one.change_queue("orders", {"partition_count": 1}, False)
        told = len(one.logs.told)
        with pytest.raises(Invalid, match="Only a resize discards"):
            await one.change_queue("orders", {"rebalance_delay": 1.0}, True)
        assert len(one.logs.told) == told
        assert (await one.queue("copy")).operational_partition_count == 2
        await one.change_queue("orders", {"partition_count": 1}, True)
        assert (await one.queue("copy")).operational_partition_count == 1

    @virtual
    async def test_a_queue_without_a_log_of_its_own_lends_none(self) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(spec())
        await one.create_queue(spec("copy", None, log="builtin:orders"))
        await one.create_queue(wire.QueueCreate("away", 2, log="other://elsewhere"))
        for source in ("copy", "away"):
            with pytest.raises(Invalid):
                await one.create_queue(wire.QueueCreate("second", log=f"builtin:{source}"))

    @virtual
    async def test_the_upkeep_completes_what_a_crash_interrupted(self) -> None:
        world = World()
        one, two = await world.replica(), await world.replica()
        await one.create_queue(spec())
        await one.create_queue(spec("copy", None, log="builtin:orders"))

        async def dies(method: str) -> None:
            # It lists the readers of the log before it resizes the queue, and after that.
            if method == "list" and one.net.calls[method] == lists + 2:
                world.kill(one)

        lists, one.net.before = one.net.calls["list"], dies
        with suppress(BrokerError):
            await one.change_queue("orders", {"partition_count": 6}, False)
        assert (await two.queue("orders")).partition_count == 6
        assert (await two.queue("copy")).partition_count == 4
        await two.keep_logs()
        assert (await two.queue("copy")).partition_count == 6
        told = [told[1:3] for told in two.logs.told if told[0] == "maintain"]
        assert told == [("builtin:orders", 6)]

    @pytest.mark.parametrize("count", [4, 5])
    @virtual
    async def test_the_upkeep_reaches_every_log_however_many_queues_there_are(
        self, count: int
    ) -> None:
        world = World()
        one = await world.replica()
        for n in range(count):
            await one.create_queue(spec(f"q{n}"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(readers, "AT_ONCE", 2)
            await one.keep_logs()
        told = [told[1] for told in one.logs.told if told[0] == "maintain"]
        assert told == [f"builtin:q{n}" for n in range(count)]

    @virtual
    async def test_processed_messages_of_every_partition_are_trimmed(self) -> None:
        """Also of removed partitions, and of the last of several that retire."""
        world = World()
        one = await world.replica()
        await one.create_queue(spec())
        flow = await one.join("orders", "first", lease=60)
        items = [CommitItem(n, 1, f"{n}1") for n in range(1, 4)]
        await one.commit("orders", flow, 1, [CommitItem(0, 1, "1"), *items])
        await one.change_queue("orders", {"partition_count": 1}, False)
        await one.release("orders", flow, 2, [ReleaseItem(n, 1, None, True) for n in (1, 2)])
        await one.keep_logs()
        assert one.logs.told[-1] == (
            "maintain",
            "builtin:orders",
            1,
            [{0: "1", 1: "11", 2: "21", 3: "31"}],
        )

    @virtual
    async def test_a_queue_deleted_during_a_resize_does_not_follow_it(self) -> None:
        world = World()
        one, two = await world.replica(), await world.replica()
        await one.create_queue(spec())
        await one.create_queue(spec("copy", None, log="builtin:orders"))
        one.replica.forget_name("copy")
        gate = one.net.hold("find")
        resizing = asyncio.ensure_future(one.change_queue("orders", {"partition_count": 6}, False))
        await one.net.met("find")
        await two.delete_queue("copy", force=False)
        gate.set()
        assert (await resizing).partition_count == 6


class TestLogsOfOthers:
    """A log in Redis belongs to the queue that was created first, whatever its name is."""

    LOG = "redis://host/0/team-a.stream"

    @virtual
    async def test_a_key_makes_no_queue_on_a_log_that_another_teams_queue_owns(self) -> None:
        one = await World().replica()
        await one.create_queue(replace(spec("team-b.orders"), log=self.LOG))
        await asyncio.sleep(1)
        with pytest.raises(Forbidden):
            await one.create_queue(replace(spec("team-a.copy"), log=self.LOG), holder("team-a.*"))
        await one.create_queue(replace(spec("team-a.copy"), log=self.LOG), holder("*"))
        with pytest.raises(Forbidden):
            await one.log_access("team-a.copy", "publish", holder("team-a.*"))

    @virtual
    async def test_a_key_makes_further_queues_on_a_log_that_another_team_only_reads(self) -> None:
        one = await World().replica()
        await one.create_queue(replace(spec("team-a.orders"), log=self.LOG), holder("team-a.*"))
        await asyncio.sleep(1)
        await one.create_queue(replace(spec("team-b.copy"), log=self.LOG))
        await one.create_queue(replace(spec("team-a.copy"), log=self.LOG), holder("team-a.*"))
        await one.log_access("team-a.copy", "publish", holder("team-a.*"))


def holder(*patterns: str) -> Caller:
    """The holder of an administrator's key for these queues."""
    return Caller(RIGHTS[Role.ADMIN], patterns, Role.ADMIN, key_id="0123456789ab")


class TestStart:
    """`start: latest` is resolved when the queue is created, once for all its consumers."""

    @virtual
    async def test_a_log_that_is_made_for_the_queue_is_empty(self) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(spec(start="latest", partitions=2))
        assert await positions(one) == [None, None]

    @virtual
    async def test_messages_published_during_the_creation_of_the_queue_are_read(self) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(spec(partitions=3))
        log = one.logs.the("builtin:orders")
        log.append(0)
        gate = one.net.hold("create")
        late = wire.QueueCreate("late", log="builtin:orders", start="latest")
        creating = asyncio.ensure_future(one.create_queue(late))
        await one.net.met("create")
        log.append(0)
        log.append(1)
        gate.set()
        await creating
        assert await positions(one, "late") == ["1", None, None]
        log.append(0)
        assert await positions(one, "late") == ["1", None, None]

    @virtual
    async def test_a_queue_on_an_existing_log_begins_at_given_positions(self) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(spec(partitions=3))
        log = one.logs.the("builtin:orders")
        for partition in (0, 0, 1, 2):
            log.append(partition)
        late = spec("late", None, log="builtin:orders", positions={"0": "1", "2": None})
        admin = holder("*")
        await one.create_queue(late, admin)
        assert await positions(one, "late") == ["1", None, None]
        await one.create_queue(replace(late, name="later", start="latest"))
        assert await positions(one, "later") == ["1", "1", "1"]
        (act,) = (await one.calls.callers.audit(admin, 10, None, "late")).items
        assert act.after is not None
        assert act.after["positions"] == {"0": "1"}

    @virtual
    async def test_positions_that_a_new_queue_cannot_have_are_refused(self) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(spec(partitions=2))
        one.logs.the("builtin:orders").append(0)
        for given, why in (
            ({"0": "2"}, "ends at 1, and 2 is beyond"),
            ({"0": "x"}, "is not a position"),
            ({"2": "0"}, "has no partition 2"),
        ):
            late = wire.QueueCreate("late", log="builtin:orders", positions=given)
            with pytest.raises(Invalid, match=why):
                await one.create_queue(late)
        for new in (wire.QueueCreate("new", 1), wire.QueueCreate("new", partitioning="dynamic")):
            with pytest.raises(Invalid, match="leave them out"):
                await one.create_queue(replace(new, positions={"0": "0"}))
        assert [queue.name for queue in (await one.list_queues(9, None)).items] == ["orders"]

    @virtual
    async def test_a_queue_on_a_log_that_was_shrunk_reads_what_it_still_holds(self) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(spec(partitions=4))
        log = one.logs.the("builtin:orders")
        for partition in (0, 2):
            log.append(partition)
        await one.change_queue("orders", {"partition_count": 1}, False)
        late = spec("late", None, log="builtin:orders")
        made = await one.create_queue(late)
        assert (made.partition_count, made.operational_partition_count) == (1, 3)
        flow = await one.join("late", "first", lease=60)
        seen = (await one.update("late", flow)).partitions
        assert [(each.state, each.position) for each in seen] == [
            ("owned", None),
            ("retiring", None),
            ("retiring", None),
        ]
        ended = [ReleaseItem(number, 1, at, finished=True) for number, at in ((1, "0"), (2, "1"))]
        done = await one.release("late", flow, 1, ended)
        assert [result.outcome for result in done.results] == ["ok", "ok"]
        assert (await one.queue("late")).operational_partition_count == 1
        world.check("late")
        await one.create_queue(replace(late, name="later", start="latest"))
        assert await positions(one, "later") == ["1", "0", "1"]
        one.logs.error = Unavailable("The log does not answer right now.")
        with pytest.raises(Unavailable, match="does not say what it holds"):
            await one.create_queue(replace(late, name="last"))

    @virtual
    async def test_no_queue_is_created_while_the_log_does_not_answer(self) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(spec(partitions=3))
        late = wire.QueueCreate("late", log="builtin:orders", start="latest")
        for log in ("builtin:orders", "kafka://broker:9092/orders"):
            one.logs.error = Unavailable("The log does not answer right now.")
            with pytest.raises(Unavailable, match="does not answer"):
                await one.create_queue(replace(late, log=log))
            with pytest.raises(QueueNotFound):
                await one.queue("late")
        with pytest.raises(Unavailable):
            await one.change_queue("orders", {"start": "latest"}, False)
        assert (await one.queue("orders")).start == "earliest"
        one.logs.error = None
        await one.create_queue(late)

    @virtual
    async def test_the_end_of_a_log_of_an_unknown_kind_is_unknown(self) -> None:
        world = World()
        one = await world.replica()
        away = wire.QueueCreate("away", 2, log="other://elsewhere", start="latest")
        with pytest.raises(Invalid, match="set the positions"):
            await one.create_queue(away)
        with pytest.raises(Invalid, match="set the positions"):
            await one.create_queue(dynamic(start="latest"))
        await one.create_queue(replace(away, start="earliest"))
        with pytest.raises(Invalid, match="set the positions"):
            await one.change_queue("away", {"start": "latest"}, False)

    @virtual
    async def test_an_owner_that_leaves_before_its_first_commit_keeps_the_start(self) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(spec(partitions=1))
        one.logs.the("builtin:orders").append(0)
        await one.create_queue(
            wire.QueueCreate("late", log="builtin:orders", rebalance_delay=0, start="latest")
        )
        for who in ("first", "second"):
            flow = await one.join("late", who, lease=60)
            one.logs.the("builtin:orders").append(0)
            (seen,) = (await one.update("late", flow)).partitions
            assert seen.position == "1"
            await one.unbind("late", flow)

    @virtual
    async def test_a_later_change_sets_missing_positions_to_the_end(self) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(spec(partitions=3))
        flow = await one.join("orders", "first", lease=60)
        log = one.logs.the("builtin:orders")
        for number in (0, 0, 1):
            log.append(number)
        await one.commit("orders", flow, 1, [CommitItem(0, 1, "1")])
        await one.change_queue("orders", {"start": "latest", "partition_count": 4}, False)
        log.append(1)
        assert await positions(one) == ["1", "1", None, None]
        await one.change_queue("orders", {"start": "latest"}, False)
        assert await positions(one) == ["1", "1", None, None]

    @virtual
    async def test_a_position_reset_to_null_means_the_present_end(self) -> None:
        """Null in a call that sets positions means the present end, too."""
        world = World()
        one = await world.replica()
        await one.create_queue(spec(partitions=2, start="latest"))
        log = one.logs.the("builtin:orders")
        log.append(1)
        await one.set_positions("orders", {0: None, 1: None})
        log.append(1)
        assert await positions(one) == ["0", "1"]
        one.logs.by_name.clear()
        await one.set_positions("orders", "earliest")
        assert await positions(one) == ["0", "0"]

    @virtual
    async def test_partitions_added_later_start_at_the_earliest_position(self) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(spec(partitions=2, start="latest"))
        one.logs.the("builtin:orders").append(2)
        await one.change_queue("orders", {"partition_count": 3}, False)
        assert await positions(one) == [None, None, None]

    @virtual
    async def test_numbers_used_again_continue(self) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(spec(partitions=4, start="latest"))
        flow = await one.join("orders", "first", lease=60)
        await one.commit("orders", flow, 1, [CommitItem(2, 1, "7")])
        await one.change_queue("orders", {"partition_count": 2}, True)
        await one.change_queue("orders", {"partition_count": 4}, False)
        assert await positions(one) == [None, None, "7", None]


async def positions(one: Service, name: str = "orders") -> list[str | None]:
    return [item.position for item in (await one.partitions(name, 9, None)).items]


class TestEvents:
    @virtual
    async def test_every_revision_once_and_in_order(self) -> None:
        world = World()
        one, two = await world.replica(), await world.replica()
        await one.create_queue(spec())
        seen = []

        async def follow() -> None:
            async for event in two.events("orders", 0):
                seen.append(event.revision)

        following = asyncio.ensure_future(follow())
        for n in range(5):
            await one.join("orders", str(n), lease=60)
            await settle()
        assert seen == list(range(1, (await one.queue("orders")).revision + 1))
        following.cancel()

    @virtual
    async def test_a_follower_that_missed_many_events_reads_them_a_few_at_a_time(self) -> None:
        world = World()
        one, two = await world.replica(), await world.replica()
        await one.create_queue(spec())
        for n in range(EVENTS_AT_ONCE):
            await one.join("orders", str(n), lease=60)
        last = (await one.queue("orders")).revision
        assert last > EVENTS_AT_ONCE
        seen = []
        async for event in two.events("orders", 0):
            seen.append(event.revision)
            if event.revision == last:
                break
        assert seen == list(range(1, last + 1))

    @virtual
    async def test_an_outage_of_the_store_loses_none(self) -> None:
        world = World()
        one, two = await world.replica(), await world.replica()
        await one.create_queue(spec())
        events = two.events("orders", None)
        told = asyncio.ensure_future(anext(events))
        await settle()
        two.net.fail("changes_after", Fault.LOST, times=3)
        await one.join("orders", "first", lease=60)
        event = await told
        assert event.changes
        # No more events follow; the events of the outage arrive nevertheless.
        rest = (await one.queue("orders")).revision - event.revision
        for _ in range(rest):
            await anext(events)

    @virtual
    async def test_a_change_is_read_once_for_all_who_follow(self) -> None:
        """On the replica that commits, and on another."""
        world = World()
        one, two = await world.replica(), await world.replica()
        await one.create_queue(spec(rebalance_delay=100.0))
        seen: list[list[views.EventView]] = []

        async def follow(service: Service) -> None:
            got: list[views.EventView] = []
            seen.append(got)
            async for event in service.events("orders", None):
                got.append(event)

        followers = [asyncio.ensure_future(follow(each)) for each in (one, two) for _ in range(100)]
        await settle()
        first = (await one.queue("orders")).revision
        changes = 5
        for n in range(changes):
            before = [each.net.calls["changes_after"] for each in (one, two)]
            await one.join("orders", str(n), lease=60)
            await settle()
            after = [each.net.calls["changes_after"] for each in (one, two)]
            assert [now - then for now, then in zip(after, before, strict=True)] == [1, 1]
        expected = list(range(first + 1, first + 1 + changes))
        assert [[event.revision for event in got] for got in seen] == [expected] * 200
        # Those of one replica have the very same, to be rendered once.
        assert len({id(got[0]) for got in seen}) == 2
        for each in followers:
            each.cancel()

    @virtual
    async def test_many_who_have_missed_events_take_one_connection(self) -> None:
        """And those who have missed nothing do not wait for them."""
        world = World()
        one = await world.replica()
        await one.create_queue(spec(rebalance_delay=100.0))
        for n in range(30):
            await one.join("orders", str(n), lease=60)
        at_once = most = 0
        held = asyncio.Event()
        changes_after = one.database.changes_after

        async def counted(queue_id: str, revision: int, limit: int) -> Any:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            try:
                if revision < last:
                    await held.wait()
                return await changes_after(queue_id, revision, limit)
            finally:
                at_once -= 1

        last = (await one.queue("orders")).revision
        following = asyncio.ensure_future(anext(one.events("orders", None)))
        await settle()
        one.database.changes_after = counted  # type: ignore[method-assign]
        late = [
            asyncio.ensure_future(anext(one.events("orders", revision)))
            for revision in range(25)
            for _ in range(4)
        ]
        await settle()
        assert at_once == 1
        await one.join("orders", "news", lease=60)
        assert (await following).revision == last + 1
        held.set()
        got = [(await each).revision for each in late]
        assert got == [revision + 1 for revision in range(25) for _ in range(4)]
        assert most == 2

    @virtual
    async def test_what_is_not_stored_any_more_is_not_passed_over(self) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(spec())
        await one.join("orders", "first", lease=60)
        world.database.purge(0.0, world.now + 1)
        with pytest.raises(Invalid, match="start from now on"):
            await anext(one.events("orders", 0))

    @virtual
    async def test_who_has_seen_more_than_there_is_followed_another_queue(self) -> None:
        """A queue of the same name, or the same before a restore. Else it would get nothing until
        this one has as many revisions."""
        world = World()
        one = await world.replica()
        await one.create_queue(spec())
        last = (await one.queue("orders")).revision
        with pytest.raises(Invalid, match="start from now on"):
            await anext(one.events("orders", last + 1))
        following = asyncio.ensure_future(anext(one.events("orders", last)))
        await settle()
        await one.join("orders", "first", lease=60)
        assert (await following).revision == last + 1


class TestPositions:
    @virtual
    async def test_positions_are_set_under_new_epochs(self) -> None:
        world = World()
        one, two = await world.replica(), await world.replica()
        await one.create_queue(spec())
        flow = await one.join("orders", "first", lease=60)
        await two.commit("orders", flow, 9, [CommitItem(0, 1, "50")])
        done = await one.set_positions("orders", {0: "10", 2: None})
        assert [(p.partition, p.epoch, p.position) for p in done.partitions] == [
            (0, 2, "10"),
            (2, 2, None),
        ]
        late = await two.commit("orders", flow, 10, [CommitItem(0, 1, "60")])
        assert late.results[0].outcome == "stale_epoch"
        assert late.update is not None
        assert late.update.partitions[0].position == "10"

    @virtual
    async def test_a_position_that_the_log_has_not_reached_is_refused(self) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(spec())
        one.logs.the("builtin:orders").ends = {0: 10, 1: 9}
        with pytest.raises(Invalid, match="partition 1 ends at 9"):
            await one.set_positions("orders", {0: "10", 1: "10"})
        assert (await one.queue("orders")).revision == 1
        # If the log does not say, the administrator's position is accepted.
        await one.set_positions("orders", {0: "10", 1: None, 2: "77"})

    @virtual
    async def test_a_dry_run_counts_nothing_of_which_the_log_says_nothing(self) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(spec(partitions=2))

        async def spans(log: str, positions: Positions) -> Mapping[int, Span]:
            """Of one that it cannot have, and not of the other one."""
            return {0: Span("0", "9", None)}

        one.logs.spans = spans  # type: ignore[method-assign]
        done = await one.calls.positions.set("orders", "earliest", dry_run=True)
        assert [(p.read_again, p.skipped) for p in done.partitions] == [(None, None)] * 2

    @virtual
    async def test_a_partition_removed_meanwhile_keeps_its_position(self) -> None:
        world = World()
        one, two = await world.replica(), await world.replica()
        await one.create_queue(spec())
        flow = await one.join("orders", "first", lease=60)
        await two.commit("orders", flow, 1, [CommitItem(3, 1, "50")])
        gate = one.net.hold("commit")
        setting = asyncio.create_task(one.set_positions("orders", {0: "10", 3: "10"}))
        await one.net.met("commit")
        await two.change_queue("orders", {"partition_count": 3}, discard=True)
        gate.set()
        done = await setting
        assert [(p.partition, p.epoch) for p in done.partitions] == [(0, 2)]
        queue_id, _ = world.stored("orders")
        assert world.database.positions(queue_id, [0, 3]) == {
            0: Stored(2, "10"),
            3: Stored(1, "50"),
        }

    @pytest.mark.parametrize("position", ["", "nonsense", "-1", "1.5", "1" * 30, "١"])
    @virtual
    async def test_nonsense_is_refused(self, position: str) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(spec())
        with pytest.raises(Invalid):
            await one.set_positions("orders", {0: position})
        with pytest.raises(Invalid):
            await one.set_positions("orders", {7: "1"})
        assert (await one.queue("orders")).revision == 1


class TestPages:
    @virtual
    async def test_pages_follow_one_another(self) -> None:
        world = World()
        one = await world.replica()
        for name in "cab":
            await one.create_queue(spec(name))
        flows = [await one.join("a", str(n), lease=60) for n in range(5)]
        assert [q.name for q in (await one.list_queues(10, None)).items] == ["a", "b", "c"]
        found: list[str] = []
        cursor = None
        while True:
            page = await one.flows("a", 2, cursor)
            found += [flow.flow_id for flow in page.items]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert found == flows
        some = await one.partitions("a", 3, None)
        assert [p.partition for p in some.items] == [0, 1, 2]
        rest = await one.partitions("a", 3, some.next_cursor)
        assert [p.partition for p in rest.items] == [3]
        newest = await one.rebalances("a", 1, None)
        older = await one.rebalances("a", 50, newest.next_cursor)
        ids = [entry.id for entry in (*newest.items, *older.items)]
        assert ids == sorted(ids, reverse=True)

    @pytest.mark.parametrize("cursor", ["nonsense", "-1", "9" * 30, "1_0", " 1", "١"])
    @virtual
    async def test_a_cursor_that_no_page_had_is_refused(self, cursor: str) -> None:
        world = World()
        one = await world.replica()
        await one.create_queue(spec())
        for call in (one.flows, one.partitions, one.rebalances):
            with pytest.raises(Invalid):
                await call("orders", 2, cursor)


@virtual
async def test_aligned_queues_have_no_more_partitions_than_others() -> None:
    """At their creation, and when one of their logs is resized."""
    one = await World().replica()
    for name in "abc":
        await one.create_queue(spec(name, 2048))
    with pytest.raises(Invalid, match="6144") as refused:
        await one.create_queue(spec("all", None, log="builtin:a+b+c"))
    assert [field for field, _ in refused.value.errors] == ["align_with"]
    await one.create_queue(spec("both", None, log="builtin:a+b"))
    with pytest.raises(Invalid, match="The queue 'both' reads this log"):
        await one.change_queue("b", {"partition_count": 2049}, False)
    caller = Caller(RIGHTS[Role.ADMIN], ("b",), Role.ADMIN, key_id="key", key_name="team")
    with pytest.raises(Invalid, match="Another queue reads this log"):
        await one.change_queue("b", {"partition_count": 2049}, False, caller)
    await one.change_queue("c", {"partition_count": 4096}, False)
    await one.change_queue("b", {"partition_count": 2047}, False)
    assert [(await one.queue(name)).partition_count for name in "abc"] == [2048, 2047, 4096]
