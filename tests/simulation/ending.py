"""When everything is settled, and how long that may take (promise 9)."""

from __future__ import annotations

from tests.simulation import lineage, maxima, order
from tests.simulation.account import APART, Account, back

# A pause that lasts longer is resumed.
SOON_SECONDS = 4.0


class Ending(Account):
    """What is left to be done when nothing goes wrong any more."""

    def granted_seconds(self) -> float:
        """How long the holddowns and handoffs so far may have taken, one after another."""
        return self.deadlines.granted_seconds

    def under_way_seconds(self) -> float:
        """How long the leases, the holddown and the handoffs under way may take at most."""
        ends = [
            self.deadlines.due(number)
            for number, row in self.partitions.items()
            if row.deadline is not None
        ]
        noticed = self.outages[self.queue["outage_seen"] :]
        ends += [(self.queue["holddown_until"] or 0.0) + back(noticed)]
        ends += [(self.queue["cuts_due"] or 0.0) + back(noticed)]
        now = self.stamped_at or 0.0
        ends += [min(one[1] or 0.0, now + SOON_SECONDS) for one in self.queue["pauses"].values()]
        leases = [row.lease_seconds for row in self.flows.values()]
        return max(leases, default=0.0) + max(0.0, max(ends) - now)

    def backlog(self) -> int:
        """The number of unprocessed messages of the partition that has most."""
        left = (lane.end - self.positions.get(n, 0) for n, lane in self.lanes.items())
        return max(left, default=0)

    def unsettled(self) -> tuple[int, str] | None:
        """What is unsettled although nothing goes wrong any more, with the promise that is broken
        if it stays so; None: nothing.
        """
        if self.queue["status"] != "Ready":
            return 9, f"the queue is {self.queue['status']}"
        if not (self.owned() if self.dynamic else self.balanced()):
            return 9, "the queue is not balanced"
        if self.queue["pauses"]:
            return 10, f"paused are {sorted(self.queue['pauses'])}"
        idle = maxima.unsettled(self)
        if idle is not None:
            return 9, idle
        if self.over_capacity():
            # The rest is settled when there is room for all of it.
            return None
        for number, row in self.partitions.items():
            if row.state not in APART and row.retiring:
                return 9, f"p{number} is retiring"
        for number, lane in self.lanes.items():
            if lane.prefix < lane.end:
                return 3, f"message {lane.prefix} of p{number} was not processed"
        left = order.unsettled(self)
        if self.dynamic and left is None:
            left = lineage.unsettled(self, {*self.partitions, *self.order.parents})
        if left is not None:
            return 9, left
        for number, lane in self.lanes.items():
            row = self.partitions[number]
            if row.state not in APART and self.positions.get(number, 0) < lane.end > lane.first:
                return 9, f"the position of p{number} is {self.positions.get(number, 0)}"
        return None
