"""The order of a program's notices, and those that first wait for the answer to a release.

A release is the program's own act, so it is not reported back as lost. The update without the
partition can overtake the answer to the release. So the notice waits for the answer, and is given
only if the release did not succeed. Later notices about the same partition wait behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from counterpoise.calls import Call
from counterpoise.flow.view import Lost, Notice, WarmingEnded, WarmingStarted
from counterpoise.wire import ChildrenItem, CommitItem, ReadyItem, ReleaseItem, Results

Item: TypeAlias = CommitItem | ReleaseItem | ChildrenItem | ReadyItem
GrantKey: TypeAlias = tuple[int, int]  # partition and epoch


@dataclass
class Request:
    """A commit, release or ready on its way; repetitions of the call are identical.

    `withheld` are the notices that wait for its answer.
    """

    flow_id: str
    call: Call[Results]
    items: Sequence[Item]
    seq: int
    withheld: list[Notice] = field(default_factory=list)


class Notices:
    """The notices of one flow."""

    def __init__(self) -> None:
        self._due: list[Notice] = []
        # Releases without an answer, and those among them that a partition's notices wait for.
        self._releasing: dict[GrantKey, Request] = {}
        self._withholding: dict[int, Request] = {}
        # Released grants that are still in the view.
        self._released: set[GrantKey] = set()

    def take(self) -> list[Notice]:
        """The notices that are due; each is returned once."""
        due, self._due = self._due, []
        return due

    def add(self, notices: Iterable[Notice]) -> None:
        """Add these notices. Those that depend on an unanswered release are withheld."""
        for notice in notices:
            self._add(notice)

    def releasing(self, request: Request) -> None:
        """A release is sent. Until `settle`, its partitions are not reported as lost."""
        for item in request.items:
            self._releasing.setdefault((item.partition, item.epoch), request)

    def released(self, items: Iterable[Item]) -> None:
        """The service has accepted these: of releases and finished partitions, that they leave."""
        self._released.update(
            (item.partition, item.epoch)
            for item in items
            if isinstance(item, ReleaseItem) or (isinstance(item, ChildrenItem) and item.finished)
        )

    def settle(self, request: Request) -> None:
        """This request is settled: give the notices that waited for it."""
        for item in request.items:
            key = (item.partition, item.epoch)
            if self._releasing.get(key) is request:
                del self._releasing[key]
            if self._withholding.get(item.partition) is request:
                del self._withholding[item.partition]
        withheld = list(request.withheld)
        request.withheld.clear()
        self.add(withheld)

    def still_held(self, keys: set[GrantKey]) -> None:
        """`keys` is what the view holds now. Forget releases that have left the view."""
        self._released &= keys

    def forget_released(self) -> None:
        """The flow that made the releases is over."""
        self._released.clear()

    def _add(self, notice: Notice) -> None:
        about = (
            notice.warming if isinstance(notice, WarmingStarted | WarmingEnded) else notice.owned
        )
        holder = self._withholding.get(about.partition)
        if holder is not None:
            holder.withheld.append(notice)
            return
        if isinstance(notice, Lost):
            key = (about.partition, about.epoch)
            if key in self._released:
                self._released.discard(key)
                return
            if key in self._releasing:
                self._withholding[about.partition] = self._releasing[key]
                self._releasing[key].withheld.append(notice)
                return
        self._due.append(notice)
