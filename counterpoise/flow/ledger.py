"""The ledger of a consumer: what it holds, what is done, and therefore what to commit and release.

A consumer holds partitions, each under an epoch. A pair (partition, epoch) is one *grant*; no other
consumer ever has the same grant (the contract, *What must never happen*, 1). These places in a
partition are always in this order:

    committed  <=  done  <=  read up to
    (service)     (user)     (caller)

- *Committed up to*: what the service has confirmed, or has named in its view.
- *Done up to*: every message before it is processed, with its effect in place.
- *Read up to* belongs to the caller: buffered messages can be dropped and read again. Only messages
  that it has handed to the user are *in flight*; the ledger knows the partitions of these.

A grant is in one of these states:

    open ──► releasing ──► over
     ▲ │         │           ▲
     │ │         │           │  its epoch is over, it has ended, or the service has refused it
     │ └─────────┼───────────┘
     └───────────┘  answered not_revoking: a resize has taken a retiring partition back

A grant that is being revoked is not open either, and its release is still to come. New messages are
handed out only while a grant is open. One that is paused is not open until the pause ends; it is
committed, released and finished like any other.

Rules
-----
1. **No commit past what is done.** A commit carries `done` of a grant, under the grant's epoch.
2. **No release with anything in flight.** A partition is in flight, not a grant: messages that were
   begun under an earlier epoch must end first. A partition is released when it is revoked, or when
   it retires and is done up to its final end; a draining flow may release all it holds. The release
   carries the position, so it needs no commit before it.
3. **A release that was decided stays decided.** From then on no message of the grant is handed out,
   and the release is due until the service has answered: it may have received an earlier call.
4. **Epochs are not mixed.** A grant begins at the position that the service names. Work under
   another epoch counts only if the grant *continues* that epoch: its epoch is the next one, and the
   service says `replaced`, so this instance held the partition before and no consumer did in
   between. Then the ends of its own work count, even if the service never heard of them.

5. **A sealed partition ends with one call.** When a partition that its log has sealed is done up to
   the sealed end, one call reports the end as its position, that it is finished, and what comes
   after it. Nothing past the end exists, so nothing past it is committed before. A revoked or
   draining partition is released at its end like any other: its next owner finds it sealed, and
   reports then. So each step may be the last of its owner's life, and no child is lost. A report
   that the service refuses (`REFUSALS`) stays due: else what comes after the partition would be
   passed over in silence.
6. **A cut that is reached is said.** While the view names the cut of a partition and does not say
   that it is reached, a commit is due as soon as `done` is at the cut or past it, even if the
   position is committed already. How far a partition may be read meanwhile, its caller asks
   `counterpoise.flow.barriers`.

7. **What is set aside comes before the end.** A consumer may set messages aside, which `done` has
   passed then (`counterpoise.consumer.redelivery`). While it `holds_back` some, the grant is not at
   its end: a retiring or sealed partition is not finished.

8. **What is done above goes with the position.** An owner may finish messages out of their order
   (`counterpoise.consumer.key_order`). `done` is then before the lowest that is not done, and each
   commit and release says what is done above it (`counterpoise.flow.done_above`). A grant begins
   with what the service names.

What to tell the service is computed again each time (level-triggered). A call that failed, or whose
answer was lost, is made again with the values of that moment.

No clock, no I/O, no threads: callers hold a lock. `Grant.done` may be moved without it by the one
thread that has the partition in flight; `in_flight` is replaced as a whole and may be read by any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from counterpoise.flow.barriers import is_at
from counterpoise.flow.done_above import DoneAbove
from counterpoise.flow.view import GrantId, Owned
from counterpoise.logs.port import Bounds, Successor
from counterpoise.wire import MOST_DONE_ABOVE, Child, ChildrenItem, CommitItem, ReleaseItem

# A call of the service names at most 10,000 children and parents; an end usually has two of each.
MOST_ENDS = 1000
# Characters of what is done above all positions of a call, of whose body the service takes 1 MiB.
MOST_IN_A_CALL = 400_000
REFUSALS: Mapping[str, str] = {
    "not_ended": "the service's log says that it goes on",
    "conflicting_child": "the queue knows another partition with the key or number of a child",
    "too_many_partitions": "the queue has no room for what comes after it",
}
"""Outcomes of a report that a partition has ended, after which a person has to act, and why."""


def continues(epoch: int, owned: Owned) -> bool:
    """Whether work under `epoch` counts for the partition as it is held now (rule 4)."""
    if owned.handed_over == "replaced" and owned.epoch == epoch + 1:
        return True
    return owned.epoch == epoch


@dataclass(eq=False, slots=True)
class Grant:
    """One partition held under one epoch. `done` is None where the queue's `start` decides.

    `owned` is how it is held now; `id` never changes.
    """

    owned: Owned
    done: str | None
    partition: int = field(init=False)
    epoch: int = field(init=False)
    id: GrantId = field(init=False)
    # What is done above `done`, for an owner that knows: what the owner before has left, and what
    # it adds. None: an owner that does not know, whose commits take the record back.
    above: DoneAbove | None = None
    # The last commit that the service has confirmed, with what was done above it.
    confirmed: str | None = None
    confirmed_above: str | None = None
    # Where the partition starts and ends in the log, once no message can be appended any more.
    final: tuple[str, str] | None = None
    # What comes after it, if the log has sealed it.
    successors: tuple[Successor, ...] | None = None
    releasing: bool = False
    over: bool = False
    # Why the service refuses the report that it has ended (`REFUSALS`).
    refused: str | None = None
    # Messages before `done` are set aside, and are still to be handled.
    holds_back: bool = False
    # The service has confirmed, since the last view, that the cut is reached.
    said: bool = False
    # Whether messages may be handed out; follows from the fields above and from `owned`.
    open: bool = True

    def __post_init__(self) -> None:
        self.partition, self.epoch = self.id = self.owned.partition, self.owned.epoch
        self.confirmed_above = self.owned.done_above

    def done_above(self, done: str | None, most: int = MOST_DONE_ABOVE) -> str | None:
        """What is done above `done`, as it is committed with it, in at most `most` characters."""
        return self.above.text(done, most) if self.above else None

    @property
    def committed(self) -> str | None:
        """The service's committed position, as far as known."""
        return self.owned.position if self.confirmed is None else self.confirmed

    @property
    def at_end(self) -> bool:
        """Whether it is done up to its final end, and nothing is held back (rule 7)."""
        if self.final is None or self.holds_back:
            return False
        start, end = self.final
        return (start if self.done is None else self.done) == end

    @property
    def reached_cut(self) -> bool:
        """Whether it is done up to its cut, and the service does not say so yet (rule 6)."""
        owned = self.owned
        if owned.cut is None or owned.reached_cut or self.said:
            return False
        return is_at(self.done, owned.cut)

    @property
    def finished(self) -> bool:
        """Whether it is a retiring partition that is done up to its final end."""
        return self.owned.state == "retiring" and self.successors is None and self.at_end

    @property
    def ended(self) -> bool:
        """Whether its log has sealed it, and it is done up to the sealed end."""
        return self.successors is not None and self.at_end

    @property
    def stays(self) -> bool:
        """Whether it is neither over nor on its way to somebody else."""
        return not (self.over or self.releasing or self.owned.state == "revoking")

    def settle(self) -> None:
        """Compute `open` again."""
        self.open = self.stays and self.owned.paused is None


