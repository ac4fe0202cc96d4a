"""Dynamic queues through the calls (the contract, *Lineage*), on replicas in a virtual world."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs

from broker.core.commands import ChildrenItem, CommitItem, NewChild, ReleaseItem
from broker.core.errors import ChildrenRefused, Invalid, QueueExists
from broker.store.ports import QueueDamaged
from broker.testing.loop import virtual
from broker.testing.store import Fault
from counterpoise import wire
from counterpoise.plain import dot
from tests.broker.shell import Service, World, dynamic, spec, unreadable


async def at_work(world: World, *keys: str) -> tuple[Service, str]:
    """A dynamic queue with these roots, and a flow that owns them."""
    one = await world.replica()
    await one.create_queue(dynamic("orders", *keys))
    return one, await one.join("orders", "first", lease=60)


def child(key: str, *parents: str, **more: object) -> NewChild:
    return NewChild(key, parents, **more)  # type: ignore[arg-type]


def item(partition: int, *children: NewChild, epoch: int = 1, **more: object) -> ChildrenItem:
    return ChildrenItem(partition, epoch, children=children, **more)  # type: ignore[arg-type]


async def report(
    one: Service, flow: str, *items: ChildrenItem, seq: int | None = None
) -> list[str]:
    done = await one.children("orders", flow, seq, items)
    return [result.outcome for result in done.results]


async def shown(one: Service) -> dict[str, tuple[int, str, str | None]]:
    """By key: the number, the state and the position of each partition."""
    page = await one.partitions("orders", 100, None)
    return {str(p.key): (p.partition, p.state, p.position) for p in page.items}


@virtual
async def test_the_position_of_a_report_of_known_children_is_stored() -> None:
    """Found by the simulation: it was acknowledged, and the next owner began before it."""
    world = World()
    one, flow = await at_work(world)
    assert await one.add_children("orders", [child("b", "a"), child("c", "a")]) == "ok"
    known = child("b", "a"), child("c", "a")
    assert await report(one, flow, item(0, *known, position="41"), seq=1) == ["ok"]
    assert (await shown(one))["a"] == (0, "owned", "41")
    assert await report(one, flow, item(0, *known, position="40"), seq=1) == ["ok"]
    assert (await shown(one))["a"] == (0, "owned", "41")
    assert await report(one, flow, item(0, *known, position="50", epoch=0), seq=2) == [
        "stale_epoch"
    ]
    other = await world.replica()
    assert await report(other, flow, item(0, position="42"), seq=2) == ["ok"]
    assert (await shown(one))["a"] == (0, "owned", "42")
    world.check("orders")


@virtual
async def test_a_split_is_one_call() -> None:
    world = World()
    one, flow = await at_work(world)
    view = (await one.update("orders", flow)).partitions
    assert [(p.partition, p.key, p.parents) for p in view] == [(0, "a", ())]
    split = item(0, child("b", "a", position="7"), child("c", "a"), position="41", finished=True)
    assert await report(one, flow, split, seq=1) == ["ok"]
    assert await shown(one) == {
        "a": (0, "finished", "41"),
        "b": (1, "owned", "7"),
        "c": (2, "owned", None),
    }
    page = await one.partitions("orders", 100, None)
    assert [(p.parents, p.children) for p in page.items] == [
        ((), ("b", "c")),
        (("a",), ()),
        (("a",), ()),
    ]
    queue = await one.queue("orders")
    assert (queue.partition_count, queue.operational_partition_count) == (2, 3)
    assert (await one.list_queues(9, None)).items[0] == queue
    world.check("orders")


@virtual
async def test_a_child_of_a_merge_waits_for_both_and_is_one() -> None:
    world = World()
    one, flow = await at_work(world, "a", "b")
    merged = child("c", "a", "b")
    assert await report(one, flow, item(0, merged, finished=True)) == ["ok"]
    assert (await shown(one))["c"] == (2, "waiting", None)
    [waiting] = (await one.rebalance_status("orders")).waiting
    assert (waiting.partition, waiting.key, waiting.waits_for) == (2, "c", (1,))
    assert await report(one, flow, item(1, merged, finished=True)) == ["ok"]
    assert (await shown(one))["c"] == (2, "owned", None)
    # Reported and finished again, as after a lost answer.
    assert await report(one, flow, item(1, merged, finished=True)) == ["ok"]
    assert list(await shown(one)) == ["a", "b", "c"]
    assert await report(one, flow, item(2, finished=True)) == ["ok"]
    assert await shown(one) == {}
    assert (await one.queue("orders")).operational_partition_count == 0
    world.check("orders")


@virtual
async def test_another_replica_and_a_restart_see_the_same() -> None:
    world = World()
    one, flow = await at_work(world, "a", "b")
    two = await world.replica()
    await two.queue("orders")
    await report(one, flow, item(0, child("c", "a", "b"), finished=True))
    assert await report(two, flow, item(1, child("d", "b"), child("e", "b"))) == ["ok"]
    world.check("orders")
    three = await world.replica()
    assert await shown(three) == await shown(two) == await shown(one)
    assert await report(three, flow, item(1, finished=True)) == ["ok"]
    assert (await shown(two))["c"][1] == "owned"
    world.check("orders")


@virtual
async def test_a_call_without_an_answer_is_repeated() -> None:
    world = World()
    one, flow = await at_work(world)
    split = item(0, child("b", "a"), position="41", finished=True)
    for fault in (Fault.LOST, Fault.UNKNOWN):
        one.net.fail("commit", fault)
        with pytest.raises(Exception, match="database"):
            await report(one, flow, split, seq=1)
    assert await report(one, flow, split, seq=1) == ["ok"]
    assert await shown(one) == {"a": (0, "finished", "41"), "b": (1, "owned", None)}
    world.check("orders")


@virtual
async def test_a_late_report_counts_but_its_position_does_not() -> None:
    """Nothing else says what it says, so a report that a commit has overtaken is no repetition."""
    world = World()
    one, flow = await at_work(world)
    await one.commit("orders", flow, 5, [CommitItem(0, 1, "50")])
    assert await report(one, flow, item(0, child("b", "a"), position="40"), seq=4) == ["ok"]
    assert await shown(one) == {"a": (0, "owned", "50"), "b": (1, "waiting", None)}
    assert await report(one, flow, item(0, position="60", finished=True), seq=6) == ["ok"]
    assert (await shown(one))["a"] == (0, "finished", "60")


@pytest.mark.parametrize(
    ("second", "stored"), [((5, "50"), "60"), ((7, "70"), "70"), ((None, "70"), "70")]
)
@virtual
async def test_of_two_reports_in_one_transaction_the_later_position_counts(
    second: tuple[int | None, str], stored: str
) -> None:
    world = World()
    one, flow = await at_work(world)
    before = one.net.calls["commit"]
    calls = (
        report(one, flow, item(0, child(key, "a"), position=position), seq=seq)
        for key, (seq, position) in (("b", (6, "60")), ("c", second))
    )
    assert await asyncio.gather(*calls) == [["ok"], ["ok"]]
    assert one.net.calls["commit"] - before == 1
    assert await shown(one) == {
        "a": (0, "owned", stored),
        "b": (1, "waiting", None),
        "c": (2, "waiting", None),
    }
    # The higher `seq` is stored with it.
    assert await report(one, flow, item(0, position="40"), seq=6) == ["ok"]
    assert (await shown(one))["a"] == (0, "owned", stored)


@virtual
async def test_a_release_without_a_position_keeps_that_of_the_report_before_it() -> None:
    world = World()
    one, flow = await at_work(world)
    await one.drain("orders", flow, None)
    before = one.net.calls["commit"]
    calls = (
        one.children("orders", flow, 1, [item(0, child("b", "a"), position="60")]),
        one.release("orders", flow, 2, [ReleaseItem(0, 1, None)]),
    )
    for done in await asyncio.gather(*calls):
        assert [result.outcome for result in done.results] == ["ok"]
    assert one.net.calls["commit"] - before == 1
    assert (await shown(one))["a"] == (0, "unassigned", "60")


@virtual
async def test_a_stale_epoch_records_nothing() -> None:
    world = World()
    one, flow = await at_work(world)
    await one.set_positions("orders", {0: "5"})
    split = item(0, child("b", "a"), position="41", finished=True)
    done = await one.children("orders", flow, 1, [split])
    assert [(r.outcome, r.current_epoch) for r in done.results] == [("stale_epoch", 2)]
    assert await shown(one) == {"a": (0, "owned", "5")}


@virtual
async def test_a_partition_finished_meanwhile_keeps_its_position() -> None:
    """Found by the simulation: it got the position, and kept its epoch."""
    world = World()
    one, flow = await at_work(world, "a", "z")
    two = await world.replica()
    gate = one.net.hold("commit")
    setting = asyncio.create_task(one.set_positions("orders", {0: "5", 1: "5"}))
    await one.net.met("commit")
    split = item(0, child("b", "a"), position="41", finished=True)
    assert await report(two, flow, split, seq=1) == ["ok"]
    gate.set()
    assert [(p.partition, p.epoch) for p in (await setting).partitions] == [(1, 2)]
    assert {key: place[1:] for key, place in (await shown(one)).items()} == {
        "a": ("finished", "41"),
        "z": ("owned", "5"),
        "b": ("owned", None),
    }
    world.check("orders")


@virtual
async def test_positions_pass_over_a_finished_partition_also_if_they_name_it() -> None:
    world = World()
    one, flow = await at_work(world, "a", "z")
    split = item(0, child("b", "a"), position="41", finished=True)
    assert await report(one, flow, split, seq=1) == ["ok"]
    for dry_run in (True, False):
        done = await one.set_positions("orders", {0: "5", 1: "6"}, dry_run=dry_run)
        assert [(p.partition, p.position) for p in done.partitions] == [(1, "6")]
        assert not (await one.set_positions("orders", {0: "5"}, dry_run=dry_run)).partitions
    assert (await shown(one))["a"] == (0, "finished", "41")
    with pytest.raises(Invalid, match="no partition 9"):
        await one.set_positions("orders", {0: "5", 9: "5"})


@virtual
async def test_a_fixed_queue_has_no_children_and_a_dynamic_one_no_count() -> None:
    world = World()
    one, _ = await at_work(world)
    with pytest.raises(Invalid, match="begins and ends its partitions"):
        await one.change_queue("orders", {"partition_count": 4}, False)
    await one.create_queue(spec("fixed"))
    other = await one.join("fixed", "other")
    with pytest.raises(Invalid, match="fixed partitions"):
        await one.children("fixed", other, None, [item(0, child("b", "a"))])
    for wrong in (
        dynamic("x", log="builtin:x"),
        dynamic("x", log="redis://host/0/x"),
        dynamic("x", "a", "a"),
        dynamic("x", partition_count=3),
        wire.QueueCreate("x", 3, partitions=(wire.Root("a"),)),
        wire.QueueCreate("x", log="stream://y", partitioning="dynamic"),
    ):
        with pytest.raises(Invalid):
            await one.create_queue(wrong)


@virtual
async def test_an_administrator_adds_children_that_owners_report_again() -> None:
    """As after a split in the log, whose numbers the queue takes over."""
    world = World()
    one, flow = await at_work(world)
    split = (child("b", "a", partition=5, position="0"), child("c", "a", partition=6))
    assert await one.add_children("orders", split) == "ok"
    assert await one.add_children("orders", split) == "ok"
    unknown = (child("d", "x"),)
    assert await one.add_children("orders", unknown) == "unknown_parent"
    taken = (child("d", "a", partition=5),)
    assert await one.add_children("orders", taken) == "conflicting_child"
    done = await report(one, flow, item(0, *split, position="9", finished=True))
    assert done == ["ok"]
    assert await shown(one) == {
        "a": (0, "finished", "9"),
        "b": (5, "owned", "0"),
        "c": (6, "owned", None),
    }
    world.check("orders")


async def split(world: World, *followers: str) -> tuple[Service, wire.Sealed]:
    """A queue with hash ranges that was split, and queues that read its log."""
    one = await world.replica()
    await one.create_queue(wire.QueueCreate("orders", partitioning="dynamic"))
    for name in followers:
        queue = await one.create_queue(reader(name))
        if name == "damaged":
            unreadable(one, queue, QueueDamaged("its rows do not fit"))
    sealed = await one.calls.lineage.split("orders", 0, "middle")
    assert isinstance(sealed, wire.Sealed)
    return one, sealed


def reader(name: str) -> wire.QueueCreate:
    return wire.QueueCreate(name, partitioning="dynamic", log="builtin:orders")


@virtual
async def test_a_reader_of_the_log_that_cannot_be_told_of_a_split_is_alone() -> None:
    one, _ = await split(World(), "damaged", "later")
    assert [one.partition for one in (await one.lineage("later", 9, None)).items] == [0, 1, 2]


def test_a_split_is_answered_again_by_a_full_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.core.lineage.MOST_PARTITIONS", 3)

    @virtual
    async def play() -> None:
        one, sealed = await split(World())
        assert await one.calls.lineage.split("orders", 0, "middle") == sealed
        with pytest.raises(ChildrenRefused, match="Nothing was changed"):
            await one.calls.lineage.split("orders", 1, "middle")

    play()


@virtual
async def test_a_queue_on_a_log_that_was_split_since_is_created_again() -> None:
    """A call whose answer was lost is repeated."""
    one, _ = await split(World(), "copy")
    made = await one.queue("copy")
    assert await one.create_queue(reader("copy")) == made
    with pytest.raises(QueueExists):
        await one.create_queue(structs.replace(reader("copy"), max_handoff_time=9.0))


@virtual
async def test_the_graph_page_by_page() -> None:
    world = World()
    one, flow = await at_work(world, "a", "b", 'q"\\')
    merged = child("c", "a", "b")
    await report(one, flow, item(0, merged, finished=True), item(2, finished=True))
    first = await one.lineage("orders", 2, None)
    assert [(n.key, n.state, n.children, n.waits_for) for n in first.items] == [
        ("a", "finished", ("c",), ()),
        ("b", "owned", ("c",), ()),
    ]
    assert first.removed_count == 1
    rest = await one.lineage("orders", 2, first.next_cursor)
    assert [(n.key, n.state, n.parents, n.waits_for) for n in rest.items] == [
        ("c", "waiting", ("a", "b"), (1,))
    ]
    assert rest.next_cursor is None
    drawn = dot(rest.queue, rest.items)
    assert '"a" -> "c";' in drawn
    assert '"a" [style=dashed];' in drawn
    await one.create_queue(spec("fixed"))
    with pytest.raises(Invalid):
        await one.lineage("fixed", 2, None)
