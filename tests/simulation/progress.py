"""Promise 5: only a partition that is being handed off pauses.

If a partition has messages, is not revoked, and its owner is not hindered, then the owner takes
messages and commits, whatever else happens to the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from tests.judge.violation import Violation
from tests.simulation.groups import is_let_go


class Progress:
    """Watches the messages that are taken of each partition, and its position."""

    def __init__(self, bound_seconds: float) -> None:
        """`bound_seconds`: the longest time without an event in a partition."""
        self.bound_seconds = bound_seconds
        # The last state of each partition that has messages, and when it was first seen.
        self._seen: dict[int, tuple[tuple[Any, ...], float]] = {}

    def clock_set(self, seconds: float) -> None:
        """The clock of the times given here was set."""
        self._seen = {number: (mark, at + seconds) for number, (mark, at) in self._seen.items()}

    def look(
        self,
        now: float,
        quiet_since: float,
        partitions: Mapping[int, Any],
        positions: Mapping[int, int],
        lanes: Mapping[int, Any],
        able: Collection[str],
        must_wait: Callable[[int], bool],
    ) -> None:
        """`able`: the flows whose processes are alive and not hindered. Before `quiet_since` others
        were. `must_wait`: whether older messages of a partition's keys are elsewhere.
        """
        seen = self._seen
        for number, lane in lanes.items():
            position = positions.get(number, 0)
            if (position if position > lane.first else lane.first) >= lane.end:
                seen.pop(number, None)
                continue
            row = partitions.get(number)
            working = row is not None and row.state in ("owned", "warming") and not is_let_go(row)
            if row is None or not working or row.owner not in able:
                seen.pop(number, None)
                continue
            if must_wait(number):
                seen.pop(number, None)
                continue
            mark = (row.epoch, row.owner, position, lane.times)
            last = seen.get(number)
            if last is None or last[0] != mark:
                seen[number] = (mark, now)
                continue
            passed = now - max(last[1], quiet_since)
            if passed > self.bound_seconds:
                text = f"p{number} of {row.owner} has stood still for {passed:.3f} s at {position}"
                raise Violation(5, f"{text}, and nobody asked for it")
