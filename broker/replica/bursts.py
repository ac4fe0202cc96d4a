"""Bursts of binds: many flows bind one shortly after the other, as when a deployment starts.

Each bind changes the share of all flows. If each were served when it comes, the first flows would
get partitions that they hand over to the later ones, and each of these changes is a transaction
that flows are notified of. So during a burst a transaction waits for more binds, until none has
come for a moment, and no longer than `GATHER_SECONDS`.

Flows that come and go alone, and a few together, wait for nothing. What is due, and reads of the
queue, do not wait for a burst.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterable, Sequence

from broker.core import commands as c
from broker.replica.transaction import Submission

# So many binds, in the mailbox or in the last turn, are a burst.
SEVERAL = 5
# No bind has come: for this time, and for so many turns of the event loop. A call takes several
# turns until it is in the mailbox, and where many calls are under way a turn takes long.
MOMENT_SECONDS = 0.003
TURNS = 8
GATHER_SECONDS = 0.25


class BindBurst:
    """The flows that bind to one queue."""

    def __init__(self, watched: Container[str]) -> None:
        """`watched` has the flows that wait for their next view."""
        self._watched = watched
        self.rests_since: float | None = None
        """Since when there is nothing to do, if so, by the event loop's time."""
        self._recent = 0
        # By the last turn.
        self._bound: Sequence[str] = ()
        self._turn_by: float | None = None

    async def gathers(
        self, submissions: Sequence[Submission], goes_first: Callable[[], bool]
    ) -> bool:
        """Waits for more in the mailbox, which has these `submissions`. False: a transaction may
        take them. True: something goes first; when it is done, this is called again.

        `goes_first()`: whether there is something to do that waits for no burst.
        """
        clock = asyncio.get_running_loop().time
        if self.rests_since is not None and clock() - self.rests_since > GATHER_SECONDS:
            self._recent = 0
        self.rests_since = None
        waiting = len(_binds(submissions))
        if waiting + self._recent < SEVERAL:
            self._turn_by = None
            return False
        self._turn_by = self._turn_by or clock() + GATHER_SECONDS
        is_quiet = False
        while clock() < self._turn_by and not is_quiet:
            if goes_first():
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
