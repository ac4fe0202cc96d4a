"""Large decisions are cut into slices. Together they are the decision, and other commands may come
between.

The theory is in `broker.core.rebalancer`.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, note
from hypothesis import strategies as st

from broker.core import commands as c
from broker.core.draft import Decision
from tests.core.test_sequences import PROFILE, SETTINGS, STEPS, Player
from tests.core.world import World


class Whole(World):
    """After each command, timers that are due run."""

    def do(self, command: c.Command) -> Decision:
        decision = super().do(command)
        if not isinstance(command, c.Advance):
            super().do(c.Advance())
        return decision


class Sliced(Whole):
    """The same, one slice at a time."""

    def do(self, command: c.Command) -> Decision:
        decision = super().do(command)
        times = 0
        while self._is_due():
            assert super(Whole, self).do(c.Advance()).entries
            times += 1
            assert times < 1000, "this does not end"
        return decision

    def _is_due(self) -> bool:
        due = self.queue.next_deadline()
        return due is not None and due <= self.now


def told(world: World) -> dict[str, Any]:
    """The result without revisions, because slices have more of them."""
    queue = world.queue
    return {
        "status": (queue.status, queue.trigger, queue.since, queue.holddown_until),
        "partitions": [
            (p.state, p.epoch, p.owner and p.owner.id, p.handed_over, p.retiring, p.let_go)
            for p in queue.partitions
        ],
        "handoffs": {
            n: (h.successor and h.successor.id, h.deadline, h.since, h.warm)
            for n, h in sorted(queue.handoffs.items())
        },
        "history": (queue.rebalance, queue.last_rebalance),
        "next": queue.next_deadline(),
    }


@PROFILE
@given(
    st.integers(1, 9),
    st.integers(1, 4),
    SETTINGS,
    st.lists(st.sampled_from([True, True, False]), max_size=5),
    st.lists(STEPS, min_size=5, max_size=30),
)
def test_the_slices_together_are_the_decision(
    partitions: int,
    most: int,
    chosen: dict[str, Any],
    bound: list[bool],
    steps: list[tuple[Any, ...]],
) -> None:
    whole, sliced = Whole(partitions, **chosen), Sliced(partitions, most=most, **chosen)
    players = [Player(whole), Player(sliced)]
    for step in [*(("bind", warmup) for warmup in bound), ("settle",), *steps]:
        for player in players:
            player.play(step)
        note(f"{told(whole)}\n{told(sliced)}")
        assert told(whole) == told(sliced)


@PROFILE
@given(
    st.integers(1, 9),
    st.integers(1, 3),
    SETTINGS,
    st.lists(st.sampled_from([True, True, False]), max_size=5),
    st.lists(STEPS, min_size=15, max_size=50),
)
def test_commands_may_come_between_slices(
    partitions: int,
    most: int,
    chosen: dict[str, Any],
    bound: list[bool],
    steps: list[tuple[Any, ...]],
) -> None:
    world = World(partitions, most=most, **chosen)
    player = Player(world)
    for step in [*(("bind", warmup) for warmup in bound), *steps]:
        player.play(step)
    world.settle()
    assert world.status == "Ready"
