"""What a query reports to the service, so that people see it where they see the queue."""

from __future__ import annotations

from collections.abc import Iterator

from counterpoise.conditions import Condition, invalid_position, log_away
from counterpoise.spark.flows.bound import Reports
from counterpoise.spark.run.probe import LogProbe


def conditions_of(flow: Reports, probe: LogProbe) -> Iterator[Condition]:
    """The conditions of the query: its log first, then its partitions by number."""
    yield from log_away(probe.away_for)
    owned = flow.partitions
    for number, position in sorted(probe.invalid.items()):
        if number in owned:
            yield invalid_position(number, owned[number].epoch, position)
