"""The demo: PySpark applications share a queue while one joins, one leaves and one is killed.

Each act waits for a condition, never for a time. `Acts` is what all scenarios have in common:
conditions to wait for, and the last act.
"""

import time
from typing import Generic, TypeVar

from broker.demo.display import Observation
from broker.demo.evidence import EpochGrant, EventKind, ScenarioEvent, SealingRecord
from broker.demo.stage import PARTITIONS, QUEUE, DemoFailed, Stage

S = TypeVar("S", bound=Stage)

CATCH_SECONDS = 300.0
CATCH_POLL_SECONDS = 0.005


class Acts(Generic[S]):
    """The acts of a scenario. They record `events`, `sealings` and `grants` for the verdict."""

    def __init__(self, stage: S) -> None:
        self.events: list[ScenarioEvent] = []
        self.sealings: list[SealingRecord] = []
        self.grants: list[EpochGrant] = []
        self._stage = stage
        self._news = stage.display.news

    def play(self) -> None:
        """All acts, in order."""
        raise NotImplementedError

    def _the_rest_is_processed(self) -> None:
        stage = self._stage
        self._news("no limit on the rate any more: the rest as fast as possible")
        stage.lift_the_rate()
        stage.wait("all flights to be processed", stage.all_committed, seconds=600.0)
        self.grants = stage.grants()
        self._news("everything is processed and committed; the applications stop")
        stage.close_applications()

    def _until_shared(self, *names: str) -> None:
        """Wait until the queue is balanced among these, and each processes its partitions."""
        before = {name: self._stage.seen.processed.get(name, 0) for name in names}

        def shared(seen: Observation) -> bool:
            return (
                seen.status == "Ready"
                and set(seen.owners.values()) == set(names)
                and all(seen.processed.get(name, 0) > before[name] for name in names)
            )

        self._stage.wait(f"{', '.join(names)} to share the queue", shared)

    def _happens(self, kind: EventKind, name: str) -> None:
        self.events.append(ScenarioEvent(kind, name, time.time()))


class Scenario(Acts[Stage]):
    """The acts of the demo."""

    def play(self) -> None:
        self._two_applications_start()
        self._a_third_joins()
        self._one_is_drained_and_leaves()
        self._one_is_killed_and_comes_back()
        self._the_rest_is_processed()

    def _two_applications_start(self) -> None:
        stage = self._stage
        self._news("two PySpark applications will share a queue: alpha and beta")
        stage.begin()
        stage.start_application("alpha", "alpha")
        stage.open()
        self._news(f"service at {stage.url}, queue {QUEUE} with {PARTITIONS} partitions")
        stage.publisher.start()
        stage.start_application("beta", "beta")
        for name in ("alpha", "beta"):
            self._happens("start", name)
        stage.let_join("alpha", "beta")
        stage.start_application("gamma", "gamma")
        self._until_shared("alpha", "beta")

    def _a_third_joins(self) -> None:
        self._until_backlog_of("alpha", "beta")
        self._happens("join", "gamma")
        self._stage.let_join("gamma")
        self._news("gamma joins")
        self._until_shared("alpha", "beta", "gamma")

    def _one_is_drained_and_leaves(self) -> None:
        stage = self._stage
        self._until_backlog_of("alpha")
        self._happens("drain", "alpha")
        self._news("alpha is drained")
        stage.client.drain(QUEUE, stage.seen.flows["alpha"])
        stage.wait("alpha to be drained", lambda seen: not seen.owned("alpha"), ending="alpha")
        self._news("alpha has handed everything off; it stops")
        stage.stop_application("alpha")
        self._until_shared("beta", "gamma")

    def _one_is_killed_and_comes_back(self) -> None:
        stage = self._stage
        self._until_backlog_of("beta")
        self._until_just_written("beta")
        self._happens("kill", "beta")
        stage.kill_application("beta")
        stage.start_application("beta.2", "beta")
        self._news("beta is killed (SIGKILL), and started again")
        stage.wait("the lease of beta to expire", lambda seen: "beta" not in seen.flows)
        self._news("the lease of beta has expired")
        self._happens("return", "beta.2")
        stage.let_join("beta.2")
        self._news("beta is back")
        self._until_shared("beta.2", "gamma")

    # ------------------------------------------------------------------ conditions

    def _until_backlog_of(self, *names: str) -> None:
        """Wait until every partition of these applications has backlog."""
        least = self._stage.plan.lead // 2
        self._stage.wait(
            f"backlog in the partitions of {', '.join(names)}",
            lambda seen: all(
                seen.backlog[partition] >= least for name in names for partition in seen.owned(name)
            ),
        )

    def _until_just_written(self, name: str) -> None:
        """Wait until the application has just written a micro-batch and not committed it."""
        before = self._stage.record.last_write(name)
        deadline = time.monotonic() + CATCH_SECONDS
        while self._stage.record.last_write(name) == before:
            if time.monotonic() > deadline:
                raise DemoFailed(f"{name} wrote nothing for {CATCH_SECONDS:.0f} s")
            time.sleep(CATCH_POLL_SECONDS)
