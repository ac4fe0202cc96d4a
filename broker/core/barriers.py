"""What an ordered resize adds to a queue: which partitions wait, for which others, and up to where.

Theory
------
A key has the hash h. Before a resize from N to M partitions its messages go to partition h mod N,
after it to h mod M. The log takes a *cut* of each partition in the transaction of the resize: the
older messages of a key lie below the cut of partition j = h mod N, the newer ones at the cut of
partition i = h mod M or past it (`counterpoise.logs.port`, promise 8).

**The rule.** Partition i may be processed past its cut only when each old partition j that can have
a key in common with it has been processed up to its own cut. There is an h with h = j (mod N) and
h = i (mod M) exactly if i = j (mod gcd(N, M)). So partition i *waits for* the partitions j < N of
its class modulo gcd(N, M) that have not *reached* their cuts. Waiting for more would be in vain,
waiting for less would let a newer message pass an older one. A barrier of i is lifted with the last
of them; i is processed in order, so its own part of the class needs no barrier.

**Why no newer message passes an older one**, whatever happens between the steps:

1. *Nobody reads past a cut unknowingly.* A consumer learns the end of a partition from the log,
   together with the number of the log's last resize and its cuts. Its view says of which resize the
   queue knows the cuts. If the log's is newer, the consumer stops at the log's cuts, else at `cut`
   while the view says `waits_for`. So it does not matter whether the service has died between the
   log's transaction and its own, or whether the view is late.
2. *A barrier is lifted by positions alone.* A partition has reached its cut when its committed
   position, which only the owner of the present epoch can move, is at the cut or past it. A
   committed position means processed. Work under an old epoch moves no position.
3. *Cuts belong to partitions and not to epochs.* A forced handoff, a replaced or orphaned owner, a
   warm-up: the next owner gets the partition at its committed position with the same barrier.
4. *One resize at a time.* The log keeps the cuts of its last resize. The next one is refused until
   every queue that reads the log with ordered resizes has reached all cuts (`resize_unsettled`),
   so one set of cuts is enough. The others are found settled before the owner decides. So the owner
   takes its cuts only when each of them has followed the log or awaits its cuts, and decides only
   if it was not resized since they were found settled (`Change.checked`). Cuts of a resize that
   comes nevertheless (an administrator who sets positions at that very moment) are taken when
   those before are reached; until then rule 1 holds all consumers at the newer cuts.
5. *Publishers cannot be late.* The log refuses an append that was routed with another count than
   its own, within the append.
6. *A retiring partition ends at its cut*, so its owner reaches it by draining it. A partition that
   is gone has reached its cut: it was finished.

**Positions that an administrator sets** mean: everything before them counts as processed. So a
partition that is set to its cut or past it has reached it. A partition that is set to before its
cut has not, even if the resize was settled before: the barriers come back, and the messages that
are read again come in the order of the last resize, too. (Of earlier resizes the log has no cuts.)

Several queues may read one log. The cuts are the log's; who has reached them is each queue's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from math import gcd

from broker.core.structures import Journal


class KnownResize:
    """What a queue knows of the last resize of its log: `seen` is the number of the last one of
    which it knows the cuts, `barriers` what of it is not settled.

    While `cuts_due` is not None, cuts of the log are awaited, and read at that time, after
    `cuts_attempt` failures.
    """

    __slots__ = ("barriers", "cuts_attempt", "cuts_due", "seen")

    def __init__(self) -> None:
        self.seen = 0
        self.barriers: Barriers | None = None
        self.cuts_due: float | None = None
        self.cuts_attempt = 0


class Barriers:
    """The cuts of the resize number `resize`, until all are reached; see above for the rule.

    `cuts` are those of the queue's partitions, `unreached` the old
    partitions that are not processed up to theirs.
    """

    __slots__ = ("_left", "cuts", "resize", "resized_from", "resized_to", "unreached")

    def __init__(self, resize: int, resized_from: int, resized_to: int) -> None:
        self.resize = resize
        self.resized_from = resized_from
        self.resized_to = resized_to
        self.cuts: dict[int, str] = {}
        self.unreached: set[int] = set()
        # By class: how many partitions are unreached.
        self._left: dict[int, int] = {}

    @property
    def classes(self) -> int:
        """How many classes there are: partitions of one class may have keys in common."""
        return gcd(self.resized_from, self.resized_to)

    def waits(self, number: int) -> bool:
        """Whether the partition may not be processed past its cut."""
        return self._waiting(number) > 0

    def _waiting(self, number: int) -> int:
        """For how many partitions it waits."""
        if number >= self.resized_to or number not in self.cuts:
            return 0
        return self._left.get(number % self.classes, 0) - (number in self.unreached)

    def waits_for(self, number: int, most: int) -> tuple[int, ...]:
        """The lowest partitions for which it waits, at most so many."""
        if not self.waits(number):
            return ()
        others = (other for other in self._of_class(number) if other != number)
        return tuple(islice((other for other in others if other in self.unreached), most))

    def _of_class(self, number: int) -> Iterator[int]:
        """The partitions before the resize of the class of this one."""
        return iter(range(number % self.classes, self.resized_from, self.classes))

    def waiting(self) -> int:
        """How many partitions wait."""
        return sum(self.waits(number) for number in self.cuts)

    def take(self, journal: Journal, number: int, cut: str, reached: bool) -> None:
        """The partition has this cut."""
        journal.put(self.cuts, number, cut)
        if not reached and number < self.resized_from:
            journal.add(self.unreached, number)
            self._count(journal, number, 1)

    def restore(self, journal: Journal, number: int, cut: str, reached: bool) -> None:
        """As `take`, from a store, which may still have the cut of an earlier resize."""
        if number < max(self.resized_from, self.resized_to):
            self.take(journal, number, cut, reached)

    def reach(self, journal: Journal, number: int) -> list[int]:
        """The partition is processed up to its cut; the partitions for which that changes anything.

        Those are the partition itself, and those that do not wait any more. Nothing if it was so
        before.
        """
        if number not in self.unreached:
            return []
        journal.discard(self.unreached, number)
        self._count(journal, number, -1)
        left = self._left.get(number % self.classes, 0)
        if left > 1:
            return [number]
        # One that is left waits for itself alone, and goes on. If none is, all of the class do.
        going = range(number % self.classes, self.resized_to, self.classes)
        return [number, *(o for o in going if o != number and (not left or o in self.unreached))]

    def _count(self, journal: Journal, number: int, difference: int) -> None:
        residue = number % self.classes
        left = self._left.get(residue, 0) + difference
        if left:
            journal.put(self._left, residue, left)
        else:
            journal.drop(self._left, residue)
