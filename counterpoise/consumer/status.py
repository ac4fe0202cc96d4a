"""The status of a consumer, and the conditions that it reports to the service."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from counterpoise.conditions import (
    end_refused,
    invalid_position,
    log_away,
    quarantined,
)
from counterpoise.consumer.lanes import Lane, Lanes
from counterpoise.consumer.reading import Reader
from counterpoise.errors import described
from counterpoise.wire import Condition, barrier_text


@dataclass(frozen=True)
class LaneStatus:
    """One owned partition: how far it is handled, and its waiting messages.

    `attempts`: how often the message at `position` has failed (0 in key order). `quarantined`: the
    last error, if the partition or a key of it is in quarantine. `set_aside`: how many messages
    wait to be tried again, or behind such a one of their key (with a retry queue, before
    `position`). `waits`: `at 1002 for 0, 2` if an ordered resize stops it at 1002 until partitions
    0 and 2 have reached their cuts.
    """

    epoch: int
    state: str
    position: str | None
    waiting_messages: int
    waiting_bytes: int
    in_hand: int
    attempts: int
    quarantined: str | None
    waits: str = ""
    set_aside: int = 0

    @classmethod
    def of(cls, lane: Lane) -> LaneStatus:
        """The present status of the lane."""
        failure = lane.failure
        return cls(
            lane.epoch,
            lane.owned.state,
            lane.position,
            lane.waiting_messages,
            lane.waiting_bytes,
            lane.in_hand,
            failure.attempts if failure is not None else 0,
            described(stopped.error) if (stopped := lane.quarantine) is not None else None,
            barrier_text(lane.grant.owned.cut, lane.grant.owned.waits_for),
            lane.set_aside,
        )


@dataclass(frozen=True)
class Status:
    """The status of a consumer. `stuck`: the watchdog lets the lease expire."""

    flow: str
    handled: int
    dead_lettered: int
    stuck: bool
    log_away: bool
    partitions: Mapping[int, LaneStatus]

    @property
    def quarantined(self) -> Mapping[int, str]:
        """The partitions in quarantine, each with its error."""
        return {
            number: lane.quarantined
            for number, lane in self.partitions.items()
            if lane.quarantined is not None
        }


def conditions_of(lanes: Lanes, reader: Reader) -> Iterator[Condition]:
    """The conditions of the consumer: its log first, then its partitions by number."""
    yield from log_away(reader.away_for)
    for lane in lanes.quarantined():
        yield _of_lane(lane)
    yield from end_refused(lanes.refused())


def _of_lane(lane: Lane) -> Condition:
    failure = lane.quarantine
    if failure is None:
        return invalid_position(lane.partition, lane.epoch, lane.position)
    return quarantined(
        lane.partition, lane.epoch, failure.position, failure.attempts, failure.error
    )
