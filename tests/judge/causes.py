"""What may be handled again, and by whom late: not what the service calls so, but what a fault
explains.

The service says of each grant how the previous owner let go. A service that says `orphaned` of
everything would excuse itself for everything, so its word alone is none: it counts when the
previous owner was hit, or the service was disturbed, within `reach_seconds` before the grant. That
is how long a fault may have such an effect: a lease, the holddown, a handoff's time. What was
broken and when is in the journal (`tests.judge.journal`), written by the run itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tests.judge.journal import SERVICE, Fault, Granted, Handled, Line, Mended

# Ways of letting go after which messages may come again (the contract, *FlowChangeUpdate*).
UNGRACEFUL = ("forced", "orphaned", "replaced")
# Nobody wrote down that he had been granted it.
UNSEEN = "unseen"


class Hit(NamedTuple):
    """A fault, from when until when."""

    target: str
    kind: str
    begins: float
    ends: float

    def meets(self, consumer: str) -> bool:
        """Whether it hits this consumer: itself, its process, or everybody."""
        process = f"{self.target}-"
        return self.target in (SERVICE, consumer) or consumer.startswith(process)


class Faults:
    """What was broken, by the journal."""

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
        """Whether a fault explains what `sufferer` did or lost at that time; None: whoever it was.

        `told`: who wrote it down. When he was hit himself, it had happened earlier than he says.
        """
        since = at - self._reach_seconds
        if told is not None:
            begins = [hit.begins for hit in self._near(since, at) if hit.meets(told)]
            since = min(begins, default=at) - self._reach_seconds
        return any(sufferer is None or hit.meets(sufferer) for hit in self._near(since, at))

    def _near(self, since: float, until: float) -> Iterator[Hit]:
        return (hit for hit in self._hits if hit.begins <= until and hit.ends >= since)

    def seconds(self, since: float, until: float, kind: str | None = None) -> float:
        """For how much of this time the service was disturbed; with `kind`, by that alone; without,
        by anything, and for as long after as that explains things.
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
    """Who was the first to write down that a partition had been granted to him, how, and when."""

    consumer: str
    handed_over: str
    at: float


class Grants:
    """All grants that somebody saw, and which of them excuse that messages come again."""

    def __init__(self, journal: Iterable[Line], faults: Faults) -> None:
        self._faults = faults
        self.seen: dict[tuple[int, int], Grant] = {}
        for at, entry in journal:
            if isinstance(entry, Handled | Granted):
                grant = Grant(entry.consumer, entry.handed_over, at)
                self.seen.setdefault((entry.partition, entry.epoch), grant)
        self.ways = Counter(grant.handed_over for grant in self.seen.values())

    def unseen(self) -> Iterator[tuple[int, int]]:
        """Partition and epoch of the grants of which only a later one was seen."""
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
        """Why what was done under `earlier` may come again under `later`; None: there is no reason.

        Of several reasons a grant that was seen is the better one.
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
