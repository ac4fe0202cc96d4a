"""Bursts of binds: many flows bind one shortly after the other, as when a deployment starts.

Each bind changes the share of all flows. If each were served when it comes, the first flows would
get partitions that they hand over to the later ones, and each of these changes is a transaction
that flows are notified of. So during a burst

- a transaction waits for more binds, until none has come for a moment, and no longer than
  `GATHER_SECONDS`;
- from its second transaction on flows are bound without partitions, until one transaction finds no
  new flow, and no longer than `BURST_SECONDS`;
- flows that get partitions by the rest of a large decision, and may get more, are notified of
  several slices at once (`DelayedNotices`).

Flows that come and go alone, and a few together, wait for nothing. What is due, and reads of the
queue, do not wait for a burst.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterable, Sequence

from broker.core import commands as c
from broker.replica.transaction import Submission, Transaction

# So many binds, in the mailbox or in the last turn, are a burst.
SEVERAL = 5
# No bind has come: for this time, and for so many turns of the event loop. A call takes several
# turns until it is in the mailbox, and where many calls are under way a turn takes long.
MOMENT_SECONDS = 0.003
TURNS = 8
GATHER_SECONDS = 0.25
BURST_SECONDS = 2.0
NOTIFY_SECONDS = 0.25


class BindBurst:
    """The flows that bind to one queue."""

    def __init__(self, watched: Container[str]) -> None:
        """`watched` has the flows that wait for their next view."""
        self._watched = watched
        self.puts_off = False
        """Whether the next turn leaves what it would hand out to a later one."""
        self.rests_since: float | None = None
        """Since when there is nothing to do, if so, by the event loop's time."""
        self._recent = 0
        # By the last turn.
        self._bound: Sequence[str] = ()
        self._turn_by: float | None = None
        self._ends_at: float | None = None

    async def gathers(
        self, submissions: Sequence[Submission], goes_first: Callable[[], bool]
    ) -> bool:
        """Waits for more in the mailbox, which has these `submissions`. False: a transaction may
        take them. True: something goes first; when it is done, this is called again.

        `goes_first()`: whether there is something to do that waits for no burst.
        """
        self.puts_off = False
        clock = asyncio.get_running_loop().time
        if self.rests_since is not None and clock() - self.rests_since > GATHER_SECONDS:
            self._recent = 0
        self.rests_since = None
        waiting = len(_binds(submissions))
        if waiting + self._recent < SEVERAL:
            self._ends_at = self._turn_by = None
            return False
        self._turn_by = self._turn_by or clock() + GATHER_SECONDS
        is_quiet = False
        while clock() < self._turn_by and not is_quiet:
            if goes_first():
                self.puts_off = True
                return True
            known = len(submissions)
            await asyncio.sleep(MOMENT_SECONDS)
            for _ in range(TURNS):
                await asyncio.sleep(0)
            came = len(_binds(submissions[known:]))
            waiting += came
            is_quiet = not came and (waiting > 0 or self._are_back)
        self._turn_by = None
        if not waiting:
            self._recent = 0
        elif self._recent >= SEVERAL:
            self._ends_at = self._ends_at or clock() + BURST_SECONDS
            self.puts_off = clock() < self._ends_at
        return False

    @property
    def _are_back(self) -> bool:
        """Whether the clients of the flows that were bound last have done with their answers: then
        others that they bind after these are on their way, too.
        """
        return all(flow_id in self._watched for flow_id in self._bound)

    def taken(self, submissions: Iterable[Submission]) -> None:
        """The next turn takes these."""
        if bound := _binds(submissions):
            self._bound, self._recent = bound, len(bound) + self._recent // 2


def _binds(submissions: Iterable[Submission]) -> Sequence[str]:
    """The flows that are bound."""
    return [
        submission.command.flow_id
        for submission in submissions
        if isinstance(submission.command, c.Bind)
    ]


class DelayedNotices:
    """Flows that are notified of their changed views a little later, with what changes meanwhile:
    those that only get partitions by the rest of a decision. They are notified when they have their
    share, with its last slice, or after `NOTIFY_SECONDS`.
    """

    def __init__(self, notify: Callable[[frozenset[str]], object]) -> None:
        self._notify = notify
        self._flow_ids: frozenset[str] = frozenset()
        self._timer: asyncio.TimerHandle | None = None

    def due(self, transaction: Transaction) -> frozenset[str]:
        """The flows to notify of what was just committed, with those that have waited for it."""
        if not transaction.unfinished:
            return transaction.notified | self._take()
        self._flow_ids = (self._flow_ids | transaction.later) - transaction.notified
        if self._flow_ids and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(NOTIFY_SECONDS, self._ring)
        return transaction.notified

    def _take(self) -> frozenset[str]:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        flow_ids, self._flow_ids = self._flow_ids, frozenset()
        return flow_ids

    def _ring(self) -> None:
        self._notify(self._take())
