"""Positions that are none: a client cannot store them, and old ones harm only their partition."""

from typing import Any, cast

import pytest

from broker.core.commands import CommitItem, ReleaseItem
from broker.core.errors import Invalid
from broker.logs.ports import Logs
from broker.logs.positions import Reach, number_of, refuse_invalid
from broker.testing.loop import virtual
from tests.broker.shell import Service, World, spec

NONSENSE = ("abc", "-5", "5.0", "1e3", " 7", "٣", "9" * 20, "9" * 900, str(2**63))


# Numbers that no log gives: consumers would take their partitions for never ended.
UNUSUAL = ("00", "07", "0" * 15)


async def at_work(world: World, log: str | None = None) -> tuple[Service, str]:
    one = await world.replica()
    await one.create_queue(spec(partitions=2, log=log))
    return one, await one.join("orders", "first", lease=60)


async def positions(one: Service) -> list[str | None]:
    return [item.position for item in (await one.partitions("orders", 9, None)).items]


@pytest.mark.parametrize("position", NONSENSE + UNUSUAL)
@virtual
async def test_what_is_no_position_is_not_stored(position: str) -> None:
    world = World()
    one, flow = await at_work(world)
    await one.drain("orders", flow, None)
    items = [CommitItem(0, 1, "7"), CommitItem(1, 1, position)]
    with pytest.raises(Invalid, match="decimal numbers") as refusal:
        await one.commit("orders", flow, 1, items)
    assert [field for field, _ in refusal.value.errors] == ["partitions.1.position"]
    assert len(refusal.value.detail) < 300
    with pytest.raises(Invalid, match="next message to read"):
        await one.release("orders", flow, 1, [ReleaseItem(1, 1, position)])
    with pytest.raises(Invalid):
        await one.set_positions("orders", {1: position})
    assert await positions(one) == [None, None]
    done = await one.commit("orders", flow, 1, [CommitItem(1, 1, str(2**63 - 1))])
    assert [result.outcome for result in done.results] == ["ok"]


@virtual
async def test_a_log_of_an_unknown_kind_has_positions_of_its_own() -> None:
    world = World()
    one, flow = await at_work(world, "other://elsewhere")
    await one.commit("orders", flow, 1, [CommitItem(0, 1, "shard-7:abc")])
    assert (await positions(one))[0] == "shard-7:abc"


def test_each_kind_has_its_largest_position() -> None:
    redis = "redis://localhost:6379/0/orders"
    assert number_of(redis, str(2**53 - 1)) == 2**53 - 1
    assert number_of(redis, str(2**53)) is None
    assert number_of("kafka://broker:9092/orders", str(2**63 - 1)) == 2**63 - 1
    refuse_invalid("other://elsewhere", {"position": "abc"})
    reach = Reach(cast(Logs, None))
    for position in NONSENSE:
        assert reach.is_doubtful("q", CommitItem(0, 1, position))
        assert number_of("builtin:orders", position) is None


def spoil(world: World, name: str, position: str) -> None:
    """As an older version, which stored whatever it was sent."""
    queue_id, _ = world.stored(name)
    stored = world.database.queues[queue_id].positions
    stored[0] = (position, stored[0][1])


@pytest.mark.parametrize("position", NONSENSE)
@virtual
async def test_the_upkeep_passes_over_what_is_no_position(position: str) -> None:
    """Nothing of its partition is trimmed; all else is."""
    world = World()
    one, flow = await at_work(world)
    await one.create_queue(spec("other"))
    await one.commit("orders", flow, 1, [CommitItem(0, 1, "7"), CommitItem(1, 1, "3")])
    spoil(world, "orders", position)
    await one.keep_logs()
    told = {told[1]: told[3] for told in one.logs.told if told[0] == "maintain"}
    assert told["builtin:orders"] == [{0: None, 1: "3"}]
    assert "builtin:other" in told
    assert one.logs.the("builtin:orders").firsts == {1: 3}
    assert await positions(one) == [position, "3"]
    await one.set_positions("orders", {0: "0"})
    assert await positions(one) == ["0", "3"]


@virtual
async def test_a_log_whose_upkeep_fails_stops_no_other() -> None:
    world = World()
    one = await world.replica()
    names = [f"builtin:q{number}" for number in range(4)]
    for name in names:
        await one.create_queue(spec(name.removeprefix("builtin:")))
    maintain, kept = one.logs.maintain, []

    async def failing(log: str, *rest: Any) -> None:
        if log == names[1]:
            raise ZeroDivisionError
        if log == names[2]:
            raise Invalid("not this one")
        await maintain(log, *rest)
        kept.append(log)

    one.logs.maintain = failing  # type: ignore[assignment,method-assign]
    await one.keep_logs()
    assert kept == [names[0], names[3]]
