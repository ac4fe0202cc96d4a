"""State of another tenure is dropped; history builds state and has no output."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import Row

from counterpoise.spark import TenuredProcessor, fresh
from tests.counterpoise.spark.state.memory import Value


class Handle:
    def getValueState(self, name: str, schema: str) -> Value:  # noqa: N802
        return Value()


class Letters(TenuredProcessor):
    def open(self, handle: Any) -> None:
        self.letters = handle.getValueState("letters", "text string")

    def clear(self) -> None:
        self.letters.clear()

    def on_rows(self, key: Any, rows: list[Row], timers: Any) -> Iterator[Row]:
        known = self.letters.get()
        text = (known[0] if known is not None else "") + "".join(row["value"] for row in rows)
        self.letters.update((text,))
        yield Row(text=text)

    def on_timer(self, key: Any, timers: Any, expired: Any) -> None:
        self.letters.clear()


def row(value: str, position: int, tenure: int, replay: bool = False) -> Row:
    return Row(value=value, position=str(position), tenure=tenure, replay=replay)


@pytest.fixture
def letters() -> Letters:
    letters = Letters()
    letters.init(Handle())  # type: ignore[arg-type]
    return letters


def out(letters: Letters, *rows: Row) -> list[str]:
    return [one["text"] for one in letters.handleInputRows((0, "k"), iter(rows), None)]


def test_history_builds_state_and_puts_nothing_out(letters: Letters) -> None:
    assert out(letters, row("a", 0, 3, True), row("b", 1, 3, True)) == []
    assert out(letters, row("c", 2, 3)) == ["abc"]


def test_another_tenure_finds_nothing(letters: Letters) -> None:
    assert out(letters, row("a", 0, 1)) == ["a"]
    assert out(letters, row("x", 0, 3, True)) == []
    assert out(letters, row("y", 1, 3)) == ["xy"]
    assert out(letters, row("z", 2, 5)) == ["z"]


def test_rows_come_in_the_order_of_their_positions(letters: Letters) -> None:
    assert out(letters, row("c", 10, 1), row("a", 2, 1), row("b", 9, 1)) == ["abc"]


def test_a_timer_changes_state_and_puts_nothing_out(letters: Letters) -> None:
    """It fires even where the partition is not owned any more."""
    assert out(letters, row("a", 0, 1)) == ["a"]
    assert list(letters.handleExpiredTimer((0, "k"), None, None)) == []
    assert out(letters, row("b", 1, 1)) == ["b"]


def test_fresh_is_told_once_for_each_tenure() -> None:
    state = Value()
    told = [fresh(state, tenure) for tenure in (3, 3, 5, 5, 3)]
    assert told == [True, False, True, False, True]
