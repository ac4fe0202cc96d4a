"""What is done, what is in flight, and so what to commit and what to release.

Two rules, both from docs, *Spark*:

1. A position is committed to the service only after the sink has it: the commits trail the sink.
   What the sink has is told by the offset with which Spark asks for the next one, or before that
   by Spark's event of the micro-batch (`done`).
2. A partition is released only when nothing of it is in flight, and then at once. In flight is what
   the offset planned last has and the offset before it has not. From a release being decided on,
   nothing of the partition is planned any more, whatever becomes of the release.

A retiring partition is released as finished when it is done up to its end and that end is final:
both end and partition count of the log are of one instant (`Bounds.is_final`).

No clock, no I/O, no threads: the reader holds a lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from counterpoise.flow.view import Owned, Warming
from counterpoise.logs import Bounds
from counterpoise.spark.offsets import Offset, Replay, Slice, replay_slices, slices
from counterpoise.spark.planning import Answer, Key, View, done, is_ours, plan
from counterpoise.spark.warmup.history import Portions, Restore, restore_of
from counterpoise.wire import CommitItem, ReleaseItem


@dataclass(frozen=True, slots=True)
class Todo:
    """What the service is to be told."""

    commits: tuple[CommitItem, ...] = ()
    releases: tuple[ReleaseItem, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.commits or self.releases)


@dataclass(frozen=True, slots=True)
class Here:
    """The state of a partition that we held last under `epoch`: of `tenure`, at `position`."""

    epoch: int
    position: str
    tenure: int


@dataclass
class Progress:
    """The state of one query's consumption.

    `start` is what is done; None until Spark has said so, and nothing is committed or released
    before. `in_flight` are partitions. `anchors` are positions that
    `start` = latest was resolved to, once for each epoch. `settled`: nothing more is to be
    said of them, because they were released or their epoch is over.
    """

    start: Offset | None = None
    in_flight: frozenset[int] = frozenset()
    anchors: dict[Key, str] = field(default_factory=dict)
    skipped: set[Key] = field(default_factory=set)
    given_up: set[Key] = field(default_factory=set)
    committed: dict[Key, str] = field(default_factory=dict)
    settled: set[Key] = field(default_factory=set)
    bounds: Bounds | None = None
    # Warm-up: positions of owners that a portion of history was to reach, those that were reached
    # (both by the owner's epoch), and gaps of chains, by tenure.
    aims: dict[Key, str] = field(default_factory=dict)
    near: set[Key] = field(default_factory=set)
    gaps: dict[Key, tuple[str, str]] = field(default_factory=dict)
    # States that are complete, by partition; not those of which anything is in flight.
    here: dict[int, Here] = field(default_factory=dict)

    # ------------------------------------------------------------------ what Spark says

    def replaying(self, start: Offset, end: Offset) -> None:
        """Spark runs the batch from `start` to `end`; after a crash it has not asked before."""
        if self.start is None:
            self.start = start
        self.in_flight |= {one.partition for one in slices(start, end)}

    def finished(self, start: Offset, view: View) -> list[Slice]:
        """All of `start` is in the sink and nothing is in flight.

        Returns what was read for nothing: its partition was taken over while it was in flight.
        """
        lost = [
            one
            for one in slices(self.start or start, start)
            if (one.partition, one.epoch) not in self.skipped and not is_ours(one, view)
        ]
        self.start = start
        self.in_flight = frozenset()
        self._forget(view)
        self._remember(view)
        return lost

    def skip(self, superseded: Iterable[Slice]) -> None:
        """These slices are not read although their batch will be done."""
        self.skipped.update((one.partition, one.epoch) for one in superseded)

    # ------------------------------------------------------------------ what to read

    def wanted(self, view: View) -> dict[int, str | None]:
        """The partitions to read and where they go on; None where the queue's `start` decides.

        Partitions being revoked take nothing new, nor those whose release is on its way.
        """
        assert self.start is not None
        positions: dict[int, str | None] = {}
        closed = self.given_up | self.settled
        for number, held in sorted(view.items()):
            if held.state != "revoking" and (number, held.epoch) not in closed:
                position = self._position(held)
                positions[number] = held.position if position is None else position
        return positions

    def restores(self, view: View, warming: Mapping[int, Warming]) -> tuple[Restore, ...]:
        """Whose state is to be restored from history: what is coming, and what was granted anew.

        What goes on from our own ranges has its state, and what went from one of our flows to
        another. So has what nobody has processed before.
        """
        assert self.start is not None
        found: list[Restore | None] = []
        self._remember(view)
        closed = self.given_up | self.settled | self.anchors.keys()
        for number, held in sorted(view.items()):
            if held.state == "revoking" or (number, held.epoch) in closed:
                continue
            if self._here(held) is None:
                found.append(restore_of(held, self.start.replays.get(number), {}))
        for number, coming in sorted(warming.items()):
            known = self.here.get(number)
            if number in view or (known is not None and known.epoch == coming.epoch):
                continue  # on its way between two flows of ours
            if coming.position is None:
                self.near.add((number, coming.epoch))
            found.append(restore_of(coming, self.start.replays.get(number), self.aims))
        live = {(number, coming.epoch) for number, coming in warming.items()}
        self.near &= live
        self.aims = {key: aim for key, aim in self.aims.items() if key in live}
        return tuple(one for one in found if one is not None)

    def plan(
        self,
        answer: Answer,
        asked: View,
        view: View,
        instance: str,
        warming: Mapping[int, Warming] | None = None,
    ) -> Offset | None:
        """The next offset, or None when there is nothing to read.

        `asked` is the view that the question came from, `view` the one of now: what has changed
        its owner, epoch or state meanwhile is left out.
        """
        assert self.start is not None
        self.bounds = answer.bounds
        begins: dict[int, str] = {}
        closed = self.given_up | self.settled
        for number, begin in answer.begins.items():
            held = view.get(number)
            key = (number, asked[number].epoch)
            if held is None or held.epoch != key[1]:
                continue
            if held.state == "revoking" or key in closed:
                continue
            begins[number] = begin
            if answer.question.latest and answer.question.positions[number] is None:
                # What "latest" was is committed, so that nobody after us takes it for later.
                self.anchors[key] = begin
        history = answer.history
        self.gaps.update(history.gaps)
        self.near |= history.near
        planned = plan(
            self.start,
            view,
            begins,
            answer.ends,
            instance,
            answer.bounds.incarnation,
            tenures=self._tenures(begins, view, history),
            replays=self._replays(answer, asked, view, warming or {}),
        )
        if planned is not None:
            self.aims.update(history.aims)
            self.in_flight = frozenset(one.partition for one in slices(self.start, planned))
            for one in (*slices(self.start, planned), *replay_slices(self.start, planned)):
                self.here.pop(one.partition, None)
        return planned

    def _tenures(self, begins: Iterable[int], view: View, history: Portions) -> Mapping[int, int]:
        """Whose state the rows of these partitions belong to, where that is not the epoch's."""
        tenures = dict(history.tenures)
        for number in begins:
            here = self._here(view[number])
            if here is not None:
                tenures[number] = here.tenure
        return tenures

    def _here(self, held: Owned) -> Here | None:
        """The state that the partition goes on with, if it is here.

        That of our own range; or the one that stood where this epoch begins when we lost the epoch
        before: the partition came back, or went to another flow of ours.
        """
        assert self.start is not None
        end = done(self.start, held, self.skipped)
        if end is not None:
            return Here(held.epoch, end, self.start.ranges[held.partition].state_of)
        known = self.here.get(held.partition)
        if known is None or known.position != held.position:
            return None
        return replace(known, epoch=held.epoch) if held.epoch - known.epoch in (0, 1) else None

    def _remember(self, view: View) -> None:
        found = {number: self._here(held) for number, held in view.items()}
        self.here.update({number: here for number, here in found.items() if here is not None})

    def _replays(
        self, answer: Answer, asked: View, view: View, warming: Mapping[int, Warming]
    ) -> dict[int, Replay]:
        """The history of the answer, but for what is not as it was when the log was asked."""
        closed = self.given_up | self.settled
        replays: dict[int, Replay] = {}
        for one in answer.question.restores:
            number, portion = one.partition, answer.history.replays.get(one.partition)
            held = view.get(number)
            coming = warming.get(number)
            still = (
                held is not None
                and held.epoch == asked[number].epoch
                and held.state != "revoking"
                and (number, held.epoch) not in closed
                if one.granted
                else held is None and coming is not None and coming.epoch == one.epoch
            )
            if portion is not None and still:
                replays[number] = portion
        return replays

    # ------------------------------------------------------------------ what to tell the service

    def todo(self, view: View) -> Todo:
        """Commits and releases that are due; what is released counts as given up from here on."""
        due = self.due(view)
        self.given_up.update((item.partition, item.epoch) for item in due.releases)
        return due

    def due(self, view: View) -> Todo:
        """The same, without deciding on it. A release carries the position and needs no commit."""
        if self.start is None:
            return Todo()
        commits: list[CommitItem] = []
        releases: list[ReleaseItem] = []
        for number, held in sorted(view.items()):
            key = (number, held.epoch)
            if key in self.settled:
                continue
            position = self._position(held)
            if self._releasable(held, position):
                finished = held.state == "retiring"
                releases.append(ReleaseItem(number, held.epoch, position, finished))
            elif position is not None and position != self.committed.get(key, held.position):
                commits.append(CommitItem(number, held.epoch, position))
        return Todo(tuple(commits), tuple(releases))

    def parting(self, view: View) -> Todo:
        """What to tell last, by a flow that drains: it may release whatever is not in flight."""
        due = self.todo(view)
        if self.start is None:
            return due
        named = {item.partition for item in due.releases}
        free = [
            ReleaseItem(number, held.epoch, self._position(held))
            for number, held in sorted(view.items())
            if number not in named | self.in_flight and (number, held.epoch) not in self.settled
        ]
        going = {item.partition for item in free}
        return Todo(
            tuple(item for item in due.commits if item.partition not in going),
            (*due.releases, *free),
        )

    def answered(self, item: CommitItem | ReleaseItem, outcome: str) -> None:
        """The service's answer for one item."""
        key = (item.partition, item.epoch)
        if outcome == "ok":
            if isinstance(item, ReleaseItem):
                self.settled.add(key)
            elif item.position is not None:
                self.committed[key] = item.position
        elif outcome == "not_revoking":
            # A retiring partition was taken back: it is ours as before, so read on.
            self.given_up.discard(key)
        else:
            self.settled.add(key)

    def positions(self, view: View) -> dict[int, str | None]:
        """Up to where each partition is done, also if the service has not heard of it yet."""
        if self.start is None:
            return {number: held.position for number, held in view.items()}
        return {number: self._position(held) or held.position for number, held in view.items()}

    def _position(self, held: Owned) -> str | None:
        """Up to where the partition is done or was never to be read; None: nothing to say."""
        assert self.start is not None
        position = done(self.start, held, self.skipped)
        if position is None and held.position is None:
            position = self.anchors.get((held.partition, held.epoch))
        return position

    def _releasable(self, held: Owned, position: str | None) -> bool:
        if held.partition in self.in_flight:
            return False
        if held.state == "revoking":
            return True
        return held.state == "retiring" and self._drained(held, position)

    def _drained(self, held: Owned, position: str | None) -> bool:
        number = held.partition
        bounds = self.bounds
        if bounds is None or not bounds.is_final(number) or number not in bounds.ends:
            return False
        reached = position if position is not None else held.position
        if reached is None:
            reached = bounds.starts[number]
        return reached == bounds.ends[number]

    def _forget(self, view: View) -> None:
        """Drop what is remembered of epochs that are over."""
        live = {(number, held.epoch) for number, held in view.items()}
        ranges = self.start.ranges if self.start is not None else {}
        kept = live | {(number, one.epoch) for number, one in ranges.items()}
        for keys in (self.skipped, self.given_up, self.settled):
            keys.intersection_update(kept)
        for positions in (self.anchors, self.committed):
            for key in positions.keys() - kept:
                del positions[key]
