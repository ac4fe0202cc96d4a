"""Positions: a write names its flow and epoch, and is refused if these are over.

Outcomes in the contract's order: `no_such_partition`, `stale_epoch`, `not_owner`, `ok`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping

import pytest

from broker.core import commands as c
from broker.core.commands import Outcome, Result
from broker.store.ports import Passed, PositionSuperseded, PositionWrite, Store, Stored
from tests.broker.store.support import Ground, Replica, serve


async def position(replica: Replica, partition: int) -> str | None:
    return (await replica.store.positions(replica.id, [partition]))[partition][1]


async def outcomes(replica: Replica, *items: object) -> list[str]:
    results, *_ = await replica.store.commit_positions(items)  # type: ignore[arg-type]
    assert [r and r.partition for r in results] == [item.partition for item in items]  # type: ignore[attr-defined]
    return [result.outcome.value for result in results if result]


async def test_an_owner_commits(store: Store, orders: Replica) -> None:
    await orders.bind("A")
    assert await store.positions(orders.id, [0, 1, 77]) == {0: Stored(1, None), 1: Stored(1, None)}
    items = [orders.position("A", 1, "17"), orders.position("A", 0, "3")]
    shown = [(orders.id, number) for number in (1, 2, 77)]
    done = await store.commit_positions(items, shown)
    assert done.positions == {(orders.id, 1): Stored(1, "17"), (orders.id, 2): Stored(1, None)}
    assert done.results == [
        Result(1, Outcome.OK),
        Result(0, Outcome.OK),
    ]
    assert await store.positions(orders.id, [0, 1]) == {0: Stored(1, "3"), 1: Stored(1, "17")}
    assert await store.commit_positions([]) == ([], {}, {})


async def test_a_commit_tells_which_position_it_replaced(store: Store, orders: Replica) -> None:
    await orders.bind("A")

    async def replaced(*items: object) -> Mapping[int, str | None]:
        return (await store.commit_positions(items)).replaced  # type: ignore[arg-type]

    assert await replaced(orders.position("A", 0, "3", seq=1)) == {0: None}
    stale, late = orders.position("A", 1, "9", epoch=0), orders.position("A", 0, "2", seq=1)
    gone, next_one = orders.position("A", 99, "1", epoch=1), orders.position("A", 1, "4")
    assert await replaced(stale, gone, late, next_one) == {3: None}
    twice = [orders.position("A", 0, position, seq=2 + int(position)) for position in "57"]
    assert await replaced(*twice) == {0: "3", 1: "5"}


async def test_commits_raise_no_revision(store: Store, orders: Replica) -> None:
    await orders.bind("A")
    await store.commit_positions([orders.position("A", 0, "3")])
    assert await store.revisions([orders.id]) == {orders.id: orders.queue.revision}


async def test_a_commit_renews_the_lease(ground: Ground, store: Store, orders: Replica) -> None:
    await orders.bind("A", lease=10.0)
    await serve(ground, store, 8)
    before = (await store.leases(["A"]))["A"]
    await store.commit_positions([orders.position("A", 0, "3")])
    assert (await store.leases(["A"]))["A"] >= before + 7


async def test_a_refused_commit_renews_too(ground: Ground, store: Store, orders: Replica) -> None:
    await orders.bind("A", lease=10.0)
    await serve(ground, store, 8)
    before = (await store.leases(["A"]))["A"]
    assert await outcomes(orders, orders.position("A", 99, "3", epoch=1)) == ["no_such_partition"]
    assert (await store.leases(["A"]))["A"] >= before + 7


async def test_the_first_outcome_that_applies_is_told(store: Store, orders: Replica) -> None:
    await orders.bind("A", "B")
    await orders.do(c.RaiseEpochs((0,)))
    await orders.do(c.Change({"partition_count": 3}, discard=True))
    [epoch] = [orders.queue.partitions[0].epoch]
    results, *_ = await store.commit_positions(
        [
            orders.position("A", 3, "x", epoch=0),  # removed, and stale
            orders.position("A", 4, "x", epoch=1),  # never there
            orders.position("B", 0, "x", epoch=epoch - 1),  # stale, and not the owner
            orders.position("B", 0, "x", epoch=epoch),
            orders.position("A", 0, "x", epoch=epoch + 1),  # from the future
            orders.position("A", 0, "y", epoch=epoch),
        ]
    )
    assert results == [
        Result(3, Outcome.NO_SUCH_PARTITION),
        Result(4, Outcome.NO_SUCH_PARTITION),
        Result(0, Outcome.STALE_EPOCH, epoch),
        Result(0, Outcome.NOT_OWNER),
        Result(0, Outcome.NOT_OWNER),
        Result(0, Outcome.OK),
    ]
    assert await position(orders, 0) == "y"


async def test_an_unassigned_partition_accepts_no_commit(store: Store) -> None:
    orders = Replica(store)
    await orders.create(2, rebalance_delay=5.0)
    await orders.bind("A")
    assert await outcomes(orders, orders.position("A", 0, "3")) == ["not_owner"]
    assert await position(orders, 0) is None


async def test_a_flow_that_left_commits_nothing(store: Store, orders: Replica) -> None:
    await orders.bind("A")
    item = orders.position("A", 0, "3")
    await orders.do(c.Unbind("A"))
    assert await outcomes(orders, item) == ["not_owner"]
    await orders.bind("B")
    assert await outcomes(orders, item) == ["stale_epoch"]
    assert await position(orders, 0) is None


async def test_an_unknown_queue_has_no_partitions(store: Store, orders: Replica) -> None:
    await orders.bind("A")
    item = orders.position("A", 0, "3")
    await store.delete(orders.id, force=True)
    assert await outcomes(orders, item) == ["no_such_partition"]


async def test_a_lower_or_equal_seq_is_ok_and_changes_nothing(
    store: Store, orders: Replica
) -> None:
    await orders.bind("A")
    seqs = [(5, "a"), (4, "b"), (5, "c"), (6, "d"), (None, "e"), (6, "f"), (7, "g")]
    seen = []
    for seq, text in seqs:
        assert await outcomes(orders, orders.position("A", 0, text, seq=seq)) == ["ok"]
        seen.append(await position(orders, 0))
    assert seen == ["a", "a", "a", "d", "e", "e", "g"]


async def test_a_seq_counts_within_its_epoch(store: Store, orders: Replica) -> None:
    await orders.bind("A")
    await store.commit_positions([orders.position("A", 0, "a", seq=50)])
    await orders.do(c.RaiseEpochs((0,)))
    await store.commit_positions([orders.position("A", 0, "b", seq=1)])
    assert await position(orders, 0) == "b"


async def test_a_partition_may_come_twice_in_one_call(store: Store, orders: Replica) -> None:
    await orders.bind("A")
    items = [
        orders.position("A", 0, "a", seq=2),
        orders.position("A", 1, "x"),
        orders.position("A", 0, "b", seq=1),
        orders.position("A", 0, "c", seq=3),
        orders.position("A", 1, "y"),
    ]
    assert await outcomes(orders, *items) == ["ok"] * 5
    assert await store.positions(orders.id, [0, 1]) == {0: Stored(1, "c"), 1: Stored(1, "y")}


async def test_one_call_serves_several_queues(store: Store) -> None:
    first, second = Replica(store), Replica(store)
    await first.create(2)
    await second.create(2)
    await first.bind("A")
    await second.bind("B")
    items = [second.position("B", 0, "b"), first.position("A", 0, "a")]
    assert await outcomes(first, *items) == ["ok", "ok"]
    assert (await position(first, 0), await position(second, 0)) == ("a", "b")


# Positions within a commit


async def revoked(replica: Replica) -> int:
    """The partition that A, the only flow so far, hands to B."""
    await replica.bind("A")
    await replica.bind("B")
    return max(replica.queue.handoffs)


def release(replica: Replica, number: int) -> c.Release:
    return c.Release("A", (c.ReleaseItem(number, replica.queue.partitions[number].epoch),))


@pytest.mark.parametrize(("stored", "seq"), [(None, None), (None, 3), (2, 3), (9, None)])
async def test_a_release_carries_its_position(
    store: Store, orders: Replica, stored: int | None, seq: int | None
) -> None:
    number = await revoked(orders)
    await store.commit_positions([orders.position("A", number, "early", seq=stored)])
    await orders.do(release(orders, number), writes=[PositionWrite(number, 1, "A", "late", seq)])
    assert await store.positions(orders.id, [number]) == {number: Stored(2, "late")}
    # The new epoch counts anew.
    await store.commit_positions([orders.position("B", number, "new", seq=1)])
    assert await position(orders, number) == "new"


async def test_a_release_without_a_position_leaves_it(store: Store, orders: Replica) -> None:
    number = await revoked(orders)
    await store.commit_positions([orders.position("A", number, "early", seq=1)])
    await orders.do(release(orders, number), writes=[PositionWrite(number, 1, "A", None, 2)])
    assert await store.positions(orders.id, [number]) == {number: Stored(2, "early")}


@pytest.mark.parametrize("seq", [2, 3])
async def test_a_release_that_a_later_call_overtook_is_not_committed(
    store: Store, orders: Replica, seq: int
) -> None:
    number = await revoked(orders)
    await store.commit_positions([orders.position("A", number, "later", seq=3)])
    with pytest.raises(PositionSuperseded) as behind:
        await orders.do(
            release(orders, number), writes=[PositionWrite(number, 1, "A", "late", seq)]
        )
    assert behind.value.partitions == {number}
    loaded = await store.load(orders.id)
    assert loaded.partitions[number].epoch == 1
    assert loaded.revision == orders.queue.revision
    assert await position(orders, number) == "later"


@pytest.mark.parametrize(("epoch", "flow_id"), [(2, "A"), (1, "B")])
async def test_a_write_for_another_epoch_or_flow_is_refused(
    store: Store, orders: Replica, epoch: int, flow_id: str
) -> None:
    number = await revoked(orders)
    with pytest.raises(PositionSuperseded):
        await orders.do(
            release(orders, number), writes=[PositionWrite(number, epoch, flow_id, "x", None)]
        )
    assert await position(orders, number) is None


async def test_of_two_writes_to_a_partition_the_first_counts(store: Store, orders: Replica) -> None:
    number = await revoked(orders)
    writes = [PositionWrite(number, 1, "A", text, 1) for text in ("first", "second")]
    await orders.do(release(orders, number), writes=writes)
    assert await position(orders, number) == "first"


async def test_an_administrator_sets_positions_as_they_come(store: Store, orders: Replica) -> None:
    await orders.bind("A")
    await store.commit_positions([orders.position("A", n, "old", seq=9) for n in (0, 1, 2)])
    await orders.do(c.RaiseEpochs((0, 1)), positions={0: "new", 1: None})
    assert await store.positions(orders.id, [0, 1, 2]) == {
        0: Stored(2, "new"),
        1: Stored(2, None),
        2: Stored(1, "old"),
    }
    assert await outcomes(orders, orders.position("A", 0, "x", epoch=1)) == ["stale_epoch"]


async def test_what_is_done_above_goes_with_the_position(store: Store, orders: Replica) -> None:
    number = await revoked(orders)

    async def stored() -> Stored:
        return (await store.positions(orders.id, [number]))[number]

    shown = [(orders.id, number)]
    item = orders.position("A", number, "3", seq=2, done_above="5+4,1+2")
    answer = await store.commit_positions([item], shown)
    assert answer.positions[orders.id, number] == Stored(1, "3", "5+4,1+2") == await stored()
    late = orders.position("A", number, "2", seq=1, done_above="9+1")
    stale = orders.position("A", number, "8", epoch=0, done_above="9+1")
    assert await outcomes(orders, late, stale) == ["ok", "stale_epoch"]
    assert await stored() == Stored(1, "3", "5+4,1+2")
    await orders.do(release(orders, number), writes=[PositionWrite(number, 1, "A", None, 3)])
    assert await stored() == Stored(2, "3", "5+4,1+2"), "the next owner gets it"
    await store.commit_positions([orders.position("B", number, "4", seq=1)])
    assert await stored() == Stored(2, "4"), "a commit without it takes it back"


async def test_a_release_brings_what_is_done_above(store: Store, orders: Replica) -> None:
    number = await revoked(orders)
    write = PositionWrite(number, 1, "A", "3", 1, "5+1")
    await orders.do(release(orders, number), writes=[write])
    assert (await store.positions(orders.id, [number]))[number] == Stored(2, "3", "5+1")


async def test_above_a_set_position_nothing_is_done(store: Store, orders: Replica) -> None:
    await orders.bind("A")
    await store.commit_positions([orders.position("A", 0, "3", done_above="5+1")])
    await orders.do(c.RaiseEpochs((0,)), positions={0: "3"})
    assert await store.positions(orders.id, [0]) == {0: Stored(2, "3")}


async def test_a_message_is_passed_unless_a_consumer_has_committed_since(
    store: Store, orders: Replica
) -> None:
    async def stored() -> Stored:
        return (await store.positions(orders.id, [0]))[0]

    await orders.bind("A")
    # A partition may have no position yet.
    await orders.do(c.RaiseEpochs((0,)), passed={0: Passed(None, None, None, "3+1")})
    assert await stored() == Stored(2, None, "3+1")
    for position, above in (("1", "3+1"), (None, None), (None, "3+2")):
        await orders.do(c.RaiseEpochs((0,)), passed={0: Passed(position, above, "9", None)})
        assert (await stored())[1:] == (None, "3+1")
    await store.commit_positions([orders.position("A", 0, "2", done_above="5+1")])
    await orders.do(c.RaiseEpochs((0,)), passed={0: Passed(None, "3+1", "1", None)})
    assert (await stored())[1:] == ("2", "5+1"), "the consumer was first"
    await orders.do(c.RaiseEpochs((0,)), passed={0: Passed("2", "5+1", "3", "5+1")})
    assert (await stored())[1:] == ("3", "5+1")


async def test_a_release_goes_before_a_message_that_is_passed(
    store: Store, orders: Replica
) -> None:
    number = await revoked(orders)
    write = PositionWrite(number, 1, "A", "7", 1)
    passed = {number: Passed(None, None, "3", None)}
    await orders.do(release(orders, number), writes=[write], passed=passed)
    assert (await store.positions(orders.id, [number]))[number] == Stored(2, "7")


async def test_a_number_used_again_goes_on_where_it_was(store: Store, orders: Replica) -> None:
    await orders.bind("A")
    await store.commit_positions([orders.position("A", 3, "30")])
    await orders.do(c.Change({"partition_count": 2}, discard=True))
    await orders.do(c.Change({"partition_count": 6}))
    assert await store.positions(orders.id, [3, 4]) == {3: Stored(2, "30"), 4: Stored(1, None)}


async def test_removed_partitions_are_among_all(store: Store, orders: Replica) -> None:
    await orders.bind("A")
    await store.commit_positions([orders.position("A", n, f"{n}0") for n in (1, 3)])
    await orders.do(c.Change({"partition_count": 2}, discard=True))
    found = await store.positions(orders.id)
    assert {number: one.position for number, one in found.items() if one.position} == {
        1: "10",
        3: "30",
    }
    assert await store.positions("no queue") == {}


async def test_a_commit_and_the_end_of_an_epoch_agree(ground: Ground, orders: Replica) -> None:
    """Whichever comes first: the next owner starts from the acknowledged position."""
    other = await ground.store()
    await orders.bind("A")
    for n in range(8):
        item = orders.position("A", 0, f"at {n}")
        committed, _ = await asyncio.gather(
            other.commit_positions([item]), orders.do(c.RaiseEpochs((0,)))
        )
        [result] = committed.results
        # Or nothing was done, because the other transaction held the row.
        ok = result is not None and result.outcome is Outcome.OK
        assert ok is (await position(orders, 0) == f"at {n}")


@pytest.mark.long
async def test_calls_of_all_kinds_at_once_do_not_lock_each_other_out(
    ground: Ground, store: Store
) -> None:
    """All lock in the same order; otherwise Postgres would end one of two in a deadlock."""
    orders = Replica(store)
    await orders.create(30)
    names = [f"F{n}" for n in range(10)]
    await orders.bind(*names)
    others = [await ground.store() for _ in range(4)]
    shuffled = random.Random(7)

    async def commit_positions(other: Store) -> None:
        for _ in range(15):
            numbers = shuffled.choices(range(30), k=40)
            items = [orders.position(shuffled.choice(names), n, "x") for n in numbers]
            await other.commit_positions(items)

    async def renew(other: Store) -> None:
        for _ in range(30):
            await other.renew(shuffled.sample(names, 10))

    async def change() -> None:
        for n in range(15):
            await orders.do(
                c.RaiseEpochs(tuple(range(30))),
                c.Unbind(f"F{n}"),
                c.Bind(f"F{n + 10}", f"i{n}", "c", 10.0),
                renewed=frozenset({f"F{n + 9}", f"F{n + 1}"}) & orders.queue.flows.keys(),
            )

    first, second, third, fourth = others
    await asyncio.gather(
        commit_positions(first), commit_positions(second), renew(third), renew(fourth), change()
    )


async def test_a_position_can_come_with_a_new_partition(store: Store, orders: Replica) -> None:
    count = orders.queue.settings.partition_count
    await orders.do(c.Change({"partition_count": count + 2}), positions={count: "0"})
    assert await store.positions(orders.id, [count, count + 1]) == {
        count: Stored(0, "0"),
        count + 1: Stored(0, None),
    }


async def test_partitions_without_a_position_begin_at_a_first_one(
    store: Store, orders: Replica
) -> None:
    """New partitions, and reused numbers without a position; a set position has precedence."""
    count = orders.queue.settings.partition_count
    await orders.bind("A")
    await store.commit_positions([orders.position("A", count - 1, "30")])
    await orders.do(c.Change({"partition_count": count - 2}, discard=True))
    numbers = [*range(count - 2, count + 3)]
    await orders.do(
        c.Change({"partition_count": count + 3}),
        positions={count: "9", count + 1: None},
        first_positions=dict.fromkeys(numbers, "0"),
    )
    found = await store.positions(orders.id, numbers)
    assert [found[number][1] for number in numbers] == ["0", "30", "9", None, "0"]
