"""Plans of Kafka's Python clients for one member that joins. Runs in their environment.

    python planners.py MEMBERS PARTITIONS ROUNDS

Prints JSON: for each planner the CPU seconds of each round, the partitions that change their owner,
and the difference between the members with most and fewest of them afterwards.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

TOPIC = "orders"
NEW = "new"
# Of each member, the partitions that it has.
State = dict[str, list[int]]


def balanced(members: int, partitions: int) -> State:
    """Each member has its share."""
    return {f"m{n:06}": list(range(n, partitions, members)) for n in range(members)}


class Cluster:
    """What the assignors ask of a cluster's metadata."""

    def __init__(self, partitions: int) -> None:
        self._partitions = set(range(partitions))

    def topics(self) -> set[str]:
        return {TOPIC}

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return self._partitions if topic == TOPIC else None


def by_kafka_python(kind: str) -> Callable[[State, int], State]:
    """A planner of kafka-python: `sticky`, `range` or `roundrobin`."""
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
    from kafka.structs import TopicPartition

    assignors = {
        "sticky": StickyPartitionAssignor,
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
    }

    def plan(state: State, partitions: int) -> State:
        assignor = assignors[kind]()
        members = []
        for member, owned in state.items():
            if kind == "sticky":
                had = [TopicPartition(TOPIC, number) for number in owned]
                metadata = StickyPartitionAssignor._metadata([TOPIC], had, 1)
            else:
                metadata = assignor.metadata([TOPIC])
            members.append(
                SimpleNamespace(member_id=member, group_instance_id=None, metadata=metadata)
            )
        found = assignor.assign(Cluster(partitions), members)
        return {member: of_assignment(one) for member, one in found.items()}

    return plan


def by_aiokafka(kind: str) -> Callable[[State, int], State]:
    """A planner of aiokafka: `sticky` or `roundrobin`."""
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
    from aiokafka.structs import TopicPartition

    def plan(state: State, partitions: int) -> State:
        members: dict[str, Any] = {}
        for member, owned in state.items():
            if kind == "sticky":
                had = [TopicPartition(TOPIC, number) for number in owned]
                members[member] = StickyPartitionAssignor._metadata([TOPIC], had, 1)
            else:
                members[member] = RoundRobinPartitionAssignor.metadata([TOPIC])
        used = StickyPartitionAssignor if kind == "sticky" else RoundRobinPartitionAssignor
        found = used.assign(Cluster(partitions), members)
        return {member: of_assignment(one) for member, one in found.items()}

    return plan


def of_assignment(assignment: Any) -> list[int]:
    """The partitions in a member's assignment, of either client."""
    pairs = getattr(assignment, "assigned_partitions", None)
    if pairs is None:
        pairs = assignment.assignment
    return [number for _, numbers in pairs for number in numbers]


def by_faust() -> Callable[[State, int], State]:
    """The planner of faust, without standbys."""
    from faust.assignor.client_assignment import CopartitionedAssignment
    from faust.assignor.copartitioned_assignor import CopartitionedAssignor

    def plan(state: State, partitions: int) -> State:
        had = {
            member: CopartitionedAssignment(set(owned), set(), {TOPIC})
            for member, owned in state.items()
        }
        found = CopartitionedAssignor({TOPIC}, had, partitions, 0).get_assignment()
        return {member: sorted(one.actives) for member, one in found.items()}

    return plan


PLANNERS: dict[str, Callable[[], Callable[[State, int], State]]] = {
    "kafka-python sticky": lambda: by_kafka_python("sticky"),
    "kafka-python range": lambda: by_kafka_python("range"),
    "kafka-python round robin": lambda: by_kafka_python("roundrobin"),
    "aiokafka sticky": lambda: by_aiokafka("sticky"),
    "aiokafka round robin": lambda: by_aiokafka("roundrobin"),
    "faust": by_faust,
}


def measured(plan: Callable[[State, int], State], members: int, partitions: int) -> Any:
    """CPU seconds, partitions that move, and the spread afterwards."""
    before = balanced(members, partitions)
    began = time.process_time()
    after = plan({**before, NEW: []}, partitions)
    seconds = time.process_time() - began
    owners = {number: member for member, owned in after.items() for number in owned}
    if len(owners) != partitions or sum(map(len, after.values())) != partitions:
        raise AssertionError("a partition has no owner, or two")
    moved = sum(owners[n] != member for member, owned in before.items() for n in owned)
    counts = [len(owned) for owned in after.values()]
    return seconds, moved, max(counts) - min(counts)


def main() -> None:
    """Measure all planners; print JSON."""
    members, partitions, rounds = map(int, sys.argv[1:])
    found = {}
    for name, make in PLANNERS.items():
        plan = make()
        results = [measured(plan, members, partitions) for _ in range(rounds)]
        found[name] = {
            "seconds": [seconds for seconds, _, _ in results],
            "moved": results[-1][1],
            "spread": results[-1][2],
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
