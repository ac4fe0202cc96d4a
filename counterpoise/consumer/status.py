"""What a consumer shows of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from counterpoise.consumer.lane import Lane


@dataclass(frozen=True)
class LaneStatus:
    """One owned partition: how far it is handled, and what waits in memory.

    `attempts`: how often the message at `position` has failed. `quarantined`: with what error it
    did in the end, if the partition is in quarantine.
    """

    epoch: int
    state: str
    position: str | None
    waiting_messages: int
    waiting_bytes: int
    in_hand: int
    attempts: int
    quarantined: str | None

    @classmethod
    def of(cls, lane: Lane) -> LaneStatus:
        """What the lane is like now."""
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
        )


@dataclass(frozen=True)
class Status:
    """What a consumer is doing. `stuck`: the watchdog lets the lease lapse."""

    flow: str
    handled: int
    dead_lettered: int
    stuck: bool
    log_away: bool
    partitions: Mapping[int, LaneStatus]

    @property
    def quarantined(self) -> Mapping[int, str]:
        """The partitions in quarantine, and for each the error."""
        return {
            number: lane.quarantined
            for number, lane in self.partitions.items()
            if lane.quarantined is not None
        }
