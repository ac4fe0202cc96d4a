"""The plan of a run: settings and a list of events, all drawn from one seed.

A plan is complete before the run begins. So a plan without some of its events is a plan too; that
is how a failing run is shrunk. What is drawn during the run (latencies, losses) comes from a
generator of each process, so leaving out an event of one process hardly affects the others.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

Args = tuple[Any, ...]


class Event(NamedTuple):
    """Something that happens at a time (seconds from the start)."""

    at: float
    kind: str
    args: Args = ()

    def __str__(self) -> str:
        return f"{self.at:7.3f}  {self.kind} {' '.join(map(str, self.args))}".rstrip()


@dataclass(frozen=True)
class Config:
    """The constants of a run.

    `latency`: of each message between two processes, (least, most, probability of any). `drift`:
    how much clocks may run too fast or too slow. `work`: how long a consumer takes for a few
    messages, (least, most). `sticky`: a client stays with a replica until it fails; else each call
    may meet another. `several`: so many flows that
    bind together are a crowd. `moves`: how much each key may take from others in `HOUR_SECONDS`;
    None: as much as they like. `followed`: a second queue reads the log. `aligned`: so many
    partitions in a row have one owner. `weights`, `maxima`: those of consumers, in turn.
    `by_key`: consumers work on different keys of a partition at once.
    """

    replicas: int = 2
    settings: dict[str, Any] = field(default_factory=dict)
    latency: tuple[float, float, float] = (0.001, 0.01, 1.0)
    drift: float = 0.001
    work: tuple[float, float] = (0.02, 0.3)
    sticky: bool = True
    several: int = 5
    moves: int | None = None
    followed: bool = False
    aligned: int = 1
    weights: tuple[int, ...] = (1,)
    maxima: tuple[int | None, ...] = (None,)
    by_key: bool = False

    @property
    def reshapes(self) -> bool:
        """Whether the order of keys is kept when partitions change."""
        return self.ordered or self.dynamic

    @property
    def ordered(self) -> bool:
        return bool(self.settings.get("ordered_resize"))

    @property
    def dynamic(self) -> bool:
        return self.settings.get("partitioning") == "dynamic"


@dataclass(frozen=True)
class Plan:
    """A run: its seed, its constants and its events."""

    seed: int
    config: Config
    events: tuple[Event, ...]

    @property
    def topic(self) -> bool:
        """Whether the queue reads a topic."""
        return self.config.settings.get("log") == TOPIC

    @property
    def end(self) -> float:
        """The time after which nothing goes wrong."""
        return max((event.at for event in self.events), default=0.0) + 0.5


LATENCIES = (
    (0.0005, 0.003, 0.7),
    (0.001, 0.02, 0.9),
    (0.001, 0.08, 0.6),
    (0.02, 0.12, 1.0),
)
# How many flows that bind together are a crowd.
SEVERAL = (5, 5, 2, 5, 1, 5, 5)
# The keys of consumers, in turn, and how soon what they have taken counts no more.
KEYS = ("one", "two", None)
HOUR_SECONDS = 12.0
# The log of the queue: its own, or a topic that existed before, has messages and grows.
BUILTIN, TOPIC = "builtin:orders", "kafka://broker:9092/orders"
LEASES = (2.0, 3.0, 4.0, 6.0)
# By less than the size of an outage, which goes unnoticed, or by far more.
CLOCK_STEPS = (-3600.0, -3600.0, -60.0, -1.5, 1.5, 60.0, 3600.0)

# Of 16 seeds one, in which consumers have weights, one, in which they have maxima, too, and one, in
# which they work by key.
WEIGHTED = 9
LIMITED = 3
BY_KEY = 14

# What may go wrong, with weights; each run draws some of them.
FAULTS: dict[str, tuple[str, ...]] = {
    "replicas": ("crash", "crash", "freeze node", "stop", "crash before", "crash after"),
    "database": ("away", "cut", "slow", "refuses", "forgets", "unknown", "long away", "stall"),
    "network": ("lost", "doubles", "deaf", "deaf", "interrupt"),
    "consumers": ("freeze", "kill", "restart", "restart over", "stubborn", "cold"),
    "outage": ("blackout", "outages"),
    "clock": ("clock step",),
}
# What people do; these are no faults.
ACTIONS: dict[str, tuple[str, ...]] = {
    "crowd": ("join", "join", "leave", "drain", "drain", "expel", "replace", "desert"),
    "resize": ("resize", "resize", "discard", "flip"),
    "settings": ("settings", "access", "rebalance"),
    "positions": ("positions",),
}


# What happens to queues with ordered resizes and to dynamic ones, beside all of the above.
RESHAPING: dict[str, tuple[str, ...]] = {
    "ordered": ("resize", "resize", "resize", "reset"),
    "dynamic": ("split", "split", "split", "merge", "merge"),
    "both": (
        *("burst", "burst", "burst", "publisher sleeps", "publisher dies"),
        *("log away", "crash before log", "crash after log"),
    ),
}
# Only queues without either are resized so.
UNORDERED = ("resize", "discard", "flip")


def draw(seed: int) -> Plan:
    """The plan of a seed."""
    rng = random.Random(seed)
    settings = {
        "partition_count": rng.choice((1, 3, 4, 5, 6, 7, 8, 10, 12)),
        "rebalance_delay": rng.choice((0.0, 0.0, 0.4, 1.0, 2.0)),
        "max_handoff_time": rng.choice((0.4, 1.0, 2.0)),
        "max_warmup_time": rng.choice((0.0, 1.0, 3.0)),
        "max_concurrent_handoffs": rng.choice((None, None, None, 1, 2)),
        "access_type": "exclusive" if rng.random() < 0.1 else "non_exclusive",
        "ordered_resize": False,
    }
    latency = rng.choice(LATENCIES)
    # Drawn separately, so that the other draws of a seed stay as they are.
    apart = random.Random(f"start of {seed}")
    if apart.random() < 0.25:
        settings |= {"start": "latest", "log": apart.choice((BUILTIN, TOPIC))}
    keys = random.Random(f"keys of {seed}")
    config = Config(
        rng.choice((1, 2, 2, 2, 3)),
        settings,
        latency,
        drift=rng.choice((0.0, 0.001)),
        sticky=rng.random() < 0.5,
        several=SEVERAL[seed % len(SEVERAL)],
        moves=keys.choice((1, 2)) if keys.random() < 0.5 else None,
    )
    kinds = [kind for kinds in ACTIONS.values() if rng.random() < 0.6 for kind in kinds]
    kinds += [kind for kinds in FAULTS.values() if rng.random() < 0.5 for kind in kinds]
    kinds = kinds or ["join", "leave"]
    length = rng.choice((6.0, 10.0, 15.0))
    events = [_event(rng, 0.0, "join")]
    events += [_event(rng, rng.random() * 0.5, "join") for _ in range(rng.choice((0, 1, 1, 2, 3)))]
    for _ in range(rng.randrange(6, 30)):
        events.append(_event(rng, rng.random() * length, rng.choice(kinds)))
    for _ in range(rng.randrange(8, 24)):
        events.append(_event(rng, rng.random() * length, "publish"))
    reshaping = "ordered" if seed % 3 == 2 else "dynamic" if seed % 6 == 4 else None
    if reshaping is not None:
        # Drawn apart, too.
        config, events = _reshaped(random.Random(f"shape of {seed}"), reshaping, config, events)
    if seed % 12 == 7:
        config, events = _aligned(config, events)
    # Rare by itself: a report that arrives after its partition came back and retires again.
    if seed % 12 == 6:
        revived = random.Random(f"revival of {seed}")
        events.append(_event(revived, revived.random() * length, "revive"))
    # Of all kinds of queues: the second are dynamic.
    if seed % 8 == 5 or seed % 24 == 22:
        pauses = random.Random(f"pauses of {seed}")
        count = pauses.choice((1, 2, 4))
        events += [_event(pauses, pauses.random() * length, "pause") for _ in range(count)]
    if seed % 16 in (WEIGHTED, LIMITED):
        weights = random.Random(f"weights of {seed}")
        drawn = tuple(weights.choice((1, 1, 2, 3, 10)) for _ in range(5))
        config = replace(config, weights=drawn)
    if seed % 16 == BY_KEY:
        config = replace(config, by_key=True)
    if seed % 16 == LIMITED:
        config, events = _limited(random.Random(f"maxima of {seed}"), config, events)
    if reshaping == "ordered":
        # As above.
        config, events = _followed(random.Random(f"followers of {seed}"), config, events)
    events.sort(key=lambda event: event.at)
    return Plan(seed, config, tuple(events))


def _followed(
    rng: random.Random, config: Config, events: list[Event]
) -> tuple[Config, list[Event]]:
    """The plan, maybe with a queue that follows."""
    length = max(event.at for event in events)
    if rng.random() < 0.15:
        config = replace(config, followed=True)
        for at in (0.0, 0.3, length * rng.random()):
            events.append(_event(rng, at, "join follower"))
    return config, events


def _reshaped(
    rng: random.Random, reshaping: str, config: Config, events: list[Event]
) -> tuple[Config, list[Event]]:
    """The plan with a queue of this kind."""
    settings = {**config.settings}
    if settings.get("log") == TOPIC:
        settings["log"] = BUILTIN
    if reshaping == "ordered":
        settings["ordered_resize"] = True
    else:
        settings |= {"partitioning": "dynamic", "partition_count": rng.choice((1, 2, 3, 4))}
        # Warm-ups are short of time here: partitions end meanwhile.
        settings["max_warmup_time"] = rng.choice((1.0, 3.0))
    length = max(event.at for event in events)
    rarely = ("publish", *UNORDERED)
    events = [
        event
        for event in events
        if event.at == 0.0 or rng.random() < (0.15 if event.kind in rarely else 0.75)
    ]
    if reshaping == "dynamic":
        events = [event for event in events if event.kind not in UNORDERED]
        events = [
            event._replace(args=(event.args[0], rng.random() < 0.7))
            if event.kind == "join"
            else event
            for event in events
        ]
        events += [_event(rng, rng.random() * length, "cold") for _ in range(2)]
    kinds = RESHAPING[reshaping] * 2 + RESHAPING["both"]
    for _ in range(rng.randrange(6, 16)):
        events.append(_event(rng, rng.random() * length, rng.choice(kinds)))
    for _ in range(rng.randrange(3, 8)):
        events.append(_event(rng, rng.random() * length, "burst"))
    return replace(config, settings=settings), events


def _aligned(config: Config, events: list[Event]) -> tuple[Config, list[Event]]:
    """The plan with partitions in pairs."""

    def even(count: int) -> int:
        return count + count % 2

    settings = {**config.settings}
    settings["partition_count"] = even(settings["partition_count"])
    if settings.get("log") == TOPIC:
        settings["log"] = BUILTIN
    kinds = ("resize", "discard", "flip", "revive")
    events = [
        event._replace(args=(even(event.args[0]), *event.args[1:]))
        if event.kind in kinds
        else event
        for event in events
    ]
    return replace(config, settings=settings, aligned=2), events


def _limited(rng: random.Random, config: Config, events: list[Event]) -> tuple[Config, list[Event]]:
    """The plan with maxima. An exclusive queue has none."""
    drawn = tuple(rng.choice((1, 1, 2, 3, 5, None)) for _ in range(4))
    maxima = tuple(most and most * config.aligned for most in drawn)
    weights = config.weights if rng.random() < 0.3 else (1,)
    settings = {**config.settings, "access_type": "non_exclusive"}
    events = [event for event in events if event.kind != "access"]
    return replace(config, settings=settings, weights=weights, maxima=maxima), events


def _event(rng: random.Random, at: float, kind: str) -> Event:
    return Event(round(at, 3), kind, _ARGS.get(kind, _nothing)(rng))


def _nothing(rng: random.Random) -> Args:
    return ()


def _who(rng: random.Random) -> Args:
    """The target: a number, taken modulo the number of targets."""
    return (rng.randrange(12),)


def _for(*seconds: float) -> Any:
    return lambda rng: (rng.randrange(12), rng.choice(seconds))


def _chance(*chances: float) -> Any:
    return lambda rng: (rng.choice(chances), rng.choice((0.5, 1.5, 3.0)))


def _settings(rng: random.Random) -> Args:
    name, values = rng.choice(
        (
            ("rebalance_delay", (0.0, 0.5, 1.5)),
            ("max_handoff_time", (0.4, 1.0, 2.0)),
            ("max_warmup_time", (0.0, 1.0, 3.0)),
            ("max_concurrent_handoffs", (None, 1, 2)),
        )
    )
    return (name, rng.choice(values))


_ARGS: dict[str, Any] = {
    # lease, warm-up
    "join": lambda rng: (rng.choice(LEASES), rng.random() < 0.35),
    "join follower": lambda rng: (rng.choice(LEASES), rng.random() < 0.35),
    "publish": lambda rng: (rng.randrange(1, 6), rng.randrange(1000)),
    "leave": _who,
    "drain": lambda rng: (rng.randrange(12), rng.choice((None, None, 0.3, 1.0))),
    # an administrator drains, unbinds
    "expel": lambda rng: (rng.randrange(12), rng.random() < 0.6),
    # everybody drains, or leaves
    "desert": lambda rng: (rng.random() < 0.5,),
    # one leaves, and another comes at once or soon
    "replace": lambda rng: (rng.randrange(12), rng.choice((0.0, 0.2, 0.8))),
    "resize": lambda rng: (rng.choice((1, 2, 3, 4, 5, 6, 8, 9, 12)), False),
    "discard": lambda rng: (rng.choice((1, 2, 3, 4, 6)), True),
    # shrinks, grows again, shrinks again
    "flip": lambda rng: (rng.choice((1, 2, 3, 4)), rng.choice((0.05, 0.15, 0.4))),
    # shrinks; grows again and shrinks again while a report of the end is on its way
    "revive": lambda rng: (rng.choice((1, 2, 3)), rng.choice((0.05, 0.15, 0.4, 1.0))),
    "settings": _settings,
    "access": lambda rng: (rng.choice(("exclusive", "non_exclusive")),),
    "positions": lambda rng: (rng.random() < 0.5, rng.randrange(12)),
    # which partition, None: the queue; for how long, and whether it ends by itself
    "pause": lambda rng: (
        rng.choice((None, rng.randrange(12), rng.randrange(12))),
        rng.choice((0.5, 1.5, 3.0)),
        rng.random() < 0.5,
    ),
    "crash": _for(0.3, 1.0, 2.5),
    "crash before": _for(0.3, 1.5),
    "crash after": _for(0.3, 1.5),
    "stop": _for(0.2, 1.0),
    "freeze node": _for(0.5, 1.5, 2.5, 4.5),
    "cut": _for(0.5, 1.5, 4.0),
    "unknown": _who,
    # the duration of the next commit that begins handoffs
    "stall": lambda rng: (rng.choice((2.0, 4.0, 6.0)),),
    # two outages, as soon as handoffs begin
    "outages": lambda rng: (rng.choice((3.3, 4.0)), rng.choice((3.3, 4.0))),
    # the database's clock is set
    "clock step": lambda rng: (rng.choice(CLOCK_STEPS),),
    "interrupt": _who,
    "away": lambda rng: (rng.choice((0.3, 1.0, 2.0)),),
    "long away": lambda rng: (rng.choice((3.5, 5.0)),),
    "blackout": lambda rng: (rng.choice((1.0, 3.5, 5.0)), rng.random() < 0.5),
    "slow": lambda rng: (rng.choice((5.0, 20.0)), rng.choice((0.5, 1.5, 3.0))),
    "refuses": _chance(0.05, 0.3),
    "forgets": _chance(0.05, 0.3),
    "lost": _chance(0.1, 0.3, 0.6),
    "doubles": _chance(0.2, 0.5),
    "deaf": _chance(0.5, 1.0),
    "freeze": _for(0.5, 2.0, 5.0, 8.0),
    "kill": _who,
    # killed, and started again after this time with the same instance
    "restart": _for(0.0, 0.5, 3.0),
    # started again while the old process goes on
    "restart over": _who,
    # how much longer its next messages take
    "stubborn": _for(1.0, 2.5, 4.0),
    # which publisher, how many messages, of which keys
    "burst": lambda rng: (rng.randrange(2), rng.randrange(2, 7), rng.randrange(1000)),
    # a publisher freezes with an append on its way
    "publisher sleeps": lambda rng: (rng.randrange(2), rng.choice((0.3, 1.0, 3.0))),
    "publisher dies": lambda rng: (rng.randrange(2),),
    "log away": lambda rng: (rng.choice((0.3, 1.5, 4.0)),),
    # with the next change of the log
    "crash before log": _for(0.3, 1.5),
    "crash after log": _for(0.3, 1.5),
    # which partition; where: by thirds, None: in the middle
    "split": lambda rng: (rng.randrange(24), rng.choice((None, None, 1, 2))),
    "merge": _who,
    # positions are set to before the last cuts, or to them
    "reset": lambda rng: (rng.random() < 0.3, rng.randrange(12)),
    # how long it warms up
    "cold": _for(0.5, 2.0, 9.0),
}
