"""Each preview equals what the call then does: in any state that random sequences reach.

COUNTERPOISE_TEST_EXAMPLES=20000 pytest --timeout 0 tests/broker/core/test_previews.py  (new seeds)
"""

from __future__ import annotations

import os
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from broker.core import commands as c
from broker.core import previews
from broker.core.errors import BrokerError
from broker.core.previews import Foreseen, Thought
from broker.core.structures import Journal
from tests.broker.core.oracle import snapshot
from tests.broker.core.test_sequences import ASKS, NAMES, PINS, QUOTAS, SETTINGS, WHICH, Player
from tests.broker.core.world import World
from tests.budgets import WHOLE, budget

_EXAMPLES = os.environ.get("COUNTERPOISE_TEST_EXAMPLES")
# Twenty states in each: 3,000 in a whole run, 400 in a short one.
PROFILE = settings(
    max_examples=int(_EXAMPLES or (budget(150) if budget(WHOLE) == WHOLE else 20)),
    derandomize=_EXAMPLES is None,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)


def preview(world: World, *commands: c.Command) -> Foreseen:
    """What the commands would do now; the world stays as it is."""
    before = snapshot(world.queue)
    thought = Thought(deepcopy(world.queue), world.now)
    for _ in thought.play(commands):
        pass
    assert snapshot(world.queue) == before
    return thought.preview


CALLS = st.one_of(
    st.tuples(st.just("resize"), st.integers(1, 9), st.booleans()),
    st.tuples(st.just("access"), st.sampled_from(["exclusive", "non_exclusive"])),
    st.tuples(st.just("delay"), st.sampled_from([0.0, 2.0])),
    st.tuples(st.just("handoffs"), st.sampled_from([None, 1, 3])),
    st.tuples(st.just("weight"), st.sampled_from([1, 1000])),
    st.tuples(st.just("rebalance")),
    st.tuples(st.just("drain"), WHICH),
    st.tuples(st.just("drain"), WHICH),
    st.tuples(st.just("unbind"), WHICH),
    st.tuples(st.just("pause"), WHICH, st.booleans()),
    st.tuples(st.just("resume"), WHICH, st.booleans()),
    st.tuples(st.just("pin"), WHICH, st.sampled_from([*NAMES, "nobody"])),
    st.tuples(st.just("unpin"), WHICH),
)


def call_of(drawn: tuple[Any, ...], world: World) -> c.Command | None:
    """The call, of the flows and partitions that there are; None: there is none to speak of."""
    flows = sorted(world.queue.flows.values(), key=lambda flow: flow.bind_number)
    match drawn:
        case ("resize", count, discard):
            return c.Change({"partition_count": count}, discard)
        case ("access", access):
            return c.Change({"access_type": access})
        case ("delay", seconds):
            return c.Change({"rebalance_delay": seconds})
        case ("handoffs", most):
            return c.Change({"max_concurrent_handoffs": most})
        case ("weight", most):
            return c.Change({"max_weight": most})
        case ("rebalance",):
            return c.RebalanceNow()
        case ("drain", which):
            return c.Drain(flows[which % len(flows)].id) if flows else None
        case ("unbind", which):
            return c.Unbind(flows[which % len(flows)].id) if flows else None
        case ("pause", which, whole):
            return c.PausePartitions(() if whole else (which,))
        case ("resume", which, whole):
            return c.ResumePartitions(() if whole else (which,))
        case ("pin", which, name):
            return c.PinPartition(which, name)
        case ("unpin", which):
            return c.UnpinPartition(which)
    raise AssertionError(drawn)


def owners(world: World) -> dict[int, str | None]:
    """By partition; removed ones are not there."""
    numbers = world.queue.partitions
    return {n: world.owner(n) for n in sorted(numbers) if world.state(n) != "removed"}


def paused(world: World) -> set[int]:
    """The partitions that are held still."""
    pauses = world.queue.pauses
    return {n for n in owners(world) if pauses.of.get(n) or pauses.of.get(None)}


def pinned(world: World) -> dict[int, str]:
    """To which consumer each pinned partition is pinned."""
    return {n: pin.client_name for n, pin in sorted(world.queue.pins.of.items())}


def obey(world: World) -> None:
    """All flows do what they are told, and the holddown ends, until nothing is left to do."""
    for _ in range(1000):
        world.advance()
        on_their_way = world.on_their_way()
        for flow in list(world.queue.flows):
            revoked = [
                n for n, (state, _) in on_their_way.items()
                if state == "revoking" and world.owner(n) == flow
            ]  # fmt: skip
            if revoked:
                world.release(flow, *revoked)
        for flow in list(world.queue.flows):
            warming = [
                n for n, (state, to) in on_their_way.items() if state == "warming" and to == flow
            ]
            if warming:
                world.ready(flow, *(n for n in warming if world.state(n) == "warming"))
        if on_their_way:
            continue
        if (until := world.queue.holddown_until) is None:
            return
        world.now = max(world.now, until)
        world.do(c.Advance())
    raise AssertionError("this does not end")


