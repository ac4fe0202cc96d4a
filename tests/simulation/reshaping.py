"""The events of queues that keep the order of keys when partitions change."""

from __future__ import annotations

import random
from typing import Any

from tests.simulation.administrator import Administrator
from tests.simulation.publishers import KEYS, Publisher
from tests.simulation.service import QUEUE


class Reshaping(Administrator):
    """Publishers of keys, splits, merges, and positions that are set to before cuts."""

    # Publishers of keys

    def _publisher(self, which: int) -> Publisher:
        return self.world.publishers[which % len(self.world.publishers)]

    def _on_burst(self, which: int, count: int, salt: int) -> None:
        rng = random.Random(salt)
        # Few keys, so that those that move have messages on both sides.
        keys = rng.sample(range(KEYS), 6)
        one = self._publisher(which)
        one.do(one.publish, [rng.choice(keys) for _ in range(2 * count)])

    def _on_publisher_sleeps(self, which: int, seconds: float) -> None:
        one = self._publisher(which)
        if not one.frozen:
            one.freeze()
            self.world.loop.call_later(seconds, one.thaw)

    def _on_publisher_dies(self, which: int) -> None:
        one = self._publisher(which)
        one.die()
        place = self.world.publishers.index(one)
        self.world.publishers[place] = self.world.publisher(one.name)

    # Splits and merges

    def _on_split(self, which: int, thirds: int | None) -> None:
        ranges = self.world.log.ranges
        assert ranges is not None
        # One that is sealed already now and then: an administrator repeats a call, or is late.
        numbers = sorted(
            ranges.of if which % 8 == 0 else {one.partition for one in ranges.open.all}
        )
        number = numbers[which % len(numbers)]
        whole = ranges.of[number]
        at: Any = "middle"
        if thirds is not None:
            at = whole.first + (whole.last - whole.first) * thirds // 3
        self._administer(lambda calls: calls.lineage.split(QUEUE, number, at))

    def _on_merge(self, which: int) -> None:
        ranges = self.world.log.ranges
        assert ranges is not None
        there = ranges.open.all
        if len(there) > 1:
            place = which % (len(there) - 1)
            pair = there[place].partition, there[place + 1].partition
            self._administer(lambda calls: calls.lineage.merge(QUEUE, *pair))

    def _on_reset(self, to_cut: bool, who: int) -> None:
        """To before the last cut, or to the cut, as far as it is processed."""
        checkers = self.world.checkers
        place, which = divmod(who, len(checkers))
        queue = list(checkers)[which]
        checker = checkers[queue]
        rows = checker.partitions.items()
        existing = sorted(n for n, row in rows if row.state != "removed")
        number = existing[place % len(existing)]
        cut = checker.order.cut(number)
        first, last = self.world.log.firsts.get(number, 0), checker.positions.get(number, 0)
        back = max(first, min(last, cut if to_cut else cut - 2))
        where = {number: str(back)}
        self._administer(
            lambda calls: calls.positions.set(queue, where),
            *("positions", {number: back}),
            queue=queue,
        )
