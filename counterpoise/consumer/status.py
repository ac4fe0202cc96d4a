"""The status that a consumer shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from counterpoise.consumer.lane import Lane
from counterpoise.wire import barrier_text


@dataclass(frozen=True)
class LaneStatus:
    """One owned partition: how far it is handled, and its waiting messages.

    `attempts`: how often the message at `position` has failed. `quarantined`: the last error, if
    the partition is in quarantine. `waits`: `at 1002 for 0, 2`, if an ordered resize lets the
    partition go no further than position 1002 until partitions 0 and 2 have reached their cuts.
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
            repr(failure.error) if lane.quarantined and failure is not None else None,
            barrier_text(lane.grant.owned.cut, lane.grant.owned.waits_for),
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
