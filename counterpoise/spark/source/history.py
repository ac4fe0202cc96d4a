"""Which history to replay, and when a warm-up is near enough: rules without I/O.

The replayed portions of one partition form a *chain* without gaps from the floor to the granted
position. The offset holds the last portion. `stage` decides how the chain continues:

- A chain that is not ahead of the target continues where it ended, under its tenure. Owners in
  between do not matter: state is a function of the log.
- A chain that is ahead of the target holds messages that the owner has yet to process, because
  positions were reset. It is unusable. A new chain begins at the floor, under an unused tenure.

A tenure is the epoch that was coming when its chain began. This epoch is above all epochs under
which this query has held the partition, so it differs from all earlier tenures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from counterpoise.flow.view import Owned, Warming
from counterpoise.logs import Bounds, Log
from counterpoise.spark.offsets import Replay


@dataclass(frozen=True, slots=True)
class Restore:
    """The state of a partition that must be brought to `target`.

    `epoch` is the query's own if `granted`. Otherwise it is the present owner's, and `target` is
    that owner's last committed position. `aim`: the target when the chain's last portion was
    planned, if that portion reached it.
    """

    partition: int
    epoch: int
    target: str
    granted: bool
    chain: Replay | None = None
    aim: str | None = None

    @property
    def coming_epoch(self) -> int:
        """The epoch under which the partition is held, or will be at the next grant."""
        return self.epoch if self.granted else self.epoch + 1


@dataclass(frozen=True, slots=True)
class ChainStage:
    """How far a chain is: history [begin, target) is missing. `gap`: [from, to) was trimmed."""

    tenure: int
    begin: str
    target: str
    near: bool
    gap: tuple[str, str] | None = None


@dataclass(frozen=True)
class Portions:
    """What to replay next, by partition.

    `tenures`: of granted partitions whose state is complete. `near`: (partition, epoch of the
    owner) of partitions that may be reported ready. `aims`: targets that a portion reaches. `gaps`:
    positions that were trimmed, by (partition, tenure).
    """

    replays: Mapping[int, Replay] = field(default_factory=dict)
    tenures: Mapping[int, int] = field(default_factory=dict)
    near: frozenset[tuple[int, int]] = frozenset()
    aims: Mapping[tuple[int, int], str] = field(default_factory=dict)
    gaps: Mapping[tuple[int, int], tuple[str, str]] = field(default_factory=dict)


FindFloor = Callable[[int, str, str], str]
"""(partition, where its log starts, target) -> where its history begins."""


def earliest(_partition: int, first: str, _target: str) -> str:
    """All history that the log still has."""
    return first


def restore_of(
    held: Owned | Warming, chain: Replay | None, aims: Mapping[tuple[int, int], str]
) -> Restore | None:
    """What the partition's state lacks; None if none of its messages was ever processed."""
    if held.position is None:
        return None
    return Restore(
        held.partition,
        held.epoch,
        held.position,
        isinstance(held, Owned),
        chain,
        aims.get((held.partition, held.epoch)),
    )


def stage(one: Restore, log: Log, bounds: Bounds, find: FindFloor = earliest) -> ChainStage:
    """How far the chain of `one` is. Does not access the log, unless `find` does."""
    first, chain = bounds.starts[one.partition], one.chain
    target = lower(log, one.target, bounds.ends[one.partition])
    if chain is None or not _goes_on(chain, one, log):
        tenure = one.coming_epoch if chain is None else max(one.coming_epoch, chain.tenure + 1)
        begin = find(one.partition, first, target)
        gap = ("0", first) if find is earliest and first != "0" else None
        return ChainStage(tenure, begin, target, log.compare(begin, target) >= 0, gap)
    begin, gap = chain.end, None
    near = log.compare(begin, lower(log, one.aim or one.target, target)) >= 0
    if log.compare(begin, first) < 0 and log.compare(begin, target) < 0:
        begin, gap = first, (begin, first)
    return ChainStage(chain.tenure, begin, target, near, gap)


def _goes_on(chain: Replay, one: Restore, log: Log) -> bool:
    if log.compare(chain.end, one.target) <= 0:
        return True
    # The same owner's position only rises, so this target is older than the known one.
    return not one.granted and chain.tenure == one.coming_epoch


def stages(
    restores: Iterable[Restore], log: Log, bounds: Bounds, find: FindFloor
) -> dict[int, ChainStage]:
    """`stage` of each, by partition."""
    return {one.partition: stage(one, log, bounds, find) for one in restores}


def portions(
    restores: Iterable[Restore], found: Mapping[int, ChainStage], ends: Mapping[int, str], log: Log
) -> Portions:
    """What to replay when the partitions may be replayed up to `ends`."""
    replays: dict[int, Replay] = {}
    tenures: dict[int, int] = {}
    near: set[tuple[int, int]] = set()
    aims: dict[tuple[int, int], str] = {}
    gaps: dict[tuple[int, int], tuple[str, str]] = {}
    for one in restores:
        number, at = one.partition, found[one.partition]
        end = ends.get(number, at.begin)
        if at.gap is not None:
            gaps[number, at.tenure] = at.gap
        if log.compare(at.begin, end) < 0:
            replays[number] = Replay(at.tenure, at.begin, end)
        elif one.granted and log.compare(at.begin, at.target) >= 0:
            tenures[number] = at.tenure
        if not one.granted:
            if at.near:
                near.add((number, one.epoch))
            if log.compare(end, at.target) >= 0:
                aims[number, one.epoch] = end
    return Portions(replays, tenures, frozenset(near), aims, gaps)


def lower(log: Log, a: str, b: str) -> str:
    """The lower of two positions."""
    return a if log.compare(a, b) <= 0 else b
