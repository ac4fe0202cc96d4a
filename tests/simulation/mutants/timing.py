"""Bugs in deadlines, leases, clocks and alarms."""

from __future__ import annotations

from dataclasses import replace

import broker.core.decisions
import broker.core.rebalancer
from broker.core import commands as c
from broker.core import records as r
from broker.core.indexes import QueueHandoffs
from broker.core.transitions import Status
from broker.replica.clock import StoreClock
from broker.replica.coordinator import Coordinator
from broker.replica.replica import Replica
from broker.replica.transaction import Transaction
from broker.store.ports import Expiry, Outage, Pulse
from broker.testing.database import MemoryDatabase
from tests.simulation.mutants.mutant import Changes

# Time


def old_timer_fires() -> Changes:
    """A deadline that was set for an earlier handoff of a partition ends a later one."""

    def holds(self, entry):
        return entry[1] in self

    return [(QueueHandoffs, "_holds", holds)]


def leases_run_in_an_outage() -> Changes:
    def pulse(self, gap_seconds):
        now, began = self.clock(), self.stamped_at
        if began is not None and now - began > gap_seconds:
            self.outages.append(Outage(next(self.outage_ids), began, now - began))
        self.stamped_at, self.gap_seconds = now, gap_seconds
        return Pulse(now, self.outages[-1] if self.outages else None)

    return [(MemoryDatabase, "pulse", pulse)]


def deadlines_run_in_an_outage() -> Changes:
    async def move_deadlines(self, transaction, latest):
        return None

    return [(Coordinator, "_move_deadlines", move_deadlines)]


def late_commit_is_taken() -> Changes:
    """Was in the product: a deadline runs from the decision, however long the commit takes."""
    real = Transaction.finish

    return [
        (Transaction, "finish", lambda self, late_seconds, *watched: real(self, 3600.0, *watched))
    ]


def only_the_last_outage_counts() -> Changes:
    """Was in the product: of several outages before a commit only the last was given back."""

    async def move_deadlines(self, transaction, latest):
        transaction.decide(c.MoveDeadlines(latest.id, latest.began, latest.seconds))

    return [(Coordinator, "_move_deadlines", move_deadlines)]


def clock_back_not_noticed() -> Changes:
    """Was in the product: a stamp in the future counts as a fresh one."""
    real = MemoryDatabase.pulse

    def pulse(self, gap_seconds):
        if self.stamped_at is not None:
            self.stamped_at = min(self.stamped_at, self.clock())
        return real(self, gap_seconds)

    return [(MemoryDatabase, "pulse", pulse)]


def deadlines_do_not_go_back() -> Changes:
    """Leases follow a clock that went back, holddowns and handoffs do not."""
    real = Transaction.decide

    def decide(self, command, *room):
        if isinstance(command, c.MoveDeadlines) and command.seconds < 0:
            command = replace(command, seconds=1e-9)
        return real(self, command, *room)

    return [(Transaction, "decide", decide)]


def time_from_before_a_step() -> Changes:
    """A replica that has not looked since decides on a queue whose deadlines have moved."""

    async def keep_time(self, outage_seen):
        return None

    return [(Coordinator, "_keep_time", keep_time)]


def frozen_replica_trusts_its_clock() -> Changes:
    """A frozen replica decides due actions and leases by its old time."""
    fresh = property(lambda self: self._read_at is not None)

    def expiries(self, queue_id):
        now = self.clock()
        bound = [flow for flow in self._flows_of(queue_id) if flow.reason is None]
        over = tuple(flow.values.id for flow in bound if flow.lease_expires_at <= now)
        others = (flow.lease_expires_at for flow in bound if flow.lease_expires_at > now)
        return Expiry(over, min(others, default=None))

    async def read(self, store):
        if self._read_at is None:
            return await real(self, store)
        return Pulse(self.now(), self.outage)

    real = StoreClock.read
    return [
        (StoreClock, "fresh", fresh),
        (StoreClock, "read", read),
        (MemoryDatabase, "expiries", expiries),
        (MemoryDatabase, "_over", lambda self, flow: flow.lease_expires_at <= self.clock()),
    ]


def expiry_not_fenced() -> Changes:
    real = MemoryDatabase.commit

    def commit(self, commit):
        commit.expired = frozenset()
        return real(self, commit)

    return [(MemoryDatabase, "commit", commit)]


def holddown_extended() -> Changes:
    real = broker.core.decisions.bind

    def bind(command, draft):
        status = draft.queue.status
        real(command, draft)
        queue = draft.queue
        if status is Status.HOLDDOWN and queue.status is Status.HOLDDOWN:
            until = draft.now + queue.settings.rebalance_delay
            draft.emit(r.HolddownStarted("bind", until, queue.flows_before, draft.now))

    decisions = {**broker.core.rebalancer._DECISIONS, c.Bind: bind}
    return [(broker.core.rebalancer, "_DECISIONS", decisions)]


def late_bind_replaces() -> Changes:
    return [(broker.core.decisions, "_is_overtaken", lambda command, bound: False)]


def no_sweep() -> Changes:
    """A replica acts only on notifications and its own alarms."""

    async def sweep(self):
        await self.clock.read(self.store)

    return [(Replica, "_sweep", sweep)]


def not_looked_at_again() -> Changes:
    """The shell forgets to advance the queue at the time that a decision names."""
    real = Transaction.decide

    def decide(self, command, *room):
        answer = real(self, command, *room)
        self.wake_at = None
        return answer

    return [(Transaction, "decide", decide)]
