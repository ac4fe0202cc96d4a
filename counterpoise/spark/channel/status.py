"""The status of a query: in its progress, in the channel, for a `QueueListener`.

Values are texts, numbers and objects of these, so that Spark shows them unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from counterpoise.errors import CounterpoiseError
from counterpoise.flow.view import Owned, Warming
from counterpoise.logs import Bounds
from counterpoise.spark.channel.handoffs import Handoffs
from counterpoise.spark.plan.offsets import Json
from counterpoise.wire import barrier_text


@dataclass(frozen=True)
class QueryStatus:
    """The status of a query at one moment. `positions`: up to where its partitions are done."""

    queue: str
    url: str
    instance: str
    flow_ids: tuple[str, ...]
    status: str
    draining: bool
    partitions: Mapping[int, Owned]
    warming: Mapping[int, Warming]
    positions: Mapping[int, str | None]
    bounds: Bounds | None
    handoffs: Handoffs
    last_error: CounterpoiseError | None = None
    in_flight: frozenset[int] = field(default=frozenset())

    def report(self) -> Json:
        """For people and metrics: counts, lag, errors."""
        states = [held.state for held in self.partitions.values()]
        lag = self.lag()
        gone = self.handoffs.gone
        return {
            "status": self.status,
            "owned": len(states),
            "revoking": states.count("revoking"),
            "retiring": states.count("retiring"),
            "warming": len(self.warming),
            "draining": int(self.draining),
            "skippedSlices": self.handoffs.skipped_slices,
            "takenOver": self.handoffs.taken_over_count,
            "handoffsGraceful": gone["graceful"],
            "handoffsForced": gone["forced"],
            "partitionsLost": gone["lost"],
            "partitionsFinished": gone["finished"],
            "received": self.handoffs.received,
            "lastError": "" if self.last_error is None else str(self.last_error),
            "ends": self.ends(),
            "waits": self.waits(),
            "lagTotal": sum(lag.values()),
            "lag": {str(number): behind for number, behind in lag.items()},
        }

    def ends(self) -> Json:
        """The log's ends of the held partitions, from the latest answer."""
        bounds = self.bounds
        if bounds is None:
            return {}
        return {
            str(number): bounds.ends[number]
            for number in sorted(self.partitions)
            if number in bounds.ends
        }

    def waits(self) -> Json:
        """The held partitions that an ordered resize stops: `at 1002 for 0, 2` (the cut, and the
        partitions that have to reach theirs)."""
        texts = {
            str(number): barrier_text(held.cut, held.waits_for)
            for number, held in sorted(self.partitions.items())
        }
        return {number: text for number, text in texts.items() if text}

    def lag(self) -> dict[int, int]:
        """Messages between the done position and the end; with holes in the log, at most so many.

        Only of partitions whose end is known: not while they are being revoked, and not directly
        after the grant.
        """
        bounds = self.bounds
        behind: dict[int, int] = {}
        for number in sorted(self.partitions):
            if bounds is None or number not in bounds.ends:
                continue
            position = self.positions.get(number) or bounds.starts[number]
            end = bounds.ends[number]
            if position.isdecimal() and end.isdecimal():
                behind[number] = max(0, int(end) - int(position))
        return behind

    def view(self) -> Json:
        """The partitions of the flows, for the channel."""
        return {
            "queue": self.queue,
            "url": self.url,
            "instance": self.instance,
            "flow_ids": list(self.flow_ids),
            "status": self.status,
            "draining": self.draining,
            "partitions": {
                **{
                    str(number): {
                        "epoch": one.epoch,
                        "state": "warming",
                        "position": one.position,
                        "handed_over": None,
                    }
                    for number, one in sorted(self.warming.items())
                },
                **{
                    str(number): {
                        "epoch": one.epoch,
                        "state": one.state,
                        "position": self.positions.get(number) or one.position,
                        "handed_over": one.handed_over,
                    }
                    for number, one in sorted(self.partitions.items())
                },
            },
            "inFlight": sorted(self.in_flight),
        }
