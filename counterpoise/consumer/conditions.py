"""What a consumer reports to the service, so that people see it where they see the queue."""

from __future__ import annotations

from collections.abc import Iterator

from counterpoise.conditions import Condition, invalid_position, log_away, text_of
from counterpoise.consumer.lane import Lane
from counterpoise.consumer.lanes import Lanes
from counterpoise.consumer.reading import Reader


def conditions_of(lanes: Lanes, reader: Reader) -> Iterator[Condition]:
    """The conditions of the consumer: its log first, then its partitions by number."""
    yield from log_away(reader.away_for)
    for lane in lanes.quarantined():
        yield _of_lane(lane)


def _of_lane(lane: Lane) -> Condition:
    failure = lane.failure
    if failure is None:
        return invalid_position(lane.partition, lane.epoch, lane.position)
    text = f"at {failure.position}, after {failure.attempts} attempts: {text_of(failure.error)}"
    return Condition("quarantined", text, lane.partition, lane.epoch)
