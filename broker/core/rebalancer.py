"""The rebalancer: what happens to a queue when a command comes or time passes.

A queue is *Ready* until a trigger (the contract, *What triggers what*). Then it waits out the
**holddown**, so that consumers that come or go together cause one rebalance, and so that one that
restarts gets back what it had. Then it is *Rebalancing*: the loop grants what nobody owns and hands
partitions from the most to the least loaded flow until the queue is balanced. A change while the
loop runs is taken up at once.

A handoff lets the owner work on while the successor warms up (if it does), then has it finish and
release by a deadline, and ends with a grant under the next epoch. Three
things make it safe whoever crashes: the epoch fences everything that an owner does; a revoke is
never taken back, so a delayed release cannot be mistaken for another; and at its deadline every
handoff ends, so every rebalance does.

**One command, one decision, one commit.** A decision is made on the queue itself, step by step, and
each step is applied by `replay`, live and after a restart alike. So no step can see a state that
never will be, and live and reloaded queues cannot differ. Until it is committed the journal of the
queue can take all of it back (`journal`). A queue has few enough partitions (`MOST_PARTITIONS`)
that the decision on all of them holds up nobody.

**Aligned partitions.** A queue that reads several logs has its partitions in groups of neighbours
(`Queue.group`), and a group has one owner. All partitions of a group are in the same state, with
the same owner, successor and deadline, after every decision. So the first one *leads*: it is
counted, chosen and given for its group, and each step is taken for all of it. Only what consumers
say comes for single partitions. A release waits in the partition (`is_let_go`) and a ready in
`warmed` until the last of the group has it; what raises the epoch of a partition takes its word
back. Without aligned partitions each one is its own group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from broker.core import commands as c
from broker.core import cuts, decisions, reports
from broker.core import records as r
from broker.core.draft import Decision, Draft
from broker.core.queue import Queue
from broker.core.replay import replay_all


def decide(queue: Queue, command: c.Command, now: float) -> Decision:
    """Decides a command at the time `now` (Unix seconds) and applies the decision to the queue.

    The queue is as before if the decision has no entries, and if this raises. Raises FlowNotFound
    if the flow that the command speaks of is not bound (any more), and what each command says.
    """
    draft = Draft(queue, now)
    try:
        answer = _DECISIONS[type(command)](command, draft)
        if queue.is_idle:
            decisions.admit(draft, queue.flows.held.values())
    except BaseException:
        draft.take_back()
        raise
    return draft.finish(answer)


def follow(queue: Queue, entries: Iterable[r.Entry]) -> Decision:
    """Applies what another replica has committed, in order. Nothing of it is to be committed."""
    for entry in entries:
        replay_all(queue, entry.records, entry.revision)
    notices = frozenset(queue.touched)
    queue.journal.set(queue, touched=set())
    return Decision((), notices, queue.next_deadline())


_DECISIONS: dict[type[c.Command], Callable[[Any, Draft], Any]] = {
    c.Bind: decisions.bind,
    c.BindTogether: decisions.bind_together,
    c.Unbind: decisions.unbind,
    c.Drain: decisions.drain,
    c.Release: reports.release,
    c.Ready: reports.ready,
    c.Children: reports.children,
    c.AddChildren: decisions.add_children,
    c.Change: decisions.change,
    c.FollowLog: decisions.follow_log,
    c.TakeCuts: cuts.take_cuts,
    c.ReachCuts: cuts.reach_cuts,
    c.RebalanceNow: decisions.rebalance_now,
    c.PausePartitions: decisions.pause,
    c.ResumePartitions: decisions.resume,
    c.PinPartition: decisions.pin,
    c.UnpinPartition: decisions.unpin,
    c.RaiseEpochs: decisions.raise_epochs,
    c.Advance: decisions.advance,
    c.MoveDeadlines: decisions.move_deadlines,
}
