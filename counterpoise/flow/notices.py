"""What a program is told, in order, and what waits for the answer to a release first.

A release is the program's own act and not told back as lost. The update that takes the partition
out of the view can overtake the answer to the release; so the notice waits for the answer, and is
given only if the release did not succeed. Later notices about the same partition wait behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from counterpoise.calls import Call
from counterpoise.flow.view import Lost, Notice, WarmingEnded, WarmingStarted
from counterpoise.wire import CommitItem, ReadyItem, ReleaseItem, Results

Item: TypeAlias = CommitItem | ReleaseItem | ReadyItem
Tenure: TypeAlias = tuple[int, int]  # partition and epoch


@dataclass
class Request:
    """A commit, release or ready on its way: sent as often as needed, always the same.

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
        # Releases without an answer, and of these the ones that a partition's notices wait for.
        self._releasing: dict[Tenure, Request] = {}
        self._withholding: dict[int, Request] = {}
        # Released, and not out of the view yet.
        self._released: set[Tenure] = set()

    def take(self) -> list[Notice]:
        """What is to be told now; each notice once."""
        due, self._due = self._due, []
        return due

    def add(self, notices: Iterable[Notice]) -> None:
        """Tell these, or hold back what a release decides about."""
        for notice in notices:
            self._add(notice)

    def releasing(self, request: Request) -> None:
        """A release is sent: until `settle`, what it releases is not told as lost."""
        for item in request.items:
            self._releasing.setdefault((item.partition, item.epoch), request)

    def released(self, items: Iterable[ReleaseItem]) -> None:
        """These the service has taken."""
        self._released.update((item.partition, item.epoch) for item in items)

    def settle(self, request: Request) -> None:
        """Nothing waits for this request any more: tell what it held back."""
        for item in request.items:
            tenure = (item.partition, item.epoch)
            if self._releasing.get(tenure) is request:
                del self._releasing[tenure]
            if self._withholding.get(item.partition) is request:
                del self._withholding[item.partition]
        withheld = list(request.withheld)
        request.withheld.clear()
        self.add(withheld)

    def held(self, tenures: set[Tenure]) -> None:
        """What the view holds now; of a release that has left it, nothing is expected any more."""
        self._released &= tenures

    def forget_released(self) -> None:
        """The flow that released is over."""
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
            tenure = (about.partition, about.epoch)
            if tenure in self._released:
                self._released.discard(tenure)
                return
            if tenure in self._releasing:
                self._withholding[about.partition] = self._releasing[tenure]
                self._releasing[tenure].withheld.append(notice)
                return
        self._due.append(notice)
