"""Consumers come and go, and topics grow: the same for every way to share partitions.

`benchmarks.coordinator` says what is measured, and how.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks.handoffs import until
from benchmarks.members import CounterpoiseMember, GroupMember, Member, ShareMember
from benchmarks.observer import Moves, Observer, least_moves, moves
from benchmarks.producing import Producing, producing
from benchmarks.traffic import EVERY_SECONDS
from counterpoise.client import Client
from tests import kafka_server

WAIT_SECONDS = 420.0
# Without a change for so long, a group is settled. A client of librdkafka sends at most one
# JoinGroup a second.
QUIET_SECONDS = 1.2
AFTER_SECONDS = 0.3
# How long Kubernetes takes to see that a pod is ready, if it asks every second.
READY_SECONDS = 1.0
PER_SECOND = round(1 / EVERY_SECONDS)
SHORT_MILLISECONDS, MANY_MILLISECONDS, MANY = 20, 100, 10
SESSION_MILLISECONDS = 6000


@dataclass(frozen=True)
class Variant:
    """One way to share partitions."""

    name: str
    kind: str
    short: bool

    @property
    def label(self) -> str:
        """For the tables."""
        return f"{self.name}, {'short' if self.short else 'as shipped'}"

    @property
    def has_owners(self) -> bool:
        """Whether a consumer can say what it owns."""
        return self.kind != "share"

    @property
    def settled_seconds(self) -> float:
        """How long a share group needs at most to share out; it does not say when it has."""
        return 1.5 if self.short else 12.0

    def client(self, milliseconds: int) -> dict[str, Any]:
        """The options of a consumer."""
        if self.kind == "counterpoise":
            if not self.short:
                return {}
            lease_seconds = SESSION_MILLISECONDS / 1000
            return {"lease_seconds": lease_seconds, "idle_seconds": milliseconds / 1000}
        if self.kind == "share":
            return {}
        options: dict[str, Any] = {"group.protocol": self.kind}
        if self.kind == "classic":
            options["partition.assignment.strategy"] = self.name
            if self.short:
                options |= {
                    "heartbeat.interval.ms": milliseconds,
                    "session.timeout.ms": SESSION_MILLISECONDS,
                    "topic.metadata.refresh.interval.ms": milliseconds,
                    # librdkafka looks for a due heartbeat when a timer wakes it, and this is one;
                    # otherwise it looks once a second.
                    "auto.commit.interval.ms": milliseconds,
                }
        return options

    def group(self, milliseconds: int) -> dict[str, object]:
        """The group's settings at the broker."""
        kind = {"consumer": "consumer", "share": "share"}.get(self.kind)
        if kind is None:
            return {}
        settings: dict[str, object] = (
            {"share.auto.offset.reset": "earliest"} if kind == "share" else {}
        )
        if self.short:
            settings |= {
                f"{kind}.heartbeat.interval.ms": milliseconds,
                f"{kind}.session.timeout.ms": SESSION_MILLISECONDS,
                f"{kind}.assignment.interval.ms": 0,
            }
        return settings


KINDS = {
    "counterpoise": "counterpoise",
    "range": "classic",
    "cooperative-sticky": "classic",
    "kip-848": "consumer",
    "share group": "share",
}
VARIANTS = tuple(
    Variant(name, kind, short) for short in (False, True) for name, kind in KINDS.items()
)


@dataclass(frozen=True)
class Sizes:
    """What is measured."""

    joins: Sequence[int] = (1, 4, 8)
    join_partitions: int = 64
    growth_members: int = 10
    growth: tuple[int, int] = (100, 1000)
    deploy_members: int = 40
    deploy_replaced: int = 10
    """As many of the members."""
    deploy_partitions: int = 200
    slow_per_second: int = 1
    """The messages a second and partition while a topic grows, and amid a deploy."""


FULL = Sizes()


# ---------------------------------------------------------------------- a group at work


@dataclass(frozen=True)
class Stage:
    """A broker and a service."""

    kafka: kafka_server.ApacheKafka
    url: str
    client: Client


