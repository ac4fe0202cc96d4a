"""Bugs in clients, and bugs that make owners wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from broker.calls.commits import CommitCalls
from broker.calls.updates import UpdateCalls
from broker.core.queue import Queue
from broker.core.transitions import Status
from broker.replica.coordinator import Coordinator
from broker.replica.notifier import ViewNotifier
from counterpoise.flow.core import FlowCore
from tests.simulation.mutants.mutant import Changes

# Clients


def older_view_taken() -> Changes:
    """The latest answer counts, even if it was made before a known one."""

    def take(self, update, now):
        if update.flow_id == self.bound.flow_id and update.revision != self.view.revision:
            self._show(update, now)

    return [(FlowCore, "_take", take)]


def waiting_flow_is_not_woken() -> Changes:
    """A flow whose view has changed is told only when it asks, and by what its replica knows."""
    real = UpdateCalls._newer

    async def newer(self, flow, after, at_least=0, fresh=False):
        return await real(self, flow, after, 0, fresh)

    return [
        (UpdateCalls, "_newer", newer),
        (ViewNotifier, "wake", lambda self, watches: None),
        (Coordinator, "catch_up", lambda self: None),
    ]


# Owners that wait


def commits_wait_while(waits: Callable[[Queue, str], bool]) -> Changes:
    real = CommitCalls.commit

    async def commit(self, flow, seq, items):
        loop: Any = asyncio.get_running_loop()
        coordinator, flow_id = flow
        while (queue := coordinator.queue) is not None and flow_id in queue.flows:
            if not waits(queue, flow_id):
                break
            await loop.sleep(0.1)
        return await real(self, flow, seq, items)

    return [(CommitCalls, "commit", commit)]


def commits_wait_for_handoffs() -> Changes:
    """A flow that is to lose one partition commits nothing until the handoff is over."""
    return commits_wait_while(
        lambda queue, flow_id: any(n in queue.handoffs for n in queue.flows[flow_id].owned)
    )


def commits_wait_for_rebalance() -> Changes:
    """No flow commits until the rebalance is over."""
    return commits_wait_while(lambda queue, flow_id: queue.status is Status.REBALANCING)