@dataclass(frozen=True, slots=True)
class Changes:
    """The difference that a view made: new grants, grants that stopped being open or are open
    again, ended grants.

    `moved`: cuts up to which grants are read may have come, gone or moved. `ending`: the end of a
    grant may be final by now, or is not any more.
    """

    new: tuple[Grant, ...] = ()
    stopped: tuple[Grant, ...] = ()
    opened: tuple[Grant, ...] = ()
    gone: tuple[Grant, ...] = ()
    moved: bool = False
    ending: bool = False


@dataclass(frozen=True, slots=True)
class Todo:
    """What to tell the service."""

    commits: tuple[CommitItem, ...] = ()
    releases: tuple[ReleaseItem, ...] = ()
    ends: tuple[ChildrenItem, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.commits or self.releases or self.ends)


Item: TypeAlias = CommitItem | ReleaseItem | ChildrenItem
"""What is told of one grant."""


class Ledger:
    """The grants of one consumer. See the module's docstring."""

    def __init__(self) -> None:
        self._grants: dict[int, Grant] = {}
        # The view that was taken over last.
        self.view: Mapping[int, Owned] | None = None
        self.in_flight: frozenset[int] = frozenset()

    # ------------------------------------------------------------------ what is held

    def follow(self, view: Mapping[int, Owned]) -> Changes:
        """Take over what the flow owns now. `view` is a snapshot and never changes."""
        if view is self.view:
            return Changes()
        self.view = view
        gone = [one for one in self._grants.values() if not _holds(view, one)]
        for grant in gone:
            del self._grants[grant.partition]
            grant.over, grant.open = True, False
        new: list[Grant] = []
        stopped: list[Grant] = []
        opened: list[Grant] = []
        moved = ending = False
        for number, owned in view.items():
            known = self._grants.get(number)
            if known is None:
                grant = self._grants[number] = Grant(owned, owned.position)
                grant.settle()
                new.append(grant)
            elif known.owned is not owned:
                moved = moved or (
                    owned.resize is not None and owned.revision != known.owned.revision
                )
                ending = ending or (owned.state == "retiring") != (known.owned.state == "retiring")
                was_open = known.open
                self._update(known, owned)
                if known.open is not was_open:
                    (stopped if was_open else opened).append(known)
        return Changes(tuple(new), tuple(stopped), tuple(opened), tuple(gone), moved, ending)

    def _update(self, grant: Grant, owned: Owned) -> None:
        """Take over how a known grant is held now."""
        if grant.owned.state == "retiring" and owned.state != "retiring":
            grant.final = grant.refused = None
        if grant.done is None:
            grant.done = owned.position
        # A position that we committed ourselves makes no view of the service.
        grant.said = grant.said and owned.revision == grant.owned.revision
        grant.owned = owned
        grant.settle()

    def held(self, partition: int) -> Grant | None:
        """The grant under which the partition is held, even if the grant is over."""
        return self._grants.get(partition)

    def held_open(self, partition: int, epoch: int) -> Grant | None:
        """The grant, if messages may be handed out under this epoch."""
        grant = self._grants.get(partition)
        return grant if grant is not None and grant.open and grant.epoch == epoch else None

    def grants(self) -> list[Grant]:
        """All grants, in the order of partitions."""
        return [self._grants[number] for number in sorted(self._grants)]

    def readable(self) -> list[Grant]:
        """The grants of which more may be read, in the order of partitions: they are open, and not
        done up to a final end.
        """
        return [grant for grant in self.grants() if grant.open and not grant.at_end]

    # ------------------------------------------------------------------ what is done

    def begin(self, partitions: Iterable[int]) -> None:
        """Messages of these partitions are in flight from now on."""
        self.in_flight = self.in_flight.union(partitions)

    def end(self, partitions: Iterable[int] | None = None) -> None:
        """No message of these partitions (None: of any) is in flight any more."""
        self.in_flight = (
            frozenset() if partitions is None else self.in_flight.difference(partitions)
        )

    def done(self, partition: int, epoch: int, position: str) -> Grant | None:
        """What was read under `epoch` is done up to `position`.

        Returns the grant for which it counts; None: it was read in vain, because the epoch is over.
        """
        grant = self._grants.get(partition)
        if grant is None or not continues(epoch, grant.owned):
            return None
        grant.done = position
        return grant

    def starts_at(self, partition: int, epoch: int, position: str) -> bool:
        """The partition starts at `position` in the log. False if the grant has a position."""
        grant = self.held_open(partition, epoch)
        if grant is None or grant.done is not None:
            return False
        grant.done = position
        return True

    def ends_at(
        self,
        partition: int,
        start: str,
        end: str | None,
        successors: tuple[Successor, ...] | None = None,
    ) -> None:
        """The log says that the partition ends at `end` for good; None: it may still grow.

        `successors`: what comes after it, if the log has sealed it.
        """
        grant = self._grants.get(partition)
        if grant is not None:
            grant.final = None if end is None else (start, end)
            grant.successors = successors

    def learn_ends(self, bounds: Bounds, held: Mapping[int, Owned]) -> None:
        """Take over which partitions end for good; `held` is the view when the log was asked.

        An end is of the epoch of that moment: a retiring partition may be taken back and grow, and
        retires again under another epoch. End and partition count are of the same instant.
        """
        for number, end in bounds.ends.items():
            grant = self._grants.get(number)
            if grant is not None and number in held and held[number].epoch == grant.epoch:
                final = end if bounds.is_final(number) else None
                self.ends_at(number, bounds.starts[number], final, bounds.sealed.get(number))

    # ------------------------------------------------------------------ calls to the service

    def due(self, *, parting: bool = False) -> Todo:
        """Commits and releases that are due. `parting`: also what a draining flow may release."""
        releases, ends = self.releases(parting=parting), self.ends(parting=parting)
        carried = {item.partition for item in releases} | {item.partition for item in ends}
        commits = tuple(item for item in self.commits() if item.partition not in carried)
        return Todo(commits, releases, ends)

    def ends(self, *, parting: bool = False) -> tuple[ChildrenItem, ...]:
        """The ends of sealed partitions that are to be reported, in the order of partitions: as
        many as one call takes."""
        due = [
            ChildrenItem(
                one.partition,
                one.epoch,
                one.final[1],
                True,
                tuple(Child(s.key, s.parents, s.partition) for s in one.successors),
            )
            for one in self._grants.values()
            if one.ended
            and one.stays
            and not parting
            and one.partition not in self.in_flight
            and one.final is not None
            and one.successors is not None
        ]
        return tuple(sorted(due, key=_partition)[:MOST_ENDS])

    def releases(self, *, parting: bool = False) -> tuple[ReleaseItem, ...]:
        """The releases that are due, in the order of partitions. Pass them to `decide`."""
        most = self._most_done_above
        due = [
            ReleaseItem(
                one.partition,
                one.epoch,
                one.done,
                one.finished,
                one.reached_cut,
                one.done_above(one.done, most),
            )
            for one in self._grants.values()
            if not one.over
            and one.partition not in self.in_flight
            and (parting or one.releasing or one.owned.state == "revoking" or one.finished)
        ]
        return tuple(sorted(due, key=_partition))

    def commits(self, *, everything: bool = False) -> tuple[CommitItem, ...]:
        """The commits that are due. `everything`: confirmed ones too, to check the ownership."""
        most = self._most_done_above
        due = [
            CommitItem(one.partition, one.epoch, done, one.reached_cut, above)
            for one in self._grants.values()
            # Read once: the thread that has the partition in flight may change it.
            if (done := one.done) is not None
            and not (one.over or one.releasing)
            and (
                (above := one.done_above(done, most)) != one.confirmed_above
                or everything
                or done != one.committed
                or one.reached_cut
            )
        ]
        return tuple(sorted(due, key=_partition))

    @property
    def _most_done_above(self) -> int:
        """Characters for each grant, so that all fit into one call."""
        return min(MOST_DONE_ABOVE, MOST_IN_A_CALL // max(1, len(self._grants)))

    def decide(self, releases: Iterable[ReleaseItem]) -> None:
        """These releases are decided, and due until each is answered (rule 3)."""
        for item in releases:
            grant = self._held(item)
            if grant is not None:
                grant.releasing = True
                grant.settle()

    def answered(self, item: Item, outcome: str) -> Grant | None:
        """The service's answer for one item. Returns its grant, None if the grant has ended
        already.
        """
        grant = self._held(item)
        if grant is None:
            return None
        if outcome == "not_revoking":
            grant.releasing = False
        elif outcome == "unknown_parent":
            pass  # another parent of a child is reported later, by its own owner; tried again
        elif outcome in REFUSALS:
            grant.releasing, grant.refused = False, outcome
        elif outcome != "ok" or not isinstance(item, CommitItem):
            grant.over = True
        else:
            grant.confirmed, grant.confirmed_above = item.position, item.done_above
            grant.said = grant.said or item.reached_cut
        grant.settle()
        return grant

    def refused(self) -> Mapping[GrantId, str]:
        """Why the service refuses the ends of grants, in the order of partitions."""
        return {
            one.id: f"{one.refused}: {REFUSALS[one.refused]}"
            for one in self.grants()
            if one.refused is not None and not one.over
        }

    def _held(self, item: Item) -> Grant | None:
        grant = self._grants.get(item.partition)
        return grant if grant is not None and grant.epoch == item.epoch else None


def _partition(item: Item) -> int:
    return item.partition


def _holds(view: Mapping[int, Owned], grant: Grant) -> bool:
    owned = view.get(grant.partition)
    return owned is not None and owned.epoch == grant.epoch
