"""The demo of splits: one partition is hot, is split twice while consumers run, and merged back.

The queue is dynamic: each of its partitions takes a range of the hash of aircraft. A PySpark
application and two consumers in plain Python share it. Then most flights come from the aircraft of
one range. `counterpoise partitions split --hottest` splits the hot partition, and again the hottest
one. Then two `merge` make the range whole, still amid the rush. Publisher and consumers notice none
of it: each aircraft's flights stay in order, none is lost, none comes twice.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from broker.demo.display import Observation, backlog
from broker.demo.evidence import SealingKind, SealingRecord
from broker.demo.scenario import Acts
from broker.demo.stage import QUEUE, DemoFailed, Stage
from broker.demo.throttling import CHECK_SECONDS, Flights, Plan, Rush
from broker.demo.work.flights import Flight
from broker.demo.work.sink import Record
from counterpoise.logs.ranges import HashRange, parse_range

PARTITIONS = 3
PROGRAMS = {"alpha": "application", "beta": "consumer", "gamma": "consumer"}
HOTTEST_OWNER = "beta"
MEASURE_SECONDS = "2"
# So slow that the flights of the rush last on a machine that is several times slower.
THROTTLED_SECONDS = 240.0


class SplitStage(Stage):
    """The stage of the demo, with a dynamic queue and flights that come in a rush."""

    rush: Rush
    ahead: Sequence[int] = range(PARTITIONS)
    """The partitions in which flights are to wait. With all of them, the narrow ranges would need a
    large multiple of it in the wide ones."""

    def plan_of(self, flights: int) -> Plan:
        return Plan(flights, PARTITIONS, THROTTLED_SECONDS)

    def order_of(self, flights: Sequence[Flight]) -> Flights:
        self.rush = Rush(flights)
        return self.rush

    def backlog_ahead(self, record: Record) -> Mapping[int, int]:
        bounds = self.log.bounds(self.ahead)
        # No flight could be added to the others.
        return backlog(self.log, record, [p for p in self.ahead if not bounds.is_final(p)])


class SplitScenario(Acts[SplitStage]):
    """The acts of the demo of splits."""

    def play(self) -> None:
        self._three_consumers_share_the_queue()
        hot = self._a_partition_becomes_hot()
        children = self._the_hottest_is_split(hot)
        others = self._the_hottest_is_split(None)
        (half,) = self._merged(*others)
        (other,) = set(children) - set(self.sealings[1].sealed)
        self._merged(other, half)
        self._stage.rush.end()
        self._the_rest_is_processed()

    def _three_consumers_share_the_queue(self) -> None:
        stage = self._stage
        self._news("a PySpark application (alpha) will share a queue with plain consumers")
        stage.begin()
        for name, program in PROGRAMS.items():
            stage.start_application(name, name, program)
        stage.open(partitioning="dynamic")
        self._news(f"service at {stage.url}, dynamic queue {QUEUE} with {PARTITIONS} partitions")
        stage.publisher.start()
        for name in PROGRAMS:
            self._happens("start", name)
        stage.let_join(*PROGRAMS)
        self._until_shared(*PROGRAMS)

    def _a_partition_becomes_hot(self) -> int:
        stage = self._stage
        (hot, *_) = stage.seen.owned(HOTTEST_OWNER)
        self._news(f"rush: most flights are of the aircraft of partition {hot}")
        before = stage.publisher.published
        stage.ahead = [hot]
        stage.rush.begin(_range(stage.seen, hot))
        # Until the flights that were ahead already are processed, no more are published.
        stage.wait(
            f"flights to rush to {hot}",
            lambda seen: (
                stage.publisher.published > before and seen.backlog[hot] >= stage.plan.lead // 2
            ),
        )
        return hot

    def _the_hottest_is_split(self, expected: int | None) -> list[int]:
        """Split it by the command line; returns the new partitions, once both are processed."""
        self._until_backlog_in(*self._stage.ahead)
        options = ("--hottest", "--seconds", MEASURE_SECONDS)
        children = self._sealed("split", "partitions", "split", QUEUE, *options)
        (split,) = self.sealings[-1].sealed
        if expected not in (None, split):
            raise DemoFailed(f"--hottest chose {split}; the hot partition is {expected}")
        return children

    def _merged(self, *pair: int) -> list[int]:
        """Merge two partitions; returns the new one, once it is processed."""
        self._stage.ahead = pair
        self._until_backlog_in(*pair)
        return self._sealed("merge", "partitions", "merge", QUEUE, *map(str, pair))

    def _sealed(self, kind: SealingKind, *command: str) -> list[int]:
        stage = self._stage
        self._news(f"$ counterpoise {' '.join(command)}")
        # While nothing is appended, no partition is hotter than another; and what comes after a
        # partition is to have flights while those of the partition wait.
        stage.publisher.trickle = max(1, round(stage.plan.rate * CHECK_SECONDS))
        answer: dict[str, Any] = stage.command(*command)
        sealed = {one["partition"]: int(one["end"]) for one in answer["sealed"]}
        children = [one["partition"] for one in answer["children"]]
        self.sealings.append(SealingRecord(kind, sealed, tuple(children), time.time()))
        numbers = (" and ".join(map(str, some)) for some in (sealed, children))
        self._news("sealed {}, began {}".format(*numbers))
        stage.wait(
            f"{kind} {command[-1]} to be carried out",
            lambda seen: all(seen.owners.get(child) for child in children),
        )
        stage.publisher.trickle = 0
        stage.ahead = children
        stage.wait(
            f"{', '.join(map(str, children))} to be processed",
            lambda seen: all(int(seen.committed[child] or 0) > 0 for child in children),
        )
        return children

    def _until_backlog_in(self, *partitions: int) -> None:
        """Wait until flights wait in each of these partitions."""
        least = self._stage.plan.lead // 2
        self._stage.wait(
            f"backlog in {', '.join(map(str, partitions))}",
            lambda seen: all(seen.backlog[partition] >= least for partition in partitions),
        )


def _range(seen: Observation, partition: int) -> HashRange:
    found = parse_range(seen.keys[partition])
    assert found is not None, "the partitions of the built-in log are ranges"
    return found
