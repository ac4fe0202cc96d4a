"""One run: replicas, consumers, administrators, what happens to them, and the end."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any

import broker.calls.cuts
import broker.calls.flows
import broker.calls.queues
import broker.calls.upkeep
import broker.core.budget
import broker.core.cuts
import broker.core.placement
import broker.core.replay
import broker.postgres.checks
import broker.replica.bursts
import broker.replica.coordinator
import broker.replica.replica
import broker.replica.transaction
from broker.core.model import Settings
from broker.core.transitions import PARTITION_TRANSITIONS, QUEUE_TRANSITIONS
from broker.testing.loop import VirtualLoop
from counterpoise import wire
from tests.judge.violation import Violation
from tests.simulation.by_key import ByKey
from tests.simulation.checker import Checker
from tests.simulation.consumers import AT_ONCE, PATIENCE_SECONDS, Application, Consumer
from tests.simulation.groups import is_let_go
from tests.simulation.happenings import RECOVER_SECONDS, Happenings
from tests.simulation.network import Network
from tests.simulation.order import Readers
from tests.simulation.plan import BUILTIN, HOUR_SECONDS, Plan
from tests.simulation.publishers import Publisher
from tests.simulation.service import FOLLOWER, QUEUE, Node, Observed, Weather
from tests.simulation.stand_ins import Counting, Id, Quiet, replaced
from tests.world.log import Log
from tests.world.store import picture

# A run with more callbacks than this is endless.
MOST_STEPS = 200_000
# After the last fault everything must settle within the time of leases, holddowns and handoffs,
# plus the time for the messages, plus this time for all processes to find each other again.
FIND_SECONDS, FIND_LATENCIES = 8.0, 60
# The lease of a consumer that joins when there is no other.
LEASE_SECONDS = 3.0
BATCH_SECONDS, BATCH_LATENCIES = 0.5, 12
STEP_SECONDS = 0.5
# Administrators who are not answered in time ask again, and what was asked is still carried out. On
# a slow connection their calls to set positions last so long at the most.
CALLS_SECONDS = 60.0
# How soon consumers notice messages with keys.
NOTICED_SECONDS = 0.05
# Messages of a topic that are published before its queue exists and while it is created.
PUBLISHED_BEFORE = 60
# Of a partition, where the order of keys is not kept between partitions. Some messages have none.
KEYS_OF_ONE = (0, 0, 0, 1, 2, 3, None)
KEYS = len(KEYS_OF_ONE)
TICK_SECONDS = 0.25
# An undisturbed consumer does something in each of its partitions at least so often; more rarely
# where calls are so slow that some are given up.
PAUSE_SECONDS, PAUSE_LATENCIES = 1.0, 10
GIVEN_UP_LATENCY, GIVEN_UP_SECONDS = 0.1, 8.0


@dataclass
class Outcome:
    """The result of a run. `counts`: how often each thing happened."""

    plan: Plan
    violation: Violation | None
    transcript: list[str]
    counts: Counter[str] = field(default_factory=Counter)


class World:
    """Replicas, consumers, administrators, and the weather between them."""

    def __init__(self, plan: Plan, recording: bool) -> None:
        self.plan = plan
        config = plan.config
        self.loop = loop = VirtualLoop(MOST_STEPS)
        self.lines: list[str] | None = [] if recording else None
        self.trace = self._trace if recording else None
        latency = config.latency[1]
        pause = PAUSE_SECONDS + PAUSE_LATENCIES * latency
        if latency >= GIVEN_UP_LATENCY:
            pause += GIVEN_UP_SECONDS
        names = (QUEUE, FOLLOWER) if config.followed else (QUEUE,)
        self.checkers = {
            name: Checker(0.5 + 25 * latency, pause, config.moves, by_key=config.by_key)
            for name in names
        }
        for checker in self.checkers.values():
            checker.on_violation = loop.failures.append
        self.checker = self.checkers[QUEUE]
        self.database = Observed(loop, self.checkers)
        if recording:
            self.database.wrote = self._wrote
        self.weather = Weather()
        self.log = Log(Readers(self.checkers.values()) if config.followed else self.checker)
        self.rng = random.Random(plan.seed ^ 0x5EED)
        self.ids = 0
        self.counts: Counter[str] = Counter()
        self.nodes: list[Node] = []
        self.consumers: list[Application] = []
        # Those of messages of queues that do not keep their order between partitions.
        self.keys = random.Random(f"keys of messages of {plan.seed}")
        self.joined = self.published = 0
        self._finding = False
        self.publishers = [self.publisher(f"pub{number}") for number in range(2)]
        self.network = Network(self)
        self.happenings = Happenings(self)
        self.calm = False
        # When a consumer was started last for what nobody else might take.
        self.helped = 0.0

    # Transcript

    def _trace(self, text: str) -> None:
        assert self.lines is not None
        self.lines.append(f"{self.loop.now:8.3f}  {text}")

    def _wrote(self, records: Any) -> None:
        for record in records:
            self._trace(f"      db: {record}")

    def new_id(self, kind: str = "id-") -> str:
        self.ids += 1
        return f"{kind}{self.ids}"

    def failed(self, error: BaseException | None) -> None:
        """The service itself failed."""
        if self.checker.found is None:
            self.checker.found = Violation(0, f"the service failed: {error!r}")
            self.checker.found.__cause__ = error
            self.loop.failures.append(self.checker.found)

    # The run

    def run(self) -> Violation | None:
        loop, plan = self.loop, self.plan
        if plan.topic:
            self.log.count = plan.config.settings["partition_count"]
            for number in range(PUBLISHED_BEFORE):
                loop.call_at(number * 1.5 / PUBLISHED_BEFORE, self._publish_before)
        for number in range(plan.config.replicas):
            self.nodes.append(self._node(f"r{number}"))
        try:
            loop.run_until(0.6)
            loop.create_task(self._create())
            loop.run_until(1.5)
            began = loop.now
            while len(self.database.queues) < len(self.checkers):
                assert self.database.queues, "the queue was not created"
                loop.run_until(loop.now + STEP_SECONDS)
            for event in plan.events:
                loop.call_at(began + event.at, self.happenings.happen, event)
            loop.call_later(TICK_SECONDS, self._tick)
            loop.run_until(began + plan.end)
            self._clear_up()
            self._settle()
        except Violation as violation:
            self.checker.found = self.checker.found or violation
        except Exception as error:
            self.failed(error)
        found = next((one.found for one in self.checkers.values() if one.found), None)
        if self.trace is not None:
            self.trace(str(found or "all is well"))
        return found

    def _settle(self) -> None:
        """Plays until everything is settled. Raises Violation if that takes too long since the last
        fault, or since positions were set last.
        """
        loop, checkers = self.loop, self.checkers.values()

        def granted_seconds() -> float:
            return sum(checker.granted_seconds() for checker in checkers)

        def resets() -> list[int]:
            return [checker.last_reset for checker in checkers]

        calm, granted = loop.now, granted_seconds()
        loop.run_until(calm + STEP_SECONDS)
        latency = self.plan.config.latency[1]
        batches = sum(checker.backlog() for checker in checkers) / AT_ONCE
        under_way = max(checker.under_way_seconds() for checker in checkers)
        seconds = max(LEASE_SECONDS, under_way) + PATIENCE_SECONDS
        seconds += FIND_SECONDS + FIND_LATENCIES * latency
        seconds += batches * (BATCH_SECONDS + BATCH_LATENCIES * latency)
        quiet, seen = calm, resets()
        while (left := self._unsettled()) is not None:
            if seen != resets():
                seen = resets()
                quiet = min(loop.now, calm + CALLS_SECONDS)
            quiet = max(quiet, self.helped)
            most = seconds + granted_seconds() - granted
            if loop.now > quiet + most:
                promise, text = left
                raise Violation(promise, f"{most:.1f} s after the last fault: {text}")
            loop.run_until(loop.now + STEP_SECONDS)
        self._compare()

    def _compare(self) -> None:
        """Compares the memory of up-to-date replicas with the database. Raises Violation."""
        for queue_id, node in product(self.database.queues, self.nodes):
            stored = self.database.load(queue_id)
            coordinator = node.replica._coordinators.get(queue_id)
            if coordinator is None or coordinator.queue is None or coordinator._uncommitted:
                continue
            memory = coordinator.queue
            if memory.revision == stored.revision and picture(memory) != picture(stored):
                text = f"{node.name} has {picture(memory)} in memory, stored is {picture(stored)}"
                raise Violation(7, text)

    async def _create(self) -> None:
        spec = wire.QueueCreate(QUEUE, **self.plan.config.settings)
        self.checker.creating()
        await self.nodes[0].calls.queues.create(spec)
        if self.plan.config.followed:
            settings = {**self.plan.config.settings, "start": "earliest", "log": BUILTIN}
            del settings["partition_count"]
            await self.nodes[0].calls.queues.create(wire.QueueCreate(FOLLOWER, **settings))

    def _publish_before(self) -> None:
        self.append(self.rng.randrange(self.log.count))

    def append(self, partition: int) -> None:
        """A message is published, with a key of its partition if consumers work by key."""
        key = self.keys.choice(KEYS_OF_ONE) if self.plan.config.by_key else None
        self.log.append(partition, None if key is None else KEYS * partition + key)

    def _node(self, name: str) -> Node:
        rng = random.Random(hash((self.plan.seed, len(self.nodes), self.ids)))
        config, weather = self.plan.config, self.weather
        node = Node(name, rng, self.loop, self.database, self.log, weather, config, self._commit_id)
        node.on_crash = self._crashed
        node.disturbed = self.disturb
        node.on_stalled = self._stalled
        return node

    def _stalled(self) -> None:
        self.counts["stalled commits"] += 1

    def _commit_id(self) -> str:
        return self.new_id("t")

    def _tick(self) -> None:
        now = self.database.clock()
        able = self._able()
        for checker in self.checkers.values():
            checker.tick(now)
            checker.worked(now, able)
        self.loop.call_later(TICK_SECONDS, self._tick)

    def _able(self) -> set[str]:
        """The flows whose processes can be expected to make progress."""
        now = self.loop.now
        return {
            one.core.bound.flow_id
            for one in self.consumers
            if one.core.bound is not None
            and not (one.dead or one.frozen or one.leaving or one.ended or one.stubborn)
            and one.hindered_until < now
        }

    def _clear_up(self) -> None:
        """From here on nothing goes wrong."""
        self.calm = True
        self.weather.clear()
        self.disturb(0.0)
        for place, node in enumerate(self.nodes):
            node.cut = False
            node.next_commit = node.next_log_call = None
            node.thaw()
            if node.dead:
                self.nodes[place] = self._node(node.name)
            node.next_commit = None
        for publisher in self.publishers:
            publisher.thaw()
        for consumer in self.consumers:
            consumer.stubborn = consumer.cold = 0.0
            consumer.thaw()
        for queue in self.checkers:
            if not any(self._stays(consumer) for consumer in self._of(queue)):
                self.join(LEASE_SECONDS, False, queue=queue)
        if self.trace is not None:
            self.trace("-- from here on nothing goes wrong --")

    def _stays(self, consumer: Application) -> bool:
        gone = consumer.dead or consumer.leaving or consumer.core.status == "gone"
        instances = [one.instance for one in self.consumers if one is not consumer]
        return not (gone or consumer.core.view.draining or consumer.instance in instances)

    def _of(self, queue: str) -> list[Application]:
        """The consumers of this queue."""
        return [consumer for consumer in self.consumers if consumer.queue == queue]

    def _unsettled(self) -> tuple[int, str] | None:
        left = (self._left(queue, checker) for queue, checker in self.checkers.items())
        return next(filter(None, left), None)

    def _left(self, queue: str, checker: Checker) -> tuple[int, str] | None:
        """What is unsettled of this queue."""
        consumers = self._of(queue)
        if not any(self._stays(one) or _works(one) for one in consumers):
            self.join(LEASE_SECONDS, False, queue=queue)
        if queue == QUEUE:
            self.happenings.resume_rest()
        left = checker.unsettled()
        if left is None and checker.over_capacity():
            # What an administrator does when all else is settled.
            self.join(LEASE_SECONDS, False, queue=queue)
            self.helped = self.loop.now
            self.counts["partitions over capacity"] += 1
            left = 9, "nobody takes more partitions"
        if left is not None:
            return left
        known = {}
        for consumer in consumers:
            core = consumer.core
            if not consumer.dead and core.bound is not None:
                known[core.bound.flow_id] = core.view
        for flow_id in checker.flows:
            if flow_id not in known:
                return 9, f"{flow_id} is bound, and nobody is behind it"
        for number, row in checker.partitions.items():
            if row.owner is not None and not is_let_go(row):
                owned = known[row.owner].partitions.get(number)
                if owned is None or (owned.epoch, owned.state) != (row.epoch, row.state):
                    return 9, f"{row.owner} does not know that it owns p{number}"
        return None

    # Events

    def disturb(self, seconds: float) -> None:
        for checker in self.checkers.values():
            checker.disturbed(self.database.clock() + seconds + RECOVER_SECONDS)

    def join(
        self, lease: float, warmup: bool, instance: str | None = None, queue: str = QUEUE
    ) -> Application:
        self.joined += 1
        name = f"c{self.joined}"
        kind = ByKey if self.plan.config.by_key else Consumer
        consumer = kind(
            name,
            instance or f"i{self.joined}",
            lease,
            warmup,
            random.Random(hash((self.plan.seed, 77, self.joined))),
            self.loop,
            self.network,
            self.log,
            self.checkers[queue],
            queue,
            # Those that are started at the end take all that nobody may take.
            replace(self.plan.config, maxima=(None,)) if self.calm else self.plan.config,
            self.trace,
        )
        self.consumers.append(consumer)
        consumer.open()
        return consumer

    def publisher(self, name: str) -> Publisher:
        """A new process of this name."""
        self.published += 1
        rng = random.Random(f"{self.plan.seed} {name} {self.published}")
        return Publisher(name, rng, self.loop, self.log, self.appended, self.trace)

    def appended(self) -> None:
        """There are new messages: consumers find them soon."""
        if not self._finding:
            self._finding = True
            self.loop.call_later(NOTICED_SECONDS, self._find)

    def _find(self) -> None:
        self._finding = False
        for one in self.consumers:
            one.do(one.poke)

    def _crashed(self, node: Node) -> None:
        """The node is started again, as a new process."""
        if self.trace is not None:
            self.trace(f"{node.name} is down")
        for queue, request in node.asked:
            self.checkers[queue].asked.end(request)
        self.disturb(node.away_seconds)
        self.loop.call_later(node.away_seconds, self._again, node)

    def _again(self, node: Node) -> None:
        if node in self.nodes:
            self.disturb(0.0)
            self.nodes[self.nodes.index(node)] = self._node(node.name)


def _works(one: Application) -> bool:
    """Whether it will process the remaining messages."""
    over = one.dead or one.leaving or one.core.status == "gone"
    return not over and not one.core.view.draining


def _settings(width: int, **given: Any) -> Settings:
    """The settings of a new queue. Here one log is read in groups, in the place of several."""
    return Settings(**{**given, "aligned": width})


def run(plan: Plan, *, recording: bool = False) -> Outcome:
    """Plays a plan. The same plan gives the same outcome."""
    world = World(plan, recording)
    pairs: Counter[Any] = Counter()
    tables = []
    for table in (PARTITION_TRANSITIONS, QUEUE_TRANSITIONS):
        counting = Counting(table)
        counting.counts = pairs
        tables.append(counting)
    quiet = Quiet(world.failed)
    with replaced(
        (broker.calls.flows, "uuid4", lambda: Id(world.new_id("f"))),
        (broker.calls.queues, "uuid4", lambda: Id(world.new_id("q"))),
        (broker.calls.flows, "secrets", SimpleNamespace(token_urlsafe=lambda n: world.new_id("s"))),
        (broker.replica.coordinator, "_log", quiet),
        (broker.replica.bursts, "SEVERAL", plan.config.several),
        (broker.calls.queues, "Settings", partial(_settings, plan.config.aligned)),
        (broker.core.budget, "HOUR", HOUR_SECONDS),
        (broker.calls.upkeep, "_log", quiet),
        (broker.calls.cuts, "_log", quiet),
        (broker.replica.replica, "_log", quiet),
        (broker.postgres.checks, "_log", quiet),
        (broker.core.placement, "PARTITION_TRANSITIONS", tables[0]),
        (broker.core.replay, "QUEUE_TRANSITIONS", tables[1]),
    ):
        violation = world.run()
    counts = world.counts
    counts.update({f"record {name}": n for name, n in world.database.records.items()})
    counts.update({f"pair {state.value}, {event.value}": n for (state, event), n in pairs.items()})
    counts.update(world.database.met)
    counts["transactions"] = world.checker.transactions
    counts["messages"] = sum(lane.end for lane in world.checker.lanes.values())
    counts["outages before one commit"] = world.checker.deadlines.several_outages
    counts["work above at a grant"] = sum(
        one.above.granted_with_some() for one in world.checkers.values() if one.above
    )
    counts["steps"] = world.loop.steps
    counts["outages"] = len(world.database.outages)
    counts["virtual milliseconds"] = int(world.loop.now * 1000)
    return Outcome(plan, violation, world.lines or [], counts)
