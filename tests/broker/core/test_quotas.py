"""What one key may have and cause in one queue."""

import pytest

from broker.core import commands as c
from broker.core.draft import Decision
from broker.core.errors import TooManyFlows
from tests.broker.core.world import World

FEW = c.Quota(flows=2)


class TestFlows:
    """The flows of one key on one queue are counted."""

    def bind(self, world: World, name: str, key: str | None, instance: str = "") -> Decision:
        return world.bind(name, instance or None, key_id=key, quota=FEW)

    def test_one_too_many_is_refused_and_changes_nothing(self) -> None:
        orders = World(partitions=4)
        self.bind(orders, "A", "key")
        self.bind(orders, "B", "key")
        revision = orders.queue.revision
        with pytest.raises(TooManyFlows, match=r"2 flows.*COUNTERPOISE_KEY_FLOWS"):
            self.bind(orders, "C", "key")
        assert orders.queue.revision == revision
        assert orders.queue.flows.keys() == {"A", "B"}

    def test_others_and_those_without_a_key_are_not_counted(self) -> None:
        orders = World(partitions=4)
        for number in range(3):
            self.bind(orders, f"N{number}", None)
        for key in ("one", "two"):
            self.bind(orders, f"A-{key}", key)
            self.bind(orders, f"B-{key}", key)
        assert len(orders.queue.flows) == 7

    def test_who_takes_the_place_of_its_own_is_none_too_many(self) -> None:
        orders = World(partitions=4)
        self.bind(orders, "A", "key")
        self.bind(orders, "B", "key")
        self.bind(orders, "A2", "key", instance="i-A")
        assert orders.queue.flows.keys() == {"A2", "B"}
        with pytest.raises(TooManyFlows):
            self.bind(orders, "C", "key")

    def test_who_leaves_makes_room(self) -> None:
        orders = World(partitions=4)
        self.bind(orders, "A", "key")
        self.bind(orders, "B", "key")
        orders.expire("A")
        self.bind(orders, "C", "key")
        with pytest.raises(TooManyFlows):
            self.bind(orders, "D", "key")
        orders.unbind("B")
        orders.unbind("C")
        assert orders.queue.flows_of_key == {}
