"""The partitions of a queue that changes while they are listed."""

import asyncio

import pytest

from broker.testing.loop import virtual
from tests.broker.shell import World, spec


@pytest.mark.parametrize("limit", [1, 2, 9])
@virtual
async def test_a_partition_that_is_removed_while_the_partitions_are_listed_is_left_out(
    limit: int,
) -> None:
    world = World()
    one = await world.replica()
    await one.create_queue(spec())
    after = "1"  # so the page begins with those that go
    gate = one.net.hold("positions")
    listing = asyncio.ensure_future(one.partitions("orders", limit, after))
    await one.net.met("positions")
    await one.change_queue("orders", {"partition_count": 2}, True)
    gate.set()
    page = await listing
    assert page.items == ()
    assert page.next_cursor == ("2" if limit == 1 else None)
