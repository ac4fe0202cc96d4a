"""A query whose source does not connect in time is started again, and no other one.

A real Spark shows it in `tests/counterpoise/spark/test_starting.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from counterpoise.spark.driver.environment import NOT_CONNECTED
from counterpoise.spark.driver.launch import ATTEMPTS, connected


class Query:
    """A query that initialises for some looks, and then runs or has ended with an error."""

    name = "flights"
    recentProgress: Sequence[dict[str, Any]] = ()  # noqa: N815

    def __init__(self, error: str | None = None, looks: int = 3) -> None:
        self.error = error
        self.looks = looks

    @property
    def isActive(self) -> bool:  # noqa: N802
        return self.looks > 0 or self.error is None

    @property
    def status(self) -> dict[str, Any]:
        self.looks -= 1
        if self.error is not None and self.looks < 2:
            # It is still active for a moment.
            return {"message": f"Terminated with exception: {self.error}"}
        return {"message": "Initializing sources" if self.looks > 0 else "Getting offsets"}

    def exception(self) -> str | None:
        return self.error


class Starts:
    def __init__(self, *errors: str | None) -> None:
        self.queries = [Query(error) for error in errors]
        self.started: list[Query] = []
        self.slept: list[float] = []

    def __call__(self) -> Any:
        self.started.append(self.queries[len(self.started)])
        return self.started[-1]

    def connected(self) -> Any:
        return connected(self, self.slept.append)

    def pauses(self) -> Sequence[float]:
        return [seconds for seconds in self.slept if seconds >= 1]


SLOW = f"[STREAM_FAILED] {NOT_CONNECTED}."


def test_a_query_is_given_back_once_its_source_is_connected() -> None:
    starts = Starts(None)
    assert starts.connected() is starts.queries[0]
    assert starts.queries[0].looks == 0
    assert starts.pauses() == []


def test_one_that_never_connected_is_started_again_after_a_pause(
    caplog: pytest.LogCaptureFixture,
) -> None:
    starts = Starts(SLOW, SLOW, None)
    assert starts.connected() is starts.queries[2]
    assert starts.pauses() == [2, 4]
    assert "query flights: " in caplog.text
    assert "attempt 3 of 3" in caplog.text


def test_it_is_not_started_for_ever() -> None:
    starts = Starts(*[SLOW] * (ATTEMPTS + 1))
    assert starts.connected() is starts.queries[ATTEMPTS - 1]
    assert len(starts.started) == ATTEMPTS


def test_a_query_with_another_error_is_not_started_again() -> None:
    starts = Starts("CannotStart: no service within 30 s", None)
    assert starts.connected() is starts.queries[0]


def test_nor_is_one_that_has_run_micro_batches() -> None:
    starts = Starts(SLOW, None)
    starts.queries[0].recentProgress = ({},)
    assert starts.connected() is starts.queries[0]
