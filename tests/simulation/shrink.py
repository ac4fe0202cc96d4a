"""Makes a failing run small: everything is left out without which the same promise is still broken.

Events go first, in halves, quarters and so on down to single ones (delta debugging). Then the run's
constants are made simpler, one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.simulation.plan import LATENCIES, Event, Plan
from tests.simulation.world import run

# The limit of runs: about a minute.
MOST_RUNS = 1500


def shrunk(plan: Plan, broken: Callable[[Plan], bool] | None = None) -> Plan:
    """The smallest plan found that breaks the same promise; `broken` returns a plan's broken
    promise.
    """
    if broken is None:
        violation = run(plan).violation
        assert violation is not None, "there is nothing wrong with this plan"
        promise = violation.promise

        def broken(plan: Plan) -> bool:
            found = run(plan).violation
            return found is not None and found.promise == promise

    left = [MOST_RUNS]

    def still(candidate: Plan) -> bool:
        left[0] -= 1
        return left[0] >= 0 and broken(candidate)

    before = None
    while before != plan and left[0] > 0:
        before = plan
        plan = _fewer_events(plan, still)
        for candidate in _simpler(plan):
            if still(candidate(plan)):
                plan = candidate(plan)
    return plan


def _fewer_events(plan: Plan, still: Callable[[Plan], bool]) -> Plan:
    events = list(plan.events)
    size = max(1, len(events) // 2)
    while True:
        place = 0
        removed = False
        while place < len(events):
            fewer = events[:place] + events[place + size :]
            if still(_with(plan, fewer)):
                events, removed = fewer, True
            else:
                place += size
        if size == 1 and not removed:
            return _with(plan, events)
        size = max(1, size // 2)


def _with(plan: Plan, events: list[Event]) -> Plan:
    return replace(plan, events=tuple(events))


def _simpler(plan: Plan) -> Iterator[Callable[[Plan], Plan]]:
    """Ways to make a plan simpler."""
    config = plan.config
    if config.replicas > 1:
        yield lambda plan: replace(plan, config=replace(plan.config, replicas=1))
    if config.latency != LATENCIES[0]:
        yield lambda plan: replace(plan, config=replace(plan.config, latency=LATENCIES[0]))
    if config.drift:
        yield lambda plan: replace(plan, config=replace(plan.config, drift=0.0))
    if not config.sticky:
        yield lambda plan: replace(plan, config=replace(plan.config, sticky=True))
    for name, value in _PLAIN.items():
        if config.settings[name] != value:

            def plainer(plan: Plan, name: str = name, value: object = value) -> Plan:
                settings = {**plan.config.settings, name: value}
                return replace(plan, config=replace(plan.config, settings=settings))

            yield plainer
    count = config.settings["partition_count"]
    for fewer in range(1, count):

        def smaller(plan: Plan, fewer: int = fewer) -> Plan:
            settings = {**plan.config.settings, "partition_count": fewer}
            return replace(plan, config=replace(plan.config, settings=settings))

        yield smaller
    for place, event in enumerate(plan.events):
        if event.kind == "publish" and event.args[0] > 1:

            def less(plan: Plan, place: int = place) -> Plan:
                events = list(plan.events)
                if place < len(events) and events[place].kind == "publish":
                    events[place] = events[place]._replace(args=(1, events[place].args[1]))
                return _with(plan, events)

            yield less


_PLAIN = {
    "rebalance_delay": 0.0,
    "max_handoff_time": 1.0,
    "max_warmup_time": 1.0,
    "max_concurrent_handoffs": None,
    "access_type": "non_exclusive",
}
