"""Pins: partitions that belong to a consumer by its name (docs, *Placement*).

An administrator pins a partition to a `client_name`. The rules:

- **A pin is in force while its consumer takes part**: a flow of that name is bound, does not drain
  and is not held back. Of several flows of one name the earliest bound is meant. The flow is then
  the *home* of the partition.
- **A pinned partition counts for its home, wherever it is.** So it is a part of what the home has,
  and the share of a flow is never less than its pins (`shares`). All else is balanced as usual.
- **It moves home at once, before anything else moves**, and is never chosen to leave it.
- **A maximum wins.** Of more pins than the flow may take, the lowest numbers are in force. None is
  in force while all flows together may not take every partition, because each has its maximum then,
  and nothing could make room.
- **A pin is the partition's.** It stays with the queue over handoffs, failures, restarts and
  restores. It ends with its partition, whose children inherit it, because they have its keys.

Not in force is a pin of a partition that retires or waits, and every pin of an exclusive queue.
Aligned partitions are pinned as a group, under the number of the first.

Which pins are in force follows from the pins, the flows that take part, and the partitions that
there are. So it is derived, not recorded: `placement.settle_pins` does it after each record that
changes one of these. A queue without pins does nothing of it.
"""

from __future__ import annotations

from collections import Counter

from broker.core.model import Flow
from broker.core.queue import Queue
from broker.core.transitions import State

_NOT_IN_BALANCE = (State.REMOVED, State.WAITING, State.FINISHED)


def homes(queue: Queue) -> dict[int, Flow]:
    """The pins that are in force: the flow of each partition. O(flows + pins)."""
    found = dict[int, Flow]()
    if queue.exclusive or not queue.pins.of:
        return found
    named = dict[str, Flow]()
    capacity: int | None = 0
    for bind_number in sorted(queue.ranking.counts):
        flow = queue.flows.by_bind_number[bind_number]
        named.setdefault(flow.client_name, flow)
        most = queue.most_groups(flow.max_partitions)
        capacity = None if most is None or capacity is None else capacity + most
    if capacity is not None and capacity < queue.group_count:
        return found
    taken = Counter[str]()
    for number in sorted(queue.pins.of):
        home = named.get(queue.pins.of[number].client_name)
        if home is None or not _counts(queue, number):
            continue
        most = queue.most_groups(home.max_partitions)
        if most is None or taken[home.id] < most:
            found[number] = home
            taken[home.id] += 1
    return found


def unmet(queue: Queue) -> list[int]:
    """The partitions that are pinned, and take part in the balance, without a home. None in an
    exclusive queue, where pins have no effect."""
    if queue.exclusive:
        return []
    return [
        number
        for number in sorted(queue.pins.of)
        if number not in queue.pins.homes and _counts(queue, number)
    ]


def claimed(queue: Queue, client_name: str, most: int | None) -> int:
    """How many groups are pinned to a flow of this name that joins, and takes so many at most."""
    takers = (queue.flows.by_bind_number[bind_number] for bind_number in queue.ranking.counts)
    if not queue.pins.of or any(flow.client_name == client_name for flow in takers):
        return 0
    count = sum(
        pin.client_name == client_name and _counts(queue, number)
        for number, pin in queue.pins.of.items()
    )
    return count if most is None else min(count, most)


def _counts(queue: Queue, number: int) -> bool:
    """Whether the partition takes part in the balance."""
    partition = queue.partitions.get(number)
    return (
        partition is not None and not partition.retiring and partition.state not in _NOT_IN_BALANCE
    )
