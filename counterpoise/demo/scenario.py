"""The demo: PySpark applications share a queue while one joins, one leaves and one is killed.

Each act waits for a condition, never for a time.
"""

import time

from counterpoise.demo.acts import Acts
from counterpoise.demo.stage import PARTITIONS, QUEUE, DemoFailed, Stage

CATCH_SECONDS = 30.0
CATCH_POLL_SECONDS = 0.005


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
        stage.open()
        self._news(f"service at {stage.url}, queue {QUEUE} with {PARTITIONS} partitions")
        stage.publisher.start()
        for name in ("alpha", "beta", "gamma"):
            stage.start_application(name, name)
        self._news("PySpark applications start: alpha, beta and gamma, which waits")
        for name in ("alpha", "beta"):
            self._happens("start", name)
        stage.let_join("alpha", "beta")
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
        stage.say("alpha", "draining")
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
