"""The rebalancer: what happens to a queue when somebody asks something of it or time passes.

A queue is *Ready* until a trigger (the contract, *What triggers what*). Then it waits out the
**holddown**, so that consumers that come or go together cause one rebalance, and so that one that
restarts gets back what it had. Then it is *Rebalancing*: the loop grants what nobody owns and hands
partitions from the most to the least loaded flow until the queue is balanced. A change while the
loop runs is taken up at once.

A handoff leaves the owner in peace while the successor warms up (if it asked for that), then tells
the owner to finish and release by a deadline, and ends with a grant under the next epoch. Three
things make it safe whoever crashes: the epoch fences everything that an owner does; a revoke is
never taken back, so a delayed release cannot be mistaken for another; and at its deadline every
handoff ends, so every rebalance does.

`decide` only reads. A decision is planned step by step on the queue itself, each step applied
by `replay` as it will be when it is committed, and then taken back (`journal`). So no step can see
a state that never will be, and live and reloaded queues cannot differ. `carry_out` leaves the steps
applied, for who goes on at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from broker.core import administering, binding, working
from broker.core import commands as c
from broker.core import records as r
from broker.core.draft import Draft
from broker.core.queue import Queue


@dataclass(frozen=True, slots=True)
class Decision:
    """What a command leads to, in the order in which it must happen.

    `records` are to be committed (empty: nothing changes), then the flows in `notices` woken, and
    the queue advanced at `wake_at` (Unix seconds, None: nothing will be due). `answer` is for the
    caller, after the commit.
    """

    records: tuple[r.Record, ...]
    notices: frozenset[str]
    wake_at: float | None
    answer: Any = None


def decide(queue: Queue, command: c.Command, now: float) -> Decision:
    """Decides a command. Only reads: the queue is as before when this returns.

    Raises FlowNotFound if the flow that the command speaks of is not bound (any more).
    """
    mark = queue.journal.mark()
    try:
        return carry_out(queue, command, now)
    finally:
        queue.journal.undo(mark)


def carry_out(queue: Queue, command: c.Command, now: float) -> Decision:
    """Decides a command and leaves the queue as replaying the decision would, at half the cost.

    Unless there are records, or if it raises, as `decide` does, the queue is as before.
    """
    touched = queue.touched
    draft = Draft(queue, now)
    try:
        answer = _DECISIONS[type(command)](command, draft)
    except BaseException:
        draft.take_back()
        raise
    records, notices = tuple(r.merged(draft.records)), frozenset(queue.touched)
    decision = Decision(records, notices, queue.next_deadline(), answer)
    if records:
        queue.set("touched", touched | notices)
    else:
        draft.take_back()
    return decision


_DECISIONS: dict[type[c.Command], Callable[[Any, Draft], Any]] = {
    c.Bind: binding.bind,
    c.Unbind: binding.unbind,
    c.Drain: binding.drain,
    c.Release: working.release,
    c.Ready: working.ready,
    c.Change: administering.change,
    c.RebalanceNow: administering.rebalance_now,
    c.RaiseEpochs: administering.raise_epochs,
    c.Advance: administering.advance,
    c.MoveDeadlines: administering.move_deadlines,
}
