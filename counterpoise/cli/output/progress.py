"""Progress on stderr: what a command that takes a while is doing.

On a terminal it is one line that changes. Elsewhere (a pipe, a log of a scheduler) a publish says
nothing until its end, and a drain prints a line for each change.

A drained flow hands its partitions to the other flows of its queue. Where there is none, nobody
can take them over: it finishes its messages, commits, gives the partitions back and leaves. A
consumer that does not do this (a program of its own on the HTTP calls) keeps them; so the wait for
a drain has an end in any case.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from counterpoise.cli.output.common import PlainConsole, counted, duration, say, seconds_until
from counterpoise.client import Client
from counterpoise.wire import FlowSummary, RebalanceStatus

REFRESH_SECONDS = 0.1
WAIT_SECONDS = 120.0
LOOK_SECONDS = 0.2


class PublishProgress:
    """How many messages are taken, and how fast; of a file also how much of it is left."""

    def __init__(self, queue: str, size_bytes: int | None, shown: bool = True) -> None:
        console = PlainConsole(stderr=True)
        columns: list[ProgressColumn] = [TextColumn("{task.description}", markup=False)]
        if size_bytes:
            columns += [BarColumn(), DownloadColumn(), TimeRemainingColumn()]
        self._progress = Progress(
            *columns,
            console=console,
            transient=True,
            auto_refresh=False,
            disable=not (shown and console.is_terminal),
        )
        self._queue = queue
        self._task = self._progress.add_task(queue, total=size_bytes)
        self._started = self._told = time.monotonic()
        self._messages = self._bytes = 0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def took(self, size_bytes: int) -> None:
        """One more message, of a line of this size."""
        self._messages += 1
        self._bytes += size_bytes
        now = time.monotonic()
        if now - self._told < REFRESH_SECONDS:
            return
        self._told = now
        rate = self._messages / (now - self._started)
        said = f"{self._queue}: {self._messages:,} messages, {rate:,.0f}/s"
        self._progress.update(self._task, completed=self._bytes, description=said, refresh=True)


class Steps:
    """One line that says how far something is. `tell` may be called again and again."""

    def __init__(self, shown: bool = True) -> None:
        self._console = PlainConsole(stderr=True)
        self._shown = shown
        self._status = self._console.status("") if shown and self._console.is_terminal else None
        self._told: str | None = None

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def tell(self, said: str, passing: Callable[[], str] = lambda: "") -> None:
        """`said` is news when it differs from the last call's; `passing` is for a terminal only."""
        if self._status is not None:
            self._status.update(Text(said + passing()))
        elif self._shown and said != self._told:
            say(said)
        self._told = said


class Drain:
    """The drain of one flow, from the outside. `left`: how many partitions it owns still."""

    def __init__(self, client: Client, queue: str, flow: FlowSummary) -> None:
        self._client = client
        self._queue = queue
        self._flow = flow
        self._started = self._now = time.monotonic()
        self._successors = True
        self.gone = False
        self.left = flow.partitions

    def wait(self, seconds: float, steps: Steps) -> None:
        """Until the flow owns nothing, or this time is over."""
        while self._look(steps) and self._now - self._started < seconds:
            time.sleep(LOOK_SECONDS)

    def _look(self, steps: Steps) -> bool:
        """Whether to go on waiting."""
        flows = self._client.flows(self._queue)
        mine = [flow for flow in flows if flow.flow_id == self._flow.flow_id]
        self._now = time.monotonic()
        self.gone = not mine
        self.left = mine[0].partitions if mine else 0
        if not self.left:
            return False
        self._successors = any(not flow.draining for flow in flows)
        status = self._client.rebalance_status(self._queue)
        steps.tell(self._said(status), lambda: _seconds(status, self._flow.flow_id))
        return True

    def _said(self, status: RebalanceStatus) -> str:
        said = f"{self._flow.client_name} owns {counted(self.left, 'partition')}"
        if not self._successors:
            return (
                f"{said}; nobody can take over, because no other consumer is bound. It finishes "
                "its messages and leaves"
            )
        if status.status == "Holddown":
            return f"{said}; its successors are chosen after the holddown"
        mine = [one.phase for one in status.handoffs if one.from_flow == self._flow.flow_id]
        phases = [
            f"{mine.count(phase)} {text}"
            for phase, text in (("warming", "warming up elsewhere"), ("revoking", "being finished"))
            if phase in mine
        ]
        return "; ".join([said, ", ".join(phases)]) if phases else said

    def result(self) -> str:
        """What has come out, in a sentence."""
        name, took = self._flow.client_name, duration(self._now - self._started)
        if not self.left:
            outcome = "has left" if self.gone else "owns no partition any more"
            return f"{name} {outcome}, after {took}"
        said = f"{name} still owns {counted(self.left, 'partition')} after {took}; "
        if self._successors:
            return (
                f"{said}the drain goes on. --timeout SECONDS cuts warm-ups of its successors "
                f"short; 'counterpoise flows unbind {self._queue} {name}' ends it at once"
            )
        return (
            f"{said}nobody can take over. Bind another consumer, or end it with "
            f"'counterpoise flows unbind {self._queue} {name}'"
        )

    def document(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "queue": self._queue,
            "flow_id": self._flow.flow_id,
            "client_name": self._flow.client_name,
            "partitions": self.left,
            "left": self.gone,
            "successors": self._successors,
            "seconds": round(self._now - self._started, 3),
        }


def _seconds(status: RebalanceStatus, flow_id: str) -> str:
    """How long what happens now may take yet."""
    deadlines = [one.deadline for one in status.handoffs if one.from_flow == flow_id]
    ends = [status.holddown_until, *deadlines]
    left = max((seconds_until(end) or 0.0 for end in ends), default=0.0)
    return f", at most {duration(left)} more" if left > 0 else ""
