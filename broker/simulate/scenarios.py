"""Scaling plans: what happens to the consumers of a queue, and when.

A file is a JSON array of steps, in seconds of virtual time:

    [{"at": 0, "do": "bind", "count": 10},
     {"at": 60, "do": "crash", "count": 2},
     {"at": 120, "do": "bind", "count": 2, "over": 10},
     {"at": 300, "do": "resize", "count": 64}]

`over` spreads a step evenly over so many seconds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from broker.core.model import MOST_PARTITIONS

ACTIONS = ("bind", "unbind", "drain", "crash", "resize")
MOST_COUNT = 1_000_000
MOST_SECONDS = 30 * 86400.0


@dataclass(frozen=True)
class Step:
    """`count` consumers do this, from `at` on within `over` seconds.

    `bind`, `unbind` (stop at once), `drain` (leave in order) and `crash`; those that leave are the
    ones that were bound first. `resize`: the queue has `count` partitions from then on.
    """

    at: float
    do: str
    count: int
    over: float = 0.0

    @property
    def label(self) -> str:
        """`bind 10`."""
        return f"{self.do} {self.count:,}"


def named(name: str, flows: int, start_seconds: float) -> tuple[Step, ...]:
    """A scenario by its name, for so many consumers. Raises ValueError.

    `start_seconds`: how long a consumer takes from its start until it binds.
    """
    build = SCENARIOS.get(name)
    if build is None:
        raise ValueError(f"no scenario {name!r}: there are {', '.join(SCENARIOS)}, or a file")
    return build(flows, start_seconds)


def _autoscale(flows: int, start_seconds: float) -> tuple[Step, ...]:
    """Half of the consumers, then all, then half again (drained)."""
    half = math.ceil(flows / 2)
    rest = flows - half
    steps = [Step(0.0, "bind", half)]
    if rest:
        steps += [
            Step(60.0, "bind", rest, over=start_seconds),
            Step(240.0, "drain", rest, over=start_seconds),
        ]
    return tuple(steps)


def _rolling_restart(flows: int, start_seconds: float) -> tuple[Step, ...]:
    """All are restarted in ten waves: stopped, and bound again when they have started."""
    waves = min(10, flows)
    steps = [Step(0.0, "bind", flows)]
    for wave in range(waves):
        count = flows * (wave + 1) // waves - flows * wave // waves
        at = 60.0 + wave * 60.0
        steps += [Step(at, "unbind", count), Step(at + start_seconds, "bind", count)]
    return tuple(steps)


def _crash(flows: int, start_seconds: float) -> tuple[Step, ...]:
    """A tenth of the consumers dies at once, and is started again."""
    count = max(1, flows // 10)
    return (
        Step(0.0, "bind", flows),
        Step(60.0, "crash", count),
        Step(60.0 + start_seconds, "bind", count),
    )


SCENARIOS: Mapping[str, Callable[[int, float], tuple[Step, ...]]] = {
    "autoscale": _autoscale,
    "rolling-restart": _rolling_restart,
    "crash": _crash,
}


def read(text: str) -> tuple[Step, ...]:
    """The steps of a file, in the order of their times. Raises ValueError."""
    try:
        document = json.loads(text)
        if not isinstance(document, list) or not document:
            raise ValueError("a scenario is a JSON array of steps")
        steps = [_step(place, one) for place, one in enumerate(document)]
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    return tuple(sorted(steps, key=lambda step: step.at))


def _step(place: int, one: Any) -> Step:
    where = f"step {place + 1}"
    if not isinstance(one, dict):
        raise ValueError(f"{where} is not an object")
    unknown = one.keys() - {"at", "do", "count", "over"}
    if unknown:
        raise ValueError(f"{where} has unknown fields: {', '.join(sorted(unknown))}")
    if one.get("do") not in ACTIONS:
        raise ValueError(f"{where}: do is none of {', '.join(ACTIONS)}")
    count = one.get("count")
    most = MOST_PARTITIONS if one["do"] == "resize" else MOST_COUNT
    if type(count) is not int or not 1 <= count <= most:
        raise ValueError(f"{where}: count must be a number from 1 to {most:,}")
    seconds = {}
    for name in ("at", "over"):
        value = one.get(name, 0.0)
        if type(value) not in (int, float) or not 0 <= value <= MOST_SECONDS:
            raise ValueError(f"{where}: {name} must be seconds from 0 to {MOST_SECONDS:,.0f}")
        seconds[name] = float(value)
    return Step(seconds["at"], one["do"], count, seconds["over"])
