"""The wait of `counterpoise flows drain`: what happens meanwhile, in words.

A drained flow hands its partitions to the other flows of its queue. Where there is none, nobody
can take them over: it finishes its messages, commits, gives the partitions back and leaves. A
consumer that does not do this (a program of its own on the HTTP calls) keeps them; so the wait has
an end in any case.
"""

from __future__ import annotations

import time
from typing import Any

from counterpoise.cli.common import counted, duration, seconds_until
from counterpoise.cli.progress import Steps
from counterpoise.client import Client
from counterpoise.wire import FlowSummary, RebalanceStatus

WAIT_SECONDS = 120.0
LOOK_SECONDS = 0.2


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