@dataclass
class Group:
    """The consumers of one variant on a topic of its own."""

    stage: Stage
    variant: Variant
    topic: str
    milliseconds: int
    observer: Observer = field(default_factory=Observer)
    members: list[Member] = field(default_factory=list)
    published: defaultdict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    """The offsets that the broker has acknowledged, by partition."""
    leaving: list[Member] = field(default_factory=list)
    started: int = 0

    def leave(self) -> Member:
        """The oldest leaves; returns at once."""
        oldest = self.members.pop(0)
        self.leaving.append(oldest)
        oldest.stop()
        return oldest

    def start(self) -> Member:
        """One more consumer."""
        name = f"member-{self.started}"
        self.started += 1
        options = self.variant.client(self.milliseconds)
        if self.variant.kind == "counterpoise":
            one: Member = CounterpoiseMember(
                self.stage.url, self.topic, options, name, self.observer
            )
        else:
            options |= {"bootstrap.servers": self.stage.kafka.bootstrap, "group.id": self.topic}
            kind = ShareMember if self.variant.kind == "share" else GroupMember
            one = kind(options, self.topic, name, self.observer)
        self.members.append(one)
        return one

    def settle(self, partitions: int, since: float, quiet_seconds: float = QUIET_SECONDS) -> None:
        """Wait until all partitions are owned evenly and deliver. Raises RuntimeError."""
        observer, count = self.observer, len(self.members)

        def settled() -> bool:
            if not self.variant.has_owners:
                names = {one.name for one in self.members}
                late = time.perf_counter() > since + self.variant.settled_seconds
                got = {*observer.receivers(time.perf_counter()).values()}
                return late and (got == names) and observer.all_delivering(range(partitions), since)
            quiet = observer.quiet_since(time.perf_counter() - quiet_seconds)
            if not quiet or not observer.balanced(partitions, count):
                return False
            return observer.all_delivering(range(partitions), observer.changes[-1].at)

        until(settled, f"{count} members of {self.topic} share it", WAIT_SECONDS, 0.01)

    def lost(self) -> int:
        """Messages that were not delivered, when the traffic has ended. Waits for the last ones."""

        def missing() -> int:
            arrived = self.observer.arrived_offsets()
            return sum(
                len(of - arrived.get(number, set())) for number, of in self.published.items()
            )

        give_up_at = time.monotonic() + 60
        while missing() and time.monotonic() < give_up_at:
            time.sleep(0.1)
        return missing()


@contextmanager
def group(stage: Stage, variant: Variant, what: str, partitions: int, most: int) -> Iterator[Group]:
    """A topic with its queue or group, for at most so many consumers; ended afterwards."""
    milliseconds = MANY_MILLISECONDS if most >= MANY else SHORT_MILLISECONDS
    made = Group(stage, variant, f"{variant.label}-{what}".translate(_PLAIN), milliseconds)
    stage.kafka.create_topic(made.topic, partitions)
    if variant.kind == "counterpoise":
        options = {"rebalance_delay": 0.0} if variant.short else {}
        log = stage.kafka.log(made.topic)
        stage.client.create_queue(made.topic, partitions, log=log, start="earliest", **options)
    else:
        stage.kafka.configure_group(made.topic, variant.group(milliseconds))
    try:
        yield made
    finally:
        for one in made.members:
            one.stop()
        for one in (*made.members, *made.leaving):
            one.join()
        if variant.kind == "counterpoise":
            stage.client.delete_queue(made.topic)
        stage.kafka.delete_topic(made.topic)


_PLAIN = str.maketrans(", ", "--")


def published(
    one: Group, partitions: int, per_second: int = PER_SECOND
) -> AbstractContextManager[Producing]:
    """So many messages a second and partition."""
    every = PER_SECOND // per_second
    return producing(one.stage.kafka.bootstrap, one.topic, partitions, every, one.published)


# ---------------------------------------------------------------------- scenarios


@dataclass(frozen=True)
class Step:
    """One consumer joined or left."""

    seconds: float | None
    """Until all was balanced; None without owners."""
    first_seconds: float | None
    """Until the consumer that joined got a message."""
    usual_seconds: Sequence[float]
    """The longest pause of each partition just before."""
    stay_seconds: Sequence[float]
    move_seconds: Sequence[float]
    moves: Moves
    changed: int
    """Partitions that have another owner afterwards (without owners: another receiver)."""
    least: int
    repeated: int


@dataclass(frozen=True)
class Joins:
    """A join, and the leave after it."""

    join: Step
    leave: Step
    lost: int
    out_of_order: int


def joins(stage: Stage, variant: Variant, size: int, what: str, sizes: Sizes = FULL) -> Joins:
    """One consumer joins so many, then the oldest leaves."""
    count = sizes.join_partitions
    with group(stage, variant, what, count, size + 1) as one:
        with published(one, count):
            for _ in range(size):
                one.start()
            one.settle(count, time.perf_counter())
            time.sleep(QUIET_SECONDS + AFTER_SECONDS)
            join = _step(one, count, one.start)
            time.sleep(QUIET_SECONDS + AFTER_SECONDS)
            leave = _step(one, count, one.leave)
        return Joins(join, leave, one.lost(), one.observer.out_of_order())


