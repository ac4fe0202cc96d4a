"""Partitions that begin and end (the contract, *Lineage*): what may be reported, and what follows.

The rules, and why they hold whoever crashes between two steps:

- **No child before its parents.** A child waits until all its parents are finished (`graph`), and
  only an owner finishes a partition, in its epoch.
- **No child is lost.** An item finishes its partition and records its children in one entry, or
  does neither. So nothing is to be repaired after a crash: before the item the owner, or its
  successor, still owns the partition and reads the same end of it again.
- **One child, however often it is reported.** A key is a partition's for as long as the queue
  exists. A report that contradicts what is known (other parents, another number, a number that is
  taken) is refused, because either could be the mistake.
- **Numbers and names are bounded.** A queue knows at most `MOST_KEYS` keys in its life, those of
  removed partitions among them. A number that a report names leaves as many free above it as the
  queue may still get keys. So however far reports jump, the queue always has a next number.
- **Nothing else moves.** What has nothing to wait for any more is granted to the flow with the
  fewest partitions, at once, whatever the status; this is no trigger. In a running rebalance the
  loop does it.
"""

from __future__ import annotations

from broker.core import commands as c
from broker.core import records as r
from broker.core.commands import Outcome
from broker.core.draft import Draft
from broker.core.errors import Invalid
from broker.core.graph import Lineage
from broker.core.model import MOST_PARTITIONS, Partition
from broker.core.pauses import last
from broker.core.queue import Queue

# The trigger of grants to partitions whose parents are finished.
TRIGGER = "lineage"
# Numbers of a log may come out of order, but not from anywhere: so far above the highest.
FARTHEST = 1_000_000
MOST_NUMBER = 2**31 - 1
# Of all partitions together, as if each were merged of two. Parents are stored by key, and all are
# read when a replica takes up the queue.
MOST_PARENTS = 2 * MOST_PARTITIONS
# In the life of a queue: keys of removed partitions are remembered, too.
MOST_KEYS = 1_000_000


def lineage_of(queue: Queue) -> Lineage:
    """The graph of a dynamic queue. Raises Invalid for a fixed one."""
    if queue.lineage is None:
        raise Invalid(
            f"The queue {queue.name!r} has fixed partitions, which have no children; create a "
            'queue with "partitioning": "dynamic" for them.'
        )
    return queue.lineage


def record_children(draft: Draft, children: tuple[c.NewChild, ...]) -> Outcome:
    """Records the partitions that are new. With any outcome but `ok` nothing is recorded."""
    lineage = lineage_of(draft.queue)
    new: dict[str, r.Child] = {}
    numbers: set[int] = set()
    parent_count = lineage.parent_count
    for child in children:
        if child.key in lineage.numbers or child.key in new:
            if not _agrees(lineage, new, child):
                return Outcome.CONFLICTING_CHILD
            continue
        if not all(key in lineage.numbers or key in new for key in child.parents):
            return Outcome.UNKNOWN_PARENT
        number = child.partition
        if number is None:
            number = max(lineage.next_number, max(numbers, default=-1) + 1)
        elif not _may_take(lineage, number, len(new)):
            return Outcome.CONFLICTING_CHILD
        if number in lineage.taken or number in numbers or number > MOST_NUMBER:
            return Outcome.CONFLICTING_CHILD
        numbers.add(number)
        # A parent that is named twice is one parent.
        parents = tuple(dict.fromkeys(child.parents))
        new[child.key] = r.Child(number, child.key, parents)
        parent_count += len(parents)
    if len(new) > room(lineage) or parent_count > MOST_PARENTS:
        return Outcome.TOO_MANY_PARTITIONS
    if new:
        draft.emit(r.ChildrenAdded(tuple(new.values()), draft.now))
        for child in children:
            if child.key in new and child.position is not None:
                draft.begins.setdefault(new[child.key].partition, child.position)
    return Outcome.OK


def _agrees(lineage: Lineage, new: dict[str, r.Child], child: c.NewChild) -> bool:
    """Whether a report says of a known partition what is known; parents of a removed one are
    forgotten."""
    if child.key in new:
        number, parents = new[child.key].partition, new[child.key].parents
    else:
        number = lineage.numbers[child.key]
        node = lineage.nodes.get(number)
        parents = child.parents if node is None else node.parents
    return child.partition in (None, number) and {*parents} == {*child.parents}


def room(lineage: Lineage) -> int:
    """How many partitions can still be added."""
    return min(MOST_PARTITIONS - len(lineage.nodes), MOST_KEYS - len(lineage.numbers))


def _may_take(lineage: Lineage, number: int, new: int) -> bool:
    """Whether a report may name this number for a partition after so many new ones."""
    left = MOST_KEYS - len(lineage.numbers) - new - 1
    return number < lineage.next_number + FARTHEST and number <= MOST_NUMBER - max(0, left)


def finish(draft: Draft, partition: Partition, flow_id: str) -> None:
    """The owner has processed the partition to its end; what nothing unfinished follows goes."""
    lineage = lineage_of(draft.queue)
    _bequeath_pause(draft, partition.number)
    _bequeath_pin(draft, partition.number)
    draft.emit(r.PartitionFinished(partition.number, flow_id, draft.now))
    removable = lineage.removable(partition.number)
    if removable:
        draft.emit(r.FinishedRemoved(removable, draft.now))


def _bequeath_pause(draft: Draft, number: int) -> None:
    """The children of a partition that is paused itself are paused in its place (`pauses`)."""
    queue = draft.queue
    pauses, lineage = queue.pauses.of, lineage_of(queue)
    own = pauses.get(number)
    if own is None:
        return
    children = (lineage.numbers[key] for key in lineage.nodes[number].children)
    # Of two parents that are paused, the pause that ends last goes on.
    heirs = tuple(sorted(n for n in children if last((pauses.get(n), own)) is own))
    if heirs:
        draft.emit(r.Paused(heirs, own.until, own.reason, draft.now))


def _bequeath_pin(draft: Draft, number: int) -> None:
    """The children of a partition that is pinned are pinned in its place (`pins`)."""
    queue = draft.queue
    own = queue.pins.of.get(number)
    if own is None:
        return
    lineage = lineage_of(queue)
    children = (lineage.numbers[key] for key in lineage.nodes[number].children)
    # Of two parents that are pinned, and of a child's own pin, the latest goes on.
    heirs = tuple(
        sorted(
            child
            for child in children
            if child not in queue.pins.of or queue.pins.of[child].since < own.since
        )
    )
    if heirs:
        draft.emit(r.Pinned(heirs, own.client_name, own.reason, own.since))


def end_waits(draft: Draft) -> tuple[int, ...]:
    """Ends the waits of the partitions whose parents are all finished, lowest number first."""
    lineage = draft.queue.lineage
    if lineage is None or not lineage.over:
        return ()
    numbers = tuple(sorted(lineage.over))
    draft.emit(r.WaitsEnded(numbers, draft.now))
    return numbers
