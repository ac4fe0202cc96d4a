"""Which messages may be repeated, and which owners may act late: only where a fault explains it.

The service says of each grant how the previous owner gave the partition up. A service that always
says `orphaned` would excuse itself for everything, so its word alone does not count. It counts when
the previous owner was hit by a fault, or the service was disturbed, at most `reach_seconds` before
the grant. A fault can have such an effect for that long: a lease, the holddown and a handoff's
time. The run itself writes what was broken, and when, into the journal (`tests.judge.journal`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tests.judge.journal import SERVICE, Fault, Granted, Handled, Line, Mended

# Handovers after which messages may be repeated (the contract, *FlowChangeUpdate*).
UNGRACEFUL = ("forced", "orphaned", "replaced")
# No consumer wrote that it had been granted the partition.
UNSEEN = "unseen"


class Hit(NamedTuple):
    """A fault with its begin and end."""

    target: str
    kind: str
    begins: float
    ends: float

    def meets(self, consumer: str) -> bool:
        """Whether the fault hits this consumer: itself, its process, or all consumers."""
        process = f"{self.target}-"
        return self.target in (SERVICE, consumer) or consumer.startswith(process)


class Faults:
    """The faults in the journal."""

    def __init__(self, journal: Iterable[Line], reach_seconds: float) -> None:
        self._reach_seconds = reach_seconds
        self._hits: list[Hit] = []
        begun: dict[tuple[str, str], float] = {}
        for at, entry in journal:
            if isinstance(entry, Fault):
                begun[entry] = at
            elif isinstance(entry, Mended):
                self._hits.append(Hit(*entry, begun.pop(entry), at))
        self._hits += [Hit(*fault, at, float("inf")) for fault, at in begun.items()]

    def explain(self, at: float, sufferer: str | None, *, told: str | None = None) -> bool:
        """Whether a fault explains what `sufferer` did or lost at that time; None: any consumer.

        `told`: the consumer that wrote it down. If that one was hit itself, it wrote later than it
        happened.
        """
        since = at - self._reach_seconds
        if told is not None:
            begins = [hit.begins for hit in self._near(since, at) if hit.meets(told)]
            since = min(begins, default=at) - self._reach_seconds
        return any(sufferer is None or hit.meets(sufferer) for hit in self._near(since, at))

    def _near(self, since: float, until: float) -> Iterator[Hit]:
        return (hit for hit in self._hits if hit.begins <= until and hit.ends >= since)

    def seconds(self, since: float, until: float, kind: str | None = None) -> float:
        """How many seconds of this time the service was disturbed.

        With `kind`: by faults of that kind alone. Without: by any fault, and for as long afterwards
        as the fault explains effects.
        """
        total, counted_to = 0.0, since
        reach_seconds = self._reach_seconds if kind is None else 0.0
        for hit in sorted(self._hits, key=lambda hit: hit.begins):
            if hit.target == SERVICE and kind in (None, hit.kind):
                ends = min(hit.ends + reach_seconds, until)
                total += max(0.0, ends - max(hit.begins, counted_to))
                counted_to = max(counted_to, ends)
        return total


class Grant(NamedTuple):
    """The consumer that first wrote that it had been granted a partition, how, and when."""

    consumer: str
    handed_over: str
    at: float


class Grants:
    """All grants that a consumer saw, and which of them excuse repeated messages."""

    def __init__(self, journal: Iterable[Line], faults: Faults) -> None:
        self._faults = faults
        self.seen: dict[tuple[int, int], Grant] = {}
        for at, entry in journal:
            if isinstance(entry, Handled | Granted):
                grant = Grant(entry.consumer, entry.handed_over, at)
                self.seen.setdefault((entry.partition, entry.epoch), grant)
        self.ways = Counter(grant.handed_over for grant in self.seen.values())

    def unseen(self) -> Iterator[tuple[int, int]]:
        """Partition and epoch of the grants that no consumer saw, while a later one was seen."""
        last: dict[int, int] = {}
        for partition, epoch in sorted(self.seen):
            for between in range(last.get(partition, 0) + 1, epoch):
                yield partition, between
            last[partition] = epoch

    def unexplained(self) -> Iterator[tuple[int, int]]:
        """Partition and epoch of the ungraceful grants that no fault explains."""
        for (partition, epoch), grant in self.seen.items():
            if grant.handed_over in UNGRACEFUL and self._reason(partition, epoch) is None:
                yield partition, epoch

    def cause(self, partition: int, earlier: int, later: int) -> str | None:
        """Why work under `earlier` may be repeated under `later`; None: there is no reason.

        Of several reasons, a grant that was seen is preferred.
        """
        reasons = {self._reason(partition, epoch) for epoch in range(earlier + 1, later + 1)}
        return next((way for way in (*UNGRACEFUL, UNSEEN) if way in reasons), None)

    def _reason(self, partition: int, epoch: int) -> str | None:
        grant = self.seen.get((partition, epoch))
        if grant is None:
            later = (each for each in self.seen if each[0] == partition and each[1] > epoch)
            following = self.seen[min(later)]
            explained = self._faults.explain(following.at, None, told=following.consumer)
            return UNSEEN if explained else None
        if grant.handed_over not in UNGRACEFUL:
            return None
        before = self.seen.get((partition, epoch - 1))
        owner = before.consumer if before else None
        explained = self._faults.explain(grant.at, owner, told=grant.consumer)
        return grant.handed_over if explained else None