def _step(one: Group, partitions: int, act: Callable[[], Member]) -> Step:
    observer, variant = one.observer, one.variant
    began, at = time.perf_counter(), len(observer.changes)
    before = observer.owned.copy() if variant.has_owners else observer.receivers(began)
    acting = act()
    one.settle(partitions, began)
    time.sleep(AFTER_SECONDS)
    ended = time.perf_counter()
    after = observer.owned.copy() if variant.has_owners else observer.receivers(ended)
    moved = [number for number in before if after.get(number) != before[number]]
    pauses = {number: observer.pause(number, began, ended) for number in before}
    first = observer.first_to(acting.name) if acting in one.members else None
    return Step(
        max(one.at for one in observer.changes[at:]) - began if variant.has_owners else None,
        None if first is None else first - began,
        [observer.pause(number, began - QUIET_SECONDS, began) for number in before],
        [pauses[number] for number in before if number not in {*moved}],
        [pauses[number] for number in moved],
        moves(observer.changes, began, ended),
        len(moved),
        least_moves(Counter(before.values()), [one.name for one in one.members], partitions),
        observer.repeated(began, ended),
    )


@dataclass(frozen=True)
class Growth:
    """A topic got more partitions."""

    seconds: float | None
    """Until all was balanced; None without owners."""
    delivered_seconds: float
    """Until the last of the new partitions delivered its first message."""
    pause_seconds: Sequence[float]
    """Of the partitions that were there before."""
    moved: int
    """Of them, those that have another owner afterwards."""
    lost: int


def growth(stage: Stage, variant: Variant, what: str, sizes: Sizes = FULL) -> Growth:
    """Partitions are added while consumers work."""
    before, after = sizes.growth
    with group(stage, variant, what, before, sizes.growth_members) as one:
        observer = one.observer
        with published(one, before, sizes.slow_per_second) as source:
            for _ in range(sizes.growth_members):
                one.start()
            one.settle(before, time.perf_counter())
            owned, at, began = observer.owned.copy(), len(observer.changes), time.perf_counter()
            stage.kafka.grow_topic(one.topic, after)
            new = range(before, after)
            source.once(new)

            def delivered() -> bool:
                return observer.all_delivering(new, began)

            until(delivered, f"{one.topic}: all new partitions deliver", WAIT_SECONDS, 0.02)
            if variant.has_owners:
                members = sizes.growth_members
                until(lambda: observer.balanced(after, members), one.topic, WAIT_SECONDS, 0.02)
            time.sleep(AFTER_SECONDS)
            ended = time.perf_counter()
        last = max(observer.deliveries[number][0].at for number in new)
        return Growth(
            max(one.at for one in observer.changes[at:]) - began if variant.has_owners else None,
            last - began,
            [observer.pause(number, began, ended) for number in range(before)],
            sum(observer.owned.get(number) != owner for number, owner in owned.items()),
            one.lost(),
        )


@dataclass(frozen=True)
class Deploy:
    """Consumers were replaced, one after the other."""

    seconds: float
    """For each of them."""
    moves: Moves
    least: int
    pause_seconds: Sequence[float]
    """The longest pause of each partition."""
    repeated: int
    lost: int
    out_of_order: int


def deploy(
    stage: Stage, variant: Variant, what: str, sizes: Sizes = FULL, *, new_first: bool = False
) -> Deploy:
    """One consumer after the other leaves, and a replacement joins.

    The replacement starts when the old one begins to leave or, with `new_first`, `READY_SECONDS`
    before that.
    """
    count, members = sizes.deploy_partitions, sizes.deploy_members
    with group(stage, variant, what, count, members) as one:
        observer = one.observer
        with published(one, count, sizes.slow_per_second):
            for _ in range(members):
                one.start()
            one.settle(count, time.perf_counter())
            began = time.perf_counter()
            for _ in range(sizes.deploy_replaced):
                if new_first:
                    came = one.start()
                    time.sleep(READY_SECONDS)
                    old = one.leave()
                else:
                    old, came = one.leave(), one.start()
                old.join()

                def complete(came: Member = came) -> bool:
                    if variant.has_owners:
                        return observer.balanced(count, members)
                    return observer.first_to(came.name) is not None

                until(complete, f"{came.name} of {one.topic} has its share", WAIT_SECONDS, 0.01)
            ended = time.perf_counter()
            time.sleep(AFTER_SECONDS)
        return Deploy(
            (ended - began) / sizes.deploy_replaced,
            moves(observer.changes, began, ended),
            count * sizes.deploy_replaced // members,
            [observer.pause(number, began, ended) for number in range(count)],
            observer.repeated(began, ended),
            one.lost(),
            observer.out_of_order(),
        )
