"""Any sequence of commands and clock moves keeps the invariants, ends, and makes the fewest
handoffs.

COUNTERPOISE_TEST_EXAMPLES=20000 pytest --timeout 0 tests/broker/core/test_sequences.py  (new seeds)
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from broker.core import commands as c
from tests.broker.core.world import World
from tests.budgets import budget
from tests.judge.balance import Ask

_EXAMPLES = os.environ.get("COUNTERPOISE_TEST_EXAMPLES")

# The same examples every time, so that a failure comes from the change. A campaign draws new ones.
PROFILE = settings(
    max_examples=int(_EXAMPLES or budget(120)),
    derandomize=_EXAMPLES is None,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)

SETTINGS = st.fixed_dictionaries(
    {
        "rebalance_delay": st.sampled_from([5.0, 0.0]),
        "max_handoff_time": st.sampled_from([3.0, 3.0, 0.0]),
        "max_warmup_time": st.sampled_from([20.0, 20.0, 20.0, 0.0]),
        "max_concurrent_handoffs": st.sampled_from([None, 1, 2]),
        "access_type": st.sampled_from(["non_exclusive"] * 3 + ["exclusive"]),
    }
)

KEYS = ("one", "two", None)
NAMES = ("a", "b", "b", "c")
# With these few moves are many.
QUOTAS = st.builds(c.Quota, st.just(1000), st.just(0), st.integers(1, 6))
WHICH = st.integers(0, 7)
STEPS = st.one_of(
    st.tuples(st.just("nothing")),  # the other commands shrink to it
    st.tuples(st.just("bind"), st.sampled_from([True, True, False])),
    st.tuples(st.just("bind"), st.sampled_from([True, True, False])),
    st.tuples(st.just("bind"), st.sampled_from([True, True, False])),
    st.tuples(st.just("bind together"), st.integers(1, 4)),
    st.tuples(st.just("bind again"), WHICH, st.booleans()),
    st.tuples(st.just("unbind"), WHICH),
    st.tuples(st.just("expire"), WHICH),
    st.tuples(st.just("drain"), WHICH, st.sampled_from([None, 0.0, 2.0])),
    st.tuples(st.just("release"), WHICH),
    st.tuples(st.just("release"), WHICH),
    st.tuples(st.just("release any"), WHICH, WHICH, st.sampled_from([-1, 0, 0, 1]), st.booleans()),
    st.tuples(st.just("finish"), WHICH),
    st.tuples(st.just("ready"), WHICH),
    st.tuples(st.just("ready"), WHICH),
    st.tuples(st.just("ready any"), WHICH, WHICH, st.sampled_from([-1, 0, 1])),
    st.tuples(st.just("repeat"), WHICH),
    st.tuples(st.just("resize"), st.integers(1, 9), st.sampled_from([False, False, True])),
    st.tuples(
        st.just("change"),
        st.sampled_from(
            [
                {"rebalance_delay": 0.0},
                {"rebalance_delay": 5.0},
                {"max_handoff_time": 1.0},
                {"max_warmup_time": 7.0},
                {"max_warmup_time": 0.0},
                {"max_concurrent_handoffs": 1},
                {"max_concurrent_handoffs": 3},
                {"max_concurrent_handoffs": None},
                {"access_type": "exclusive"},
                {"access_type": "non_exclusive"},
                {"access_type": "non_exclusive", "partition_count": 5},
            ]
        ),
    ),
    st.tuples(st.just("rebalance now")),
    st.tuples(st.just("pause"), WHICH, st.booleans(), st.sampled_from([None, 0.5, 5.0])),
    st.tuples(st.just("resume"), WHICH, st.booleans()),
    st.tuples(st.just("raise epochs"), st.lists(WHICH, max_size=3)),
    st.tuples(st.just("outage"), st.sampled_from([4.0, 60.0])),
    st.tuples(st.just("clock goes back"), st.sampled_from([4.0, 3600.0])),
    st.tuples(st.just("wait"), st.sampled_from([0.5, 2.0, 5.0])),
    st.tuples(st.just("advance"), st.sampled_from([0.0, 0.5, 1.0, 3.0, 5.0])),
    st.tuples(st.just("advance"), st.sampled_from([0.0, 0.5, 1.0, 3.0, 5.0])),
    st.tuples(st.just("settle")),
)


# Some with a name that no flow has.
PINS = st.one_of(
    STEPS,
    st.tuples(st.just("pin"), WHICH, st.sampled_from([*NAMES, "test", "nobody"])),
    st.tuples(st.just("pin"), WHICH, st.sampled_from([*NAMES, "test", "nobody"])),
    st.tuples(st.just("unpin"), WHICH),
)


class Player:
    """Plays steps on a world; numbers choose among the present flows and partitions."""

    def __init__(
        self, world: World, quota: c.Quota | None = None, asks: Sequence[Ask] = (Ask(),)
    ) -> None:
        """`asks`: what flows bind with, one after the other."""
        self.world = world
        self.quota = quota
        self.asks = asks
        self.bound = 0
        self.instances: list[str] = []
        self.said: list[c.Release | c.Ready] = []
        self.outages = 0

    def play(self, step: tuple[Any, ...]) -> None:
        note(f"{self.world.now} {self.world.status}: {step}")
        getattr(self, "_" + step[0].replace(" ", "_"))(*step[1:])

    def _nothing(self) -> None:
        pass

    def _flow(self, which: int) -> str | None:
        flows = sorted(self.world.queue.flows.values(), key=lambda flow: flow.bind_number)
        return flows[which % len(flows)].id if flows else None

    def _bind(self, warmup: bool, instance: str | None = None) -> None:
        self.bound += 1
        instance = instance or f"i{self.bound}"
        if instance not in self.instances:
            self.instances.append(instance)
        key = None if self.quota is None else KEYS[int(instance[1:]) % len(KEYS)]
        name = NAMES[self.bound % len(NAMES)]
        binds = {"key_id": key, "quota": self.quota, "at_once": self.bound % 3 == 0, **self._ask()}
        binds["client_name"] = name
        self.world.bind(f"f{self.bound}", instance, warmup=warmup, **binds)

    def _ask(self) -> dict[str, Any]:
        weight, most, _ = self.asks[self.bound % len(self.asks)]
        return {"weight": weight, "max_partitions": None if self.world.queue.exclusive else most}

    def _bind_together(self, count: int) -> None:
        binds = []
        for _ in range(count):
            self.bound += 1
            self.instances.append(f"i{self.bound}")
            key = None if self.quota is None else KEYS[self.bound % len(KEYS)]
            bind = c.Bind(f"f{self.bound}", f"i{self.bound}", "test", 10.0, bool(count % 2))
            at_once = self.bound % 3 == 0
            ask = self._ask()
            binds.append(replace(bind, key_id=key, quota=self.quota, at_once=at_once, **ask))
        assert self.world.do(c.BindTogether(tuple(binds))).answer == (None,) * count

    def _bind_again(self, which: int, warmup: bool) -> None:
        if self.instances:
            self._bind(warmup, self.instances[-1 - which % len(self.instances)])

    def _unbind(self, which: int) -> None:
        if flow := self._flow(which):
            self.world.unbind(flow)

    def _expire(self, which: int) -> None:
        if flow := self._flow(which):
            self.world.expire(flow)

    def _drain(self, which: int, timeout: float | None) -> None:
        if flow := self._flow(which):
            self.world.drain(flow, timeout)

    def _say(self, command: c.Release | c.Ready) -> None:
        """Sends it, and again as if the answer had been lost: what was `ok` must be `ok` again."""
        self.said.append(command)
        first = self.world.do(command).answer
        again = self.world.do(command).answer
        for one, other in zip(first, again, strict=True):
            assert one.outcome != "ok" or other.outcome == "ok"

    def _release(self, which: int) -> None:
        revoking = sorted(n for n in self.world.queue.handoffs if self.world.state(n) == "revoking")
        if revoking:
            number = revoking[which % len(revoking)]
            owner = self.world.owner(number)
            assert owner is not None
            if owner in self.world.queue.flows:
                self._say(c.Release(owner, (c.ReleaseItem(number, self.world.epoch(number)),)))

    def _release_any(self, which: int, number: int, difference: int, finished: bool) -> None:
        if flow := self._flow(which):
            found = self.world.queue.partitions.get(number)
            epoch = (found.epoch if found else 0) + difference
            items = (
                c.ReleaseItem(number, epoch, finished=finished),
                c.ReleaseItem(number + 1, epoch),
                c.ReleaseItem(number, epoch),
            )
            self._say(c.Release(flow, items))

    def _finish(self, which: int) -> None:
        retiring = sorted(n for n in self.world.queue.retiring if self.world.owner(n))
        if retiring:
            number = retiring[which % len(retiring)]
            owner = self.world.owner(number)
            assert owner is not None
            item = c.ReleaseItem(number, self.world.epoch(number), finished=True)
            if owner in self.world.queue.flows:
                self._say(c.Release(owner, (item,)))

    def _ready(self, which: int) -> None:
        warming = sorted(self.world.queue.handoffs.warming)
        if warming:
            number = warming[which % len(warming)]
            successor = self.world.successor(number)
            assert successor is not None
            self._say(c.Ready(successor, (c.ReadyItem(number, self.world.epoch(number)),)))

    def _ready_any(self, which: int, number: int, difference: int) -> None:
        if flow := self._flow(which):
            found = self.world.queue.partitions.get(number)
            epoch = (found.epoch if found else 0) + difference
            self._say(c.Ready(flow, (c.ReadyItem(number, epoch), c.ReadyItem(number + 1, epoch))))

    def _repeat(self, which: int) -> None:
        """A late copy of an earlier call, perhaps long after it."""
        if self.said:
            command = self.said[-1 - which % len(self.said)]
            if command.flow_id in self.world.queue.flows:
                self.world.do(command)

    def _resize(self, count: int, discard: bool) -> None:
        self.world.resize(count, discard=discard)

    def _change(self, changes: dict[str, Any]) -> None:
        flows = self.world.queue.flows.values()
        if not self.world.queue.exclusive and any(f.max_partitions is not None for f in flows):
            changes = {name: at for name, at in changes.items() if at != "exclusive"}
        self.world.change(**changes)

    def _pause(self, which: int, whole: bool, seconds: float | None) -> None:
        number = which % self.world.queue.settings.partition_count
        self.world.pause(*(() if whole else (number,)), seconds=seconds)

    def _resume(self, which: int, whole: bool) -> None:
        number = which % self.world.queue.settings.partition_count
        self.world.resume(*(() if whole else (number,)))

    def _pin(self, which: int, client_name: str) -> None:
        self.world.pin(which % self.world.queue.settings.partition_count, client_name)

    def _unpin(self, which: int) -> None:
        self.world.unpin(which % self.world.queue.settings.partition_count)

    def _rebalance_now(self) -> None:
        self.world.rebalance_now()

    def _raise_epochs(self, numbers: list[int]) -> None:
        self.world.raise_epochs(*numbers)

    def _outage(self, seconds: float) -> None:
        began = self.world.now
        self.world.wait(seconds)
        self.outages += 1
        self.world.do(c.MoveDeadlines(self.outages, began, seconds))
        self.world.do(c.MoveDeadlines(self.outages, began, seconds))

    def _clock_goes_back(self, seconds: float) -> None:
        began = self.world.now
        self.world.wait(-seconds)
        self.outages += 1
        self.world.do(c.MoveDeadlines(self.outages, began, -seconds))
        self.world.do(c.MoveDeadlines(self.outages, began, -seconds))

    def _wait(self, seconds: float) -> None:
        self.world.wait(seconds)

    def _advance(self, seconds: float) -> None:
        self.world.advance(seconds)

    def _settle(self) -> None:
        self.world.settle()


@PROFILE
@given(
    st.integers(1, 9),
    SETTINGS,
    st.lists(st.sampled_from([True, True, False]), max_size=5),
    st.lists(STEPS, min_size=15, max_size=50),
)
def test_any_sequence_keeps_the_invariants_and_ends_balanced(
    partitions: int,
    chosen: dict[str, Any],
    bound: list[bool],
    steps: list[tuple[Any, ...]],
) -> None:
    _plays(World(partitions, **chosen), bound, steps)


@PROFILE
@given(
    st.integers(1, 9),
    SETTINGS,
    QUOTAS,
    st.sampled_from([0.0, 1800.0]),
    st.lists(STEPS, min_size=15, max_size=50),
)
def test_so_it_does_where_keys_have_a_small_budget(
    partitions: int,
    chosen: dict[str, Any],
    quota: c.Quota,
    pause: float,
    steps: list[tuple[Any, ...]],
) -> None:
    """`pause`: some time passes between two steps in the middle."""
    half = len(steps) // 2
    paused = (*steps[:half], ("advance", pause), *steps[half:])
    _plays(World(partitions, **chosen), [True, False], paused, quota)


ASKS = st.lists(
    st.builds(Ask, st.sampled_from([1, 1, 2, 3, 7, 1000]), st.sampled_from([None, None, 1, 2, 4])),
    min_size=1,
    max_size=5,
)


@PROFILE
@given(
    st.integers(1, 9),
    SETTINGS,
    ASKS,
    st.sampled_from([None, c.Quota(1000, 0, 3)]),
    st.lists(STEPS, min_size=15, max_size=50),
)
def test_so_it_does_with_weights_and_maxima(
    partitions: int,
    chosen: dict[str, Any],
    asks: list[Ask],
    quota: c.Quota | None,
    steps: list[tuple[Any, ...]],
) -> None:
    _plays(World(partitions, **chosen), [True, True, False], steps, quota, asks)


@PROFILE
@given(
    st.integers(1, 9),
    SETTINGS,
    st.one_of(st.just([Ask()]), ASKS),
    st.sampled_from([None, None, c.Quota(1000, 0, 3)]),
    st.lists(PINS, min_size=15, max_size=50),
)
def test_so_it_does_with_pins(
    partitions: int,
    chosen: dict[str, Any],
    asks: list[Ask],
    quota: c.Quota | None,
    steps: list[tuple[Any, ...]],
) -> None:
    _plays(World(partitions, **chosen), [True, True, False], steps, quota, asks)


def _plays(
    world: World,
    bound: Sequence[bool],
    steps: Sequence[tuple[Any, ...]],
    quota: c.Quota | None = None,
    asks: Sequence[Ask] = (Ask(),),
) -> None:
    """Binds flows, plays the steps, and checks that it ends."""
    player = Player(world, quota, asks)
    for warmup in bound:
        player.play(("bind", warmup))
    world.settle()
    for step in steps:
        player.play(step)
    queue, began = world.queue, world.now
    held = len(queue.flows.held)
    ends = [flow.held_until for flow in queue.flows.held.values()]
    waits = [end - began for end in ends if end is not None]
    # No clock that goes back moves the end of a pause.
    waits += [one.until - began for one in queue.pauses.of.values() if one.until is not None]
    existing = queue.operational_partition_count
    # Each partition may be on its way already, to a flow that must pass it on.
    times = world.settle()
    assert world.status == "Ready"
    assert not queue.flows.held
    assert times <= (1 + 4 * existing) * (1 + held)
    longest = queue.settings.max_warmup_time + queue.settings.max_handoff_time + 80
    assert world.now - began <= max(waits, default=0) + (5 + 2 * existing * longest) * (1 + held)
