"""Random lives of applications on one partition: the result has each message once, in order.

The model covers the fence's surroundings: a service that grants epochs and accepts commits of the
current one, and applications that plan ranges from the committed position, run them late, in part
or again, die in any step and come back with their plan (`replaced`) or without. Rows are filtered
at random. The fence and its commits are the real ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from counterpoise.spark.offsets import Slice
from counterpoise.spark.sink.writer import _created
from tests.budgets import budget
from tests.counterpoise.spark.sink.places import Place, Postgres, then


def is_kept(position: int) -> bool:
    """The user's filter; it leaves some ranges without a row."""
    return position % 7 > 3


@dataclass
class Application:
    """One life of an application: its grant, and its planned, uncommitted ranges."""

    epoch: int
    done: int
    planned: Slice | None = None
    wrote: bool = False


class Lives(RuleBasedStateMachine):
    """One partition. `owner` is the owner for the service; `zombies` do not know that they lost."""

    fresh: ClassVar[Callable[[], Place]]

    def __init__(self) -> None:
        super().__init__()
        self.place = type(self).fresh()
        self.end = 0
        self.epoch = 0
        self.committed = 0
        self.owner: Application | None = None
        self.zombies: list[Application] = []

    # ---------------------------------------------------------------- ownership

    def grant(self, done: int) -> None:
        self.epoch += 1
        self.owner = Application(self.epoch, done)

    @rule()
    def another_takes_over(self) -> None:
        """Forced, or the lease expired: the previous owner does not know."""
        if self.owner is not None:
            self.zombies.append(self.owner)
        self.grant(self.committed)

    @precondition(lambda self: self.owner is not None)
    @rule()
    def killed_and_restarted_at_once(self) -> None:
        """The checkpoint has the plan; it is replayed under the next epoch."""
        assert self.owner is not None
        before = self.owner
        self.grant(before.done)
        if before.planned is not None:
            one = before.planned
            self.owner.planned = Slice(0, self.epoch, one.start, one.end)

    @precondition(lambda self: self.zombies)
    @rule(data=st.data())
    def a_zombie_ends(self, data: st.DataObject) -> None:
        self.zombies.pop(data.draw(st.integers(0, len(self.zombies) - 1)))

    # ---------------------------------------------------------------- work

    @rule(count=st.integers(1, 9))
    def publish(self, count: int) -> None:
        self.end += count

    @rule(data=st.data())
    def plan(self, data: st.DataObject) -> None:
        """Zombies plan too: they continue after their own work."""
        for one in self.everybody():
            if one.planned is None and one.done < self.end:
                upto = data.draw(st.integers(one.done + 1, self.end))
                one.planned = Slice(0, one.epoch, str(one.done), str(upto))
                one.wrote = False

    @rule(data=st.data(), fails=st.booleans(), again=st.booleans())
    def write(self, data: st.DataObject, fails: bool, again: bool) -> None:
        """The tasks of one application; they may fail before the commit, or run twice."""
        busy = [one for one in self.everybody() if one.planned is not None]
        if not busy:
            return
        one = data.draw(st.sampled_from(busy))
        if fails:
            with pytest.raises(ZeroDivisionError):
                self.attempt(one, failing=True)
        for _ in range(2 if again else 1):
            outcome = self.attempt(one)
            assert outcome != "superseded" or one is not self.owner
        one.wrote = True

    @precondition(lambda self: self.owner is not None and self.owner.wrote)
    @rule()
    def finish(self) -> None:
        """The batch is in Spark's commit log; its positions are not yet committed."""
        assert self.owner is not None
        if self.owner.planned is not None:
            self.owner.done = int(self.owner.planned.end)
            self.owner.planned = None

    @precondition(lambda self: self.zombies)
    @rule()
    def finish_zombies(self) -> None:
        for one in self.zombies:
            if one.wrote and one.planned is not None:
                one.done, one.planned = int(one.planned.end), None

    @precondition(lambda self: self.owner is not None)
    @rule()
    def commit(self) -> None:
        """The service refuses it from any other than the owner."""
        assert self.owner is not None
        self.committed = self.owner.done

    # ---------------------------------------------------------------- promises

    def everybody(self) -> list[Application]:
        return [*self.zombies, *([self.owner] if self.owner is not None else [])]

    def attempt(self, one: Application, *, failing: bool = False) -> str:
        assert one.planned is not None
        start, end = int(one.planned.start), int(one.planned.end)
        rows = [(0, at, f"m{at}") for at in range(start, end) if is_kept(at)]

        def fail() -> None:
            raise ZeroDivisionError  # the log, behind the rows

        task = then(rows, fail) if failing else rows
        return self.place.write([one.planned], task)[0]

    def teardown(self) -> None:
        """The last owner finishes; then no message is repeated, missing or out of order."""
        if self.end == 0:
            return
        self.another_takes_over()
        assert self.owner is not None
        if self.owner.done < self.end:
            self.owner.planned = Slice(0, self.epoch, str(self.owner.done), str(self.end))
            self.attempt(self.owner)
        assert self.place.positions(0) == [at for at in range(self.end) if is_kept(at)]


def live(fresh: Callable[[], Place], examples: int) -> None:
    lives = type("Lives", (Lives,), {"fresh": staticmethod(fresh)})
    run_state_machine_as_test(
        lives,
        settings=settings(
            max_examples=budget(examples),
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.property
def test_any_sequence_writes_each_message_once_and_in_order(database_url: str) -> None:
    def fresh() -> Place:
        with psycopg.connect(database_url) as connection:
            connection.execute("DROP TABLE IF EXISTS result, high_water")
        _created.clear()
        return Postgres(database_url)

    live(fresh, 40)


@pytest.mark.long
@pytest.mark.property
@pytest.mark.parametrize(("kind", "examples"), [("delta", 40), ("iceberg", 10)])
def test_any_sequence_writes_each_message_once_into_a_lake(
    tmp_path: Path, kind: str, examples: int
) -> None:
    from tests.counterpoise.spark.sink.lakes import LAKES

    numbers = itertools.count()

    def fresh() -> Place:
        directory = tmp_path / str(next(numbers))
        directory.mkdir()
        return LAKES[kind](directory)

    live(fresh, examples)