def outcome(world: World, call: c.Command) -> dict[str, Any]:
    """What the call does, found out by doing it."""
    world.do(c.Advance())
    had, counts, held, pins = (
        owners(world),
        {f: len(world.owned(f)) for f in world.queue.flows},
        paused(world),
        pinned(world),
    )
    retiring, old = set(world.queue.retiring), deepcopy(world.queue.settings)
    world.do(call)
    until, now_held, now_pinned = world.queue.holddown_until, paused(world), pinned(world)
    obey(world)
    has, new = owners(world), world.queue.settings
    changed = {n: (had.get(n), has[n]) for n in has if had.get(n) != has[n]}
    return {
        "moves": changed,
        "added": sorted(has.keys() - had.keys()),
        "removed": sorted(had.keys() - has.keys()),
        "retiring": sorted(world.queue.retiring - retiring),
        "unassigned": [n for n, owner in has.items() if owner is None and had.get(n, "new")],
        "flows": {
            f: (n, len(world.owned(f)) if f in world.queue.flows else None)
            for f, n in counts.items()
        },
        "paused": sorted(now_held - held),
        "resumed": sorted((held - now_held) & has.keys()),
        "pinned": [n for n, name in now_pinned.items() if pins.get(n) != name],
        "unpinned": [n for n in pins if n not in now_pinned and n in has],
        "settings": {
            name: (getattr(old, name), getattr(new, name))
            for name in old.__slots__
            if getattr(old, name) != getattr(new, name)
        },
        "holddown_until": until,
    }  # fmt: skip


def foreseen(found: Foreseen) -> dict[str, Any]:
    """The same of a preview."""
    return {
        "moves": {one.partition: (one.previous, one.flow_id) for one in found.moves},
        "added": [*found.added],
        "removed": [*found.removed],
        "retiring": [*found.retiring],
        "unassigned": [*found.unassigned],
        "flows": found.flows,
        "paused": [*found.paused],
        "resumed": [*found.resumed],
        "pinned": [*found.pinned],
        "unpinned": [*found.unpinned],
        "settings": found.settings,
        "holddown_until": found.holddown_until,
    }


def foresees(world: World, call: c.Command) -> None:
    """Checks the preview of the call by doing it on a copy of the world."""
    try:
        said = foreseen(preview(world, call))
    except BrokerError as error:
        with pytest.raises(type(error)):
            deepcopy(world).do(call)
        return
    assert said == outcome(deepcopy(world), call)


@PROFILE
@given(
    st.integers(1, 8),
    SETTINGS,
    ASKS,
    st.one_of(st.none(), QUOTAS),
    st.lists(st.tuples(PINS, CALLS), min_size=20, max_size=20),
)
def test_each_preview_equals_what_the_call_then_does(
    partitions: int,
    chosen: dict[str, Any],
    asks: list[Any],
    quota: c.Quota | None,
    steps: list[tuple[tuple[Any, ...], tuple[Any, ...]]],
) -> None:
    world = World(partitions, checked=False, **chosen)
    player = Player(world, quota, asks)
    for warmup in (True, True, False):
        player.play(("bind", warmup))
    for step, drawn in steps:
        player.play(step)
        if (call := call_of(drawn, world)) is not None:
            note(f"{world.now} {world.status}: {call}")
            foresees(world, call)


def growing() -> World:
    """Two flows with all partitions, and a third that is bound: it is about to warm up."""
    world = World(6, checked=False)
    world.bind("A")
    world.bind("B", warmup=True)
    world.advance(5)
    obey(world)
    world.bind("C", warmup=True)
    return world


@pytest.mark.parametrize("call", [c.Drain("A"), c.Change({"partition_count": 7})])
@pytest.mark.parametrize("bug", ["nobody is ready", "no time passes", "nothing is taken back"])
def test_a_planted_bug_is_seen(bug: str, call: c.Command, monkeypatch: pytest.MonkeyPatch) -> None:
    foresees(growing(), call)
    match bug:
        case "nobody is ready":
            said = previews._said
            deaf = lambda queue: [one for one in said(queue) if isinstance(one, c.Release)]  # noqa: E731
            monkeypatch.setattr(previews, "_said", deaf)
        case "no time passes":
            monkeypatch.setattr(Thought, "_rest", lambda _: iter(()))
        case "nothing is taken back":
            monkeypatch.setattr(Journal, "undo", lambda _, __: None)
    with pytest.raises(AssertionError):
        foresees(growing(), call)


def test_what_happens_anyway_is_told_apart() -> None:
    world = growing()
    found = preview(world, c.Drain("A"))
    assert all(one.flow_id != "A" for one in found.moves)
    # The third flow gets its share without the drain, too.
    anyway = {one.partition: one.flow_id for one in found.moves if one.anyway}
    obey(world)
    assert anyway.items() <= owners(world).items()
    assert anyway
    assert not preview(world, c.RebalanceNow()).moves


def test_what_is_lost_without_a_release_is_interrupted() -> None:
    world = growing()
    obey(world)
    owned = world.owned("A")
    assert preview(world, c.Unbind("A")).interrupted == tuple(owned)
    assert preview(world, c.Drain("A")).interrupted == ()
    assert preview(world, c.Change({"partition_count": 4}, True)).interrupted == (4, 5)
    world.change(max_handoff_time=0.0)
    assert preview(world, c.Drain("A")).interrupted == tuple(owned)


def test_what_nobody_may_take_stays() -> None:
    world = World(4, checked=False)
    world.bind("A", at_once=True)
    assert preview(world, c.Drain("A")).staying == (0, 1, 2, 3)
    world.bind("B", max_partitions=1)
    drained = preview(world, c.Drain("A"))
    assert len(drained.staying) == 3
    assert drained.flows == {"A": (4, 3), "B": (0, 1)}
