"""Random graphs: whatever is split, merged and finished, and whoever comes and goes meanwhile, no
child is processed before its parents, none is lost or doubled, and nothing else moves.

`World` checks every step against an oracle that knows the graph from the calls alone
(`lineage_oracle`). COUNTERPOISE_TEST_EXAMPLES draws new examples, as in `test_sequences`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import currently_in_test_context, given, note
from hypothesis import strategies as st

from broker.core import commands as c
from broker.core import records as r
from tests.broker.core.test_sequences import ASKS, PROFILE, WHICH
from tests.broker.core.world import World
from tests.judge.balance import Ask

SETTINGS = st.fixed_dictionaries(
    {
        "rebalance_delay": st.sampled_from([5.0, 0.0]),
        "max_handoff_time": st.sampled_from([3.0, 0.0]),
        "max_concurrent_handoffs": st.sampled_from([None, 1, 2]),
        "access_type": st.sampled_from(["non_exclusive"] * 3 + ["exclusive"]),
    }
)
FINISHED = st.sampled_from([True, True, False])
STEPS = st.one_of(
    st.tuples(st.just("bind"), st.booleans()),
    st.tuples(st.just("bind"), st.booleans()),
    st.tuples(st.just("bind again"), WHICH),
    st.tuples(st.just("leave"), WHICH, st.sampled_from(["unbound", "lease_expired"])),
    st.tuples(st.just("drain"), WHICH),
    st.tuples(st.just("release"), WHICH),
    st.tuples(st.just("ready"), WHICH),
    st.tuples(st.just("split"), WHICH, st.integers(0, 4), FINISHED),
    st.tuples(st.just("split"), WHICH, st.integers(0, 4), FINISHED),
    st.tuples(st.just("merge"), WHICH, WHICH, FINISHED),
    st.tuples(st.just("merge"), WHICH, WHICH, FINISHED),
    st.tuples(st.just("finish"), WHICH),
    st.tuples(st.just("stale"), WHICH),
    st.tuples(st.just("made in the log"), WHICH, st.integers(1, 3)),
    st.tuples(st.just("repeat"), WHICH),
    st.tuples(st.just("raise epochs"), WHICH),
    st.tuples(st.just("exclusive"), st.booleans()),
    st.tuples(st.just("rebalance now")),
    st.tuples(st.just("pause"), WHICH, st.sampled_from([None, 1.0])),
    st.tuples(st.just("resume"), WHICH),
    st.tuples(st.just("advance"), st.sampled_from([0.0, 1.0, 5.0])),
)


class Player:
    """Plays steps; numbers choose among the flows, and among the partitions that have an owner."""

    def __init__(self, world: World, asks: Sequence[Ask] = (Ask(),)) -> None:
        """`asks`: what flows bind with, one after the other."""
        self.world = world
        self.asks = asks
        self.flows = self.keys = 0
        self.merges: list[c.NewChild] = []
        self.said: list[c.Children] = []

    def play(self, step: tuple[Any, ...]) -> None:
        if currently_in_test_context():
            note(f"{self.world.now} {self.world.status}: {step}")
        getattr(self, "_" + step[0].replace(" ", "_"))(*step[1:])

    def _flow(self, which: int) -> str | None:
        flows = sorted(self.world.queue.flows.values(), key=lambda flow: flow.bind_number)
        return flows[which % len(flows)].id if flows else None

    def _owned(self, which: int) -> tuple[str, int, str] | None:
        """A flow, a partition of it, and its key."""
        queue = self.world.queue
        assert queue.lineage is not None
        owned = sorted((number, flow.id) for flow in queue.flows.values() for number in flow.owned)
        if not owned:
            return None
        number, flow_id = owned[which % len(owned)]
        return flow_id, number, queue.lineage.nodes[number].key

    def _new(self, *parents: str) -> c.NewChild:
        self.keys += 1
        return c.NewChild(f"k{self.keys}", parents, self.keys * 3 if self.keys % 4 == 0 else None)

    def _say(self, flow: str, *items: c.ChildrenItem) -> None:
        """Sends it, and again as if the answer had been lost. What was `ok` is `ok` again, or the
        partition was removed meanwhile, and nothing is left to be said of it."""
        command = c.Children(flow, items)
        self.said.append(command)
        first = self.world.do(command).answer
        again = self.world.do(command)
        assert not again.records
        for one, other in zip(first, again.answer, strict=True):
            assert one.outcome != "ok" or other.outcome in ("ok", "no_such_partition")

    def _bind(self, warmup: bool) -> None:
        self.flows += 1
        self.world.bind(f"f{self.flows}", warmup=warmup, **self._ask())

    def _ask(self) -> dict[str, Any]:
        weight, most, _ = self.asks[self.flows % len(self.asks)]
        return {"weight": weight, "max_partitions": None if self.world.queue.exclusive else most}

    def _bind_again(self, which: int) -> None:
        if flow := self._flow(which):
            self.flows += 1
            instance = self.world.queue.flows[flow].instance_id
            self.world.bind(f"f{self.flows}", instance, **self._ask())

    def _leave(self, which: int, reason: str) -> None:
        if flow := self._flow(which):
            self.world.unbind(flow, reason)

    def _drain(self, which: int) -> None:
        if flow := self._flow(which):
            self.world.drain(flow)

    def _release(self, which: int) -> None:
        flow = self._flow(which)
        if flow is not None:
            going = [n for n in self.world.owned(flow) if self.world.state(n) == "revoking"]
            self.world.release(flow, *going)

    def _ready(self, which: int) -> None:
        flow = self._flow(which)
        if flow is not None:
            self.world.ready(flow, *sorted(self.world.queue.flows[flow].incoming))

    def _split(self, which: int, count: int, finished: bool) -> None:
        if owned := self._owned(which):
            flow, number, key = owned
            children = tuple(self._new(key) for _ in range(count))
            epoch = self.world.epoch(number)
            self._say(flow, c.ChildrenItem(number, epoch, children, finished))

    def _merge(self, which: int, other: int, finished: bool) -> None:
        """A child of two, reported by one; the other reports the same when its turn comes."""
        one, two = self._owned(which), self._owned(other)
        if one is None or two is None or one == two:
            return
        child = self._new(one[2], two[2])
        self.merges.append(child)
        for flow, number, _ in (one, two):
            if self.world.owner(number) == flow and number in self.world.queue.partitions:
                epoch = self.world.epoch(number)
                self._say(flow, c.ChildrenItem(number, epoch, (child,), finished))

    def _finish(self, which: int) -> None:
        if owned := self._owned(which):
            flow, number, _ = owned
            answer = self.world.release(flow, number, finished=True)
            assert answer == ["ok"]

    def _stale(self, which: int) -> None:
        if owned := self._owned(which):
            flow, number, key = owned
            before = len(self.world.records)
            item = c.ChildrenItem(number, self.world.epoch(number) - 1, (self._new(key),), True)
            [result] = self.world.do(c.Children(flow, (item,))).answer
            assert result.outcome == "stale_epoch"
            told = self.world.records[before:]
            assert not [one for one in told if isinstance(one, r.ChildrenAdded)]
            assert not [one for one in told if isinstance(one, r.PartitionFinished)]

    def _made_in_the_log(self, which: int, count: int) -> None:
        if owned := self._owned(which):
            self.world.do(c.AddChildren(tuple(self._new(owned[2]) for _ in range(count))))

    def _repeat(self, which: int) -> None:
        """A call that was long on its way."""
        if self.said and (late := self.said[which % len(self.said)]).flow_id in (
            self.world.queue.flows
        ):
            self.world.do(late)

    def _raise_epochs(self, which: int) -> None:
        numbers = sorted(self.world.queue.partitions)
        if numbers:
            self.world.raise_epochs(numbers[which % len(numbers)])

    def _exclusive(self, on: bool) -> None:
        if any(flow.max_partitions is not None for flow in self.world.queue.flows.values()):
            return
        self.world.change(access_type="exclusive" if on else "non_exclusive")

    def _pause(self, which: int, seconds: float | None) -> None:
        if owned := self._owned(which):
            self.world.pause(owned[1], seconds=seconds)

    def _resume(self, which: int) -> None:
        if owned := self._owned(which):
            self.world.resume(owned[1])

    def _rebalance_now(self) -> None:
        self.world.rebalance_now()

    def _advance(self, seconds: float) -> None:
        self.world.advance(seconds)


def play(world: World, steps: list[tuple[Any, ...]], asks: Sequence[Ask] = (Ask(),)) -> Player:
    """Plays these steps."""
    player = Player(world, asks)
    for step in steps:
        player.play(step)
    return player


def finish_all(world: World, player: Player) -> None:
    """Whoever is left finishes everything: nothing waits for ever, and only keys remain."""
    player.play(("bind", False))
    for flow in list(world.queue.flows):
        if world.queue.flows[flow].draining:
            world.unbind(flow)
    world.settle()
    while owned := player._owned(0):
        flow, number, _ = owned
        world.release(flow, number, finished=True)
        world.settle()
    assert not world.queue.partitions
    assert world.status == "Ready"


@PROFILE
@given(st.integers(1, 5), SETTINGS, st.lists(STEPS, min_size=10, max_size=60))
def test_random_graphs(roots: int, settings: dict[str, Any], steps: list[tuple[Any, ...]]) -> None:
    world = World.dynamic(*(f"r{n}" for n in range(roots)), **settings)
    player = play(world, [("bind", False), ("advance", 5.0), *steps])
    finish_all(world, player)


@PROFILE
@given(st.integers(1, 5), SETTINGS, ASKS, st.lists(STEPS, min_size=10, max_size=60))
def test_random_graphs_of_flows_with_weights_and_maxima(
    roots: int, settings: dict[str, Any], asks: list[Ask], steps: list[tuple[Any, ...]]
) -> None:
    world = World.dynamic(*(f"r{n}" for n in range(roots)), **settings)
    player = play(world, [("bind", False), ("advance", 5.0), *steps], asks)
    finish_all(world, player)
