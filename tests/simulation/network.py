"""The network between clients and replicas: slow, lossy, and out of order."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from broker.core.errors import BrokerError, Unavailable
from counterpoise.calls import Call
from counterpoise.errors import CounterpoiseError, Unreachable, error_of
from counterpoise.wire import ReleaseRequest
from tests.simulation.checker import Checker
from tests.simulation.routes import problem, serve
from tests.simulation.service import Node
from tests.simulation.shell import Client, Done

if TYPE_CHECKING:
    from tests.simulation.world import World

CLIENT_SECONDS = 10.0


class Network:
    """The network of this world."""

    def __init__(self, world: World) -> None:
        self.world = world
        # Each is called once, when the next client says that a warm-up is over.
        self.on_ready: list[Callable[[], None]] = []
        # The same, when a client says that a partition is finished. Returns how late that arrives.
        self.on_finished: list[Callable[[], float]] = []

    def send(self, process: Client, call: Call[Any], done: Done) -> None:
        """A client's call, and its answer if there is one in time."""
        rng, weather, loop = process.rng, self.world.weather, self.world.loop
        waiting = [True]
        if self.on_ready and call.path.endswith("/ready"):
            self.on_ready.pop()()
        late = self.on_finished.pop()() if self.on_finished and _ends_a_partition(call) else 0.0
        if late:
            # Until the answer it takes no messages of these partitions, even if it gets them back.
            process.hindered_until = max(process.hindered_until, loop.now + late + 1.0)
        if call.method == "DELETE":
            self._checker(call).sent("unbind", call.path.split("/")[4])
        if not self.world.plan.config.sticky:
            process.replica_choice = rng.randrange(100)
        node = self.world.nodes[process.replica_choice % len(self.world.nodes)]

        def end(value: Any, error: CounterpoiseError | None) -> None:
            if waiting:
                waiting.clear()
                if error is not None:
                    process.replica_choice = rng.randrange(100)
                done(value, error)

        def answer(value: Any, error: CounterpoiseError | None) -> None:
            fate = rng.random()
            if fate >= weather.lost / 2:
                slow = 1 + 30 * (fate > 1 - weather.lost / 2)
                process.later(node.latency() * slow, end, value, error)

        timeout = call.timeout_seconds or CLIENT_SECONDS
        process.later(timeout, end, None, Unreachable(f"no answer within {timeout:g} s"))
        fate = rng.random()
        if self.world.trace is not None:
            body = call.body or call.query or ""
            lost = " (lost)" if fate < weather.lost / 2 else ""
            self.world.trace(
                f"{process.name} -> {node.name}{lost} {call.method} {call.path} {body}"
            )
        if fate < weather.lost / 2:
            return
        slow = 1 + 30 * (fate > 1 - weather.lost / 2)
        arrives = node.latency() * slow + late
        loop.call_later(arrives, self._deliver, node, process.name, call, answer)
        if rng.random() < weather.doubles:
            late = rng.choice((0.05, 0.5, 2.0, 5.0))
            self.world.counts["doubled"] += 1
            loop.call_later(
                late, self._deliver, node, process.name + " again", call, lambda value, error: None
            )

    def _checker(self, call: Call[Any]) -> Checker:
        """That of the queue which the call is about."""
        return self.world.checkers[call.path.split("/")[2]]

    def _deliver(self, node: Node, sender: str, call: Call[Any], answer: Done) -> None:
        if node.dead or not node.ready:
            answer(None, Unreachable("refused"))
        else:
            node.do(lambda: self.world.loop.create_task(self._serve(node, sender, call, answer)))

    async def _serve(self, node: Node, sender: str, call: Call[Any], answer: Done) -> None:
        try:
            body = await serve(node.calls, call, self._checker(call))
        except BrokerError as error:
            told: Any = error
            body = None
            parts = call.path.split("/")
            if len(parts) > 4:
                self._checker(call).refused(parts[4], error.code)
        except Exception as error:
            self.world.failed(error)
            return
        else:
            told = None
        await node.alive()
        if self.world.trace is not None and call.method != "GET":
            said = _short(body) if told is None else f"{told.code} {told.detail[:60]}"
            self.world.trace(f"{node.name} answers {sender} {call.path.split('/')[-1]}: {said}")
        elif self.world.trace is not None and (body is not None or told is not None):
            said = _short(body) if told is None else told.code
            self.world.trace(f"{node.name} tells {sender} {said}")
        if told is not None:
            self.world.counts[f"answer {told.code}"] += 1
            status, document = problem(told)
            retry = told.retry_after_seconds if isinstance(told, Unavailable) else None
            answer(None, error_of(status, document, retry))
        else:
            answer(call.parse(body), None)


def _ends_a_partition(call: Call[Any]) -> bool:
    return isinstance(call.body, ReleaseRequest) and any(
        item.finished for item in call.body.partitions
    )


def _short(body: Any) -> str:
    if body is None:
        return "done"
    update = body.get("update", body)
    seen = " ".join(
        f"p{p['partition']}e{p['epoch']}:{p['state']}@{p['position']}" for p in update["partitions"]
    )
    results = " ".join(f"p{r['partition']}={r['outcome']}" for r in body.get("results", ()))
    return f"{results} [{update['flow_id']} rev {update['revision']}: {seen}]".strip()
